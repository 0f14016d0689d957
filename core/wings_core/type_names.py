"""Type names: conversion of types to Arrow's text and back, nested types included.

`type_name` and `parse_type` are exact inverses for every type that a topic may have. The text is
that of `str(type)`, with one addition: Arrow's text of a map omits that its values are not
nullable, ours does not (`map<string, int64 not null>`).

    type    = word | word[args] | word(args) | list<field> | large_list<field>
            | fixed_size_list<field>[size] | struct<field, …> | map<type, value, keys_sorted?>
    field   = name: type | name: type not null

A name in a nested type ends at the first `: `. Other names than `key` and `value` for the parts of
a map are parsed and dropped, as in Arrow IPC.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from wings_core.arrow_types import children, is_list, shape
from wings_core.errors import InvalidSchema, suggested

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowField

DEPTH_MAX = 32
"""Most levels of nesting in a type; Arrow's own readers stop at 64."""

TYPE_NAME_LENGTH_MAX = 64 * 1024
"""Longest text of a type in characters, which also bounds its fields."""

TIME_ZONE = re.compile(r"[A-Za-z0-9_+\-:/.]{1,64}")

FLAT_TYPES: dict[str, pa.DataType] = {
    str(data_type): data_type
    for data_type in (
        pa.null(), pa.bool_(),
        pa.int8(), pa.int16(), pa.int32(), pa.int64(),
        pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
        pa.float16(), pa.float32(), pa.float64(),
        pa.string(), pa.large_string(), pa.binary(), pa.large_binary(),
        pa.date32(), pa.date64(), pa.month_day_nano_interval(),
    )
}  # fmt: skip
"""Types without parameters, by name."""

_ALIASES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int64(),
    "half": pa.float16(),
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "str": pa.string(),
    "utf8": pa.string(),
    "large_utf8": pa.large_string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "date32": pa.date32(),
    "date64": pa.date64(),
}

_DECIMALS: dict[str, Callable[[int, int], pa.DataType]] = {
    "decimal": pa.decimal128,
    "decimal32": pa.decimal32,
    "decimal64": pa.decimal64,
    "decimal128": pa.decimal128,
    "decimal256": pa.decimal256,
}

_WITH_UNIT: dict[str, dict[str, pa.DataType]] = {
    "timestamp": {
        "s": pa.timestamp("s"),
        "ms": pa.timestamp("ms"),
        "us": pa.timestamp("us"),
        "ns": pa.timestamp("ns"),
    },
    "duration": {
        "s": pa.duration("s"),
        "ms": pa.duration("ms"),
        "us": pa.duration("us"),
        "ns": pa.duration("ns"),
    },
    "time32": {"s": pa.time32("s"), "ms": pa.time32("ms")},
    "time64": {"us": pa.time64("us"), "ns": pa.time64("ns")},
    "date32": {"day": pa.date32()},
    "date64": {"ms": pa.date64()},
}

_WORDS = (
    *(name for name in FLAT_TYPES if name.isidentifier()),
    *(*_DECIMALS, *_WITH_UNIT),
    *("fixed_size_binary", "list", "large_list", "fixed_size_list", "struct", "map"),
)
"""First words of types' names, without aliases."""

_WORD = re.compile(r"[a-z][a-z0-9_]*")
_INTEGER = re.compile(r"-?[0-9]{1,10}")


def parse_type(text: str) -> pa.DataType:
    """Parse the text of a type, like `list<item: timestamp[us, tz=UTC]>`.

    Args:
        text: Arrow's name, or a usual alias of a flat type such as `int`, `float64` or `utf8`.

    Raises:
        InvalidSchema: The text does not name a supported type; fact `position` is the offending
            character, from 0.
    """
    if len(text) > TYPE_NAME_LENGTH_MAX:
        raise InvalidSchema(f"a type's name is longer than {TYPE_NAME_LENGTH_MAX} characters")
    return _Parser(text.strip()).parse()


def type_name(data_type: pa.DataType) -> str:
    """Return the text of a type, the inverse of `parse_type`."""
    fields = children(data_type)
    if pa.types.is_map(data_type):
        return _map_name(data_type, fields)
    if pa.types.is_struct(data_type):
        return f"struct<{', '.join(_field_name(field) for field in fields)}>"
    if pa.types.is_fixed_size_list(data_type):
        return f"fixed_size_list<{_field_name(fields[0])}>[{shape(data_type)[0]}]"
    if is_list(data_type):
        kind = "large_list" if pa.types.is_large_list(data_type) else "list"
        return f"{kind}<{_field_name(fields[0])}>"
    return str(data_type)


def _field_name(field: "ArrowField") -> str:
    return f"{field.name}: {type_name(field.type)}{'' if field.nullable else ' not null'}"


def _map_name(data_type: pa.DataType, fields: "list[ArrowField]") -> str:
    key, value = fields
    parts = [type_name(key.type), type_name(value.type) + ("" if value.nullable else " not null")]
    if shape(data_type)[0]:
        parts.append("keys_sorted")
    return f"map<{', '.join(parts)}>"


class _Parser:
    """A recursive descent parser of one text; each method consumes one element."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def parse(self) -> pa.DataType:
        data_type = self._type(1)
        if self._position < len(self._text):
            raise self._expected("the end")
        return data_type

    def _type(self, depth: int) -> pa.DataType:
        if depth > DEPTH_MAX:
            raise self._error(f"nested more than {DEPTH_MAX} levels deep")
        start = self._position
        match = _WORD.match(self._text, start)
        if match is None:
            raise self._expected("the name of a type")
        self._position = match.end()
        data_type = self._nested(match[0], depth)
        if data_type is None:
            data_type = self._flat(match[0])
        if data_type is None:
            self._position = start
            hint = suggested(match[0], _WORDS)
            raise self._error(f"unknown or unsupported type {match[0]!r:.40}{hint}")
        return data_type

    def _nested(self, word: str, depth: int) -> pa.DataType | None:
        if word == "list":
            return pa.list_(self._item(depth))
        if word == "large_list":
            return pa.large_list(self._item(depth))
        if word == "fixed_size_list":
            item = self._item(depth)
            return pa.list_(item, self._size())
        if word == "struct":
            self._take("<")
            return pa.struct(self._struct_fields(depth))
        if word == "map":
            self._take("<")
            return self._map(depth)
        return None

    def _flat(self, word: str) -> pa.DataType | None:
        if word == "fixed_size_binary":
            return pa.binary(self._size())
        if word in _DECIMALS:
            return self._decimal(_DECIMALS[word])
        if word in _WITH_UNIT and (self._next_is("[") or word not in _ALIASES):
            return self._with_unit(word)
        return FLAT_TYPES.get(word) or _ALIASES.get(word)

    def _with_unit(self, word: str) -> pa.DataType:
        units = _WITH_UNIT[word]
        if not self._skip("["):
            unit = "us" if "us" in units else "ms"
            zoned = f", or {word}[{unit}, tz=UTC] of times with a zone" * (word == "timestamp")
            raise self._expected(f"'[' and a unit, like {word}[{unit}]{zoned}")
        match = _WORD.match(self._text, self._position)
        if match is None or match[0] not in units:
            raise self._expected(" or ".join(units))
        self._position = match.end()
        data_type = units[match[0]]
        if word == "timestamp" and self._skip(", tz="):
            zone = TIME_ZONE.match(self._text, self._position)
            if zone is None:
                raise self._expected("a time zone")
            self._position = zone.end()
            data_type = cast("Any", pa).timestamp(match[0], tz=zone[0])
        self._take("]")
        return data_type

    def _decimal(self, make: Callable[[int, int], pa.DataType]) -> pa.DataType:
        start = self._position
        self._take("(")
        precision = self._integer()
        self._take(",")
        self._skip_spaces()
        scale = self._integer()
        self._take(")")
        try:
            return make(precision, scale)
        except (ValueError, OverflowError) as error:
            self._position = start
            raise self._error(str(error)) from None

    def _item(self, depth: int) -> "ArrowField":
        self._take("<")
        field = self._field(depth)
        self._take(">")
        return field

    def _struct_fields(self, depth: int) -> "list[ArrowField]":
        fields: list[ArrowField] = []
        if self._skip(">"):
            return fields
        while True:
            fields.append(self._field(depth))
            if self._skip(">"):
                return fields
            if not self._skip(", "):
                raise self._expected("', ' or '>'")

    def _field(self, depth: int) -> "ArrowField":
        end = self._text.find(": ", self._position)
        if end < 0:
            raise self._expected("a field, like 'item: int64'")
        name = self._text[self._position : end]
        self._position = end + len(": ")
        data_type = self._type(depth + 1)
        return pa.field(name, data_type, nullable=self._nullable(data_type))

    def _nullable(self, data_type: pa.DataType) -> bool:
        if pa.types.is_null(data_type) and self._next_is(" not null"):
            raise self._error("a field of type null must be nullable")
        return not self._skip(" not null")

    def _map(self, depth: int) -> pa.DataType:
        start = self._position
        key_type = self._type(depth + 1)
        if pa.types.is_null(key_type):
            self._position = start
            raise self._error("a map's key cannot be null")
        self._skip_map_field_name()
        self._take(", ")
        value_type = self._type(depth + 1)
        value = pa.field("value", value_type, nullable=self._nullable(value_type))
        self._skip_map_field_name()
        keys_sorted = self._skip(", keys_sorted")
        self._take(">")
        return cast("Any", pa).map_(key_type, value, keys_sorted)

    def _skip_map_field_name(self) -> None:
        if self._skip(" ('"):
            end = self._text.find("')", self._position)
            if end < 0:
                raise self._expected('a name and "\')"')
            self._position = end + len("')")

    def _size(self) -> int:
        start = self._position
        self._take("[")
        size = self._integer()
        if not 0 <= size < 1 << 31:
            self._position = start + 1
            raise self._expected("a size of at least 0")
        self._take("]")
        return size

    def _integer(self) -> int:
        match = _INTEGER.match(self._text, self._position)
        if match is None:
            raise self._expected("an integer")
        self._position = match.end()
        return int(match[0])

    def _next_is(self, text: str) -> bool:
        return self._text.startswith(text, self._position)

    def _skip(self, text: str) -> bool:
        found = self._next_is(text)
        if found:
            self._position += len(text)
        return found

    def _skip_spaces(self) -> None:
        while self._skip(" "):
            pass

    def _take(self, text: str) -> None:
        if not self._skip(text):
            raise self._expected(repr(text))

    def _expected(self, what: str) -> InvalidSchema:
        found = self._text[self._position : self._position + 20]
        return self._error(f"expected {what}, found {found!r}" if found else f"expected {what}")

    def _error(self, problem: str) -> InvalidSchema:
        return InvalidSchema(
            f"{self._text!r:.120} is not a type: at position {self._position}: {problem}",
            position=self._position,
        )
