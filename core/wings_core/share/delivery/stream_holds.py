"""StreamHolds: what a share stream has delivered and its member still holds, which is its credit.

A message counts until its acknowledgement is durable or its lock ends. Plain state: the caller
tells the time, and calls from one thread.
"""

import heapq
from typing import NamedTuple

from wings_core.model import LeasedRange
from wings_core.partitions import Partition
from wings_core.share.model import Acknowledgement
from wings_core.share.state.ranges import RangeMap

STALE_MAX = 1_024
"""Times that were overtaken are forgotten when they are more than so many, and than the ranges."""


class _Held(NamedTuple):
    lease: str
    lock_seconds: float
    until: float


class StreamHolds:
    """The messages of one stream.

    Attributes:
        messages: How many are held.
    """

    def __init__(self) -> None:
        self.messages = 0
        self._partitions: dict[Partition, RangeMap[_Held]] = {}
        self._expiries: list[tuple[float, Partition, int, int]] = []
        """When ranges may expire, a heap; those acknowledged or renewed are still there."""

    def add(self, leased: LeasedRange, now: float) -> None:
        """Count a range that is delivered."""
        lock_seconds = leased.lock_duration_ms / 1_000
        held = _Held(leased.lease, lock_seconds, now + lock_seconds)
        self._put(leased.partition, leased.start_offset, leased.end_offset, held)

    def acknowledged(self, done: Acknowledgement, now: float) -> None:
        """Count no more what was acknowledged; what was renewed expires later."""
        ranges = self._partitions.get(done.partition)
        if ranges is None:
            return
        for first, last, held in ranges.parts(done.first, done.last):
            if held.lease != done.lease:
                continue
            if done.type == "renew":
                renewed = held._replace(until=now + held.lock_seconds)
                self._put(done.partition, first, last, renewed)
            else:
                self._remove(done.partition, first, last)

    def expire(self, now: float) -> None:
        """Count no more what is locked no more."""
        while self._expiries and self._expiries[0][0] <= now:
            _, partition, first, last = heapq.heappop(self._expiries)
            ranges = self._partitions.get(partition)
            if ranges is not None:
                for begin, end, held in ranges.parts(first, last):
                    if held.until <= now:
                        self._remove(partition, begin, end)

    def next_expiry(self) -> float | None:
        """Return when a lock may end; None where nothing is held."""
        return self._expiries[0][0] if self._expiries and self.messages else None

    def releases(self) -> list[Acknowledgement]:
        """Return the acknowledgements that release all that is held."""
        return [
            Acknowledgement(partition, first, last, held.lease, "release")
            for partition, ranges in self._partitions.items()
            for first, last, held in ranges
        ]

    def _put(self, partition: Partition, first: int, last: int, held: _Held) -> None:
        ranges = self._partitions.setdefault(partition, RangeMap())
        self.messages += last - first + 1
        for begin, end, _ in ranges.parts(first, last):
            self.messages -= end - begin + 1
        ranges.put(first, last, held)
        heapq.heappush(self._expiries, (held.until, partition, first, last))
        if len(self._expiries) > 2 * self.messages + STALE_MAX:
            self._expiries = [
                (held.until, partition, first, last)
                for partition, ranges in self._partitions.items()
                for first, last, held in ranges
            ]
            heapq.heapify(self._expiries)

    def _remove(self, partition: Partition, first: int, last: int) -> None:
        ranges = self._partitions[partition]
        ranges.remove(first, last)
        self.messages -= last - first + 1
        if not ranges:
            del self._partitions[partition]
        if not self.messages:
            self._expiries.clear()
