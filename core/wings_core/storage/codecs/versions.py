"""Pages of one version of a topic's schema, read as another version has their columns."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.compute as pc

from wings_core.errors import SchemaMismatch
from wings_core.model import Location, Topic
from wings_core.storage.codecs.interfaces import PageCodec, PageRows, Wanted
from wings_core.storage.interfaces import FolioStore
from wings_core.type_names import type_name

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowArray, ArrowField


def read_version(
    codec: PageCodec,
    store: FolioStore,
    topic: Topic,
    written: Topic,
    locations: Sequence[Location],
    wanted: Wanted,
) -> Iterator[PageRows]:
    """Yield the wanted rows of pages in another version than they were written in.

    Columns that came later are null, wider types hold all values. Where an earlier version is
    wanted, later columns are not read, and floats are rounded to the nearest.

    Args:
        codec: Of the pages' format.
        store: Where they lie.
        topic: With the schema wanted.
        written: With the schema of the pages.
        locations: All of one format and version.
        wanted: Of each page, at least one row.

    Raises:
        SchemaMismatch: A page has a value that an earlier version cannot hold.

    And what `PageCodec.read` raises.
    """
    count = len(written.schema)
    columns = range(len(topic.schema)) if wanted.columns is None else wanted.columns
    # One column at least: the number of rows is that of a column.
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
        arrays = [
            _converted(cast("ArrowArray", rows.column(place[index])), field, location)
            if index < count
            else pa.nulls(rows.num_rows, field.type)
            for index, field in zip(columns, fields, strict=True)
        ]
        rows = pa.RecordBatch.from_arrays(arrays, schema=schema) if arrays else rows.select([])
        yield PageRows(rows, page.timestamps, page.page_bytes)


def _converted(column: "ArrowArray", field: "ArrowField", location: Location) -> "ArrowArray":
    """Return a column of a page as another version has it."""
    if column.null_count and not field.nullable:
        raise _mismatch(field, location, "may not be null")
    if column.type == field.type:
        return column
    try:
        converted = cast("ArrowArray", column.cast(field.type))
    except pa.ArrowInvalid:
        raise _mismatch(field, location, f"is {type_name(field.type)}") from None
    if pa.types.is_floating(field.type) and field.type.bit_width < column.type.bit_width:
        became = pc.and_not(pc.is_inf(converted), pc.is_inf(column))
        if pc.any(became).as_py():
            raise _mismatch(field, location, f"is {type_name(field.type)}")
    return converted


def _mismatch(field: "ArrowField", location: Location, what: str) -> SchemaMismatch:
    start, end = location.start_offset, location.end_offset
    return SchemaMismatch(
        f"column {field.name!r:.80} {what} in the version of the schema that is read, and has a "
        f"value at offsets {start} to {end} that it cannot hold, of version "
        f"{location.schema_version}",
        column=field.name,
    )
