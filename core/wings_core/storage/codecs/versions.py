"""Pages of one version of a topic's schema, read as another version has their columns."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.compute as pc

from wings_core.errors import SchemaMismatch
from wings_core.first_bad import first_bad
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
        SchemaMismatch: A page has a value that an earlier version cannot hold; fact `offset`, of
            the first such row.

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
        first = location.start_offset + wanted.part_of(location)[0]
        arrays = [
            _converted(cast("ArrowArray", rows.column(place[index])), field, first)
            if index < count
            else pa.nulls(rows.num_rows, field.type)
            for index, field in zip(columns, fields, strict=True)
        ]
        rows = pa.RecordBatch.from_arrays(arrays, schema=schema) if arrays else rows.select([])
        yield PageRows(rows, page.timestamps, page.page_bytes)


def _converted(column: "ArrowArray", field: "ArrowField", first_offset: int) -> "ArrowArray":
    """Return a column of a page as another version has it."""
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
    """Return a column as a field has it; None where the field cannot hold a value."""
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
