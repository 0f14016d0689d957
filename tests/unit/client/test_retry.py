import threading

import pytest

from wings_client._cancellation import Cancellation
from wings_client._consumer_offsets import patiently
from wings_client._errors import Connection
from wings_client._retry import Backoff, Retry, repeat_call
from wings_client._transport import Transport
from wings_core.errors import InvalidArgument, TopicNotFound, Unavailable, WingsError

FAST = Retry(attempts=4, delay=0.0, delay_max=0.0)


class Flaky:
    """Fails a number of times, then returns how often it was called."""

    def __init__(self, failures: int, error: WingsError) -> None:
        self.calls = 0
        self._failures = failures
        self._error = error

    def __call__(self, seconds: float) -> int:
        assert seconds > 0
        self.calls += 1
        if self.calls <= self._failures:
            raise self._error
        return self.calls


def run(flaky: Flaky, *, repeatable: bool = True, timeout: float = 10.0) -> int:
    return repeat_call(flaky, FAST, timeout, threading.Event(), repeatable=repeatable)


def test_a_failure_that_passes_is_tried_again_up_to_the_bound() -> None:
    assert run(Flaky(3, Unavailable("x"))) == 4
    too_often = Flaky(4, Unavailable("x"))
    with pytest.raises(Unavailable):
        run(too_often)
    assert too_often.calls == FAST.attempts


def test_a_refusal_is_not_tried_again() -> None:
    refused = Flaky(1, TopicNotFound("x"))
    with pytest.raises(TopicNotFound):
        run(refused)
    assert refused.calls == 1


def test_what_may_have_been_carried_out_is_not_done_twice() -> None:
    lost = Flaky(1, Unavailable("x", connection=Connection.LOST.value))
    with pytest.raises(Unavailable):
        run(lost, repeatable=False)
    assert lost.calls == 1
    assert run(Flaky(1, Unavailable("x", connection="unreachable")), repeatable=False) == 2


def test_a_pause_that_would_outlast_the_timeout_is_not_begun() -> None:
    slow = Retry(attempts=9, delay=60.0, delay_max=60.0)
    flaky = Flaky(1, Unavailable("x"))
    with pytest.raises(Unavailable):
        repeat_call(flaky, slow, 1.0, threading.Event(), repeatable=True)
    assert flaky.calls == 1


def test_closing_the_client_ends_a_pause() -> None:
    slow = Retry(attempts=9, delay=60.0, delay_max=60.0)
    closed = threading.Event()
    closed.set()
    with pytest.raises(Unavailable):
        repeat_call(Flaky(1, Unavailable("x")), slow, 1000.0, closed, repeatable=True)


def test_pauses_double_with_jitter_up_to_the_longest() -> None:
    backoff = Backoff(Retry(delay=1.0, delay_max=5.0))
    delays = [backoff.next_delay() for _ in range(6)]
    for delay, nominal in zip(delays, (1, 2, 4, 5, 5, 5), strict=True):
        assert nominal / 2 <= delay <= nominal
    backoff.reset()
    assert backoff.next_delay() <= 1.0


@pytest.mark.parametrize(
    "wrong", [{"attempts": 0}, {"delay": -1}, {"delay": 3.0}, {"reconnect_seconds": -1}], ids=str
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument, match="not a retry policy"):
        Retry(**wrong)  # pyright: ignore[reportArgumentType]


# Calls that are made again for as long as a lost connection is to be waited for. ##################

UNREACHABLE = Unavailable("nobody is there", connection=Connection.UNREACHABLE.value)


def transport(delay: float) -> Transport:
    return Transport("grpc://127.0.0.1:1", 5.0, Retry(delay=delay, delay_max=60.0))


def test_a_call_that_fails_is_made_again() -> None:
    failures = [UNREACHABLE] * 3

    def call() -> str:
        if failures:
            raise failures.pop()
        return "done"

    assert patiently(transport(0.0), call) == "done"


def test_a_cancelled_call_is_not_made_again() -> None:
    cancellation = Cancellation()
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        cancellation.cancel()
        raise UNREACHABLE

    with pytest.raises(Unavailable, match="nobody is there"):
        cancellation.run(lambda: patiently(transport(60.0), call))
    with pytest.raises(Unavailable, match="closed"):
        cancellation.run(lambda: patiently(transport(60.0), call))
    assert calls == 1
