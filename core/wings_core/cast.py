"""Casts of columns to a topic's types; a conversion that would lose a value is rejected.

Arrow's own safe cast rejects overflow and truncation, with exceptions: it rounds doubles to floats,
drops the time of dates, and parses numbers from text. So conversions are allowed by kind, and those
that Arrow does not check are converted back and compared.

    text, binary        among string, large and view types (and fixed size for binary)
    integer, float      values unchanged
    decimal             from integers and decimals, to integers and decimals, values unchanged
    timestamp           other units and zones, values unchanged; never between with and without zone
    date                from and to timestamps without zone, at midnight
    time, duration      other units, values unchanged
    list, struct, map   of these, if Arrow's cast alone does the conversion
    dictionary, run-end, extension: as their value types; null: to any type
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from wings_core.arrow_compute import pc
from wings_core.arrow_types import children, fields_of, is_list
from wings_core.contracts.messages import shortened
from wings_core.errors import SchemaMismatch, suggested
from wings_core.type_names import type_name

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowArray, ArrowField

_types = pa.types


class Conversion(IntEnum):
    """Kinds of conversion between two types; a higher value is worse."""

    SAFE = 0
    """A cast that Arrow checks completely."""
    CHECKED = 1
    """A cast whose result is converted back and compared."""
    NONE = 2
    """No conversion: another kind, or inherently lossy."""


class Caster:
    """A cast of batches of one schema to a topic's schema, matching columns by name.

    A missing nullable column becomes null, so that a producer with an earlier version of the schema
    can push.

    Args:
        source: The schema of the batches.
        target: The topic's schema.

    Raises:
        SchemaMismatch: A column is missing, duplicate or superfluous, or its type cannot be
            converted to the topic's. Facts `column`, `expected`, `actual`.
    """

    def __init__(self, source: pa.Schema, target: pa.Schema) -> None:
        self._target = target
        self._as_is = source.equals(target)
        if self._as_is:
            return  # A topic's schema, whose names are unique.
        wanted = {field.name: field for field in wanted_fields(source.names, target)}
        indices = {name: _find(source, field) for name, field in wanted.items()}
        for name in source.names:
            if name not in wanted:
                hint = suggested(name, target.names)
                raise _mismatch(f"column {name!r:.80} is not a column of the topic{hint}", name)
        self._indices = [indices.get(field.name) for field in fields_of(target)]

    def cast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the topic's schema.

        Raises:
            SchemaMismatch: A value would be lost; fact `column`.
        """
        if self._as_is:
            return batch
        arrays = [
            pa.nulls(batch.num_rows, field.type)
            if index is None
            else cast_column(cast("Any", batch).column(index), field)
            for index, field in zip(self._indices, fields_of(self._target), strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._target)


def wanted_fields(names: Iterable[str], target: pa.Schema) -> "list[ArrowField]":
    """Return the topic's columns that are present or required, at least one.

    Args:
        names: Names of the present columns.
        target: The topic's schema.
    """
    fields, there = fields_of(target), set(names)
    return [field for field in fields if field.name in there or not field.nullable] or fields[:1]


def cast_column(array: "ArrowArray", field: "ArrowField") -> "ArrowArray":
    """Cast a column to the type of a topic's field.

    Raises:
        SchemaMismatch: A value would be lost; fact `column`.
    """
    try:
        return _convert(array, field.type)
    except (pa.ArrowException, ValueError) as problem:
        raise _mismatch(
            f"column {field.name!r:.80} cannot become {_shown(field.type)} without loss: "
            f"{problem!s:.200}",
            field.name,
            field.type,
            array.type,
        ) from None


def conversion(source: pa.DataType, target: pa.DataType) -> Conversion:
    """Return the kind of conversion from `source` to `target`."""
    source = _meant(source)
    if source.equals(target) or _types.is_null(source):
        return Conversion.SAFE
    if (_is_text(source) and _is_text(target)) or (_is_binary(source) and _is_binary(target)):
        return Conversion.SAFE
    if _is_number(source) and _is_number(target):
        return _number_conversion(source, target)
    if _types.is_temporal(source) and _types.is_temporal(target):
        return _temporal_conversion(source, target)
    return _nested_conversion(source, target)


def _find(source: pa.Schema, field: "ArrowField") -> int:
    indices: list[int] = source.get_all_field_indices(field.name)
    if not indices:
        hint = suggested(field.name, source.names)
        raise _mismatch(f"column {field.name!r:.80} is missing{hint}", field.name, field.type)
    if len(indices) > 1:
        raise _mismatch(f"column {field.name!r:.80} is duplicate", field.name, field.type)
    actual = source.field(indices[0]).type  # `types` would build a list for each column.
    if conversion(actual, field.type) is Conversion.NONE:
        hint = ""
        if _types.is_timestamp(actual) and _types.is_timestamp(field.type):
            hint = ": one has a time zone and the other has none"
        elif _is_text(actual) and _types.is_temporal(field.type):
            hint = ": parse the texts first, like pandas.to_datetime(texts, utc=True)"
        raise _mismatch(
            f"column {field.name!r:.80} has type {_shown(actual)}, which cannot become "
            f"{_shown(field.type)} without loss or guessing{hint}",
            field.name,
            field.type,
            actual,
        )
    return indices[0]


def _convert(array: "ArrowArray", target: pa.DataType) -> "ArrowArray":
    found = cast("Any", array)
    source = array.type
    if source.equals(target):
        return array
    if isinstance(array, pa.ExtensionArray):
        return _convert(found.storage, target)
    if _types.is_dictionary(source):
        return _convert(found.dictionary, target).take(found.indices)
    if _types.is_run_end_encoded(source):
        return _convert(pc.run_end_decode(array), target)
    if _is_list_view(source):
        return _convert(_listed(found), target)
    if _types.is_integer(source) and _types.is_decimal(target):
        # Arrow requires digits for every integer of the type, whatever the values are.
        found = found.cast(pa.decimal256(76, max(0, cast("Any", target).scale)))
    if _types.is_time32(source):
        found.validate(full=True)  # Invalid seconds of a day may overflow as milliseconds.
    casted = found.cast(target)
    if conversion(source, target) is Conversion.CHECKED:
        # Compared as wide decimals: cast back to an unsigned integer, -1 would be the greatest.
        _check_unchanged(found, casted)
    return casted


def _listed(views: Any) -> "ArrowArray":
    """Convert list views to lists; Arrow's own cast produces invalid offsets."""
    lengths = pc.list_value_length(views).fill_null(0)
    offsets = pa.concat_arrays([pa.nulls(1, lengths.type).fill_null(0), pc.cumulative_sum(lengths)])
    large = _types.is_large_list_view(views.type)
    kind = cast("Any", pa.LargeListArray if large else pa.ListArray)
    return kind.from_arrays(offsets, pc.list_flatten(views), mask=views.is_null())


def _check_unchanged(array: "ArrowArray", casted: "ArrowArray") -> None:
    back = cast("Any", casted).cast(array.type, safe=False)
    differs = pc.not_equal(array, back)
    if _types.is_floating(array.type):
        both_nan = pc.and_(pc.is_nan(array), pc.is_nan(back))
        differs = pc.and_not(differs, both_nan)
    index = differs.index(True).as_py()
    if index >= 0:
        raise ValueError(f"{_text(array, index)} would be {_text(casted, index)}")


def _text(array: "ArrowArray", index: int) -> str:
    """Return a value as text, even if Python has no value for the time."""
    try:
        return str(array[index])
    except (ValueError, OverflowError):
        return str(array.slice(index, 1))


def _meant(data_type: pa.DataType) -> pa.DataType:
    """Return the value type of an encoded type."""
    found = cast("Any", data_type)
    if isinstance(data_type, pa.BaseExtensionType):
        return _meant(found.storage_type)
    if _types.is_dictionary(data_type) or _types.is_run_end_encoded(data_type):
        return _meant(found.value_type)
    return data_type


def _number_conversion(source: pa.DataType, target: pa.DataType) -> Conversion:
    if _types.is_decimal(target):
        return _decimal_conversion(source, cast("Any", target))
    if _types.is_decimal(source):
        return Conversion.NONE if _types.is_floating(target) else Conversion.SAFE
    if _types.is_float16(target):
        return Conversion.CHECKED
    if _types.is_floating(source) and _types.is_floating(target):
        widens = target.bit_width >= source.bit_width
        return Conversion.SAFE if widens else Conversion.CHECKED
    return Conversion.SAFE


def _decimal_conversion(source: pa.DataType, target: Any) -> Conversion:
    if _types.is_floating(source):
        return Conversion.NONE
    known = cast("Any", source)
    decimal = _types.is_decimal(source)
    digits = known.precision - known.scale if decimal else len(str(1 << source.bit_width))
    widens = target.precision - target.scale >= digits
    if widens and target.scale >= (known.scale if decimal else 0):
        return Conversion.SAFE
    # With fewer digits, Arrow's cast may overflow without an error.
    return Conversion.CHECKED


def _temporal_conversion(source: pa.DataType, target: pa.DataType) -> Conversion:
    if _types.is_timestamp(source) and _types.is_timestamp(target):
        zones = [cast("Any", each).tz is not None for each in (source, target)]
        return Conversion.SAFE if zones[0] == zones[1] else Conversion.NONE
    if _is_day(source) and _is_day(target):
        return Conversion.CHECKED
    for same in (_types.is_time, _types.is_duration):
        if same(source) and same(target):
            return Conversion.SAFE
    return Conversion.NONE


def _nested_conversion(source: pa.DataType, target: pa.DataType) -> Conversion:
    if _is_any_list(source) and is_list(target):
        pairs = [(cast("Any", source).value_field, children(target)[0])]
    elif _types.is_map(source) and _types.is_map(target):
        pairs = list(zip(children(source), children(target), strict=True))
    elif _types.is_struct(source) and _types.is_struct(target):
        found = {field.name: field for field in children(source)}
        wanted = {field.name: field for field in children(target)}
        if found.keys() != wanted.keys() or len(found) != len(children(source)):
            return Conversion.NONE
        pairs = [(found[name], wanted[name]) for name in wanted]
    else:
        return Conversion.NONE
    # Conversions beyond Arrow's cast are only supported for top-level columns.
    safe = all(
        conversion(one.type, other.type) is Conversion.SAFE and not _is_list_view(one.type)
        for one, other in pairs
    )
    return Conversion.SAFE if safe else Conversion.NONE


def _is_text(data_type: pa.DataType) -> bool:
    return (
        _types.is_string(data_type)
        or _types.is_large_string(data_type)
        or _types.is_string_view(data_type)
    )


def _is_binary(data_type: pa.DataType) -> bool:
    return (
        _types.is_binary(data_type)
        or _types.is_large_binary(data_type)
        or _types.is_binary_view(data_type)
        or _types.is_fixed_size_binary(data_type)
    )


def _is_number(data_type: pa.DataType) -> bool:
    return (
        _types.is_integer(data_type)
        or _types.is_floating(data_type)
        or _types.is_decimal(data_type)
    )


def _is_day(data_type: pa.DataType) -> bool:
    """Return whether a type is a date, or a timestamp without zone, which can represent one."""
    if _types.is_timestamp(data_type):
        return cast("Any", data_type).tz is None
    return _types.is_date(data_type)


def _is_any_list(data_type: pa.DataType) -> bool:
    return is_list(data_type) or _is_list_view(data_type)


def _is_list_view(data_type: pa.DataType) -> bool:
    return _types.is_list_view(data_type) or _types.is_large_list_view(data_type)


def _mismatch(
    message: str,
    column: str,
    expected: pa.DataType | None = None,
    actual: pa.DataType | None = None,
) -> SchemaMismatch:
    return SchemaMismatch(
        shortened(message),
        column=column,
        expected=None if expected is None else _shown(expected),
        actual=None if actual is None else _shown(actual),
    )


def _shown(data_type: pa.DataType) -> str:
    text = type_name(data_type)
    return text if len(text) <= 120 else text[:117] + "..."
