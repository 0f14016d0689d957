"""Which pages of a partition move to the remote store, and which of them become one page there.

Small merged pages are merged again with what comes after them, but each time only into a page of a
higher level, so that a row is rewritten as often as there are levels, and no more. The idea is that
of log-structured merge trees (O'Neil et al. 1996), with the fan-in of size-tiered compaction.
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
"""Rows of a merged page, about: those of a batch on the wire."""

MERGED_BYTES = 16 * 1024 * 1024
"""Bytes of a merged page, decoded, about: those of a batch on the wire."""

FAN_IN = 32
"""So many pages of one level become one of the next, about."""

LEVEL_ROWS = tuple(MERGED_ROWS // 2 // FAN_IN**level for level in (2, 1, 0))
"""Rows that a page of level 1, 2 and 3 has at least: 32, 1,024 and 32,768. One of the last level is
never merged again."""

SEGMENT_BYTES_MAX = 1024 * 1024 * 1024
"""Stored bytes of the pages that become one segment, about, at most: it is made in memory."""

SEGMENT_PAGES_MAX = 100_000
"""Pages that become one segment, at most, beside those that were merged before."""

TABLE_PAGES_MAX = 10_000
"""The same for a table, whose segments replace all their pages at once."""


@dataclass(frozen=True, slots=True)
class Due:
    """The pages that move next in a partition."""

    pages: tuple[Location, ...]
    """Neighbours, in order; none where nothing is due."""
    final_offset: int
    """Nothing before it will ever move again."""


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
    """Return the next pages of a partition that become a segment.

    Pages move when their last message is older than `after_us`: as soon as there are enough of them
    for a segment, or the oldest is twice as old. Merged pages that are small are merged again with
    those that follow them, where that makes one of a higher level. Damaged pages stay where they
    are: what is before one and what is after it moves by itself. What is inline is drained first.

    Args:
        locations: Of the partition, from an offset on.
        offset: Where they begin.
        now: Microseconds since the epoch.
        after_us: In microseconds.
        segment_bytes: Enough for a segment, in stored bytes; `SEGMENT_BYTES_MAX` always are.
        damaged: Where pages lie that cannot be read.
        table: Where segments are files of a table. Others are written anew, and those move as
            wholes and end with the layout's period.
    """
    looked = _Looked(offset, min(segment_bytes, SEGMENT_BYTES_MAX), damaged, table)
    enough = False
    for location, following in pairwise(chain(locations, (None,))):
        assert location is not None, "only the last is followed by none"
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
    """The pages that were looked at, in order; the arguments are those of `find_due`."""

    def __init__(
        self,
        offset: int,
        segment_bytes: int,
        damaged: Container[PageAddress],
        table: TableLayout | None,
    ) -> None:
        self.small = _SmallPages(offset, min(MERGED_BYTES, segment_bytes))
        self.fresh: list[Location] = []
        """Pages that move, whatever comes after them."""
        self._segment_bytes = segment_bytes
        self._damaged = damaged
        self._table = table
        self._size = 0
        self._last: Location | None = None

    def add(self, page: Location, following: Location | None) -> bool:
        """Look at a page; tell whether those that move are a segment without what comes later."""
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
    """Tell whether a merged page will never move again.

    It is half as large as can be, or larger; or it is not the last of its segment, so that it was
    as large as could be when that was made.

    Args:
        location: The page.
        following: The one after it, if there is one.
        segment_bytes: Enough for a segment, in stored bytes.
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
    """Merged pages at the end of those, that may be merged again with what follows them.

    Args:
        offset: Of the first page.
        bytes_max: Most stored bytes of them; those before stay as they are.
    """

    def __init__(self, offset: int, bytes_max: int) -> None:
        self.offset = offset
        """Nothing before it will ever move again."""
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
        """Let all pages up to this one stay as they are."""
        self._pages.clear()
        self._rows = self._bytes = 0
        self.offset = page.end_offset + 1

    def worth_merging(self, rows: int) -> Sequence[Location]:
        """Return the last of the pages, so many that each comes to a higher level.

        Args:
            rows: Those after the pages, which become one with them.
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
class Group:
    """Neighbouring pages that become one, where they are not too large for it by themselves."""

    pages: list[Location] = field(default_factory=list[Location])
    rows: int = 0
    bytes: int = 0
    """Decoded."""

    def takes(self, page: Location, size: int) -> bool:
        """Tell whether another page fits; an empty group takes any.

        Args:
            page: The next one.
            size: Of its rows, decoded, in bytes.
        """
        fits = self.rows + page.rows <= MERGED_ROWS and self.bytes + size <= MERGED_BYTES
        return not self.pages or (fits and len(self.pages) < REPLACED_MAX)

    def add(self, page: Location, size: int) -> None:
        """Append a page to the group; `size` is of its decoded rows, in bytes."""
        self.pages.append(page)
        self.rows += page.rows
        self.bytes += size


def parts_of_rows(rows: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the pages that rows become: where each begins among them, and its rows.

    They are about as large as one another, and no larger than one page should be.

    Args:
        rows: One at least.
        size: Of all of them, decoded, in bytes.
    """
    count = min(rows, max(-(-rows // MERGED_ROWS), -(-size // MERGED_BYTES)))
    for number in range(max(1, count)):
        first, end = (rows * each // max(1, count) for each in (number, number + 1))
        yield first, end - first
