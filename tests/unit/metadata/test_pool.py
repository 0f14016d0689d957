"""The pool that connections are lent from."""

import signal
import threading
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from wings_core.errors import Unavailable
from wings_core.metadata.pool import FairPool

LONG = 20.0


@pytest.fixture
def threads() -> Generator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


def until_waiting(pool: FairPool[str], count: int) -> None:
    """Return when so many wait; the test's own time-out is the bound."""
    pause = threading.Event()
    while pool.waiting < count:
        pause.wait(0.001)


def test_what_was_given_back_last_is_lent_first() -> None:
    pool = FairPool("a thing", ["one", "two"], LONG)
    first, second = pool.take(), pool.take()
    assert {first, second} == {"one", "two"}
    pool.give_back(first)
    pool.give_back(second)
    assert pool.take() == second


def test_who_waits_longest_is_served_first(threads: ThreadPoolExecutor) -> None:
    pool = FairPool("a thing", ["one"], LONG)
    pool.take()
    served: list[int] = []

    def take(number: int) -> None:
        item = pool.take()
        served.append(number)
        pool.give_back(item)

    waiting: list[Future[None]] = []
    for number in range(5):
        waiting.append(threads.submit(take, number))
        until_waiting(pool, number + 1)
    pool.give_back("one")
    for future in waiting:
        future.result(LONG)
    assert served == [0, 1, 2, 3, 4]


def test_whoever_gives_back_and_takes_again_stands_behind_those_who_wait(
    threads: ThreadPoolExecutor,
) -> None:
    pool = FairPool("a thing", ["one"], LONG)
    item = pool.take()
    other = threads.submit(pool.take)
    until_waiting(pool, 1)
    pool.give_back(item)
    again = threads.submit(pool.take)
    assert other.result(LONG) == "one"
    until_waiting(pool, 1)
    assert not again.done()
    pool.give_back("one")
    assert again.result(LONG) == "one"


def test_a_wait_is_refused_after_its_bound_and_harms_nobody() -> None:
    pool = FairPool("a thing", ["one"], 0.01)
    item = pool.take()
    with pytest.raises(Unavailable, match=r"a thing did not come free in 0\.01 s"):
        pool.take()
    assert pool.waiting == 0
    pool.give_back(item)
    assert pool.take() == item


def test_a_wait_that_is_interrupted_leaves_the_queue(threads: ThreadPoolExecutor) -> None:
    pool = FairPool("a thing", ["one"], LONG)
    item = pool.take()
    main = threading.get_ident()

    def interrupt() -> None:
        until_waiting(pool, 1)
        signal.pthread_kill(main, signal.SIGINT)

    threads.submit(interrupt)
    with pytest.raises(KeyboardInterrupt):
        pool.take()
    assert pool.waiting == 0
    pool.give_back(item)
    assert pool.take() == item


def test_closing_refuses_those_who_wait_and_those_who_come(threads: ThreadPoolExecutor) -> None:
    pool = FairPool("a thing", ["one", "two"], LONG)
    lent = [pool.take(), pool.take()]
    waiting = threads.submit(pool.take)
    until_waiting(pool, 1)
    closing = threads.submit(pool.close)
    with pytest.raises(Unavailable, match="closed"):
        waiting.result(LONG)
    with pytest.raises(Unavailable, match="closed"):
        pool.take()
    for item in lent:
        pool.give_back(item)
    assert sorted(closing.result(LONG)) == ["one", "two"]
    assert pool.close() == []


def test_closing_leaves_out_what_is_not_given_back() -> None:
    pool = FairPool("a thing", ["one", "two"], 0.01)
    lent = pool.take()
    assert pool.close() == [{"one": "two", "two": "one"}[lent]]
