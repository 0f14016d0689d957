"""JSON texts of the values of columns, flat or nested."""

import json
from collections.abc import Callable, Sequence

import pyarrow as pa

from wings_core.arrow_compute import pc
from wings_core.arrow_types import children, is_list, map_entries
from wings_core.json_rows.binary import base64_texts
from wings_core.json_rows.decimals import decimal_texts
from wings_core.json_rows.intervals import interval_structs
from wings_core.json_rows.kernels import Column, arrow, joined
from wings_core.json_rows.temporal import (
    date_texts,
    duration_texts,
    is_zoned,
    time_texts,
    timestamp_texts,
)

_ESCAPES = {
    **{bytes([code]): f"\\u{code:04x}" for code in range(0x20)},
    b"\b": "\\b", b"\t": "\\t", b"\n": "\\n", b"\f": "\\f", b"\r": "\\r",
    b'"': '\\"', b"\\": "\\\\",
}  # fmt: skip
"""Characters that a JSON string must escape, and their escapes."""

_UNESCAPED = bytes(code for code in range(256) if bytes([code]) not in _ESCAPES)


def json_texts(values: Column, *, names_floats: bool = False) -> Column:
    """Return the JSON text of each value of a column; nulls become `null`.

    Args:
        values: The column.
        names_floats: Whether NaN and infinities are the strings of Protobuf's JSON, not null.
    """
    return _whole(*_parts(values, names_floats))


def object_texts(
    names: Sequence[str],
    columns: Sequence[Column],
    rows: int,
    end: str = "}",
    *,
    names_floats: bool = False,
) -> Column:
    """Return the JSON object of each row, with fields in order.

    Args:
        names: Names of the fields.
        columns: Values of the fields, of equal length.
        rows: Number of rows, needed if there are no fields.
        end: End of each text: `}` and a separator.
        names_floats: See `json_texts`.
    """
    pieces: list[Column | str] = []
    constant = "{"
    for index, (name, values) in enumerate(zip(names, columns, strict=True)):
        before, texts, after = _parts(values, names_floats)
        if texts.null_count:
            before, texts, after = "", _whole(before, texts, after), ""
        # One constant for quotes and names, so that the texts are copied once.
        comma = "," if index else ""
        pieces += [f"{constant}{comma}{json.dumps(name, ensure_ascii=False)}:{before}", texts]
        constant = after
    if not pieces:
        return pa.repeat("{" + end, rows)
    return joined(*pieces, constant + end)


def _parts(values: Column, names_floats: bool) -> tuple[str, Column, str]:
    """Return the text before each value, the values as texts, and the text after each.

    A text is null for `null` without quotes: for nulls, and floats that JSON lacks.
    """
    data_type = values.type
    if pa.types.is_null(data_type):
        return "", pa.nulls(len(values), pa.string()), ""
    if pa.types.is_struct(data_type):
        names = [field.name for field in children(data_type)]
        fields = values.flatten()
        texts = object_texts(names, fields, len(values), names_floats=names_floats)
        return "", _with_nulls_of(values, texts), ""
    if pa.types.is_map(data_type):
        entries = map_entries(values)
        key, value = entries.flatten().flatten()
        items = object_texts(["key", "value"], [key, value], len(key), names_floats=names_floats)
        return "[", _item_texts(entries, items), "]"
    if is_list(data_type):
        items = json_texts(values.flatten(), names_floats=names_floats)
        return "[", _item_texts(values, items), "]"
    if pa.types.is_floating(data_type):
        return "", _float_texts(values, names_floats), ""
    return _flat_parts(values)


def _whole(before: str, texts: Column, after: str) -> Column:
    if before or after:
        texts = joined(before, texts, after)
    return pc.fill_null(texts, "null") if texts.null_count else texts


def _with_nulls_of(values: Column, texts: Column) -> Column:
    return pc.if_else(values.is_valid(), texts, None) if values.null_count else texts


def _item_texts(lists: Column, items: Column) -> Column:
    """Return the comma-separated texts of each list's items.

    Args:
        lists: Lists of any kind.
        items: Texts of all their items, without those of null lists.
    """
    lengths = pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
    texts = pc.binary_join(arrow.ListArray.from_arrays(offsets, items), ",")
    return _with_nulls_of(lists, texts)


def _flat_parts(values: Column) -> tuple[str, Column, str]:
    data_type = values.type
    if pa.types.is_boolean(data_type) or pa.types.is_integer(data_type):
        return "", values.cast(pa.string()), ""
    if pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
        return '"', _escaped(values.cast(pa.string())), '"'
    if data_type == pa.month_day_nano_interval():
        return _parts(interval_structs(values), False)
    for is_kind, texts in _QUOTED:
        if is_kind(data_type):
            zone = "Z" if is_zoned(data_type) else ""
            return '"', texts(values), f'{zone}"'
    raise AssertionError(f"a topic cannot have type {data_type}")


_QUOTED: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Column], Column]], ...] = (
    (pa.types.is_timestamp, timestamp_texts),
    (pa.types.is_date, date_texts),
    (pa.types.is_time, time_texts),
    (pa.types.is_duration, duration_texts),
    (pa.types.is_decimal, decimal_texts),
    (pa.types.is_binary, base64_texts),
    (pa.types.is_large_binary, base64_texts),
    (pa.types.is_fixed_size_binary, base64_texts),
)
"""Flat types that are JSON strings without escapes."""


def _float_texts(values: Column, is_named: bool) -> Column:
    if values.type == pa.float16():
        values = values.cast(pa.float32())
    texts = values.cast(pa.string())
    whole = pc.equal(values, pc.trunc(values))
    if whole.true_count:
        # Arrow writes 1.0 as `1`, which most readers would parse as an integer.
        bare = pc.and_(whole, pc.invert(pc.match_substring(texts, "e")))
        texts = pc.if_else(bare, joined(texts, ".0"), texts)
    finite = pc.is_finite(values)
    if not finite.false_count:
        return texts
    others: Column | None = None
    if is_named:
        infinite = pc.if_else(pc.greater(values, 0), '"Infinity"', '"-Infinity"')
        others = pc.if_else(pc.is_nan(values), '"NaN"', infinite)
    return pc.if_else(finite, texts, others)


def _escaped(values: Column) -> Column:
    """Escape the characters of `_ESCAPES`; a single pass over the bytes if there are none."""
    data = values.buffers()[2]
    if data is None:
        return values
    # Backslashes first, as the other escapes contain them.
    found = set(data.to_pybytes().translate(None, _UNESCAPED))
    for code in sorted(found, key=lambda code: code != ord("\\")):
        special = bytes([code])
        values = pc.replace_substring(values, special.decode(), _ESCAPES[special])
    return values


_FLAT_LENGTH_MAX = 48
"""Most bytes of a number, boolean, time or null, including quotes and a comma."""

_INTERVAL_LENGTH_MAX = 96
_ESCAPE_LENGTH = len("\\u0000")


def text_bytes_max(values: Column) -> int:
    """Return an upper bound on the bytes of `json_texts(values)`, with a comma after each."""
    data_type = values.type
    rows = len(values)
    if pa.types.is_struct(data_type):
        names = sum(_name_length(field.name) for field in children(data_type))
        fields = values.flatten()
        return rows * (names + 8) + sum(text_bytes_max(field) for field in fields)
    if pa.types.is_map(data_type):
        entries = map_entries(values)
        pairs = entries.flatten()
        names = _name_length("key") + _name_length("value") + 4
        parts = sum(text_bytes_max(part) for part in pairs.flatten())
        return rows * 8 + len(pairs) * names + parts
    if is_list(data_type):
        return rows * 8 + text_bytes_max(values.flatten())
    if pa.types.is_decimal(data_type):
        return rows * (values.type.precision + abs(values.type.scale) + 8)
    if data_type == pa.month_day_nano_interval():
        return rows * _INTERVAL_LENGTH_MAX
    if pa.types.is_fixed_size_binary(data_type):
        return rows * (data_type.byte_width * 4 // 3 + 8)
    if _has_bytes(data_type):
        held: int = pc.sum(pc.binary_length(values)).as_py() or 0
        return rows * 8 + held * _ESCAPE_LENGTH
    return rows * _FLAT_LENGTH_MAX


def _name_length(name: str) -> int:
    return len(json.dumps(name, ensure_ascii=False).encode()) + len(":,")


def _has_bytes(data_type: pa.DataType) -> bool:
    return (
        pa.types.is_string(data_type)
        or pa.types.is_large_string(data_type)
        or pa.types.is_binary(data_type)
        or pa.types.is_large_binary(data_type)
    )
