"""A few of many columns: only their bytes are read of either tier, and those are verified."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from wings_core.contracts.reads import ReadOptions
from wings_core.data_directory import DataDirectory
from wings_core.deployments import OneDirectory
from wings_core.errors import StorageCorrupt
from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.fetcher import Cancel, Read
from wings_core.fetch.selection import Selection
from wings_core.ingest.pending import PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.limits import Limits
from wings_core.log import Log
from wings_core.model import Location, Topic, TopicConfig
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED
from wings_core.storage.objects.interfaces import OperationCount
from wings_core.storage.page import read_head
from wings_core.storage.segment_file import segment_schema

COLUMNS = 100
ROWS = 10_000
NAME = TopicName.parse("wide")
SOME = [f"c{index}" for index in range(0, COLUMNS, 10)]
TIERS = ["hot", "remote"]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with DataDirectory.open(tmp_path / "data") as opened:
        log = Log.open(
            OneDirectory(opened, hot=str(tmp_path / "hot"), remote=str(tmp_path / "remote")),
            Limits(maintenance_seconds=3_600),
        )
        with closing(log):
            yield log


def wide(first: int) -> pa.RecordBatch:
    """Return rows whose columns compress to about a third."""
    numbers = pa.array(range(first, first + ROWS), pa.int64())
    return pa.record_batch(
        {f"c{index}": pc.multiply(numbers, index + 1) for index in range(COLUMNS)}
    )


def filled(log: Log, tier: str) -> Topic:
    """Create a topic of which all pages are in a tier, and nothing is in memory."""
    topic = log.admin.create_topic(NAME, wide(0).schema, config=TopicConfig(tier_after_ms=0))
    preparer, stream = Preparer(topic, log.limits), PushStream()
    for number in range(4):
        batch = preparer.prepare(wide(ROWS * number), PushOptions())
        log.group_commit.submit(stream, batch, awaited=True).accepted()
    if tier == "remote":
        assert log.maintainer.run(topic).pages_merged == 4
    log.storage.cache.clear()
    return topic


def scan(log: Log, topic: Topic, columns: list[str] | None) -> pa.Table:
    end = log.registry.partition_state(topic.uuid, UNPARTITIONED).next_offset
    wanted = None if columns is None else tuple(columns)
    selection = Selection.of(topic, ReadOptions(columns=wanted))
    read = Read.of(topic, [PartitionCursor(UNPARTITIONED, 0, end)], selection)
    batches = [chunk.batch for chunk in log.fetcher.scan(read, Cancel())]
    return pa.Table.from_batches(batches, selection.schema)


def locations(log: Log, topic: Topic) -> tuple[Location, ...]:
    return log.registry.locate(topic.uuid, UNPARTITIONED, 0, 4 * ROWS).locations


def flip_a_byte(directory: Path, topic: Topic, page: Location, column: int) -> None:
    """Damage the stored bytes of a column of a page."""
    path, address = directory / page.address.folio, page.address
    data = bytearray(path.read_bytes())
    stored = memoryview(data)[address.position : address.position + address.length]
    merged = page.format.is_merged
    schema = segment_schema(topic.schema) if merged else topic.schema
    start, end = read_head(stored, len(stored), topic.uuid, schema).column(column)
    assert start < end
    data[address.position + (start + end) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("tier", TIERS)
def test_ten_of_a_hundred_columns_read_a_tenth_of_the_bytes(log: Log, tier: str) -> None:
    topic = filled(log, tier)
    counts = log.storage.objects[tier].counts

    def read_bytes(columns: list[str] | None) -> int:
        log.storage.cache.clear()
        before = counts.snapshot().get("read", OperationCount()).bytes
        expected = pa.Table.from_batches([wide(ROWS * number) for number in range(4)])
        read = scan(log, topic, columns)
        assert read.combine_chunks().equals(expected.select(columns or expected.column_names))
        return counts.snapshot()["read"].bytes - before

    assert read_bytes(SOME) < 0.12 * read_bytes(None)


@pytest.mark.parametrize("tier", TIERS)
def test_a_flipped_byte_is_found_where_its_column_is_read_and_only_there(
    log: Log, tmp_path: Path, tier: str
) -> None:
    topic = filled(log, tier)
    page = locations(log, topic)[-1]
    flip_a_byte(tmp_path / tier, topic, page, 30)
    unharmed = [name for name in SOME if name != "c30"]
    assert scan(log, topic, unharmed).num_rows == 4 * ROWS
    for columns in (SOME, ["c30"], None):
        with pytest.raises(StorageCorrupt, match="column 'c30' does not match") as caught:
            scan(log, topic, columns)
        assert caught.value.facts["folio"] == page.address.folio
