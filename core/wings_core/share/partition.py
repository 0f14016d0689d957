"""SharePartition: what one coordinator knows of one partition of a group.

    available ──select──▶ pending ──grant──▶ held ──finish──▶ acknowledged | archived
        ▲                    │                 │
        └────── give_back ───┴─── release, expiry

It is plain state without a clock, a lock or a replica: every method is told the time, and whoever
calls sees to it that one thread does at a time. The replicas have the last word on who holds what;
this is where a coordinator looks for what to ask them for.

All offsets from `start_offset` to `frontier` are in one of the states. What lies at the frontier or
after it was never looked at, and costs nothing, however much it is.
"""

import heapq
from bisect import bisect_left, insort
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from wings_core.share.model import Lease
from wings_core.share.ranges import Change, RangeMap
from wings_core.share.throttle import deliverable, is_throttled

RANGES_MAX = 500_000
"""Ranges of one partition; at so many, nothing is handed out that was not before."""

STALE_MAX = 1_024
"""Times that were overtaken are forgotten when they are more than so many, and than the ranges."""

EXHAUSTED_MAX = 10_000
"""Messages that one selection gives up at most."""


class State(Enum):
    """Where a message stands."""

    AVAILABLE = 0
    PENDING = 1
    """The replicas are being asked for it."""
    HELD = 2
    ACKNOWLEDGED = 3
    ARCHIVED = 4


class Cell(NamedTuple):
    """What is the same for all messages of a range."""

    state: State
    deliveries: int = 0
    """Made so far; of a held range, the present one included."""
    until: float = 0.0
    """Held: when it expires. Available: not handed out before."""
    lease: Lease | None = None


ACKNOWLEDGED = Cell(State.ACKNOWLEDGED)
ARCHIVED = Cell(State.ARCHIVED)
FINISHED: tuple[State, ...] = (State.ACKNOWLEDGED, State.ARCHIVED)


@dataclass(frozen=True, slots=True)
class Pick:
    """A range that was selected and is pending."""

    first: int
    last: int
    count: int
    """Deliveries made, as far as is known here."""
    exhausted: bool = False
    """To be given up rather than handed out."""


class SharePartition:
    """The states of the messages of one partition of a group.

    Args:
        start_offset: The first that is not finished.

    Attributes:
        start_offset: All messages before it are finished.
        frontier: No message from here on was ever looked at.
    """

    def __init__(self, start_offset: int) -> None:
        self.start_offset = start_offset
        self.frontier = start_offset
        self._log_start = 0
        self._ranges: RangeMap[Cell] = RangeMap()
        self._ready: list[int] = []
        """Where available ranges begin that may be handed out now, in order."""
        self._delayed: list[tuple[float, int, int]] = []
        """When ranges may be handed out: `(until, first, last)`, a heap."""
        self._expiries: list[tuple[float, int, int]] = []
        """When ranges may expire, a heap; those that were settled or renewed are still there."""
        self._retired: list[tuple[int, int]] = []
        self._messages = dict.fromkeys(State, 0)
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

    def cells(self) -> list[tuple[int, int, Cell]]:
        """Return all ranges from `start_offset` to `frontier`, in order."""
        return list(self._ranges)

    def parts(self, first: int, last: int) -> list[tuple[int, int, Cell]]:
        """Return the ranges in `[first, last]`, cut to it; what is finished or new is left out."""
        return self._ranges.parts(first, last)

    def next_event(self, now: float) -> float | None:
        """Return in how many seconds a lock may expire or a delay ends; None: nothing is due."""
        due = [heap[0][0] for heap in (self._delayed, self._expiries) if heap]
        return max(0.0, min(due) - now) if due else None

    # What is there.

    def advance(self, now: float, log_start: int) -> None:
        """Let locks expire and delays end, and archive what retention has passed.

        What is held stays so, and is archived when its hold ends.

        Args:
            now: The time.
            log_start: The first message that the log still has.
        """
        if log_start > self._log_start:
            self._retain(log_start)
        while self._expiries and self._expiries[0][0] <= now:
            _, first, last = heapq.heappop(self._expiries)
            for begin, end, cell in self._ranges.parts(first, last):
                if cell.state is State.HELD and cell.until <= now:
                    self._free(begin, end, cell.deliveries, 0.0)
        while self._delayed and self._delayed[0][0] <= now:
            _, first, last = heapq.heappop(self._delayed)
            for begin, end, cell in self._ranges.parts(first, last):
                if cell.state is State.AVAILABLE and 0.0 < cell.until <= now:
                    self._put(begin, end, Cell(State.AVAILABLE, cell.deliveries))

    def take_retired(self) -> list[tuple[int, int]]:
        """Return, once, the ranges that were archived because retention has passed them."""
        retired, self._retired = self._retired, []
        return retired

    def has_available(self, log_end: int) -> bool:
        """Tell whether something may be selected, as of the last `advance`."""
        return bool(self._ready) or (self.frontier < log_end and not self.is_full)

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

        A throttled range comes alone, and as small a piece of it as `throttle.deliverable` says.
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
            first, last, cell = self._at(self._ready[0])
            if cell.deliveries >= limit:
                if exhausted >= EXHAUSTED_MAX:
                    break
                last = min(last, first + EXHAUSTED_MAX - 1 - exhausted)
                exhausted += last - first + 1
                picks.append(self._pick(first, last, cell.deliveries, exhausted=True))
                continue
            throttled = is_throttled(cell.deliveries, limit)
            if throttled and (not alone or any(not pick.exhausted for pick in picks)):
                return picks
            if room <= 0:
                return picks
            wanted = min(room, deliverable(cell.deliveries, last - first + 1, limit))
            picks.append(self._pick(first, min(last, first + wanted - 1), cell.deliveries))
            if throttled:
                return picks
            room -= picks[-1].last - first + 1
        if room > 0 and self.frontier < log_end and not self.is_full:
            skip = min(skip, log_end - self.frontier - 1)
            if skip > 0:
                self._touch(self.frontier + skip - 1)
            first = self.frontier
            last = min(log_end, first + room) - 1
            self._touch(last)
            picks.append(self._pick(first, last, 0))
        return picks

    def has_exhausted(self, limit: int) -> bool:
        """Tell whether something is at the limit, as of the last `advance`."""
        return any(self._at(first)[2].deliveries >= limit for first in self._ready)

    def select_exhausted(self, limit: int) -> list[Pick]:
        """Make messages at the limit pending, the oldest first; see `select`."""
        picks: list[Pick] = []
        room = EXHAUSTED_MAX
        for first in list(self._ready):
            _, last, cell = self._at(first)
            if room > 0 and cell.deliveries >= limit:
                last = min(last, first + room - 1)
                room -= last - first + 1
                picks.append(self._pick(first, last, cell.deliveries, exhausted=True))
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
            if following is None or following[2] != Cell(State.AVAILABLE, pick.count):
                return pick
            last = min(last, following[1])
        else:
            self._touch(last)
        self._pick(end + 1, last, pick.count)
        return Pick(pick.first, last, pick.count)

    # What became of what was selected.

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
        for begin, end, cell in self._ranges.parts(first, last):
            if cell.state is State.PENDING:
                self._put(begin, end, Cell(State.HELD, count, until, lease))
                granted.append((begin, end))
        return granted

    def give_back(self, first: int, last: int, count: int, until: float = 0.0) -> None:
        """Make pending messages available again, from a time on, with so many deliveries."""
        for begin, end, cell in self._ranges.parts(first, last):
            if cell.state is State.PENDING:
                self._free(begin, end, max(count, cell.deliveries), until)

    # What became of what was held.

    def is_held(self, first: int, last: int, lease: Lease, now: float) -> bool:
        """Tell whether a lease holds all of `[first, last]` and has not expired."""
        parts = self._ranges.parts(first, last)
        return sum(end - begin + 1 for begin, end, _ in parts) == last - first + 1 and all(
            cell.state is State.HELD and cell.lease == lease and cell.until > now
            for _, _, cell in parts
        )

    def renew(self, first: int, last: int, lease: Lease, until: float) -> None:
        """Let what a lease holds expire later."""
        for begin, end, cell in self._ranges.parts(first, last):
            if cell.state is State.HELD and cell.lease == lease:
                self._put(begin, end, cell._replace(until=until))

    def release(self, first: int, last: int, lease: Lease, until: float = 0.0) -> None:
        """Make what a lease holds available again, from a time on."""
        for begin, end, cell in self._ranges.parts(first, last):
            if cell.state is State.HELD and cell.lease == lease:
                self._free(begin, end, cell.deliveries, until)

    def hand_back(self, first: int, last: int, lease: Lease) -> None:
        """Make what a lease holds available again; it never reached its member: no delivery."""
        for begin, end, cell in self._ranges.parts(first, last):
            if cell.state is State.HELD and cell.lease == lease:
                self._free(begin, end, cell.deliveries - 1, 0.0)

    def finish(self, first: int, last: int, *, archived: bool = False) -> None:
        """Finish messages, whatever their state."""
        first = max(first, self.start_offset)
        if first > last:
            return
        self._touch(last)
        for begin, end, cell in self._ranges.parts(first, last):
            if cell.state not in FINISHED:
                self._put(begin, end, ARCHIVED if archived else ACKNOWLEDGED)
        self._fold()

    def learn(self, first: int, last: int, count: int) -> None:
        """Hear that available messages were delivered so often, by whomever."""
        first = max(first, self.start_offset)
        if first > last:
            return
        self._touch(last)
        for begin, end, cell in self._ranges.parts(first, last):
            if cell.state is State.AVAILABLE and cell.deliveries < count:
                self._put(begin, end, cell._replace(deliveries=count))

    # Inside.

    def _at(self, first: int) -> tuple[int, int, Cell]:
        found = self._ranges.starting_at(first)
        assert found is not None
        return found

    def _retain(self, log_start: int) -> None:
        self._log_start = log_start
        if log_start <= self.start_offset:
            return
        self._touch(log_start - 1)
        for begin, end, cell in self._ranges.parts(self.start_offset, log_start - 1):
            if cell.state is State.AVAILABLE:
                self._retire(begin, end)
        self._fold()

    def _retire(self, first: int, last: int) -> None:
        self._put(first, last, ARCHIVED)
        self._retired.append((first, last))

    def _free(self, first: int, last: int, count: int, until: float) -> None:
        """End a hold; what retention has passed meanwhile is archived."""
        passed = min(last, self._log_start - 1)
        if passed < last:
            self._put(max(first, passed + 1), last, Cell(State.AVAILABLE, count, until))
        if passed >= first:
            self._retire(first, passed)
            self._fold()

    def _touch(self, last: int) -> None:
        """Give every message up to an offset a state."""
        if last >= self.frontier:
            first, self.frontier = self.frontier, last + 1
            self._put(first, last, Cell(State.AVAILABLE))

    def _pick(self, first: int, last: int, count: int, *, exhausted: bool = False) -> Pick:
        self._put(first, last, Cell(State.PENDING, count))
        return Pick(first, last, count, exhausted)

    def _put(self, first: int, last: int, cell: Cell) -> None:
        self._account(self._ranges.put(first, last, cell))
        if cell.state is State.HELD:
            self._remember(self._expiries, cell.until, first, last)
        elif cell.state is State.AVAILABLE and cell.until:
            self._remember(self._delayed, cell.until, first, last)

    def _remember(
        self, heap: list[tuple[float, int, int]], until: float, first: int, last: int
    ) -> None:
        heapq.heappush(heap, (until, first, last))
        if len(heap) > 2 * len(self._ranges) + STALE_MAX:
            state = State.HELD if heap is self._expiries else State.AVAILABLE
            heap[:] = [
                (cell.until, begin, end)
                for begin, end, cell in self._ranges
                if cell.state is state and cell.until
            ]
            heapq.heapify(heap)

    def _account(self, change: Change[Cell]) -> None:
        for first, last, cell in change.removed:
            self._messages[cell.state] -= last - first + 1
            if cell.state is State.AVAILABLE and not cell.until:
                del self._ready[bisect_left(self._ready, first)]
        for first, last, cell in change.added:
            self._messages[cell.state] += last - first + 1
            if cell.state is State.AVAILABLE and not cell.until:
                insort(self._ready, first)

    def _fold(self) -> None:
        """Move the start over what is finished."""
        while (head := self._ranges.head()) is not None and head[2].state in FINISHED:
            first, last, cell = head
            assert first == self.start_offset
            self._account(self._ranges.remove(first, last))
            self._before_start[cell.state] += last - first + 1
            self.start_offset = last + 1
