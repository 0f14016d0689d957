import threading

import pytest

from wings_client._threads import start_thread


def run_one() -> int | None:
    """Run a call, and return the number of its thread."""
    seen: list[int | None] = []
    done = threading.Event()

    def call() -> None:
        seen.append(threading.get_native_id())
        done.set()

    start_thread(call, "test-call")
    assert done.wait(20)
    return seen[0]


def test_a_thread_is_used_again() -> None:
    seen = [run_one() for _ in range(50)]
    assert len(set(seen)) < 50


def test_calls_that_wait_have_a_thread_each() -> None:
    together = threading.Barrier(11)

    def meet() -> None:
        together.wait(20)

    for _ in range(10):
        start_thread(meet, "test-wait")
    together.wait(20)


def test_a_call_that_raises_is_told_of_and_keeps_no_other_from_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[BaseException | None] = []
    is_told = threading.Event()

    def hear(args: threading.ExceptHookArgs) -> None:
        told.append(args.exc_value)
        is_told.set()

    monkeypatch.setattr(threading, "excepthook", hear)
    error = KeyError("the call's own")

    def fail() -> None:
        raise error

    start_thread(fail, "test-fail")
    assert is_told.wait(20)
    for _ in range(20):
        run_one()
    assert told == [error]
