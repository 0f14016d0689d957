"""The waiters of one process."""

import weakref
from contextlib import ExitStack

import pytest

from wings_core.errors import ResourceExhausted
from wings_core.metadata.waiting import Waiters
from wings_core.model import Position
from wings_core.partitions import UNPARTITIONED, Partition


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
