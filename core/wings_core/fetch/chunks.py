"""From a plan to chunks for the wire: read pages, merge small ones, filter, cut to the bounds."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from operator import add
from typing import Any, NamedTuple, cast

import pyarrow as pa

from wings_core import tracing
from wings_core.arrow_compute import pc
from wings_core.errors import SchemaMismatch, StorageCorrupt
from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.engines import Allowance
from wings_core.fetch.plan import Cover, Covered, PagePart, Plan, Spans, cut
from wings_core.fetch.selection import Selection, timestamp_column
from wings_core.limits import Limits
from wings_core.model import PageAddress, Topic
from wings_core.schema_versions import SchemaVersions
from wings_core.storage.codecs import PageRows, Wanted, read_pages
from wings_core.storage.interfaces import FolioStore

SMALL_PAGE_BYTES = 512 * 1024
"""Rows of fewer stored bytes, and of fewer than a third of the wire's rows, are worth a copy to be
merged: the metadata of a chunk takes as long to send, and to take in, as some copies."""


class FetchedChunk(NamedTuple):  # Not a frozen dataclass, which takes three times as long to make.
    """Rows on their way to a reader."""

    batch: pa.RecordBatch
    ranges: Covered
    """Ranges of the log that the chunk covers, in the order of its rows, dropped rows included."""
    looked_at: int
    """The number of rows, those dropped by a filter included."""
    bytes: int
    """About so many stored bytes were read for it, dropped rows included."""


class PageFailed(Exception):  # noqa: N818 - translated by the fetcher
    """A page could not be read, or has a value that an earlier version of the schema cannot hold.

    Attributes:
        cursors: The partitions that stand at the rows that failed.
        address: The page's address, as metadata had it.
        error: The failure.
    """

    def __init__(
        self,
        cursors: Sequence[PartitionCursor],
        address: PageAddress,
        error: StorageCorrupt | SchemaMismatch,
    ) -> None:
        super().__init__(error.message)
        self.cursors = cursors
        self.address = address
        self.error = error


@dataclass(slots=True)
class _PartRows:
    """Rows of one part of a page that fit on the wire."""

    rows: pa.RecordBatch
    timestamps: "int | pa.Array[Any]"
    bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class ChunkReader:
    """Turns plans into chunks.

    Args:
        store: Where the pages lie.
        limits: The wire's bounds.
        versions: Finds versions of schemas that came after a reader; None: topics have one each.
    """

    _store: FolioStore
    _limits: Limits
    _versions: SchemaVersions | None = None

    def read(
        self,
        topic: Topic,
        cursors: Sequence[PartitionCursor],
        plan: Plan,
        rows_max: int,
        selection: Selection,
        allowance: Allowance | None = None,
    ) -> Iterator[FetchedChunk]:
        """Read a plan's rows as chunks; the cursors move with the rows, before a chunk is yielded.

        Small pages are merged up to the wire's bounds, large ones are delivered without a copy and
        cut where they exceed them. With a filter, a chunk may be empty.

        Args:
            topic: The pages' topic.
            cursors: The partitions of the plan.
            plan: The parts of pages to read.
            rows_max: The most rows delivered, over all chunks, at least 1; the last chunk ends with
                the last row delivered.
            selection: Columns and filter.
            allowance: How long the filter may take for a chunk.

        Raises:
            PageFailed: The rows before it were delivered.
            InvalidFilter: The filter fails on the data, and the other errors of `RowFilter.mask`.
        """
        rows_left = rows_max
        done = 0
        for run in self._runs(self._parts(topic, cursors, plan, selection), selection):
            rows = sum([part.rows.num_rows for part in run])
            cover = plan.cover(done, done + rows)
            chunk, spans = _chunk(run, cover, plan, selection, rows_left, allowance)
            for owner, offset in zip(spans.owners, map(add, spans.starts, spans.rows), strict=True):
                cursors[owner].offset = offset
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
    ) -> Iterator[_PartRows]:
        """Read pages one after another, and cut those that are above the wire's bounds."""
        wanted = Wanted(selection.stored_columns, timestamps=selection.system_columns)
        if self._versions is not None:
            topic = self._versions.covering(topic, [part.location for part in plan.parts])
        pages = tracing.spread(
            "storage.read",
            self._pages(topic, plan.parts, wanted),
            {"wings.pages": len(plan.parts)},
        )
        done = 0
        for part in plan.parts:
            try:
                first, (rows, timestamps, size) = next(pages)
            except StorageCorrupt as error:
                failed = plan.between(done, done + part.rows).owners
                address = part.location.address
                raise PageFailed([cursors[n] for n in set(failed)], address, error) from error
            except SchemaMismatch as error:
                yield from self._before(topic, part, wanted, error)
                raise _mismatch(cursors, plan, done, part, error) from error
            done += part.rows
            page_rows = rows.num_rows
            if page_rows == part.rows <= _wire_rows(page_rows, size, self._limits):
                yield _PartRows(rows, timestamps, size)
                continue
            rows = rows.slice(first, part.rows)
            for some, some_bytes in _cut_to_wire(rows, page_rows, size, self._limits):
                times = timestamps
                if not isinstance(times, int):
                    times = times.slice(first, some.num_rows)
                yield _PartRows(some, times, some_bytes)
                first += some.num_rows

    def _pages(
        self, topic: Topic, parts: Sequence[PagePart], wanted: Wanted
    ) -> Iterator[tuple[int, PageRows]]:
        """Yield for each part the rows that were read, and the index of its first one in them."""
        version = topic.schema_version
        # Other rows of a page are not read with a part of it, where the schema, an earlier version,
        # may be unable to hold them.
        for is_whole, group in groupby(
            parts,
            lambda part: part.location.schema_version <= version or part.rows == part.location.rows,
        ):
            together = list(group)
            if is_whole:
                pages = read_pages(self._store, topic, [each.location for each in together], wanted)
                yield from zip([each.first for each in together], pages, strict=True)
                continue
            for part in together:
                yield 0, self._rows_of(topic, part, part.rows, wanted)

    def _rows_of(self, topic: Topic, part: PagePart, rows: int, wanted: Wanted) -> PageRows:
        """Return the first rows of a part of a page, without a look at the others."""
        start = part.location.start_offset + part.first
        some = replace(wanted, start_offset=start, stop_offset=start + rows)
        (page,) = read_pages(self._store, topic, [part.location], some)
        return page

    def _before(
        self, topic: Topic, part: PagePart, wanted: Wanted, error: SchemaMismatch
    ) -> Iterator[_PartRows]:
        """Yield the rows of a part of a page before the one that the schema cannot hold."""
        rows = _bad_row(part, error)
        if rows:
            page, timestamps, size = self._rows_of(topic, part, rows, wanted)
            yield _PartRows(page, timestamps, size)

    def _runs(self, parts: Iterator[_PartRows], selection: Selection) -> Iterator[list[_PartRows]]:
        """Gather small parts into runs that fit on the wire; a large part is a run of its own."""
        limits = self._limits
        run: list[_PartRows] = []
        rows = size = 0
        try:
            for part in parts:
                count = part.rows.num_rows
                # A filter costs more for each batch than a copy does.
                small = selection.row_filter is not None or (
                    count <= limits.wire_rows_max // 3
                    and part.bytes * selection.stored_share < SMALL_PAGE_BYTES
                )
                fits = (
                    rows + count <= limits.wire_rows_max
                    and size + part.bytes <= limits.wire_bytes_max
                )
                if run and not (small and fits):
                    yield run
                    run, rows, size = [], 0, 0
                run.append(part)
                rows += count
                size += part.bytes
                if not small:
                    yield run
                    run, rows, size = [], 0, 0
        except PageFailed:
            # What stands before the failure is whole: it is delivered first.
            if run:
                yield run
            raise
        if run:
            yield run


def _bad_row(part: PagePart, error: SchemaMismatch) -> int:
    """Return the index in a part of the row that the schema cannot hold."""
    offset: int = error.facts["offset"]
    return offset - part.location.start_offset - part.first


def _mismatch(
    cursors: Sequence[PartitionCursor],
    plan: Plan,
    done: int,
    part: PagePart,
    error: SchemaMismatch,
) -> PageFailed:
    """Return the failure of a row, with its offset in its log."""
    row = done + _bad_row(part, error)
    span = bisect_right(plan.ends, row)
    owners, starts, rows, _ = plan.spans
    offset = starts[span] + row - (plan.ends[span] - rows[span])
    named = SchemaMismatch(error.message, **{**error.facts, "offset": offset})
    return PageFailed([cursors[owners[span]]], part.location.address, named)


def _wire_rows(rows: int, size: int, limits: Limits) -> int:
    """Return how many rows of a page make one batch on the wire, if all are of one size."""
    rows_max = limits.wire_rows_max
    if size > limits.wire_bytes_max:
        rows_max = min(rows_max, rows * limits.wire_bytes_max // size)
    return max(1, rows_max)


def _cut_to_wire(
    rows: pa.RecordBatch, page_rows: int, size: int, limits: Limits
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield rows of a page in parts that fit on the wire, each with about how many bytes it has.

    Args:
        rows: The rows that are delivered.
        page_rows: How many rows the page has.
        size: Its bytes.
        limits: The wire's bounds.
    """
    step = _wire_rows(page_rows, size, limits)
    for first in range(0, rows.num_rows, step):
        for part in _cut(rows.slice(first, step), limits.wire_bytes_max):
            yield part, max(part.nbytes, size * part.num_rows // page_rows)


def _cut(rows: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Halve rows until no part is above the bound, but for a single row: their sizes may differ."""
    if rows.num_rows <= 1 or rows.nbytes <= bytes_max:
        yield rows
        return
    half = rows.num_rows // 2
    yield from _cut(rows.slice(0, half), bytes_max)
    yield from _cut(rows.slice(half), bytes_max)


def _chunk(
    run: Sequence[_PartRows],
    cover: Cover,
    plan: Plan,
    selection: Selection,
    rows_max: int,
    allowance: Allowance | None,
) -> tuple[FetchedChunk, Spans]:
    """Merge the parts of a run, filter, and end with the last row that may be delivered.

    Returns:
        The chunk, and the spans that it covers.
    """
    batches = [part.rows for part in run]
    rows = batches[0] if len(batches) == 1 else cast("Any", pa).concat_batches(batches)
    times = _timestamps(run, cover.stored) if selection.system_columns else None
    looked_at = rows.num_rows
    order, spans, covered = cover.order, cover.ordered, cover.covered
    mask = selection.filter_mask(rows, allowance)
    if mask is not None:
        mask = mask if order is None else mask.take(order)
        if mask.true_count > rows_max:
            last: int = pc.indices_nonzero(mask)[rows_max - 1].as_py()
            looked_at = last + 1
            mask, spans = mask.slice(0, looked_at), cut(spans, looked_at)
        covered = plan.covered(spans, _true_counts(mask, spans.rows))
        order = None if order is None else order.slice(0, looked_at).filter(mask)
    elif looked_at > rows_max:
        looked_at, spans = rows_max, cut(spans, rows_max)
        covered = plan.covered(spans, spans.rows)
        if order is None:
            rows = rows.slice(0, rows_max)
            times = None if times is None else times.slice(0, rows_max)
        else:
            order = order.slice(0, rows_max)
    # In order, or those that passed: what a filter drops is not copied before.
    if order is not None:
        rows, times = rows.take(order), None if times is None else times.take(order)
    elif mask is not None:
        rows = rows.slice(0, looked_at).filter(mask)
        times = None if times is None else times.slice(0, looked_at).filter(mask)
    batch = selection.deliver(
        rows, () if times is None else _system(plan, spans, times, mask, selection)
    )
    size = int(sum([part.bytes for part in run]) * selection.stored_share)
    return FetchedChunk(batch, covered, looked_at, size), spans


def _timestamps(run: Sequence[_PartRows], spans: Spans) -> "pa.Array[Any]":
    """Return each row's timestamp, as its page has it, or as its span does."""
    if spans.timestamps is None:
        return timestamp_column([(part.timestamps, part.rows.num_rows) for part in run])
    stored: list[tuple[int | pa.Array[Any], int]] = []
    known = iter(zip(spans.timestamps, spans.rows, strict=True))
    timestamp = left = 0  # Of the span that the last part ended in, which may go on.
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
    passed = pc.cumulative_sum(mask.cast(pa.int32()))
    lasts = [end - 1 for end in accumulate(counts)]
    sums: list[int] = passed.take(pa.array(lasts, pa.int32())).to_pylist()
    return [after - before for before, after in zip([0, *sums], sums, strict=False)]


def _system(
    plan: Plan,
    spans: Spans,
    times: "pa.Array[Any]",
    mask: pa.BooleanArray | None,
    selection: Selection,
) -> "list[pa.Array[Any]]":
    """Return the system columns of the rows of spans.

    Args:
        plan: The plan of the spans.
        spans: All rows that were looked at.
        times: The timestamps of the rows delivered.
        mask: True for the rows delivered; None: all.
        selection: The columns wanted.
    """
    counts = list(zip(spans.starts, spans.rows, strict=True))
    offsets: Any
    if len(counts) == 1:
        offsets = cast("Any", pa).arange(counts[0][0], sum(counts[0]))
    else:
        offsets = pa.array(
            [n for start, count in counts for n in range(start, start + count)], pa.int64()
        )
    columns = [offsets]
    if selection.many:
        names: list[str] = []
        for owner, (_, count) in zip(spans.owners, counts, strict=True):
            names += [plan.partitions[owner]] * count
        columns.insert(0, pa.array(names, pa.string()))
    return [*(columns if mask is None else [each.filter(mask) for each in columns]), times]
