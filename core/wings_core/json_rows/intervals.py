"""Conversion of month-day-nano intervals to and from structs.

Arrow has no kernels for them, so their 16 bytes are converted as integers.
"""

import pyarrow as pa

from wings_core.arrow_compute import pc
from wings_core.json_rows.kernels import Column, UnfitError, arrow

INTERVAL = (
    pa.field("months", pa.int32(), nullable=False),
    pa.field("days", pa.int32(), nullable=False),
    pa.field("nanoseconds", pa.int64(), nullable=False),
)
"""Fields of the struct that represents an interval."""


def interval_structs(values: Column) -> Column:
    """Return a column of `INTERVAL` with the same values and nulls."""
    data = [None, values.buffers()[1]]
    rows = arrow.arange(values.offset, values.offset + len(values))
    end = values.offset + len(values)
    halves = arrow.Array.from_buffers(pa.int32(), end * 4, data)
    wholes = arrow.Array.from_buffers(pa.int64(), end * 2, data)
    months = halves.take(pc.multiply(rows, 4))
    days = halves.take(pc.add(pc.multiply(rows, 4), 1))
    nanoseconds = wholes.take(pc.add(pc.multiply(rows, 2), 1))
    return arrow.StructArray.from_arrays(
        [months, days, nanoseconds], fields=list(INTERVAL), mask=pc.is_null(values)
    )


def intervals_of(structs: Column) -> Column:
    """Convert a column of `INTERVAL` to intervals.

    Raises:
        ValueError: A struct lacks a field.
    """
    parts = [pc.struct_field(structs, index) for index in range(3)]
    if any(part.null_count > structs.null_count for part in parts):
        raise UnfitError("expected months, days and nanoseconds")
    months, days, nanoseconds = [pc.fill_null(part, 0) for part in parts]
    count = len(structs)
    # Four int32 each: months, days, and the two halves of the nanoseconds.
    halves = arrow.Array.from_buffers(pa.int32(), count * 2, [None, nanoseconds.buffers()[1]])
    pool = arrow.concat_arrays([months, days, halves])
    rows = arrow.arange(0, count)
    order = [
        rows,
        pc.add(rows, count),
        pc.add(pc.multiply(rows, 2), 2 * count),
        pc.add(pc.multiply(rows, 2), 2 * count + 1),
    ]
    data = pool.take(_interleaved(order, count)).buffers()[1]
    validity = structs.is_valid().buffers()[1]
    return arrow.Array.from_buffers(pa.month_day_nano_interval(), count, [validity, data])


def _interleaved(columns: list[Column], count: int) -> Column:
    """Interleave columns: the first values of all, then the second ones, and so on."""
    width = len(columns)
    places = arrow.arange(0, count * width)
    row = pc.divide(places, width)
    column = pc.subtract(places, pc.multiply(row, width))
    return arrow.concat_arrays(columns).take(pc.add(pc.multiply(column, count), row))
