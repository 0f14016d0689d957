"""How every `OffsetRegistry` makes producers idempotent."""

from collections import Counter
from dataclasses import replace

import pytest
from fix_metadata import (
    DAY,
    HOUR,
    NOON,
    SECOND,
    A,
    B,
    MetadataUnderTest,
    accepted,
    batch_of,
    every_store,
    offsets_of,
)
from tables import each

from wings_core.errors import InvalidArgument, OutOfOrderSequence, PublishFenced
from wings_core.model import (
    Accepted,
    AssignedRange,
    CommitBatch,
    CommitResult,
    PageAddress,
    PartitionSequence,
    Rejected,
    SeriesResults,
    StagedBatch,
    StageEntry,
    StoredPage,
    Topic,
    shares,
)
from wings_core.partitions import UNPARTITIONED, Partition


def push(metadata: MetadataUnderTest, topic: Topic, sequence: int, rows: int = 1) -> CommitResult:
    """Commit a batch of producer p in a flush of its own."""
    batch = batch_of(topic, {UNPARTITIONED: rows}, sequence=("p", sequence))
    return metadata.registry.commit([batch])[0]


def check_refused(result: CommitResult, *, sequence: int, expected: int) -> None:
    assert isinstance(result, Rejected)
    assert isinstance(result.error, OutOfOrderSequence)
    assert result.error.facts == {"expected_sequence": expected, "sequence": sequence}


def test_sequences_count_up_from_0(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    assert [accepted(push(metadata, topic, number))[0].start_offset for number in range(3)] == [
        0,
        1,
        2,
    ]


@each("sequence", [1, 7, 1 << 80, -1])
def test_a_producer_that_does_not_begin_at_0_is_refused(
    metadata: MetadataUnderTest, sequence: int
) -> None:
    topic = metadata.create_topic()
    check_refused(push(metadata, topic, sequence), sequence=sequence, expected=0)


def test_a_gap_is_refused_and_does_not_use_the_sequence(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    push(metadata, topic, 0)
    check_refused(push(metadata, topic, 2), sequence=2, expected=1)
    assert accepted(push(metadata, topic, 1))[0].start_offset == 1


def test_a_repeat_is_answered_with_the_first_result(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    batch = batch_of(topic, {B: 2, A: 1}, sequence=("p", 0), timestamp=NOON - SECOND)
    (first,) = metadata.registry.commit([batch])
    metadata.clock.time += DAY
    for _ in range(2):
        again = metadata.registry.commit([batch])
        assert again == [Accepted(accepted(first), replayed=True)]
        metadata.reopen()
    assert offsets_of(metadata.registry, topic, B) == [(0, 1)]


def test_a_repeat_within_the_flush_is_answered_with_the_first_result(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    batches = [batch_of(topic, {UNPARTITIONED: 3}, sequence=("p", n)) for n in (0, 1, 0, 1, 2)]
    results = metadata.registry.commit(batches)
    starts = [accepted(result)[0].start_offset for result in results]
    assert starts == [0, 3, 0, 3, 6]
    assert [isinstance(result, Accepted) and result.replayed for result in results] == [
        False,
        False,
        True,
        True,
        False,
    ]


def test_a_repeat_is_recognised_before_the_expected_offset_is_checked(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    batch = batch_of(topic, {UNPARTITIONED: 1}, sequence=("p", 0), expected=(UNPARTITIONED, 0))
    for replayed in (False, True):
        (result,) = metadata.registry.commit([batch])
        assert isinstance(result, Accepted)
        assert result.replayed == replayed


def test_a_sequence_out_of_order_is_refused_before_the_expected_offset_is_checked(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    batch = batch_of(topic, {UNPARTITIONED: 1}, sequence=("p", 5), expected=(UNPARTITIONED, 9))
    check_refused(metadata.registry.commit([batch])[0], sequence=5, expected=0)


@pytest.mark.parametrize("reason", ["expected", "timestamp"])
def test_a_refused_batch_does_not_use_its_sequence(
    metadata: MetadataUnderTest, reason: str
) -> None:
    topic = metadata.create_topic()
    refused = (
        batch_of(topic, {UNPARTITIONED: 1}, sequence=("p", 0), expected=(UNPARTITIONED, 7))
        if reason == "expected"
        else batch_of(topic, {UNPARTITIONED: 1}, sequence=("p", 0), timestamp=NOON + 2 * HOUR)
    )
    good = batch_of(topic, {UNPARTITIONED: 1}, sequence=("p", 0), stream=1)
    first, second = metadata.registry.commit([refused, good])
    assert isinstance(first, Rejected)
    assert isinstance(second, Accepted)
    assert not second.replayed


def test_an_empty_batch_uses_its_sequence(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    empty = batch_of(topic, {}, sequence=("p", 0))
    assert metadata.registry.commit([empty]) == [Accepted(())]
    assert metadata.registry.commit([empty]) == [Accepted((), replayed=True)]
    assert isinstance(push(metadata, topic, 1), Accepted)


def test_producers_and_topics_count_their_sequences_apart(metadata: MetadataUnderTest) -> None:
    topic, other = metadata.create_topic(), metadata.create_topic()
    rows = {UNPARTITIONED: 1}
    push(metadata, topic, 0)
    results = metadata.registry.commit(
        [
            batch_of(topic, rows, sequence=("p", 1), stream=1),
            batch_of(topic, rows, sequence=("q", 0), stream=2),
            batch_of(other, rows, sequence=("p", 0), stream=3),
            batch_of(topic, rows, sequence=("P", 0), stream=4),
        ]
    )
    assert all(isinstance(result, Accepted) and not result.replayed for result in results)


@pytest.mark.parametrize("in_one_flush", [True, False], ids=["one flush", "many flushes"])
def test_the_last_64_results_are_remembered(
    metadata: MetadataUnderTest, in_one_flush: bool
) -> None:
    topic = metadata.create_topic()
    batches = [batch_of(topic, {UNPARTITIONED: 1}, sequence=("p", n)) for n in range(70)]
    if in_one_flush:
        metadata.registry.commit(batches)
    else:
        for batch in batches:
            metadata.registry.commit([batch])
    check_refused(push(metadata, topic, 5), sequence=5, expected=70)
    replayed = push(metadata, topic, 6)
    assert accepted(replayed)[0].start_offset == 6
    metadata.reopen()
    check_refused(push(metadata, topic, 0), sequence=0, expected=70)
    assert accepted(push(metadata, topic, 69))[0].start_offset == 69
    assert metadata.registry.partition_state(topic.uuid, UNPARTITIONED).next_offset == 70


def test_of_70_in_a_flush_that_repeats_the_first_ones_are_forgotten(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    numbers = [*range(70), 6, 5]
    batches = [
        batch_of(topic, {UNPARTITIONED: 1}, sequence=("p", number), stream=stream)
        for stream, number in enumerate(numbers)
    ]
    results = metadata.registry.commit(batches)
    assert accepted(results[70])[0].start_offset == 6
    check_refused(results[71], sequence=5, expected=70)


def series_of(topic: Topic, first: int, rows: tuple[int, ...], stream: int = 0) -> CommitBatch:
    """Return a series of producer p, of so many rows each."""
    batch = batch_of(topic, {UNPARTITIONED: sum(rows)}, sequence=("p", first), stream=stream)
    return replace(batch, series=rows)


def spread(topic: Topic, first: int, rows: tuple[int, ...], stream: int = 0) -> CommitBatch:
    """Return a series of producer p whose batches go to three partitions in turn."""
    batch = series_of(topic, first, rows, stream)
    pages = tuple(
        StoredPage(
            Partition(f'"{(first + place) % 3}"'),
            count,
            PageAddress(f"f-{first}", 100 * place, 100),
        )
        for place, count in enumerate(rows)
    )
    return replace(batch, pages=pages, series=rows if len(rows) > 1 else ())


@every_store
def test_a_series_may_go_to_several_partitions(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    got: list[tuple[Partition, int, int]] = []
    for length in (1, 5, 30, 64, 3, 80, 7, 57, 64, 2):
        rows = tuple([1 + (len(got) + index) % 2 for index in range(length)])
        first = len(got)
        (result,) = metadata.registry.commit([spread(topic, first, rows)])
        if isinstance(result, SeriesResults):
            got += [range_of(accepted(each)[0]) for each in result.each]
        else:
            got += map(range_of, shares(accepted(result), rows))
        assert len(got) == first + length
        metadata.reopen()
        kept = range(max(0, len(got) - 64), len(got))
        replayed = metadata.registry.commit(
            [spread(topic, number, (1,), stream=number) for number in kept]
        )
        assert [range_of(accepted(each)[0]) for each in replayed] == [got[n] for n in kept]
        if kept[0]:
            (late,) = metadata.registry.commit([spread(topic, kept[0] - 1, (1,))])
            check_refused(late, sequence=kept[0] - 1, expected=len(got))
    ends: Counter[Partition] = Counter()
    for partition, start, end in got:
        assert start == ends[partition]
        ends[partition] = end + 1
    states = metadata.registry.partition_states(topic.uuid)
    assert {state.partition: state.next_offset for state in states} == ends
    # One that begins with a repeat, and goes on.
    first = len(got) - 2
    (result,) = metadata.registry.commit([spread(topic, first, (1, 1, 1))])
    assert isinstance(result, SeriesResults)
    assert [range_of(accepted(each)[0]) for each in result.each[:2]] == got[-2:]
    partition = Partition(f'"{len(got) % 3}"')
    assert range_of(accepted(result.each[2])[0]) == (partition, ends[partition], ends[partition])


def range_of(each: AssignedRange) -> tuple[Partition, int, int]:
    return each.partition, each.start_offset, each.end_offset


def shares_of(result: CommitResult, rows: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the offsets of each batch of a series that was accepted."""
    if isinstance(result, SeriesResults):
        parts = [accepted(each)[0] for each in result.each]
        return [(part.start_offset, part.end_offset) for part in parts]
    (whole,) = accepted(result)
    ends = [whole.start_offset + sum(rows[: index + 1]) - 1 for index in range(len(rows))]
    assert ends[-1] == whole.end_offset
    return [(end - count + 1, end) for end, count in zip(ends, rows, strict=True)]


@every_store
def test_each_batch_of_a_series_has_its_own_result(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    rows = (2, 1, 3)
    (result,) = metadata.registry.commit([series_of(topic, 0, rows)])
    shares = [(0, 1), (2, 2), (3, 5)]
    assert shares_of(result, rows) == shares
    for _ in range(2):
        for number in (1, 2, 0):
            replayed = push(metadata, topic, number)
            assert isinstance(replayed, Accepted)
            assert replayed.replayed
            (part,) = replayed.committed
            assert (part.start_offset, part.end_offset) == shares[number]
        metadata.reopen()
    # Split otherwise, and in one flush with its own repeat.
    again, twice = metadata.registry.commit(
        [series_of(topic, 1, (1, 3, 2, 2)), series_of(topic, 2, (3, 2, 2, 1), stream=1)]
    )
    assert shares_of(again, (1, 3, 2, 2)) == [*shares[1:], (6, 7), (8, 9)]
    assert shares_of(twice, (3, 2, 2, 1)) == [(3, 5), (6, 7), (8, 9), (10, 10)]
    assert metadata.registry.partition_state(topic.uuid, UNPARTITIONED).next_offset == 11


@every_store
def test_a_series_with_a_gap_before_it_is_refused_as_a_whole(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    late, other = metadata.registry.commit(
        [series_of(topic, 1, (1, 1)), batch_of(topic, {UNPARTITIONED: 1}, stream=1)]
    )
    for refused in late.each if isinstance(late, SeriesResults) else (late,):
        check_refused(refused, sequence=1, expected=0)
    assert accepted(other)[0].start_offset == 0
    (result,) = metadata.registry.commit([series_of(topic, 0, (1, 1))])
    assert shares_of(result, (1, 1)) == [(1, 1), (2, 2)]


@every_store
def test_the_last_64_results_are_remembered_however_long_the_series_are(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    ends: list[int] = []
    for length in (1, 5, 30, 64, 3, 80, 7, 57, 64, 1):
        rows = tuple([1 + (len(ends) + index) % 3 for index in range(length)])
        (result,) = metadata.registry.commit([series_of(topic, len(ends), rows)])
        ends += [end for _, end in shares_of(result, rows)]
        metadata.reopen()
        kept = range(max(0, len(ends) - 64), len(ends))
        replayed = metadata.registry.commit(
            [
                batch_of(topic, {UNPARTITIONED: 1}, sequence=("p", number), stream=number)
                for number in kept
            ]
        )
        assert [accepted(each)[0].end_offset for each in replayed] == [ends[n] for n in kept]
        if kept[0]:
            late = push(metadata, topic, kept[0] - 1)
            check_refused(late, sequence=kept[0] - 1, expected=len(ends))
    assert offsets_of(metadata.registry, topic)[-1][1] == ends[-1]


def test_a_result_is_remembered_for_7_days_and_the_sequence_for_good(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    push(metadata, topic, 0)
    metadata.clock.time = NOON + 7 * DAY - 1
    assert isinstance(push(metadata, topic, 0), Accepted)
    metadata.clock.time = NOON + 7 * DAY
    check_refused(push(metadata, topic, 0), sequence=0, expected=1)
    metadata.clock.time = NOON + 1_000 * DAY
    while metadata.registry.purge(10):
        pass
    check_refused(push(metadata, topic, 0), sequence=0, expected=1)
    assert isinstance(push(metadata, topic, 1), Accepted)


def test_results_out_of_date_are_purged_alone(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    for number in range(5):
        metadata.clock.time = NOON + number * DAY
        push(metadata, topic, number)
    metadata.clock.time = NOON + 9 * DAY
    while metadata.registry.purge(1):
        pass
    # Setting the clock back shows what is still there.
    metadata.clock.time = NOON + 4 * DAY
    for number in (0, 1, 2):
        check_refused(push(metadata, topic, number), sequence=number, expected=5)
    for number in (3, 4):
        assert accepted(push(metadata, topic, number))[0].start_offset == number


def test_a_topic_created_again_knows_no_producers(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    push(metadata, topic, 0)
    metadata.admin.delete_topic(topic.name)
    again = metadata.admin.create_topic(topic.name, topic.schema)
    result = push(metadata, again, 0)
    assert isinstance(result, Accepted)
    assert not result.replayed


@each("producer", ["\ud800", "a\0b", "x" * 257])
def test_a_producer_id_that_cannot_be_stored_rejects_its_batch_alone(
    metadata: MetadataUnderTest, producer: str
) -> None:
    topic = metadata.create_topic()
    bad, good = metadata.registry.commit(
        [
            batch_of(topic, {UNPARTITIONED: 1}, sequence=(producer, 0), stream=1),
            batch_of(topic, {UNPARTITIONED: 1}, sequence=("é" * 128, 0), stream=2),
        ]
    )
    assert isinstance(bad, Rejected)
    assert isinstance(bad.error, InvalidArgument)
    assert isinstance(good, Accepted)


def numbered(
    topic: Topic,
    first: int,
    rows: int = 1,
    *,
    epoch: int = 0,
    producer: str = "7",
    partition: Partition = A,
    stage: StageEntry | None = None,
    stream: int = 0,
) -> CommitBatch:
    """Return a batch whose rows are numbered by partition."""
    batch = batch_of(topic, {partition: rows}, stage=stage, stream=stream)
    return replace(batch, partition_sequence=PartitionSequence(producer, epoch, first))


def commit(metadata: MetadataUnderTest, batch: CommitBatch) -> CommitResult:
    (result,) = metadata.registry.commit([batch])
    return result


def check_next(metadata: MetadataUnderTest, topic: Topic, expected: int, *wrong: int) -> None:
    """Check that batches with other numbers are refused, and name the number that is next."""
    for first in wrong:
        check_refused(commit(metadata, numbered(topic, first)), sequence=first, expected=expected)


def test_rows_are_numbered_by_partition_and_producer(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    for first, rows in ((0, 3), (3, 1), (4, 10)):
        assert accepted(commit(metadata, numbered(topic, first, rows)))[0].start_offset == first
    check_next(metadata, topic, 14, 13, 15, 0, (1 << 31) - 1)
    metadata.reopen()
    for partition, producer, start in ((B, "7", 0), (A, "8", 14)):
        batch = numbered(topic, 100, 2, partition=partition, producer=producer)
        # An unknown producer begins anywhere.
        assert accepted(commit(metadata, batch))[0].start_offset == start
    assert accepted(commit(metadata, numbered(topic, 14)))[0].start_offset == 16


def test_the_last_five_batches_of_numbered_rows_are_recognised(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    batches = [numbered(topic, 64 * number, 64) for number in range(7)]
    results = [commit(metadata, batch) for batch in batches]
    metadata.clock.time += DAY
    for _ in range(2):
        again = metadata.registry.commit(batches[2:])
        assert again == [Accepted(accepted(each), replayed=True) for each in results[2:]]
        metadata.reopen()
    check_refused(commit(metadata, batches[1]), sequence=64, expected=448)
    check_refused(commit(metadata, numbered(topic, 384, 63)), sequence=384, expected=448)
    assert offsets_of(metadata.registry, topic, A)[-1] == (384, 447)


def test_numbered_batches_of_a_flush_follow_each_other(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    batches = [numbered(topic, first, 2, stream=first) for first in (0, 2, 2, 6, 4)]
    one, two, again, gap, three = metadata.registry.commit(batches)
    assert [accepted(each)[0].start_offset for each in (one, two, three)] == [0, 2, 4]
    assert again == Accepted(accepted(two), replayed=True)
    check_refused(gap, sequence=6, expected=4)
    assert commit(metadata, batches[0]) == Accepted(accepted(one), replayed=True)


def test_numbers_of_rows_begin_anew_after_the_greatest(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    greatest = (1 << 31) - 1
    last = commit(metadata, numbered(topic, greatest - 1, 3))
    accepted(last)
    check_next(metadata, topic, 1, greatest, 0, 2)
    accepted(commit(metadata, numbered(topic, 1)))
    again = commit(metadata, numbered(topic, greatest - 1, 3))
    assert again == Accepted(accepted(last), replayed=True)


def test_an_epoch_fences_those_before_it_and_begins_at_0(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    accepted(commit(metadata, numbered(topic, 0, 5, epoch=3)))
    refused = commit(metadata, numbered(topic, 5, epoch=4))
    check_refused(refused, sequence=5, expected=0)
    accepted(commit(metadata, numbered(topic, 0, 5, epoch=4)))
    for first in (0, 5):
        fenced = commit(metadata, numbered(topic, first, 5, epoch=3))
        assert isinstance(fenced, Rejected)
        assert isinstance(fenced.error, PublishFenced)
    accepted(commit(metadata, numbered(topic, 5, epoch=4)))


def test_numbers_of_rows_are_kept_for_7_days_and_with_their_topic(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic("key")
    accepted(commit(metadata, numbered(topic, 0, epoch=1)))
    metadata.clock.time += 7 * DAY - SECOND
    check_refused(commit(metadata, numbered(topic, 2, epoch=1)), sequence=2, expected=1)
    metadata.clock.time += SECOND
    accepted(commit(metadata, numbered(topic, 40)))  # Unknown, whatever its epoch.
    while metadata.registry.purge(1):
        pass
    check_next(metadata, topic, 41, 40 + 7)
    metadata.clock.time += 7 * DAY
    while metadata.registry.purge(1):
        pass
    accepted(commit(metadata, numbered(topic, 3)))
    metadata.admin.delete_topic(topic.name)
    while metadata.registry.purge(1):
        pass
    made_anew = metadata.admin.create_topic(topic.name, topic.schema, topic.partition_key)
    accepted(commit(metadata, numbered(made_anew, 9)))


def test_a_repeat_of_a_staged_batch_with_numbers_adds_nothing(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    entry = StageEntry("s", "writing", first=True)
    assert commit(metadata, numbered(topic, 0, 2, stage=entry)) == StagedBatch("s", 2, 100)
    metadata.reopen()
    for again in (StageEntry("s", "writing", first=False), StageEntry("t", "other", first=True)):
        assert commit(metadata, numbered(topic, 0, 2, stage=again)) == StagedBatch(
            again.stage, 0, 0
        )
    outside = commit(metadata, numbered(topic, 0, 2))
    assert isinstance(outside, Rejected)
    assert isinstance(outside.error, OutOfOrderSequence)
    check_next(metadata, topic, 2, 3)
    assert metadata.stages.publish("w", 0, ["s"]).committed[0].end_offset == 1
    # What is visible at once goes on after it, and so does another stage, whatever was aborted.
    assert accepted(commit(metadata, numbered(topic, 2)))[0].start_offset == 2
    later = StageEntry("u", "later", first=True)
    assert commit(metadata, numbered(topic, 3, stage=later)) == StagedBatch("u", 1, 100)
    metadata.stages.abort("w", ["u"])
    assert accepted(commit(metadata, numbered(topic, 4)))[0].start_offset == 3


def test_a_batch_that_cannot_be_numbered_is_refused(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    sequence = PartitionSequence("7", 0, 0)
    for stream, batch in enumerate(
        (
            replace(batch_of(topic, {A: 1, B: 1}), partition_sequence=sequence),
            replace(batch_of(topic, {}), partition_sequence=sequence),
            replace(batch_of(topic, {A: 1}, sequence=("p", 0)), partition_sequence=sequence),
            replace(batch_of(topic, {A: 1}, expected=(A, 0)), partition_sequence=sequence),
            numbered(topic, -1),
            numbered(topic, 1 << 31),
            numbered(topic, 0, epoch=-1),
            numbered(topic, 0, producer="x" * 257),
        )
    ):
        refused = commit(metadata, replace(batch, stream=stream))
        assert isinstance(refused, Rejected)
        assert isinstance(refused.error, InvalidArgument)
    assert metadata.registry.partition_states(topic.uuid) == []
