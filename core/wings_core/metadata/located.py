"""Where the rows of many partitions lie, as columns: without a Python object for each page.

A read of 10,000 partitions looks up many times as many pages; what is done to all of them is done
by Arrow's kernels.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from wings_core.model import LocatedPartition, Location, PageAddress, page_format

_INT = pa.int64()

SLICES = pa.schema(
    [
        pa.field("place", _INT, nullable=False),
        pa.field("start_offset", _INT, nullable=False),
        pa.field("end_offset", _INT, nullable=False),
        pa.field("timestamp", _INT, nullable=False),
        pa.field("folio", _INT, nullable=False),
        pa.field("position", _INT, nullable=False),
        pa.field("length", _INT, nullable=False),
        pa.field("first_timestamp", _INT),
        pa.field("format", _INT, nullable=False),
        pa.field("first_row", _INT),
        pa.field("slice_bytes", _INT),
        pa.field("schema_version", _INT, nullable=False),
    ]
)
"""Schema of `ManyLocated.slices`: a row is a `Location`, but for `place`, the index of the position
that it was found for, and `folio`, an index into `folios`."""


@dataclass(frozen=True, slots=True)
class ManyLocated:
    """Pages that `OffsetRegistry.locate_slices` found at one moment."""

    log_start_offsets: Sequence[int]
    """Start of the log at each of the positions looked at."""
    log_end_offsets: Sequence[int]
    slices: pa.RecordBatch
    """Rows of `SLICES`, by place, then by offset."""
    folios: Sequence[str]
    """Names of folios, in an order in which they are read well."""

    def __len__(self) -> int:
        """The number of positions looked at."""
        return len(self.log_start_offsets)


def locations_of(slices: pa.RecordBatch, folios: Sequence[str]) -> list[Location]:
    """Return rows of `SLICES`, and of the columns that come after, as locations.

    Raises:
        Internal: A page is of a format that only a later version knows.
    """
    columns = [column.to_pylist() for column in slices.columns[: len(SLICES)]]
    found: list[Location] = []
    for _, start, end, timestamp, folio, position, length, first_timestamp, number, *rest in zip(
        *cast("list[list[Any]]", columns), strict=True
    ):
        address = PageAddress(folios[cast("int", folio)], position, length)
        known = page_format(number)
        found.append(Location(start, end, timestamp, address, first_timestamp, known, *rest))
    return found


def many_located(found: Iterable[LocatedPartition]) -> ManyLocated:
    """Return as columns what was found partition by partition."""
    starts: list[int] = []
    ends: list[int] = []
    rows: list[tuple[int | None, ...]] = []
    known: list[LocatedPartition] = list(found)
    names = sorted({each.address.folio for _, locations in known for each in locations})
    index_of = {name: index for index, name in enumerate(names)}
    for place, (state, locations) in enumerate(known):
        starts.append(state.log_start_offset)
        ends.append(state.next_offset)
        for start, end, timestamp, address, first_timestamp, number, *rest in locations:
            folio, position, length = address
            at = (place, start, end, timestamp, index_of[folio], position, length)
            rows.append((*at, first_timestamp, number, *rest))
    columns: Iterable[Sequence[int | None]] = (
        zip(*rows, strict=True) if rows else [()] * len(SLICES)
    )
    arrays = [pa.array(values, _INT) for values in columns]
    return ManyLocated(starts, ends, pa.RecordBatch.from_arrays(arrays, schema=SLICES), names)


def run_starts(values: "pa.Array[Any]") -> "pa.Array[Any]":
    """Tell of each value whether it differs from the one before it; there are no nulls."""
    first = pa.array([True] if len(values) else [], pa.bool_())
    return pa.concat_arrays([first, pc.not_equal(values[1:], values[:-1])])


def numbered(starts: "pa.Array[Any]") -> "pa.Array[Any]":
    """Return which run each value is in, from 0 on.

    Args:
        starts: Which values begin one, the first at least.
    """
    return pc.subtract(cast("Any", pc).cumulative_sum(starts.cast(_INT)), 1)


def integers(column: "pa.Array[Any]") -> list[int]:
    """Return the values of a column of integers without nulls."""
    return cast("list[int]", column.to_pylist())
