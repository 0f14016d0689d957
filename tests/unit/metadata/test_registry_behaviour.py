"""What every `OffsetRegistry` says of the log: where pages lie, where partitions stand."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from fix_metadata import (
    NOON,
    SECOND,
    A,
    B,
    MetadataUnderTest,
    accepted,
    batch_of,
    offsets_of,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from property_examples import examples
from tables import each

from wings_core.errors import OffsetOutOfRange, TopicNotFound
from wings_core.metadata.interfaces import LOCATIONS_MAX, OffsetRegistry
from wings_core.model import (
    CommitBatch,
    Located,
    Location,
    PageAddress,
    PartitionState,
    StoredPage,
    Topic,
)
from wings_core.partitions import UNPARTITIONED, Partition

HUGE = 1 << 80
"""An offset that no log can have, and that no database can store."""

QUESTIONS: dict[str, Callable[[OffsetRegistry, Topic], object]] = {
    "locate": lambda registry, topic: registry.locate(topic.uuid, UNPARTITIONED, 0, 1),
    "partition_states": lambda registry, topic: registry.partition_states(topic.uuid),
    "partition_state": lambda registry, topic: registry.partition_state(topic.uuid, UNPARTITIONED),
    "offset_for_timestamp": lambda registry, topic: registry.offset_for_timestamp(
        topic.uuid, UNPARTITIONED, 0
    ),
    "commit_offsets": lambda registry, topic: registry.commit_offsets(
        "reader", [(topic, UNPARTITIONED, 0)]
    ),
}
"""How a topic is asked for by its UUID."""


def test_committed_pages_are_located_where_they_lie(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    addresses = [PageAddress("folio-1", 0, 100), PageAddress("folio-2", 5_000_000_000, 64)]
    for address in addresses:
        page = StoredPage(UNPARTITIONED, 10, address)
        accepted(metadata.registry.commit([CommitBatch(0, topic.uuid, (page,))])[0])
        metadata.clock.time += SECOND
    expected = Located(
        (
            Location(0, 9, NOON, addresses[0]),
            Location(10, 19, NOON + SECOND, addresses[1]),
        ),
        log_start_offset=0,
        log_end_offset=20,
    )
    assert metadata.registry.locate(topic.uuid, UNPARTITIONED, 0, 100) == expected
    metadata.reopen()
    assert metadata.registry.locate(topic.uuid, UNPARTITIONED, 0, 100) == expected


@each(
    ("offset", "messages_max", "starts"),
    [
        (0, 1, [0]),
        (9, 1, [0]),
        (10, 1, [10]),
        (0, 10, [0]),
        (0, 11, [0, 10]),
        (5, 5, [0]),
        (5, 6, [0, 10]),
        (29, 1_000, [20]),
        (12, 1_000, [10, 20]),
        (0, HUGE, [0, 10, 20]),
        (30, 1, []),
        (31, 1, []),
        (HUGE, 1, []),
    ],
)
def test_locate_returns_the_pages_from_an_offset_until_they_hold_enough(
    metadata: MetadataUnderTest, offset: int, messages_max: int, starts: list[int]
) -> None:
    topic = metadata.create_topic()
    for _ in range(3):
        metadata.push(topic, rows=10)
    located = metadata.registry.locate(topic.uuid, UNPARTITIONED, offset, messages_max)
    assert [location.start_offset for location in located.locations] == starts
    assert (located.log_start_offset, located.log_end_offset) == (0, 30)


def test_neighbouring_slices_of_a_page_are_one_location(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    page = PageAddress("folio-1", 64, 1_000)

    def push(*slices: tuple[Partition, int, int], timestamp: int | None = None) -> CommitBatch:
        pages = tuple(
            StoredPage(to, count, page, first, 100 * count) for to, first, count in slices
        )
        return CommitBatch(0, topic.uuid, pages, timestamp=timestamp)

    metadata.registry.commit(
        [
            push((A, 0, 2)),
            push((A, 2, 1), (B, 3, 2)),
            push((B, 5, 1), timestamp=NOON + 5),
            push((B, 7, 1), timestamp=NOON + 5),  # Row 6 was refused.
            push((B, 8, 1), timestamp=NOON + 5),
        ]
    )
    late = NOON + 5

    def located() -> list[tuple[Location, ...]]:
        return [metadata.registry.locate(topic.uuid, to, 0, 100).locations for to in (A, B)]

    expected = [
        (Location(0, 2, NOON, page, first_row=0, slice_bytes=300),),
        (
            Location(0, 1, NOON, page, first_row=3, slice_bytes=200),
            Location(2, 2, late, page, first_row=5, slice_bytes=100),
            Location(3, 4, late, page, first_row=7, slice_bytes=200),
        ),
    ]
    assert located() == expected
    metadata.reopen()
    assert located() == expected
    assert [state.bytes for state in metadata.registry.partition_states(topic.uuid)] == [300, 500]
    dropped = metadata.opened.maintenance.expire(
        topic.uuid, B, age_us=None, bytes_kept=300, pages_max=100
    )
    assert (dropped.log_start_offset, dropped.bytes) == (2, 200)


def test_locate_returns_at_most_so_many_pages(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 1})] * (LOCATIONS_MAX + 1))
    located = metadata.registry.locate(topic.uuid, UNPARTITIONED, 0, HUGE)
    assert len(located.locations) == LOCATIONS_MAX
    assert located.log_end_offset == LOCATIONS_MAX + 1


def test_locate_in_a_partition_never_written_to_finds_nothing(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    metadata.push(topic, 5, A)
    assert metadata.registry.locate(topic.uuid, B, 0, 10) == Located((), 0, 0)
    assert metadata.registry.locate(topic.uuid, B, 7, 10) == Located((), 0, 0)


def test_locate_below_the_start_of_the_log_is_out_of_range(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    for offset, partition in ((-1, UNPARTITIONED), (-HUGE, UNPARTITIONED), (-1, A)):
        with pytest.raises(OffsetOutOfRange) as caught:
            metadata.registry.locate(topic.uuid, partition, offset, 1)
        assert caught.value.facts == {"log_start_offset": 0}


def test_a_locate_that_stopped_early_does_not_hide_later_commits(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    for end in range(1, 20):
        metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 1})])
        located = metadata.registry.locate(topic.uuid, UNPARTITIONED, 0, 1)
        assert (len(located.locations), located.log_end_offset) == (1, end)


@pytest.mark.hypothesis
def test_readers_beside_a_committer_always_see_whole_commits(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    commits = examples(60, 200)

    def commit() -> None:
        for _ in range(commits):
            metadata.registry.commit([batch_of(topic, {A: 2, B: 2})])

    def read() -> None:
        next_offset = 0
        while next_offset < 2 * commits:
            states = metadata.registry.partition_states(topic.uuid)
            assert len({state.next_offset for state in states}) <= 1, "half of a commit"
            located = metadata.registry.locate(topic.uuid, A, next_offset, 1_000)
            if located.locations:
                assert located.locations[0].start_offset == next_offset
                assert located.locations[-1].end_offset == located.log_end_offset - 1
                next_offset = located.log_end_offset

    with ThreadPoolExecutor(6) as threads:
        for future in [threads.submit(work) for work in (commit, *[read] * 5)]:
            future.result()


@each("method", QUESTIONS)
def test_a_deleted_topic_is_not_found_by_anything(metadata: MetadataUnderTest, method: str) -> None:
    ask = QUESTIONS[method]
    topic = metadata.create_topic()
    metadata.push(topic)
    ask(metadata.registry, topic)
    metadata.admin.delete_topic(topic.name)
    for _ in range(2):
        with pytest.raises(TopicNotFound):
            ask(metadata.registry, topic)
        while metadata.registry.purge(10):
            pass


def test_an_unpartitioned_topic_has_its_partition_from_creation_on(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    empty = PartitionState(UNPARTITIONED, 0, 0, 0, None)
    assert metadata.registry.partition_states(topic.uuid) == [empty]
    assert metadata.registry.partition_state(topic.uuid, UNPARTITIONED) == empty


def test_a_partition_is_listed_from_its_first_commit_on(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    assert metadata.registry.partition_states(topic.uuid) == []
    assert metadata.registry.partition_state(topic.uuid, A) == PartitionState(A, 0, 0, 0, None)
    metadata.push(topic, 2, A)
    metadata.push(topic, 3, A, timestamp=NOON + 1)
    expected = PartitionState(A, 0, 5, 200, NOON + 1)
    assert metadata.registry.partition_states(topic.uuid) == [expected]
    assert metadata.registry.partition_state(topic.uuid, A) == expected
    metadata.reopen()
    assert metadata.registry.partition_states(topic.uuid) == [expected]


def test_partitions_are_listed_by_value(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("n")
    values = [10, -5, 9, 0, 18_446_744_073_709_551_615]
    for value in values:
        metadata.push(topic, 1, Partition(str(value)))
    states = metadata.registry.partition_states(topic.uuid)
    assert [state.partition for state in states] == [str(value) for value in sorted(values)]


def test_any_text_can_be_a_partition(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    partitions = [Partition(text) for text in ('""', '"\\u0000"', '"日本"', '"A"', '"a"', '"a "')]
    for rows, partition in enumerate(partitions, 1):
        metadata.push(topic, rows, partition)
    ends = [
        metadata.registry.partition_state(topic.uuid, partition).next_offset
        for partition in partitions
    ]
    assert ends == [1, 2, 3, 4, 5, 6]


@each(
    ("timestamp", "offset"),
    [
        (-HUGE, 0),
        (NOON, 0),
        (NOON + 1, 10),
        (NOON + 10, 10),
        (NOON + 11, 30),
        (NOON + 20, 30),
        (NOON + 21, 40),
        (HUGE, 40),
    ],
)
def test_the_offset_for_a_time_is_the_first_at_or_after_it(
    metadata: MetadataUnderTest, timestamp: int, offset: int
) -> None:
    topic = metadata.create_topic()
    for given_timestamp in (NOON, NOON + 10, NOON + 10, NOON + 20):
        metadata.push(topic, rows=10, timestamp=given_timestamp)
    assert metadata.registry.offset_for_timestamp(topic.uuid, UNPARTITIONED, timestamp) == offset


def test_the_offset_for_a_time_in_an_empty_partition_is_0(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    assert metadata.registry.offset_for_timestamp(topic.uuid, A, NOON) == 0


@settings(
    max_examples=examples(10, 30), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    pages=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), max_size=40),
    asked=st.lists(st.integers(-2, 60), min_size=1, max_size=10),
)
def test_the_offset_for_a_time_is_that_of_a_linear_search(
    metadata: MetadataUnderTest, pages: list[tuple[int, int]], asked: list[int]
) -> None:
    topic = metadata.create_topic()
    timestamps: list[int] = []
    later = 0
    for rows, step in pages:
        later += step
        metadata.push(topic, rows=rows, timestamp=NOON + later)
        timestamps += [NOON + later] * rows
    for ahead in asked:
        expected = next(
            (offset for offset, time in enumerate(timestamps) if time >= NOON + ahead),
            len(timestamps),
        )
        found = metadata.registry.offset_for_timestamp(topic.uuid, UNPARTITIONED, NOON + ahead)
        assert found == expected


def test_everything_is_there_after_a_restart(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    for _ in range(3):
        metadata.registry.commit([batch_of(topic, {A: 2, B: 1})])
    before = metadata.registry.partition_states(topic.uuid)
    metadata.reopen()
    assert metadata.registry.partition_states(topic.uuid) == before
    assert offsets_of(metadata.registry, topic, A) == [(0, 1), (2, 3), (4, 5)]
    assert metadata.push(topic, 1, A).start_offset == 6
