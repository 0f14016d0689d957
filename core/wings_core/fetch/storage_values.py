"""Arrow arrays of what DuckDB stores for a value.

Dates and times are integers, decimals are integers without their point. Buffers are made by hand:
the first call of `pa.array` or `pa.scalar` imports pandas where that is installed, which takes
seconds, and a Python object for a date or a decimal could not hold all values.
"""

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, cast

import pyarrow as pa

_FORMATS = {8: "b", 16: "h", 32: "i", 64: "q"}


def integer_range(data_type: pa.DataType) -> tuple[int, int]:
    """Return the least and the greatest integer that a type of integers or decimals stores."""
    if pa.types.is_decimal(data_type):
        most = 10 ** cast("Any", data_type).precision - 1
        return -most, most
    bits = data_type.bit_width
    if pa.types.is_signed_integer(data_type):
        return -(1 << bits - 1), (1 << bits - 1) - 1
    return 0, (1 << bits) - 1


def array_of(data_type: pa.DataType, values: Sequence[Any]) -> Any:
    """Return an array of values as they are stored: ints, floats, bools, texts or bytes.

    Args:
        data_type: Boolean, integer, float, decimal128, date32, time64, timestamp, text or binary;
            of any other, nulls alone.
        values: None for null.

    Raises:
        ValueError: A value that the type does not store, or a type that is none of these.
    """
    if all(value is None for value in values):
        return cast("Any", pa).nulls(len(values), data_type)
    valid = pa.py_buffer(_bits([value is not None for value in values]))
    if pa.types.is_boolean(data_type):
        buffers = [pa.py_buffer(_bits([bool(value) for value in values]))]
    elif pa.types.is_string(data_type) or pa.types.is_binary(data_type):
        buffers = _variable("i", values)
    elif pa.types.is_large_string(data_type) or pa.types.is_large_binary(data_type):
        buffers = _variable("q", values)
    else:
        buffers = [pa.py_buffer(b"".join(_fixed(data_type, value) for value in values))]
    return cast("Any", pa.Array).from_buffers(data_type, len(values), [valid, *buffers])


def _bits(values: Sequence[bool]) -> bytes:
    return sum(1 << index for index, value in enumerate(values) if value).to_bytes(
        len(values) // 8 + 1, "little"
    )


def _variable(size: str, values: Sequence[Any]) -> list[pa.Buffer]:
    parts = [value.encode() if isinstance(value, str) else value or b"" for value in values]
    ends = accumulate(map(len, parts), initial=0)
    offsets = struct.pack(f"<{len(parts) + 1}{size}", *ends)
    return [pa.py_buffer(offsets), pa.py_buffer(b"".join(parts))]


def _fixed(data_type: pa.DataType, value: Any) -> bytes:
    value = 0 if value is None else value
    if pa.types.is_floating(data_type):
        return struct.pack("<f" if data_type.bit_width == 32 else "<d", value)
    if pa.types.is_decimal128(data_type):
        return int(value).to_bytes(16, "little", signed=True)
    size = _FORMATS[data_type.bit_width]
    unsigned = pa.types.is_unsigned_integer(data_type)
    try:
        return struct.pack(f"<{size.upper() if unsigned else size}", value)
    except struct.error as problem:
        raise ValueError(f"{data_type} does not store {value!r:.80}") from problem
