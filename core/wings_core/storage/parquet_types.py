"""Conversion of columns to and from Parquet: types that every engine reads, with field ids.

In files, integers and floats have 32 or 64 bits, decimals 128 where the digits fit, times and
timestamps count microseconds or nanoseconds, time zones are UTC, and all list types are lists.
Fields inside nested columns are nullable. Reading restores the topic's types; each value has
exactly one form in a file.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from wings_core.arrow_compute import pc
from wings_core.arrow_types import children, shape
from wings_core.errors import InvalidSchema

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowArray, ArrowField

_arrow: Any = pa
_build: Any = pa.Array

_STORED: dict[pa.DataType, pa.DataType] = {
    **{each: each for each in (pa.bool_(), pa.uint64(), pa.float32(), pa.float64(), pa.date32())},
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16()), pa.int32()),
    **dict.fromkeys((pa.int64(), pa.uint32()), pa.int64()),
    **dict.fromkeys((pa.string(), pa.large_string()), pa.string()),
    **dict.fromkeys((pa.binary(), pa.large_binary()), pa.binary()),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}
_MICROSECONDS = ("s", "ms", "us")
_DECIMAL128_DIGITS_MAX = 38

FIELD_ID = b"PARQUET:field_id"
"""Key in a field's metadata that pyarrow writes as the field id."""


def file_type(data_type: pa.DataType, path: str, ids: Callable[[], int]) -> pa.DataType:
    """Return the type of a column in a Parquet file.

    Args:
        data_type: The topic's type.
        path: Dotted path of the field, for errors.
        ids: Returns the next id, for each field inside a nested type.

    Raises:
        InvalidSchema: Parquet has no such type; fact `column` is the dotted path.
    """
    if not children(data_type):
        return _flat(data_type, path)
    # All fields of a level get their ids before those nested in them.
    numbered = [(child, ids()) for child in children(data_type)]
    inner = [
        (child, number, file_type(child.type, f"{path}.{child.name}", ids))
        for child, number in numbered
    ]
    if pa.types.is_map(data_type):
        (_, key_id, key_type), (_, value_id, value_type) = inner
        return _arrow.map_(
            with_id(pa.field("key", key_type, nullable=False), key_id),
            with_id(pa.field("value", value_type), value_id),
        )
    fields = [with_id(pa.field(child.name, type_), number) for child, number, type_ in inner]
    if pa.types.is_struct(data_type):
        return pa.struct(fields)
    return _arrow.list_(fields[0].with_name("element"))


def with_id(field: "ArrowField", number: int) -> "ArrowField":
    """Return a field with its id in the metadata."""
    return field.with_metadata({FIELD_ID: str(number).encode()})


def _flat(data_type: pa.DataType, path: str) -> pa.DataType:
    stored = _STORED.get(data_type)
    if stored is not None:
        return stored
    if pa.types.is_duration(data_type):
        return pa.int64()
    if pa.types.is_fixed_size_binary(data_type) and data_type.byte_width:
        return data_type
    nested = cast("Any", data_type)
    if pa.types.is_time(data_type):
        return pa.time64("ns" if nested.unit == "ns" else "us")
    if pa.types.is_timestamp(data_type):
        unit = "us" if nested.unit in _MICROSECONDS else "ns"
        return _arrow.timestamp(unit, None if nested.tz is None else "UTC")
    if pa.types.is_decimal(data_type) and 0 <= nested.scale <= nested.precision:
        if nested.precision > _DECIMAL128_DIGITS_MAX:
            return data_type
        return pa.decimal128(nested.precision, nested.scale)
    raise InvalidSchema(
        f"column {path!r:.80}: a column of type {data_type!s:.80} cannot be stored as Parquet",
        column=path,
    )


def to_file(column: "ArrowArray", wanted: pa.DataType) -> "ArrowArray":
    """Convert a column to its type in the file.

    Args:
        column: A topic's column.
        wanted: The result of `file_type`.

    Raises:
        pa.ArrowInvalid: The file's type cannot hold a value.
    """
    if children(column.type):
        # Parquet's writer rejects null lists that have items.
        column = column.take(_arrow.arange(0, len(column)))
    return _converted(column, wanted)


def from_file(column: "ArrowArray", wanted: pa.DataType) -> "ArrowArray":
    """Convert a column of a file to the topic's type.

    Raises:
        pa.ArrowInvalid: `to_file` could not have produced the column.
    """
    if column.offset and children(column.type):
        column = column.take(_arrow.arange(0, len(column)))
    return _converted(column, wanted)


def _converted(column: "ArrowArray", wanted: pa.DataType) -> "ArrowArray":
    if column.type == wanted:
        return column
    if not children(wanted):
        return _cast(column, wanted)
    types = [child.type for child in children(wanted)]
    if pa.types.is_struct(wanted):
        struct = cast("Any", column)
        inner = [_converted(struct.field(place), each) for place, each in enumerate(types)]
        return _nested(column, wanted, inner)
    if pa.types.is_map(wanted):
        maps = cast("Any", column)
        entries = _build.from_buffers(
            pa.struct(children(wanted)),
            len(maps.keys),
            [None],
            children=[_converted(maps.keys, types[0]), _converted(maps.items, types[1])],
        )
        validity, offsets = maps.buffers()[:2]
        return _build.from_buffers(
            wanted, len(maps), [validity, offsets], offset=maps.offset, children=[entries]
        )
    return _list(column, wanted, types[0])


def _list(column: "ArrowArray", wanted: pa.DataType, item: pa.DataType) -> "ArrowArray":
    lists = cast("Any", column)
    if pa.types.is_fixed_size_list(column.type):
        size = shape(column.type)[0]
        values, valid = lists.values, column.is_valid()
        if column.null_count:
            values = values.filter(valid.take(_rows(len(column), size)))
        ends = pc.cumulative_sum(pc.multiply(valid.cast(pa.int32()), pa.scalar(size, pa.int32())))
        offsets = pa.concat_arrays([_arrow.array([0], pa.int32()), ends])
    elif pa.types.is_fixed_size_list(wanted):
        size = shape(wanted)[0]
        values = lists.flatten()
        if column.null_count:
            values = values.take(_spread(column, size))
        if len(values) != len(column) * size:
            raise pa.ArrowInvalid("a list has another length than the column's")
        return _nested(column, wanted, [_converted(values, item)])
    else:
        values, offsets = lists.values, lists.offsets
    offsets = offsets.cast(pa.int64() if pa.types.is_large_list(wanted) else pa.int32())
    return _build.from_buffers(
        wanted,
        len(column),
        [_validity(column), offsets.buffers()[1]],
        children=[_converted(values, item)],
    )


def _rows(count: int, size: int) -> "ArrowArray":
    """Return each row's index, repeated for each of its items."""
    offsets = pc.multiply(_arrow.arange(0, count + 1), size).cast(pa.int32())
    items = pa.nulls(count * size)
    lists = _build.from_buffers(
        _arrow.list_(pa.null()), count, [None, offsets.buffers()[1]], children=[items]
    )
    return cast("ArrowArray", pc.list_parent_indices(lists))


def _spread(column: "ArrowArray", size: int) -> "ArrowArray":
    """Return the index of the item in each slot of a fixed-size list; null in null lists."""
    rows = _rows(len(column), size)
    valid = column.is_valid()
    lists_before = pc.subtract(pc.cumulative_sum(valid.cast(pa.int64())), 1)
    moved = pc.subtract(lists_before.take(rows), rows)
    places = pc.add(_arrow.arange(0, len(rows)), pc.multiply(moved, size))
    return cast("ArrowArray", pc.if_else(valid.take(rows), places, pa.scalar(None, pa.int64())))


def _nested(
    column: "ArrowArray", wanted: pa.DataType, inner: "Sequence[ArrowArray]"
) -> "ArrowArray":
    return _build.from_buffers(wanted, len(column), [_validity(column)], children=list(inner))


def _validity(column: "ArrowArray") -> pa.Buffer | None:
    """Return the validity bitmap, without an offset; None if no value is null."""
    return cast("Any", column.is_valid()).buffers()[1] if column.null_count else None


def _cast(column: "ArrowArray", wanted: pa.DataType) -> "ArrowArray":
    if pa.types.is_duration(wanted) or pa.types.is_duration(column.type):
        return cast("ArrowArray", column.view(wanted))
    converted = cast("ArrowArray", column.cast(wanted))
    if column.type == pa.date64() and not converted.cast(pa.date64()).equals(column):
        raise pa.ArrowInvalid("a date has a time of day")
    return converted
