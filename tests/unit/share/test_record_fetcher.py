"""RecordFetcher: what it collects of a range of offsets, whatever the reads are like."""

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pytest

from wings_core.data_directory import DataDirectory
from wings_core.deployments import OneDirectory
from wings_core.errors import (
    Internal,
    OffsetOutOfRange,
    ResourceExhausted,
    StorageCorrupt,
    Unavailable,
)
from wings_core.ingest.pending import PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.limits import Limits
from wings_core.log import Log
from wings_core.model import Topic, TopicConfig
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.share.delivery import record_fetcher
from wings_core.share.delivery.record_fetcher import (
    FETCHES_MAX,
    NEAR_ROWS_MAX,
    THREADS,
    FetchedRecords,
    LogSource,
    RecordFetcher,
    RecordSource,
    rows_of,
)

SCHEMA = pa.schema([pa.field("n", pa.int64())])
TOPIC = Topic(TopicName.parse("orders"), "uuid", SCHEMA, None, TopicConfig(), 0)

Read = Callable[[int, int], Sequence[pa.RecordBatch]]


class Scripted(RecordSource):
    """Answers reads by a function, and remembers from where they were."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self.reads: list[int] = []

    def read(
        self, topic: Topic, partition: Partition, offset: int, stop_offset: int
    ) -> Sequence[pa.RecordBatch]:
        self.reads.append(offset)
        return self._read(offset, stop_offset)


def rows(first: int, last: int) -> pa.RecordBatch:
    offsets = pa.array(range(first, last + 1), pa.int64())
    return pa.record_batch(
        {"n": offsets, "__offset": offsets, "__timestamp": offsets.cast(pa.timestamp("us", "UTC"))}
    )


def offsets(found: FetchedRecords) -> list[int]:
    columns = [batch.column("__offset") for batch in found.batches]
    return [number.as_py() for column in columns for number in column]


@contextmanager
def fetcher(read: Read) -> Generator[tuple[RecordFetcher, Scripted]]:
    source = Scripted(read)
    opened = RecordFetcher(source)
    try:
        yield opened, source
    finally:
        opened.close()


def collect(read: Read, first: int, last: int) -> tuple[FetchedRecords, list[int]]:
    with fetcher(read) as (opened, source):
        return opened.collect(TOPIC, UNPARTITIONED, first, last), source.reads


def test_reads_are_put_together_until_the_range_is_there() -> None:
    found, reads = collect(lambda offset, stop: [rows(offset, offset + 1)], 4, 9)
    assert offsets(found) == [4, 5, 6, 7, 8, 9]
    assert reads == [4, 6, 8]
    assert found.error is None


def test_rows_below_the_cursor_are_skipped_and_it_stops_past_the_end() -> None:
    # As a large segment hands them on: whole, wherever one begins to read.
    found, reads = collect(lambda offset, stop: [rows(0, 4), rows(5, 9)], 3, 6)
    assert offsets(found) == [3, 4, 5, 6]
    assert reads == [3]


def test_rows_that_come_twice_are_there_once() -> None:
    found, _ = collect(
        lambda offset, stop: [rows(offset - 2, offset), rows(offset, offset + 1)], 5, 8
    )
    assert offsets(found) == [5, 6, 7, 8]


@pytest.mark.parametrize("empty", [[], [rows(7, 6)]], ids=["nothing", "a batch without rows"])
def test_an_empty_read_ends_with_what_was_collected(empty: list[pa.RecordBatch]) -> None:
    found, reads = collect(lambda offset, stop: [rows(3, 4)] if offset < 5 else empty, 3, 9)
    assert offsets(found) == [3, 4]
    assert reads == [3, 5]
    assert found.error is None


def test_no_progress_ends_with_what_was_collected() -> None:
    found, reads = collect(lambda offset, stop: [rows(3, 4)], 3, 9)
    assert offsets(found) == [3, 4]
    assert reads == [3, 5]


def test_an_error_that_may_pass_ends_with_what_was_collected_and_is_told() -> None:
    away = Unavailable("the object store is away")

    def read(offset: int, _: int) -> list[pa.RecordBatch]:
        if offset == 5:
            raise away
        return [rows(offset, offset)]

    found, reads = collect(read, 3, 9)
    assert offsets(found) == [3, 4]
    assert reads == [3, 4, 5]
    assert found.error is away


def test_what_is_damaged_is_skipped_alone_and_told() -> None:
    damaged = StorageCorrupt("a page is damaged", folio="f", position=0)

    class Paged(Scripted):
        def last_beside(self, topic: Topic, partition: Partition, offset: int) -> int:
            return offset // 3 * 3 + 2

    def read(offset: int, _: int) -> list[pa.RecordBatch]:
        if offset in (5, 9, 10, 11):
            raise damaged
        return [rows(offset, offset)]

    opened = RecordFetcher(Paged(read))
    found = opened.collect(TOPIC, UNPARTITIONED, 3, 10)
    opened.close()
    assert offsets(found) == [3, 4, 6, 7, 8]
    assert [(each.first, each.last) for each in found.unreadable] == [(5, 5), (9, 10)]
    assert all(each.error is damaged for each in found.unreadable)
    assert found.error is None


def test_offsets_that_are_gone_are_absent() -> None:
    def read(offset: int, stop: int) -> list[pa.RecordBatch]:
        if offset < 7:
            raise OffsetOutOfRange("gone", log_start_offset=7)
        return [rows(offset, stop - 1)]

    found, reads = collect(read, 3, 9)
    assert offsets(found) == [7, 8, 9]
    assert reads == [3, 7]
    assert found.error is None


def test_a_range_that_is_gone_as_a_whole_is_empty() -> None:
    def read(*_: int) -> list[pa.RecordBatch]:
        raise OffsetOutOfRange("gone", log_start_offset=100)

    found, reads = collect(read, 3, 9)
    assert (offsets(found), reads) == ([], [3])


def test_begin_does_not_wait_for_a_slow_read() -> None:
    slow = threading.Event()

    def read(offset: int, stop: int) -> list[pa.RecordBatch]:
        assert slow.wait(30)
        return [rows(offset, stop - 1)]

    with fetcher(read) as (opened, _):
        futures = [opened.begin(TOPIC, UNPARTITIONED, number, number) for number in range(20)]
        assert not any(future.done() for future in futures)
        slow.set()
        assert [offsets(future.result(30)) for future in futures] == [[n] for n in range(20)]


def test_no_more_than_a_bounded_number_of_fetches_run_and_wait() -> None:
    slow = threading.Event()

    def read(offset: int, stop: int) -> list[pa.RecordBatch]:
        assert slow.wait(30)
        return [rows(offset, stop - 1)]

    with fetcher(read) as (opened, _):
        most = [opened.begin(TOPIC, UNPARTITIONED, 0, 0) for _ in range(FETCHES_MAX)]
        with pytest.raises(ResourceExhausted, match=f"{FETCHES_MAX} fetches"):
            opened.begin(TOPIC, UNPARTITIONED, 0, 0)
        slow.set()
        for future in most:
            future.result(30)
        another = None
        while another is None:  # What has ended gives up its room a moment later.
            with suppress(ResourceExhausted):
                another = opened.begin(TOPIC, UNPARTITIONED, 1, 1)
        assert offsets(another.result(30)) == [1]


def test_a_fault_of_the_source_is_no_fault_of_the_next_fetch() -> None:
    def read(offset: int, stop: int) -> list[pa.RecordBatch]:
        if offset == 0:
            raise Internal("the disk failed")
        return [rows(offset, stop - 1)]

    with fetcher(read) as (opened, _):
        failed = opened.begin(TOPIC, UNPARTITIONED, 0, 3).result(30)
        (skipped,) = failed.unreadable
        assert isinstance(skipped.error, Internal)
        assert offsets(failed) == [1, 2, 3]
        assert offsets(opened.begin(TOPIC, UNPARTITIONED, 1, 3).result(30)) == [1, 2, 3]


def test_a_log_is_read_across_its_pages(tmp_path: Path) -> None:
    with DataDirectory.open(tmp_path / "data") as directory:
        log = Log.open(OneDirectory(directory), Limits(wire_rows_max=4))
        try:
            topic = log.admin.create_topic(TopicName.parse("orders"), SCHEMA)
            preparer = Preparer(topic, log.limits)
            for first in range(0, 30, 3):
                batch = pa.record_batch({"n": pa.array(range(first, first + 3), pa.int64())})
                prepared = preparer.prepare(batch, PushOptions())
                log.group_commit.submit(PushStream(), prepared, awaited=True).accepted()
            source = LogSource(log.fetcher, log.registry)
            opened = RecordFetcher(source)
            found = opened.collect(topic, UNPARTITIONED, 4, 22)
            assert offsets(found) == list(range(4, 23))
            assert [n for each in found.batches for n in each.column("n").to_pylist()] == list(
                range(4, 23)
            )
            past = opened.collect(topic, UNPARTITIONED, 28, 99)
            assert (offsets(past), past.error) == ([28, 29], None)
            log.delete_topic(topic.name)
            gone = opened.collect(topic, UNPARTITIONED, 4, 22)
            assert (offsets(gone), gone.error is not None) == ([], True)
            opened.close()
        finally:
            log.close()


@pytest.mark.parametrize("is_inline", [True, False], ids=["inline", "stored"])
def test_rows_are_near_that_metadata_keeps(tmp_path: Path, *, is_inline: bool) -> None:
    end = 2 * NEAR_ROWS_MAX + 2
    limits = Limits() if is_inline else Limits(inline_bytes_max=0)
    with DataDirectory.open(tmp_path / "data") as directory:
        log = Log.open(OneDirectory(directory), limits)
        assert log.drain is not None
        log.drain.close()  # What is inline stays so.
        source = LogSource(log.fetcher, log.registry, store=log.store)
        opened = RecordFetcher(source)
        far = RecordFetcher(LogSource(log.fetcher, log.registry))
        try:
            topic = log.admin.create_topic(TopicName.parse("orders"), SCHEMA)
            preparer = Preparer(topic, log.limits)

            def push(first: int) -> None:
                batch = pa.record_batch({"n": pa.array(range(first, first + 3), pa.int64())})
                prepared = preparer.prepare(batch, PushOptions())
                log.group_commit.submit(PushStream(), prepared, awaited=True).accepted()

            def near(fetcher: RecordFetcher, first: int, last: int) -> pa.RecordBatch | None:
                return fetcher.kept(topic, UNPARTITIONED, first, last, near=True)

            for first in range(0, end, 3):
                push(first)
            assert opened.kept(topic, UNPARTITIONED, 1, 4) is None
            found = near(opened, 1, 4)
            wanted = collected(far, topic, 1, 4)
            assert found == (wanted if is_inline else None)
            assert opened.kept(topic, UNPARTITIONED, 1, 4) == found
            assert near(far, 5, 5) is None
            assert near(opened, 3, 3 + NEAR_ROWS_MAX) is None  # They are too many,
            assert near(opened, end - 1, end) is None  # or not there yet.
            log.delete_topic(topic.name)
            assert near(opened, 7, 7) is None
        finally:
            opened.close()
            far.close()
            log.close()


def collected(opened: RecordFetcher, topic: Topic, first: int, last: int) -> pa.RecordBatch:
    (batch,) = opened.collect(topic, UNPARTITIONED, first, last).batches
    return batch


def test_a_fetcher_that_is_closed_ends_what_waits_and_takes_nothing_more() -> None:
    slow, begun = threading.Event(), threading.Semaphore(0)

    def read(offset: int, stop: int) -> list[pa.RecordBatch]:
        begun.release()
        assert slow.wait(30)
        return [rows(offset, stop - 1)]

    with fetcher(read) as (opened, _):
        *running, waiting = (opened.begin(TOPIC, UNPARTITIONED, n, n) for n in range(THREADS + 1))
        assert all(begun.acquire(timeout=30) for _ in running)
        closing = threading.Thread(target=opened.close)
        closing.start()
        assert isinstance(rows_of(waiting).error, Unavailable)
        with pytest.raises(Unavailable, match="being closed"):
            opened.begin(TOPIC, UNPARTITIONED, 2, 2)
        slow.set()
        assert [offsets(rows_of(each)) for each in running] == [[n] for n in range(THREADS)]
        closing.join(30)


def test_a_log_that_is_closed_is_an_error_of_what_is_read_from_it(tmp_path: Path) -> None:
    with DataDirectory.open(tmp_path / "data") as directory:
        log = Log.open(OneDirectory(directory))
        topic = log.admin.create_topic(TopicName.parse("orders"), SCHEMA)
        batch = pa.record_batch({"n": pa.array(range(3), pa.int64())})
        prepared = Preparer(topic, log.limits).prepare(batch, PushOptions())
        log.group_commit.submit(PushStream(), prepared, awaited=True).accepted()
        opened = RecordFetcher(LogSource(log.fetcher, log.registry))
        log.close()
        found = opened.collect(topic, UNPARTITIONED, 0, 2)
        assert offsets(found) == []
        assert isinstance(found.error, Unavailable)
        opened.close()


# Rows that were read beside the ones asked for are not read again. ################################


def test_neighbours_that_are_taken_one_by_one_are_read_together() -> None:
    def read(offset: int, stop: int) -> list[pa.RecordBatch]:
        return [rows(offset, min(stop, 5_000) - 1)]

    with fetcher(read) as (opened, source):
        for offset in range(2_500):
            assert offsets(opened.collect(TOPIC, UNPARTITIONED, offset, offset)) == [offset]
        assert source.reads == [0, 1, 1_001, 2_001]
        assert offsets(opened.collect(TOPIC, UNPARTITIONED, 2_990, 3_010)) == [*range(2_990, 3_011)]


def test_what_is_kept_is_bounded() -> None:
    kept = record_fetcher.ChunksReadAhead()
    size = rows(0, 999).nbytes
    topics = [str(number) for number in range(2 * record_fetcher.CACHED_BYTES_MAX // size)]
    for topic in topics:
        kept.keep(topic, UNPARTITIONED, rows(0, 999))
    assert kept.rows("0", UNPARTITIONED, 0, 1) is None
    there = [topic for topic in topics if kept.rows(topic, UNPARTITIONED, 0, 1) is not None]
    assert 0 < len(there) * size <= record_fetcher.CACHED_BYTES_MAX
    many = rows(0, record_fetcher.CHUNK_BYTES_MAX // 8)
    kept.keep("large", UNPARTITIONED, many)
    assert kept.rows("large", UNPARTITIONED, 0, 1) is None, "it is enough for requests of its own"


def test_rows_with_gaps_are_not_kept() -> None:
    kept = record_fetcher.ChunksReadAhead()
    gap = pa.concat_batches([rows(0, 1), rows(3, 4)])  # pyright: ignore[reportAttributeAccessIssue]
    kept.keep("t", UNPARTITIONED, gap)
    assert kept.rows("t", UNPARTITIONED, 0, 1) is None


def test_what_was_read_beside_others_is_at_hand_without_a_read() -> None:
    def read(offset: int, stop: int) -> list[pa.RecordBatch]:
        return [rows(offset, stop - 1)]

    with fetcher(read) as (opened, source):
        assert opened.kept(TOPIC, UNPARTITIONED, 0, 0) is None
        for offset in range(2):
            opened.collect(TOPIC, UNPARTITIONED, offset, offset)
        kept = opened.kept(TOPIC, UNPARTITIONED, 7, 9)
        assert kept is not None
        assert kept.column("__offset").to_pylist() == [7, 8, 9]
        assert opened.kept(TOPIC, UNPARTITIONED, 999, 5_000) is None
        assert source.reads == [0, 1]
