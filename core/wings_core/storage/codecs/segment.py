"""Segment pages: merged and compressed, with the timestamp of each row in a last column."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from wings_core.errors import StorageCorrupt
from wings_core.model import Location, PageAddress, Topic
from wings_core.storage.codecs.interfaces import PageRows, Wanted, rows_of
from wings_core.storage.interfaces import FolioStore
from wings_core.storage.lru import Lru
from wings_core.storage.segment_file import SegmentWriter, segment_schema

SCHEMAS_REMEMBERED_MAX = 1_024
"""Topics whose segments' schema is not made anew: stores recognise a schema by its identity."""


class SegmentCodec:
    """The `MergeCodec` of `PageFormat.SEGMENT`; storage/segment_file.py describes the files."""

    def __init__(self) -> None:
        self._schemas: Lru[str, tuple[pa.Schema, pa.Schema]] = Lru(SCHEMAS_REMEMBERED_MAX)

    def read(
        self, store: FolioStore, topic: Topic, locations: Sequence[Location], wanted: Wanted
    ) -> Iterator[PageRows]:
        """See `PageCodec.read`; each page is decoded as a whole, in the columns wanted."""
        count = len(topic.schema)
        columns = [*(range(count) if wanted.columns is None else wanted.columns)]
        if wanted.timestamps:
            columns.append(count)
        addresses = [location.address for location in locations]
        pages = store.read_all(addresses, topic.uuid, self._schema(topic), columns)
        for location, rows in zip(locations, pages, strict=True):
            rows = rows_of(topic, location, rows)
            timestamps: int | pa.Array[Any] = location.timestamp
            if wanted.timestamps:
                timestamps = rows.column(len(columns) - 1)
                rows = rows.select(range(len(columns) - 1))
            if wanted.columns is None:
                # The topic's own schema, which readers recognise by its identity.
                rows = pa.RecordBatch.from_arrays(rows.columns, schema=topic.schema)
            page_bytes = rows.nbytes
            first, wanted_rows = wanted.part_of(location)
            if wanted_rows < location.rows:
                rows = rows.slice(first, wanted_rows)
                if not isinstance(timestamps, int):
                    timestamps = timestamps.slice(first, wanted_rows)
            yield PageRows(rows, timestamps, page_bytes)

    def check(self, store: FolioStore, topic: Topic, address: PageAddress) -> pa.RecordBatch:
        """See `PageCodec.check`; timestamps must be there for all rows, in order."""
        rows = store.read(address, topic.uuid, self._schema(topic))
        count = len(topic.schema)
        times = cast("pa.Array[Any]", rows.column(count))
        if times.null_count or pc.any(pc.less(times[1:], times[:-1])).as_py():
            raise StorageCorrupt("its timestamps are not in order")
        return rows.select(range(count))

    def begin_file(
        self, topic_uuid: str, schema: pa.Schema, about: Mapping[str, str]
    ) -> SegmentWriter:
        """See `MergeCodec.begin_file`."""
        return SegmentWriter(topic_uuid, schema, about)

    def _schema(self, topic: Topic) -> pa.Schema:
        known = self._schemas.get(topic.uuid)
        if known is not None and known[0] is topic.schema:
            return known[1]
        schema = segment_schema(topic.schema)
        self._schemas.put(topic.uuid, (topic.schema, schema))
        return schema
