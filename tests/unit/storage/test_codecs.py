"""The codecs: every format is in the table, and yields the columns and rows that are wanted."""

from pathlib import Path

import pyarrow as pa
import pytest
from tables import each

from wings_core.errors import StorageCorrupt
from wings_core.model import Location, PageAddress, PageFormat, Topic, TopicConfig
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.storage.codecs import (
    CODECS,
    MERGES,
    PUSHES,
    MergedFile,
    Wanted,
    read_pages,
)
from wings_core.storage.folio_stores import SEGMENT_SUFFIX, FolioStores, SegmentObjects
from wings_core.storage.objects.directory import DirectoryObjects
from wings_core.storage.page_cache import PageCache
from wings_core.storage.segment_file import TIMESTAMP_FIELD
from wings_core.storage.segments import SegmentStore

SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("text", pa.string())])
TOPIC = Topic(
    DEFAULT_NAMESPACE.topic("t"),
    "00000000-0000-0000-0000-000000000007",
    SCHEMA,
    None,
    TopicConfig(),
    0,
)
ROWS = 10


def rows(start: int) -> pa.RecordBatch:
    numbers = range(start, start + ROWS)
    columns = {"n": [*numbers], "text": [str(number) for number in numbers]}
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


class Pages:
    """A pushed page, `[0, 10)`, and two merged ones, `[10, 30)`; merged rows' timestamps are their
    numbers."""

    def __init__(self, directory: Path, format_: PageFormat) -> None:
        remote = SegmentObjects(
            DirectoryObjects(directory / "remote"), PageCache(1 << 20), SEGMENT_SUFFIX, 0.0
        )
        hot = SegmentStore(directory / "hot", segment_bytes_max=1 << 20)
        self.store = FolioStores(hot, {SEGMENT_SUFFIX: remote})
        (address,) = self.store.write([PUSHES.encoder(TOPIC.uuid, SCHEMA).encode(rows(0))])
        self.locations = [Location(0, 9, 9, address)]
        codec = MERGES[format_]
        self._format = format_
        about = {"wings.topic_uuid": TOPIC.uuid, "wings.start_offset": str(ROWS)}
        file = codec.begin_file(TOPIC, about)
        name = remote.name(TOPIC.uuid, ROWS, codec.suffix)
        for start in (10, 20):
            self.locations.append(self._merge(file, name, start, [*range(start, start + ROWS)]))
        self.disordered = self._merge(file, name, 30, [*range(start + ROWS, start, -1)])
        remote.objects.put(name, file.finish())

    def _merge(self, file: MergedFile, name: str, start: int, times: list[int]) -> Location:
        column = pa.array(times, TIMESTAMP_FIELD.type)
        batch = pa.RecordBatch.from_arrays([*rows(start).columns, column], schema=file.schema)
        address = PageAddress(name, *file.write(batch))
        return Location(start, start + ROWS - 1, times[-1], address, times[0], self._format)


@pytest.fixture(params=MERGES)
def pages(tmp_path: Path, request: pytest.FixtureRequest) -> Pages:
    return Pages(tmp_path, request.param)


def test_every_format_has_a_codec() -> None:
    assert set(CODECS) == set(PageFormat)


@each("columns", [None, (1,), (1, 0), ()])
@each("timestamps", [False, True])
@each(("start", "stop"), [(0, None), (3, 27), (9, 11), (12, 13)])
def test_the_wanted_columns_of_the_wanted_rows_are_read(
    pages: Pages, columns: tuple[int, ...] | None, timestamps: bool, start: int, stop: int | None
) -> None:
    end = 30 if stop is None else stop
    located = [
        page for page in pages.locations if page.end_offset >= start and page.start_offset < end
    ]
    found = [*read_pages(pages.store, TOPIC, located, Wanted(columns, start, stop, timestamps))]
    offset = start
    for location, page in zip(located, found, strict=True):
        count = min(end, location.end_offset + 1) - offset
        whole = rows(location.start_offset).slice(offset - location.start_offset, count)
        assert page.rows.num_rows == count
        assert page.rows.equals(whole if columns is None else whole.select(list(columns)))
        if isinstance(page.timestamps, int):
            assert page.timestamps == location.timestamp
            assert not timestamps or location.format is PageFormat.PLAIN
        else:
            assert page.timestamps.cast(pa.int64()).to_pylist() == [*range(offset, offset + count)]
        offset += count
    assert offset == end


@pytest.mark.parametrize("number", [0, 1])
def test_a_page_of_other_rows_than_metadata_says_is_damaged(pages: Pages, number: int) -> None:
    page = pages.locations[number]
    wrong = Location(0, 10, 9, page.address, page.first_timestamp, page.format)
    with pytest.raises(StorageCorrupt, match="has 10 rows where metadata says 11"):
        next(read_pages(pages.store, TOPIC, [wrong], Wanted()))


def test_a_check_returns_the_rows_and_refuses_timestamps_out_of_order(pages: Pages) -> None:
    for page in pages.locations:
        found = CODECS[page.format].check(pages.store, TOPIC, page.address)
        assert found.equals(rows(page.start_offset))
    with pytest.raises(StorageCorrupt, match="timestamps are not in order"):
        CODECS[pages.disordered.format].check(pages.store, TOPIC, pages.disordered.address)
