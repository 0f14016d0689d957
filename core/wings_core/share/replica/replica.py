"""Replica: holds in memory, tombstones and counts durable; one of those that a majority is of.

**A restart forgets the holds.** Before a hold is granted that would expire after the group's mark,
the mark is moved past it, durably and in coarse steps. After a restart nothing of the group is held
until the mark has passed: a lease granted before still holds alone. A replica that is
closed moves the marks back to what is really held.

Memory is changed first, then the store is written, then the answer is given; where the write fails,
memory is changed back. One lock covers it all, the write included. While the store is read again,
or forgets a group, other calls are refused.
"""

import heapq
import logging
import threading
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from wings_core.errors import GroupNotFound, Unavailable, WingsError
from wings_core.partitions import Partition
from wings_core.share.clock import Clock, MonotonicClock
from wings_core.share.model import Lease, OffsetRange, ShareKey
from wings_core.share.replica.interfaces import (
    CountedRange,
    LeaseEntry,
    Outcome,
    Part,
    ReleaseEntry,
    ReplicaState,
)
from wings_core.share.replica.partition import Hold, Piece, ReplicaPartition, part_of
from wings_core.share.replica.store import HoldStore, Mark

MARK_SHARE = 0.25
MARK_SECONDS_MIN = 1.0
"""A mark is moved ahead by this share of the TTL, and by so many seconds at least."""

SWEEP_MAX = 10_000
"""Holds that one call lets expire at most."""

STALE_MAX = 1_024
"""Expiries that were overtaken are forgotten when they are more than this, and than the holds."""

FORGOTTEN_MAX = 10_000
"""Groups that were forgotten and are remembered as such, for what comes late."""

ROOM_RETRY_SECONDS = 0.1
"""When to ask again for what was refused because too much is in flight."""

LOCK_WAIT_SECONDS = 1.0
"""How long a call waits for its turn while the replica does something that may take minutes."""

_logger = logging.getLogger(__name__)


class Replica:
    """A `HoldReplica`; all methods from any thread, and each blocks for a sync of the disk at most.

    But for `forget`, and for the first call after a write that may have been done, which reads the
    store again: those take as long as there are ranges.

    Args:
        store: Loaded here, and closed with the replica.
        clock: What TTLs run on.
    """

    def __init__(self, store: HoldStore, clock: Clock | None = None) -> None:
        self._lock = threading.Lock()
        self._store = store
        self._clock = clock or MonotonicClock()
        self._closed = False
        self._occupied = False
        """Whether who has the lock does something that may take minutes."""
        self._partitions: dict[ShareKey, ReplicaPartition] = {}
        self._keys: dict[str, dict[Partition, ShareKey]] = {}
        """By group and partition."""
        self._forgotten: OrderedDict[str, None] = OrderedDict()
        for stored in store.load():
            self._add(ReplicaPartition(stored.key, stored))
        self._expiries: list[tuple[float, int, ShareKey, int, int]] = []
        self._pushed = 0
        self._holds = 0
        self._touched: dict[ShareKey, ReplicaPartition] = {}
        self._marks: dict[str, Mark] = {}
        self._marks_to_write: dict[str, Mark | None] = {}
        self._refused_until = self._refusals(store.marks())

    def hold(
        self,
        key: ShareKey,
        ranges: Sequence[OffsetRange],
        lease: Lease,
        ttl_ms: int,
        in_flight_max: int,
    ) -> list[Part]:
        """See `HoldReplica.hold`."""
        with self._operation(key.group_uuid) as now:
            partition = self._partition(key)
            refused = self._refused_until.get(key.group_uuid, 0.0) - now
            expires_at = now + ttl_ms / 1_000
            parts: list[Part] = []
            for wanted in ranges:
                for piece in partition.pieces(wanted.first, wanted.last):
                    if piece.finished:
                        parts.append(part_of(piece, Outcome.TOMB))
                    elif refused > 0:
                        parts.append(part_of(piece, Outcome.NOK, refused))
                    elif (wait := self._wait(piece, lease, now)) > 0:
                        parts.append(part_of(piece, Outcome.NOK, wait))
                    else:
                        room = (
                            in_flight_max - partition.held + (piece.messages if piece.hold else 0)
                        )
                        parts += self._grant(partition, piece, lease, expires_at, room)
            if any(part.outcome is Outcome.OK for part in parts):
                self._mark(key.group_uuid, now, ttl_ms / 1_000)
            return parts

    def renew(self, key: ShareKey, entries: Sequence[LeaseEntry], ttl_ms: int) -> list[Part]:
        """See `HoldReplica.renew`."""
        with self._operation(key.group_uuid) as now:
            partition = self._partition(key)
            expires_at = now + ttl_ms / 1_000
            parts: list[Part] = []
            for entry in entries:
                for piece in partition.pieces(entry.first, entry.last):
                    outcome = self._outcome(piece, entry.lease, now)
                    parts.append(part_of(piece, outcome))
                    if outcome is Outcome.OK:
                        assert piece.hold is not None
                        deliveries = max(piece.hold.deliveries, entry.count)
                        hold = Hold(entry.lease, expires_at, deliveries)
                        self._put_hold(partition, piece.first, piece.last, hold)
            if any(part.outcome is Outcome.OK for part in parts):
                self._mark(key.group_uuid, now, ttl_ms / 1_000)
            return parts

    def release(self, key: ShareKey, entries: Sequence[ReleaseEntry]) -> list[Part]:
        """See `HoldReplica.release`."""
        with self._operation(key.group_uuid) as now:
            partition = self._partition(key)
            parts: list[Part] = []
            for entry in entries:
                until = now + entry.delay_ms / 1_000 if entry.delay_ms else 0.0
                for piece in partition.pieces(entry.first, entry.last):
                    outcome = self._outcome(piece, entry.lease, now)
                    parts.append(part_of(piece, outcome))
                    if outcome is Outcome.OK:
                        partition.free(piece.first, piece.last, entry.count, until)
            return parts

    def tombstone(
        self, key: ShareKey, entries: Sequence[LeaseEntry], repair: Sequence[OffsetRange] = ()
    ) -> list[Part]:
        """See `HoldReplica.tombstone`."""
        with self._operation(key.group_uuid) as now:
            partition = self._partition(key)
            found = [
                (piece, self._outcome(piece, entry.lease, now))
                for entry in entries
                for piece in partition.pieces(entry.first, entry.last)
            ]
            refused = any(outcome is Outcome.NOK for _, outcome in found)
            for wanted in repair:
                partition.finish(wanted.first, wanted.last)
            parts: list[Part] = []
            for piece, outcome in found:
                if outcome is Outcome.OK and refused:
                    outcome = Outcome.NOK
                elif outcome is Outcome.OK:
                    partition.finish(piece.first, piece.last)
                parts.append(part_of(piece, outcome))
            return parts

    def read(self, group_uuid: str, partitions: Sequence[Partition]) -> list[ReplicaState]:
        """See `HoldReplica.read`."""
        with self._operation():
            known = self._keys.get(group_uuid, {})
            states: list[ReplicaState] = []
            for name in partitions or known:
                key = known.get(name)
                found = (
                    ReplicaPartition(ShareKey(group_uuid, "", name))
                    if key is None
                    else self._partitions[key]
                )
                states.append(_state(found))
            return states

    def forget(self, group_uuid: str) -> None:
        """See `HoldReplica.forget`."""
        with self._operation():
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

    @contextmanager
    def _operation(self, group_uuid: str = "") -> Generator[float]:
        """Run the block under the lock, then make what it changed durable, or undo it.

        Raises:
            GroupNotFound: The group named was forgotten: what comes late must not begin it anew.
            Unavailable: The replica is closed, or its store does not answer for what it holds.
        """
        with self._locked():
            if self._closed:
                raise Unavailable("this replica of holds is closed")
            if group_uuid in self._forgotten:
                raise GroupNotFound("the group was deleted")
            self._store.check()
            if self._store.is_stale:
                with self._occupying():
                    self._reload()
                self._store.check()  # It took its time.
            now = self._clock.now()
            expired = self._sweep(now)
            try:
                yield now
                self._write()
            except BaseException:
                for partition in self._touched.values():
                    partition.undo()
                for entry in expired:
                    heapq.heappush(self._expiries, entry)
                raise
            finally:
                self._touched.clear()
                self._marks_to_write.clear()

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Have the lock for the block.

        Raises:
            Unavailable: It is not to be had soon: threads that wait for it are missed elsewhere.
        """
        while not self._lock.acquire(timeout=LOCK_WAIT_SECONDS):
            if self._occupied:
                raise Unavailable("this replica of holds reads, or forgets, what it stores")
        try:
            yield
        finally:
            self._lock.release()

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

    def _wait(self, piece: Piece, lease: Lease, now: float) -> float:
        """Return for how long a piece cannot be held by a lease."""
        if piece.hold is not None:
            return 0.0 if piece.hold.lease == lease else max(piece.hold.expires_at - now, 1e-3)
        return piece.delayed_until - now

    def _outcome(self, piece: Piece, lease: Lease, now: float) -> Outcome:
        """Judge whether a lease may act on a piece."""
        if piece.finished:
            return Outcome.TOMB
        hold = piece.hold
        held = hold is not None and hold.lease == lease and hold.expires_at > now
        return Outcome.OK if held else Outcome.NOK

    def _grant(
        self,
        partition: ReplicaPartition,
        piece: Piece,
        lease: Lease,
        expires_at: float,
        room: int,
    ) -> list[Part]:
        last = min(piece.last, piece.first + room - 1)
        parts: list[Part] = []
        if last >= piece.first:
            hold = Hold(lease, expires_at, piece.count + 1)
            self._put_hold(partition, piece.first, last, hold)
            parts.append(Part(piece.first, last, Outcome.OK, piece.count))
        if last < piece.last:
            first = max(piece.first, last + 1)
            retry_ms = int(ROOM_RETRY_SECONDS * 1_000)
            parts.append(Part(first, piece.last, Outcome.NOK, piece.count, retry_ms))
        return parts

    def _put_hold(self, partition: ReplicaPartition, first: int, last: int, hold: Hold) -> None:
        partition.hold(first, last, hold)
        self._pushed += 1  # So that entries of one moment are never compared further.
        entry = (hold.expires_at, self._pushed, partition.key, first, last)
        heapq.heappush(self._expiries, entry)
        if len(self._expiries) > 2 * self._holds + STALE_MAX:
            self._forget_stale()

    def _forget_stale(self) -> None:
        self._expiries = [
            (hold.expires_at, number, partition.key, first, last)
            for number, partition in enumerate(self._partitions.values())
            for first, last, hold in partition.holds
        ]
        self._holds = len(self._expiries)
        self._expiries = [
            (expires_at, number, key, first, last)
            for number, (expires_at, _, key, first, last) in enumerate(self._expiries)
        ]
        self._pushed = len(self._expiries)
        heapq.heapify(self._expiries)

    def _sweep(self, now: float) -> list[tuple[float, int, ShareKey, int, int]]:
        """Let holds expire, which counts as a delivery."""
        swept: list[tuple[float, int, ShareKey, int, int]] = []
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


def _state(partition: ReplicaPartition) -> ReplicaState:
    return ReplicaState(
        partition.key.partition,
        partition.start_offset,
        tuple(OffsetRange(first, last) for first, last, _ in partition.finished),
        tuple(CountedRange(*counted) for counted in partition.counts),
        partition.held,
    )
