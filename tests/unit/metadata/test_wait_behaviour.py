"""How every `OffsetRegistry` waits: for many positions at once, and without losing a wake-up."""

import threading
import time
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from fix_metadata import A, B, C, MetadataUnderTest, accepted, batch_of
from property_examples import examples

from wings_core.errors import TopicNotFound
from wings_core.metadata.waiting import Wake
from wings_core.model import Position, Topic
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.times import Deadline

LONG = 60.0
"""Seconds; a wait that should have been woken fails the test when it lasts this long."""


@pytest.fixture
def threads() -> Generator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as executor:
        yield executor


def at(topic: Topic, partition: Partition = UNPARTITIONED, offset: int = 0) -> Position:
    return Position(topic.uuid, partition, offset)


def wait(metadata: MetadataUnderTest, *positions: Position) -> bool:
    """Wait for the positions; tell whether the wait was woken."""
    wake = Wake()
    metadata.registry.wait(positions, Deadline.after(LONG), wake)
    return wake.is_set()


class Calls:
    """Counts calls, and lets a test wait for a number of them."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()

    def __call__(self) -> None:
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    @property
    def count(self) -> int:
        return self._count

    def reach(self, count: int, metadata: MetadataUnderTest) -> None:
        """Wait until it was called so often; exactly that, unless calls come over a network."""
        with self._changed:
            reached = self._changed.wait_for(lambda: self._count >= count, LONG)
            assert reached, f"it was called {self._count} times in {LONG} s, not {count}"
        assert self._count == count or metadata.across_a_network


def waiting(
    metadata: MetadataUnderTest, threads: ThreadPoolExecutor, *positions: Position
) -> Future[bool]:
    """Return a wait that has begun on another thread, and has looked at the log."""
    looked = threading.Event()

    def run() -> bool:
        wake = Wake()
        # `watch` has registered and looked when its block begins, as `wait` has when it blocks.
        with metadata.registry.watch(positions, wake.set):
            looked.set()
            return wake.wait(LONG)

    future = threads.submit(run)
    assert looked.wait(LONG)
    return future


def test_a_wait_for_what_is_there_returns_at_once(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    metadata.push(topic, 5, A)
    assert wait(metadata, at(topic, A, 0))
    assert wait(metadata, at(topic, A, 4))
    assert wait(metadata, at(topic, B, 0), at(topic, A, 4))


def test_a_wait_ends_at_the_deadline(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    metadata.push(topic, 5, A)
    wake = Wake()
    before = time.monotonic()
    positions = [at(topic, A, 5), at(topic, B)]
    metadata.registry.wait(positions, Deadline.after(0.05), wake)
    assert time.monotonic() - before >= 0.05
    assert not wake.is_set()


def test_a_wait_whose_deadline_has_passed_returns_at_once(metadata: MetadataUnderTest) -> None:
    wake = Wake()
    metadata.registry.wait([at(metadata.create_topic())], Deadline.after(-1), wake)
    assert not wake.is_set()


@pytest.mark.parametrize("deadline", ["never", "in the year 9999"])
def test_a_wait_without_an_end_in_sight_ends_when_woken_by_somebody_else(
    metadata: MetadataUnderTest, threads: ThreadPoolExecutor, deadline: str
) -> None:
    topic = metadata.create_topic()
    wake = Wake()
    far = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp()) * 1_000_000
    until = Deadline.never() if deadline == "never" else Deadline.at_timestamp(far)
    future = threads.submit(metadata.registry.wait, [at(topic)], until, wake)
    with pytest.raises(TimeoutError):
        future.result(0.05)  # It waits, rather than failing to express so long a time.
    wake.set()
    future.result(LONG)


def test_a_wait_whose_wake_is_set_already_returns_at_once(
    metadata: MetadataUnderTest, threads: ThreadPoolExecutor
) -> None:
    wake = Wake()
    wake.set()
    positions = [at(metadata.create_topic())]
    threads.submit(metadata.registry.wait, positions, Deadline.never(), wake).result(LONG)


def test_a_wait_is_woken_by_a_commit(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    metadata.push(topic)
    wake = Wake()
    waiter = threading.Thread(
        target=metadata.registry.wait, args=([at(topic, offset=1)], Deadline.after(LONG), wake)
    )
    waiter.start()
    metadata.push(topic)
    waiter.join(LONG)
    assert wake.is_set()


def test_a_wait_is_woken_by_the_first_commit_to_a_partition(
    metadata: MetadataUnderTest, threads: ThreadPoolExecutor
) -> None:
    topic = metadata.create_topic("key")
    future = waiting(metadata, threads, at(topic, A))
    metadata.push(topic, 1, A)
    assert future.result(LONG)


def test_a_wait_for_many_positions_is_woken_by_a_commit_to_any(
    metadata: MetadataUnderTest, threads: ThreadPoolExecutor
) -> None:
    topic, other = metadata.create_topic("key"), metadata.create_topic()
    positions = [at(topic, A), at(topic, B), at(topic, C), at(other)]
    future = waiting(metadata, threads, *positions)
    metadata.push(other)
    assert future.result(LONG)


def test_a_commit_wakes_all_who_wait_for_its_partition(
    metadata: MetadataUnderTest, threads: ThreadPoolExecutor
) -> None:
    topic = metadata.create_topic()
    futures = [waiting(metadata, threads, at(topic)) for _ in range(10)]
    metadata.push(topic)
    assert all(future.result(LONG) for future in futures)


def test_a_wait_is_woken_by_the_deletion_of_one_of_its_topics(
    metadata: MetadataUnderTest, threads: ThreadPoolExecutor
) -> None:
    topic, other = metadata.create_topic("key"), metadata.create_topic()
    future = waiting(metadata, threads, at(other), at(topic, A), at(topic, B))
    metadata.admin.delete_topic(topic.name)
    assert future.result(LONG)


def test_a_wait_for_a_deleted_topic_returns_at_once(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    metadata.admin.delete_topic(topic.name)
    assert wait(metadata, at(topic))
    with pytest.raises(TopicNotFound):
        metadata.registry.locate(topic.uuid, UNPARTITIONED, 0, 1)


@pytest.mark.hypothesis
def test_no_commit_between_a_look_and_a_wait_is_lost(
    metadata: MetadataUnderTest, threads: ThreadPoolExecutor
) -> None:
    """A reader that looks and waits in turn, as the contract says, hears of every commit."""
    topic = metadata.create_topic()
    commits = examples(40, 300)
    caught_up = threading.Semaphore(0)

    def read() -> int:
        wake = Wake()
        offset = 0
        while offset < commits:
            wake.clear()
            located = metadata.registry.locate(topic.uuid, UNPARTITIONED, offset, commits)
            if located.locations:
                offset = located.log_end_offset
                caught_up.release()
                continue
            started = time.monotonic()
            metadata.registry.wait([at(topic, offset=offset)], Deadline.after(LONG), wake)
            assert time.monotonic() - started < LONG, "a wake-up was lost"
        return offset

    readers = [threads.submit(read) for _ in range(4)]
    for _ in range(commits):
        metadata.push(topic)
        for _ in readers:  # The next is no help to one that missed this.
            assert caught_up.acquire(timeout=2 * LONG), "a wake-up was lost"
    assert [reader.result(2 * LONG) for reader in readers] == [commits] * 4


def test_a_watch_calls_once_for_each_commit_however_many_positions_it_wrote_to(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic("key")
    calls = Calls()
    with metadata.registry.watch([at(topic, A), at(topic, B), at(topic, A)], calls):
        assert calls.count == 0
        accepted(metadata.registry.commit([batch_of(topic, {A: 1, B: 1, C: 1})] * 3)[0])
        calls.reach(1, metadata)
        metadata.push(topic, 1, B)
        calls.reach(2, metadata)


def test_a_watch_calls_at_once_where_there_is_data(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    metadata.push(topic, 1, B)
    calls = Calls()
    with metadata.registry.watch([at(topic, A), at(topic, B)], calls):
        calls.reach(1, metadata)


def test_a_watch_hears_nothing_of_other_partitions_topics_and_refused_batches(
    metadata: MetadataUnderTest,
) -> None:
    topic, other = metadata.create_topic("key"), metadata.create_topic("key")
    calls = Calls()
    with metadata.registry.watch([at(topic, A)], calls):
        metadata.push(topic, 1, B)
        metadata.push(other, 1, A)
        metadata.registry.commit([batch_of(topic, {A: 1}, expected=(A, 5))])
        metadata.registry.commit([batch_of(topic, {}, sequence=("p", 0))])
        metadata.admin.delete_topic(other.name)
        assert calls.count == 0


def test_a_watch_past_the_end_calls_when_its_offset_is_there(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    calls = Calls()
    with metadata.registry.watch([at(topic, offset=3)], calls):
        metadata.push(topic, rows=3)
        assert calls.count == 0
        metadata.push(topic, rows=1)
        calls.reach(1, metadata)


@pytest.mark.parametrize("offsets", [(9, 0), (0, 9)])
def test_a_watch_of_one_partition_at_two_offsets_calls_at_the_earlier(
    metadata: MetadataUnderTest, offsets: tuple[int, int]
) -> None:
    topic = metadata.create_topic()
    calls = Calls()
    with metadata.registry.watch([at(topic, offset=offset) for offset in offsets], calls):
        metadata.push(topic)
        calls.reach(1, metadata)


def test_a_watch_that_ended_is_not_called_any_more(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    calls, others = Calls(), Calls()
    with metadata.registry.watch([at(topic)], others):
        with metadata.registry.watch([at(topic)], calls):
            pass
        metadata.push(topic)
        others.reach(1, metadata)
    assert calls.count == 0


def test_a_commit_is_visible_when_the_callback_runs(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    called = Calls()
    with metadata.registry.watch([at(topic)], called), ThreadPoolExecutor(1) as looking:
        # Not from the callback, which must be quick: over a network, a look is a call.
        looks = looking.submit(called.reach, 1, metadata)
        metadata.push(topic, rows=2)
        looks.result(LONG)
        assert metadata.registry.locate(topic.uuid, UNPARTITIONED, 0, 100).log_end_offset == 2


def test_a_callback_that_fails_harms_neither_the_commit_nor_the_others(
    metadata: MetadataUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    topic = metadata.create_topic()
    calls = Calls()

    def fail() -> None:
        raise RuntimeError("closed")

    with metadata.registry.watch([at(topic)], fail), metadata.registry.watch([at(topic)], calls):
        assert metadata.push(topic).start_offset == 0
        calls.reach(1, metadata)
    assert "callback failed" in caplog.text
