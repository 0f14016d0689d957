"""The pages, rows and bytes of a partition in each tier, counted as pages come and go."""

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

from wings_core.model import Location, PageFormat, TierState
from wings_core.partitions import Partition


@dataclass(frozen=True, slots=True)
class PageCounts:
    """Numbers of pages, their rows and bytes, and of the merged ones among them."""

    pages: int = 0
    rows: int = 0
    bytes: int = 0
    merged_pages: int = 0
    merged_rows: int = 0
    merged_bytes: int = 0

    @classmethod
    def of(cls, pages: Iterable[tuple[int, int, PageFormat]]) -> "PageCounts":
        """Count pages, each given as `(rows, bytes, format)`."""
        every = list(pages)
        merged = [page for page in every if page[2].is_merged]
        return cls(
            len(every),
            sum(rows for rows, _, _ in every),
            sum(size for _, size, _ in every),
            len(merged),
            sum(rows for rows, _, _ in merged),
            sum(size for _, size, _ in merged),
        )

    @classmethod
    def of_locations(cls, locations: Sequence[Location]) -> "PageCounts":
        """Count the pages of locations."""
        return cls.of((page.rows, page.bytes, page.format) for page in locations)

    def __add__(self, other: "PageCounts") -> "PageCounts":
        """Return the counts of both."""
        return PageCounts(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    def tiers(self, partition: Partition) -> list[TierState]:
        """Return the counts of each tier that has pages, the hot one first."""
        hot = self.pages - self.merged_pages
        found: list[TierState] = []
        if hot:
            rows, size = self.rows - self.merged_rows, self.bytes - self.merged_bytes
            found.append(TierState(partition, False, hot, rows, size))
        if self.merged_pages:
            found.append(
                TierState(partition, True, self.merged_pages, self.merged_rows, self.merged_bytes)
            )
        return found
