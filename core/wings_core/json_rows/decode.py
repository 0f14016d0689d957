"""Decoding of a JSON array of objects into a batch of a topic's schema.

Arrow's JSON reader supports numbers, booleans, strings, lists and structs, and is strict: a value
of another kind, a number out of range or with a fraction for an integer, an unknown field and a
duplicate field are errors. Other types are read as one of these and converted here, by column.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.json

from wings_core.arrow_compute import pc
from wings_core.arrow_types import children, fields_of, is_list, shape
from wings_core.batches import check_batch
from wings_core.errors import BatchTooLarge, SchemaMismatch
from wings_core.json_rows.diagnostics import first_problem
from wings_core.json_rows.values import (
    INTERVAL,
    Column,
    UnfitError,
    arrow,
    check_all,
    intervals_of,
    parse_base64,
    parse_dates,
    parse_decimals,
    parse_durations,
    parse_times,
    parse_timestamps,
)

DATA_BYTES_MAX = 1 << 30
"""Longest array in bytes; Arrow's reader counts bytes in an int32."""


def decode_rows(
    data: bytes, schema: pa.Schema, fill: Mapping[str, str] | None = None
) -> pa.RecordBatch:
    """Decode a JSON array of objects into a batch.

    Every row must fit exactly: at any depth no unknown or duplicate field, and no value of another
    kind, out of range, or in another form than `encode` writes. An absent field is null.

    Args:
        data: The array, in UTF-8.
        schema: The topic's schema, and that of the batch.
        fill: JSON texts by column, used where a row's value is absent or null.

    Raises:
        InvalidArgument: The data is not JSON.
        SchemaMismatch: A row does not fit; facts `row` (0-based) and `column` (a dotted path)
            locate the first problem.
        BatchTooLarge: More bytes than `DATA_BYTES_MAX`.
    """
    if len(data) > DATA_BYTES_MAX:
        raise BatchTooLarge(f"{len(data)} bytes of rows, the limit is {DATA_BYTES_MAX}")
    fill = fill or {}
    try:
        return _decode(data, schema, fill)
    except (ValueError, SchemaMismatch) as problem:
        # Bulk decoding does not report which row is bad; finding it is slow.
        raise first_problem(data, schema, fill, _decode, problem) from None


def _decode(data: bytes, schema: pa.Schema, fill: Mapping[str, str]) -> pa.RecordBatch:
    """Decode rows in bulk.

    Raises:
        ValueError: A row does not fit, or the JSON is malformed.
        SchemaMismatch: A null in a column that is not nullable.
    """
    data.decode("utf-8")  # Arrow's reader does not validate it.
    rows = _read(data, schema)
    columns: list[Column] = []
    for index, field in enumerate(fields_of(schema)):
        column = converted(pc.struct_field(rows, [index]), field.type)
        if field.name in fill and column.null_count:
            value = _value(fill[field.name], field.type)
            column = pc.fill_null(column, value)
        columns.append(column)
    batch: pa.RecordBatch = arrow.RecordBatch.from_arrays(columns, schema=schema)
    check_batch(schema, batch)
    return batch


def _read(data: bytes, schema: pa.Schema) -> Column:
    """Read an array of objects as a column of structs of the reader's types."""
    fields = [pa.field(field.name, read_type(field.type)) for field in fields_of(schema)]
    # Wrapped as the only field of a single row, so that the array is read as a whole.
    document = b'{"rows":' + data + b"}"
    table: Any = arrow.json.read_json(
        pa.BufferReader(document),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(document) + 1),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=pa.schema([pa.field("rows", pa.list_(pa.struct(fields)))]),
            newlines_in_values=True,
            unexpected_field_behavior="error",
        ),
    )
    if table.num_rows != 1 or table.column(0).null_count:
        raise UnfitError("expected one array of objects")
    rows: Column = table.column(0).chunk(0).values
    if rows.null_count:
        raise UnfitError("a row must not be null")
    return rows


def _value(text: str, data_type: pa.DataType) -> Any:
    """Read one JSON value."""
    rows = _read(f'[{{"value":{text}}}]'.encode(), pa.schema([pa.field("value", data_type)]))
    return converted(pc.struct_field(rows, [0]), data_type)[0]


def read_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type that a column is read as, before `converted` converts it."""
    if pa.types.is_map(data_type):
        key, value = children(data_type)
        entry = [pa.field("key", read_type(key.type)), pa.field("value", read_type(value.type))]
        return pa.list_(pa.struct(entry))
    if is_list(data_type):
        return pa.list_(read_type(children(data_type)[0].type))
    if pa.types.is_struct(data_type):
        fields = children(data_type)
        return pa.struct([pa.field(field.name, read_type(field.type)) for field in fields])
    if data_type == pa.month_day_nano_interval():
        return pa.struct([field.with_nullable(True) for field in INTERVAL])
    if pa.types.is_null(data_type):
        return pa.bool_()  # pyarrow 26 reads lists of nulls into invalid arrays.
    if data_type == pa.float16():
        return pa.float32()
    if _is_read_as_it_is(data_type):
        return data_type
    return pa.string()


def converted(values: Column, data_type: pa.DataType) -> Column:
    """Convert a column from `read_type(data_type)` to `data_type`.

    Args:
        values: Column of `read_type(data_type)`, without an offset.
        data_type: The topic's type.

    Raises:
        ValueError: A value does not fit.
    """
    if pa.types.is_struct(data_type):
        return _struct(values, data_type)
    if pa.types.is_map(data_type):
        return _map(values, data_type)
    if is_list(data_type):
        return _list(values, data_type)
    if pa.types.is_floating(data_type):
        values = values.cast(data_type)
        # The reader accepts NaN and Infinity, and reads too large numbers as infinity.
        check_all(pc.is_finite(values), f"expected a finite number in the range of {data_type}")
        return values
    if pa.types.is_null(data_type):
        check_all(pc.is_null(values), "expected null")
        return pa.nulls(len(values))
    if _is_read_as_it_is(data_type):
        return values
    if data_type == pa.month_day_nano_interval():
        return intervals_of(values)
    return _parsed(values, data_type)


def _is_read_as_it_is(data_type: pa.DataType) -> bool:
    return (
        pa.types.is_boolean(data_type)
        or pa.types.is_integer(data_type)
        or pa.types.is_floating(data_type)
        or pa.types.is_string(data_type)
        or pa.types.is_large_string(data_type)
    )


def _parsed(texts: Column, data_type: pa.DataType) -> Column:
    """Parse a column of strings."""
    if pa.types.is_timestamp(data_type):
        return parse_timestamps(texts, data_type)
    if pa.types.is_date(data_type):
        return parse_dates(texts, data_type)
    if pa.types.is_time(data_type):
        return parse_times(texts, data_type)
    if pa.types.is_duration(data_type):
        return parse_durations(texts, data_type)
    if pa.types.is_decimal(data_type):
        return parse_decimals(texts, data_type)
    return parse_base64(texts, data_type)


def _struct(values: Column, data_type: pa.DataType) -> Column:
    fields = children(data_type)
    parts = [
        converted(pc.struct_field(values, [index]), field.type)
        for index, field in enumerate(fields)
    ]
    if not parts:
        return values.cast(data_type)
    mask = pc.is_null(values)
    return arrow.StructArray.from_arrays(parts, fields=fields, mask=mask)


def _list(values: Column, data_type: pa.DataType) -> Column:
    items = converted(values.values, children(data_type)[0].type)
    if pa.types.is_fixed_size_list(data_type):
        return _fixed_size_list(values, items, data_type)
    # Constructed, since a cast rejects nulls under null structs.
    large = pa.types.is_large_list(data_type)
    build = arrow.LargeListArray if large else arrow.ListArray
    offsets = values.offsets.cast(pa.int64()) if large else values.offsets
    return build.from_arrays(offsets, items, data_type, mask=pc.is_null(values))


def _fixed_size_list(lists: Column, items: Column, data_type: pa.DataType) -> Column:
    size = shape(data_type)[0]
    check_all(pc.equal(pc.list_value_length(lists), size), f"expected {size} items")
    if size == 0:
        return lists.cast(pa.list_(items.type)).cast(data_type)
    if lists.null_count:
        # A fixed-size array has items under nulls, too, which are null.
        places = arrow.arange(0, len(lists) * size)
        rows = pc.divide(places, size)
        places = pc.add(lists.offsets.take(rows), pc.subtract(places, pc.multiply(rows, size)))
        items = items.take(pc.if_else(lists.is_valid().take(rows), places, None))
    return arrow.FixedSizeListArray.from_arrays(items, type=data_type, mask=pc.is_null(lists))


def _map(values: Column, data_type: pa.DataType) -> Column:
    key, value = children(data_type)
    entries = values.values
    check_all(entries.is_valid(), "expected an object with key and value")
    keys = converted(pc.struct_field(entries, [0]), key.type)
    check_all(keys.is_valid(), "a key must not be null")
    items = converted(pc.struct_field(entries, [1]), value.type)
    mask = pc.is_null(values)
    return arrow.MapArray.from_arrays(values.offsets, keys, items, data_type, mask=mask)
