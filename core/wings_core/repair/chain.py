"""The pages of one partition: each offset is in one of them, or in one that is lost."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from wings_core.model import LOST_FOLIO, Location, PageAddress

Verify = Callable[[Location], bool]
"""Tells whether a page can be read, and is what its location says."""


@dataclass(slots=True)
class Chain:
    """Pages of a partition that do not overlap, in order of offset."""

    pages: list[Location] = field(default_factory=list[Location])

    @property
    def end(self) -> int:
        """The offset after the last one; 0 where there are no pages."""
        return self.pages[-1].end_offset + 1 if self.pages else 0

    def add(self, page: Location, verify: Verify | None = None) -> bool:
        """Add a page where its offsets are in no other; tell whether it was.

        Args:
            page: The page.
            verify: Looks at it first; None: it is known to be right.
        """
        if not 0 <= page.start_offset <= page.end_offset:
            return False
        at = bisect_left(self.pages, page.start_offset, key=lambda each: each.end_offset)
        if at < len(self.pages) and self.pages[at].start_offset <= page.end_offset:
            return False
        if verify is not None and not verify(page):
            return False
        self.pages.insert(at, page)
        return True

    def gaps(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the offsets `[first, last]` from `start` to `end` (exclusive) in no page."""
        expected = start
        for page in self.pages:
            if page.start_offset > expected:
                yield expected, min(page.start_offset, end) - 1
            expected = max(expected, page.end_offset + 1)
            if expected >= end:
                return
        if expected < end:
            yield expected, end - 1

    def fill(
        self, pages: Iterable[Location], start: int, end: int | None, verify: Verify
    ) -> list[Location]:
        """Add the pages, or parts of them, that have offsets which are missing.

        Args:
            pages: Those that may be there, the likely ones first.
            start: Offsets before it are not wanted.
            end: Nor those from it on; None: all are.
            verify: Looks at each before it is added.

        Returns:
            Those that were added.
        """
        added: list[Location] = []
        for page in pages:
            if page.end_offset < start or (end is not None and page.start_offset >= end):
                continue
            if self.add(page, verify):
                added.append(page)
        return added

    def lose(
        self, start: int, end: int, last_timestamp: int | None, position: Iterator[int]
    ) -> list[tuple[int, int]]:
        """Put pages that cannot be read in the place of offsets that are in none.

        Their time is the latest that they may have had, so that who looks for a time does not
        pass them by.

        Args:
            start: Where the log starts.
            end: Where it ends, exclusive.
            last_timestamp: Of the last message, if it is known.
            position: Where each is said to lie.

        Returns:
            The offsets of each, both inclusive.
        """
        gaps = list(self.gaps(start, end))
        for first, last in gaps:
            at = bisect_left(self.pages, first, key=lambda each: each.end_offset)
            if at < len(self.pages):
                timestamp = self.pages[at].earliest_timestamp
            else:
                before = self.pages[-1].timestamp if self.pages else 0
                timestamp = max(before, last_timestamp or 0)
            address = PageAddress(LOST_FOLIO, next(position), 1)
            self.pages.insert(at, Location(first, last, timestamp, address))
        return gaps
