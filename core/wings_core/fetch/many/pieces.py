"""Pieces: what is read of pages, in the order in which the pages lie.

The rows that partitions have in one page are read as one piece where they are neighbours, so a page
that many partitions share is read and decoded once, and its rows are not copied one partition at a
time.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from wings_core.fetch.many.rotation import PartitionCursor
from wings_core.model import LocatedPartition, Location


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class Segment:
    """Rows of one partition, one after another in the log and in their page."""

    cursor: PartitionCursor
    start_offset: int
    rows: int
    timestamp: int
    """Of all rows, where the page has none of each."""


@dataclass(slots=True)
class Piece:
    """Neighbouring rows of one page."""

    location: Location
    """Of all rows read, or of more: then `first` of them are left out, and what follows `rows`."""
    first: int
    rows: int
    segments: list[Segment]


_Found = tuple[tuple[str, int, int], Segment, Location, int]
"""Where a segment lies (folio, position, row of the page), it, its page, and what it leaves out."""

_NOWHERE = ("", 0, 0)


def pieces_of(
    cursors: Sequence[PartitionCursor], located: Iterable[LocatedPartition], rows_max: int
) -> list[Piece]:
    """Return the pieces that hold the next rows of partitions.

    A partition's rows stay in the order of their offsets, over all pieces.

    Args:
        cursors: The partitions; of each, rows from its offset to its stop.
        located: What was found of each of them, as far as it goes; what is before its offset is
            left out.
        rows_max: The most rows of each.
    """
    found: list[_Found] = []
    for cursor, (_, locations) in zip(cursors, located, strict=False):
        offset = cursor.offset
        stop = min(cursor.stop, offset + rows_max)
        # Maintenance and publishes may write pages in another order than their offsets: a segment
        # comes no earlier than the one before it.
        last = _NOWHERE
        for location in locations:
            start, end, timestamp, (folio, position, _), _, _, first_row, _ = location
            if start >= stop:
                break
            if end < offset:
                continue
            place = (folio, position, first_row or 0)
            if place > last:
                last = place
            first = max(offset, start)
            segment = Segment(cursor, first, min(stop, end + 1) - first, timestamp)
            found.append((last, segment, location, first - start))
    found.sort(key=itemgetter(0))
    return list(_joined(found))


def _joined(found: Iterable[_Found]) -> Iterator[Piece]:
    """Yield pieces, neighbouring slices of a page as one."""
    piece: Piece | None = None
    next_row = -1  # That follows the piece in its page, where that is one of slices.
    for _, segment, location, skipped in found:
        if location.first_row is None:
            if piece is not None:
                yield _whole(piece)
                piece = None
            yield Piece(location, skipped, segment.rows, [segment])
            continue
        first_row = location.first_row + skipped
        if (
            piece is not None
            and first_row == next_row
            and piece.location.address == location.address
        ):
            piece.segments.append(segment)
            piece.rows += segment.rows
        else:
            if piece is not None:
                yield _whole(piece)
            piece = Piece(location, first_row, segment.rows, [segment])
        next_row = first_row + segment.rows
    if piece is not None:
        yield _whole(piece)


def _whole(piece: Piece) -> Piece:
    """Give a piece of slices, whose `first` is a row of the page, a location of its own."""
    known = piece.location
    if len(piece.segments) == 1 and piece.rows == known.rows:
        return Piece(known, 0, piece.rows, piece.segments)
    location = Location(
        0,
        piece.rows - 1,
        known.timestamp,
        known.address,
        known.first_timestamp,
        known.format,
        piece.first,
        max(1, known.bytes * piece.rows // known.rows),
    )
    return Piece(location, 0, piece.rows, piece.segments)
