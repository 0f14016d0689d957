"""The budget that all partitions of one fetch share."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wings_core.errors import ResourceExhausted
from wings_core.fetch.state import FetchState, Waits
from wings_core.metadata.waiting import Wake
from wings_core.times import Deadline


def state(min_messages: int = 1, max_messages: int = 10, partitions: int = 1) -> FetchState:
    return FetchState(Deadline.after(60), min_messages, max_messages, partitions)


@pytest.mark.parametrize(
    ("max_messages", "partitions", "rows", "granted"),
    [(10, 1, 100, 10), (10, 1, 3, 3), (10, 3, 100, 3), (2, 5, 100, 1)],
    ids=["all of it", "the rows that are there", "a partition's share", "one row at least"],
)
def test_a_reservation_is_at_most_the_rows_and_the_share_of_a_partition(
    max_messages: int, partitions: int, rows: int, granted: int
) -> None:
    assert state(max_messages=max_messages, partitions=partitions).reserve(rows) == granted


def test_the_share_of_partitions_without_rows_and_undelivered_rows_go_back() -> None:
    shared = state(max_messages=10, partitions=3)
    shared.release(shared.reserve(100), 1)
    shared.recount(-2)
    assert shared.reserve(100) == 9
    shared.release(9, 9)
    assert shared.full
    assert (shared.delivered, shared.reserve(1)) == (10, 0)


def test_reserving_waits_for_a_reservation_that_may_come_back() -> None:
    shared = state(max_messages=2, partitions=1)
    first = shared.reserve(2)
    granted: list[int] = []
    second = threading.Thread(target=lambda: granted.append(shared.reserve(2)))
    second.start()
    shared.release(first, 1)
    second.join(timeout=60)
    assert granted == [1]


def test_enough_wakes_every_waiter_once_min_messages_are_delivered() -> None:
    shared = state(min_messages=3, max_messages=10)
    wake = Wake()
    shared.wake_when_enough(wake)
    shared.release(shared.reserve(2), 2)
    assert not wake.is_set()
    shared.release(shared.reserve(1), 1)
    assert wake.is_set()
    late = Wake()
    shared.wake_when_enough(late)
    assert late.is_set()


@pytest.mark.parametrize("rows", [0, -1])
def test_reserving_nothing_is_a_mistake_of_ours(rows: int) -> None:
    with pytest.raises(AssertionError):
        state().reserve(rows)


@given(
    available=st.lists(st.integers(0, 50), min_size=1, max_size=6),
    max_messages=st.integers(1, 120),
    data=st.data(),
)
def test_the_sum_reaches_the_maximum_exactly_when_the_rows_are_there(
    available: list[int], max_messages: int, data: st.DataObject
) -> None:
    shared = state(max_messages=max_messages, partitions=len(available))
    left = list(available)
    gone: set[int] = set()
    while not shared.full and len(gone) < len(left):
        index = data.draw(st.sampled_from([i for i in range(len(left)) if i not in gone]))
        if left[index] == 0:
            gone.add(index)
            shared.recount(-1)
            continue
        granted = shared.reserve(left[index])
        delivered = data.draw(st.integers(0, granted))
        dropped = data.draw(st.integers(0, granted - delivered))  # By a filter.
        left[index] -= max(1, delivered + dropped)
        left[index] = max(0, left[index])
        shared.release(granted, delivered)
        assert shared.delivered <= max_messages
    assert shared.full or all(rows == 0 for rows in left)


@given(st.integers(1, 5), st.integers(1, 60), st.integers(0, 40))
def test_concurrent_partitions_never_exceed_the_maximum(
    partitions: int, max_messages: int, rows_each: int
) -> None:
    shared = state(max_messages=max_messages, partitions=partitions)

    def read() -> None:
        left = rows_each
        while left and not shared.full:
            granted = shared.reserve(left)
            shared.release(granted, granted)
            left -= granted
        shared.recount(-1)

    threads = [threading.Thread(target=read) for _ in range(partitions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert shared.delivered == min(max_messages, partitions * rows_each)


# The readers that wait.


def test_no_more_than_the_bound_wait_at_once() -> None:
    waits = Waits(2)
    with waits.one(), waits.one():
        assert waits.waiting == 2
        with pytest.raises(ResourceExhausted), waits.one():
            pass
        assert waits.waiting == 2
    with waits.one():
        assert waits.waiting == 1
    assert (waits.waiting, waits.begun) == (0, 3)


def test_a_wait_that_fails_is_over() -> None:
    waits = Waits(1)
    with pytest.raises(ZeroDivisionError), waits.one():
        raise ZeroDivisionError
    assert waits.waiting == 0
