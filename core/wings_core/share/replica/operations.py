"""What a replica of holds does for each request, in memory; `Replica` makes it durable."""

import heapq
import itertools
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace

from wings_core.errors import GroupNotFound
from wings_core.model import HeldRange, Lease
from wings_core.partitions import Partition
from wings_core.share.model import OffsetRange, ShareKey
from wings_core.share.replica.interfaces import CountedRange, Outcome, Part, ReplicaState
from wings_core.share.replica.partition import Hold, Piece, ReplicaPartition, part_of
from wings_core.share.replica.requests import (
    Answer,
    ForgetRequest,
    HoldRequest,
    ReadRequest,
    ReleaseRequest,
    RenewRequest,
    Request,
    TombstoneRequest,
)

SWEEP_MAX = 10_000
"""Holds that one call lets expire at most."""

STALE_MAX = 1_024
"""Expiries that were overtaken are forgotten when they are more than this, and than the holds."""

HOLDS_TOLD_MAX = 10_000
"""Held ranges that one read tells of at most."""

ROOM_RETRY_SECONDS = 0.1
"""When to ask again for what was refused because too much is in flight."""

Expiry = tuple[float, int, ShareKey, int, int]
"""When a hold expires, a number that tells it from others of that time, and what it holds."""


class Operations(ABC):
    """The partitions of a replica and what changes them; used under the replica's lock."""

    def __init__(self) -> None:
        self._partitions: dict[ShareKey, ReplicaPartition] = {}
        self._keys: dict[str, dict[Partition, ShareKey]] = {}
        """By group and partition."""
        self._forgotten: OrderedDict[str, None] = OrderedDict()
        self._expiries: list[Expiry] = []
        self._pushed = 0
        self._holds = 0
        self._touched: dict[ShareKey, ReplicaPartition] = {}
        """Those that may have changed since the last write."""
        self._refused_until: dict[str, float] = {}
        """Until when a group is refused, as holds of before the start may not have expired."""

    def _answer(self, request: Request, now: float) -> Answer:
        if isinstance(request, ReadRequest):
            return self._read(request, now)
        assert not isinstance(request, ForgetRequest), "it takes long, and goes alone"
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

    def _hold(self, request: HoldRequest, now: float) -> list[Part]:
        key, ttl_ms, lease = request.key, request.ttl_ms, request.lease
        partition = self._partition(key)
        refused = self._refused_until.get(key.group_uuid, 0.0) - now
        expires_at = now + ttl_ms / 1_000
        parts: list[Part] = []
        if request.next_offset:
            partition.finish(0, request.next_offset - 1)
        for wanted in request.ranges:
            for piece in partition.pieces(wanted.first, wanted.last):
                if piece.finished:
                    parts.append(part_of(piece, Outcome.TOMB))
                elif refused > 0:
                    parts.append(part_of(piece, Outcome.NOK, refused))
                elif (wait := self._wait(piece, lease, now)) > 0 or (
                    request.next_offset is not None
                    and (wait := self._wait_for_others(partition, lease, now)) > 0
                ):
                    parts.append(part_of(piece, Outcome.NOK, wait))
                else:
                    room = request.in_flight_max - partition.held
                    room += piece.messages if piece.hold else 0
                    hold = Hold(lease, expires_at, piece.count + 1, now, request.member)
                    if piece.hold is not None:
                        hold = hold._replace(since=piece.hold.since)
                    parts += self._grant(partition, piece, hold, room)
        for part in parts:
            if part.outcome is Outcome.OK:
                self._mark(key.group_uuid, now, ttl_ms / 1_000)
                break
        return parts

    def _renew(self, request: RenewRequest, now: float) -> list[Part]:
        key, ttl_ms = request.key, request.ttl_ms
        partition = self._partition(key)
        expires_at = now + ttl_ms / 1_000
        parts: list[Part] = []
        for entry in request.entries:
            for piece in partition.pieces(entry.first, entry.last):
                outcome = self._outcome(piece, entry.lease, now)
                parts.append(part_of(piece, outcome))
                if outcome is Outcome.OK:
                    assert piece.hold is not None
                    deliveries = max(piece.hold.deliveries, entry.count)
                    hold = piece.hold._replace(expires_at=expires_at, deliveries=deliveries)
                    self._put_hold(partition, piece.first, piece.last, hold)
        if any(part.outcome is Outcome.OK for part in parts):
            self._mark(key.group_uuid, now, ttl_ms / 1_000)
        return parts

    def _release(self, request: ReleaseRequest, now: float) -> list[Part]:
        partition = self._partition(request.key)
        parts: list[Part] = []
        for entry in request.entries:
            until = now + entry.delay_ms / 1_000 if entry.delay_ms else 0.0
            for piece in partition.pieces(entry.first, entry.last):
                outcome = self._outcome(piece, entry.lease, now)
                parts.append(part_of(piece, outcome))
                if outcome is Outcome.OK:
                    partition.free(piece.first, piece.last, entry.count, until)
        return parts

    def _tombstone(self, request: TombstoneRequest, now: float) -> list[Part]:
        partition = self._partition(request.key)
        found = [
            (piece, self._outcome(piece, entry.lease, now))
            for entry in request.entries
            for piece in partition.pieces(entry.first, entry.last)
        ]
        refused = False
        for _, outcome in found:
            refused = refused or outcome is Outcome.NOK
        for wanted in request.repair:
            partition.finish(wanted.first, wanted.last)
        parts: list[Part] = []
        first, last = 0, -1
        for piece, outcome in found:
            if outcome is Outcome.OK and refused:
                outcome = Outcome.NOK
            elif outcome is Outcome.OK and piece.first == last + 1:
                last = piece.last  # Neighbours are finished as one.
            elif outcome is Outcome.OK:
                if first <= last:
                    partition.finish(first, last)
                first, last = piece.first, piece.last
            parts.append(Part(piece.first, piece.last, outcome, piece.count))
        if first <= last:
            partition.finish(first, last)
        return parts

    def _read(self, request: ReadRequest, now: float) -> list[ReplicaState]:
        group_uuid, partitions = request.group_uuid, request.partitions
        known = self._keys.get(group_uuid, {})
        states: list[ReplicaState] = []
        room = HOLDS_TOLD_MAX if request.with_holds else 0
        for name in partitions or known:
            key = known.get(name)
            if request.with_holds and not partitions and not self._is_held(key):
                continue
            if key is None:
                states.append(ReplicaState(name, 0, (), (), 0))
                continue
            found = self._partitions[key]
            holds = tuple(_held(found, now, room)) if room else ()
            room -= len(holds)
            states.append(replace(_state(found), holds=holds) if holds else _state(found))
        return states

    def _is_held(self, key: ShareKey | None) -> bool:
        return key is not None and self._partitions[key].held > 0

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

    def _wait(self, piece: Piece, lease: Lease, now: float) -> float:
        """Return for how long a piece cannot be held by a lease."""
        if piece.hold is not None:
            return 0.0 if piece.hold.lease == lease else max(piece.hold.expires_at - now, 1e-3)
        return piece.delayed_until - now

    def _wait_for_others(self, partition: ReplicaPartition, lease: Lease, now: float) -> float:
        """Return for how long other leases may hold anything of a partition."""
        others = [hold.expires_at for _, _, hold in partition.holds if hold.lease != lease]
        return max(max(others) - now, 1e-3) if others else 0.0

    def _outcome(self, piece: Piece, lease: Lease, now: float) -> Outcome:
        """Judge whether a lease may act on a piece."""
        if piece.finished:
            return Outcome.TOMB
        hold = piece.hold
        held = (
            hold is not None
            and (hold.lease is lease or hold.lease == lease)
            and hold.expires_at > now
        )
        return Outcome.OK if held else Outcome.NOK

    def _grant(
        self,
        partition: ReplicaPartition,
        piece: Piece,
        hold: Hold,
        room: int,
    ) -> list[Part]:
        last = min(piece.last, piece.first + room - 1)
        if last == piece.last:
            self._put_hold(partition, piece.first, last, hold)
            return [Part(piece.first, last, Outcome.OK, piece.count)]
        parts: list[Part] = []
        if last >= piece.first:
            self._put_hold(partition, piece.first, last, hold)
            parts.append(Part(piece.first, last, Outcome.OK, piece.count))
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

    @abstractmethod
    def _mark(self, group_uuid: str, now: float, ttl_seconds: float) -> None:
        """See to it that a restart respects a hold that is granted now."""


def _state(partition: ReplicaPartition) -> ReplicaState:
    return ReplicaState(
        partition.key.partition,
        partition.start_offset,
        tuple(OffsetRange(first, last) for first, last, _ in partition.finished),
        tuple(CountedRange(*counted) for counted in partition.counts),
        partition.held,
    )


def _held(partition: ReplicaPartition, now: float, most: int) -> Iterator[HeldRange]:
    """Yield up to so many of the ranges that are held, in order."""
    for first, last, hold in itertools.islice(partition.holds, most):
        yield HeldRange(
            first,
            last,
            hold.lease,
            hold.member,
            hold.deliveries,
            int((now - hold.since) * 1_000),
            max(0, int((hold.expires_at - now) * 1_000)),
        )
