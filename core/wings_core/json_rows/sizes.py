"""Upper bounds on the JSON of a column, from its type and the sizes of its buffers."""

import json

import pyarrow as pa

from wings_core.arrow_types import children, is_list, map_entries
from wings_core.json_rows.kernels import Column, pc

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
