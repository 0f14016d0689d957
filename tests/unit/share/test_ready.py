"""The index of ready partitions and waiting members: who is woken for what."""

import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager

import pytest
from fix_metadata import A, B
from fix_share import HandClock

from wings_core.errors import Unavailable
from wings_core.model import PartitionState
from wings_core.partitions import Partition
from wings_core.share.coordinator.partitions import LISTED_SECONDS, STALE_MAX, ReadyPartitions

Hear = Callable[[Mapping[Partition, int] | None], None]


class Topic:
    """A topic whose commits are told of by hand."""

    def __init__(self) -> None:
        self.ends: dict[Partition, int] = {}
        self.watches: list[Hear] = []
        self.lists = 0
        self.clock = HandClock()
        self.sooner = 0
        self.index = ReadyPartitions(self.clock.now, self.states, self.watched, self.hear_of_sooner)
        self.woken: list[str] = []
        self.stack = ExitStack()

    def states(self) -> list[PartitionState]:
        self.lists += 1
        return [PartitionState(each, 0, end, 0, None) for each, end in self.ends.items()]

    def watched(self, hear: Hear) -> AbstractContextManager[None]:
        @contextmanager
        def watching() -> Generator[None]:
            self.watches.append(hear)
            yield
            self.watches.remove(hear)

        return watching()

    def hear_of_sooner(self) -> None:
        self.sooner += 1

    def commit(self, partition: Partition, messages: int = 1) -> list[str]:
        """Commit messages; return the members that were woken."""
        self.ends[partition] = self.ends.get(partition, 0) + messages
        for hear in list(self.watches):
            hear({partition: self.ends[partition]})
        return self.taken()

    def wait(self, *names: str, messages: int = 1, partition: Partition | None = None) -> None:
        for name in names:
            waiting = self.index.waiting(
                partition, messages, lambda name=name: self.woken.append(name)
            )
            self.stack.enter_context(waiting)

    def taken(self) -> list[str]:
        woken, self.woken = self.woken, []
        return woken

    def ready(self, partition: Partition | None = None) -> list[Partition]:
        return [each for each, _ in self.index.peek(partition, 100)]

    def empty(self, partition: Partition, again: float | None = None) -> None:
        ((_, generation),) = self.index.peek(partition, 1)
        self.index.looked_at(partition, generation, self.ends[partition], again)


def test_partitions_are_listed_once_and_told_of_afterwards() -> None:
    topic = Topic()
    topic.ends = {A: 3}
    topic.index.look()
    topic.index.look()
    assert (topic.ready(), topic.lists) == ([A], 1)
    topic.commit(B)
    assert sorted(topic.ready()) == sorted([A, B])
    assert topic.ready(B) == [B]


def test_what_is_told_of_while_partitions_are_listed_is_not_forgotten() -> None:
    topic = Topic()
    topic.ends = {A: 1}
    listed = topic.states

    def states() -> list[PartitionState]:
        found = listed()
        topic.commit(A)  # It is told of after the list was made, and before that is known here.
        return found

    topic.index = ReadyPartitions(topic.clock.now, states, topic.watched, topic.hear_of_sooner)
    topic.index.look()
    ((partition, generation),) = topic.index.peek(A, 1)
    assert topic.index.known_state(A) == PartitionState(A, 0, 2, 0, None)
    topic.index.looked_at(partition, generation, 1, None)
    assert topic.ready() == [A]


def test_something_may_be_ready_until_it_was_looked_for_and_once_it_is_due() -> None:
    topic = Topic()
    assert topic.index.has_ready
    topic.index.look()
    assert not topic.index.has_ready
    topic.commit(A)
    assert topic.index.has_ready
    topic.empty(A, again=2.0)
    assert not topic.index.has_ready
    topic.clock.time += 2.0
    assert topic.index.has_ready
    topic.empty(A)
    assert not topic.index.has_ready
    topic.index.wake_all()
    assert topic.index.has_ready


def test_where_a_partition_stands_is_known_for_a_moment_with_what_is_told_of_it() -> None:
    topic = Topic()
    assert topic.index.known_state(A) is None
    topic.index.note(PartitionState(A, 1, 3, 0, None))
    assert topic.index.known_state(A) == PartitionState(A, 1, 3, 0, None)
    topic.ends[A] = 3
    topic.commit(A, 2)
    assert topic.index.known_state(A) == PartitionState(A, 1, 5, 0, None)
    topic.clock.time += 2 * LISTED_SECONDS
    assert topic.index.known_state(A) is None


def test_a_push_wakes_as_many_as_it_has_work_for_the_longest_waiting_first() -> None:
    topic = Topic()
    topic.wait("one", "two", "three")
    assert topic.commit(A) == ["one"]
    assert topic.commit(A) == ["two"]
    assert topic.commit(A, 2) == ["three", "one"]
    assert sorted(topic.commit(A, 50)) == ["one", "three", "two"]


def test_members_that_take_many_are_woken_for_many() -> None:
    topic = Topic()
    topic.wait("one", "two", messages=100)
    assert topic.commit(A, 100) == ["one"]
    assert sorted(topic.commit(A, 101)) == ["one", "two"]


def test_a_member_of_one_partition_is_woken_for_that_alone() -> None:
    topic = Topic()
    topic.wait("of b", partition=B)
    topic.wait("any")
    assert topic.commit(A) == ["any"]
    assert topic.commit(B) == ["of b"]


def test_one_that_took_some_wakes_the_next_while_more_is_ready() -> None:
    topic = Topic()
    topic.commit(A)
    topic.wait("one", "two")
    topic.index.wake_next()
    assert topic.taken() == ["one"]
    topic.empty(A)
    topic.index.wake_next()
    assert topic.taken() == []


def test_what_comes_while_a_partition_is_looked_at_is_not_missed() -> None:
    topic = Topic()
    topic.commit(A)
    ((_, generation),) = topic.index.peek(None, 1)
    topic.commit(A)
    topic.index.looked_at(A, generation, 1, None)
    assert topic.ready() == [A]
    # It was looked up before a commit that was told of before it was peeked at.
    ((_, generation),) = topic.index.peek(None, 1)
    topic.index.looked_at(A, generation, 1, None)
    assert topic.ready() == [A]
    topic.empty(A)
    assert topic.ready() == []


def test_a_lock_that_ends_makes_its_partition_ready_and_wakes_one() -> None:
    topic = Topic()
    topic.commit(A)
    topic.wait("one", "two")
    topic.empty(A, 30.0)
    assert topic.index.wake_due() == 30.0
    assert (topic.ready(), topic.taken()) == ([], [])
    topic.clock.time += 30
    assert topic.index.wake_due() is None
    assert (topic.ready(), topic.taken()) == ([A], ["one"])


def test_a_member_finds_what_has_come_due_and_is_being_looked_at() -> None:
    topic = Topic()
    polled: list[list[Partition]] = []

    def look(partition: Partition, end: int) -> None:
        assert (partition, end, topic.index.has_ready) == (A, 1, True)
        if not polled:
            polled.append(topic.ready())

    topic.index = ReadyPartitions(
        topic.clock.now, topic.states, topic.watched, topic.hear_of_sooner, look
    )
    topic.index.look()
    topic.commit(A)
    topic.empty(A, 30.0)
    topic.clock.time += 30
    assert topic.index.wake_due() is None
    assert polled == [[A]]
    # The member that found it tells what is there; until then it is ready.
    assert topic.ready() == [A]
    topic.empty(A, 5.0)
    assert topic.index.wake_due() == 5.0
    topic.clock.time += 5
    assert topic.index.wake_due() is None
    assert (topic.ready(), topic.index.has_ready) == ([], False)


def test_the_earliest_time_counts() -> None:
    topic = Topic()
    topic.commit(A)
    topic.empty(A, 30.0)
    assert topic.sooner == 1
    topic.index.changed(A)
    topic.empty(A, 5.0)
    assert topic.sooner == 2
    topic.index.changed(A)
    topic.empty(A, 60.0)
    topic.commit(B)
    topic.empty(B, 60.0)
    assert topic.sooner == 2
    assert topic.index.wake_due() == 5.0
    topic.clock.time += 5
    assert topic.ready() == [A]


def test_after_a_change_of_the_group_all_is_looked_at_again() -> None:
    topic = Topic()
    topic.ends = {A: 3}
    topic.index.look()
    topic.empty(A)
    topic.wait("one", "two")
    topic.index.wake_all()
    assert topic.taken() == ["one", "two"]
    topic.index.look()
    assert topic.ready() == [A]


def test_a_closed_index_hears_nothing() -> None:
    topic = Topic()
    topic.wait("one")
    topic.index.close()
    assert (topic.taken(), topic.watches) == (["one"], [])


def test_a_look_at_one_partition_wakes_for_others_that_have_become_due() -> None:
    topic = Topic()
    for partition in (A, B):
        topic.commit(partition)
        topic.empty(partition, 5.0)
    topic.wait("of a", partition=A)
    topic.wait("any")
    topic.clock.time += 5
    assert topic.ready(B) == [B]
    assert topic.taken() == ["of a"]
    assert topic.index.wake_due() is None
    assert sorted(topic.ready()) == sorted([A, B])


def test_times_that_were_overtaken_are_forgotten() -> None:
    topic = Topic()
    topic.commit(A)
    for _ in range(4 * STALE_MAX):
        topic.empty(A, 3_600.0)  # Held for an hour,
        topic.index.changed(A)
        topic.empty(A, 0.1)  # and released for a moment.
        topic.clock.time += 0.1
        assert topic.ready() == [A]
    assert len(topic.index._due) <= 2 * STALE_MAX  # pyright: ignore[reportPrivateUsage]


def test_a_member_that_was_chosen_has_been_called_when_it_leaves() -> None:
    topic = Topic()
    order: list[str] = []

    def leave_first() -> None:
        leaving.close()
        order.append("woken")

    leaving = ExitStack()
    with topic.index.waiting(None, 1, leave_first):
        leaving.enter_context(topic.index.waiting(None, 1, lambda: order.append("other")))
        topic.commit(A, 2)  # Chooses both, and the first to be called lets the other leave.
    assert order[:2] == ["other", "woken"]


def test_a_member_of_one_partition_that_finds_none_wakes_one_for_what_else_is_ready() -> None:
    topic = Topic()
    topic.commit(A)
    topic.commit(B)
    topic.wait("of a", partition=A)
    topic.wait("any")
    topic.index.wake_next(besides=A)
    assert topic.taken() == ["any"]
    topic.empty(B)
    topic.index.wake_next(besides=A)
    assert topic.taken() == []


def test_what_another_member_took_out_is_ready_again_for_one_that_finds_some() -> None:
    topic = Topic()
    topic.commit(A)
    ((_, generation),) = topic.index.peek(None, 1)
    topic.empty(A)
    topic.index.looked_at(A, generation, 1, 0.0)
    assert topic.ready() == [A]


def test_what_becomes_ready_anew_during_a_look_is_for_who_is_called_for_it() -> None:
    topic = Topic()
    topic.commit(A)
    topic.commit(B)
    topic.empty(A, 1.0)
    topic.wait("me")
    topic.clock.time += 1.0
    assert [each for each, _ in topic.index.peek(None, 100, {A})] == [B]
    assert topic.taken() == ["me"]
    assert topic.index.peek(A, 1, {A}) == []
    assert topic.ready() == [A, B]


@pytest.mark.parametrize("error", [None, Unavailable("no metadata")])
def test_who_comes_while_the_partitions_are_listed_waits_for_the_list(
    error: Unavailable | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic()
    topic.ends = {A: 3}
    listing, go = threading.Event(), threading.Event()
    coming, lock = threading.Semaphore(0), threading.Lock()
    states = topic.states

    class OneByOne(AbstractContextManager[None]):
        def __enter__(self) -> None:
            coming.release()
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    def slow() -> list[PartitionState]:
        listing.set()
        assert go.wait(30)
        found = states()
        if error is not None:
            raise error
        return found

    monkeypatch.setattr(topic.index, "_listed", slow)
    monkeypatch.setattr(topic.index, "_listing", OneByOne())
    found: list[object] = []

    def look() -> None:
        try:
            topic.index.look()
            found.append(topic.ready())
        except Unavailable as raised:
            found.append(raised.message)

    threads = [threading.Thread(target=look) for _ in range(3)]
    threads[0].start()
    assert listing.wait(30)
    for thread in threads[1:]:
        thread.start()
    for _ in range(3):
        assert coming.acquire(timeout=30)
    go.set()
    for thread in threads:
        thread.join(30)
    assert found == [[A] if error is None else error.message] * 3
    assert topic.lists == 1


def test_who_comes_to_wait_at_an_index_that_was_closed_is_called() -> None:
    topic = Topic()
    topic.wait("one")
    topic.index.close()
    topic.wait("two")
    assert topic.taken() == ["one", "two"]
