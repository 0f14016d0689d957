"""Hypothesis strategies for schemas that a topic may have, and batches of them.

Values are drawn as the integers and bytes that Arrow stores, so that the extremes of every type
come up, also those that have no counterpart in Python.
"""

from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any, Literal

import pyarrow as pa
from hypothesis import strategies as st

arrow: Any = pa
"""The stubs know arrays by the type of their values, which here is any."""

ROWS_MAX = 5

_FLOAT_BITS: dict[pa.DataType, Literal[16, 32, 64]] = {
    pa.float16(): 16,
    pa.float32(): 32,
    pa.float64(): 64,
}
_ZONES = ("UTC", "Europe/Berlin", "-03:30")
_UNITS = ("s", "ms", "us", "ns")

FLAT_TYPES: list[pa.DataType] = [
    pa.null(), pa.bool_(),
    pa.int8(), pa.int16(), pa.int32(), pa.int64(),
    pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
    pa.float16(), pa.float32(), pa.float64(),
    pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(5), pa.binary(0),
    pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"),
    *[arrow.timestamp(unit) for unit in _UNITS],
    *[arrow.timestamp(unit, zone) for unit in _UNITS for zone in _ZONES],
    *[arrow.duration(unit) for unit in _UNITS],
    pa.month_day_nano_interval(),
    pa.decimal32(9, 2), pa.decimal64(18, 9), pa.decimal128(38, 18), pa.decimal128(5, -2),
    pa.decimal128(4, 6), pa.decimal256(76, 0), pa.decimal256(76, 38),
]  # fmt: skip


def names() -> st.SearchStrategy[str]:
    """Return names of columns and fields, of any characters that a topic may have in one."""
    allowed = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
    return st.text(allowed, min_size=1, max_size=6).filter(
        lambda name: not name.startswith(("__", ">")) and ": " not in name
    )


@st.composite
def _fields(draw: st.DrawFn, types: st.SearchStrategy[pa.DataType], least: int) -> list[Any]:
    fields: list[Any] = []
    for name in draw(st.lists(names(), min_size=least, max_size=4, unique=True)):
        data_type = draw(types)
        nullable = data_type == pa.null() or draw(st.booleans())
        fields.append(pa.field(name, data_type, nullable=nullable))
    return fields


def _item(data_type: pa.DataType) -> Any:
    return pa.field("item", data_type)


def _nested(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    item = types.map(_item)
    keys = st.sampled_from([pa.string(), pa.int64(), pa.binary(), arrow.timestamp("ns", "UTC")])
    return st.one_of(
        _fields(types, 0).map(pa.struct),
        item.map(arrow.list_),
        item.map(arrow.large_list),
        st.builds(arrow.list_, item, st.integers(1, 3)),
        st.builds(arrow.map_, keys, types),
    )


def types() -> st.SearchStrategy[pa.DataType]:
    """Return types of columns, flat and nested."""
    return st.recursive(st.sampled_from(FLAT_TYPES), _nested, max_leaves=4)


def schemas() -> st.SearchStrategy[pa.Schema]:
    """Return schemas that a topic may have."""
    return _fields(types(), 1).map(pa.schema)


@st.composite
def batches(
    draw: st.DrawFn, of: st.SearchStrategy[pa.Schema] | None = None, *, rows_min: int = 0
) -> pa.RecordBatch:
    """Return batches of a schema, or of any; some are slices of larger ones."""
    schema = draw(schemas() if of is None else of)
    rows = draw(st.integers(rows_min, ROWS_MAX))
    before = draw(st.integers(0, 2))
    columns = [
        draw(arrays(field.type, before + rows, nulls=field.nullable))
        for field in arrow_fields(schema)
    ]
    return arrow.RecordBatch.from_arrays(columns, schema=schema).slice(before)


def arrow_fields(schema: pa.Schema) -> list[Any]:
    """Return the columns of a schema."""
    return [schema.field(index) for index in range(len(schema))]


def arrays(data_type: pa.DataType, size: int, *, nulls: bool) -> st.SearchStrategy[Any]:
    """Return arrays of a type."""
    if pa.types.is_null(data_type):
        return st.just(pa.nulls(size))
    present = st.lists(st.booleans() if nulls else st.just(True), min_size=size, max_size=size)
    return present.flatmap(lambda valid: _arrays(data_type, valid))


@st.composite
def _arrays(draw: st.DrawFn, data_type: Any, valid: list[bool]) -> Any:
    mask = pa.array([not here for here in valid], pa.bool_())
    if pa.types.is_struct(data_type):
        fields = [data_type.field(index) for index in range(data_type.num_fields)]
        parts = [draw(arrays(field.type, len(valid), nulls=field.nullable)) for field in fields]
        if not parts:
            return pa.array([{} if here else None for here in valid], data_type)
        return arrow.StructArray.from_arrays(parts, fields=fields, mask=mask)
    if pa.types.is_fixed_size_list(data_type):
        size = data_type.list_size
        items = draw(arrays(data_type.value_type, size * len(valid), nulls=True))
        return arrow.FixedSizeListArray.from_arrays(items, type=data_type, mask=mask)
    if (
        pa.types.is_map(data_type)
        or pa.types.is_list(data_type)
        or pa.types.is_large_list(data_type)
    ):
        return _variable(draw, data_type, valid, mask)
    values = draw(st.lists(_VALUES[data_type], min_size=len(valid), max_size=len(valid)))
    return _stored(
        data_type, [value if here else None for value, here in zip(values, valid, strict=True)]
    )


def _variable(draw: st.DrawFn, data_type: Any, valid: list[bool], mask: Any) -> Any:
    lengths = draw(st.lists(st.integers(0, 3), min_size=len(valid), max_size=len(valid)))
    ends = [0]
    for length, here in zip(lengths, valid, strict=True):
        ends.append(ends[-1] + (length if here else 0))
    width = pa.int64() if pa.types.is_large_list(data_type) else pa.int32()
    offsets = pa.array(ends, width)
    if pa.types.is_map(data_type):
        keys = draw(arrays(data_type.key_type, ends[-1], nulls=False))
        items = draw(arrays(data_type.item_type, ends[-1], nulls=True))
        return arrow.MapArray.from_arrays(offsets, keys, items, data_type, mask=mask)
    items = draw(arrays(data_type.value_type, ends[-1], nulls=True))
    kind = arrow.LargeListArray if width == pa.int64() else arrow.ListArray
    return kind.from_arrays(offsets, items, data_type, mask=mask)


def _integers(bits: int, *, signed: bool = True) -> st.SearchStrategy[int]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return st.integers(low, high) | st.sampled_from([low, low + 1, 0, high - 1, high])


def _per_day(unit: str) -> int:
    return 86_400 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]


def _values(data_type: Any) -> st.SearchStrategy[Any]:
    """Return what a flat type stores."""
    is_type = pa.types
    if is_type.is_temporal(data_type):
        return _times(data_type)
    if is_type.is_boolean(data_type):
        return st.booleans()
    if is_type.is_integer(data_type):
        return _integers(data_type.bit_width, signed=is_type.is_signed_integer(data_type))
    if is_type.is_floating(data_type):
        return st.floats(allow_nan=False, allow_infinity=False, width=_FLOAT_BITS[data_type])
    if is_type.is_decimal(data_type):
        most = 10**data_type.precision - 1
        return st.integers(-most, most) | st.sampled_from([-most, -1, 0, 1, most])
    if is_type.is_fixed_size_binary(data_type):
        return st.binary(min_size=data_type.byte_width, max_size=data_type.byte_width)
    if is_type.is_binary(data_type) or is_type.is_large_binary(data_type):
        return st.binary(max_size=7)
    return st.text(max_size=6) | st.sampled_from(['"', "\\", "\x00\x1f\x7f", "\u2028", "𝄞"])


def _times(data_type: Any) -> st.SearchStrategy[Any]:
    is_type = pa.types
    if is_type.is_time(data_type):
        return st.integers(0, _per_day(data_type.unit) - 1)
    near = st.integers(-800_000, 3_000_000)
    if is_type.is_date64(data_type):
        most = (1 << 63) // 86_400_000 - 1
        return (st.integers(-most, most) | near).map(lambda day: day * 86_400_000)
    if is_type.is_date32(data_type):
        return _integers(32) | near
    if data_type == pa.month_day_nano_interval():
        return st.tuples(_integers(32), _integers(32), _integers(64))
    # Timestamps and durations: also ones of our time.
    recent = 20_000 * _per_day(data_type.unit)
    return _integers(64) | st.integers(recent, 2 * recent) | st.integers(-recent, recent)


_VALUES = {kind: _values(kind) for kind in FLAT_TYPES if kind != pa.null()}


def _stored(data_type: Any, values: list[Any]) -> Any:
    """Return an array of what a flat type stores."""
    if pa.types.is_temporal(data_type) and data_type != pa.month_day_nano_interval():
        width = pa.int32() if data_type.bit_width == 32 else pa.int64()
        return pa.array(values, width).view(data_type)
    if pa.types.is_decimal(data_type):
        make: Callable[[int, int], pa.DataType] = {
            32: pa.decimal32, 64: pa.decimal64, 128: pa.decimal128, 256: pa.decimal256,
        }[data_type.bit_width]  # fmt: skip
        exact = Context(prec=100)
        numbers = [None if value is None else Decimal(value, exact) for value in values]
        return arrow.array(numbers, make(data_type.precision, 0)).view(data_type)
    if data_type == pa.float16():
        return pa.array(values, pa.float32()).cast(data_type)
    return pa.array(values, data_type)
