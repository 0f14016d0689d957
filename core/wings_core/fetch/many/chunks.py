"""From pieces to chunks of mixed partitions: read, merge, filter, cut to the wire's bounds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from operator import add
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc

from wings_core.errors import SchemaMismatch, StorageCorrupt
from wings_core.fetch.chunks import SMALL_PAGE_BYTES, cut_to_wire, wire_rows
from wings_core.fetch.engines import Allowance
from wings_core.fetch.many.covers import Cover, Covered, Ranges, cover_of, covered_by, cut
from wings_core.fetch.many.pieces import Piece, Plan
from wings_core.fetch.many.rotation import PartitionCursor
from wings_core.fetch.selection import Selection
from wings_core.fetch.timestamps import timestamp_column
from wings_core.limits import Limits
from wings_core.model import Topic
from wings_core.schema_versions import SchemaVersions
from wings_core.storage.codecs import PageRows, Wanted, read_pages
from wings_core.storage.interfaces import FolioStore


class ManyChunk(NamedTuple):
    """Rows of many partitions on their way to a reader."""

    batch: pa.RecordBatch
    ranges: Covered
    """In the order of the rows."""
    looked_at: int
    """So many rows, those dropped by a filter included."""
    bytes: int
    """About so many stored bytes were read for it, rows dropped by a filter included."""


class PieceFailed(Exception):  # noqa: N818 - translated by the reader of many partitions
    """The page of a piece could not be read."""

    def __init__(
        self,
        cursor: PartitionCursor,
        piece: Piece,
        error: StorageCorrupt | SchemaMismatch,
        offset: int | None = None,
    ) -> None:
        super().__init__(error.message)
        self.cursor = cursor
        """Of the first of its partitions, which stands where the piece begins; or of the row's."""
        self.address = piece.location.address
        self.error = error
        self.offset = offset
        """Of the first row that does not fit the schema; None: the page is damaged or gone."""


@dataclass(slots=True)
class _Part:
    """Rows of one piece that fit on the wire."""

    rows: pa.RecordBatch
    timestamps: "int | pa.Array[Any]"
    bytes: int


class ManyChunks:
    """Turns pieces into chunks.

    Args:
        store: Where the pages lie.
        limits: The wire's bounds.
        versions: Finds versions of schemas that came after a reader; None: topics have one each.
    """

    def __init__(
        self, store: FolioStore, limits: Limits, versions: SchemaVersions | None = None
    ) -> None:
        self._store = store
        self._versions = versions
        self._limits = limits

    def read(
        self,
        topic: Topic,
        cursors: Sequence[PartitionCursor],
        plan: Plan,
        rows_max: int,
        selection: Selection,
        allowance: Allowance | None = None,
    ) -> Iterator[ManyChunk]:
        """Read pieces as chunks; the cursors move with the rows, before a chunk is yielded.

        Small pages are merged up to the wire's bounds, large ones are delivered without a copy and
        cut where they exceed them. With a filter, a chunk may be empty.

        Args:
            topic: Whose pages they are.
            cursors: The partitions of the plan.
            plan: The pieces, in the order in which they are read.
            rows_max: The most rows delivered, over all chunks, at least 1; the last chunk ends with
                the last row delivered.
            selection: Columns and filter.
            allowance: How long the filter may take for a chunk.

        Raises:
            PieceFailed: A page is damaged or gone, or has a value that the topic's schema, an
                earlier version, cannot hold; the rows before it were delivered.
            InvalidFilter: The filter fails on the data, and the other errors of `RowFilter.mask`.
        """
        rows_left = rows_max
        done = 0
        for run in self._runs(self._parts(topic, cursors, plan, selection), selection):
            rows = sum(part.rows.num_rows for part in run)
            cover = cover_of(plan, done, done + rows)
            chunk, ranges = _chunk(run, cover, plan, selection, rows_left, allowance)
            for owner, next_offset in zip(
                ranges.owners, map(add, ranges.starts, ranges.rows), strict=True
            ):
                cursors[owner].offset = next_offset
            done += rows
            rows_left -= chunk.batch.num_rows
            yield chunk
            if rows_left == 0:
                return

    def _parts(
        self,
        topic: Topic,
        cursors: Sequence[PartitionCursor],
        plan: Plan,
        selection: Selection,
    ) -> Iterator[_Part]:
        """Read pages one after another, and cut those that are above the wire's bounds."""
        wanted = Wanted(selection.stored_columns, timestamps=selection.system_columns)
        if self._versions is not None:
            topic = self._versions.covering(topic, [piece.location for piece in plan.pieces])
        pages = self._pages(topic, plan.pieces, wanted)
        segment = 0
        for piece in plan.pieces:
            try:
                first, (rows, timestamps, size) = next(pages)
            except (StorageCorrupt, SchemaMismatch) as error:
                raise _failed(cursors, plan, piece, segment, error) from error
            segment += piece.segments
            page_rows = rows.num_rows
            if page_rows == piece.rows <= wire_rows(page_rows, size, self._limits):
                yield _Part(rows, timestamps, size)
                continue
            rows = rows.slice(first, piece.rows)
            for part, part_bytes in cut_to_wire(rows, page_rows, size, self._limits):
                times = timestamps
                if not isinstance(times, int):
                    times = times.slice(first, part.num_rows)
                yield _Part(part, times, part_bytes)
                first += part.num_rows

    def _pages(
        self, topic: Topic, pieces: Sequence[Piece], wanted: Wanted
    ) -> Iterator[tuple[int, PageRows]]:
        """Yield for each piece the rows that were read, and the index of its first one in them."""
        for is_cut, group in groupby(pieces, lambda piece: _is_cut(piece, topic)):
            if not is_cut:
                together = list(group)
                locations = [piece.location for piece in together]
                pages = read_pages(self._store, topic, locations, wanted)
                yield from zip((piece.first for piece in together), pages, strict=True)
                continue
            for piece in group:
                start = piece.location.start_offset + piece.first
                part = replace(wanted, start_offset=start, stop_offset=start + piece.rows)
                for page in read_pages(self._store, topic, [piece.location], part):
                    yield 0, page

    def _runs(self, parts: Iterator[_Part], selection: Selection) -> Iterator[list[_Part]]:
        """Gather small parts into runs that fit on the wire; a large part is a run of its own."""
        limits = self._limits
        run: list[_Part] = []
        rows = size = 0
        try:
            for part in parts:
                small = _is_small(part.rows.num_rows, part.bytes, selection, limits)
                fits = (
                    rows + part.rows.num_rows <= limits.wire_rows_max
                    and size + part.bytes <= limits.wire_bytes_max
                )
                if run and not (small and fits):
                    yield run
                    run, rows, size = [], 0, 0
                run.append(part)
                rows += part.rows.num_rows
                size += part.bytes
                if not small:
                    yield run
                    run, rows, size = [], 0, 0
        except PieceFailed:
            # What stands before the damage is whole: it is delivered first.
            if run:
                yield run
            raise
        if run:
            yield run


def _failed(
    cursors: Sequence[PartitionCursor],
    plan: Plan,
    piece: Piece,
    segment: int,
    error: StorageCorrupt | SchemaMismatch,
) -> PieceFailed:
    """Return the failure of a piece, whose first segment is given."""
    offset: int | None = None
    if isinstance(error, SchemaMismatch):
        # Counted from where the piece's location begins, which may be of many partitions.
        row: int = error.facts["offset"] - piece.location.start_offset - piece.first
        while row >= plan.rows[segment]:
            row -= plan.rows[segment]
            segment += 1
        offset = plan.starts[segment] + row
    return PieceFailed(cursors[plan.owners[segment]], piece, error, offset)


def _is_cut(piece: Piece, topic: Topic) -> bool:
    """Tell whether other rows of a page must not be read with a piece of it.

    An earlier version of the schema may be unable to hold them.
    """
    location = piece.location
    return location.schema_version > topic.schema_version and piece.rows < location.rows


def _is_small(rows: int, size: int, selection: Selection, limits: Limits) -> bool:
    """Tell whether rows are worth a copy to be merged: more than of one partition are.

    A chunk's metadata takes as long to send, and its reader to take in, as some copies.
    """
    if selection.row_filter is not None:
        return True
    return rows <= limits.wire_rows_max // 3 and size * selection.stored_share < SMALL_PAGE_BYTES


def _chunk(
    run: Sequence[_Part],
    cover: Cover,
    plan: Plan,
    selection: Selection,
    rows_max: int,
    allowance: Allowance | None,
) -> tuple[ManyChunk, Ranges]:
    """Merge the parts of a run, filter, and end with the last row that may be delivered.

    Returns:
        The chunk, and which of the ranges it covers.
    """
    batches = [part.rows for part in run]
    rows = batches[0] if len(batches) == 1 else cast("Any", pa).concat_batches(batches)
    times = _timestamps(run, cover.stored) if selection.system_columns else None
    looked_at = rows.num_rows
    order, ranges, covered = cover.order, cover.ranges, cover.covered
    mask = selection.filter_mask(rows, allowance)
    if mask is not None:
        mask = mask if order is None else mask.take(order)
        if mask.true_count > rows_max:
            last: int = pc.indices_nonzero(mask)[rows_max - 1].as_py()
            looked_at = last + 1
            mask, ranges = mask.slice(0, looked_at), cut(ranges, looked_at)
        covered = covered_by(plan, ranges, _true_counts(mask, ranges.rows))
        order = None if order is None else order.slice(0, looked_at).filter(mask)
    # In order, or those that passed: what a filter drops is not copied before.
    if order is not None:
        rows, times = rows.take(order), None if times is None else times.take(order)
    elif mask is not None:
        rows = rows.slice(0, looked_at).filter(mask)
        times = None if times is None else times.slice(0, looked_at).filter(mask)
    batch = _deliver(rows, plan, ranges, times, mask, selection)
    size = int(sum(part.bytes for part in run) * selection.stored_share)
    return ManyChunk(batch, covered, looked_at, size), ranges


def _timestamps(run: Sequence[_Part], ranges: Ranges) -> "pa.Array[Any]":
    """Return each row's timestamp, as its page has it, or as its segment does."""
    stored: list[tuple[int | pa.Array[Any], int]] = []
    known = iter(zip(ranges.timestamps, ranges.rows, strict=True))
    timestamp = left = 0  # Of the segment that the last part ended in, which may go on.
    for part in run:
        wanted = part.rows.num_rows
        if not isinstance(part.timestamps, int):
            stored.append((part.timestamps, wanted))
        while wanted:
            if left == 0:
                timestamp, left = next(known)
            taken = min(wanted, left)
            if isinstance(part.timestamps, int):
                stored.append((timestamp, taken))
            wanted -= taken
            left -= taken
    return timestamp_column(stored)


def _true_counts(mask: pa.BooleanArray, counts: Sequence[int]) -> list[int]:
    """Return how many rows of each range pass the filter."""
    if len(counts) == 1:
        return [mask.true_count]
    passed = cast("Any", pc).cumulative_sum(mask.cast(pa.int32()))
    lasts = [end - 1 for end in accumulate(counts)]
    sums: list[int] = passed.take(pa.array(lasts, pa.int32())).to_pylist()
    return [after - before for before, after in zip([0, *sums], sums, strict=False)]


def _deliver(
    rows: pa.RecordBatch,
    plan: Plan,
    ranges: Ranges,
    times: "pa.Array[Any] | None",
    mask: pa.BooleanArray | None,
    selection: Selection,
) -> pa.RecordBatch:
    """Shape stored rows as the reader gets them.

    Args:
        rows: Those delivered.
        plan: Whose ranges they are.
        ranges: Of all that were looked at.
        times: Of those delivered; None: without system columns.
        mask: Which of the rows of the ranges are delivered; None: all.
        selection: The columns.
    """
    if times is None and rows.num_columns == len(selection.columns):
        return rows
    arrays = list(rows.columns[: len(selection.columns)])
    if times is not None:
        texts: list[str] = []
        offsets: list[int] = []
        for owner, start, count in zip(ranges.owners, ranges.starts, ranges.rows, strict=True):
            texts += [plan.partitions[owner]] * count
            offsets += range(start, start + count)
        named = [pa.array(texts, pa.string()), pa.array(offsets, pa.int64())]
        arrays += named if mask is None else [each.filter(mask) for each in named]
        arrays.append(times)
    return pa.RecordBatch.from_arrays(arrays, schema=selection.schema)
