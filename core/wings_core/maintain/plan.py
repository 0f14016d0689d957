"""Which pages of a partition move to the remote store, and which of them become one page there."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from wings_core.metadata.maintenance import REPLACED_MAX, first_timestamp
from wings_core.model import Location

MERGED_ROWS = 65_536
"""Rows of a merged page, about: those of a batch on the wire."""

MERGED_BYTES = 16 * 1024 * 1024
"""Stored bytes of the pages that become one, about."""

SEGMENT_BYTES_MAX = 1024 * 1024 * 1024
"""Stored bytes of the pages that become one segment, about, at most: it is made in memory."""

SEGMENT_PAGES_MAX = 100_000
"""Pages that become one segment, at most."""


@dataclass(frozen=True, slots=True)
class Due:
    """What moves next in a partition."""

    pages: tuple[Location, ...]
    """Neighbours, in order; none where nothing is due."""
    settled_offset: int
    """Nothing before it will ever move again."""


def find_due(
    locations: Iterable[Location], offset: int, now: int, after_us: int, segment_bytes: int
) -> Due:
    """Return the next pages of a partition that become a segment.

    Pages move when their last message is older than `after_us`: as soon as there are enough of them
    for a segment, or the oldest is twice as old. Merged pages that are small are merged again with
    those that follow them.

    Args:
        locations: Of the partition, from an offset on.
        offset: Where they begin.
        now: Microseconds since the epoch.
        after_us: In microseconds.
        segment_bytes: Enough for a segment, in stored bytes; `SEGMENT_BYTES_MAX` always are.
    """
    segment_bytes = min(segment_bytes, SEGMENT_BYTES_MAX)
    run: list[Location] = []
    size = 0
    enough = False
    for location in locations:
        if location.timestamp > now - after_us:
            break
        if is_merged_well(location, segment_bytes):
            if any(page.first_timestamp is None for page in run):
                enough = True
                break
            run.clear()
            size = 0
            offset = location.end_offset + 1
            continue
        run.append(location)
        size += location.address.length
        if size >= segment_bytes or len(run) >= SEGMENT_PAGES_MAX:
            if all(page.first_timestamp is not None for page in run):
                # Small pages, but together as much as a segment: these stay as they are.
                run.clear()
                size = 0
                offset = location.end_offset + 1
                continue
            enough = True
            break
    fresh = [page for page in run if page.first_timestamp is None]
    if not fresh:
        return Due((), offset)
    if not enough and first_timestamp(fresh[0]) > now - 2 * after_us:
        return Due((), offset)
    return Due(tuple(run), offset)


def is_merged_well(location: Location, segment_bytes: int) -> bool:
    """Tell whether a page need not move any more: it is half as large as can be, or larger."""
    bytes_max = min(MERGED_BYTES, segment_bytes)
    return location.first_timestamp is not None and (
        2 * location.rows >= MERGED_ROWS or 2 * location.address.length >= bytes_max
    )


def groups_of(pages: Sequence[Location]) -> Iterator[list[Location]]:
    """Yield the pages in groups, each of which takes one transaction to be replaced."""
    group: list[Location] = []
    rows = size = 0
    for page in pages:
        full = rows + page.rows > MERGED_ROWS or size + page.address.length > MERGED_BYTES
        if group and (full or len(group) >= REPLACED_MAX):
            yield group
            group, rows, size = [], 0, 0
        group.append(page)
        rows += page.rows
        size += page.address.length
    if group:
        yield group
