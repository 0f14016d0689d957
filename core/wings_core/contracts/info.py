"""GetFlightInfo: commands, criteria of ListFlights, and the division of ranges into parts.

Each part has a near-equal number of rows and is read by one ticket: an endpoint of GetFlightInfo,
or a Spark task.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, NamedTuple, Self

import pyarrow as pa
from pydantic import Field, model_validator

from wings_core.contracts.messages import INT64_MAX, JSON_BYTES_MAX, Message, OffsetNumber, to_bytes
from wings_core.contracts.reads import ENTRIES_MAX, PartitionOptions
from wings_core.errors import InvalidArgument
from wings_core.partitions import Partition


class InfoCommand(PartitionOptions):
    """The command of GetFlightInfo, whose endpoints have `scan` tickets; keys are as in a ticket.

    Without `partition` and `partitions`, each partition gets endpoints of its own.
    """

    end_offset: OffsetNumber | None = None
    splits: Annotated[int, Field(ge=1, le=INT64_MAX)] = 1
    """Number of near-equal ranges per partition, at most its rows; with `partitions`, the number of
    endpoints for all partitions together."""

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        self.check_partitions(self.end_offset)
        return self


class Criteria(Message):
    """The criteria of ListFlights."""

    namespace: str | None = None
    """Full name of the namespace; None for all namespaces."""


def parse_criteria(raw: "bytes | pa.Buffer | None") -> Criteria:
    """Parse the criteria of ListFlights; empty criteria select every topic.

    Raises:
        InvalidArgument: The message names the key and the problem.
    """
    found = to_bytes(raw)
    return Criteria.parse(found, InvalidArgument, "criteria") if found else Criteria()


TEXT_BYTES_MAX = JSON_BYTES_MAX // 2
"""Approximate bound of a part's entries in a ticket, in bytes; the rest is for other keys."""

ENTRY_BYTES = 100
"""Most bytes of an entry without its partition value."""

SMALL_PARTS = 8
"""Divisor of a part's rows, above which a range counts as large, and may be cut."""


class Piece(NamedTuple):
    """A range, or a part of one."""

    which: int
    """Index of the range."""
    first: int
    """First row, relative to the range."""
    end: int
    """End row, relative to the range, exclusive."""


def divide(partitions: Sequence[Partition], rows: Sequence[int], parts: int) -> list[list[Piece]]:
    """Divide ranges into parts of near-equal rows, each of which fits in a ticket.

    Ranges are cut at the ends of parts, and neighbours stay together. If a part would have too many
    pieces, because of thousands of adjacent small ranges, the ranges are distributed instead.

    Args:
        partitions: Partition of each range.
        rows: Rows of each range.
        parts: Number of parts: fewer are made of fewer rows; more if each would have more than
            `ENTRIES_MAX` ranges, or partition values are very long.

    Returns:
        The parts, none of them empty; every range is in one of them, even without rows.
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
    """Cut the concatenated ranges at `count - 1` positions."""
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
    """Distribute the small ranges by size, and fill the parts up with the large ones."""
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
    """Yield a part, split if its values are too long for one ticket."""
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
