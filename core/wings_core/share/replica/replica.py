"""Replica: holds in memory, tombstones and counts durable; one vote of the majority.

**The store may be away.** One of several processes has what is in PostgreSQL; a file may be
damaged, or its disk full. Until the store can be opened, requests are refused; once a second one
tries again. Damage stays until the next start.

**A restart forgets the holds.** Before a hold is granted that would expire after the group's mark,
the mark is moved past it, durably and in coarse steps. After a restart nothing of the group is held
until the mark has passed: a lease granted before still holds alone. A replica that is
closed moves the marks back to what is really held.

Memory is changed first, then the store is written, then the answer is given; a failed write undoes
the change. One lock covers it all, the write included. Requests of other threads wait for the lock
and go into the next write, so a hundred threads share one sync. While the store is opened, read
again, or forgets a group, other calls are refused.
"""

import heapq
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from wings_core.errors import (
    GroupNotFound,
    Internal,
    StorageCorrupt,
    Unavailable,
    WingsError,
)
from wings_core.model import Lease
from wings_core.partitions import Partition
from wings_core.share.model import Clock, MonotonicClock, ShareKey
from wings_core.share.replica.partition import Hold, RangePiece, ReplicaPartition, part_of
from wings_core.share.replica.requests import (
    BATCH_MAX,
    Answer,
    ForgetRequest,
    HoldRequest,
    PartOutcome,
    RangeAnswer,
    ReadRequest,
    ReleaseRequest,
    RenewRequest,
    ReplicaState,
    Request,
    TombstoneRequest,
    refused,
)
from wings_core.share.replica.store import HoldStore, Mark
from wings_core.storage.lru import Lru
from wings_core.times import Deadline

MARK_SHARE = 0.25
MARK_SECONDS_MIN = 1.0
"""A mark is moved ahead by this share of the TTL, and by so many seconds at least."""

FORGOTTEN_MAX = 10_000
"""Deleted groups remembered as such, for late requests."""

SWEEP_MAX = 10_000
"""Holds that expire in one call at most."""

STALE_MAX = 1_024
"""Overtaken expiries are dropped when they outnumber this, and the holds."""

HOLDS_TOLD_MAX = 10_000
"""Held ranges in the answer to a read at most, and delayed ones."""

ROOM_RETRY_SECONDS = 0.1
"""Retry time of a hold refused because too much is in flight."""

Expiry = tuple[float, int, ShareKey, int, int]
"""Time of an expiry, a number that makes it unique, and the held range."""

_logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Pending:
    """Requests of one call, and their answers once they are known."""

    requests: Sequence[Request]
    answers: Sequence[Answer] | None = None


class Replica:
    """One of the replicas that holds are acquired on; all methods from any thread.

    Each blocks for a sync of the disk at most.

    Exceptions are the request that opens the store, a `ForgetRequest`, and the first call after a
    write with an unknown outcome, which reads the store again: they take as long as there are
    ranges.

    Args:
        open_store: Opens the store without waiting for its owner; raises `Unavailable` where there
            is one. The store is closed with the replica.
        clock: The clock of TTLs.
        lock_wait_seconds: Longest wait for the lock while the replica does something that may take
            minutes.
        try_seconds: Pause between attempts to open the store.
    """

    def __init__(
        self,
        open_store: Callable[[], HoldStore],
        clock: Clock | None = None,
        *,
        lock_wait_seconds: float = 1.0,
        try_seconds: float = 1.0,
    ) -> None:
        self._open_store = open_store
        self._lock_wait_seconds = lock_wait_seconds
        self._try_seconds = try_seconds
        self._clock = clock or MonotonicClock()
        self._lock = threading.Lock()
        self._waiting: deque[_Pending] = deque()
        """Calls whose requests no thread has taken yet."""
        self._closed = False
        self._occupied = False
        """Whether the thread with the lock does something that may take minutes."""
        self._store: HoldStore | None = None
        self._refusal: WingsError = Unavailable("this replica of holds is closed")
        """The error of requests while the store is not open."""
        self._next_try = Deadline.after(0)
        self._forgotten: Lru[str, None] = Lru(FORGOTTEN_MAX)
        self._partitions: dict[ShareKey, ReplicaPartition] = {}
        self._keys: dict[str, dict[Partition, ShareKey]] = {}
        """Keys by group and partition."""
        self._expiries: list[Expiry] = []
        self._numbers = itertools.count()
        """Numbers of expiries, so that those of one moment are not compared further."""
        self._holds = 0
        self._touched: dict[ShareKey, ReplicaPartition] = {}
        """Partitions that may have changed since the last write."""
        self._marks: dict[str, Mark] = {}
        self._marks_to_write: dict[str, Mark | None] = {}
        self._refused_until: dict[str, float] = {}
        """Until when a group is refused, as holds of before the start may not have expired."""

    @property
    def damage(self) -> StorageCorrupt | None:
        """The error of every call until the next start; None: nothing is damaged."""
        return self._refusal if isinstance(self._refusal, StorageCorrupt) else None

    @property
    def serves(self) -> bool:
        """Whether this process has the store, as far as it knows."""
        store = self._store
        return store is not None and not store.is_lost

    def open(self) -> None:
        """Open the store now instead of at the first request.

        Raises:
            Unavailable: Another process has it, or it cannot be opened.
            StorageCorrupt: It is damaged.
        """
        with self._lock:
            self._opened()

    def perform(self, requests: Sequence[Request]) -> Sequence[Answer]:
        """Carry out requests of several partitions in order, durable together on return.

        Blocks for a write, with the requests of other threads in it; no request waits for another
        lease's hold.

        Args:
            requests: At least one. A `ForgetRequest` goes alone.

        Returns:
            The answer to each; an error is one. After `Unavailable` the outcome is unknown.
        """
        if isinstance(requests[0], ForgetRequest):
            return self._forget(requests[0])
        pending = _Pending(requests)
        self._waiting.append(pending)
        try:
            with self._locked():
                # The thread before took it, or it is there yet.
                while pending.answers is None:
                    self._perform_waiting()
        except WingsError as error:
            if pending.answers is None:
                pending.answers = refused(requests, error)
                # The thread with the lock may take it at this moment.
                with suppress(ValueError):
                    self._waiting.remove(pending)
        assert pending.answers is not None
        return pending.answers

    def close(self) -> None:
        """Write the holds down for the next start, and close the store.

        Another process may take it over then. If the write fails, the next start waits for the
        earlier marks, as after a crash.
        """
        with self._lock:
            self._closed = True
            self._close_store()

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Hold the lock during the block; blocks until it is free.

        Raises:
            Unavailable: It is not free soon; waiting threads are missed elsewhere.
        """
        while not self._lock.acquire(timeout=self._lock_wait_seconds):
            if self._occupied:
                raise Unavailable("this replica of holds opens, reads or deletes its store")
        try:
            yield
        finally:
            self._lock.release()

    # Inside; the lock is held.

    def _opened(self) -> HoldStore:
        """Return the store, opened if need be.

        Raises:
            Unavailable: The replica is closed, or the store is another process's, or cannot be
                opened.
            StorageCorrupt: It is damaged.
        """
        if self._closed:
            raise Unavailable("this replica of holds is closed")
        if self._store is not None and self._store.is_lost:
            self._close_store()
        if self._store is None:
            if self.damage is not None or not self._next_try.passed:
                raise type(self._refusal)(self._refusal.message)  # Each thread its own.
            self._next_try = Deadline.after(self._try_seconds)
            try:
                with self._occupying():
                    store = self._open_store()
                    try:
                        self._load(store)
                    except BaseException:
                        store.close()
                        raise
            except StorageCorrupt as error:
                self._refusal = error
                raise
            except WingsError as error:
                self._refusal = Unavailable(error.message)
                raise self._refusal from error
            self._store = store
        return self._store

    def _load(self, store: HoldStore) -> None:
        """Begin with what a store has, in place of what was known before."""
        self._partitions, self._keys, self._expiries = {}, {}, []
        for stored in store.load():
            self._add(ReplicaPartition(stored.key, stored))
        self._marks = {}
        marks = store.marks()
        self._refused_until = self._refusals(marks)
        if marks:
            store.write([], {group_uuid: self._marks.get(group_uuid) for group_uuid in marks})

    def _close_store(self) -> None:
        """Write the holds down, where the store is open, and close it."""
        store, self._next_try = self._store, Deadline.after(0)
        if store is None:
            return
        try:
            store.check()
            if not store.is_stale:
                self._leave(store)
        except WingsError as error:
            _logger.warning("held messages are not written down: %s", error.message)
        finally:
            self._store = None
            store.close()

    def _perform_waiting(self) -> None:
        """Carry out the requests of waiting calls, up to `BATCH_MAX`."""
        batch = [self._waiting.popleft()]
        requests = batch[0].requests
        if self._waiting:
            requests = list(requests)
            while self._waiting and len(requests) < BATCH_MAX:
                batch.append(self._waiting.popleft())
                requests += batch[-1].requests
        answers: Sequence[Answer]
        try:
            answers = self._perform(requests)
        except WingsError as error:
            answers = refused(requests, error)
        except BaseException as error:
            for each in batch:
                fault = Internal(f"a fault of the replica of holds: {error!r:.200}")
                each.answers = refused(each.requests, fault)
            if not isinstance(error, Exception):
                raise
            _logger.exception("the replica of holds failed")  # Callers put back what they picked.
            return
        at = 0
        for each in batch:
            each.answers = answers[at : at + len(each.requests)]
            at += len(each.requests)

    def _perform(self, requests: Sequence[Request]) -> list[Answer]:
        """Carry out requests one after another, and make them durable together.

        Raises:
            WingsError: None of them was carried out.
        """
        with self._changing() as (_, now):
            return [self._answer(request, now) for request in requests]

    def _forget(self, request: ForgetRequest) -> Sequence[Answer]:
        """Take the lock and forget a group."""
        group_uuid = request.group_uuid
        try:
            with self._locked(), self._changing() as (store, _):
                with self._occupying():
                    store.forget(group_uuid)
                for key in self._keys.pop(group_uuid, {}).values():
                    del self._partitions[key]
                    self._touched.pop(key, None)  # Those of other groups may just have expired.
                self._marks.pop(group_uuid, None)
                self._refused_until.pop(group_uuid, None)
                self._forgotten.put(group_uuid, None)
        except WingsError as error:
            return [error]
        return [()]

    @contextmanager
    def _changing(self) -> Generator[tuple[HoldStore, float]]:
        """Make the changes of the block durable at its end, or undo all of them.

        Returns:
            A context that yields the store and the time; holds have expired by then.

        Raises:
            WingsError: The store cannot be used, or written: nothing was changed.
        """
        store = self._opened()
        store.check()
        if store.is_stale:
            with self._occupying():
                self._reload(store)
            store.check()  # It took its time.
        now = self._clock.now()
        expired = self._sweep(now)
        try:
            yield store, now
            self._write(store)
        except BaseException:
            for partition in self._touched.values():
                partition.undo()
            for entry in expired:
                heapq.heappush(self._expiries, entry)
            self._touched.clear()
            self._marks_to_write.clear()
            raise

    @contextmanager
    def _occupying(self) -> Generator[None]:
        """Refuse waiting calls soon until the block has ended, which may take minutes."""
        self._occupied = True
        try:
            yield
        finally:
            self._occupied = False

    def _write(self, store: HoldStore) -> None:
        writes = [
            write
            for partition in self._touched.values()
            if (write := partition.take_write()) is not None
        ]
        if writes or self._marks_to_write:
            store.write(writes, self._marks_to_write)
        for group_uuid, mark in self._marks_to_write.items():
            if mark is not None:
                self._marks[group_uuid] = mark
        for partition in self._touched.values():
            partition.keep()
        self._touched.clear()
        self._marks_to_write.clear()

    def _reload(self, store: HoldStore) -> None:
        """Read again what is stored, as a write failed that may have been done; holds stay."""
        before = list(self._partitions.values())
        stored = store.load()
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
        return refused

    def _leave(self, store: HoldStore) -> None:
        """Write marks and counts down, as a start will need them."""
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
        self._write(store)

    # Requests.

    def _answer(self, request: Request, now: float) -> Answer:
        if isinstance(request, ReadRequest):
            return self._read(request, now)
        assert not isinstance(request, ForgetRequest), "it goes alone"
        if request.key.group_uuid in self._forgotten:
            # What comes late must not begin it anew.
            return GroupNotFound("the group was deleted")
        match request:
            case HoldRequest():
                return self._hold(request, now)
            case RenewRequest():
                return self._renew(request, now)
            case ReleaseRequest():
                return self._release(request, now)
            case TombstoneRequest():
                return self._tombstone(request, now)

    def _hold(self, request: HoldRequest, now: float) -> list[RangeAnswer]:
        key, ttl_ms, lease = request.key, request.ttl_ms, request.lease
        partition = self._partition(key)
        refused = self._refused_until.get(key.group_uuid, 0.0) - now
        expires_at = now + ttl_ms / 1_000
        parts: list[RangeAnswer] = []
        if request.next_offset:
            partition.finish(0, request.next_offset - 1)
        for wanted in request.ranges:
            for piece in partition.pieces(wanted.first, wanted.last):
                if piece.finished:
                    parts.append(part_of(piece, PartOutcome.TOMB))
                elif refused > 0:
                    parts.append(part_of(piece, PartOutcome.NOK, refused))
                elif (wait := self._wait(piece, lease, now)) > 0 or (
                    request.next_offset is not None
                    and (wait := self._wait_for_others(partition, lease, now)) > 0
                ):
                    parts.append(part_of(piece, PartOutcome.NOK, wait))
                else:
                    room = request.in_flight_max - partition.held
                    room += piece.messages if piece.hold else 0
                    hold = Hold(lease, expires_at, piece.count + 1, now, request.member)
                    if piece.hold is not None:
                        hold = hold._replace(since=piece.hold.since)
                    parts += self._grant(partition, piece, hold, room)
        if any(part.outcome is PartOutcome.OK for part in parts):
            self._mark(key.group_uuid, now, ttl_ms / 1_000)
        return parts

    def _renew(self, request: RenewRequest, now: float) -> list[RangeAnswer]:
        key, ttl_ms = request.key, request.ttl_ms
        partition = self._partition(key)
        expires_at = now + ttl_ms / 1_000
        parts: list[RangeAnswer] = []
        for entry in request.entries:
            for piece in partition.pieces(entry.first, entry.last):
                outcome = self._outcome(piece, entry.lease, now)
                parts.append(part_of(piece, outcome))
                if outcome is PartOutcome.OK:
                    assert piece.hold is not None
                    deliveries = max(piece.hold.deliveries, entry.count)
                    hold = piece.hold._replace(expires_at=expires_at, deliveries=deliveries)
                    self._put_hold(partition, piece.first, piece.last, hold)
        if any(part.outcome is PartOutcome.OK for part in parts):
            self._mark(key.group_uuid, now, ttl_ms / 1_000)
        return parts

    def _release(self, request: ReleaseRequest, now: float) -> list[RangeAnswer]:
        partition = self._partition(request.key)
        parts: list[RangeAnswer] = []
        for entry in request.entries:
            until = now + entry.delay_ms / 1_000 if entry.delay_ms else 0.0
            for piece in partition.pieces(entry.first, entry.last):
                outcome = self._outcome(piece, entry.lease, now)
                parts.append(part_of(piece, outcome))
                if outcome is PartOutcome.OK:
                    partition.free(piece.first, piece.last, entry.count, until)
        return parts

    def _tombstone(self, request: TombstoneRequest, now: float) -> list[RangeAnswer]:
        partition = self._partition(request.key)
        found = [
            (piece, self._outcome(piece, entry.lease, now))
            for entry in request.entries
            for piece in partition.pieces(entry.first, entry.last)
        ]
        refused = any(outcome is PartOutcome.NOK for _, outcome in found)
        for wanted in request.repair:
            partition.finish(wanted.first, wanted.last)
        parts: list[RangeAnswer] = []
        for piece, outcome in found:
            if outcome is PartOutcome.OK and refused:
                outcome = PartOutcome.NOK
            elif outcome is PartOutcome.OK:
                partition.finish(piece.first, piece.last)
            parts.append(part_of(piece, outcome))
        return parts

    def _read(self, request: ReadRequest, now: float) -> list[ReplicaState]:
        group_uuid, partitions = request.group_uuid, request.partitions
        known = self._keys.get(group_uuid, {})
        states: list[ReplicaState] = []
        holds_room = delays_room = HOLDS_TOLD_MAX
        for name in partitions or known:
            key = known.get(name)
            if key is None:
                states.append(ReplicaState(name, 0, (), (), 0))
                continue
            found = self._partitions[key]
            if request.with_holds and not partitions and not found.held:
                continue
            if not request.with_holds:
                states.append(found.state())
                continue
            holds = tuple(itertools.islice(found.held_ranges(now), holds_room))
            delays = tuple(itertools.islice(found.delayed_ranges(now), delays_room))
            holds_room -= len(holds)
            delays_room -= len(delays)
            states.append(ReplicaState(name, found.start_offset, (), (), found.held, holds, delays))
        return states

    def _partition(self, key: ShareKey) -> ReplicaPartition:
        partition = self._partitions.get(key)
        if partition is None:
            partition = self._add(ReplicaPartition(key))
        self._touched[key] = partition
        return partition

    def _add(self, partition: ReplicaPartition) -> ReplicaPartition:
        self._partitions[partition.key] = partition
        self._keys.setdefault(partition.key.group_uuid, {})[partition.key.partition] = partition.key
        return partition

    def _wait(self, piece: RangePiece, lease: Lease, now: float) -> float:
        """Return for how long a piece cannot be held by a lease."""
        if piece.hold is not None:
            return 0.0 if piece.hold.lease == lease else max(piece.hold.expires_at - now, 1e-3)
        return piece.delayed_until - now

    def _wait_for_others(self, partition: ReplicaPartition, lease: Lease, now: float) -> float:
        """Return for how long other leases may hold anything of a partition."""
        others = [hold.expires_at for _, _, hold in partition.holds if hold.lease != lease]
        return max(max(others) - now, 1e-3) if others else 0.0

    def _outcome(self, piece: RangePiece, lease: Lease, now: float) -> PartOutcome:
        """Judge whether a lease may act on a piece."""
        if piece.finished:
            return PartOutcome.TOMB
        hold = piece.hold
        held = (
            hold is not None
            and (hold.lease is lease or hold.lease == lease)
            and hold.expires_at > now
        )
        return PartOutcome.OK if held else PartOutcome.NOK

    def _grant(
        self,
        partition: ReplicaPartition,
        piece: RangePiece,
        hold: Hold,
        room: int,
    ) -> list[RangeAnswer]:
        last = min(piece.last, piece.first + room - 1)
        parts: list[RangeAnswer] = []
        if last >= piece.first:
            self._put_hold(partition, piece.first, last, hold)
            parts.append(RangeAnswer(piece.first, last, PartOutcome.OK, piece.count))
        if last < piece.last:
            first = max(piece.first, last + 1)
            retry_ms = int(ROOM_RETRY_SECONDS * 1_000)
            parts.append(RangeAnswer(first, piece.last, PartOutcome.NOK, piece.count, retry_ms))
        return parts

    def _put_hold(self, partition: ReplicaPartition, first: int, last: int, hold: Hold) -> None:
        partition.hold(first, last, hold)
        entry = (hold.expires_at, next(self._numbers), partition.key, first, last)
        heapq.heappush(self._expiries, entry)
        if len(self._expiries) > 2 * self._holds + STALE_MAX:
            self._forget_stale()

    def _forget_stale(self) -> None:
        self._expiries = [
            (hold.expires_at, next(self._numbers), partition.key, first, last)
            for partition in self._partitions.values()
            for first, last, hold in partition.holds
        ]
        self._holds = len(self._expiries)
        heapq.heapify(self._expiries)

    def _sweep(self, now: float) -> list[Expiry]:
        """Let holds expire, which counts as a delivery."""
        swept: list[Expiry] = []
        while self._expiries and self._expiries[0][0] <= now and len(swept) < SWEEP_MAX:
            entry = heapq.heappop(self._expiries)
            swept.append(entry)
            _, _, key, first, last = entry
            partition = self._partitions.get(key)
            if partition is None:
                continue
            for begin, end, hold in partition.holds.parts(first, last):
                if hold.expires_at <= now:
                    self._touched[key] = partition
                    partition.free(begin, end, hold.deliveries)
        return swept
