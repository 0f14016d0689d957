"""Delivery: what becomes of leased rows that are gone, or cannot be read."""

import subprocess
import sys
from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest

from wings_core.errors import OffsetOutOfRange, StorageCorrupt, Unavailable
from wings_core.limits import Limits
from wings_core.model import LeasedRange, Topic, TopicConfig
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.share.delivery.delivery import DeliveredBatch, Undelivered, deliveries
from wings_core.share.delivery.record_fetcher import RecordFetcher, RecordSource

SCHEMA = pa.schema([pa.field("n", pa.int64())])
TOPIC = Topic(TopicName.parse("orders"), "uuid", SCHEMA, None, TopicConfig(), 0)
LEASED = LeasedRange(UNPARTITIONED, 3, 5, "c.1.m", 1, 30_000)


class Source(RecordSource):
    """Answers reads by a function."""

    def __init__(self, read: Callable[[int], Sequence[pa.RecordBatch]]) -> None:
        self._read = read

    def read(
        self, topic: Topic, partition: Partition, offset: int, stop_offset: int
    ) -> Sequence[pa.RecordBatch]:
        return self._read(offset)


def delivered(
    read: Callable[[int], Sequence[pa.RecordBatch]],
) -> list[DeliveredBatch | Undelivered]:
    records = RecordFetcher(Source(read))
    try:
        return list(deliveries(records, TOPIC, LEASED, Limits()))
    finally:
        records.close()


@pytest.mark.programs
def test_the_first_delivery_of_a_process_does_not_wait_for_pandas() -> None:
    pytest.importorskip("pandas")
    # In a process of its own, as pyarrow imports pandas for much that tests do.
    script = """
import sys
import pyarrow as pa
from wings_core.model import Topic, TopicConfig
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED
from wings_core.share.delivery.delivery import delivery_schema, _shaped
from wings_core.share.model import LeasedRange

topic = Topic(TopicName.parse("t"), "u", pa.schema([]), None, TopicConfig(), 0)
schema = delivery_schema(topic)
columns = [pa.nulls(3, pa.int64()), pa.nulls(3, pa.timestamp("us", "UTC"))]
rows = pa.RecordBatch.from_arrays(columns, schema=schema.remove(4).remove(3).remove(2))
leased = LeasedRange(UNPARTITIONED, 3, 5, "c.1.m", 7, 30_000)
shaped = _shaped([rows], leased, schema)
assert "pandas" not in sys.modules
assert shaped.select([2, 3, 4]).to_pylist() == [
    {"__partition": "null", "__delivery_count": 7, "__lease": "c.1.m"}
] * 3
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=150)


def row(offset: int) -> pa.RecordBatch:
    offsets = pa.array([offset], pa.int64())
    return pa.record_batch(
        {"n": offsets, "__offset": offsets, "__timestamp": offsets.cast(pa.timestamp("us", "UTC"))}
    )


def damaged_at(*damaged: int) -> Callable[[int], Sequence[pa.RecordBatch]]:
    def read(offset: int) -> Sequence[pa.RecordBatch]:
        if offset in damaged:
            raise StorageCorrupt("a page is damaged", folio="f", position=0)
        return [row(offset)]

    return read


def spans(parts: Sequence[DeliveredBatch | Undelivered]) -> list[tuple[str, int, int]]:
    return [(type(part).__name__, part.range.start_offset, part.range.end_offset) for part in parts]


def test_a_range_of_which_no_row_can_be_read_is_undelivered() -> None:
    parts = delivered(damaged_at(3, 4, 5))
    assert spans(parts) == [("Undelivered", 3, 3), ("Undelivered", 4, 4), ("Undelivered", 5, 5)]
    for part in parts:
        assert isinstance(part, Undelivered)
        assert part.damaged
        assert isinstance(part.error, StorageCorrupt)


def test_a_row_that_cannot_be_read_is_undelivered_alone() -> None:
    parts = delivered(damaged_at(4))
    assert spans(parts) == [
        ("DeliveredBatch", 3, 3),
        ("Undelivered", 4, 4),
        ("DeliveredBatch", 5, 5),
    ]
    batches = [part.batch for part in parts if isinstance(part, DeliveredBatch)]
    assert [batch.column("__offset").to_pylist() for batch in batches] == [[3], [5]]


def test_what_is_behind_a_store_that_is_away_is_undelivered_and_not_damaged() -> None:
    def read(offset: int) -> Sequence[pa.RecordBatch]:
        if offset > 3:
            raise Unavailable("the object store is away")
        return [row(offset)]

    parts = delivered(read)
    assert spans(parts) == [("DeliveredBatch", 3, 3), ("Undelivered", 4, 5)]
    assert isinstance(parts[1], Undelivered)
    assert not parts[1].damaged


def test_a_range_that_retention_has_passed_is_undelivered_without_an_error() -> None:
    def gone(offset: int) -> Sequence[pa.RecordBatch]:
        if offset < 6:
            raise OffsetOutOfRange("gone", log_start_offset=6)
        return [row(offset)]

    (part,) = delivered(gone)
    assert spans([part]) == [("Undelivered", 3, 5)]
    assert isinstance(part, Undelivered)
    assert (part.error, part.damaged) == (None, False)
