"""From pieces to chunks of mixed partitions: read, merge, filter, cut to the wire's bounds."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc

from wings_core.errors import StorageCorrupt
from wings_core.fetch.chunks import cut_to_wire, is_small, wire_rows
from wings_core.fetch.engines import Allowance
from wings_core.fetch.many.pieces import Piece, Segment
from wings_core.fetch.many.rotation import PartitionCursor
from wings_core.fetch.selection import Selection
from wings_core.fetch.timestamps import timestamp_column
from wings_core.limits import Limits
from wings_core.model import Topic
from wings_core.partitions import Partition
from wings_core.storage.codecs import Wanted, read_pages
from wings_core.storage.interfaces import FolioStore


class PartRange(NamedTuple):
    """The offsets `[start_offset, end_offset]` of a partition that a chunk covers."""

    partition: Partition
    start_offset: int
    end_offset: int
    rows: int
    """In the chunk, after those of the ranges before: less than the offsets where a filter dropped
    some."""


class ManyChunk(NamedTuple):
    """Rows of many partitions on their way to a reader."""

    batch: pa.RecordBatch
    ranges: Sequence[PartRange]
    """In the order of the rows."""
    bytes: int
    """About so many stored bytes were read for it, rows dropped by a filter included."""


class PieceFailed(Exception):  # noqa: N818 - translated by the reader of many partitions
    """The page of a piece could not be read."""

    def __init__(self, piece: Piece, error: StorageCorrupt) -> None:
        super().__init__(error.message)
        self.cursor = piece.segments[0].cursor
        """Of the first of its partitions, which stands where the piece begins."""
        self.address = piece.location.address
        self.error = error


@dataclass(slots=True)
class _Part:
    """Rows of one piece that fit on the wire."""

    rows: pa.RecordBatch
    timestamps: "int | pa.Array[Any]"
    segments: list[Segment]
    bytes: int


class ManyChunks:
    """Turns pieces into chunks.

    Args:
        store: Where the pages lie.
        limits: The wire's bounds.
    """

    def __init__(self, store: FolioStore, limits: Limits) -> None:
        self._store = store
        self._limits = limits

    def read(
        self,
        topic: Topic,
        pieces: Sequence[Piece],
        rows_max: int,
        selection: Selection,
        allowance: Allowance | None = None,
    ) -> Iterator[ManyChunk]:
        """Read pieces as chunks; the cursors move with the rows, before a chunk is yielded.

        Small pages are merged up to the wire's bounds, large ones are delivered without a copy and
        cut where they exceed them. With a filter, a chunk may be empty.

        Args:
            topic: Whose pages they are.
            pieces: In the order in which they are read.
            rows_max: The most rows delivered, over all chunks, at least 1; the last chunk ends with
                the last row delivered.
            selection: Columns and filter.
            allowance: How long the filter may take for a chunk.

        Raises:
            PieceFailed: A page is damaged or gone; the rows before it were delivered.
            InvalidFilter: The filter fails on the data, and the other errors of `RowFilter.mask`.
        """
        rows_left = rows_max
        for run in self._runs(self._parts(topic, pieces, selection), selection):
            chunk, moved = _chunk(run, selection, rows_left, allowance)
            for cursor, next_offset in moved:
                cursor.offset = next_offset
            rows_left -= chunk.batch.num_rows
            yield chunk
            if rows_left == 0:
                return

    def _parts(
        self, topic: Topic, pieces: Sequence[Piece], selection: Selection
    ) -> Iterator[_Part]:
        """Read pages one after another, and cut those that are above the wire's bounds."""
        locations = [piece.location for piece in pieces]
        wanted = Wanted(selection.stored_columns, timestamps=selection.system_columns)
        pages = read_pages(self._store, topic, locations, wanted)
        for piece in pieces:
            try:
                rows, timestamps, size = next(pages)
            except StorageCorrupt as error:
                raise PieceFailed(piece, error) from error
            page_rows = rows.num_rows
            if page_rows == piece.rows <= wire_rows(page_rows, size, self._limits):
                yield _Part(rows, timestamps, piece.segments, size)
                continue
            rows = rows.slice(piece.first, piece.rows)
            first = piece.first
            segments = piece.segments
            for part, part_bytes in cut_to_wire(rows, page_rows, size, self._limits):
                taken, segments = _split(segments, part.num_rows)
                times = timestamps
                if not isinstance(times, int):
                    times = times.slice(first, part.num_rows)
                yield _Part(part, times, taken, part_bytes)
                first += part.num_rows

    def _runs(self, parts: Iterator[_Part], selection: Selection) -> Iterator[list[_Part]]:
        """Gather small parts into runs that fit on the wire; a large part is a run of its own."""
        limits = self._limits
        run: list[_Part] = []
        rows = size = 0
        try:
            for part in parts:
                small = is_small(part.rows.num_rows, part.bytes, selection, limits)
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


def _split(segments: list[Segment], rows: int) -> tuple[list[Segment], list[Segment]]:
    """Return the segments of the first rows, and those of the others."""
    for index, segment in enumerate(segments):
        if segment.rows < rows:
            rows -= segment.rows
            continue
        cursor, start, count, timestamp = (
            segment.cursor,
            segment.start_offset,
            segment.rows,
            segment.timestamp,
        )
        head = [*segments[:index], Segment(cursor, start, rows, timestamp)]
        tail = segments[index + 1 :]
        if rows < count:
            tail = [Segment(cursor, start + rows, count - rows, timestamp), *tail]
        return head, tail
    return segments, []


def _chunk(
    run: Sequence[_Part], selection: Selection, rows_max: int, allowance: Allowance | None
) -> tuple[ManyChunk, list[tuple[PartitionCursor, int]]]:
    """Merge the parts of a run, filter, and end with the last row that may be delivered.

    Returns:
        The chunk, and where its partitions stand then.
    """
    batches = [part.rows for part in run]
    rows = batches[0] if len(batches) == 1 else cast("Any", pa).concat_batches(batches)
    segments = [segment for part in run for segment in part.segments]
    times = _timestamps(run) if selection.system_columns else None
    ranges = _ranges(segments)
    if len(ranges) > len({cursor.partition for cursor, _, _ in ranges}):
        # Each partition stands in one range. To copy the rows once more takes less than a range for
        # each of many small pages would, here and at the reader.
        indices, ranges = _by_partition(ranges)
        rows = rows.take(indices)
        times = None if times is None else times.take(indices)
    mask = selection.filter_mask(rows, allowance)
    if mask is not None and mask.true_count > rows_max:
        last: int = pc.indices_nonzero(mask)[rows_max - 1].as_py()
        rows, mask = rows.slice(0, last + 1), mask.slice(0, last + 1)
        times = None if times is None else times.slice(0, last + 1)
        ranges = _cut(ranges, last + 1)
    batch = _deliver(rows, ranges, times, selection)
    counts = [count for _, _, count in ranges]
    if mask is not None:
        batch = batch.filter(mask)
        counts = _true_counts(mask, counts)
    size = int(sum(part.bytes for part in run) * selection.stored_share)
    covered = [
        PartRange(cursor.partition, start, start + looked_at - 1, delivered)
        for (cursor, start, looked_at), delivered in zip(ranges, counts, strict=True)
    ]
    moved = [(cursor, start + looked_at) for cursor, start, looked_at in ranges]
    return ManyChunk(batch, covered, size), moved


_Range = tuple[PartitionCursor, int, int]
"""A cursor, a first offset, and so many rows."""


def _ranges(segments: Iterable[Segment]) -> list[_Range]:
    """Return the ranges of segments, neighbours of one partition as one."""
    ranges: list[_Range] = []
    for segment in segments:
        if ranges:
            cursor, start, rows = ranges[-1]
            if cursor is segment.cursor and start + rows == segment.start_offset:
                ranges[-1] = (cursor, start, rows + segment.rows)
                continue
        ranges.append((segment.cursor, segment.start_offset, segment.rows))
    return ranges


def _cut(ranges: Iterable[_Range], rows_left: int) -> list[_Range]:
    """Return the ranges of the first rows."""
    cut: list[_Range] = []
    for cursor, start, rows in ranges:
        if rows_left == 0:
            break
        cut.append((cursor, start, min(rows, rows_left)))
        rows_left -= cut[-1][2]
    return cut


def _by_partition(ranges: Iterable[_Range]) -> "tuple[pa.Array[Any], list[_Range]]":
    """Return the order of rows in which each partition's follow one another, and their ranges."""
    groups: dict[Partition, list[tuple[int, _Range]]] = {}
    first = 0
    for cursor, start, rows in ranges:
        groups.setdefault(cursor.partition, []).append((first, (cursor, start, rows)))
        first += rows
    indices: list[pa.Array[Any]] = []
    ordered: list[_Range] = []
    for group in groups.values():
        indices += [cast("Any", pa).arange(first, first + rows) for first, (_, _, rows) in group]
        # A partition's rows are read in order and without gaps.
        cursor, start, _ = group[0][1]
        ordered.append((cursor, start, sum(rows for _, (_, _, rows) in group)))
    return pa.concat_arrays(indices), ordered


def _timestamps(run: Iterable[_Part]) -> "pa.Array[Any]":
    runs: list[tuple[int | pa.Array[Any], int]] = []
    for part in run:
        if isinstance(part.timestamps, int):
            runs += [(segment.timestamp, segment.rows) for segment in part.segments]
        else:
            runs.append((part.timestamps, part.rows.num_rows))
    return timestamp_column(runs)


def _true_counts(mask: pa.BooleanArray, counts: Sequence[int]) -> list[int]:
    """Return how many rows of each range pass the filter."""
    if len(counts) == 1:
        return [mask.true_count]
    passed = cast("Any", pc).cumulative_sum(mask.cast(pa.int32()))
    lasts: list[int] = []
    last = -1
    for count in counts:
        last += count
        lasts.append(last)
    sums: list[int] = passed.take(pa.array(lasts, pa.int32())).to_pylist()
    return [after - before for before, after in zip([0, *sums], sums, strict=False)]


def _deliver(
    rows: pa.RecordBatch,
    ranges: Sequence[_Range],
    times: "pa.Array[Any] | None",
    selection: Selection,
) -> pa.RecordBatch:
    """Shape stored rows as the reader gets them."""
    if times is None and rows.num_columns == len(selection.columns):
        return rows
    arrays = list(rows.columns[: len(selection.columns)])
    if times is not None:
        texts: list[str] = []
        offsets: list[int] = []
        for cursor, start, count in ranges:
            texts += [cursor.partition] * count
            offsets += range(start, start + count)
        arrays += [pa.array(texts, pa.string()), pa.array(offsets, pa.int64()), times]
    return pa.RecordBatch.from_arrays(arrays, schema=selection.schema)
