"""Converts rows of Python values to a batch, and refuses any conversion that changes a value.

pyarrow converts some values silently: 1.5 to the integer 1, a time to its date, an unknown nested
key to nothing. So its result is compared with the input.

Data of pandas becomes Arrow's; pandas is looked for among what the program has imported.
"""

import dataclasses
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from numbers import Real
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import pyarrow as pa

from wings_core.arrow_types import children, fields_of
from wings_core.cast import Caster, wanted_fields
from wings_core.contracts.messages import shortened
from wings_core.errors import InvalidArgument, SchemaMismatch, suggested
from wings_core.type_names import type_name

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowArray, ArrowField

Row = Mapping[str, Any]


def batch_of_rows(rows: Sequence[Row], schema: pa.Schema, first_row: int = 0) -> pa.RecordBatch:
    """Return rows as a batch; a key that is absent is null.

    Args:
        rows: Rows by column name.
        schema: The topic's.
        first_row: The number of the first row, for errors.

    Raises:
        SchemaMismatch: A key that is no column, or a value that is not of its column's type; facts
            `column` and `row`.
    """
    names = set(schema.names)
    for index, row in enumerate(rows):
        if not row.keys() <= names:
            unknown = next(key for key in row if key not in names)
            hint = suggested(str(unknown), schema.names)
            raise _mismatch(
                f"{unknown!r:.80} is not a column of the topic{hint}",
                str(unknown),
                first_row + index,
            )
    arrays = [
        _column([row.get(field.name) for row in rows], field, first_row)
        for field in fields_of(schema)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def batch_of_items(items: Sequence[object], schema: pa.Schema, first_row: int) -> pa.RecordBatch:
    """Return rows of any kind as a batch.

    Args:
        items: Mappings, dataclasses, pydantic models, or sequences of a value for each column.
        schema: The topic's.
        first_row: The number of the first row, for errors.

    Raises:
        SchemaMismatch: An item is no row, or as `batch_of_rows`; fact `row`.
    """
    width = len(schema)
    if set(map(type, items)) != {tuple} or set(map(len, cast("Any", items))) != {width}:
        names = schema.names
        rows = [_mapping_of(item, names, first_row + index) for index, item in enumerate(items)]
        return batch_of_rows(rows, schema, first_row)
    # Not by `zip(*items)`: it makes an iterator for each row, for the garbage collector to look at.
    arrays = [
        _column(list(map(itemgetter(index), cast("Any", items))), field, first_row)
        for index, field in enumerate(fields_of(schema))
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def values_getter(names: Sequence[str]) -> Callable[[Row], tuple[Any, ...]]:
    """Return a function that gets the values of these columns from a mapping, in order.

    It raises KeyError where one is absent.
    """
    if len(names) == 1:
        (name,) = names
        return lambda row: (row[name],)
    return itemgetter(*names)


def snapshot(row: object) -> object:
    """Return a row as it is now, whatever its caller does with it next: a dict or a tuple.

    Lists and dicts inside of it are not copied. Something that is no row is returned as it is.
    """
    if isinstance(row, Mapping):
        return dict(cast("Mapping[str, object]", row))
    if isinstance(row, list):
        return tuple(cast("list[object]", row))
    try:
        found = mapping_of_object(row)
    except Exception:  # noqa: BLE001 - told when it is converted, as of that row.
        return row
    return row if found is None else found


def mapping_of_object(item: Any) -> Row | None:
    """Return a dataclass, a pydantic model or a NamedTuple as a mapping; None for all else."""
    if isinstance(item, type):
        return None
    if dataclasses.is_dataclass(item):
        return {field.name: _plain(getattr(item, field.name)) for field in dataclasses.fields(item)}
    if (dump := getattr(item, "model_dump", None)) is not None:  # Of a pydantic model.
        return {name: _plain(value) for name, value in dump(by_alias=False).items()}
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        values = cast("Any", item)
        return {name: _plain(each) for name, each in zip(values._fields, values, strict=True)}
    return None


def _mapping_of(item: Any, names: Sequence[str], row: int) -> Row:
    if isinstance(item, Mapping):
        return cast("Row", item)
    if (found := mapping_of_object(item)) is not None:
        return found
    if isinstance(item, Sequence) and not isinstance(item, (str, bytes, bytearray)):
        values = cast("Sequence[Any]", item)
        if len(values) == len(names):
            return dict(zip(names, values, strict=True))
        raise _mismatch(f"{len(values)} values, the topic has {len(names)} columns", "", row)
    raise _mismatch(
        f"a {type(item).__name__} is no row: expected a mapping, a dataclass, a pydantic model or "
        "a sequence of values",
        "",
        row,
    )


_SCALARS = frozenset({str, int, float, bool, bytes, type(None), datetime, date})


def _plain(value: Any) -> Any:
    """Return a field's value; what is nested in it, also in lists and dicts, as mappings."""
    if type(value) in _SCALARS:
        return value
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {_plain(key): _plain(each) for key, each in items}
    found = mapping_of_object(value)
    if found is not None:
        return found
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in cast("Sequence[Any]", value)]
    return value


def batch_of_columns(columns: Mapping[str, Iterable[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch from the values of each column, Python's or an array of Arrow's.

    A column that may be null may be missing, and becomes null.

    Raises:
        SchemaMismatch: A key that is no column, a column that is missing or of another length, or
            a value that is not of its column's type; fact `column`.
    """
    for name in columns:
        if name not in schema.names:
            hint = suggested(str(name), schema.names)
            raise _mismatch(f"{name!r:.80} is not a column of the topic{hint}", str(name))
    fields = wanted_fields(columns, schema)
    arrays: list[ArrowArray] = []
    for field in fields:
        if field.name not in columns:
            raise _mismatch(f"column {field.name!r:.80} is missing", field.name)
        try:
            values = _arrow_or_python(columns[field.name])
        except pa.ArrowException as error:
            problem = f"column {field.name!r:.80} cannot become one of Arrow: {error!s:.200}"
            raise _mismatch(problem, field.name) from None
        as_arrow = isinstance(values, pa.Array)
        arrays.append(_cast(values, field) if as_arrow else _column(values, field, 0))
        if len(arrays[-1]) != len(arrays[0]):
            raise _mismatch(
                f"column {field.name!r:.80} has {len(arrays[-1])} values, the first column has "
                f"{len(arrays[0])}",
                field.name,
            )
    there = pa.schema(fields)
    return Caster(there, schema).cast(pa.RecordBatch.from_arrays(arrays, schema=there))


def _arrow_or_python(values: Any) -> Any:
    """Return the values of a column as an array of Arrow's, or as a list of Python's."""
    if is_pandas(values, "Series"):
        values = series_values(values)
    elif hasattr(values, "__arrow_c_stream__"):
        values = cast("Any", pa).chunked_array(values)
    elif hasattr(values, "__arrow_c_array__"):
        values = cast("Any", pa).array(values)
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    return values if isinstance(values, (pa.Array, list)) else list(values)


def _cast(array: "ArrowArray", field: "ArrowField") -> "ArrowArray":
    found = pa.RecordBatch.from_arrays([array], [field.name])
    return Caster(found.schema, pa.schema([field])).cast(found).column(0)


def _column(values: list[Any], field: "ArrowField", first_row: int) -> "ArrowArray":
    if _has_map(field.type):
        # pyarrow ends the process where an entry of a map is None (an assertion of its own).
        row = _first(_has_null_entry(value, field.type) for value in values)
        if row < len(values):
            raise _unfit(field, values[row], "an entry of a map is null", first_row + row)
    if (times := _times(values, field.type)) is not None:
        return times
    try:
        array: ArrowArray = cast("Any", pa).array(values, type=field.type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as problem:
        if (plain := _plain(values)) != values:  # UUIDs, or instances of classes, in mappings.
            return _column(plain, field, first_row)
        row = _first(not _converts(value, field.type) for value in values)
        raise _unfit(field, values[row], str(problem), first_row + row) from None
    if _is_exact(values, field.type):
        return array
    try:
        back = array.to_pylist()
    except (ValueError, OverflowError) as problem:  # Of times that Python has not.
        row = _first(not _reads(array, index) for index in range(len(array)))
        raise _unfit(field, values[row], str(problem), first_row + row) from None
    if not _equal(back, values):
        row = _first(not _same(*pair) for pair in zip(values, back, strict=True))
        if row < len(values):
            problem = f"would be {back[row]!r:.80}"
            raise _unfit(field, values[row], problem, first_row + row)
    return array


def _times(values: list[Any], data_type: pa.DataType) -> "ArrowArray | None":
    """Return times as a column; None unless all are of UTC, or none has a zone, as the column says.

    pyarrow asks the zone of each value, which takes five times as long as to subtract.
    """
    if not pa.types.is_timestamp(data_type) or set(map(type, values)) != {datetime}:
        return None
    zones = set(map(attrgetter("tzinfo"), values))
    if len(zones) != 1 or not _fits_zones(zones, data_type):
        return None
    # With the zone of the values, so that Python asks none for its offset.
    epoch = datetime(1970, 1, 1, tzinfo=zones.pop())
    since = cast("Any", pa).array([value - epoch for value in values], type=pa.duration("us"))
    return since.cast(pa.int64()).view(data_type)


def _fits_zones(zones: set[tzinfo | None], data_type: pa.DataType) -> bool:
    """Return whether a timestamp column stores times of these zones unchanged.

    Of microseconds, as datetime has them: a coarser unit drops some, a finer one ends sooner. Of
    UTC alone: other zones have gaps and folds, and reach beyond the years of datetime.
    """
    return cast("Any", data_type).unit == "us" and (
        zones == {None} if cast("Any", data_type).tz is None else all(map(_is_utc, zones))
    )


def _first(found: Iterable[bool]) -> int:
    """Return the index of the first that is true, or how many there are."""
    index = -1
    for index, each in enumerate(found):
        if each:
            return index
    return index + 1


_EXACT: dict[int, type] = {
    pa.bool_().id: bool,
    pa.float64().id: float,
    pa.string().id: str,
    pa.large_string().id: str,
    pa.binary().id: bytes,
    pa.large_binary().id: bytes,
    pa.date32().id: date,
}
"""Python types by Arrow type, whose values pyarrow stores unchanged or refuses."""


def _is_exact(values: list[Any], data_type: pa.DataType) -> bool:
    """Return whether the types of the values alone prove that none was changed.

    To compare the result costs several times as much as to make the column.
    """
    found = set(map(type, values))
    found.discard(type(None))
    if not found:
        return True
    if len(found) > 1:
        return False
    (python_type,) = found
    if pa.types.is_integer(data_type):
        return python_type is int
    if pa.types.is_timestamp(data_type) and python_type is datetime:
        return _fits_zones({value.tzinfo for value in values if value is not None}, data_type)
    return _EXACT.get(data_type.id) is python_type


def _is_utc(zone: tzinfo | None) -> bool:
    """Return whether a zone is UTC at all times, as Python, zoneinfo and pytz name it."""
    known = isinstance(zone, (timezone, ZoneInfo)) or type(zone).__module__ == "pytz"
    return known and zone is not None and zone.utcoffset(None) == timedelta(0)


def _has_map(data_type: pa.DataType) -> bool:
    return pa.types.is_map(data_type) or any(_has_map(each.type) for each in children(data_type))


def _has_null_entry(value: Any, data_type: pa.DataType) -> bool:
    """Return whether a map somewhere in a value has None in the place of an entry."""
    if value is None or not _has_map(data_type):
        return False
    inner = children(data_type)
    if pa.types.is_struct(data_type):
        return isinstance(value, Mapping) and any(
            _has_null_entry(cast("Row", value).get(each.name), each.type) for each in inner
        )
    if isinstance(value, Mapping) or not isinstance(value, Iterable):
        return False
    items = list(cast("Iterable[Any]", value))
    if pa.types.is_map(data_type):
        return any(item is None for item in items)
    return any(_has_null_entry(item, inner[0].type) for item in items)


def _reads(array: "ArrowArray", index: int) -> bool:
    try:
        array[index].as_py()
    except (ValueError, OverflowError):
        return False
    return True


def _converts(value: Any, data_type: pa.DataType) -> bool:
    try:
        cast("Any", pa).array([value], type=data_type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return False
    return True


def _same(given: Any, back: Any) -> bool:
    """Return whether a value read back from Arrow equals the one given."""
    if isinstance(given, pa.Scalar):
        try:
            given = given.as_py()
        except (ValueError, OverflowError):  # Of a time that Python has not.
            return False
    if isinstance(back, float) and isinstance(given, float):
        # A float column can only round 0.1; what overflows it is lost.
        return math.isinf(given) or not math.isinf(back)
    if isinstance(back, bytes) and isinstance(given, str):
        return back == given.encode()
    if isinstance(back, str) and isinstance(given, bytes):
        return back.encode() == given
    if isinstance(given, Mapping):
        return _same_mapping(cast("Mapping[Any, Any]", given), back)
    if isinstance(back, (list, tuple)) and not isinstance(given, (str, bytes)):
        return _same_items(given, cast("Sequence[Any]", back))
    if back is None:
        return given is None or _is_nan(given)
    return _equal(given, back) or _is_same_moment(given, back) or (_is_nan(given) and _is_nan(back))


def _is_same_moment(given: Any, back: Any) -> bool:
    """Return whether two times are one; to Python, a time in a fold or a gap equals no other."""
    times = [each for each in (given, back) if isinstance(each, datetime) and each.tzinfo]
    try:
        return len(times) == 2 and times[0].astimezone(UTC) == times[1].astimezone(UTC)
    except OverflowError:
        return False


def _is_nan(value: Any) -> bool:
    """Return whether a value is NaN; also of NumPy's float32, which is no `float`."""
    return isinstance(value, Real) and value != value


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except ValueError:  # NumPy's arrays have no truth value.
        return False


def _same_mapping(given: Mapping[Any, Any], back: Any) -> bool:
    if isinstance(back, dict):  # A struct; its other fields were not given, and are null.
        fields = cast("dict[Any, Any]", back)
        return given.keys() <= fields.keys() and all(
            _same(given.get(key), value) for key, value in fields.items()
        )
    return isinstance(back, list) and _same_items(given.items(), cast("list[Any]", back))


def _same_items(given: Iterable[Any], back: Sequence[Any]) -> bool:
    items = list(given)
    return len(items) == len(back) and all(_same(*pair) for pair in zip(items, back, strict=True))


def _unfit(field: "ArrowField", value: Any, problem: str, row: int) -> SchemaMismatch:
    return _mismatch(
        f"column {field.name!r:.80}: {value!r:.80} is not a value of type "
        f"{type_name(field.type):.80}: {problem:.200}",
        field.name,
        row,
    )


def _mismatch(message: str, column: str, row: int | None = None) -> SchemaMismatch:
    if row is None:
        return SchemaMismatch(shortened(message), column=column)
    return SchemaMismatch(shortened(f"row {row}: {message}"), column=column, row=row)


def is_pandas(data: object, name: str) -> bool:
    """Tell whether data is of the class `name` of pandas."""
    # While another thread is still importing it, nothing of it can exist.
    found = getattr(sys.modules.get("pandas"), name, None)
    return found is not None and isinstance(data, found)


def frame_table(frame: Any, schema: pa.Schema | None = None) -> pa.Table:
    """Return a data frame as a table; its NaN is null.

    Levels of its index that have a name are columns after its own, as in a Parquet file of it. An
    index without a name numbers the rows, and is dropped.

    Args:
        frame: Frame of pandas.
        schema: The topic's that it is pushed to; None: any.

    Raises:
        SchemaMismatch: The topic has no column of the name of the index, or the frame has one.
        InvalidArgument: Arrow has no such columns.
    """
    names: list[object] = list(frame.index.names)
    named = [str(name) for name in names if name is not None]
    if not named:
        return _table(frame, preserve_index=False)
    columns = set(map(str, frame.columns))
    for name in named:
        problem = "is a column too" if name in columns else "is not a column of the topic"
        if name in columns or (schema is not None and name not in schema.names):
            raise SchemaMismatch(
                f"the index {name!r:.80} {problem}: frame.reset_index(drop=True) is without it",
                column=name,
            )
    table = _table(frame, preserve_index=True)
    unnamed = [f"__index_level_{level}__" for level, name in enumerate(names) if name is None]
    return table.drop_columns(unnamed)


def _table(frame: Any, *, preserve_index: bool) -> pa.Table:
    try:
        return pa.Table.from_pandas(frame, preserve_index=preserve_index)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        problem = ", ".join(map(str, error.args))
        raise InvalidArgument(
            shortened(f"the data frame cannot become a table of Arrow: {problem}")
        ) from None


def series_values(series: Any) -> Any:
    """Return the values of a series: an Arrow array, or a list where it has Python's objects."""
    if series.dtype == object:
        return list(series.where(series.notna(), None))
    return pa.array(series)
