"""Reading pages of one schema version with the columns of another version."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.compute as pc

from wings_core.errors import SchemaMismatch
from wings_core.model import Location, Topic
from wings_core.storage.codecs.interfaces import PageCodec, PageRows, Wanted
from wings_core.storage.interfaces import FolioStore
from wings_core.suggestions import first_bad
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
