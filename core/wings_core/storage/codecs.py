"""Codecs of the formats of pages: plain, merged and compressed, drained, Parquet.

A codec reads columns of rows, checks pages, and encodes rows. A new format is a class here and an
entry in `CODECS`. Pages of one schema version are read with the columns of another.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import pyarrow as pa

from wings_core.arrow_compute import pc
from wings_core.errors import SchemaMismatch, StorageCorrupt, first_bad
from wings_core.model import Location, PageAddress, PageFormat, Topic
from wings_core.storage.interfaces import FolioStore
from wings_core.storage.lru import Lru
from wings_core.storage.page import PageEncoder
from wings_core.storage.parquet_file import OFFSET_COLUMN, PARQUET_SUFFIX, ParquetWriter
from wings_core.storage.segment_file import SegmentWriter, segment_schema
from wings_core.type_names import type_name

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowArray, ArrowField


@dataclass(frozen=True, slots=True)
class Wanted:
    """The columns and rows of pages that a reader wants."""

    columns: Sequence[int] | None = None
    """Indices into the topic's schema, in the order to return; None for all."""
    start_offset: int = 0
    """First offset wanted."""
    stop_offset: int | None = None
    """End of the offsets wanted, exclusive; None for no end."""
    timestamps: bool = False
    """Whether the timestamp of each row is needed, not just that of its page."""

    def part_of(self, location: Location) -> tuple[int, int]:
        """Return the index in a location of the first wanted row, and the number of wanted rows."""
        if self.start_offset == 0 and self.stop_offset is None:
            return 0, location.rows
        start = max(self.start_offset, location.start_offset)
        stop = location.end_offset + 1
        if self.stop_offset is not None:
            stop = min(self.stop_offset, stop)
        return start - location.start_offset, max(0, stop - start)


class PageRows(NamedTuple):  # Not a frozen dataclass: construction would take three times as long.
    """The wanted rows of one page."""

    rows: pa.RecordBatch
    """Rows with the wanted columns."""
    timestamps: "int | pa.Array[Any]"
    """Timestamp of all rows, or of each; in microseconds since the epoch."""
    page_bytes: int
    """Approximate memory of all rows of the page, in at least the columns read."""


class PageCodec(Protocol):
    """A format of pages. Thread-safe; the encoding depends on no state."""

    def read(
        self, store: FolioStore, topic: Topic, locations: Sequence[Location], wanted: Wanted
    ) -> Iterator[PageRows]:
        """Yield the wanted rows of each page, in the order given.

        Args:
            store: Store of the pages.
            topic: Topic of the pages.
            locations: Locations of pages of this format.
            wanted: Columns and rows wanted: at least one row of each page.

        Raises:
            StorageCorrupt: A page is damaged, missing, or differs from metadata in its number of
                rows; raised in the place of its rows.
            Unavailable: Storage cannot be reached.
        """
        ...

    def check(self, store: FolioStore, topic: Topic, address: PageAddress) -> pa.RecordBatch:
        """Verify all bytes of a page; returns its rows in the topic's columns.

        Raises:
            StorageCorrupt: The page is damaged, or violates its format.
            Unavailable: Storage cannot be reached.
        """
        ...


class MergedFile(Protocol):
    """A file of merged pages, built in memory by one thread."""

    @property
    def schema(self) -> pa.Schema:
        """Schema of the batches to write: the topic's columns, then the timestamp."""
        ...

    @property
    def length(self) -> int:
        """Bytes so far."""
        ...

    def write(self, batch: pa.RecordBatch) -> tuple[int, int]:
        """Append rows of `schema` as a page; returns its position and length in the file.

        Raises:
            pa.ArrowInvalid: The format cannot hold a value.
        """
        ...

    def finish(self) -> list[bytes | memoryview]:
        """Return the whole file as consecutive parts."""
        ...


class PlainCodec:
    """The `PageCodec` of pushed rows, `PageFormat.PLAIN` and INLINE; see storage/page.py."""

    def read(
        self, store: FolioStore, topic: Topic, locations: Sequence[Location], wanted: Wanted
    ) -> Iterator[PageRows]:
        """See `PageCodec.read`; no bytes are copied."""
        by_page = _slices_by_page(locations)
        addresses = [slices[0].address for slices in by_page]
        pages = store.read_all(addresses, topic.uuid, topic.schema, wanted.columns)
        for slices, page in zip(by_page, pages, strict=True):
            for location in slices:
                rows = _rows_of(topic, location, page)
                first, count = wanted.part_of(location)
                if count < location.rows:
                    rows = rows.slice(first, count)
                yield PageRows(rows, location.timestamp, location.bytes)

    def check(self, store: FolioStore, topic: Topic, address: PageAddress) -> pa.RecordBatch:
        """See `PageCodec.check`."""
        return store.read(address, topic.uuid, topic.schema)

    def encoder(self, topic_uuid: str, schema: pa.Schema) -> PageEncoder:
        """Return an encoder for rows of a topic.

        Raises:
            InvalidSchema: A column's type cannot be stored.
        """
        return PageEncoder(topic_uuid, schema)


SCHEMAS_REMEMBERED_MAX = 1_024
"""Topics whose segments' schema is cached: stores recognise a schema by its identity."""


class DrainedCodec:
    """The `PageCodec` of `PageFormat.DRAINED`: rows of many pushes, each with its timestamp.

    Its pages are plain ones with an additional column.
    """

    def __init__(self) -> None:
        self._schemas: Lru[tuple[str, int], tuple[pa.Schema, pa.Schema]] = Lru(
            SCHEMAS_REMEMBERED_MAX
        )
        """Schemas by topic UUID and schema version."""

    def read(
        self, store: FolioStore, topic: Topic, locations: Sequence[Location], wanted: Wanted
    ) -> Iterator[PageRows]:
        """See `PageCodec.read`; all rows of a page are decoded, in the wanted columns.

        Uncompressed buffers are not copied.
        """
        count = len(topic.schema)
        columns = [*(range(count) if wanted.columns is None else wanted.columns)]
        if wanted.timestamps:
            columns.append(count)
        by_page = _slices_by_page(locations)
        addresses = [slices[0].address for slices in by_page]
        pages = store.read_all(addresses, topic.uuid, self.schema(topic), columns)
        for slices, page in zip(by_page, pages, strict=True):
            times = page.column(len(columns) - 1) if wanted.timestamps else None
            if wanted.timestamps:
                page = page.select(range(len(columns) - 1))
            if wanted.columns is None:
                # The topic's own schema, which readers recognise by its identity.
                page = pa.RecordBatch.from_arrays(page.columns, schema=topic.schema)
            for location in slices:
                rows = _rows_of(topic, location, page)
                page_bytes = self._bytes_of(location, rows)
                first, count = wanted.part_of(location)
                if count < location.rows:
                    rows = rows.slice(first, count)
                timestamps: int | pa.Array[Any] = location.timestamp
                if times is not None:
                    timestamps = times.slice((location.first_row or 0) + first, count)
                yield PageRows(rows, timestamps, page_bytes)

    def check(self, store: FolioStore, topic: Topic, address: PageAddress) -> pa.RecordBatch:
        """See `PageCodec.check`; timestamps must be non-null and in order."""
        rows = store.read(address, topic.uuid, self.schema(topic))
        count = len(topic.schema)
        times = cast("pa.Array[Any]", rows.column(count))
        if times.null_count or self._are_disordered(times):
            raise StorageCorrupt("its timestamps are not in order")
        return rows.select(range(count))

    def encoder(self, topic: Topic) -> PageEncoder:
        """Return an encoder for rows of `schema`."""
        return PageEncoder(topic.uuid, self.schema(topic))

    def schema(self, topic: Topic) -> pa.Schema:
        """Return the schema of its pages: the topic's columns, then the timestamp.

        Returns the same object while the topic's schema is the same object.
        """
        key = topic.uuid, topic.schema_version
        known = self._schemas.get(key)
        if known is not None and known[0] is topic.schema:
            return known[1]
        schema = segment_schema(topic.schema)
        self._schemas.put(key, (topic.schema, schema))
        return schema

    def _bytes_of(self, location: Location, rows: pa.RecordBatch) -> int:
        """Return the approximate memory of a location's rows, in bytes."""
        del rows
        return location.bytes

    def _are_disordered(self, times: "pa.Array[Any]") -> bool:
        """Return whether the order of timestamps is invalid for a page."""
        del times  # A page may have slices of several partitions, each ordered by itself.
        return False


class SegmentCodec(DrainedCodec):
    """The codec of merged pages, `PageFormat.SEGMENT`; see storage/segment_file.py."""

    suffix = ""
    """Suffix of its files, after the suffix that selects their store."""

    def begin_file(self, topic: Topic, about: Mapping[str, str]) -> MergedFile:
        """Begin a file for consecutive pages of one partition.

        Args:
            topic: Topic of the rows; its schema has their columns and types.
            about: Metadata of the schema, for other readers of the file: `wings.topic_uuid`,
                `wings.start_offset` and others.

        Raises:
            InvalidSchema: The format has no type for a column.
        """
        return SegmentWriter(topic.uuid, topic.schema, about)

    def _bytes_of(self, location: Location, rows: pa.RecordBatch) -> int:
        del location
        return rows.nbytes

    def _are_disordered(self, times: "pa.Array[Any]") -> bool:
        return bool(pc.any(pc.less(times[1:], times[:-1])).as_py())


class ParquetCodec(SegmentCodec):
    """The codec of merged pages as row groups, `PageFormat.PARQUET`."""

    suffix = PARQUET_SUFFIX

    def begin_file(self, topic: Topic, about: Mapping[str, str]) -> MergedFile:
        """See `SegmentCodec.begin_file`."""
        return ParquetWriter(topic, about)

    def check(self, store: FolioStore, topic: Topic, address: PageAddress) -> pa.RecordBatch:
        """See `PageCodec.check`; offsets must be consecutive."""
        rows = super().check(store, topic, address)
        field = pa.field(OFFSET_COLUMN, pa.int64())
        offsets = store.read(address, topic.uuid, pa.schema([field])).column(0)
        steps = pc.unique(pc.subtract(offsets[1:], offsets[:-1])).to_pylist()
        if offsets.null_count or steps not in ([], [1]):
            raise StorageCorrupt("its offsets are not consecutive")
        return rows


PUSHES = PlainCodec()
"""The codec for pushed rows: `PageFormat.PLAIN`."""

MERGES: Mapping[PageFormat, SegmentCodec] = {
    PageFormat.SEGMENT: SegmentCodec(),
    PageFormat.PARQUET: ParquetCodec(),
}
"""Codecs for merged pages, chosen by `TopicConfig.merged_format`."""

DRAINS = DrainedCodec()
"""The codec for drained inline pages: `PageFormat.DRAINED`."""

CODECS: Mapping[PageFormat, PageCodec] = {
    **MERGES,
    PageFormat.PLAIN: PUSHES,
    PageFormat.INLINE: PUSHES,
    PageFormat.DRAINED: DRAINS,
}


def read_pages(
    store: FolioStore, topic: Topic, locations: Sequence[Location], wanted: Wanted
) -> Iterator[PageRows]:
    """Yield the wanted rows of pages of any format, in the order given; see `PageCodec.read`.

    Args:
        store: Store of the pages.
        topic: Topic of the pages, with the schema versions that they are written in.
        locations: Locations of the pages; neighbours of one format and version are read together.
        wanted: Columns and rows wanted: at least one row of each page.

    Raises:
        StorageCorrupt: A page is damaged or missing; raised in the place of its rows.
        SchemaMismatch: A value does not fit the requested, earlier schema version.
        Unavailable: Storage cannot be reached.
    """
    for (format_, version), pages in groupby(
        locations, lambda location: (location.format, location.schema_version)
    ):
        codec = CODECS[format_]
        if version == topic.schema_version:
            yield from codec.read(store, topic, list(pages), wanted)
        else:
            written = topic.at(version)
            yield from _read_version(codec, store, topic, written, list(pages), wanted)


def _slices_by_page(locations: Sequence[Location]) -> list[list[Location]]:
    """Group locations: neighbouring slices of a page together, so that it is read once."""
    pages: list[list[Location]] = []
    for location in locations:
        if location.first_row is not None and pages and pages[-1][-1].address == location.address:
            pages[-1].append(location)
        else:
            pages.append([location])
    return pages


def _rows_of(topic: Topic, location: Location, page: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of a location from its page, without a copy.

    Raises:
        StorageCorrupt: The page differs from metadata in its number of rows.
    """
    first = location.first_row
    if first is None and page.num_rows == location.rows:
        return page
    if first is not None and 0 <= first <= page.num_rows - location.rows:
        return page.slice(first, location.rows)
    address = location.address
    said = location.rows if first is None else f"at least {first + location.rows}"
    raise StorageCorrupt(
        f"a page of {topic.name} has {page.num_rows} rows where metadata says {said} "
        f"(file {address.folio}, position {address.position})",
        folio=address.folio,
        position=address.position,
    )


def _read_version(
    codec: PageCodec,
    store: FolioStore,
    topic: Topic,
    written: Topic,
    locations: Sequence[Location],
    wanted: Wanted,
) -> Iterator[PageRows]:
    """Yield the wanted rows of pages, converted to another schema version.

    For a later version, new columns are null and values are widened. For an earlier version, later
    columns are not read, and floats are rounded to the nearest.

    Args:
        codec: Codec of the pages' format.
        store: Store of the pages.
        topic: The topic with the schema to return.
        written: The topic with the schema of the pages.
        locations: Locations of pages of one format and version.
        wanted: Columns and rows wanted: at least one row of each page.

    Raises:
        SchemaMismatch: A value does not fit the earlier version; fact `offset` is that of the first
            such row.

    The errors of `PageCodec.read` are raised, too.
    """
    count = len(written.schema)
    columns = range(len(topic.schema)) if wanted.columns is None else wanted.columns
    # At least one column, to get the number of rows.
    stored = [index for index in columns if index < count] or [0]
    place = {index: number for number, index in enumerate(stored)}
    fields = [cast("ArrowField", topic.schema.field(index)) for index in columns]
    schema = topic.schema if wanted.columns is None else pa.schema(fields)
    every = stored == list(range(count))
    pages = codec.read(
        store, written, locations, replace(wanted, columns=None if every else tuple(stored))
    )
    for location, page in zip(locations, pages, strict=True):
        rows = page.rows
        first = location.start_offset + wanted.part_of(location)[0]
        arrays: list[ArrowArray] = []
        failures: list[SchemaMismatch] = []
        for index, field in zip(columns, fields, strict=True):
            if index >= count:
                arrays.append(pa.nulls(rows.num_rows, field.type))
                continue
            try:
                column = cast("ArrowArray", rows.column(place[index]))
                arrays.append(_converted(column, field, first))
            except SchemaMismatch as error:
                failures.append(error)
        if failures:
            raise min(failures, key=lambda error: error.facts["offset"])
        rows = pa.RecordBatch.from_arrays(arrays, schema=schema) if arrays else rows.select([])
        yield PageRows(rows, page.timestamps, page.page_bytes)


def _converted(column: "ArrowArray", field: "ArrowField", first_offset: int) -> "ArrowArray":
    """Convert a column of a page to its type in another version."""
    converted = _convert(column, field)
    if converted is not None:
        return converted
    row = first_bad(
        len(column), lambda low, high: _convert(column.slice(low, high - low), field) is None
    )
    shown = f"{type_name(field.type):.80}{'' if field.nullable else ' not null'}"
    raise SchemaMismatch(
        f"column {field.name!r:.80} is {shown} in the version of the schema that is read, which "
        "cannot hold a value of a later one",
        column=field.name,
        offset=first_offset + row,
    )


def _convert(column: "ArrowArray", field: "ArrowField") -> "ArrowArray | None":
    """Convert a column to a field's type; None if a value does not fit."""
    if column.null_count and not field.nullable:
        return None
    if column.type == field.type:
        return column
    try:
        converted = cast("ArrowArray", column.cast(field.type))
    except pa.ArrowInvalid:
        return None
    if pa.types.is_floating(field.type) and field.type.bit_width < column.type.bit_width:
        infinite = pc.and_not(pc.is_inf(converted), pc.is_inf(column))
        if pc.any(infinite).as_py():
            return None
    return converted
