"""Decoding of a JSON array of objects into a batch of a topic's schema.

Arrow's JSON reader supports numbers, booleans, strings, lists and structs, and is strict: a value
of another kind, a number out of range or with a fraction for an integer, an unknown field and a
duplicate field are errors. Other types are read as one of these and converted here, by column.

The first bad row of a batch is found for the error, slowly, so only after a failure: Python's JSON
decoder separates the rows, bisection finds the first bad one (a batch is bad if and only if one of
its rows is), and that row is examined value by value.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.json

from wings_core.arrow_compute import pc
from wings_core.arrow_types import children, fields_of, is_list, shape
from wings_core.batches import check_batch
from wings_core.errors import (
    BatchTooLarge,
    InvalidArgument,
    SchemaMismatch,
    WingsError,
    first_bad,
    suggested,
)
from wings_core.json_rows.values import (
    INTERVAL,
    Column,
    UnfitError,
    arrow,
    check_all,
    intervals_of,
    is_zoned,
    parse_base64,
    parse_dates,
    parse_decimals,
    parse_durations,
    parse_times,
    parse_timestamps,
)

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowField

DATA_BYTES_MAX = 1 << 30
"""Longest array in bytes; Arrow's reader counts bytes in an int32."""

_SHOWN_MAX = 60
_DEPTH_SHOWN_MAX = 3
_WHITESPACE = " \t\n\r"


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
        raise _first_problem(data, schema, fill, problem) from None


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
        column = _converted(pc.struct_field(rows, [index]), field.type)
        if field.name in fill and column.null_count:
            value = _value(fill[field.name], field.type)
            column = pc.fill_null(column, value)
        columns.append(column)
    batch: pa.RecordBatch = arrow.RecordBatch.from_arrays(columns, schema=schema)
    check_batch(schema, batch)
    return batch


def _read(data: bytes, schema: pa.Schema) -> Column:
    """Read an array of objects as a column of structs of the reader's types."""
    fields = [pa.field(field.name, _read_type(field.type)) for field in fields_of(schema)]
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
    return _converted(pc.struct_field(rows, [0]), data_type)[0]


def _read_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type that a column is read as, before `_converted` converts it."""
    if pa.types.is_map(data_type):
        key, value = children(data_type)
        entry = [pa.field("key", _read_type(key.type)), pa.field("value", _read_type(value.type))]
        return pa.list_(pa.struct(entry))
    if is_list(data_type):
        return pa.list_(_read_type(children(data_type)[0].type))
    if pa.types.is_struct(data_type):
        fields = children(data_type)
        return pa.struct([pa.field(field.name, _read_type(field.type)) for field in fields])
    if data_type == pa.month_day_nano_interval():
        return pa.struct([field.with_nullable(True) for field in INTERVAL])
    if pa.types.is_null(data_type):
        return pa.bool_()  # pyarrow 26 reads lists of nulls into invalid arrays.
    if data_type == pa.float16():
        return pa.float32()
    if _is_read_as_it_is(data_type):
        return data_type
    return pa.string()


def _converted(values: Column, data_type: pa.DataType) -> Column:
    """Convert a column from `_read_type(data_type)` to `data_type`.

    Args:
        values: Column of `_read_type(data_type)`, without an offset.
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
        _converted(pc.struct_field(values, [index]), field.type)
        for index, field in enumerate(fields)
    ]
    if not parts:
        return values.cast(data_type)
    mask = pc.is_null(values)
    return arrow.StructArray.from_arrays(parts, fields=fields, mask=mask)


def _list(values: Column, data_type: pa.DataType) -> Column:
    items = _converted(values.values, children(data_type)[0].type)
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
    keys = _converted(pc.struct_field(entries, [0]), key.type)
    check_all(keys.is_valid(), "a key must not be null")
    items = _converted(pc.struct_field(entries, [1]), value.type)
    mask = pc.is_null(values)
    return arrow.MapArray.from_arrays(values.offsets, keys, items, data_type, mask=mask)


def _first_problem(
    data: bytes, schema: pa.Schema, fill: Mapping[str, str], problem: Exception
) -> WingsError:
    """Return the error of the first bad row.

    Args:
        data: The array of rows that `_decode` failed on.
        schema: The topic's schema.
        fill: Columns that rows may lack.
        problem: The error of `_decode` for all rows together.
    """
    try:
        rows = _rows(data)
    except InvalidArgument as error:
        return error
    if not rows:
        return SchemaMismatch(f"{problem!s:.300}")
    row = first_bad(len(rows), lambda low, high: _is_bad(rows[low:high], schema, fill))
    explained = _Explanation(fill).of_row(rows[row], schema)
    if explained is None:  # No value by itself is bad.
        return _refusal(rows[row], row, schema, fill, problem)
    path, what = explained
    where = f"row {row}: column {path!r:.80}: " if path else f"row {row}: "
    return SchemaMismatch(where + what, row=row, **({"column": path} if path else {}))


def _refusal(
    text: str, row: int, schema: pa.Schema, fill: Mapping[str, str], problem: Exception
) -> SchemaMismatch:
    """Return the error of decoding a row alone; `problem` if it decodes."""
    try:
        _decode(f"[{text}]".encode(), schema, fill)
    except (ValueError, SchemaMismatch) as error:
        problem = error
    facts = problem.facts if isinstance(problem, SchemaMismatch) else {}
    return SchemaMismatch(f"row {row}: {problem!s:.300}", **{**facts, "row": row})


def _rows(data: bytes) -> list[str]:
    """Return the texts of an array's items.

    Raises:
        InvalidArgument: The data is not a JSON array.
    """
    rows: list[str] = []
    try:
        text = data.decode("utf-8")
        place = _skip(text, 0)
        if text[place : place + 1] != "[":
            raise InvalidArgument("the rows must be a JSON array of objects")
        place = _skip(text, place + 1)
        ended = text[place : place + 1] == "]"
        while not ended:
            _, end = _DECODER.raw_decode(text, place)
            rows.append(text[place:end])
            place = _skip(text, end)
            ended = text[place : place + 1] == "]"
            if not ended:
                if text[place : place + 1] != ",":
                    raise InvalidArgument(f"the rows are not valid JSON at character {place}")
                place = _skip(text, place + 1)
        if _skip(text, place + 1) < len(text):
            raise InvalidArgument("there is extra data after the rows")
    except UnicodeDecodeError:
        raise InvalidArgument("the rows are not UTF-8") from None
    except RecursionError:
        raise InvalidArgument("the rows are nested too deeply") from None
    except ValueError as error:
        raise InvalidArgument(f"the rows are not valid JSON: {error!s:.200}") from None
    return rows


def _skip(text: str, place: int) -> int:
    while place < len(text) and text[place] in _WHITESPACE:
        place += 1
    return place


def _is_bad(rows: Iterable[str], schema: pa.Schema, fill: Mapping[str, str]) -> bool:
    try:
        _decode(f"[{','.join(rows)}]".encode(), schema, fill)
    except (ValueError, SchemaMismatch):
        return True
    return False


class _Number(str):
    """A number as its text in the document."""

    __slots__ = ()


class _Object(dict[str, Any]):
    """An object, with its first duplicate key, if any."""

    __slots__ = ("duplicate",)

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.duplicate: str | None = None
        if len(self) < len(pairs):
            seen: set[str] = set()
            self.duplicate = next(name for name, _ in pairs if name in seen or seen.add(name))


_DECODER = json.JSONDecoder(
    parse_int=_Number,
    parse_float=_Number,
    parse_constant=_Number,
    object_pairs_hook=_Object,
)


@dataclass(frozen=True, slots=True, eq=False)
class _Explanation:
    """A search for the first problem of one row: the path of the value, and a sentence."""

    _fill: Mapping[str, str]

    def of_row(self, text: str, schema: pa.Schema) -> tuple[str, str] | None:
        """Return the path and the sentence of a row's first problem, or None."""
        return self._of_object(_DECODER.decode(text), fields_of(schema), "")

    def _of_object(
        self, value: object, fields: "list[ArrowField]", path: str
    ) -> tuple[str, str] | None:
        if not isinstance(value, _Object):
            return path, f"expected an object, got {_shown(value)}"
        found = value
        prefix = f"{path}." if path else ""
        if found.duplicate is not None:
            return prefix + found.duplicate, "duplicate field"
        names = {field.name for field in fields}
        for name in found:
            if name not in names:
                return prefix + name, f"there is no such field{suggested(name, sorted(names))}"
        for field in fields:
            inside = prefix + field.name
            item = found.get(field.name)
            if item is None:
                if field.nullable or (not path and field.name in self._fill):
                    continue
                what = "must not be null" if field.name in found else "is required"
                return inside, f"the field {what}"
            problem = self._of_value(item, field.type, inside)
            if problem is not None:
                return problem
        return None

    def _of_value(self, value: object, data_type: pa.DataType, path: str) -> tuple[str, str] | None:
        """Return the path and the sentence of the first problem of a value other than null."""
        if pa.types.is_struct(data_type):
            return self._of_object(value, children(data_type), path)
        if data_type == pa.month_day_nano_interval():
            return self._of_object(value, list(INTERVAL), path)
        if is_list(data_type) or pa.types.is_map(data_type):
            return self._of_list(value, data_type, path)
        nested = isinstance(value, dict | list)
        if not nested and self._fits(value, data_type):
            return None
        hint = ""
        is_text = isinstance(value, str) and not isinstance(value, _Number)
        if is_text and pa.types.is_temporal(data_type):
            hint = "; a text of another form fits a column of type string, which SQL parses"
        return path, f"expected {_expected(data_type)}, got {_shown(cast('object', value))}{hint}"

    def _of_list(self, value: object, data_type: pa.DataType, path: str) -> tuple[str, str] | None:
        if not isinstance(value, list):
            return path, f"expected an array, got {_shown(value)}"
        items = cast("list[Any]", value)
        if pa.types.is_fixed_size_list(data_type) and len(items) != shape(data_type)[0]:
            return path, f"expected {shape(data_type)[0]} items, got {len(items)}"
        if pa.types.is_map(data_type):
            key, entry_value = children(data_type)
            pair = [key.with_name("key").with_nullable(False), entry_value.with_name("value")]
            item_field = pa.field("entry", pa.struct(pair), nullable=False)
        else:
            item_field = children(data_type)[0]
        for index, item in enumerate(items):
            inside = f"{path}[{index}]"
            if item is None and not item_field.nullable:
                return inside, "the item must not be null"
            problem = None if item is None else self._of_value(item, item_field.type, inside)
            if problem is not None:
                return problem
        return None

    def _fits(self, value: object, data_type: pa.DataType) -> bool:
        text = value if isinstance(value, _Number) else json.dumps(value)
        schema = pa.schema([pa.field("value", data_type)])
        return not _is_bad([f'{{"value":{text}}}'], schema, {})


def _expected(data_type: pa.DataType) -> str:
    """Return a phrase for the values of a flat type: `an integer in range (int8)`."""
    for is_kind, form in _FORMS:
        if is_kind(data_type):
            return f"{form} ({data_type})"
    return f"a value of type {data_type}"


_FORMS: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_null, "null"),
    (pa.types.is_boolean, "true or false"),
    (pa.types.is_integer, "an integer in range"),
    (pa.types.is_floating, "a finite number"),
    (pa.types.is_string, "a string of valid Unicode"),
    (pa.types.is_large_string, "a string of valid Unicode"),
    (pa.types.is_decimal, 'a string like "-1.50" with no more digits than fit'),
    (pa.types.is_time, 'a string like "12:00:00.000000" with no digits beyond the unit'),
    (pa.types.is_date, 'a string like "2026-11-20"'),
    (pa.types.is_duration, 'a string like "PT1.500000S" with no digits beyond the unit'),
    (pa.types.is_binary, "a string of base64"),
    (pa.types.is_large_binary, "a string of base64"),
    (pa.types.is_fixed_size_binary, "a string of base64 of the right length"),
    (
        is_zoned,
        'a string like "2026-11-20T12:00:00.000000Z" with no digits beyond the unit',
    ),
    (
        pa.types.is_timestamp,
        'a string like "2026-11-20T12:00:00.000000", without a zone and digits beyond the unit',
    ),
)


def _shown(value: object) -> str:
    text = _text(value, _DEPTH_SHOWN_MAX).encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "..."


def _text(value: object, depth: int) -> str:
    """Return a value's JSON without spaces; `…` below `_DEPTH_SHOWN_MAX` levels."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        found = cast("dict[str, object]", value)
        if not depth:
            return "{...}"
        pairs = (f"{_text(name, 0)}: {_text(item, depth - 1)}" for name, item in found.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        items = cast("list[object]", value)
        if not depth:
            return "[...]"
        return f"[{', '.join(_text(item, depth - 1) for item in items)}]"
    return json.dumps(value, ensure_ascii=False)
