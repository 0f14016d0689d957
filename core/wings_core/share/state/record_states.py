"""The states of the messages of one partition, as ranges, and what time does to them.

All offsets from `start_offset` to `frontier` are in one of the states. What lies at the frontier or
after it was never looked at, and costs nothing, however much it is.
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

RANGES_MAX = 500_000
"""Ranges of one partition; at so many, nothing is leased that was not before."""

STALE_MAX = 1_024
"""Times that were overtaken are forgotten when they are more than so many, and than the ranges."""


SCHEDULE_SECONDS_MAX = 300.0
"""How late the time of a message may be seen to have come, after the clock was set."""

CHECKED_MAX, CHECKED_NEXT_MAX = 65_536, 1_024
"""Messages whose times are looked at in one step: in any order, and in that of the partition."""


class State(Enum):
    """Where a message stands."""

    AVAILABLE = 0
    PENDING = 1
    """The replicas are being asked for it."""
    HELD = 2
    ACKNOWLEDGED = 3
    ARCHIVED = 4
    SCHEDULED = -1
    """Its time has not come, or was not looked at."""

    __hash__ = object.__hash__  # An enum's own runs in Python, at each count.


class RecordState(NamedTuple):
    """What is the same for all messages of a range."""

    state: State
    deliveries: int = 0
    """Made so far; of a held range, the present one included."""
    until: float = 0.0
    """Held: when it expires. Available: not leased before."""
    lease: Lease | None = None


ACKNOWLEDGED = RecordState(State.ACKNOWLEDGED)
ARCHIVED = RecordState(State.ARCHIVED)
FINISHED: tuple[State, ...] = (State.ACKNOWLEDGED, State.ARCHIVED)


class RecordStates:
    """The states of the messages of one partition of a group, as ranges.

    Args:
        start_offset: The first that is not finished.
        begun: Called when ranges begin to be kept, where none were.

    Attributes:
        start_offset: All messages before it are finished.
        frontier: No message from here on was ever looked at.
        schedule: What waits for its time.
        checked: The times of messages before it are known, where there are any.
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
        self._messages = dict.fromkeys(State, 0)
        self._deliver_at: str | None = None
        self.schedule = Schedule()
        self.checked = start_offset
        self._before_start = dict.fromkeys(FINISHED, 0)

    def messages(self, state: State) -> int:
        """Return how many messages are in a state; the finished ones since this object began."""
        return self._messages[state] + self._before_start.get(state, 0)

    @property
    def in_flight(self) -> int:
        """Messages that are held, or may be in a moment."""
        return self._messages[State.HELD] + self._messages[State.PENDING]

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

    def parts(self, first: int, last: int) -> list[tuple[int, int, RecordState]]:
        """Return the ranges in `[first, last]`, cut to it; what is finished or new is left out."""
        return self._ranges.parts(first, last)

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
                if record.state is State.HELD and record.until <= now:
                    self._free(begin, end, record.deliveries, 0.0)
        while self._delayed and self._delayed[0][0] <= now:
            _, first, last = heapq.heappop(self._delayed)
            for begin, end, record in self._ranges.parts(first, last):
                if record.state is State.AVAILABLE and 0.0 < record.until <= now:
                    self._put(begin, end, RecordState(State.AVAILABLE, record.deliveries))
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
            if column is None and record.state is State.SCHEDULED:
                self._put(first, last, RecordState(State.AVAILABLE))
            elif column and record.state is State.AVAILABLE and not record.deliveries:
                self._put(first, last, RecordState(State.SCHEDULED))

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
        while (found := self._ranges.at(self.checked)) and found[2].state is not State.SCHEDULED:
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
                if record.state is State.SCHEDULED:
                    self.schedule.add(low, times.slice(low - first, high - low + 1))
        self.checked = first + len(times)

    def retire(self, first: int, last: int) -> None:
        """Archive what is not finished of `[first, last]`, which retention has passed, if held."""
        assert last < self._log_start
        first = max(first, self.start_offset)
        if first > last:
            return
        for begin, end, record in self._ranges.parts(first, last):
            if record.state not in FINISHED:
                self._retire(begin, end)
        self._fold()

    def take_retired(self) -> list[tuple[int, int]]:
        """Return, once, the ranges that were archived because retention has passed them."""
        retired, self._retired = self._retired, []
        return retired

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
            if record.state in (State.AVAILABLE, State.SCHEDULED):
                self._retire(begin, end)
        self._fold()

    def _come_due(self, first: int, last: int) -> None:
        for begin, end, record in self._ranges.parts(first, last):
            if record.state is State.SCHEDULED:
                self._put(begin, end, RecordState(State.AVAILABLE))

    def _retire(self, first: int, last: int) -> None:
        self._put(first, last, ARCHIVED)
        self._retired.append((first, last))

    def _free(self, first: int, last: int, count: int, until: float) -> None:
        """End a hold; what retention has passed meanwhile is archived."""
        passed = min(last, self._log_start - 1)
        if passed < last:
            self._put(max(first, passed + 1), last, RecordState(State.AVAILABLE, count, until))
        if passed >= first:
            self._retire(first, passed)
            self._fold()

    def _touch(self, last: int) -> None:
        """Give every message up to an offset a state."""
        if last >= self.frontier:
            first, self.frontier = self.frontier, last + 1
            state = State.AVAILABLE if self._deliver_at is None else State.SCHEDULED
            self._put(first, last, RecordState(state))

    def _put(self, first: int, last: int, record: RecordState) -> None:
        if not self._ranges:
            self._begun()
        self._account(self._ranges.put(first, last, record))
        if record.state is State.HELD:
            self._remember(self._expiries, record.until, first, last)
        elif record.state is State.AVAILABLE and record.until:
            self._remember(self._delayed, record.until, first, last)

    def _remember(
        self, heap: list[tuple[float, int, int]], until: float, first: int, last: int
    ) -> None:
        heapq.heappush(heap, (until, first, last))
        if len(heap) > STALE_MAX and len(heap) > 2 * len(self._ranges) + STALE_MAX:
            state = State.HELD if heap is self._expiries else State.AVAILABLE
            heap[:] = [
                (record.until, begin, end)
                for begin, end, record in self._ranges
                if record.state is state and record.until
            ]
            heapq.heapify(heap)

    def _account(self, change: Change[RecordState]) -> None:
        for first, last, record in change.removed:
            self._messages[record.state] -= last - first + 1
            if record.state is State.AVAILABLE and not record.until:
                del self._ready[bisect_left(self._ready, first)]
        for first, last, record in change.added:
            self._messages[record.state] += last - first + 1
            if record.state is State.AVAILABLE and not record.until:
                insort(self._ready, first)

    def _finish_head(self, last: int, record: RecordState) -> None:
        """Finish the messages up to an offset in one step."""
        for begin, end, before in self._ranges.parts(self.start_offset, last):
            state = before.state if before.state in FINISHED else record.state
            self._before_start[state] += end - begin + 1
        self._account(self._ranges.remove(self.start_offset, last))
        self.start_offset = last + 1

    def _fold(self) -> None:
        """Move the start over what is finished."""
        while (head := self._ranges.head()) is not None and head[2].state in FINISHED:
            first, last, record = head
            assert first == self.start_offset
            self._account(self._ranges.remove(first, last))
            self._before_start[record.state] += last - first + 1
            self.start_offset = last + 1
