"""RecentPushes: the spans that pushed recent messages, for links from the spans of consumers.

They are kept in the memory of the node that received the pushes: messages pushed before a restart,
at another node, or too long ago have no links. Nothing is stored with the messages.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from wings_core.model import AssignedRange
from wings_core.partitions import Partition

PARTITIONS_MAX = 1_000
"""Most partitions whose pushes are known; the least recently pushed to is dropped."""

PUSHES_MAX = 64
"""Most recent pushes known of each partition."""

FOUND_MAX = 8
"""Most pushes returned for a range."""


class _Push(NamedTuple):
    start_offset: int
    end_offset: int
    headers: Mapping[str, str]


class RecentPushes:
    """The recent pushes of a process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pushes: OrderedDict[tuple[str, Partition], deque[_Push]] = OrderedDict()

    def note(
        self, topic: str, committed: Iterable[AssignedRange], headers: Mapping[str, str]
    ) -> None:
        """Record that messages of a topic (its UUID) were pushed in the span named by `headers`."""
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
        """Return headers of the spans that pushed messages, the latest first, without duplicates.

        At most the last `FOUND_MAX` are returned.
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
