"""StreamHolds: what a share stream has delivered and its client still holds, and its credit.

A message counts until its acknowledgement is durable, or until the client says something after its
lock has ended. A client that stands still (a stopped process, a machine that is gone) would else be
given the same messages again and again, until they are dead letters that nobody has read.
Plain state: the caller tells the time.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from wings_core.contracts.share import AcknowledgeMessage, ClientMessage, CreditMessage
from wings_core.model import HeldRange, LeasedRange
from wings_core.partitions import Partition
from wings_core.share.model import Acknowledgement
from wings_core.share.quorum.quorum import MARGIN_SECONDS, MARGIN_SHARE
from wings_core.share.state.ranges import RangeMap

STALE_MAX = 1_024
"""Times that were overtaken are forgotten when they are more than so many, and than the ranges."""

STREAM_ENDED = "never acknowledged: the member died, or its connection ended"
"""Error of a message at the delivery limit that a stream held when it ended."""


class _Held(NamedTuple):
    lease: str
    lock_seconds: float
    ends_at: float
    """When the coordinator may hand it out again, at the earliest."""
    over_at: float
    """When its lock is over for certain."""


class StreamHolds:
    """The messages of one stream; called from one thread, but for `hear` and `drain`.

    Args:
        credit: How many messages the client wants to hold at once, by the descriptor.
        lock_duration_ms: The group's lock, as the client was told.
        now: The time.

    Attributes:
        messages: How many count.
    """

    def __init__(self, credit: int, lock_duration_ms: int, now: float) -> None:
        self.messages = 0
        self._credit = credit
        self._has_begun = False
        self._is_draining = False
        self._lock_seconds = lock_duration_ms / 1_000
        self._heard_at = now
        self._partitions: dict[Partition, RangeMap[_Held]] = {}
        self._expiries: list[tuple[float, Partition, int, int]] = []
        """When ranges expire, a heap; those acknowledged or renewed are still there."""

    def hear(self, message: ClientMessage, now: float) -> None:
        """Note what the client says of its credit, and that it has said something.

        What it releases is not for it, so nothing is before it asks for more.
        """
        self._heard_at, self._has_begun = now, True
        if isinstance(message, CreditMessage):
            self._credit = message.credit
        elif isinstance(message, AcknowledgeMessage) and message.releases:
            self._credit = 0

    def drain(self) -> None:
        """Let nothing more be delivered."""
        self._is_draining = True

    def room(self, now: float, acknowledging: int = 0) -> int:
        """Return how many more messages may be delivered, once so many are acknowledged.

        None to a client that has said nothing yet, or for a lock, or since the end of the lock on
        something that it holds.
        """
        is_still = not self._has_begun or now - self._heard_at >= self._lock_seconds
        if is_still or self._is_draining or self._has_expired(now):
            return 0
        return self._credit - max(0, self.messages - acknowledging)

    def add(self, leased: LeasedRange, asked_at: float, now: float) -> None:
        """Count a range that is delivered now, and was asked for at a time."""
        self._lock_seconds = leased.lock_duration_ms / 1_000
        held = _held(leased.lease, self._lock_seconds, asked_at, now)
        self._put(leased.partition, leased.start_offset, leased.end_offset, held)

    def acknowledged(self, done: Acknowledgement, asked_at: float, now: float) -> None:
        """Count no more what was acknowledged; what was renewed, since then, expires later."""
        ranges = self._partitions.get(done.partition)
        if ranges is None:
            return
        for first, last, held in ranges.parts(done.first, done.last):
            if held.lease != done.lease:
                continue
            if done.type == "renew":
                renewed = _held(held.lease, held.lock_seconds, asked_at, now)
                self._put(done.partition, first, last, renewed)
            else:
                self._remove(done.partition, first, last)

    def _has_expired(self, now: float) -> bool:
        """Give back what expired before the client last spoke; tell whether more has since."""
        while self._expiries and self._expiries[0][0] <= now:
            _, partition, first, last = self._expiries[0]
            ranges = self._partitions.get(partition, RangeMap[_Held]())
            ended = [part for part in ranges.parts(first, last) if part[2].ends_at <= now]
            if any(held.over_at > self._heard_at for _, _, held in ended):
                return True
            heapq.heappop(self._expiries)
            for begin, end, _ in ended:
                self._remove(partition, begin, end)
        return False

    def releases(self, now: float) -> list[Acknowledgement]:
        """Return the acknowledgements that release all that is held and has not expired."""
        return [
            Acknowledgement(partition, first, last, held.lease, "release", reason=STREAM_ENDED)
            for partition, ranges in self._partitions.items()
            for first, last, held in ranges
            if held.ends_at > now
        ]

    def _put(self, partition: Partition, first: int, last: int, held: _Held) -> None:
        ranges = self._partitions.setdefault(partition, RangeMap())
        self.messages += last - first + 1
        for begin, end, _ in ranges.parts(first, last):
            self.messages -= end - begin + 1
        ranges.put(first, last, held)
        heapq.heappush(self._expiries, (held.ends_at, partition, first, last))
        if len(self._expiries) > 2 * self.messages + STALE_MAX:
            self._expiries = [
                (held.ends_at, partition, first, last)
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


def _held(lease: str, lock_seconds: float, asked_at: float, now: float) -> _Held:
    """Return a hold that was asked for at a time, and is known to be held now."""
    ends_at = asked_at + lock_seconds * (1 - MARGIN_SHARE) - MARGIN_SECONDS
    return _Held(lease, lock_seconds, ends_at, now + lock_seconds)


def divided(
    ranges: Sequence[LeasedRange], room: int
) -> tuple[Sequence[LeasedRange], Sequence[LeasedRange]]:
    """Divide leased ranges into the first `room` messages and the rest.

    There is a rest only where an acknowledgement failed, or the client has taken back credit, or
    stands still.
    """
    if sum(leased.messages for leased in ranges) <= room:
        return ranges, ()
    within: list[LeasedRange] = []
    surplus: list[LeasedRange] = []
    for leased in ranges:
        end = min(leased.end_offset, leased.start_offset + room - 1)
        if end >= leased.start_offset:
            within.append(replace(leased, end_offset=end))
            room -= within[-1].messages
        if end < leased.end_offset:
            surplus.append(replace(leased, start_offset=max(leased.start_offset, end + 1)))
    return within, surplus


def still_held(
    refused: Iterable[Acknowledgement], known: Mapping[Partition, Sequence[HeldRange]]
) -> Iterator[Acknowledgement]:
    """Yield the parts of acknowledgements refused whole that their leases still hold."""
    for each in refused:
        for held in known.get(each.partition, ()):
            first, last = max(each.first, held.first), min(each.last, held.last)
            if str(held.lease) == each.lease and first <= last:
                yield replace(each, first=first, last=last)
