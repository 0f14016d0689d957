"""Cutting a log at a time: where producers go on."""

from contextlib import closing
from pathlib import Path

import pyarrow as pa

from wings_core.backup.restore import cut_log
from wings_core.check import check_directory
from wings_core.data_directory import DataDirectory
from wings_core.deployments import OneDirectory
from wings_core.ingest.pending import PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.limits import Limits
from wings_core.log import Log
from wings_core.model import Accepted, CommitResult, PartitionSequence, Rejected, Sequence
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED

NAME = TopicName.parse("t")
SCHEMA = pa.schema([("n", pa.int64())])
KEYED = pa.schema([("key", pa.int64())])


def push_all(log: Log, batches: list[tuple[pa.RecordBatch, PushOptions]]) -> list[CommitResult]:
    """Push batches in one flush; return what each got, or all in common."""
    preparer, stream = Preparer(log.admin.get_topic(NAME), log.limits), PushStream()
    (pending,) = {
        log.group_commit.submit(stream, preparer.prepare(batch, options), awaited=True)
        for batch, options in batches
    }
    return list(pending.outcomes())


def push(log: Log, numbers: range, timestamp: int) -> list[CommitResult]:
    """Push a row for each sequence in one flush; return what each got, or all in common."""
    return push_all(
        log,
        [
            (
                pa.record_batch({"n": [number]}, schema=SCHEMA),
                PushOptions(UNPARTITIONED, Sequence("p", number), timestamp=timestamp),
            )
            for number in numbers
        ],
    )


def test_a_producer_goes_on_with_the_first_batch_of_a_series_that_went(tmp_path: Path) -> None:
    with closing(DataDirectory.open(tmp_path / "data")) as directory:
        with closing(Log.open(OneDirectory(directory), Limits())) as log:
            log.admin.create_topic(NAME, SCHEMA)
            push(log, range(4), 1_000)
            push(log, range(4, 9), 2_000)
        assert cut_log(directory, 1_000) == 5
        with closing(Log.open(OneDirectory(directory), Limits())) as log:
            results = push(log, range(2, 6), 3_000)
    got: list[tuple[int, int, bool]] = []
    for result in results:
        assert isinstance(result, Accepted)
        (part,) = result.committed
        got.append((part.start_offset, part.timestamp, result.replayed))
    assert got == [(2, 1_000, True), (3, 1_000, True), (4, 3_000, False), (5, 3_000, False)]


def push_numbered(log: Log, first: int, timestamp: int) -> CommitResult:
    """Push two rows that have numbers of their partition."""
    batch = pa.record_batch({"n": [first, first + 1]}, schema=SCHEMA)
    numbers = PartitionSequence("p", 1, first)
    (result,) = push_all(
        log, [(batch, PushOptions(timestamp=timestamp, partition_sequence=numbers))]
    )
    return result


def test_numbers_of_rows_go_on_with_the_first_batch_that_went(tmp_path: Path) -> None:
    with closing(DataDirectory.open(tmp_path / "data")) as directory:
        with closing(Log.open(OneDirectory(directory), Limits())) as log:
            log.admin.create_topic(NAME, SCHEMA)
            for first, timestamp in ((0, 1_000), (2, 1_000), (4, 2_000), (6, 2_000)):
                assert isinstance(push_numbered(log, first, timestamp), Accepted)
        assert cut_log(directory, 1_000) == 4
        with closing(Log.open(OneDirectory(directory), Limits())) as log:
            assert isinstance(push_numbered(log, 6, 3_000), Rejected)
            results = [push_numbered(log, first, 3_000) for first in (2, 4)]
    assert [
        (result.committed[0].start_offset, result.replayed)
        for result in results
        if isinstance(result, Accepted)
    ] == [(2, True), (4, False)]


def push_keys(log: Log, producer: str, keys: list[int], timestamp: int) -> list[CommitResult]:
    """Push a row for each key, with sequences from 0 on; return what each got, or all in common."""
    return push_all(
        log,
        [
            (
                pa.record_batch({"key": [key]}, schema=KEYED),
                PushOptions(sequence=Sequence(producer, number), timestamp=timestamp),
            )
            for number, key in enumerate(keys)
        ],
    )


def test_batches_of_a_series_before_the_one_that_went_are_still_repeats(tmp_path: Path) -> None:
    with closing(DataDirectory.open(tmp_path / "data")) as directory:
        with closing(Log.open(OneDirectory(directory), Limits())) as log:
            log.admin.create_topic(NAME, KEYED, "key")
            push_keys(log, "q", [3], 2_000)  # No later row of this partition has an earlier time.
            push_keys(log, "p", [1, 2, 1, 3, 2], 1_000)
        assert cut_log(directory, 1_500) == 2
        assert not check_directory(directory.path).problems
        with closing(Log.open(OneDirectory(directory), Limits())) as log:
            results = push_keys(log, "p", [1, 2, 1, 3], 3_000)
    got: list[tuple[str, int, bool]] = []
    for result in results:
        assert isinstance(result, Accepted)
        (part,) = result.committed
        got.append((part.partition, part.start_offset, result.replayed))
    assert got == [("1", 0, True), ("2", 0, True), ("1", 1, True), ("3", 0, False)]
