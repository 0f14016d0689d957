"""Plans: which rows of which pages a turn reads, in what order, and whose rows those are.

Pages are read in the order in which they lie, so one that many partitions share is read once, and
its rows are not copied one partition at a time. A plan of few partitions is made of their locations
one by one; a plan of thousands by Arrow's kernels, on columns (1.3 µs a slice instead of 8, but
milliseconds to begin with).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise, repeat
from operator import add, sub
from typing import Any, NamedTuple, cast

import pyarrow as pa

from wings_core.arrow_compute import pc
from wings_core.contracts.chunks import ranges_metadata
from wings_core.contracts.messages import INT64_MAX
from wings_core.fetch.cursors import PartitionCursor
from wings_core.metadata.interfaces.offset_registry import (
    ManyLocated,
    integers,
    locations_of,
    numbered,
    run_starts,
)
from wings_core.model import Location, Topic
from wings_core.partitions import Partition

COVERS_MAX = 256
"""Covers that a plan keeps: with other columns or filters, its chunks end elsewhere."""


class PagePart(NamedTuple):
    """Neighbouring rows of one page."""

    location: Location
    """The rows that are read, or more: `first` of them are left out, and those after `rows`."""
    first: int
    rows: int


class Spans(NamedTuple):
    """Rows of partitions, one span after another: each from an offset of its partition on."""

    owners: Sequence[int]
    """For each span the index of its partition in the plan."""
    starts: Sequence[int]
    """Offsets."""
    rows: Sequence[int]
    """Numbers of rows, as stored."""
    timestamps: Sequence[int] | None
    """For each span the timestamp of its rows, where their page has none for each row; None: the
    pages tell."""


PartRange = tuple[Partition, int, int, int]
"""A partition, the first and the last offset (inclusive) that a chunk covers, and the number of its
rows in the chunk: less than the offsets where a filter dropped some. A plain tuple, as there are
many."""


class Covered(list[PartRange]):
    """The ranges of a chunk, in the order of its rows; not changed once made."""

    @cached_property
    def metadata(self) -> bytes:
        """The chunk's app_metadata."""
        return ranges_metadata(self)

    def metadata_with_slots(self, topic: Topic) -> bytes:
        """Return the chunk's app_metadata for a read of slots."""
        return ranges_metadata(self, [topic.slot_of(partition) for partition, *_ in self])


class Cover(NamedTuple):
    """The spans of a chunk's rows, as stored and by partition."""

    stored: Spans
    """In the order in which pages hold them."""
    order: "pa.Array[Any] | None"
    """The order of rows in which each partition's follow one another; None where they do."""
    ordered: Spans
    """In that order, one for each partition."""
    covered: Covered
    """The ranges of all of them."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts of pages of a turn, and the spans that they are made of, in their order."""

    partitions: Sequence[Partition]
    parts: Sequence[PagePart]
    spans: Spans
    ends: Sequence[int]
    """For each span the number of rows up to its end."""
    covers: dict[tuple[int, int], Cover] = field(default_factory=dict[tuple[int, int], Cover])
    """Covers of chunks that were made of it, by first row and end: at most `COVERS_MAX`."""

    @property
    def rows(self) -> int:
        """The number of all rows."""
        return self.ends[-1] if self.ends else 0

    def between(self, start: int, stop: int) -> Spans:
        """Return the spans of the rows `[start, stop)`, cut to them."""
        owners, starts, rows, timestamps = self.spans
        first, last = bisect_right(self.ends, start), bisect_left(self.ends, stop) + 1
        begins, counts = list(starts[first:last]), list(rows[first:last])
        skipped = start - (self.ends[first] - counts[0])
        begins[0] += skipped
        counts[0] -= skipped
        counts[-1] -= self.ends[last - 1] - stop
        times = None if timestamps is None else timestamps[first:last]
        return Spans(owners[first:last], begins, counts, times)

    def cover(self, start: int, stop: int) -> Cover:
        """Return the cover of the rows `[start, stop)`."""
        kept = self.covers.get((start, stop))
        if kept is not None:
            return kept
        stored = ordered = self.between(start, stop)
        order = None
        if len(set(stored.owners)) < len(stored.owners):
            # Each partition stands in one range. To copy the rows again takes less than a range
            # for each of many small pages would, here and at the reader.
            order, ordered = _by_partition(stored)
        cover = Cover(stored, order, ordered, self.covered(ordered, ordered.rows))
        if order is None and len(self.covers) < COVERS_MAX:
            self.covers[start, stop] = cover
        return cover

    def covered(self, spans: Spans, counts: Sequence[int]) -> Covered:
        """Return spans as readers are told of them, with so many rows of each delivered."""
        partitions = map(self.partitions.__getitem__, spans.owners)
        ends = map(sub, map(add, spans.starts, spans.rows), repeat(1))
        return Covered(zip(partitions, spans.starts, ends, counts, strict=True))


def cut(spans: Spans, rows: int) -> Spans:
    """Return the spans of the first rows."""
    ends = list(accumulate(spans.rows))
    last = bisect_left(ends, rows) + 1
    kept = list(spans.rows[:last])
    kept[-1] -= ends[last - 1] - rows
    times = None if spans.timestamps is None else spans.timestamps[:last]
    return Spans(spans.owners[:last], spans.starts[:last], kept, times)


def _by_partition(spans: Spans) -> "tuple[pa.Array[Any] | None, Spans]":
    """Return the order of rows in which each partition's follow one another, and their spans.

    The order is None where they do already.
    """
    firsts = map(sub, accumulate(spans.rows), spans.rows)
    groups: dict[int, list[tuple[int, int, int]]] = {}
    for owner, first, start, rows in zip(
        spans.owners, firsts, spans.starts, spans.rows, strict=True
    ):
        groups.setdefault(owner, []).append((first, start, rows))
    # A partition's rows are read in order and without gaps.
    merged = Spans(
        list(groups),
        [group[0][1] for group in groups.values()],
        [sum(rows for _, _, rows in group) for group in groups.values()],
        None,
    )
    runs = [(first, rows) for group in groups.values() for first, _, rows in group]
    if all(first < after for (first, _), (after, _) in pairwise(runs)):
        return None, merged
    indices = [cast("Any", pa).arange(first, first + rows) for first, rows in runs]
    return pa.concat_arrays(indices), merged


def plan_of(
    cursors: Sequence[PartitionCursor], found: Sequence[Sequence[Location]], rows_max: int
) -> Plan:
    """Return the plan that reads the next rows of a few partitions.

    A partition's rows stay in the order of their offsets.

    Args:
        cursors: The partitions; of each, rows from its offset to its stop are wanted.
        found: For each of the first of them, the pages that were located; what is before its
            offset is left out.
        rows_max: The most rows of each.
    """
    parts: list[tuple[int, int, PagePart]] = []
    """With the partition's index and the first offset."""
    for owner, (cursor, locations) in enumerate(zip(cursors, found, strict=False)):
        offset, stop = cursor.offset, min(cursor.stop, cursor.offset + rows_max)
        for location in locations:
            first, end = max(offset, location.start_offset), min(stop, location.end_offset + 1)
            if first < end:
                part = PagePart(location, first - location.start_offset, end - first)
                parts.append((owner, first, part))
    if len(found) > 1:
        parts = _in_page_order(parts)
    owners: list[int] = []
    starts: list[int] = []
    rows: list[int] = []
    for owner, first, (_, _, count) in parts:
        if owners and owners[-1] == owner and starts[-1] + rows[-1] == first:
            rows[-1] += count
        else:
            owners.append(owner)
            starts.append(first)
            rows.append(count)
    return Plan(
        [cursor.partition for cursor in cursors],
        [part for _, _, part in parts],
        Spans(owners, starts, rows, None),
        list(accumulate(rows)),
    )


def _in_page_order(parts: list[tuple[int, int, PagePart]]) -> list[tuple[int, int, PagePart]]:
    """Return parts of pages as the pages lie, none before the one before it of its partition.

    Maintenance and publishes may write pages in another order than their offsets.
    """

    def place(index: int) -> tuple[str, int, int]:
        location = parts[index][2].location
        return (*location.address[:2], location.first_row or 0)

    ranks = [0] * len(parts)
    for rank, index in enumerate(sorted(range(len(parts)), key=place)):
        ranks[index] = rank
    latest: dict[int, int] = {}
    for index, (owner, _, _) in enumerate(parts):
        ranks[index] = latest[owner] = max(ranks[index], latest.get(owner, 0))
    return [parts[index] for index in sorted(range(len(parts)), key=ranks.__getitem__)]


def plan_of_slices(cursors: Sequence[PartitionCursor], located: ManyLocated, rows_max: int) -> Plan:
    """Return the plan that reads the next rows of many partitions; as `plan_of`, by columns.

    Neighbouring slices of a page are one part.

    Raises:
        Internal: A page is of a format that only a later version knows.
    """
    segments = _segments(cursors[: len(located)], located.slices, rows_max)
    segments = segments.take(_order(segments))
    starts, rows = segments.column("first"), segments.column("rows")
    spans = Spans(
        integers(segments.column("place")),
        integers(starts),
        integers(rows),
        integers(segments.column("timestamp")),
    )
    return Plan(
        [cursor.partition for cursor in cursors],
        _parts(segments, located.folios),
        spans,
        integers(pc.cumulative_sum(rows)),
    )


def _segments(
    cursors: Sequence[PartitionCursor], slices: pa.RecordBatch, rows_max: int
) -> pa.RecordBatch:
    """Return the slices that have rows wanted: from offset `first` on so many `rows`.

    The first of them is row `row` of the page.
    """
    place, start = slices.column("place"), slices.column("start_offset")
    offsets = pa.array([cursor.offset for cursor in cursors], pa.int64())
    wanted = [min(each.stop, each.offset + rows_max, INT64_MAX) for each in cursors]
    stops = pa.array(wanted, pa.int64())
    first = pc.max_element_wise(offsets.take(place), start)
    stop = pc.min_element_wise(stops.take(place), pc.add(slices.column("end_offset"), 1))
    row = pc.add(pc.fill_null(slices.column("first_row"), 0), pc.subtract(first, start))
    segments = pa.RecordBatch.from_arrays(
        [*slices.columns, first, pc.subtract(stop, first), row],
        names=[*slices.schema.names, "first", "rows", "row"],
    )
    return segments.filter(pc.less(first, stop))


def _order(segments: pa.RecordBatch) -> "pa.Array[Any]":
    """Return the order in which segments are read; as `_in_page_order`."""
    keys = [(name, "ascending") for name in ("folio", "position", "first_row")]
    order = pc.sort_indices(segments, sort_keys=keys)
    # The rank of each, first among those of its partition, which are neighbours here.
    ranked = pc.add(
        pc.multiply(segments.column("place"), segments.num_rows),
        pc.sort_indices(order).cast(pa.int64()),
    )
    latest = pc.cumulative_max(ranked)
    if latest.equals(ranked):
        return order
    latest = pc.subtract(latest, pc.multiply(segments.column("place"), segments.num_rows))
    return pc.sort_indices(latest)  # It is stable.


def _parts(segments: pa.RecordBatch, folios: Sequence[str]) -> list[PagePart]:
    """Return the parts of pages of segments, neighbouring slices of a page as one."""
    if segments.num_rows == 0:
        return []
    row, rows = segments.column("row"), segments.column("rows")
    page = pc.or_(*(run_starts(segments.column(name)) for name in ("folio", "position")))
    # A page that is not of slices is read by itself, however often it is met.
    whole = pc.is_null(segments.column("first_row"))
    apart = pc.or_(whole, pa.concat_arrays([pa.array([True]), whole[:-1]]))
    before = pa.concat_arrays([pa.array([-1], pa.int64()), pc.add(row, rows)[:-1]])
    begins = pc.or_(pc.or_(page, apart), pc.not_equal(row, before))
    return list(_parts_at(segments, folios, begins))


def _parts_at(
    segments: pa.RecordBatch, folios: Sequence[str], begins: "pa.Array[Any]"
) -> Iterator[PagePart]:
    """Yield the parts of pages that begin at some of the segments."""
    counts = (
        pa.table({"part": numbered(begins), "rows": segments.column("rows")})
        .group_by("part", use_threads=False)
        .aggregate([("rows", "sum")])
        .column("rows_sum")
        .to_pylist()
    )
    first_of = segments.take(pc.indices_nonzero(begins))
    for location, row, start, rows in zip(
        locations_of(first_of, folios),
        integers(first_of.column("row")),
        integers(first_of.column("first")),
        cast("list[int]", counts),
        strict=True,
    ):
        if location.first_row is None:
            yield PagePart(location, start - location.start_offset, rows)
        else:
            yield PagePart(_whole(location, row, rows), 0, rows)


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
