"""Diagnosis of the first bad row of a batch, for the error; slow, so it runs only after a failure.

Python's JSON decoder separates the rows, bisection finds the first bad one (a batch is bad if and
only if one of its rows is), and that row is examined value by value.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from wings_core.arrow_types import children, fields_of, is_list, shape
from wings_core.errors import InvalidArgument, SchemaMismatch, WingsError, first_bad, suggested
from wings_core.json_rows.values import INTERVAL, is_zoned

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowField

Decode = Callable[[bytes, pa.Schema, Mapping[str, str]], pa.RecordBatch]

_SHOWN_MAX = 60
_DEPTH_SHOWN_MAX = 3
_WHITESPACE = " \t\n\r"


def first_problem(
    data: bytes, schema: pa.Schema, fill: Mapping[str, str], decode: Decode, problem: Exception
) -> WingsError:
    """Return the error of the first bad row.

    Args:
        data: The array of rows that `decode` failed on.
        schema: The topic's schema.
        fill: Columns that rows may lack.
        decode: Raises `ValueError` or `SchemaMismatch` for bad rows.
        problem: The error of `decode` for all rows together.
    """
    try:
        rows = _rows(data)
    except InvalidArgument as error:
        return error
    if not rows:
        return SchemaMismatch(f"{problem!s:.300}")
    row = first_bad(len(rows), lambda low, high: _is_bad(rows[low:high], schema, fill, decode))
    explained = _Explanation(fill, decode).of_row(rows[row], schema)
    if explained is None:  # No value by itself is bad.
        return _refusal(rows[row], row, schema, fill, decode, problem)
    path, what = explained
    where = f"row {row}: column {path!r:.80}: " if path else f"row {row}: "
    return SchemaMismatch(where + what, row=row, **({"column": path} if path else {}))


def _refusal(
    text: str,
    row: int,
    schema: pa.Schema,
    fill: Mapping[str, str],
    decode: Decode,
    problem: Exception,
) -> SchemaMismatch:
    """Return the error of decoding a row alone; `problem` if it decodes."""
    try:
        decode(f"[{text}]".encode(), schema, fill)
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


def _is_bad(
    rows: Iterable[str], schema: pa.Schema, fill: Mapping[str, str], decode: Decode
) -> bool:
    try:
        decode(f"[{','.join(rows)}]".encode(), schema, fill)
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
    _decode: Decode

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
        return not _is_bad([f'{{"value":{text}}}'], schema, {}, self._decode)


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
