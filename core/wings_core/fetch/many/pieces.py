"""Pieces: what is read of pages, in the order in which the pages lie.

The rows that partitions have in one page are read as one piece where they are neighbours, so a page
that many partitions share is read and decoded once, and its rows are not copied one partition at a
time. Segments are columns, worked on by Arrow's kernels: 10,000 partitions have many of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from wings_core.fetch.many.rotation import PartitionCursor
from wings_core.metadata.located import (
    ManyLocated,
    integers,
    locations_of,
    numbered,
    run_starts,
)
from wings_core.model import Location
from wings_core.partitions import Partition

if TYPE_CHECKING:
    from wings_core.fetch.many.covers import Cover

_kernels = cast("Any", pc)
"""Some are not in the stubs, or as of chunked arrays."""


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class Piece:
    """Neighbouring rows of one page."""

    location: Location
    """Of all rows read, or of more: then `first` of them are left out, and what follows `rows`."""
    first: int
    rows: int
    segments: int
    """How many segments it has."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The pieces of a turn, and the segments that they are made of, in their order.

    A segment is rows of one partition, one after another in the log and in their page.
    """

    partitions: Sequence[Partition]
    """Of the cursors."""
    pieces: Sequence[Piece]
    owners: Sequence[int]
    """Of each segment: its partition, an index into `partitions`."""
    starts: Sequence[int]
    """Of each: its first offset."""
    rows: Sequence[int]
    ends: Sequence[int]
    """Of each: the number of rows up to its end, over all segments."""
    timestamps: Sequence[int]
    """Of each: of all rows, where the page has none of each."""
    covers: "dict[tuple[int, int], Cover]" = field(default_factory=dict[tuple[int, int], "Cover"])
    """By the first row and the end of chunks that were made of it: see `chunks.COVERS_MAX`."""


def plan_of(cursors: Sequence[PartitionCursor], located: ManyLocated, rows_max: int) -> Plan:
    """Return the pieces that hold the next rows of partitions.

    A partition's rows stay in the order of their offsets, over all pieces.

    Args:
        cursors: The partitions; of each, rows from its offset to its stop.
        located: What was found of each of them, as far as it goes; what is before its offset is
            left out.
        rows_max: The most rows of each.

    Raises:
        Internal: A page is of a format that only a later version knows.
    """
    segments = _segments(cursors[: len(located)], located.slices, rows_max)
    segments = segments.take(_order(segments))
    starts, rows = segments.column("first"), segments.column("rows")
    return Plan(
        [cursor.partition for cursor in cursors],
        _pieces(segments, located.folios),
        integers(segments.column("place")),
        integers(starts),
        integers(rows),
        integers(_kernels.cumulative_sum(rows)),
        integers(segments.column("timestamp")),
    )


def _segments(
    cursors: Sequence[PartitionCursor], slices: pa.RecordBatch, rows_max: int
) -> pa.RecordBatch:
    """Return the slices that have rows wanted: from offset `first` on so many `rows`.

    The first of them is row `row` of the page.
    """
    place, start = slices.column("place"), slices.column("start_offset")
    offsets = pa.array([cursor.offset for cursor in cursors], pa.int64())
    stops = pa.array([min(cursor.stop, cursor.offset + rows_max) for cursor in cursors], pa.int64())
    first = _kernels.max_element_wise(offsets.take(place), start)
    stop = _kernels.min_element_wise(stops.take(place), pc.add(slices.column("end_offset"), 1))
    row = pc.add(_kernels.fill_null(slices.column("first_row"), 0), pc.subtract(first, start))
    segments = pa.RecordBatch.from_arrays(
        [*slices.columns, first, pc.subtract(stop, first), row],
        names=[*slices.schema.names, "first", "rows", "row"],
    )
    return segments.filter(pc.less(first, stop))


def _order(segments: pa.RecordBatch) -> "pa.Array[Any]":
    """Return the order in which segments are read: as their pages lie.

    Maintenance and publishes may write pages in another order than their offsets: a segment comes
    no earlier than the one before it of its partition.
    """
    keys = [(name, "ascending") for name in ("folio", "position", "first_row")]
    order = _kernels.sort_indices(segments, sort_keys=keys)
    # Where each comes, first among those of its partition, which are neighbours here.
    ranked = pc.add(
        pc.multiply(segments.column("place"), segments.num_rows),
        pc.sort_indices(order).cast(pa.int64()),
    )
    latest = _kernels.cumulative_max(ranked)
    if latest.equals(ranked):
        return order
    latest = pc.subtract(latest, pc.multiply(segments.column("place"), segments.num_rows))
    return pc.sort_indices(latest)  # It is stable.


def _pieces(segments: pa.RecordBatch, folios: Sequence[str]) -> list[Piece]:
    """Return the pieces of segments, neighbouring slices of a page as one."""
    if segments.num_rows == 0:
        return []
    row, rows = segments.column("row"), segments.column("rows")
    page = _kernels.or_(*(run_starts(segments.column(name)) for name in ("folio", "position")))
    # A page that is not of slices is read by itself, however often it is met.
    whole = _kernels.is_null(segments.column("first_row"))
    apart = _kernels.or_(whole, pa.concat_arrays([pa.array([True]), whole[:-1]]))
    before = pa.concat_arrays([pa.array([-1], pa.int64()), pc.add(row, rows)[:-1]])
    begins = _kernels.or_(_kernels.or_(page, apart), pc.not_equal(row, before))
    return list(_pieces_at(segments, folios, begins))


def _pieces_at(
    segments: pa.RecordBatch, folios: Sequence[str], begins: "pa.Array[Any]"
) -> "Iterator[Piece]":
    """Yield the pieces that begin at some of the segments."""
    firsts = pc.indices_nonzero(begins)
    counts = (
        pa.table({"piece": numbered(begins), "rows": segments.column("rows")})
        .group_by("piece", use_threads=False)
        .aggregate([("rows", "sum")])
        .column("rows_sum")
        .to_pylist()
    )
    first_of = segments.take(firsts)
    indices = integers(firsts)
    for location, row, start, rows, index, end in zip(
        locations_of(first_of, folios),
        integers(first_of.column("row")),
        integers(first_of.column("first")),
        cast("list[int]", counts),
        indices,
        [*indices[1:], segments.num_rows],
        strict=True,
    ):
        if location.first_row is None:
            yield Piece(location, start - location.start_offset, rows, end - index)
        else:
            yield Piece(_whole(location, row, rows), 0, rows, end - index)


def _whole(known: Location, first_row: int, rows: int) -> Location:
    """Return a location of so many rows of a page, of which a slice is known."""
    if (first_row, rows) == (known.first_row, known.rows):
        return known
    return known._replace(
        start_offset=0,
        end_offset=rows - 1,
        first_row=first_row,
        slice_bytes=max(1, known.bytes * rows // known.rows),
    )
