"""Parts: the ranges of many partitions, divided into lists that are near-equal in rows.

Each part is what one ticket reads, of an endpoint of GetFlightInfo or of a task of Spark.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from wings_core.contracts.messages import JSON_BYTES_MAX
from wings_core.contracts.reads import ENTRIES_MAX
from wings_core.partitions import Partition

TEXT_BYTES_MAX = JSON_BYTES_MAX // 2
"""The most bytes of a part's entries in a ticket, about: what else is in it has the rest."""

ENTRY_BYTES = 100
"""The most bytes of an entry beside its partition value."""

SMALL_PARTS = 8
"""A range of more rows than this fraction of a part may be cut where entries are short."""


class Piece(NamedTuple):
    """A part of a range, or all of it."""

    which: int
    """The index of the range."""
    first: int
    """Its first row, counted from the range's first."""
    end: int
    """Exclusive."""


def divide(partitions: Sequence[Partition], rows: Sequence[int], parts: int) -> list[list[Piece]]:
    """Divide ranges into parts near-equal in rows, each of which fits a ticket.

    Ranges are cut where parts end, and neighbours stay together. Only where a part would have too
    many pieces, because thousands of small ranges lie side by side, they are dealt out.

    Args:
        partitions: Of each range.
        rows: Of each range.
        parts: How many to make: fewer where there are fewer rows; more where there are more than
            `ENTRIES_MAX` ranges for each, or the partition values are very long.

    Returns:
        The parts, none of them empty. Every range is in one of them, those without rows too.
    """
    if not rows:
        return []
    count = max(1, min(parts, sum(rows)), -(-len(rows) // ENTRIES_MAX))
    found = _cut(rows, count)
    while max(map(len, found)) > ENTRIES_MAX:
        found = _deal(rows, count)
        count += 1
    if (max(map(len, partitions)) * 4 + ENTRY_BYTES) * ENTRIES_MAX <= TEXT_BYTES_MAX:
        return found
    return [fitting for part in found for fitting in _fitting(partitions, part)]


def _cut(rows: Sequence[int], count: int) -> list[list[Piece]]:
    """Cut the ranges, laid end to end, at `count - 1` places."""
    total = sum(rows)
    found: list[list[Piece]] = [[]]
    left = total // count
    for index, size in enumerate(rows):
        first = 0
        while size - first > left:
            if left:
                found[-1].append(Piece(index, first, first + left))
                first += left
            left = _share(total, count, len(found))
            found.append([])
        found[-1].append(Piece(index, first, size))
        left -= size - first
    return found


def _deal(rows: Sequence[int], count: int) -> list[list[Piece]]:
    """Deal out the small ranges by size, and fill the parts up with the large ones."""
    total = sum(rows)
    small_max = max(1, total // count // SMALL_PARTS)
    small = [index for index, size in enumerate(rows) if size <= small_max]
    small.sort(key=lambda index: -rows[index])
    found = [[Piece(index, 0, rows[index]) for index in small[n::count]] for n in range(count)]
    wanted = [_share(total, count, n) - sum(piece.end for piece in found[n]) for n in range(count)]
    part = 0
    for index, size in enumerate(rows):
        first = 0 if size > small_max else size
        while first < size:
            while wanted[part] <= 0 and part < count - 1:
                part += 1
            taken = size - first if part == count - 1 else min(size - first, wanted[part])
            found[part].append(Piece(index, first, first + taken))
            wanted[part] -= taken
            first += taken
    return [sorted(pieces) for pieces in found]


def _share(total: int, count: int, part: int) -> int:
    return total * (part + 1) // count - total * part // count


def _fitting(partitions: Sequence[Partition], part: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Yield a part, in several parts where its values are too long for one ticket."""
    found: list[Piece] = []
    size = 0
    for piece in part:
        more = len(partitions[piece.which].encode()) + ENTRY_BYTES
        if found and size + more > TEXT_BYTES_MAX:
            yield found
            found, size = [], 0
        found.append(piece)
        size += more
    yield found
