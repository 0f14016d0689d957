"""From locations to chunks: read pages, merge small ones, filter, cut to the wire's bounds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from wings_core import tracing
from wings_core.errors import SchemaMismatch, StorageCorrupt, WingsError
from wings_core.fetch.engines import Allowance
from wings_core.fetch.selection import Selection
from wings_core.limits import Limits
from wings_core.model import Location, Topic
from wings_core.partitions import Partition, partition_value
from wings_core.schema_versions import SchemaVersions
from wings_core.storage.codecs import Wanted, read_pages
from wings_core.storage.interfaces import FolioStore

SMALL_PAGE_BYTES = 512 * 1024
"""Pages below this, and below an eighth of the wire's rows, are worth a copy to be merged."""


class Chunk(NamedTuple):  # Not a frozen dataclass, which would take three times as long to make.
    """Rows on their way to a reader.

    `start_offset` to `end_offset`, both inclusive, is the range of the log that the chunk covers,
    rows dropped by a filter included.
    """

    batch: pa.RecordBatch
    start_offset: int
    end_offset: int
    bytes: int
    """About so many stored bytes were read for it, rows dropped by a filter included."""


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class _Piece:
    """Rows of one page, or of a part of it."""

    start_offset: int
    timestamps: "int | pa.Array[Any]"
    """One for all rows, or one for each."""
    rows: pa.RecordBatch
    bytes: int
    """At most so many of its page, by the page's length: adding up buffers would take longer than
    reading them. Also of columns that were not read."""


@dataclass(slots=True)
class _Run:
    """Neighbouring pieces of pages that will be one batch."""

    pieces: list[_Piece]
    rows: int
    bytes: int

    @property
    def start_offset(self) -> int:
        return self.pieces[0].start_offset

    def takes(self, piece: _Piece, limits: Limits) -> bool:
        """Tell whether a piece fits on the wire with the others."""
        return (
            self.rows + piece.rows.num_rows <= limits.wire_rows_max
            and self.bytes + piece.bytes <= limits.wire_bytes_max
        )

    def add(self, piece: _Piece) -> None:
        self.pieces.append(piece)
        self.rows += piece.rows.num_rows
        self.bytes += piece.bytes

    def merged(self) -> pa.RecordBatch:
        """Return the rows as one batch: a copy, but of a single piece."""
        if len(self.pieces) == 1:
            return self.pieces[0].rows
        batches = [piece.rows for piece in self.pieces]
        return pa.concat_batches(batches)  # pyright: ignore[reportAttributeAccessIssue] - not in the stubs


class ChunkReader:
    """Turns locations into chunks.

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
        locations: Sequence[Location],
        start_offset: int,
        stop_offset: int,
        rows_max: int,
        selection: Selection,
        allowance: Allowance | None = None,
    ) -> Iterator[Chunk]:
        """Read the rows `[start_offset, stop_offset)` as chunks for the wire.

        Small pages are merged into batches of up to `limits.wire_rows_max` rows; large ones are
        delivered without a copy, cut where they exceed the wire's bounds. With a filter, every
        range read yields a chunk, also where no row passed (its batch is then empty).

        Args:
            topic: Whose pages they are.
            locations: In order, without gaps; together they hold the range.
            start_offset: First row wanted.
            stop_offset: One past the last row wanted.
            rows_max: The most rows delivered, over all chunks, at least 1; the last chunk ends
                with the last row delivered.
            selection: Columns and filter.
            allowance: How long the filter may take for a chunk.

        Raises:
            StorageCorrupt: A page is damaged; the rows before it were delivered.
            SchemaMismatch: A page has a value that the topic's schema, an earlier version, cannot
                hold; the rows before it were delivered.
            InvalidFilter: The filter fails on the data, and the other errors of `RowFilter.mask`.
        """
        if selection.row_filter is None:
            stop_offset = min(stop_offset, start_offset + rows_max)
        pieces = self._pieces(topic, locations, start_offset, stop_offset, selection)
        rows_left = rows_max
        for run in _merge(pieces, selection, self._limits):
            chunk = _chunk(run, selection, rows_left, allowance)
            rows_left -= chunk.batch.num_rows
            yield chunk
            if rows_left == 0:
                return

    def _pieces(
        self,
        topic: Topic,
        locations: Sequence[Location],
        start_offset: int,
        stop_offset: int,
        selection: Selection,
    ) -> Iterator[_Piece]:
        """Read pages one after another, and cut those that are above the wire's bounds."""
        located = [each for each in locations if each.start_offset < stop_offset]
        wanted = Wanted(
            selection.stored_columns, start_offset, stop_offset, selection.system_columns
        )
        if self._versions is not None:
            topic = self._versions.covering(topic, located)
        pages = tracing.spread(
            "storage.read",
            read_pages(self._store, topic, located, wanted),
            {"wings.pages": len(located)},
        )
        for location, (rows, timestamps, size) in zip(located, pages, strict=True):
            begin = max(start_offset, location.start_offset)
            if rows.num_rows == location.rows <= wire_rows(location.rows, size, self._limits):
                yield _Piece(begin, timestamps, rows, size)
                continue
            first = 0
            for part, part_bytes in cut_to_wire(rows, location.rows, size, self._limits):
                times = timestamps
                if not isinstance(times, int):
                    times = times.slice(first, part.num_rows)
                yield _Piece(begin + first, times, part, part_bytes)
                first += part.num_rows


def placed(error: WingsError, partition: Partition, offset: int | None) -> WingsError:
    """Return an error that names the partition, and the offset where one is known."""
    at = "" if offset is None else f", offset {offset}"
    facts = error.facts | ({} if offset is None else {"offset": offset})
    facts["partition"] = partition_value(partition)
    return type(error)(f"partition {partition:.80}{at}: {error.message}", **facts)


def wire_rows(rows: int, size: int, limits: Limits) -> int:
    """Return how many rows of a page make one batch on the wire, if all are of one size."""
    rows_max = limits.wire_rows_max
    if size > limits.wire_bytes_max:
        rows_max = min(rows_max, rows * limits.wire_bytes_max // size)
    return max(1, rows_max)


def cut_to_wire(
    rows: pa.RecordBatch, page_rows: int, size: int, limits: Limits
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield rows of a page in parts that fit on the wire, each with about how many bytes it has.

    Args:
        rows: Those that are delivered.
        page_rows: How many rows the page has.
        size: Its bytes.
        limits: The wire's bounds.
    """
    step = wire_rows(page_rows, size, limits)
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


def _merge(pieces: Iterator[_Piece], selection: Selection, limits: Limits) -> Iterator[_Run]:
    """Gather small pieces into runs; a large piece is a run of its own."""
    run: _Run | None = None
    try:
        for piece in pieces:
            small = is_small(piece.rows.num_rows, piece.bytes, selection, limits)
            if run is not None and not (small and run.takes(piece, limits)):
                yield run
                run = None
            if run is None:
                run = _Run([piece], piece.rows.num_rows, piece.bytes)
            else:
                run.add(piece)
            if not small:
                yield run
                run = None
    except (StorageCorrupt, SchemaMismatch):
        # What stands before the damage is whole: it is delivered first.
        if run is not None:
            yield run
        raise
    if run is not None:
        yield run


def is_small(rows: int, size: int, selection: Selection, limits: Limits) -> bool:
    """Tell whether so many rows and stored bytes are worth a copy to be merged with others."""
    if selection.row_filter is not None:
        return True  # A filter costs more for each batch than a copy does.
    return rows < limits.wire_rows_max // 8 and size * selection.stored_share < SMALL_PAGE_BYTES


def _chunk(run: _Run, selection: Selection, rows_max: int, allowance: Allowance | None) -> Chunk:
    """Merge a run's pieces, apply the filter, and end with the last row that may be delivered."""
    rows = run.merged()
    timestamps = [(piece.timestamps, piece.rows.num_rows) for piece in run.pieces]
    batch = selection.deliver(rows, run.start_offset, timestamps)
    end_offset = run.start_offset + run.rows - 1
    size = int(run.bytes * selection.stored_share)
    mask = selection.filter_mask(rows, allowance)
    if mask is None:
        return Chunk(batch, run.start_offset, end_offset, size)
    if mask.true_count > rows_max:
        last: int = pc.indices_nonzero(mask)[rows_max - 1].as_py()
        batch, mask = batch.slice(0, last + 1), mask.slice(0, last + 1)
        end_offset = run.start_offset + last
    return Chunk(batch.filter(mask), run.start_offset, end_offset, size)
