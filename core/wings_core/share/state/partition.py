"""MessageStates: the messages of one partition of a group, as one coordinator knows them.

    available ──select──▶ pending ──grant──▶ held ──finish──▶ finished (acknowledged or archived)
        ▲                    │                 │
        └─────── unpick ────┴─── release, expiry

It is plain state without a clock, a lock or a replica: every method is told the time, and
is called by one thread at a time. The replicas have the last word on who holds what;
this is where a coordinator looks for what to ask them for.

All offsets from `start_offset` to `frontier` are in one of the states. Messages from the frontier
on were never looked at, and cost nothing, however many they are.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

import pyarrow as pa

from wings_core.model import Lease
from wings_core.share.state.ranges import Change, RangeMap
from wings_core.share.state.schedule import SCHEDULED_MAX, Schedule, runs_of

EXHAUSTED_MAX = 10_000
"""Messages at the delivery limit in one selection at most."""

RANGES_MAX = 500_000
"""Ranges of one partition at most; then only messages that were looked at are leased."""

STALE_MAX = 1_024
"""Overtaken times are dropped when they outnumber this, and the ranges."""

SCHEDULE_SECONDS_MAX = 300.0
"""Longest delay of a message whose time came while the clock was set."""

CHECKED_MAX, CHECKED_NEXT_MAX = 65_536, 1_024
"""Messages whose times are looked at in one step: without order, and in order."""


class MessageState(Enum):
    """State of a message."""

    AVAILABLE = 0
    PENDING = 1
    """The replicas are being asked for it."""
    HELD = 2
    FINISHED = 3
    """Acknowledged or archived."""
    SCHEDULED = -1
    """Its time has not come, or was not looked at."""

    __hash__ = object.__hash__  # An enum's own runs in Python, at each count.


class RecordState(NamedTuple):
    """State common to all messages of a range."""

    state: MessageState
    deliveries: int = 0
    """Deliveries so far; of a held range, the present one included."""
    until: float = 0.0
    """Held: the time of expiry. Available: not leased before this time."""
    lease: Lease | None = None


FINISHED = RecordState(MessageState.FINISHED)


class Pick(NamedTuple):
    """A range that was selected and is pending."""

    first: int
    last: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    """Deliveries made, as far as is known here."""

    @property
    def messages(self) -> int:
        """Number of messages."""
        return self.last - self.first + 1


class MessageStates:
    """The states of the messages of one partition, as ranges, and how a coordinator changes them.

    Args:
        start_offset: The first message that is not finished.
        begun: Called when the first range is kept.

    Attributes:
        start_offset: All messages before it are finished.
        frontier: No message from here on was ever looked at.
        schedule: Messages that wait for their times.
        checked: The times of messages before it are known, where there are any.
        has_met_limit: Whether a selection has passed messages at the delivery limit.
    """

    def __init__(self, start_offset: int, begun: Callable[[], object] = lambda: None) -> None:
        self.start_offset = start_offset
        self._begun = begun
        self.frontier = start_offset
        self._log_start = 0
        self._ranges: RangeMap[RecordState] = RangeMap()
        self._ready: list[int] = []
        """Where available ranges begin that may be leased now, in order."""
        self._delayed: list[tuple[float, int, int]] = []
        """When ranges may be leased: `(until, first, last)`, a heap."""
        self._expiries: list[tuple[float, int, int]] = []
        """When ranges may expire, a heap; those finished or renewed are still there."""
        self._retired: list[tuple[int, int]] = []
        self._messages = dict.fromkeys(MessageState, 0)
        self._deliver_at: str | None = None
        self.has_met_limit = False
        self.schedule = Schedule()
        self.checked = start_offset

    def messages(self, state: MessageState) -> int:
        """Return how many messages from `start_offset` to `frontier` are in a state."""
        return self._messages[state]

    @property
    def in_flight(self) -> int:
        """Messages that are held, or may be in a moment."""
        return self._messages[MessageState.HELD] + self._messages[MessageState.PENDING]

    @property
    def is_full(self) -> bool:
        """Whether so many ranges are kept that no message from `frontier` on is selected."""
        return len(self._ranges) >= RANGES_MAX

    @property
    def ranges(self) -> int:
        """How many ranges are kept."""
        return len(self._ranges)

    def records(self) -> list[tuple[int, int, RecordState]]:
        """Return all ranges from `start_offset` to `frontier`, in order."""
        return list(self._ranges)

    def next_event(self, now: float, wall_us: int | None = None) -> float | None:
        """Return in how many seconds a lock may expire or a delay ends; None: nothing is due.

        Args:
            now: The time.
            wall_us: The time of day, so that the times of messages count; None: they do not.
        """
        due = [heap[0][0] - now for heap in (self._delayed, self._expiries) if heap]
        if wall_us is not None and (next_us := self.schedule.next_us) is not None:
            # The clock of the day may be set meanwhile.
            due.append(min(SCHEDULE_SECONDS_MAX, (next_us - wall_us) / 1_000_000))
        return max(0.0, min(due)) if due else None

    # What is there.

    def advance(self, now: float, log_start: int, wall_us: int | None = None) -> None:
        """Let locks expire and delays end, and archive what retention has passed.

        What is held stays so, and is archived when its hold ends.

        Args:
            now: The time.
            log_start: The first message that the log still has.
            wall_us: The time of day, so that the times of messages come; None: they do not.
        """
        if log_start > self._log_start:
            self._retain(log_start)
        while self._expiries and self._expiries[0][0] <= now:
            _, first, last = heapq.heappop(self._expiries)
            for begin, end, record in self._ranges.parts(first, last):
                if record.state is MessageState.HELD and record.until <= now:
                    self._free(begin, end, record.deliveries, 0.0)
        while self._delayed and self._delayed[0][0] <= now:
            _, first, last = heapq.heappop(self._delayed)
            for begin, end, record in self._ranges.parts(first, last):
                if record.state is MessageState.AVAILABLE and 0.0 < record.until <= now:
                    self._put(begin, end, RecordState(MessageState.AVAILABLE, record.deliveries))
        if wall_us is not None:
            for first, last in self.schedule.take_due(wall_us):
                self._come_due(first, last)

    # Times of messages.

    @property
    def is_scheduled(self) -> bool:
        """Whether messages are available from their times on."""
        return self._deliver_at is not None

    def deliver_by(self, column: str | None) -> None:
        """Let messages wait for their times by a column, or no longer.

        Those that were delivered before do not: their times had come.
        """
        if column == self._deliver_at:
            return
        self._deliver_at, self.schedule, self.checked = column, Schedule(), self.start_offset
        for first, last, record in list(self._ranges):
            if column is None and record.state is MessageState.SCHEDULED:
                self._put(first, last, RecordState(MessageState.AVAILABLE))
            elif column and record.state is MessageState.AVAILABLE and not record.deliveries:
                self._put(first, last, RecordState(MessageState.SCHEDULED))

    def unchecked(self, log_end: int, *, ordered: bool = False) -> tuple[int, int] | None:
        """Return the messages `[first, last]` whose times are to be looked at next; None: none.

        Args:
            log_end: The next offset that the log assigns.
            ordered: Whether only what comes next counts.
        """
        if self._deliver_at is None or self.is_full or self.schedule.messages >= SCHEDULED_MAX:
            return None
        head = self._ranges.head()
        self.checked = max(self.checked, self.start_offset)
        if ordered and (self.in_flight or (head is not None and head[0] < self.checked)):
            return None
        while (found := self._ranges.at(self.checked)) and found[
            2
        ].state is not MessageState.SCHEDULED:
            self.checked = found[1] + 1
        if self.checked >= log_end:
            return None
        most = CHECKED_NEXT_MAX if ordered else CHECKED_MAX
        return self.checked, min(log_end, self.checked + most) - 1

    def check(self, first: int, times: "pa.Int64Array", wall_us: int) -> None:
        """Take the times of `unchecked` messages from an offset on, null for those without one."""
        if first != self.checked or self._deliver_at is None:
            return  # It was overtaken.
        self._touch(first + len(times) - 1)
        for begin, end, is_due in runs_of(times, wall_us):
            if is_due:
                self._come_due(first + begin, first + end)
                continue
            for low, high, record in self._ranges.parts(first + begin, first + end):
                if record.state is MessageState.SCHEDULED:
                    self.schedule.add(low, times.slice(low - first, high - low + 1))
        self.checked = first + len(times)

    def retire(self, first: int, last: int) -> None:
        """Archive what is not finished of `[first, last]`, which retention has passed, if held."""
        assert last < self._log_start
        first = max(first, self.start_offset)
        if first > last:
            return
        for begin, end, record in self._ranges.parts(first, last):
            if record.state is not MessageState.FINISHED:
                self._retire(begin, end)
        self._fold()

    def take_retired(self) -> list[tuple[int, int]]:
        """Return, once, the ranges that were archived because retention has passed them."""
        retired, self._retired = self._retired, []
        return retired

    # Selection, as of the last `advance`.

    def has_available(self, log_end: int, limit: int, *, ordered: bool = False) -> bool:
        """Tell whether something may be selected.

        Args:
            log_end: The next offset that the log assigns.
            limit: The group's delivery limit.
            ordered: Whether only the next message counts.
        """
        if self.is_scheduled and self.unchecked(log_end, ordered=ordered) is not None:
            return True
        if ordered and self._ranges:
            return self.has_ready(limit, ordered=True)
        return self.has_ready(limit) or self._has_fresh(log_end)

    def has_ready(self, limit: int, *, ordered: bool = False) -> bool:
        """Tell whether a message below the delivery limit may be leased that was looked at."""
        if ordered:
            return (
                not self.in_flight
                and self._ready_head()
                and self._at(self._ready[0])[2].deliveries < limit
            )
        return any(self._at(first)[2].deliveries < limit for first in self._ready)

    def has_exhausted(self, limit: int, *, ordered: bool = False) -> bool:
        """Tell whether a message is at the limit, in order the next one."""
        if ordered:
            return self._ready_head() and self._at(self._ready[0])[2].deliveries >= limit
        return any(self._at(first)[2].deliveries >= limit for first in self._ready)

    def select(
        self,
        log_end: int,
        messages_max: int,
        in_flight_max: int,
        limit: int,
        *,
        ordered: bool = False,
        alone: bool = True,
    ) -> list[Pick]:
        """Make the oldest available messages pending.

        A throttled range comes alone, and as small a piece of it as `deliverable` says. In order,
        one range comes, the next one, and none while a message is in flight. Ranges at the delivery
        limit are left for `select_exhausted`, and set `has_met_limit`.

        Args:
            log_end: The next offset that the log assigns.
            messages_max: Messages at most, at least 1.
            in_flight_max: Messages in flight at most.
            limit: The group's delivery limit.
            ordered: Whether the messages come in order.
            alone: Whether the worker gets nothing else; otherwise no throttled range is picked.
        """
        if ordered and (self.in_flight or (self._ranges and not self._ready_head())):
            return []
        room = min(messages_max, in_flight_max - self.in_flight)
        picks, room = self._select_ready(room, limit, ordered=ordered, alone=alone)
        if room > 0 and self._has_fresh(log_end):
            first = self.frontier
            last = min(log_end, first + room) - 1
            self.frontier = last + 1
            picks.append(self._pick(first, last, 0))
        return picks

    def select_exhausted(self, limit: int, *, ordered: bool = False) -> list[Pick]:
        """Make the oldest messages at the delivery limit pending; in order, the next ones."""
        if ordered:
            return [] if self.in_flight else self._select_exhausted_head(limit)
        picks: list[Pick] = []
        room = EXHAUSTED_MAX
        for first in list(self._ready):
            _, last, record = self._at(first)
            if room > 0 and record.deliveries >= limit:
                last = min(last, first + room - 1)
                room -= last - first + 1
                picks.append(self._pick(first, last, record.deliveries))
        return picks

    def extend(
        self, pick: Pick, last: int, log_end: int, messages_max: int, in_flight_max: int
    ) -> Pick:
        """Let a pick go on up to an offset, as far as the messages are available like its own.

        Args:
            pick: The last of a selection, of no throttled range.
            last: Up to here at most.
            log_end: The next offset that the log assigns.
            messages_max: Most messages to add.
            in_flight_max: No more are in flight at once.
        """
        room = min(messages_max, in_flight_max - self.in_flight)
        last = min(last, log_end - 1, pick.last + max(0, room))
        end = pick.last
        if end >= last:
            return pick
        if end + 1 < self.frontier:
            following = self._ranges.starting_at(end + 1)
            if following is None or following[2] != RecordState(MessageState.AVAILABLE, pick.count):
                return pick
            last = min(last, following[1])
        elif pick.count or self.is_scheduled:
            return pick  # What was never looked at was never delivered.
        else:
            self._touch(last)
        self._pick(end + 1, last, pick.count)
        return Pick(pick.first, last, pick.count)

    # After a selection.

    def grant(self, first: int, last: int, lease: Lease, until: float, count: int) -> None:
        """Make those messages held that are still pending.

        Args:
            first: The first of them.
            last: The last of them.
            lease: The lease that holds them.
            until: When the lease expires.
            count: Deliveries made, this one included.
        """
        for begin, end, record in self._ranges.parts(first, last):
            if record.state is MessageState.PENDING:
                self._put(begin, end, RecordState(MessageState.HELD, count, until, lease))

    def unpick(self, first: int, last: int, count: int, until: float = 0.0) -> None:
        """Make pending messages available again, from a time on, with so many deliveries."""
        for begin, end, record in self._ranges.parts(first, last):
            if record.state is MessageState.PENDING:
                self._free(begin, end, max(count, record.deliveries), until)

    def put_off(self, first: int, last: int, until: float) -> None:
        """Make the available messages of `[first, last]`, which others hold, so from a time on."""
        first = max(first, self.start_offset)
        if first > last:
            return
        self._touch(last)
        for begin, end, record in self._ranges.parts(first, last):
            if record.state is MessageState.AVAILABLE and record.until < until:
                self._put(begin, end, record._replace(until=until))

    # Of what is held.

    def held(
        self, first: int, last: int, lease: Lease, now: float
    ) -> list[tuple[int, int, RecordState]]:
        """Return the ranges of `[first, last]` if a lease holds all of it and has not expired."""
        parts = self._ranges.parts(first, last)
        messages = 0
        for begin, end, record in parts:
            if (
                record.state is not MessageState.HELD
                or record.lease != lease
                or record.until <= now
            ):
                return []
            messages += end - begin + 1
        return parts if messages == last - first + 1 else []

    def renew(self, first: int, last: int, lease: Lease, until: float) -> None:
        """Let what a lease holds expire later."""
        for begin, end, record in self._ranges.parts(first, last):
            if record.state is MessageState.HELD and record.lease == lease:
                self._put(begin, end, record._replace(until=until))

    def release(
        self, first: int, last: int, lease: Lease, until: float = 0.0, *, counts: bool = True
    ) -> None:
        """Make what a lease holds available again, from a time on; `counts`: as delivered."""
        for begin, end, record in self._ranges.parts(first, last):
            if record.state is MessageState.HELD and record.lease == lease:
                self._free(begin, end, record.deliveries - (not counts), until)

    def finish(self, first: int, last: int) -> None:
        """Finish messages, whatever their state."""
        first = max(first, self.start_offset)
        if first > last:
            return
        self._touch(last)
        if first == self.start_offset:
            self._account(self._ranges.remove(first, last))
            self.start_offset = last + 1
        else:
            self._put(first, last, FINISHED)
        self._fold()

    def learn(self, first: int, last: int, count: int) -> None:
        """Raise the delivery counts of available messages to `count`, which may be another's."""
        first = max(first, self.start_offset)
        if first > last:
            return
        self._touch(last)
        for begin, end, record in self._ranges.parts(first, last):
            if record.state is MessageState.AVAILABLE and record.deliveries < count:
                self._put(begin, end, record._replace(deliveries=count))
            elif record.state is MessageState.SCHEDULED:  # It was delivered: its time had come.
                self._put(begin, end, RecordState(MessageState.AVAILABLE, count))

    # Inside.

    def _at(self, first: int) -> tuple[int, int, RecordState]:
        found = self._ranges.starting_at(first)
        assert found is not None
        return found

    def _retain(self, log_start: int) -> None:
        self._log_start = log_start
        if log_start <= self.start_offset:
            return
        self._touch(log_start - 1)
        self.schedule.forget_before(log_start)  # They take room until their times, years maybe.
        for begin, end, record in self._ranges.parts(self.start_offset, log_start - 1):
            if record.state in (MessageState.AVAILABLE, MessageState.SCHEDULED):
                self._retire(begin, end)
        self._fold()

    def _come_due(self, first: int, last: int) -> None:
        for begin, end, record in self._ranges.parts(first, last):
            if record.state is MessageState.SCHEDULED:
                self._put(begin, end, RecordState(MessageState.AVAILABLE))

    def _retire(self, first: int, last: int) -> None:
        self._put(first, last, FINISHED)
        self._retired.append((first, last))

    def _free(self, first: int, last: int, count: int, until: float) -> None:
        """End a hold; what retention has passed meanwhile is archived."""
        passed = min(last, self._log_start - 1)
        if passed < last:
            self._put(
                max(first, passed + 1), last, RecordState(MessageState.AVAILABLE, count, until)
            )
        if passed >= first:
            self._retire(first, passed)
            self._fold()

    def _touch(self, last: int) -> None:
        """Give every message up to an offset a state."""
        if last >= self.frontier:
            first, self.frontier = self.frontier, last + 1
            state = MessageState.AVAILABLE if self._deliver_at is None else MessageState.SCHEDULED
            self._put(first, last, RecordState(state))

    def _put(self, first: int, last: int, record: RecordState) -> None:
        if not self._ranges:
            self._begun()
        self._account(self._ranges.put(first, last, record))
        if record.state is MessageState.HELD:
            self._remember(self._expiries, record.until, first, last)
        elif record.state is MessageState.AVAILABLE and record.until:
            self._remember(self._delayed, record.until, first, last)

    def _remember(
        self, heap: list[tuple[float, int, int]], until: float, first: int, last: int
    ) -> None:
        heapq.heappush(heap, (until, first, last))
        if len(heap) > STALE_MAX and len(heap) > 2 * len(self._ranges) + STALE_MAX:
            state = MessageState.HELD if heap is self._expiries else MessageState.AVAILABLE
            heap[:] = [
                (record.until, begin, end)
                for begin, end, record in self._ranges
                if record.state is state and record.until
            ]
            heapq.heapify(heap)

    def _account(self, change: Change[RecordState]) -> None:
        for first, last, record in change.removed:
            self._messages[record.state] -= last - first + 1
            if record.state is MessageState.AVAILABLE and not record.until:
                del self._ready[bisect_left(self._ready, first)]
        for first, last, record in change.added:
            self._messages[record.state] += last - first + 1
            if record.state is MessageState.AVAILABLE and not record.until:
                insort(self._ready, first)

    def _fold(self) -> None:
        """Move the start over what is finished."""
        while (head := self._ranges.head()) is not None and head[2].state is MessageState.FINISHED:
            first, last, _ = head
            assert first == self.start_offset
            self._account(self._ranges.remove(first, last))
            self.start_offset = last + 1

    def _has_fresh(self, log_end: int) -> bool:
        """Tell whether a message may be leased that was never looked at."""
        return self.frontier < log_end and not self.is_full and not self.is_scheduled

    def _ready_head(self) -> bool:
        """Tell whether the first message may be leased that is not finished, and was looked at."""
        head = self._ranges.head()
        return head is not None and bool(self._ready) and self._ready[0] == head[0]

    def _select_ready(
        self, room: int, limit: int, *, ordered: bool, alone: bool
    ) -> tuple[list[Pick], int]:
        """Make messages pending that were looked at; returns what is left of the room, too."""
        picks: list[Pick] = []
        at = 0
        while room > 0 and at < len(self._ready):
            first, last, record = self._at(self._ready[at])
            if record.deliveries >= limit:
                self.has_met_limit = True
                if ordered:
                    return [], 0
                at += 1
                continue
            throttled = is_throttled(record.deliveries, limit)
            if throttled and (not alone or picks):
                return picks, 0
            wanted = min(room, deliverable(record.deliveries, last - first + 1, limit))
            picks.append(self._pick(first, first + wanted - 1, record.deliveries))
            room = 0 if throttled or ordered else room - wanted
        return picks, room

    def _select_exhausted_head(self, limit: int) -> list[Pick]:
        """Make the first messages pending, as far as they are at the limit."""
        picks: list[Pick] = []
        room, at = EXHAUSTED_MAX, self.start_offset
        while room > 0 and (found := self._ranges.starting_at(at)) is not None:
            first, last, record = found
            if record.state is not MessageState.FINISHED:
                if (
                    record.state is not MessageState.AVAILABLE
                    or record.until
                    or record.deliveries < limit
                ):
                    break
                last = min(last, first + room - 1)
                picks.append(self._pick(first, last, record.deliveries))
                room -= last - first + 1
            at = last + 1
        return picks

    def _pick(self, first: int, last: int, count: int) -> Pick:
        self._put(first, last, RecordState(MessageState.PENDING, count))
        return Pick(first, last, count)


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
