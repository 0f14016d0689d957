"""Concurrent requests for one key share one call, though callers come, leave and fail."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wings_core.errors import Internal, Unavailable
from wings_core.metadata.remote.deduplicate import CallOutcome, Deduplicate, Waiter
from wings_core.metadata.remote.watches import Retries, Watches
from wings_core.model import Located, Position
from wings_core.partitions import UNPARTITIONED
from wings_core.times import Deadline

LONG = 60.0


class Calls:
    """Calls that end when a test says so."""

    def __init__(self) -> None:
        self.open: dict[int, tuple[str, Callable[[CallOutcome[int]], None]]] = {}
        self.begun = 0
        self.deadlines: list[Deadline] = []
        self.cancelled: list[int] = []
        self.changed = threading.Condition()

    def begin(
        self, key: str, deadline: Deadline, done: Callable[[CallOutcome[int]], None]
    ) -> Callable[[], None]:
        with self.changed:
            number = self.begun
            self.begun += 1
            self.deadlines.append(deadline)
            self.open[number] = (key, done)
            self.changed.notify_all()

        def cancel() -> None:
            if self.open.pop(number, None) is not None:
                self.cancelled.append(number)

        return cancel

    def wait_until_begun(self, calls: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.begun >= calls, LONG)

    def end(self, number: int, outcome: CallOutcome[int]) -> None:
        _, done = self.open.pop(number)
        done(outcome)


def test_a_thousand_requests_share_one_call() -> None:
    calls = Calls()
    shared = Deduplicate(calls.begin)
    got: list[CallOutcome[int]] = []
    for _ in range(1_000):
        shared.join("key", Deadline.never(), got.append)
    assert (calls.begun, len(shared)) == (1, 1)
    calls.end(0, CallOutcome(7))
    assert [outcome.value for outcome in got] == [7] * 1_000
    assert len(shared) == 0


def test_a_blocked_request_leaves_at_its_deadline_and_the_others_get_the_answer() -> None:
    calls = Calls()
    shared = Deduplicate(calls.begin)
    with ThreadPoolExecutor(2) as threads:
        longer = threads.submit(shared.get, "key", Deadline.after(LONG))
        calls.wait_until_begun(1)
        assert shared.get("key", Deadline.after(0.02)) is None
        assert calls.cancelled == []
        calls.end(0, CallOutcome(3))
        assert longer.result(LONG) == 3


def test_the_first_caller_leaves_and_the_call_goes_on_for_the_rest() -> None:
    calls = Calls()
    shared = Deduplicate(calls.begin)
    got: list[CallOutcome[int]] = []
    first = shared.join("key", Deadline.never(), got.append)
    shared.join("key", Deadline.never(), got.append)
    shared.leave(first)
    assert calls.cancelled == []
    calls.end(0, CallOutcome(1))
    assert got == [CallOutcome(1)]


def test_the_last_to_leave_cancels_the_call() -> None:
    calls = Calls()
    shared = Deduplicate(calls.begin)
    waiters = [shared.join("key", Deadline.never(), lambda _: None) for _ in range(3)]
    for waiter in waiters:
        shared.leave(waiter)
    assert (calls.cancelled, len(shared)) == ([0], 0)


def test_a_call_that_ends_early_is_made_again_for_those_with_time_left() -> None:
    calls = Calls()
    shared = Deduplicate(calls.begin)
    short: list[CallOutcome[int]] = []
    longer: list[CallOutcome[int]] = []
    shared.join("key", Deadline.after(-1), short.append)
    for _ in range(5):
        shared.join("key", Deadline.after(LONG), longer.append)
    calls.end(0, CallOutcome())
    assert short == [CallOutcome()]
    assert (longer, calls.begun) == ([], 2)
    assert not calls.deadlines[1].passed
    calls.end(1, CallOutcome(2))
    assert longer == [CallOutcome(2)] * 5


def test_an_error_reaches_who_began_the_call_and_the_rest_try_once_more() -> None:
    calls = Calls()
    shared = Deduplicate(calls.begin)
    error, another = Unavailable("one"), Unavailable("two")
    got: list[list[CallOutcome[int]]] = [[], [], []]
    for outcomes in got:
        shared.join("key", Deadline.never(), outcomes.append)
    calls.end(0, CallOutcome(error=error))
    assert got == [[CallOutcome(error=error)], [], []]
    calls.end(1, CallOutcome(error=another))
    assert got[1:] == [[CallOutcome(error=another)]] * 2
    assert (calls.begun, len(shared)) == (2, 0)


def test_an_error_is_raised_to_a_blocked_request() -> None:
    def begin(
        _key: str, _deadline: Deadline, _done: Callable[[CallOutcome[int]], None]
    ) -> Callable[[], None]:
        raise Unavailable("no connection")

    shared = Deduplicate(begin)
    with pytest.raises(Unavailable, match="no connection"):
        shared.get("key", Deadline.after(LONG))
    assert len(shared) == 0


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.sampled_from("ab")),
        st.tuples(st.just("leave"), st.integers(0, 30)),
        st.tuples(st.sampled_from(["answer", "fail", "early"]), st.integers(0, 30)),
    ),
    max_size=60,
)


@given(STEPS)
def test_whatever_happens_everybody_who_stays_is_answered_once(
    steps: list[tuple[str, str | int]],
) -> None:
    calls = Calls()
    shared = Deduplicate(calls.begin)
    outcomes: dict[int, list[CallOutcome[int]]] = {}
    waiters: dict[int, Waiter[str, int]] = {}
    for kind, argument in steps:
        if kind == "join":
            number = len(outcomes)
            outcomes[number] = []
            key = str(argument)
            waiters[number] = shared.join(key, Deadline.never(), outcomes[number].append)
        elif kind == "leave" and waiters:
            number = sorted(waiters)[int(argument) % len(waiters)]
            before = len(outcomes[number])
            shared.leave(waiters.pop(number))
            assert len(outcomes[number]) == before
        elif kind != "leave" and calls.open:
            number = sorted(calls.open)[int(argument) % len(calls.open)]
            ends: dict[str, CallOutcome[int]] = {
                "answer": CallOutcome(number),
                "fail": CallOutcome(error=Unavailable("")),
                "early": CallOutcome(),
            }
            outcome = ends[kind]
            calls.end(number, outcome)
        keys = [key for key, _ in calls.open.values()]
        assert len(keys) == len(set(keys)) == len(shared), "one call for each key"
        assert all(len(got) <= 1 for got in outcomes.values())
    while calls.open:
        calls.end(next(iter(calls.open)), CallOutcome(0))
    assert len(shared) == 0, "nothing is kept once answered"
    assert all(len(outcomes[number]) == 1 for number in waiters), "no waiter is forgotten"


def test_a_watch_that_ends_leaves_the_call_that_is_under_way() -> None:
    """Also where its first call was answered, and the next begun, before it had returned."""
    cancelled: list[int] = []
    begun: list[int] = []

    def begin(
        key: Position, deadline: Deadline, done: Callable[[CallOutcome[Located]], None]
    ) -> Callable[[], None]:
        del deadline
        begun.append(key.offset)
        if key.offset == 0:
            done(CallOutcome(Located((), 0, 7)))
        return lambda: cancelled.append(key.offset)

    class AtOnce(Retries):
        def after(self, seconds: float, function: Callable[[], None]) -> None:
            del seconds
            function()

    locations: Deduplicate[Position, Located] = Deduplicate(begin)
    heard: list[None] = []
    watches = Watches(locations, AtOnce())
    position = Position("topic", UNPARTITIONED, 0)
    with watches.watch([position], lambda: heard.append(None)):
        assert begun == [0, 7]
    assert heard == [None]
    assert (cancelled[-1:], len(locations)) == ([7], 0)


def test_a_call_that_cannot_be_begun_ends_for_all_that_joined_it() -> None:
    begun, joined = threading.Event(), threading.Event()

    def begin(*_: object) -> Callable[[], None]:
        begun.set()
        assert joined.wait(LONG)
        raise RuntimeError("can't start new thread")

    shared: Deduplicate[str, int] = Deduplicate(begin)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(shared.get, "key", Deadline.after(LONG))
        assert begun.wait(LONG)
        outcomes: list[CallOutcome[int]] = []
        shared.join("key", Deadline.after(LONG), outcomes.append)
        joined.set()
        assert isinstance(first.exception(LONG), Internal)
    assert [type(each.error) for each in outcomes] == [Internal]
    assert len(shared) == 0
