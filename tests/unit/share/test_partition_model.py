"""The state machine of a partition against a model that keeps one entry for each offset."""

from dataclasses import dataclass

import pyarrow as pa
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from property_examples import examples

from wings_core.model import Lease
from wings_core.share.state.partition import MessageState, MessageStates, Pick

LOCK = 10.0


@dataclass
class Message:
    state: MessageState = MessageState.AVAILABLE
    count: int = 0
    until: float = 0.0
    lease: Lease | None = None
    time_us: int | None = None
    """When it may be delivered; None: at once."""


def pieces(limit: int, count: int, messages: int) -> int:
    """Return how many of a range are delivered at once, as the design's formula says."""
    threshold = max(2, (limit + 1) // 2)
    if limit > 2 and count == limit - 1:
        return 1
    return messages if count < threshold else max(1, messages // 2 ** (count - threshold + 1))


class PartitionMachine(RuleBasedStateMachine):
    @initialize(start=st.integers(0, 20), more=st.integers(0, 30))
    def begin(self, start: int, more: int) -> None:
        self.start = start
        self.log_start, self.log_end = 0, start + more
        self.model = {offset: Message() for offset in range(start, self.log_end)}
        self.touched = start
        self.begun = 0
        self.subject = MessageStates(start, self._begin_ranges)
        self.now = 1.0
        self.leases = 0
        self.pending: list[Pick] = []
        self.limit, self.in_flight_max = 5, 25
        self.ordered = self.is_scheduled = False
        self.times: dict[int, int | None] = {}
        self.checked: set[int] = set()

    @rule(more=st.integers(1, 30), delays=st.lists(st.sampled_from([0, 1, 5]), max_size=8))
    def produce(self, more: int, delays: list[int]) -> None:
        for number, offset in enumerate(range(self.log_end, self.log_end + more)):
            delay = delays[number % len(delays)] if delays else 0
            self.times[offset] = self._wall_us() + delay * 1_000_000 if delay else None
            self.model[offset] = Message()
            if self.is_scheduled:
                self.model[offset] = Message(MessageState.SCHEDULED)
        self.log_end += more

    @rule(is_scheduled=st.booleans())
    def deliver_by(self, is_scheduled: bool) -> None:
        if is_scheduled != self.is_scheduled:
            self.checked.clear()
            for message in self.model.values():
                if message.state is MessageState.SCHEDULED:
                    message.state = MessageState.AVAILABLE
                elif is_scheduled and message.state is MessageState.AVAILABLE and not message.count:
                    message.state, message.until = MessageState.SCHEDULED, 0.0
        self.is_scheduled = is_scheduled
        self.subject.deliver_by("at" if is_scheduled else None)

    @rule(ordered=st.booleans(), whole=st.booleans())
    def check_times(self, ordered: bool, whole: bool) -> None:
        self._advance()
        wanted = self.subject.unchecked(self.log_end, ordered=ordered)
        if wanted is None:
            waiting = [o for o, m in self.model.items() if m.state is MessageState.SCHEDULED]
            if not ordered:  # All of them are known, and not due.
                assert all(self._time_of(offset) > self._wall_us() for offset in waiting)
            return
        assert self.is_scheduled
        first, last = wanted
        last = last if whole else first
        times = [self.times.get(offset) for offset in range(first, last + 1)]
        self.subject.check(first, pa.array(times, pa.int64()), self._wall_us())
        for offset in range(first, last + 1):
            message = self.model[offset]
            if message.state is MessageState.SCHEDULED and self._time_of(offset) <= self._wall_us():
                message.state = MessageState.AVAILABLE
            if message.state is MessageState.SCHEDULED:
                self.checked.add(offset)

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0, 11.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self._advance()

    @rule(share=st.floats(0, 1))
    def retain(self, share: float) -> None:
        self.log_start += int((self.log_end - self.log_start) * share * share)
        self._advance()
        for offset, message in self.model.items():
            if offset < self.log_start and message.state in (
                MessageState.AVAILABLE,
                MessageState.SCHEDULED,
            ):
                message.state = MessageState.FINISHED

    @rule(limit=st.integers(1, 7), in_flight_max=st.integers(1, 60), ordered=st.booleans())
    def configure(self, limit: int, in_flight_max: int, ordered: bool) -> None:
        self.limit, self.in_flight_max, self.ordered = limit, in_flight_max, ordered

    @rule(messages_max=st.integers(1, 20), alone=st.booleans())
    def select_in_order(self, messages_max: int, alone: bool) -> None:
        self._advance()
        expected = self._expected_next(messages_max, alone=alone)
        if self.subject.unchecked(self.log_end, ordered=True) is None:
            is_ready = self.subject.has_available(self.log_end, self.limit, ordered=True)
            found = self._expected_next(messages_max, alone=True)
            assert is_ready == any(not exhausted for _, exhausted in found)
        self.subject.has_met_limit = False
        picks = self.subject.select(
            self.log_end, messages_max, self.in_flight_max, self.limit, ordered=True, alone=alone
        )
        assert self.subject.has_met_limit == any(exhausted for _, exhausted in expected)
        wanted = [offset for offset, exhausted in expected if not exhausted]
        assert [offset for pick in picks for offset in _offsets(pick)] == wanted
        self._make_pending(picks)

    @rule()
    def select_exhausted(self) -> None:
        self._advance()
        expected = [offset for offset, exhausted in self._expected_next(1) if exhausted]
        if not self.ordered:
            expected = [
                offset
                for offset, message in sorted(self.model.items())
                if message.state is MessageState.AVAILABLE
                and not message.until
                and message.count >= self.limit
            ]
        if not self._number(MessageState.HELD, MessageState.PENDING) or not self.ordered:
            found = self.subject.has_exhausted(self.limit, ordered=self.ordered)
            assert found == bool(expected)
        picks = self.subject.select_exhausted(self.limit, ordered=self.ordered)
        assert [offset for pick in picks for offset in _offsets(pick)] == expected
        self._make_pending(picks)

    @rule(messages_max=st.integers(1, 20))
    def select(self, messages_max: int) -> None:
        self._advance()
        touched = self.subject.frontier
        expected = self._expected(messages_max, touched)
        picks = self.subject.select(self.log_end, messages_max, self.in_flight_max, self.limit)
        got = [offset for pick in picks for offset in _offsets(pick)]
        old = [offset for offset in got if offset < touched]
        assert old == [offset for offset in expected if offset < touched]
        fresh = [offset for offset in got if offset >= touched]
        assert fresh == [offset for offset in expected if offset >= touched]
        self._make_pending(picks)

    @rule(last=st.integers(0, 12), messages_max=st.integers(1, 12))
    @precondition(lambda self: self.pending)
    def extend(self, last: int, messages_max: int) -> None:
        pick = self.pending[0]
        in_flight = self._number(MessageState.HELD, MessageState.PENDING)
        room = min(messages_max, self.in_flight_max - in_flight)
        end = pick.last
        while (
            room > 0
            and end + 1 < self.log_end
            and end < pick.last + last
            and self._may_follow(end + 1, pick)
        ):
            end, room = end + 1, room - 1
        longer = self.subject.extend(
            pick, pick.last + last, self.log_end, messages_max, self.in_flight_max
        )
        assert longer == Pick(pick.first, end, pick.count)
        self.pending.remove(pick)
        self._make_pending([longer])

    @rule(data=st.data())
    @precondition(lambda self: self.pending)
    def grant(self, data: st.DataObject) -> None:
        pick = self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))
        first = data.draw(st.integers(pick.first, pick.last))
        known = data.draw(st.sampled_from([pick.count, pick.count, pick.count + 1]))
        self.leases += 1
        lease = Lease("c", self.leases, "m")
        expected = [
            o for o in range(first, pick.last + 1) if self._state(o) is MessageState.PENDING
        ]
        self.subject.grant(first, pick.last, lease, self.now + LOCK, known + 1)
        for offset in expected:
            self.model[offset] = Message(MessageState.HELD, known + 1, self.now + LOCK, lease)
        if first > pick.first:
            delay = data.draw(st.sampled_from([0.0, 2.0]))
            until = self.now + delay if delay else 0.0
            self.subject.unpick(pick.first, first - 1, pick.count, until)
            for offset in range(pick.first, first):
                if self._state(offset) is MessageState.PENDING:
                    self._free(offset, until)

    @rule(data=st.data(), what=st.sampled_from(["accept", "reject", "release", "renew"]))
    def acknowledge(self, data: st.DataObject, what: str) -> None:
        first = data.draw(st.integers(0, max(0, self.log_end - 1)))
        more = data.draw(st.integers(0, 6))
        lease = Lease("c", data.draw(st.integers(max(0, self.leases - 3), self.leases + 1)), "m")
        if data.draw(st.booleans()):  # Else hardly ever anything that is held.
            held = [o for o, m in self.model.items() if m.state is MessageState.HELD]
            if held:
                first = held[data.draw(st.integers(0, len(held) - 1))]
                found = self.model[first].lease
                assert found is not None
                lease = found
        self._acknowledge(first, first + more, lease, what)

    def _acknowledge(self, first: int, last: int, lease: Lease, what: str) -> None:
        messages = [self.model.get(offset) for offset in range(first, last + 1)]
        held = all(
            message is not None
            and message.state is MessageState.HELD
            and message.lease == lease
            and message.until > self.now
            for message in messages
        )
        assert bool(self.subject.held(first, last, lease, self.now)) == held
        if not held:
            return
        if what in ("accept", "reject"):
            self.subject.finish(first, last)
        elif what == "release":
            self.subject.release(first, last, lease, self.now + 3.0)
        else:
            self.subject.renew(first, last, lease, self.now + 2 * LOCK)
        for offset in range(first, last + 1):
            if what == "release":
                self._free(offset, self.now + 3.0)
            elif what == "renew":
                self.model[offset].until = self.now + 2 * LOCK
            else:
                self.model[offset] = Message(MessageState.FINISHED)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "subject"):
            return
        subject = self.subject
        assert not subject.ranges or self.begun
        if not subject.ranges:
            self.begun = 0  # It is told of the next ones.
        fresh = self.log_end - subject.frontier
        assert fresh >= 0 or self.log_start >= self.log_end
        for state in MessageState:
            expected = self._number(state)
            if state is (MessageState.SCHEDULED if self.is_scheduled else MessageState.AVAILABLE):
                expected -= max(0, fresh)
            elif state is MessageState.FINISHED:
                expected = sum(
                    each.state is state
                    for offset, each in self.model.items()
                    if offset >= subject.start_offset
                )
            assert subject.messages(state) == expected
        unfinished = [o for o, m in self.model.items() if m.state.value <= MessageState.HELD.value]
        assert subject.start_offset == min([*unfinished, subject.frontier])
        before = None
        for first, last, cell in subject.records():
            for offset in range(first, last + 1):
                message = self.model[offset]
                assert message.state is cell.state
                if cell.state in (MessageState.AVAILABLE, MessageState.HELD):
                    assert (message.count, message.lease) == (cell.deliveries, cell.lease)
                    assert message.until == cell.until
            assert before is None or before[0] == first - 1
            assert before is None or before[1] != cell  # Split only where it must.
            before = (last, cell)

    def _begin_ranges(self) -> None:
        self.begun += 1

    def _advance(self) -> None:
        self.subject.advance(self.now, self.log_start, self._wall_us())
        for offset, message in self.model.items():
            if message.state is MessageState.HELD and message.until <= self.now:
                self._free(offset, 0.0)
            elif message.state is MessageState.AVAILABLE and message.until <= self.now:
                message.until = 0.0
            elif offset in self.checked and self._time_of(offset) <= self._wall_us():
                if message.state is MessageState.SCHEDULED:
                    message.state = MessageState.AVAILABLE
                self.checked.discard(offset)

    def _expected(self, messages_max: int, touched: int) -> list[int]:
        """Return the messages of a selection, in order; those at the limit are left."""
        ready = [
            (offset, message)
            for offset, message in sorted(self.model.items())
            if message.state is MessageState.AVAILABLE and not message.until
        ]
        room = min(
            messages_max, self.in_flight_max - self._number(MessageState.HELD, MessageState.PENDING)
        )
        runs: list[tuple[int, list[int]]] = []
        for offset, message in ready:
            new = not runs or runs[-1][0] != message.count or runs[-1][1][-1] != offset - 1
            if new or offset == touched:
                runs.append((message.count, []))
            runs[-1][1].append(offset)
        got: list[int] = []
        for count, offsets in runs:
            if count >= self.limit:
                continue
            throttled = count >= max(2, (self.limit + 1) // 2)
            if room - len(got) <= 0 or (throttled and got):
                break
            taken = offsets[: min(room - len(got), pieces(self.limit, count, len(offsets)))]
            got += taken
            if throttled or len(taken) < len(offsets):
                break  # There is no room for the rest of it, which is older than what follows.
        return got

    def _expected_next(self, messages_max: int, *, alone: bool = True) -> list[tuple[int, bool]]:
        """Return what comes next, where nothing is in flight, and whether it gets a dead letter."""
        if self._number(MessageState.HELD, MessageState.PENDING):
            return []
        left = [
            (offset, message)
            for offset, message in sorted(self.model.items())
            if message.state in (MessageState.AVAILABLE, MessageState.SCHEDULED)
        ]
        exhausted: list[tuple[int, bool]] = []
        for offset, message in left:
            if self._waits(message) or message.count < self.limit:
                break
            exhausted.append((offset, True))
        if exhausted or not left or self._waits(left[0][1]):
            return exhausted
        first, count = left[0][0], left[0][1].count
        run: list[int] = []
        for offset, message in left:
            crossing = first < self.subject.frontier <= offset
            follows = offset == first + len(run) and message.count == count and not crossing
            if not follows or self._waits(message):
                break
            run.append(offset)
        if count >= max(2, (self.limit + 1) // 2) and not alone:
            return []
        room = min(messages_max, self.in_flight_max, pieces(self.limit, count, len(run)))
        return [(offset, False) for offset in run[:room]]

    def _make_pending(self, picks: list[Pick]) -> None:
        for pick in picks:
            for offset in _offsets(pick):
                self.model[offset] = Message(MessageState.PENDING, pick.count)
            self.pending.append(pick)

    def _waits(self, message: Message) -> bool:
        return bool(message.until) or message.state is MessageState.SCHEDULED

    def _wall_us(self) -> int:
        return int(self.now * 1_000_000)

    def _time_of(self, offset: int) -> int:
        return self.times.get(offset) or 0

    def _may_follow(self, offset: int, pick: Pick) -> bool:
        message = self.model[offset]
        crossing = pick.last + 1 < self.subject.frontier <= offset
        return (message.state, message.count, message.until, crossing) == (
            MessageState.AVAILABLE,
            pick.count,
            0.0,
            False,
        )

    def _free(self, offset: int, until: float) -> None:
        count = self.model[offset].count
        passed = offset < self.log_start
        self.model[offset] = (
            Message(MessageState.FINISHED)
            if passed
            else Message(MessageState.AVAILABLE, count, until)
        )

    def _state(self, offset: int) -> MessageState:
        return self.model[offset].state

    def _number(self, *states: MessageState) -> int:
        return sum(message.state in states for message in self.model.values())


def _offsets(pick: Pick) -> range:
    return range(pick.first, pick.last + 1)


TestPartitionAgainstAModel = PartitionMachine.TestCase
TestPartitionAgainstAModel.settings = settings(
    max_examples=examples(8, 300), stateful_step_count=40, phases=[Phase.generate, Phase.shrink]
)
