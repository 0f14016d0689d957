"""Conversion of the types that Arrow's JSON reader produces to the types of a topic.

The reader supports numbers, booleans, strings, lists and structs, and is strict: a value of another
kind, a number out of range or with a fraction for an integer, an unknown field and a duplicate
field are errors. Other types are read as one of these and converted here, by column.
"""

import pyarrow as pa

from wings_core.arrow_compute import pc
from wings_core.arrow_types import children, is_list, shape
from wings_core.json_rows.binary import parse_base64
from wings_core.json_rows.decimals import parse_decimals
from wings_core.json_rows.intervals import INTERVAL, intervals_of
from wings_core.json_rows.kernels import Column, arrow, check_all
from wings_core.json_rows.temporal import (
    parse_dates,
    parse_durations,
    parse_times,
    parse_timestamps,
)


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
