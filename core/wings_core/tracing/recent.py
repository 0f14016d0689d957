"""RecentPushes: which spans the last messages were pushed in, for links from those who get them.

It is kept in memory, by the node that took the pushes: what was pushed before a start, at another
node, or too long ago has no links. Nothing of it is stored with the messages.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from wings_core.model import CommittedRange
from wings_core.partitions import Partition

PARTITIONS_MAX = 1_000
"""Partitions whose pushes are known; the one that was pushed to longest ago goes first."""

PUSHES_MAX = 64
"""Pushes of each partition that are known, the last."""

FOUND_MAX = 8
"""The most pushes that are told of a range."""


class _Push(NamedTuple):
    start_offset: int
    end_offset: int
    headers: Mapping[str, str]


class RecentPushes:
    """The last pushes of a process; all methods from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pushes: OrderedDict[tuple[str, Partition], deque[_Push]] = OrderedDict()

    def note(
        self, topic: str, committed: Iterable[CommittedRange], headers: Mapping[str, str]
    ) -> None:
        """Say that messages of a topic, by its UUID, were pushed in the span of these headers."""
        with self._lock:
            for found in committed:
                key = (topic, found.partition)
                pushes = self._pushes.setdefault(key, deque(maxlen=PUSHES_MAX))
                self._pushes.move_to_end(key)
                pushes.append(_Push(found.start_offset, found.end_offset, headers))
                if len(self._pushes) > PARTITIONS_MAX:
                    self._pushes.popitem(last=False)

    def find(
        self, topic: str, partition: Partition, start_offset: int, end_offset: int
    ) -> Sequence[Mapping[str, str]]:
        """Return what names the spans of those messages' pushes, the last first, without repeats.

        Of more than `FOUND_MAX`, the last.
        """
        with self._lock:
            pushes = list(self._pushes.get((topic, partition), ()))
        found: list[Mapping[str, str]] = []
        for push in reversed(pushes):
            meets = push.start_offset <= end_offset and start_offset <= push.end_offset
            if meets and push.headers not in found:
                found.append(push.headers)
                if len(found) == FOUND_MAX:
                    break
        return found
