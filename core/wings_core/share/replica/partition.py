"""ReplicaPartition: what one replica knows of one partition of a group, and how it changes.

finished   durable: a start offset, and ranges above it; they never go back
counts     durable: deliveries made of what is not finished
holds      in memory: who holds what, until when
delays     in memory: what is not held again, until when
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from wings_core.model import HeldRange, Lease
from wings_core.share.model import OffsetRange, ShareKey
from wings_core.share.replica.requests import (
    CountedRange,
    DelayedRange,
    PartOutcome,
    RangeAnswer,
    ReplicaState,
)
from wings_core.share.replica.store import PartitionWrite, StoredPartition
from wings_core.share.state.ranges import Change, RangeMap, V, merged

DELAY_TOLD_MS_MAX = 2_000
"""Longest delay that the answer to a read tells of."""


class Hold(NamedTuple):
    """The hold of a range."""

    lease: Lease
    expires_at: float
    deliveries: int
    """Made so far, this one included."""
    since: float = 0.0
    member: str = ""


class RangePiece(NamedTuple):
    """A part of a range that is the same throughout."""

    first: int
    last: int
    finished: bool
    hold: Hold | None
    delayed_until: float
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]

    @property
    def messages(self) -> int:
        """How many messages it has."""
        return self.last - self.first + 1


class ReplicaPartition:
    """The state of one partition; used by one thread at a time.

    Changes are made in memory first. `take_write` says what to write, and if that fails, `undo`
    takes them all back; `keep` keeps them.

    Attributes:
        key: Which partition.
        start_offset: All before it are finished.
        held: Messages held.
    """

    def __init__(self, key: ShareKey, stored: StoredPartition | None = None) -> None:
        self.key = key
        self.start_offset = 0 if stored is None else stored.start_offset
        self.held = 0
        self.finished = RangeMap[int].of([] if stored is None else stored.finished)
        self.counts = RangeMap[int].of([] if stored is None else stored.counts)
        self.holds: RangeMap[Hold] = RangeMap()
        self.delays: RangeMap[float] = RangeMap()
        self._start_before = self.start_offset
        self._changes: list[tuple[RangeMap[Any], Change[Any]]] = []
        """The changes since the last `keep`, each with what it changed."""

    def pieces(self, first: int, last: int) -> list[RangePiece]:
        """Cut `[first, last]` into parts that are the same throughout, in order."""
        if first < self.holds.end:
            held = self.holds.at(first)
            if held is not None and last <= held[1]:  # As most are that are to be finished.
                return [RangePiece(first, last, False, held[2], 0.0, held[2].deliveries - 1)]
        elif (
            first >= self.start_offset
            and first >= self.finished.end
            and first >= self.counts.end
            and first >= self.delays.end
        ):
            return [
                RangePiece(first, last, False, None, 0.0, 0)
            ]  # As most are that are to be held.
        found: list[RangePiece] = []
        if first < self.start_offset:
            end = min(last, self.start_offset - 1)
            found.append(RangePiece(first, end, True, None, 0.0, 0))
            first = end + 1
        if first > last:
            return found
        for begin, end, _ in self.finished.parts(first, last):
            found += self._unfinished(first, begin - 1)
            found.append(RangePiece(begin, end, True, None, 0.0, 0))
            first = end + 1
        found += self._unfinished(first, last)
        return found

    def hold(self, first: int, last: int, hold: Hold) -> None:
        """Let a lease hold a range that is not finished."""
        change = self.holds.put(first, last, hold)
        self._changes.append((self.holds, change))
        self._count_held(change)
        self._take_out(self.delays, first, last)

    def free(self, first: int, last: int, deliveries: int, delayed_until: float = 0.0) -> None:
        """End the hold of a range, with so many deliveries made, unless more are known."""
        self._unhold(first, last)
        for begin, end, count in self._counted(first, last):
            if count < deliveries:
                self._put(self.counts, begin, end, deliveries)
        if delayed_until:
            self._put(self.delays, first, last, delayed_until)

    def finish(self, first: int, last: int) -> None:
        """Finish a range, held or not."""
        first = max(first, self.start_offset)
        if first > last:
            return
        self._unhold(first, last)
        self._take_out(self.counts, first, last)
        self._take_out(self.delays, first, last)
        if first == self.start_offset and first >= self.finished.end:
            self.start_offset = last + 1
            return
        self._put(self.finished, first, last, 0)
        head = self.finished.head()
        assert head is not None
        if head[0] <= self.start_offset:
            self.start_offset = head[1] + 1
            self._take_out(self.finished, head[0], head[1])

    def take_holds(self, other: "ReplicaPartition") -> None:
        """Take over what another object had in memory, but for what is finished here."""
        for first, last, hold in list(other.holds):
            for piece in self.pieces(first, last):
                if not piece.finished:
                    self.hold(piece.first, piece.last, hold)
        for first, last, until in list(other.delays):
            for piece in self.pieces(first, last):
                if not piece.finished:
                    self.delays.put(piece.first, piece.last, until)
        self.keep()

    def state(self) -> ReplicaState:
        """Return what is kept durably, and how much is held."""
        return ReplicaState(
            self.key.partition,
            self.start_offset,
            tuple(OffsetRange(first, last) for first, last, _ in self.finished),
            tuple(CountedRange(*counted) for counted in self.counts),
            self.held,
        )

    def held_ranges(self, now: float) -> Iterator[HeldRange]:
        """Yield the ranges that are held, in order."""
        for first, last, hold in self.holds:
            yield HeldRange(
                first,
                last,
                hold.lease,
                hold.member,
                hold.deliveries,
                int((now - hold.since) * 1_000),
                max(0, int((hold.expires_at - now) * 1_000)),
            )

    def delayed_ranges(self, now: float) -> Iterator[DelayedRange]:
        """Yield the ranges that are delayed, in order; those that touch and last as long as one."""
        left = (
            (first, last, min(DELAY_TOLD_MS_MAX, int((until - now) * 1_000)))
            for first, last, until in self.delays
        )
        for first, last, left_ms in merged(each for each in left if each[2] > 0):
            yield DelayedRange(first, last, left_ms)

    def take_write(self) -> PartitionWrite | None:
        """Return what is to be made durable, if anything is."""
        finished = [change for ranges, change in self._changes if ranges is self.finished]
        counts = [change for ranges, change in self._changes if ranges is self.counts]
        if self.start_offset == self._start_before and not (finished or counts):
            return None
        return PartitionWrite(self.key, self.start_offset, *_net(finished), *_net(counts))

    def keep(self) -> None:
        """Keep the changes since the last time."""
        self._start_before = self.start_offset
        self._changes.clear()

    def undo(self) -> None:
        """Take back the changes since the last `keep`."""
        self.start_offset = self._start_before
        for ranges, change in reversed(self._changes):
            ranges.undo(change)
        self.held = sum(last - first + 1 for first, last, _ in self.holds)
        self.keep()

    def _unhold(self, first: int, last: int) -> None:
        change = self.holds.remove(first, last)
        if change.removed:
            self._changes.append((self.holds, change))
            self._count_held(change)

    def _count_held(self, change: Change[Hold]) -> None:
        for begin, end, _ in change.added:
            self.held += end - begin + 1
        for begin, end, _ in change.removed:
            self.held -= end - begin + 1

    def _put(self, ranges: RangeMap[V], first: int, last: int, value: V) -> None:
        self._changes.append((ranges, ranges.put(first, last, value)))

    def _take_out(self, ranges: RangeMap[Any], first: int, last: int) -> None:
        if first < ranges.end and (change := ranges.remove(first, last)).removed:
            self._changes.append((ranges, change))

    def _unfinished(self, first: int, last: int) -> list[RangePiece]:
        if first > last:
            return []
        found: list[RangePiece] = []
        for begin, end, hold in self.holds.parts(first, last):
            found += self._unheld(first, begin - 1)
            found.append(RangePiece(begin, end, False, hold, 0.0, hold.deliveries - 1))
            first = end + 1
        return found + self._unheld(first, last)

    def _unheld(self, first: int, last: int) -> list[RangePiece]:
        if first > last:
            return []
        if not self.delays.end and not self.counts.end:
            return [RangePiece(first, last, False, None, 0.0, 0)]
        found: list[RangePiece] = []
        for begin, end, count in self._counted(first, last):
            for low, high, until in self.delays.filled(begin, end, 0.0):
                found.append(RangePiece(low, high, False, None, until, count))
        return found

    def _counted(self, first: int, last: int) -> list[tuple[int, int, int]]:
        return self.counts.filled(first, last, 0)


def part_of(piece: RangePiece, outcome: PartOutcome, retry_seconds: float = 0.0) -> RangeAnswer:
    """Return the answer to a piece; a wait is rounded up to a millisecond."""
    retry_ms = int(retry_seconds * 1_000) + 1 if retry_seconds > 0 else 0
    return RangeAnswer(piece.first, piece.last, outcome, piece.count, retry_ms)


def _net(changes: list[Change[int]]) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Return the firsts of ranges that were there and are not any more, and the new ranges."""
    removed: list[int] = []
    added: dict[int, tuple[int, int, int]] = {}
    for change in changes:
        for first, _, _ in change.removed:
            if added.pop(first, None) is None:
                removed.append(first)
        for first, last, value in change.added:
            added[first] = (first, last, value)
    return removed, list(added.values())
