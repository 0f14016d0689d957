"""Waiting for commits: waiters by position or topic, and threads that are woken one by one.

Most callers wait at positions, each in a partition; a reader of many partitions waits once, at
their topic, and its callback gets the partitions that each commit wrote to. A commit looks only at
the waiters of its partitions, so thousands of idle ones cost it nothing. No commit is remembered
here: a waiter registers first and looks at the log second, so a commit after the look calls it
back, and one before is seen.

A commit may end the waits of hundreds of threads. Woken at once they would all want the
interpreter's lock, and each that waits for it asks for it every 5 ms: of one row to 500 followers
that was a third of the processor's time. So a commit wakes one, and each wakes the next as soon as
it runs itself, before it does anything else.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Container, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from wings_core.errors import ResourceExhausted
from wings_core.model import Position
from wings_core.partitions import Partition


class Wake:
    """An event for which one thread waits; `notify` is `set` for a thread that notifies many.

    A `threading.Event` is nine calls of Python for each that it ends a wait of, and this is four.
    """

    def __init__(self) -> None:
        self._unset = threading.Lock()
        """Free while it is set."""
        self._unset.acquire()
        self._turn = threading.Lock()
        self._behind: list[deque[Wake]] | None = None
        """The queues that the thread which waits is to wake the next of; None: none waits."""

    def is_set(self) -> bool:
        """Tell whether it was set since it was cleared."""
        return not self._unset.locked()

    def set(self) -> None:
        """End the wait for it, and those to come until it is cleared."""
        try:  # noqa: SIM105 - each commit that is waited for comes by here
            self._unset.release()
        except RuntimeError:
            pass  # It is set.

    def clear(self) -> None:
        """Have the next wait block until it is set again."""
        self._unset.acquire(blocking=False)

    def notify(self) -> None:
        """Set the event: at once, or within `in_turn` when it is its turn."""
        queue: deque[Wake] | None = getattr(_notifying, "queue", None)
        if queue is None:
            self.set()
        else:
            queue.append(self)

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the event is set, at most so many seconds; return whether it is set."""
        with self._turn:
            is_first = self._behind is None
            if is_first:
                self._behind = []
        try:
            is_set = self._unset.acquire(timeout=-1 if timeout is None else max(timeout, 0))
            if is_set:
                self.set()
            return is_set
        finally:
            if is_first:
                with self._turn:
                    behind, self._behind = self._behind or [], None
                for queue in behind:
                    _wake_next(queue)

    def set_before(self, queue: "deque[Wake]") -> bool:
        """Set the event; return whether a thread waits, which then wakes the next of a queue."""
        with self._turn:
            waits = self._behind is not None
            if self._behind is not None:
                self._behind.append(queue)
        self.set()
        return waits


@contextmanager
def in_turn() -> Generator[None]:
    """Gather what is notified by this thread during the block, and then wake one after another."""
    queue: deque[Wake] = deque()
    _notifying.queue = queue
    try:
        yield
    finally:
        _notifying.queue = None
        _wake_next(queue)


_notifying = threading.local()


def _wake_next(queue: deque[Wake]) -> None:
    """Wake the first of a queue for which a thread waits, which wakes the next."""
    while True:
        try:
            wake = queue.popleft()
        except IndexError:
            return
        if wake.set_before(queue):
            return


WATCHES_MAX = 65_536
"""How many watches a process keeps at once; further ones are refused."""

_logger = logging.getLogger(__name__)


@dataclass(eq=False, frozen=True, slots=True)
class _PositionWatch:
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
        self._topics: dict[str, dict[Partition, dict[_PositionWatch, int]]] = {}
        """The offset that each waits at."""
        self._topic_watches: dict[str, dict[_TopicWatch, None]] = {}

    @property
    def watches(self) -> int:
        """How many wait now."""
        return self._watches

    @contextmanager
    def registered(
        self, positions: Sequence[Position], callback: Callable[[], None]
    ) -> Generator[None]:
        """Call `callback` on commits to the positions during the block, once for each commit.

        One call may still be under way on another thread when the block has ended.

        Raises:
            ResourceExhausted: Too many wait already.
        """
        watch = _PositionWatch(callback)
        self._register(watch, positions)
        try:
            yield
        finally:
            self._unregister(watch, positions)

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
            woken: dict[_PositionWatch, None] = {}
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

    def _register(self, watch: _PositionWatch, positions: Sequence[Position]) -> None:
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

    def _unregister(self, watch: _PositionWatch, positions: Sequence[Position]) -> None:
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


def _call(
    woken: Collection[_PositionWatch],
    told: Sequence[tuple[_TopicWatch, Mapping[Partition, int] | None]],
) -> None:
    # One is not worth a queue.
    with in_turn() if len(woken) + len(told) > 1 else nullcontext():
        for watch in woken:
            watch.call()
        for topic_watch, ends in told:
            topic_watch.call(ends)


class GatheredChanges:
    """Gathers what `OffsetRegistry.watch_topic` tells; all methods from any thread.

    Bounded by the topic's partitions: of each, only the last next offset is kept.

    Args:
        wake: Called after each change that is gathered; must be quick.
        wanted: The partitions of interest; None: all.
    """

    def __init__(
        self, wake: Callable[[], None], wanted: Container[Partition] | None = None
    ) -> None:
        self._wake = wake
        self._wanted = wanted
        self._lock = threading.Lock()
        self._ends: dict[Partition, int] = {}
        self._everything = False

    def hear(self, ends: Mapping[Partition, int] | None) -> None:
        """Gather a change; the callback for `watch_topic`."""
        wanted = self._wanted
        if ends is None:
            with self._lock:
                self._everything = True
        else:
            with self._lock:
                found = [each for each in ends if wanted is None or each in wanted]
                for partition in found:
                    # Commits may be told of in another order than they were made in.
                    self._ends[partition] = max(ends[partition], self._ends.get(partition, 0))
            if not found:
                return
        self._wake()

    def take(self) -> Mapping[Partition, int] | None:
        """Return the next offsets of partitions that changed since the last call.

        None: any partition may have changed, or the topic was deleted.
        """
        with self._lock:
            ends, self._ends = self._ends, {}
            everything, self._everything = self._everything, False
        return None if everything else ends
