"""Waiters: callbacks by the partitions to whose commits they wait.

Most wait at positions, each in a partition; a reader of many partitions waits once, at their topic,
and is told what each commit wrote to.

A commit looks only at the waiters of the partitions it wrote to, so thousands that are idle cost
the wake-up of one nothing. No commit is remembered here: a waiter registers first and looks at
the log second, so a commit after the look calls it back, and one before is seen.
"""

import logging
import threading
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from wings_core.errors import ResourceExhausted
from wings_core.metadata.wake import in_turn
from wings_core.model import Position
from wings_core.partitions import Partition

WATCHES_MAX = 65_536
"""How many watches a process keeps at once; further ones are refused."""

_logger = logging.getLogger(__name__)


@dataclass(eq=False, frozen=True, slots=True)
class _Watch:
    """One waiter, told apart by identity."""

    callback: Callable[[], None]

    def call(self) -> None:
        try:
            self.callback()
        except Exception:
            # The commit is durable, and the other waiters must be called back too.
            _logger.exception("a waiter's callback failed")


@dataclass(eq=False, frozen=True, slots=True)
class _TopicWatch:
    """One waiter at a topic, told apart by identity."""

    callback: Callable[[Mapping[Partition, int] | None], None]

    def call(self, ends: Mapping[Partition, int] | None) -> None:
        try:
            self.callback(ends)
        except Exception:
            _logger.exception("a waiter's callback failed")


class Waiters:
    """The waiters of one process, by topic and partition.

    The lock here is a leaf: nothing is called while it is held.

    Args:
        watches_max: How many may wait at once.
    """

    def __init__(self, watches_max: int = WATCHES_MAX) -> None:
        self._lock = threading.Lock()
        self._watches_max = watches_max
        self._watches = 0
        self._topics: dict[str, dict[Partition, dict[_Watch, int]]] = {}
        """The offset that each waits at."""
        self._topic_watches: dict[str, dict[_TopicWatch, None]] = {}

    @property
    def watches(self) -> int:
        """How many wait now."""
        return self._watches

    def registered(
        self, positions: Sequence[Position], callback: Callable[[], None]
    ) -> "_Registered":
        """Call `callback` on commits to the positions during the block, once for each commit.

        One call may still be under way on another thread when the block has ended.

        Raises:
            ResourceExhausted: Too many wait already; by the block.
        """
        return _Registered(self, positions, callback)

    @contextmanager
    def registered_at(
        self, topic_uuid: str, callback: Callable[[Mapping[Partition, int] | None], None]
    ) -> Generator[None]:
        """Call `callback` on commits to a topic during the block; see `OffsetRegistry.watch_topic`.

        Raises:
            ResourceExhausted: Too many wait already.
        """
        watch = _TopicWatch(callback)
        with self._lock:
            self._count_one()
            self._topic_watches.setdefault(topic_uuid, {})[watch] = None
        try:
            yield
        finally:
            with self._lock:
                self._watches -= 1
                watches = self._topic_watches[topic_uuid]
                del watches[watch]
                if not watches:
                    del self._topic_watches[topic_uuid]

    def notify(self, ends: Mapping[tuple[str, Partition], int]) -> None:
        """Call back the waiters of committed messages; call it once the commit is durable.

        Args:
            ends: The next offset of each topic (by UUID) and partition that was written to.
        """
        with self._lock:
            if not self._watches:
                return
            woken: dict[_Watch, None] = {}
            told: list[tuple[_TopicWatch, dict[Partition, int]]] = []
            if self._topic_watches:
                by_topic: dict[str, dict[Partition, int]] = {}
                for (topic_uuid, partition), next_offset in ends.items():
                    if topic_uuid in self._topic_watches:
                        by_topic.setdefault(topic_uuid, {})[partition] = next_offset
                for topic_uuid, written in by_topic.items():
                    told += [(watch, written) for watch in self._topic_watches[topic_uuid]]
            if self._topics:
                for (topic_uuid, partition), next_offset in ends.items():
                    watches = self._topics.get(topic_uuid, {}).get(partition, {})
                    for watch, offset in watches.items():
                        if offset < next_offset:
                            woken[watch] = None
        _call(woken, told)

    def notify_deleted(self, topic_uuid: str) -> None:
        """Call back the waiters of a topic's partitions; call it once its deletion is durable."""
        with self._lock:
            partitions = self._topics.get(topic_uuid, {}).values()
            woken = {watch: None for watches in partitions for watch in watches}
            told = [(watch, None) for watch in self._topic_watches.get(topic_uuid, ())]
        _call(woken, told)

    def notify_all(self) -> None:
        """Call back all waiters; call it when notifications of commits may have been missed."""
        with self._lock:
            woken = {
                watch: None
                for partitions in self._topics.values()
                for watches in partitions.values()
                for watch in watches
            }
            told = [(watch, None) for watches in self._topic_watches.values() for watch in watches]
        _call(woken, told)

    def register(self, watch: _Watch, positions: Sequence[Position]) -> None:
        """Begin to call a watch. Raises as `registered`."""
        with self._lock:
            self._count_one()
            for position in positions:
                partitions = self._topics.setdefault(position.topic_uuid, {})
                watches = partitions.setdefault(position.partition, {})
                watches[watch] = min(position.offset, watches.get(watch, position.offset))

    def _count_one(self) -> None:
        """Count a waiter; called with the lock held."""
        if self._watches >= self._watches_max:
            raise ResourceExhausted(f"{self._watches_max} wait for messages already")
        self._watches += 1

    def unregister(self, watch: _Watch, positions: Sequence[Position]) -> None:
        """Call a watch no more."""
        with self._lock:
            self._watches -= 1
            for position in positions:
                partitions = self._topics.get(position.topic_uuid, {})
                watches = partitions.get(position.partition, {})
                watches.pop(watch, None)  # Gone already where a position is named twice.
                if not watches:
                    partitions.pop(position.partition, None)
                if not partitions:
                    self._topics.pop(position.topic_uuid, None)


class _Registered:
    """A `with` block during which a waiter is called.

    Each wait of a follower is one: a generator's block would be six calls more.
    """

    __slots__ = ("_positions", "_waiters", "_watch")

    def __init__(
        self, waiters: Waiters, positions: Sequence[Position], callback: Callable[[], None]
    ) -> None:
        self._waiters = waiters
        self._positions = positions
        self._watch = _Watch(callback)

    def __enter__(self) -> None:
        self._waiters.register(self._watch, self._positions)

    def __exit__(self, *_: object) -> None:
        self._waiters.unregister(self._watch, self._positions)


def _call(
    woken: Collection[_Watch],
    told: Sequence[tuple[_TopicWatch, Mapping[Partition, int] | None]],
) -> None:
    # One is not worth a queue.
    with in_turn() if len(woken) + len(told) > 1 else nullcontext():
        for watch in woken:
            watch.call()
        for topic_watch, ends in told:
            topic_watch.call(ends)
