"""Detection of JSON integers that a column of doubles would change, beyond 2^53.

Arrow's reader rounds them silently, and reads an integer beyond int64 as a double.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute

from wings_core.arrow_types import children, fields_of, is_list, leaves, with_children

pc: Any = pyarrow.compute

EXACT_MAX = 2.0**53
"""Greatest number up to which every integer is a double."""

_SHOWN_MAX = 60


class _Integer(str):
    """Literal of a number without fraction or exponent."""

    __slots__ = ()


# As lenient as Arrow's reader, which accepted the rows.
_DECODER = json.JSONDecoder(parse_int=_Integer, strict=False)


class Changed(NamedTuple):
    """An integer that its column would change."""

    row: int
    """Index of the row."""
    column: str
    """Name of the column."""
    problem: str
    """Description of the problem, with the path and the literal of the integer."""


def first_changed(
    columns: Iterable[Any], schema: pa.Schema, rows: Callable[[], Sequence[bytes]]
) -> Changed | None:
    """Return the first integer that lost its value.

    Args:
        columns: The parsed rows.
        schema: The schema of these columns.
        rows: Returns the texts of the rows; only called if there are large numbers.
    """
    if not any(has_large(column) for column in columns):
        return None
    for index, row in enumerate(rows()):
        found = _parsed(row)
        for field in fields_of(schema):
            for path, value in _floats(found.get(field.name), field.type, field.name):
                if isinstance(value, _Integer) and not _is_exact(value):
                    what = f"no double equals the integer {value:.{_SHOWN_MAX}}"
                    return Changed(index, field.name, f"column {path!r:.80}: {what}")
    return None


def has_large(column: Any) -> bool:
    """Return whether a column has floats, at any depth, beyond `EXACT_MAX`."""
    for array in leaves(column):
        if pa.types.is_float32(array.type) or pa.types.is_float64(array.type):
            ends = pc.min_max(array)
            low, high = ends["min"].as_py(), ends["max"].as_py()
            if low is not None and max(-low, high) >= EXACT_MAX:
                return True
    return False


def with_uint64(schema: pa.Schema, rows: Sequence[bytes]) -> pa.Schema:
    """Return a schema with uint64 for columns of doubles whose values are all uint64."""
    found = [_parsed(row) for row in rows]
    return pa.schema(
        [
            field.with_type(_with_uint64(field.type, [row.get(field.name) for row in found]))
            for field in fields_of(schema)
        ]
    )


def _with_uint64(data_type: pa.DataType, found: Sequence[Any]) -> pa.DataType:
    values = [value for value in found if value is not None]
    if pa.types.is_float64(data_type):
        return pa.uint64() if values and all(map(_is_uint64, values)) else data_type
    if is_list(data_type):
        inner = [[item for value in values for item in value]]
    else:
        inner = [[value.get(child.name) for value in values] for child in children(data_type)]
    fields = [
        child.with_type(_with_uint64(child.type, each))
        for child, each in zip(children(data_type), inner, strict=True)
    ]
    return with_children(data_type, fields)


def _is_uint64(value: object) -> bool:
    if not isinstance(value, _Integer) or value.startswith("-"):
        return False
    return len(value) <= len(str(2**64)) and int(value) < 2**64


def _is_exact(literal: str) -> bool:
    value = float(literal)
    return value not in (float("inf"), float("-inf")) and int(value) == int(literal)


def _parsed(row: bytes) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", _DECODER.decode(row.decode("utf-8", "replace")))


def _floats(value: Any, data_type: pa.DataType, path: str) -> Iterator[tuple[str, object]]:
    """Yield the path and the value of each float, at every depth."""
    if value is None:
        return
    if pa.types.is_floating(data_type):
        yield path, value
    elif pa.types.is_map(data_type):
        key, item = children(data_type)
        for entry in value:
            yield from _floats(entry["key"], key.type, f"{path}.key")
            yield from _floats(entry.get("value"), item.type, f"{path}.value")
    elif is_list(data_type):
        for item in value:
            yield from _floats(item, children(data_type)[0].type, f"{path}[]")
    elif pa.types.is_struct(data_type):
        for child in children(data_type):
            yield from _floats(value.get(child.name), child.type, f"{path}.{child.name}")
