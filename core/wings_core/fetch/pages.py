"""Pages with the timestamps of their rows: as they were pushed, and merged ones."""

import struct
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa

from wings_core.errors import StorageCorrupt
from wings_core.model import Location, Topic
from wings_core.storage.interfaces import FolioStore
from wings_core.storage.lru import Lru
from wings_core.storage.segment_file import TIMESTAMP_FIELD, segment_schema

SCHEMAS_REMEMBERED_MAX = 1_024
"""Topics whose segments' schema is not made anew: who reads pages knows it again by identity."""

_INT64 = struct.Struct("=q")


class PageReader:
    """Reads pages of topics; all methods may be called from any thread.

    Args:
        store: Where they lie.
    """

    def __init__(self, store: FolioStore) -> None:
        self._store = store
        self._schemas: Lru[str, tuple[pa.Schema, pa.Schema]] = Lru(SCHEMAS_REMEMBERED_MAX)

    def read(
        self,
        topic: Topic,
        locations: Sequence[Location],
        columns: Sequence[int] | None = None,
        *,
        timestamps: bool = False,
    ) -> "Iterator[tuple[pa.RecordBatch, int | pa.Array[Any]]]":
        """Yield the rows of pages, in order, with their timestamps.

        Args:
            topic: Whose pages they are.
            locations: Where they are.
            columns: Indices into the topic's schema, in the order wanted; None for all.
            timestamps: Whether those of merged pages are read; where not, what is yielded for them
                is that of the last row.

        Raises:
            StorageCorrupt: A page is damaged or missing, where it would come.
        """
        for merged, some in groupby(locations, lambda each: each.format.is_merged):
            pages = list(some)
            addresses = [location.address for location in pages]
            if not merged:
                batches = self._store.read_all(addresses, topic.uuid, topic.schema, columns)
                for location, batch in zip(pages, batches, strict=True):
                    _check_rows(topic, location, batch)
                    yield batch, location.timestamp
                continue
            count = len(topic.schema)
            wanted = [*(range(count) if columns is None else columns)]
            if timestamps:
                wanted.append(count)
            schema = self._segment_schema(topic)
            batches = self._store.read_all(addresses, topic.uuid, schema, wanted)
            for location, batch in zip(pages, batches, strict=True):
                _check_rows(topic, location, batch)
                if not timestamps:
                    # The topic's own schema, so that none compares it.
                    whole = columns is None
                    rows = batch if not whole else _with_schema(batch, topic.schema)
                    yield rows, location.timestamp
                    continue
                rows = batch.select(range(len(wanted) - 1))
                if columns is None:
                    rows = _with_schema(rows, topic.schema)
                yield rows, batch.column(len(wanted) - 1)

    def _segment_schema(self, topic: Topic) -> pa.Schema:
        known = self._schemas.get(topic.uuid)
        if known is not None and known[0] is topic.schema:
            return known[1]
        schema = segment_schema(topic.schema)
        self._schemas.put(topic.uuid, (topic.schema, schema))
        return schema


def _with_schema(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(rows.columns, schema=schema)


def _check_rows(topic: Topic, location: Location, page: pa.RecordBatch) -> None:
    if page.num_rows != location.rows:
        address = location.address
        raise StorageCorrupt(
            f"a page of {topic.name} has {page.num_rows} rows where metadata says "
            f"{location.rows} (file {address.folio}, position {address.position})",
            folio=address.folio,
            position=address.position,
        )


def timestamp_column(timestamps: "Sequence[tuple[int | pa.Array[Any], int]]") -> "pa.Array[Any]":
    """Return a column of timestamps.

    Args:
        timestamps: Runs of (timestamp, number of rows), or of a column of timestamps and its
            length; one at least.
    """
    parts: list[pa.Array[Any]] = []
    runs: list[bytes] = []
    for value, count in timestamps:
        if isinstance(value, int):
            runs.append(_INT64.pack(value) * count)
            continue
        if runs:
            parts.append(_column(b"".join(runs)))
            runs = []
        parts.append(value)
    if runs:
        parts.append(_column(b"".join(runs)))
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _column(values: bytes) -> "pa.Array[Any]":
    # Not by `pa.scalar`: at its first use pyarrow imports pandas, where that is installed.
    rows = len(values) // _INT64.size
    return pa.Array.from_buffers(TIMESTAMP_FIELD.type, rows, [None, pa.py_buffer(values)])
