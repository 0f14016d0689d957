"""Rows that were read beside the ones asked for are not read again."""

import pyarrow as pa
from test_record_fetcher import TOPIC, fetcher, offsets, rows

from wings_core.partitions import UNPARTITIONED
from wings_core.share.delivery import record_fetcher


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
