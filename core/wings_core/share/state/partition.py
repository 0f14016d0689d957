"""SharePartition: what one coordinator knows of one partition of a group.

    available ──select──▶ pending ──grant──▶ held ──finish──▶ acknowledged | archived
        ▲                    │                 │
        └─────── unpick ────┴─── release, expiry

It is plain state without a clock, a lock or a replica: every method is told the time, and
is called by one thread at a time. The replicas have the last word on who holds what;
this is where a coordinator looks for what to ask them for.

All offsets from `start_offset` to `frontier` are in one of the states. What lies at the frontier or
after it was never looked at, and costs nothing, however much it is.
"""

from collections.abc import Sequence
from typing import NamedTuple

from wings_core.model import Lease
from wings_core.share.state.record_states import (
    ACKNOWLEDGED,
    ARCHIVED,
    FINISHED,
    RecordState,
    RecordStates,
    State,
)

__all__ = ["Pick", "RecordState", "SharePartition", "State"]

EXHAUSTED_MAX = 10_000
"""Messages at the delivery limit that one selection takes at most."""


class Pick(NamedTuple):
    """A range that was selected and is pending."""

    first: int
    last: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    """Deliveries made, as far as is known here."""
    exhausted: bool = False
    """To be archived rather than leased."""


class SharePartition(RecordStates):
    """The states of the messages of one partition, and how a coordinator changes them."""

    def has_available(self, log_end: int, *, ordered: bool = False) -> bool:
        """Tell whether something may be selected, as of the last `advance`."""
        if self.is_scheduled and self.unchecked(log_end, ordered=ordered) is not None:
            return True
        if ordered and (self.in_flight or (self._ranges and not self._ready_head())):
            return False
        return self.has_ready or self._has_fresh(log_end)

    def available(self, log_end: int) -> int:
        """Return how many messages may be leased at most, now or after their delays."""
        fresh = log_end - self.frontier if self._has_fresh(log_end) else 0
        return self.messages(State.AVAILABLE) + fresh

    def comes_alone(self, limit: int) -> bool:
        """Tell whether the oldest that may be leased is throttled, as of the last `advance`."""
        return self.has_ready and is_throttled(self._at(self._ready[0])[2].deliveries, limit)

    @property
    def has_ready(self) -> bool:
        """Whether something that was looked at may be leased, as of the last `advance`."""
        return bool(self._ready)

    def has_fresh(self, log_end: int, in_flight_max: int) -> bool:
        """Tell whether there is room for something to be leased that was never looked at."""
        return self._has_fresh(log_end) and self.in_flight < in_flight_max

    def _has_fresh(self, log_end: int) -> bool:
        """Tell whether something may be leased that was never looked at."""
        return self.frontier < log_end and not self.is_full and not self.is_scheduled

    def select(
        self,
        log_end: int,
        messages_max: int,
        in_flight_max: int,
        limit: int,
        skip: int = 0,
        *,
        alone: bool = True,
    ) -> list[Pick]:
        """Make the oldest available messages pending, as of the last `advance`.

        A throttled range comes alone, and as small a piece of it as `deliverable` says.
        Ranges at the limit come as exhausted, and do not count.

        Args:
            log_end: The next offset that the log assigns.
            messages_max: No more than this, at least 1.
            in_flight_max: No more are in flight at once.
            limit: The group's delivery limit.
            skip: Of messages never looked at, leave so many for later.
            alone: Whether what is picked is all that its worker gets; else nothing throttled is.
        """
        picks: list[Pick] = []
        room = min(messages_max, in_flight_max - self.in_flight)
        exhausted = 0
        while self._ready:
            first, last, record = self._at(self._ready[0])
            if record.deliveries >= limit:
                if exhausted >= EXHAUSTED_MAX:
                    break
                last = min(last, first + EXHAUSTED_MAX - 1 - exhausted)
                exhausted += last - first + 1
                picks.append(self._pick(first, last, record.deliveries, exhausted=True))
                continue
            throttled = is_throttled(record.deliveries, limit)
            if throttled and (not alone or any(not pick.exhausted for pick in picks)):
                return picks
            if room <= 0:
                return picks
            wanted = min(room, deliverable(record.deliveries, last - first + 1, limit))
            picks.append(self._pick(first, min(last, first + wanted - 1), record.deliveries))
            if throttled:
                return picks
            room -= picks[-1].last - first + 1
        if room > 0 and self._has_fresh(log_end):
            skip = min(skip, log_end - self.frontier - 1)
            if skip > 0:
                self._touch(self.frontier + skip - 1)
            first = self.frontier
            last = min(log_end, first + room) - 1
            self.frontier = last + 1
            picks.append(self._pick(first, last, 0))
        return picks

    def take_fresh(self, log_end: int, messages_max: int, in_flight_max: int) -> tuple[int, int]:
        """Make messages pending that were never looked at, as of the last `advance`.

        Args:
            log_end: The next offset that the log assigns.
            messages_max: No more than this.
            in_flight_max: No more are in flight at once.

        Returns:
            The first and the last of them, which is before the first where there are none.
        """
        first = self.frontier
        room = min(messages_max, in_flight_max - self.in_flight, log_end - first)
        if room <= 0 or self.is_full or self.is_scheduled:
            return first, first - 1
        self.frontier += room
        self._put(first, first + room - 1, RecordState(State.PENDING))
        return first, first + room - 1

    def select_next(
        self, log_end: int, messages_max: int, in_flight_max: int, limit: int, *, alone: bool = True
    ) -> list[Pick]:
        """Make the messages pending that come next, where nothing of the partition is in flight.

        That is one range, from `start_offset` on but for what is finished, or all at the limit that
        come before it. None while the first message may not be leased. See `select`.
        """
        if self.in_flight:
            return []
        if exhausted := self._select_exhausted_head(limit):
            return exhausted
        room = min(messages_max, in_flight_max)
        if not self._ranges:
            if not self._has_fresh(log_end):
                return []
            last = min(log_end, self.frontier + room) - 1
            first, self.frontier = self.frontier, last + 1
            return [self._pick(first, last, 0)]
        if not self._ready_head():
            return []
        first, last, record = self._at(self._ready[0])
        if is_throttled(record.deliveries, limit) and not alone:
            return []
        wanted = min(room, deliverable(record.deliveries, last - first + 1, limit))
        return [self._pick(first, first + wanted - 1, record.deliveries)]

    def has_exhausted(self, limit: int, *, ordered: bool = False) -> bool:
        """Tell whether something is at the limit, as of the last `advance`.

        Args:
            limit: The group's delivery limit.
            ordered: Whether only what comes next counts.
        """
        if ordered:
            return self._ready_head() and self._at(self._ready[0])[2].deliveries >= limit
        return any(self._at(first)[2].deliveries >= limit for first in self._ready)

    def select_exhausted(self, limit: int, *, ordered: bool = False) -> list[Pick]:
        """Make messages at the limit pending, the oldest first; see `select`.

        Args:
            limit: The group's delivery limit.
            ordered: Whether only those are taken that come next.
        """
        if ordered:
            return [] if self.in_flight else self._select_exhausted_head(limit)
        picks: list[Pick] = []
        room = EXHAUSTED_MAX
        for first in list(self._ready):
            _, last, record = self._at(first)
            if room > 0 and record.deliveries >= limit:
                last = min(last, first + room - 1)
                room -= last - first + 1
                picks.append(self._pick(first, last, record.deliveries, exhausted=True))
        return picks

    def extend(
        self, pick: Pick, last: int, log_end: int, messages_max: int, in_flight_max: int
    ) -> Pick:
        """Let a pick go on up to an offset, as far as the messages are available like its own.

        Args:
            pick: One that is neither exhausted nor of a throttled range.
            last: Up to here at most.
            log_end: The next offset that the log assigns.
            messages_max: By no more than this.
            in_flight_max: No more are in flight at once.
        """
        room = min(messages_max, in_flight_max - self.in_flight)
        last = min(last, log_end - 1, pick.last + max(0, room))
        end = pick.last
        if end >= last:
            return pick
        if end + 1 < self.frontier:
            following = self._ranges.starting_at(end + 1)
            if following is None or following[2] != RecordState(State.AVAILABLE, pick.count):
                return pick
            last = min(last, following[1])
        elif pick.count or self.is_scheduled:
            return pick  # What was never looked at was never delivered.
        else:
            self._touch(last)
        self._pick(end + 1, last, pick.count)
        return Pick(pick.first, last, pick.count)

    # After a selection.

    def grant(
        self, first: int, last: int, lease: Lease, until: float, count: int
    ) -> list[tuple[int, int]]:
        """Make pending messages held; return those that were still pending.

        Args:
            first: The first of them.
            last: The last of them.
            lease: Who holds them.
            until: When the lease expires.
            count: Deliveries made, this one included.
        """
        granted: list[tuple[int, int]] = []
        for begin, end, record in self._ranges.parts(first, last):
            if record.state is State.PENDING:
                self._put(begin, end, RecordState(State.HELD, count, until, lease))
                granted.append((begin, end))
        return granted

    def grant_each(self, granted: Sequence[tuple[int, int, Lease]], until: float) -> None:
        """Make pending messages held that were never delivered, as by `grant`.

        Args:
            granted: Neighbours, in order, and the lease of each.
            until: When all of the leases expire.
        """
        ranges = [
            (first, last, RecordState(State.HELD, 1, until, lease))
            for first, last, lease in granted
        ]
        pending = self._ranges.starting_at(ranges[0][0])
        change = None
        if pending is not None and pending[2].state is State.PENDING:
            change = self._ranges.divide(ranges)
        if change is None:
            for begin, end, lease in granted:
                self.grant(begin, end, lease, until, 1)
            return
        self._account(change)
        for begin, end, _ in ranges:
            self._remember(self._expiries, until, begin, end)

    def unpick(self, first: int, last: int, count: int, until: float = 0.0) -> None:
        """Make pending messages available again, from a time on, with so many deliveries."""
        for begin, end, record in self._ranges.parts(first, last):
            if record.state is State.PENDING:
                self._free(begin, end, max(count, record.deliveries), until)

    # Of what is held.

    def is_held(self, first: int, last: int, lease: Lease, now: float) -> bool:
        """Tell whether a lease holds all of `[first, last]` and has not expired."""
        messages = 0
        for begin, end, record in self._ranges.parts(first, last):
            if record.state is not State.HELD or record.lease != lease or record.until <= now:
                return False
            messages += end - begin + 1
        return messages == last - first + 1

    def held(self, first: int, last: int, now: float) -> RecordState | None:
        """Return the state of `[first, last]` where one lease holds all that has not expired.

        None too where parts of it expire at different times.
        """
        found = self._ranges.at(first)
        if found is None or not first <= last <= found[1]:
            return None
        record = found[2]
        return record if record.state is State.HELD and record.until > now else None

    def renew(self, first: int, last: int, lease: Lease, until: float) -> None:
        """Let what a lease holds expire later."""
        for begin, end, record in self._ranges.parts(first, last):
            if record.state is State.HELD and record.lease == lease:
                self._put(begin, end, record._replace(until=until))

    def release(self, first: int, last: int, lease: Lease, until: float = 0.0) -> None:
        """Make what a lease holds available again, from a time on."""
        for begin, end, record in self._ranges.parts(first, last):
            if record.state is State.HELD and record.lease == lease:
                self._free(begin, end, record.deliveries, until)

    def release_undelivered(self, first: int, last: int, lease: Lease, until: float = 0.0) -> None:
        """Make what a lease holds available again, from a time on, and count no delivery of it."""
        for begin, end, record in self._ranges.parts(first, last):
            if record.state is State.HELD and record.lease == lease:
                self._free(begin, end, record.deliveries - 1, until)

    def finish(self, first: int, last: int, *, archived: bool = False) -> None:
        """Finish messages, whatever their state."""
        first = max(first, self.start_offset)
        if first > last:
            return
        self._touch(last)
        if first == self.start_offset:
            self._finish_head(last, ARCHIVED if archived else ACKNOWLEDGED)
        else:
            for begin, end, record in self._ranges.parts(first, last):
                if record.state not in FINISHED:
                    self._put(begin, end, ARCHIVED if archived else ACKNOWLEDGED)
        self._fold()

    def learn(self, first: int, last: int, count: int) -> None:
        """Raise the delivery counts of available messages to `count`, which may be another's."""
        first = max(first, self.start_offset)
        if first > last:
            return
        self._touch(last)
        for begin, end, record in self._ranges.parts(first, last):
            if record.state is State.AVAILABLE and record.deliveries < count:
                self._put(begin, end, record._replace(deliveries=count))
            elif record.state is State.SCHEDULED:  # It was delivered: its time had come.
                self._put(begin, end, RecordState(State.AVAILABLE, count))

    def _ready_head(self) -> bool:
        """Tell whether the first message may be leased that is not finished, and was looked at."""
        head = self._ranges.head()
        return head is not None and bool(self._ready) and self._ready[0] == head[0]

    def _select_exhausted_head(self, limit: int) -> list[Pick]:
        """Make the first messages pending, as far as they are at the limit."""
        picks: list[Pick] = []
        room, at = EXHAUSTED_MAX, self.start_offset
        while room > 0 and (found := self._ranges.starting_at(at)) is not None:
            first, last, record = found
            if record.state not in FINISHED:
                if record.state is not State.AVAILABLE or record.until or record.deliveries < limit:
                    break
                last = min(last, first + room - 1)
                picks.append(self._pick(first, last, record.deliveries, exhausted=True))
                room -= last - first + 1
            at = last + 1
        return picks

    def _pick(self, first: int, last: int, count: int, *, exhausted: bool = False) -> Pick:
        self._put(first, last, RecordState(State.PENDING, count))
        return Pick(first, last, count, exhausted)


# Throttling. A message that makes its workers fail is delivered again and again together with the
# messages that came with it, and at the limit all of them would be dead letters. So the more often
# a range has been delivered, the smaller the pieces, down to one message at the last attempt.


def threshold(limit: int) -> int:
    """Return how many deliveries a range has seen when it begins to be throttled."""
    return max(2, -(-limit // 2))


def is_throttled(count: int, limit: int) -> bool:
    """Tell whether a range that was delivered `count` times is delivered by itself."""
    return count >= threshold(limit)


def deliverable(count: int, messages: int, limit: int) -> int:
    """Return how many messages of a range are delivered at once.

    Args:
        count: Deliveries made of it, below the limit.
        messages: How many it has.
        limit: The group's delivery limit.
    """
    if limit > 2 and count >= limit - 1:
        return 1
    if not is_throttled(count, limit):
        return messages
    return max(1, messages >> (count - threshold(limit) + 1))
