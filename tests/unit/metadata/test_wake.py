"""Threads that wait for the same commit: each is woken, whatever the others do."""

import threading
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from random import Random

import pytest
from waiting import until

from wings_core.errors import ResourceExhausted
from wings_core.metadata.waiting import Waiters, Wake, in_turn
from wings_core.model import Position
from wings_core.partitions import UNPARTITIONED, Partition

LONG = 60.0
MANY = 160


def notify(wakes: list[Wake]) -> None:
    with in_turn():
        for wake in wakes:
            wake.notify()
            assert not wake.is_set()


def test_outside_of_a_turn_it_is_set_at_once() -> None:
    wake = Wake()
    wake.notify()
    assert wake.is_set()
    assert wake.wait(LONG)


def test_all_that_wait_are_woken() -> None:
    wakes = [Wake() for _ in range(MANY)]
    with ThreadPoolExecutor(MANY) as threads:
        waiting = [threads.submit(wake.wait, LONG) for wake in wakes]
        notify(wakes)
        assert all(each.result() for each in waiting)


def test_what_a_thread_does_once_it_is_woken_holds_up_no_other() -> None:
    """Each goes on only when all have been woken."""
    wakes = [Wake() for _ in range(MANY)]
    all_are_woken = threading.Barrier(MANY)

    def follow(wake: Wake) -> bool:
        is_woken = wake.wait(LONG)
        all_are_woken.wait(LONG)
        return is_woken

    with ThreadPoolExecutor(MANY) as threads:
        following = [threads.submit(follow, wake) for wake in wakes]
        notify(wakes)
        assert all(each.result() for each in following)


def test_those_for_which_no_thread_waits_hold_up_no_other() -> None:
    """Each is set all the same: its thread may be about to wait."""
    wakes = [Wake() for _ in range(MANY)]
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(wakes[-1].wait, LONG)
        notify(wakes)
        assert waiting.result()
    assert all(wake.is_set() for wake in wakes)


def test_a_thread_whose_time_is_over_wakes_the_next() -> None:
    """It was to wake others when it left for a reason of its own."""
    first, second = Wake(), Wake()
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(each.wait, LONG) for each in (first, second)]
        queue = deque([second])
        until(lambda: first.set_before(queue))
        assert all(each.result() for each in waiting)


def test_two_threads_that_wait_for_one_wake_are_both_woken_and_so_is_the_next() -> None:
    shared, last = Wake(), Wake()
    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(each.wait, LONG) for each in (shared, shared, last)]
        until(lambda: shared.set_before(deque([last])))
        assert all(each.result() for each in waiting)


def test_no_wake_up_is_lost_among_threads_that_come_and_go() -> None:
    """Threads look, wait a random while, and look again, until they have seen the last commit."""
    commits, threads_count = 200, 40
    committed = 0
    wakes = [Wake() for _ in range(threads_count)]
    given_time = threading.Semaphore(0)

    def follow(number: int) -> None:
        random, wake = Random(number), wakes[number]
        given_time.release()
        while True:
            wake.clear()
            if committed == commits:
                return
            seconds = random.choice([0.0, 0.001, 0.01, LONG])
            assert wake.wait(seconds) or seconds < LONG

    with ThreadPoolExecutor(threads_count) as threads:
        following = [threads.submit(follow, number) for number in range(threads_count)]
        for _ in following:
            given_time.acquire()
        for _ in range(commits):
            committed += 1
            with in_turn():
                for wake in wakes:
                    wake.notify()
        for each in following:
            each.result()


# The waiters of one process. ######################################################################


def test_a_commit_calls_only_those_who_wait_for_its_partition() -> None:
    waiters = Waiters()
    called: list[int] = []
    with ExitStack() as stack:
        for number in range(2_000):
            position = Position("topic", Partition(str(number)), 0)

            def call(number: int = number) -> None:
                called.append(number)

            stack.enter_context(waiters.registered([position], call))
        waiters.notify({("topic", Partition("7")): 1, ("other", Partition("8")): 1})
    assert called == [7]


class Name(str):
    """A text to which weak references can refer."""


def test_nothing_is_kept_of_waiters_that_ended() -> None:
    waiters = Waiters()
    topic = Name("topic")
    positions = [Position(topic, Partition(str(number)), 0) for number in range(3)]
    with (
        waiters.registered([*positions, positions[0]], lambda: None),
        waiters.registered(positions[:1], lambda: None),
    ):
        assert waiters.watches == 2
    assert waiters.watches == 0
    kept = weakref.ref(topic)
    del topic, positions
    assert kept() is None


def test_a_waiter_too_many_is_refused_until_another_ends() -> None:
    waiters = Waiters(watches_max=2)
    position = Position("topic", UNPARTITIONED, 0)
    calls: list[None] = []

    def call() -> None:
        calls.append(None)

    with waiters.registered([position], call):
        with (
            waiters.registered([position], call),
            pytest.raises(ResourceExhausted),
            waiters.registered([position], call),
        ):
            pass
        with waiters.registered([position], call):
            waiters.notify({("topic", UNPARTITIONED): 1})
    assert len(calls) == 2
    assert waiters.watches == 0
