"""Timestamps of rows as a column: one for many rows, or one for each."""

import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from wings_core.storage.segment_file import TIMESTAMP_FIELD

_INT64 = struct.Struct("=q")


def timestamp_column(timestamps: "Sequence[tuple[int | pa.Array[Any], int]]") -> "pa.Array[Any]":
    """Return a column of timestamps.

    Args:
        timestamps: Runs of (timestamp, number of rows), or of a column of timestamps and its
            length; one at least.
    """
    parts: list[pa.Array[Any]] = []
    runs: list[bytes] = []
    for value, count in timestamps:
        if isinstance(value, int):
            runs.append(_INT64.pack(value) * count)
            continue
        if runs:
            parts.append(_column(b"".join(runs)))
            runs = []
        parts.append(value)
    if runs:
        parts.append(_column(b"".join(runs)))
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _column(values: bytes) -> "pa.Array[Any]":
    # Not by `pa.scalar`: at its first use pyarrow imports pandas, where that is installed.
    rows = len(values) // _INT64.size
    return pa.Array.from_buffers(TIMESTAMP_FIELD.type, rows, [None, pa.py_buffer(values)])
