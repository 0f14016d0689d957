"""Planning of tiering: which pages move to the remote store, and which are merged into one.

Small merged pages are merged again with the pages after them, but each time into a page of a higher
level, so that the number of levels bounds the rewrites of a row. The idea is that of log-structured
merge trees (O'Neil et al. 1996), with the fan-in of size-tiered compaction.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

from wings_core.metadata.maintenance import REPLACED_MAX
from wings_core.model import Location, PageAddress, PageFormat
from wings_core.storage.table_layout import TableLayout

MERGED_ROWS = 65_536
"""Approximate rows of a merged page: those of a batch on the wire."""

MERGED_BYTES = 16 * 1024 * 1024
"""Approximate decoded bytes of a merged page: those of a batch on the wire."""

FAN_IN = 32
"""Approximate number of pages of one level that become one page of the next."""

LEVEL_ROWS = tuple(MERGED_ROWS // 2 // FAN_IN**level for level in (2, 1, 0))
"""Least rows of a page of level 1, 2 and 3: 32, 1,024 and 32,768. Pages of the last level are never
merged again."""

SEGMENT_BYTES_MAX = 1024 * 1024 * 1024
"""Approximate bound of the stored bytes of pages that become one segment, built in memory."""

SEGMENT_PAGES_MAX = 100_000
"""Most pages that become one segment, apart from previously merged ones."""

TABLE_PAGES_MAX = 10_000
"""Most pages that become one segment of a table, which replaces all of them at once."""


@dataclass(frozen=True, slots=True)
class Due:
    """The pages of a partition to move next."""

    pages: tuple[Location, ...]
    """Consecutive pages; empty if nothing is due."""
    final_offset: int
    """Offset before which no page will ever move again."""


def find_due(
    locations: Iterable[Location],
    offset: int,
    now: int,
    after_us: int,
    segment_bytes: int,
    damaged: Container[PageAddress] = (),
    *,
    table: TableLayout | None = None,
) -> Due:
    """Find the next pages of a partition to become a segment.

    Pages whose last message is older than `after_us` move as soon as they are enough for a segment,
    or the oldest is twice that old. Small merged pages are merged again with the following ones if
    that makes a page of a higher level. Damaged pages stay; the pages before and after one move
    separately. Inline pages are drained first.

    Args:
        locations: Pages of the partition, from `offset` on.
        offset: First offset of `locations`.
        now: Current time in microseconds since the epoch.
        after_us: Age in microseconds at which messages move.
        segment_bytes: Stored bytes that are enough for a segment, capped at `SEGMENT_BYTES_MAX`.
        damaged: Addresses of unreadable pages.
        table: Layout of the topic's table, if any. Segments without its mark are rewritten; new
            ones are replaced as a whole, and end with the layout's period.
    """
    looked = _Looked(offset, min(segment_bytes, SEGMENT_BYTES_MAX), damaged, table)
    enough = False
    for location, following in pairwise(chain(locations, (None,))):
        assert location is not None, "only the last has no successor"
        if location.timestamp > now - after_us or location.format is PageFormat.INLINE:
            break
        enough = looked.add(location, following)
        if enough:
            break
    small, fresh = looked.small, looked.fresh
    if not fresh or (not enough and fresh[0].earliest_timestamp > now - 2 * after_us):
        return Due((), small.offset)
    rows = sum(page.rows for page in fresh)
    return Due((*small.worth_merging(rows), *fresh), small.offset)


class _Looked:
    """The pages examined so far, in order; arguments as in `find_due`."""

    def __init__(
        self,
        offset: int,
        segment_bytes: int,
        damaged: Container[PageAddress],
        table: TableLayout | None,
    ) -> None:
        self.small = _SmallPages(offset, min(MERGED_BYTES, segment_bytes))
        self.fresh: list[Location] = []
        """Pages that move whatever follows them."""
        self._segment_bytes = segment_bytes
        self._damaged = damaged
        self._table = table
        self._size = 0
        self._last: Location | None = None

    def add(self, page: Location, following: Location | None) -> bool:
        """Examine a page; returns whether the pages to move form a segment without later ones."""
        last, self._last = self._last, page
        table = self._table
        if table is not None and last is not None and table.ends_between(last, page):
            if self.fresh:
                return True
            self.small.keep(last)
        if page.address in self._damaged:
            if not self.fresh:
                self.small.keep(page)
            return bool(self.fresh)
        if not page.format.is_merged or (table is not None and not table.has(page.address.folio)):
            self.fresh.append(page)
            self._size += page.bytes
            pages_max = SEGMENT_PAGES_MAX if table is None else TABLE_PAGES_MAX
            return self._size >= self._segment_bytes or len(self.fresh) >= pages_max
        if self.fresh:
            return True
        moves_whole = table is not None and _share_file(last, page)
        if moves_whole or is_final(page, following, self._segment_bytes):
            self.small.keep(page)
        else:
            self.small.add(page)
        return False


def is_final(location: Location, following: Location | None, segment_bytes: int) -> bool:
    """Return whether a merged page will never move again.

    A page is final if it has at least half of the greatest size, or is not the last of its segment,
    in which case it had the greatest size when the segment was made.

    Args:
        location: The page.
        following: The page after it, if any.
        segment_bytes: Stored bytes that are enough for a segment.
    """
    bytes_max = min(MERGED_BYTES, segment_bytes)
    return (
        location.rows >= LEVEL_ROWS[-1]
        or 2 * location.bytes >= bytes_max
        or _share_file(following, location)
    )


def _share_file(one: Location | None, other: Location) -> bool:
    return one is not None and one.address.folio == other.address.folio


class _SmallPages:
    """The last merged pages examined, which may be merged again with the pages after them.

    Args:
        offset: Offset of the first page.
        bytes_max: Most stored bytes of them; earlier pages stay as they are.
    """

    def __init__(self, offset: int, bytes_max: int) -> None:
        self.offset = offset
        """Offset before which no page will ever move again."""
        self._bytes_max = bytes_max
        self._pages: deque[Location] = deque()
        self._rows = 0
        self._bytes = 0

    def add(self, page: Location) -> None:
        self._pages.append(page)
        self._rows += page.rows
        self._bytes += page.bytes
        while self._rows > MERGED_ROWS or self._bytes > self._bytes_max:
            first = self._pages.popleft()
            self._rows -= first.rows
            self._bytes -= first.bytes
            self.offset = first.end_offset + 1

    def keep(self, page: Location) -> None:
        """Exclude all pages up to `page` from further merging."""
        self._pages.clear()
        self._rows = self._bytes = 0
        self.offset = page.end_offset + 1

    def worth_merging(self, rows: int) -> Sequence[Location]:
        """Return as many of the last pages as rise to a higher level when merged.

        Args:
            rows: Rows of the following pages that they are merged with.
        """
        level = -1
        worth = 0
        for count, page in enumerate(reversed(self._pages), start=1):
            rows += page.rows
            level = max(level, _level(page.rows))
            if _level(rows) > level:
                worth = count
        return list(self._pages)[len(self._pages) - worth :]


def _level(rows: int) -> int:
    return bisect_right(LEVEL_ROWS, rows)


@dataclass(slots=True)
class MergeGroup:
    """Consecutive pages to merge into one, or a single large page."""

    pages: list[Location] = field(default_factory=list[Location])
    rows: int = 0
    bytes: int = 0
    """Decoded size in bytes."""

    def takes(self, page: Location, size: int) -> bool:
        """Return whether another page fits; an empty group accepts any.

        Args:
            page: The next page.
            size: Decoded size of its rows in bytes.
        """
        fits = self.rows + page.rows <= MERGED_ROWS and self.bytes + size <= MERGED_BYTES
        return not self.pages or (fits and len(self.pages) < REPLACED_MAX)

    def add(self, page: Location, size: int) -> None:
        """Append a page, whose decoded rows have `size` bytes."""
        self.pages.append(page)
        self.rows += page.rows
        self.bytes += size


def parts_of_rows(rows: int, size: int) -> Iterator[tuple[int, int]]:
    """Split rows into pages; yields the first row and the number of rows of each.

    Pages are of about equal size, none larger than a page should be.

    Args:
        rows: Number of rows, at least 1.
        size: Decoded size of all rows in bytes.
    """
    count = min(rows, max(-(-rows // MERGED_ROWS), -(-size // MERGED_BYTES)))
    for number in range(max(1, count)):
        first, end = (rows * each // max(1, count) for each in (number, number + 1))
        yield first, end - first
