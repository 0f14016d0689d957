"""The pool that connections are lent from."""

import signal
import threading
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from wings_core.errors import Unavailable
from wings_core.metadata.store import database as pools
from wings_core.metadata.store.database import FairPool

LONG = 60.0


@pytest.fixture
def threads() -> Generator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


def until_waiting(pool: FairPool[str], count: int) -> None:
    """Return when so many wait; the test's own time-out is the bound."""
    pause = threading.Event()
    while pool.waiting < count:
        pause.wait(0.001)


def test_the_item_released_last_is_acquired_first() -> None:
    pool = FairPool("a thing", ["one", "two"], LONG)
    first, second = pool.acquire(), pool.acquire()
    assert {first, second} == {"one", "two"}
    pool.release(first)
    pool.release(second)
    assert pool.acquire() == second


def test_the_caller_that_waits_longest_is_served_first(threads: ThreadPoolExecutor) -> None:
    pool = FairPool("a thing", ["one"], LONG)
    pool.acquire()
    served: list[int] = []

    def acquire(number: int) -> None:
        item = pool.acquire()
        served.append(number)
        pool.release(item)

    waiting: list[Future[None]] = []
    for number in range(5):
        waiting.append(threads.submit(acquire, number))
        until_waiting(pool, number + 1)
    pool.release("one")
    for future in waiting:
        future.result(LONG)
    assert served == [0, 1, 2, 3, 4]


def test_a_caller_that_releases_and_acquires_again_queues_behind_the_waiting(
    threads: ThreadPoolExecutor,
) -> None:
    pool = FairPool("a thing", ["one"], LONG)
    item = pool.acquire()
    other = threads.submit(pool.acquire)
    until_waiting(pool, 1)
    pool.release(item)
    again = threads.submit(pool.acquire)
    assert other.result(LONG) == "one"
    until_waiting(pool, 1)
    assert not again.done()
    pool.release("one")
    assert again.result(LONG) == "one"


def test_a_wait_is_refused_after_its_bound_and_harms_nobody() -> None:
    pool = FairPool("a thing", ["one"], 0.01)
    item = pool.acquire()
    with pytest.raises(Unavailable, match=r"a thing did not come free in 0\.01 s"):
        pool.acquire()
    assert pool.waiting == 0
    pool.release(item)
    assert pool.acquire() == item


def test_a_wait_that_is_interrupted_leaves_the_queue(threads: ThreadPoolExecutor) -> None:
    pool = FairPool("a thing", ["one"], LONG)
    item = pool.acquire()
    main, interrupted = threading.get_ident(), threading.Event()

    def handle(*_: object) -> None:
        if pool.waiting and not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    def interrupt() -> None:
        # Not once: Python does not notice a signal that comes just before a lock is waited for.
        while not interrupted.wait(0.001):
            signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        interrupting = threads.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            pool.acquire()
        interrupting.result(LONG)
    finally:
        interrupted.set()
        signal.signal(signal.SIGUSR1, before)
    assert pool.waiting == 0
    pool.release(item)
    assert pool.acquire() == item


def test_a_wait_that_is_interrupted_as_it_begins_leaves_the_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted(deque[Any]):
        def append(self, x: Any, /) -> None:
            super().append(x)
            raise KeyboardInterrupt

    monkeypatch.setattr(pools, "deque", Interrupted)
    pool = FairPool("a thing", ["one"], LONG)
    item = pool.acquire()
    with pytest.raises(KeyboardInterrupt):
        pool.acquire()
    assert pool.waiting == 0
    pool.release(item)
    assert pool.acquire() == item


def test_closing_refuses_those_who_wait_and_those_who_come(threads: ThreadPoolExecutor) -> None:
    pool = FairPool("a thing", ["one", "two"], LONG)
    lent = [pool.acquire(), pool.acquire()]
    waiting = threads.submit(pool.acquire)
    until_waiting(pool, 1)
    closing = threads.submit(pool.close)
    with pytest.raises(Unavailable, match="closed"):
        waiting.result(LONG)
    with pytest.raises(Unavailable, match="closed"):
        pool.acquire()
    for item in lent:
        pool.release(item)
    assert sorted(closing.result(LONG)) == ["one", "two"]
    assert pool.close() == []


def test_closing_leaves_out_what_is_not_released() -> None:
    pool = FairPool("a thing", ["one", "two"], 0.01)
    lent = pool.acquire()
    assert pool.close() == [{"one": "two", "two": "one"}[lent]]
