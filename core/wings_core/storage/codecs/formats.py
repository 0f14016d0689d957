"""Codecs of the formats of pages: plain, merged and compressed, drained, Parquet."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from wings_core.errors import StorageCorrupt
from wings_core.model import Location, PageAddress, Topic
from wings_core.storage.codecs.interfaces import (
    MergedFile,
    PageRows,
    Wanted,
    rows_of,
    slices_by_page,
)
from wings_core.storage.interfaces import FolioStore
from wings_core.storage.lru import Lru
from wings_core.storage.page import PageEncoder
from wings_core.storage.parquet_file import OFFSET_COLUMN, PARQUET_SUFFIX, ParquetWriter
from wings_core.storage.segment_file import SegmentWriter, segment_schema


class PlainCodec:
    """The `PushCodec` of `PageFormat.PLAIN` and INLINE; see storage/page.py."""

    def read(
        self, store: FolioStore, topic: Topic, locations: Sequence[Location], wanted: Wanted
    ) -> Iterator[PageRows]:
        """See `PageCodec.read`; no bytes are copied."""
        by_page = slices_by_page(locations)
        addresses = [slices[0].address for slices in by_page]
        pages = store.read_all(addresses, topic.uuid, topic.schema, wanted.columns)
        for slices, page in zip(by_page, pages, strict=True):
            for location in slices:
                rows = rows_of(topic, location, page)
                first, count = wanted.part_of(location)
                if count < location.rows:
                    rows = rows.slice(first, count)
                yield PageRows(rows, location.timestamp, location.bytes)

    def check(self, store: FolioStore, topic: Topic, address: PageAddress) -> pa.RecordBatch:
        """See `PageCodec.check`."""
        return store.read(address, topic.uuid, topic.schema)

    def encoder(self, topic_uuid: str, schema: pa.Schema) -> PageEncoder:
        """See `PushCodec.encoder`."""
        return PageEncoder(topic_uuid, schema)


SCHEMAS_REMEMBERED_MAX = 1_024
"""Topics whose segments' schema is cached: stores recognise a schema by its identity."""


class DrainedCodec:
    """The `TimedCodec` of `PageFormat.DRAINED`: a plain page with an additional column."""

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
        by_page = slices_by_page(locations)
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
                rows = rows_of(topic, location, page)
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
        """See `TimedCodec.encoder`."""
        return PageEncoder(topic.uuid, self.schema(topic))

    def schema(self, topic: Topic) -> pa.Schema:
        """See `TimedCodec.schema`."""
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
    """The `MergeCodec` of `PageFormat.SEGMENT`; storage/segment_file.py describes the files."""

    suffix = ""

    def begin_file(self, topic: Topic, about: Mapping[str, str]) -> MergedFile:
        """See `MergeCodec.begin_file`."""
        return SegmentWriter(topic.uuid, topic.schema, about)

    def _bytes_of(self, location: Location, rows: pa.RecordBatch) -> int:
        del location
        return rows.nbytes

    def _are_disordered(self, times: "pa.Array[Any]") -> bool:
        return bool(pc.any(pc.less(times[1:], times[:-1])).as_py())


class ParquetCodec(SegmentCodec):
    """The `MergeCodec` of `PageFormat.PARQUET`."""

    suffix = PARQUET_SUFFIX

    def begin_file(self, topic: Topic, about: Mapping[str, str]) -> MergedFile:
        """See `MergeCodec.begin_file`."""
        return ParquetWriter(topic, about)

    def check(self, store: FolioStore, topic: Topic, address: PageAddress) -> pa.RecordBatch:
        """See `PageCodec.check`; offsets must be consecutive."""
        rows = super().check(store, topic, address)
        field = pa.field(OFFSET_COLUMN, pa.int64())
        offsets = store.read(address, topic.uuid, pa.schema([field])).column(0)
        steps = cast("Any", pc).unique(pc.subtract(offsets[1:], offsets[:-1])).to_pylist()
        if offsets.null_count or steps not in ([], [1]):
            raise StorageCorrupt("its offsets are not consecutive")
        return rows
