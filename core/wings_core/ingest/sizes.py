"""Sizes of the runs of a batch in bytes, computed without visiting each row."""

from collections.abc import Sequence
from itertools import accumulate, islice
from operator import add, itemgetter, sub
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from wings_core.ingest.route import Run

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowArray


def bytes_of_runs(rows: pa.RecordBatch, runs: Sequence[Run]) -> tuple[int, ...]:
    """Return the approximate bytes of each run in Arrow buffers, at least 1.

    Exact for fixed-width, string and binary columns, and lists and structs of these; in other
    columns, such as maps, each row counts as the average.

    Args:
        rows: Valid rows, in the order of `runs`.
        runs: Runs that cover all rows.
    """
    if not runs:
        return ()
    borders = [0, *accumulate(map(itemgetter(1), runs))]
    widths = [_fixed_width(data_type) for data_type in rows.schema.types]
    fixed = sum([width for width in widths if width is not None])
    before: list[float] = [fixed * border for border in borders]
    for column, width in zip(rows.columns, widths, strict=True):
        if width is None:
            before = list(map(add, before, _bytes_before(column, borders)))
    return tuple([int(size) or 1 for size in map(sub, islice(before, 1, None), before)])


def _bytes_before(array: "ArrowArray", borders: Sequence[int]) -> Sequence[float]:
    """Return the bytes of an array before each of the rows `borders`, which are ascending."""
    data_type = array.type
    nested = cast("Any", array)
    if _has_offsets(data_type):
        offsets = _offsets(nested)
        starts = itemgetter(*borders)(offsets)
        if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
            inside = _bytes_before(nested.values, starts)
        else:
            inside = starts
        width = offsets.itemsize
        return [each + width * border for each, border in zip(inside, borders, strict=True)]
    if pa.types.is_struct(data_type):
        fields = [
            _bytes_before(nested.field(index), borders) for index in range(data_type.num_fields)
        ]
        return [sum(values) for values in zip(*fields, strict=True)] or [0.0 for _ in borders]
    width = _fixed_width(data_type)
    if width is None:
        width = array.nbytes / max(1, len(array))
    return [width * border for border in borders]


def _fixed_width(data_type: pa.DataType) -> float | None:
    """Return the bytes per value of a type; None if it varies."""
    try:
        bits = data_type.bit_width
    except ValueError:
        return None
    return bits / 8 if bits % 8 else bits // 8  # Integers add faster.


def _has_offsets(data_type: pa.DataType) -> bool:
    kinds = (
        *(pa.types.is_string, pa.types.is_binary, pa.types.is_large_string),
        *(pa.types.is_large_binary, pa.types.is_list, pa.types.is_large_list),
    )
    return any(is_kind(data_type) for is_kind in kinds)


def _offsets(array: Any) -> "memoryview[int]":
    """Return the start of each row's values, and the end of the last one's."""
    data_type = array.type
    large = (
        pa.types.is_large_string(data_type)
        or pa.types.is_large_binary(data_type)
        or pa.types.is_large_list(data_type)
    )
    width = 8 if large else 4
    buffer = array.buffers()[1]
    if buffer is None or buffer.size == 0:  # An empty array may have no buffer.
        return memoryview(bytes(width)).cast("q" if large else "i")
    start = array.offset * width
    data = memoryview(buffer)[start : start + (len(array) + 1) * width]
    return data.cast("B").cast("q" if large else "i")
