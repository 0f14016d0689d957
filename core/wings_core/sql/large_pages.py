"""Large pages: handed to DuckDB as they were pushed, in fewer steps than what may be cut or merged.

What Python does amid DuckDB's work finds the processor's caches cleared and takes twice as long,
and DuckDB's other threads wait for it.
"""

from collections.abc import Iterator, Sequence
from itertools import takewhile

from wings_core.errors import StorageCorrupt
from wings_core.fetch.chunks import Chunk
from wings_core.fetch.fetcher import LOCATE_ROWS_MAX, Cancel, Cursor, Fetcher, read_ahead
from wings_core.limits import Limits
from wings_core.model import Location, PageFormat
from wings_core.storage.codecs import Wanted, read_pages
from wings_core.storage.interfaces import FolioStore

SCAN_ROWS = 131_072
"""A scan hands on no larger batches: each costs a call of Python, amid DuckDB's own work."""

LARGE_ROWS_MIN = SCAN_ROWS // 8
"""Pages of fewer rows may be worth a copy to be merged."""

_PUSHED = (PageFormat.PLAIN, PageFormat.INLINE)
"""Formats whose rows lie in memory as they are stored."""


def large_pages(
    fetcher: Fetcher, store: FolioStore, limits: Limits, cursor: Cursor, stop: int, cancel: Cancel
) -> Iterator[list[Chunk]]:
    """Yield pages from a cursor on, some at a time, up to the first that is not handed on as it is.

    The cursor moves with the rows. A page that cannot be read ends it too: `Fetcher.scan`, which
    goes on where the cursor stands, finds it elsewhere or says what is wrong with it.

    Args:
        fetcher: Finds the pages.
        store: Where they lie.
        limits: Bounds on a batch.
        cursor: Where to begin; its selection has neither a filter nor system columns.
        stop: Rows from this offset on are left out; at most the log's end.
        cancel: Ends the read.

    Raises: as `Fetcher.scan`, but `StorageCorrupt`.
    """
    version, bytes_max = cursor.topic.schema_version, limits.wire_bytes_max
    rows_max = 1  # One look finds whether there is any.

    def is_large(page: Location) -> bool:
        return (
            page.format in _PUSHED
            and LARGE_ROWS_MIN <= page.end_offset + 1 - page.start_offset <= SCAN_ROWS
            and page.bytes <= bytes_max
            and page.schema_version == version
            and cursor.offset <= page.start_offset
            and page.end_offset < stop
        )

    while stop - cursor.offset >= LARGE_ROWS_MIN:
        cancel.check()
        found = fetcher.locate(cursor, min(rows_max, stop - cursor.offset)).locations
        pages = list(takewhile(is_large, found))
        try:
            for chunks in read_ahead(_chunks(store, cursor, pages)):
                cursor.offset = chunks[-1].end_offset + 1
                yield chunks
                cancel.check()
        except StorageCorrupt:
            return
        if len(pages) < len(found) or not found:
            return
        rows_max = max(LOCATE_ROWS_MAX, rows_max * 2)


def _chunks(store: FolioStore, cursor: Cursor, pages: Sequence[Location]) -> Iterator[Chunk]:
    selection = cursor.selection
    read = read_pages(store, cursor.topic, pages, Wanted(selection.stored_columns))
    for page, (rows, _, size) in zip(pages, read, strict=True):
        yield Chunk(rows, page.start_offset, page.end_offset, int(size * selection.stored_share))
