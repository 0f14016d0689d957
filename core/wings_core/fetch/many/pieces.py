"""Pieces: what is read of pages, in the order in which the pages lie.

The rows that partitions have in one page are read as one piece where they are neighbours, so a page
that many partitions share is read and decoded once, and its rows are not copied one partition at a
time.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

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
    found: list[tuple[tuple[str, int, int], Segment, Location, int]] = []
    for cursor, partition in zip(cursors, located, strict=False):
        stop = min(cursor.stop, cursor.offset + rows_max)
        # Maintenance and publishes may write pages in another order than their offsets: a segment
        # comes no earlier than the one before it.
        last = ("", 0, 0)
        for location in partition.locations:
            start = location.start_offset
            if start >= stop:
                break
            if location.end_offset < cursor.offset:
                continue
            address = location.address
            last = max(last, (address.folio, address.position, location.first_row or 0))
            first = max(cursor.offset, start)
            rows = min(stop, location.end_offset + 1) - first
            segment = Segment(cursor, first, rows, location.timestamp)
            found.append((last, segment, location, first - start))
    found.sort(key=lambda each: each[0])
    return list(_joined(found))


def _joined(
    found: Iterable[tuple[tuple[str, int, int], Segment, Location, int]],
) -> Iterator[Piece]:
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
