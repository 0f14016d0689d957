"""Replica: holds in memory, tombstones and counts durable; one of those that a majority is of.

**A restart forgets the holds.** Before a hold is granted that would expire after the group's mark,
the mark is moved past it, durably and in coarse steps. After a restart nothing of the group is held
until the mark has passed: a lease granted before still holds alone. A replica that is
closed moves the marks back to what is really held.

Memory is changed first, then the store is written, then the answer is given; where the write fails,
memory is changed back. One lock covers it all, the write included; requests that come meanwhile
share the next write (`combiner`). While the store is read again,
or forgets a group, other calls are refused.
"""

import heapq
import logging
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from wings_core.errors import Unavailable, WingsError
from wings_core.model import Lease
from wings_core.partitions import Partition
from wings_core.share.clock import Clock, MonotonicClock
from wings_core.share.model import OffsetRange, ShareKey
from wings_core.share.replica.combiner import Combiner
from wings_core.share.replica.interfaces import (
    LeaseEntry,
    Part,
    ReleaseEntry,
    ReplicaState,
)
from wings_core.share.replica.operations import Expiry, Operations
from wings_core.share.replica.partition import ReplicaPartition
from wings_core.share.replica.requests import (
    Answer,
    HoldRequest,
    ReadRequest,
    ReleaseRequest,
    RenewRequest,
    Request,
    TombstoneRequest,
)
from wings_core.share.replica.store import HoldStore, Mark

MARK_SHARE = 0.25
MARK_SECONDS_MIN = 1.0
"""A mark is moved ahead by this share of the TTL, and by so many seconds at least."""

FORGOTTEN_MAX = 10_000
"""Groups that were forgotten and are remembered as such, for what comes late."""

LOCK_WAIT_SECONDS = 1.0
"""How long a call waits for its turn while the replica does something that may take minutes."""

_logger = logging.getLogger(__name__)


class _Turn:
    """Has a lock for a block; no generator, since each request takes its turn.

    Args:
        lock: Of the replica.
        is_occupied: Whether who has it does something that may take minutes.
    """

    __slots__ = ("_is_occupied", "_lock")

    def __init__(self, lock: threading.Lock, is_occupied: Callable[[], bool]) -> None:
        self._lock = lock
        self._is_occupied = is_occupied

    def __enter__(self) -> None:
        """Wait for the lock.

        Raises:
            Unavailable: It is not to be had soon: threads that wait for it are missed elsewhere.
        """
        while not self._lock.acquire(timeout=LOCK_WAIT_SECONDS):
            if self._is_occupied():
                raise Unavailable("this replica of holds reads, or forgets, what it stores")

    def __exit__(self, *_: object) -> None:
        """Release the lock."""
        self._lock.release()


class Replica(Operations):
    """A `HoldReplica`; all methods from any thread, and each blocks for a sync of the disk at most.

    But for `forget`, and for the first call after a write that may have been done, which reads the
    store again: those take as long as there are ranges.

    Args:
        store: Loaded here, and closed with the replica.
        clock: What TTLs run on.
    """

    def __init__(self, store: HoldStore, clock: Clock | None = None) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._store = store
        self._clock = clock or MonotonicClock()
        self._closed = False
        self._occupied = False
        """Whether who has the lock does something that may take minutes."""
        for stored in store.load():
            self._add(ReplicaPartition(stored.key, stored))
        self._marks: dict[str, Mark] = {}
        self._marks_to_write: dict[str, Mark | None] = {}
        self._refused_until = self._refusals(store.marks())
        self._turn = _Turn(self._lock, lambda: self._occupied)
        self._combiner = Combiner(self._locked, self._perform)

    def hold(
        self,
        key: ShareKey,
        ranges: Sequence[OffsetRange],
        lease: Lease,
        ttl_ms: int,
        in_flight_max: int,
    ) -> list[Part]:
        """See `HoldReplica.hold`."""
        return self._run(HoldRequest(key, tuple(ranges), lease, ttl_ms, in_flight_max))

    def renew(self, key: ShareKey, entries: Sequence[LeaseEntry], ttl_ms: int) -> list[Part]:
        """See `HoldReplica.renew`."""
        return self._run(RenewRequest(key, tuple(entries), ttl_ms))

    def release(self, key: ShareKey, entries: Sequence[ReleaseEntry]) -> list[Part]:
        """See `HoldReplica.release`."""
        return self._run(ReleaseRequest(key, tuple(entries)))

    def tombstone(
        self, key: ShareKey, entries: Sequence[LeaseEntry], repair: Sequence[OffsetRange] = ()
    ) -> list[Part]:
        """See `HoldReplica.tombstone`."""
        return self._run(TombstoneRequest(key, tuple(entries), tuple(repair)))

    def read(self, group_uuid: str, partitions: Sequence[Partition]) -> list[ReplicaState]:
        """See `HoldReplica.read`."""
        return self._run(ReadRequest(group_uuid, tuple(partitions)))

    def perform(self, requests: Sequence[Request]) -> Sequence[Answer]:
        """See `HoldReplica.perform`."""
        return self._combiner.run(requests)

    def _run(self, request: Request) -> Any:
        (answer,) = self._combiner.run([request])
        if isinstance(answer, WingsError):
            raise answer
        return answer

    def _perform(self, requests: Sequence[Request]) -> list[Answer]:
        """Carry out requests one after another, and make them durable together.

        Raises:
            WingsError: None of them was carried out.
        """
        now, expired = self._begin()
        try:
            answers = [self._answer(request, now) for request in requests]
            self._write()
        except BaseException:
            self._undo(expired)
            raise
        finally:
            self._end()
        return answers

    def forget(self, group_uuid: str) -> None:
        """See `HoldReplica.forget`."""
        with self._locked(), self._changing():
            with self._occupying():
                self._store.forget(group_uuid)
            for key in self._keys.pop(group_uuid, {}).values():
                del self._partitions[key]
                self._touched.pop(key, None)  # Those of other groups may just have expired.
            self._marks.pop(group_uuid, None)
            self._refused_until.pop(group_uuid, None)
            self._forgotten[group_uuid] = None
            while len(self._forgotten) > FORGOTTEN_MAX:
                self._forgotten.popitem(last=False)

    def close(self) -> None:
        """Write down what is held still, for the next start, and close the store.

        Where that fails, the next start waits for the marks of before, as after a crash.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                self._store.check()
                if not self._store.is_stale:
                    self._leave()
            except WingsError as error:
                _logger.warning("what is held is not written down: %s", error.message)
            finally:
                self._store.close()

    # Inside; the lock is held.

    def _begin(self) -> tuple[float, list[Expiry]]:
        """Begin changes, which `_write` or `_undo` follows, and `_end`.

        Returns:
            The time, and the holds that have expired.

        Raises:
            Unavailable: The replica is closed, or its store does not answer for what it holds.
        """
        if self._closed:
            raise Unavailable("this replica of holds is closed")
        self._store.check()
        if self._store.is_stale:
            with self._occupying():
                self._reload()
            self._store.check()  # It took its time.
        now = self._clock.now()
        return now, self._sweep(now)

    def _undo(self, expired: Sequence[Expiry]) -> None:
        for partition in self._touched.values():
            partition.undo()
        for entry in expired:
            heapq.heappush(self._expiries, entry)

    def _end(self) -> None:
        self._touched.clear()
        self._marks_to_write.clear()

    @contextmanager
    def _changing(self) -> Generator[None]:
        """Make what the block changes durable, or undo it; see `_begin`."""
        _, expired = self._begin()
        try:
            yield
            self._write()
        except BaseException:
            self._undo(expired)
            raise
        finally:
            self._end()

    def _locked(self) -> "_Turn":
        """Have the lock for a block; see `_Turn`."""
        return self._turn

    @contextmanager
    def _occupying(self) -> Generator[None]:
        """Refuse waiting calls soon until the block has ended, which may take minutes."""
        self._occupied = True
        try:
            yield
        finally:
            self._occupied = False

    def _write(self) -> None:
        writes = [
            write
            for partition in self._touched.values()
            if (write := partition.take_write()) is not None
        ]
        if writes or self._marks_to_write:
            self._store.write(writes, self._marks_to_write)
        for group_uuid, mark in self._marks_to_write.items():
            if mark is not None:
                self._marks[group_uuid] = mark
        for partition in self._touched.values():
            partition.keep()

    def _reload(self) -> None:
        """Read again what is stored, as a write failed that may have been done; holds stay."""
        before = list(self._partitions.values())
        stored = self._store.load()
        self._partitions.clear()
        self._keys.clear()
        for found in stored:
            self._add(ReplicaPartition(found.key, found))
        for old in before:
            partition = self._partitions.get(old.key) or self._add(ReplicaPartition(old.key))
            partition.take_holds(old)

    def _mark(self, group_uuid: str, now: float, ttl_seconds: float) -> None:
        """See to it that a restart respects a hold that is granted now."""
        mark = self._marks.get(group_uuid)
        expires_at = now + ttl_seconds
        longest = ttl_seconds
        if mark is not None and mark.expires_at > now:
            if mark.expires_at >= expires_at and mark.ttl_seconds >= ttl_seconds:
                return
            longest = max(ttl_seconds, mark.ttl_seconds)
        ahead = max(ttl_seconds * MARK_SHARE, MARK_SECONDS_MIN)
        until = max(expires_at + ahead, mark.expires_at if mark is not None else 0.0)
        self._marks_to_write[group_uuid] = Mark(self._clock.boot_id, until, longest)

    def _refusals(self, marks: dict[str, Mark]) -> dict[str, float]:
        """Return until when groups are refused, by what was granted before this start."""
        now = self._clock.now()
        refused: dict[str, float] = {}
        for group_uuid, mark in marks.items():
            seconds = mark.ttl_seconds
            if mark.boot_id == self._clock.boot_id:
                seconds = min(seconds, mark.expires_at - now)
            if seconds > 0:
                refused[group_uuid] = now + seconds
                # As it counts from now on: another restart must respect it as well.
                self._marks[group_uuid] = Mark(self._clock.boot_id, now + seconds, seconds)
        if marks:
            self._store.write([], {group_uuid: self._marks.get(group_uuid) for group_uuid in marks})
        return refused

    def _leave(self) -> None:
        now = self._clock.now()
        self._sweep(now)
        latest = dict(self._refused_until)
        for key, partition in self._partitions.items():
            for first, last, hold in list(partition.holds):
                self._touched[key] = partition
                group_uuid = key.group_uuid
                latest[group_uuid] = max(latest.get(group_uuid, 0.0), hold.expires_at)
                # What it would count as when it expires, which no call will see.
                partition.free(first, last, hold.deliveries)
        for group_uuid in self._marks:
            left = latest.get(group_uuid, 0.0) - now
            mark = Mark(self._clock.boot_id, now + left, left) if left > 0 else None
            self._marks_to_write[group_uuid] = mark
        self._write()
