"""How every `OffsetRegistry` commits: offsets, timestamps, expected offsets, streams."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from fix_metadata import (
    HOUR,
    NOON,
    SECOND,
    A,
    B,
    C,
    MetadataUnderTest,
    accepted,
    batch_of,
    offsets_of,
)
from tables import each

from wings_core.errors import InvalidArgument, OffsetMismatch, TopicNotFound
from wings_core.model import (
    Accepted,
    AssignedRange,
    CommitBatch,
    ExpectedOffset,
    Rejected,
)
from wings_core.partitions import UNPARTITIONED, Partition

HUGE = 1 << 80
"""An offset that no log can have, and that no database can store."""


def test_the_first_message_of_a_partition_has_offset_0(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    assert metadata.push(topic, rows=3) == AssignedRange(UNPARTITIONED, 0, 2, NOON)
    assert metadata.push(topic, rows=1) == AssignedRange(UNPARTITIONED, 3, 3, NOON)


def test_partitions_count_their_offsets_apart(metadata: MetadataUnderTest) -> None:
    topic, other = metadata.create_topic("key"), metadata.create_topic("key")
    metadata.push(topic, 5, A)
    assert metadata.push(topic, 1, B).start_offset == 0
    assert metadata.push(other, 1, A).start_offset == 0


def test_a_batch_gets_a_range_in_each_partition_in_the_order_of_its_pages(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic("key")
    metadata.push(topic, 7, A)
    (result,) = metadata.registry.commit([batch_of(topic, {C: 2, A: 3, B: 1})])
    assert result == Accepted(
        (
            AssignedRange(C, 0, 1, NOON),
            AssignedRange(A, 7, 9, NOON),
            AssignedRange(B, 0, 0, NOON),
        )
    )


def test_batches_of_one_flush_follow_each_other(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    results = metadata.registry.commit(
        [batch_of(topic, {A: 2}), batch_of(topic, {B: 1, A: 3}), batch_of(topic, {A: 1})]
    )
    starts = [accepted(result)[-1].start_offset for result in results]
    assert starts == [0, 2, 5]


def test_an_empty_batch_is_accepted_and_gets_nothing(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    assert metadata.registry.commit([batch_of(topic, {})]) == [Accepted(())]
    assert metadata.registry.partition_states(topic.uuid) == []


def test_a_flush_of_nothing_is_nothing(metadata: MetadataUnderTest) -> None:
    assert metadata.registry.commit([]) == []


@pytest.mark.parametrize("count", [4_000, pytest.param(10_000, marks=pytest.mark.soak)])
def test_a_wide_batch_is_committed_whole(metadata: MetadataUnderTest, count: int) -> None:
    topic = metadata.create_topic("key")
    partitions = {Partition(f'"{number:05}"'): 1 for number in range(count)}
    for start_offset in (0, 1):
        (result,) = metadata.registry.commit([batch_of(topic, partitions)])
        assert {entry.start_offset for entry in accepted(result)} == {start_offset}
    states = metadata.registry.partition_states(topic.uuid)
    assert [state.partition for state in states] == list(partitions)
    assert {state.next_offset for state in states} == {2}


@each("count", [49, 50, 51, 101])
def test_each_partition_of_a_batch_gets_its_rows_however_many_there_are(
    metadata: MetadataUnderTest, count: int
) -> None:
    # SQLite inserts fifty by one statement, and what is left one by one.
    topic = metadata.create_topic("key")
    partitions = {Partition(f'"{number:05}"'): 1 + number for number in range(count)}
    metadata.registry.commit([batch_of(topic, partitions)])
    for state in metadata.registry.partition_states(topic.uuid):
        rows = partitions.pop(state.partition)
        located = metadata.registry.locate(topic.uuid, state.partition, 0, rows)
        (page,) = located.locations
        assert (page.start_offset, page.end_offset, state.next_offset) == (0, rows - 1, rows)
    assert not partitions


def test_a_wide_batch_goes_on_where_partitions_stood_before_a_restart(
    metadata: MetadataUnderTest,
) -> None:
    topic, other = metadata.create_topic("key"), metadata.create_topic("key")
    known = {Partition(str(number)): 1 + number for number in range(40)}
    for created in (topic, other):
        metadata.registry.commit([batch_of(created, known)])
    metadata.reopen()
    wide = {Partition(str(number)): 1 for number in range(20, 60)}
    first, second = metadata.registry.commit([batch_of(topic, wide), batch_of(topic, wide)])
    starts = [known.get(partition, 0) for partition in wide]
    assert [entry.start_offset for entry in accepted(first)] == starts
    assert [entry.start_offset for entry in accepted(second)] == [start + 1 for start in starts]
    (third,) = metadata.registry.commit([batch_of(other, wide)])
    assert [entry.start_offset for entry in accepted(third)] == starts


def test_concurrent_committers_leave_no_gaps(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")

    def commit(rows: int) -> list[AssignedRange]:
        got: list[AssignedRange] = []
        for _ in range(20):
            (result,) = metadata.registry.commit([batch_of(topic, {A: rows, B: 1})])
            got += accepted(result)
        return got

    with ThreadPoolExecutor(6) as threads:
        ranges = [entry for got in threads.map(commit, range(1, 7)) for entry in got]
    for partition in (A, B):
        committed = sorted(
            (entry.start_offset, entry.end_offset)
            for entry in ranges
            if entry.partition == partition
        )
        assert offsets_of(metadata.registry, topic, partition) == committed
        next_offset = 0
        for start_offset, end_offset in committed:
            assert start_offset == next_offset
            next_offset = end_offset + 1
        assert metadata.registry.partition_state(topic.uuid, partition).next_offset == next_offset


def test_the_timestamp_is_the_time_of_commit_unless_given(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    metadata.clock.time = NOON + 5
    assert metadata.push(topic).timestamp == NOON + 5
    assert metadata.push(topic, timestamp=NOON + 7).timestamp == NOON + 7


def test_an_earlier_timestamp_is_raised_to_the_last_of_each_partition(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic("key")
    metadata.push(topic, 1, A, timestamp=NOON + SECOND)
    batch = batch_of(topic, {A: 1, B: 1}, timestamp=-SECOND)
    committed = accepted(metadata.registry.commit([batch])[0])
    assert [entry.timestamp for entry in committed] == [NOON + SECOND, -SECOND]
    located = metadata.registry.locate(topic.uuid, A, 1, 1)
    assert located.locations[0].timestamp == NOON + SECOND


def test_timestamps_do_not_decrease_when_the_clock_is_set_back(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    metadata.push(topic)
    metadata.reopen()
    metadata.clock.time -= HOUR
    assert metadata.push(topic).timestamp == NOON


def test_a_timestamp_more_than_an_hour_ahead_is_rejected(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    with pytest.raises(InvalidArgument, match="3600 s"):
        metadata.push(topic, timestamp=NOON + HOUR + 1)
    with pytest.raises(InvalidArgument):
        metadata.push(topic, timestamp=HUGE)
    assert metadata.push(topic, timestamp=NOON + HOUR).timestamp == NOON + HOUR


def test_an_expected_offset_that_is_the_next_commits(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    batches = [
        batch_of(topic, {A: 2}, expected=(A, 0)),
        batch_of(topic, {A: 1, B: 1}, expected=(A, 2)),
        batch_of(topic, {}, expected=(A, 3)),
    ]
    results = metadata.registry.commit(batches)
    assert all(isinstance(result, Accepted) for result in results)


@each("offset", [0, 1, 3, HUGE])
def test_another_expected_offset_is_rejected_with_the_actual_one(
    metadata: MetadataUnderTest, offset: int
) -> None:
    topic = metadata.create_topic("key")
    metadata.push(topic, 2, A)
    (result,) = metadata.registry.commit([batch_of(topic, {A: 1}, expected=(A, offset))])
    assert isinstance(result, Rejected)
    assert isinstance(result.error, OffsetMismatch)
    assert result.error.facts == {"next_offset": 2, "partition": "a"}
    assert metadata.push(topic, 1, A).start_offset == 2


def test_of_two_that_expect_the_same_offset_in_a_flush_the_first_commits(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    first, second = metadata.registry.commit(
        [
            batch_of(topic, {UNPARTITIONED: 1}, stream=stream, expected=(UNPARTITIONED, 0))
            for stream in (1, 2)
        ]
    )
    assert isinstance(first, Accepted)
    assert isinstance(second, Rejected)
    assert second.error.facts == {"next_offset": 1, "partition": None}


def test_a_rejected_batch_leaves_nothing_in_any_partition(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    metadata.registry.commit(
        [
            batch_of(topic, {A: 1, B: 1}, expected=(C, 1), sequence=("p", 0), folio="refused"),
            batch_of(topic, {B: 1}, stream=1),
        ]
    )
    states = metadata.registry.partition_states(topic.uuid)
    assert [(state.partition, state.next_offset) for state in states] == [(B, 1)]
    assert metadata.registry.live_folios() == {"folio-1"}


def test_a_rejected_batch_rejects_the_later_ones_of_its_stream_alone(
    metadata: MetadataUnderTest,
) -> None:
    topic, other = metadata.create_topic(), metadata.create_topic()
    good = {UNPARTITIONED: 1}
    results = metadata.registry.commit(
        [
            batch_of(topic, good, stream=1),
            batch_of(topic, good, stream=1, expected=(UNPARTITIONED, 9)),
            batch_of(topic, good, stream=2),
            batch_of(other, good, stream=1),
            batch_of(topic, good, stream=1, sequence=("p", 0)),
        ]
    )
    assert [isinstance(result, Accepted) for result in results] == [
        True,
        False,
        True,
        False,
        False,
    ]
    errors = {result.error for result in results if isinstance(result, Rejected)}
    assert len(errors) == 1
    # The next flush knows nothing of it.
    assert isinstance(metadata.registry.commit([batch_of(topic, good, stream=1)])[0], Accepted)


def test_a_commit_to_a_deleted_topic_is_rejected_beside_good_ones(
    metadata: MetadataUnderTest,
) -> None:
    deleted, topic = metadata.create_topic(), metadata.create_topic()
    metadata.push(deleted)
    metadata.admin.delete_topic(deleted.name)
    first, second, third = metadata.registry.commit(
        [
            batch_of(topic, {UNPARTITIONED: 1}, stream=1),
            batch_of(deleted, {UNPARTITIONED: 1}, stream=2),
            batch_of(topic, {UNPARTITIONED: 1}, stream=3),
        ]
    )
    assert isinstance(second, Rejected)
    assert isinstance(second.error, TopicNotFound)
    assert accepted(first)[0].start_offset == 0
    assert accepted(third)[0].start_offset == 1


def test_expected_offsets_of_a_partition_never_written_to_are_0(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic("key")
    batch = CommitBatch(0, topic.uuid, (), expected=ExpectedOffset(A, 0))
    assert metadata.registry.commit([batch]) == [Accepted(())]
