"""Pieces: neighbours in a page are read as one, and no partition's rows change their order."""

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from wings_core.fetch.many.pieces import Piece, Plan, plan_of
from wings_core.fetch.many.rotation import PartitionCursor
from wings_core.metadata.located import many_located
from wings_core.model import LocatedPartition, Location, PageAddress, PartitionState
from wings_core.partitions import Partition


def located(
    partition: str, *pages: tuple[int, PageAddress, int | None]
) -> tuple[PartitionCursor, LocatedPartition]:
    """Return a partition of these pages: how many rows, where, and from which row on."""
    locations: list[Location] = []
    end = 0
    for rows, address, first_row in pages:
        size = None if first_row is None else rows
        locations.append(Location(end, end + rows - 1, 5, address, None, first_row=first_row,
                                  slice_bytes=size))  # fmt: skip
        end += rows
    name = Partition(partition)
    state = PartitionState(name, 0, end, end, 5)
    return PartitionCursor(name, 0, end, end, clamps=False), LocatedPartition(
        state, tuple(locations)
    )


def segments(plan: Plan) -> Iterator[tuple[Piece, list[tuple[Partition, int, int]]]]:
    """Yield each piece with the partition, first offset and rows of each of its segments."""
    found = [
        (plan.partitions[owner], start, rows)
        for owner, start, rows in zip(plan.owners, plan.starts, plan.rows, strict=True)
    ]
    for piece in plan.pieces:
        yield piece, found[: piece.segments]
        del found[: piece.segments]
    assert not found
    assert list(plan.ends) == [sum(plan.rows[: index + 1]) for index in range(len(plan.rows))]


PAGES = [
    PageAddress(f"folio-{folio}", position, 1_000) for folio in "ab" for position in (0, 1_000)
]


def test_slices_of_a_page_are_one_piece_in_the_order_of_its_rows() -> None:
    found = [
        located("2", (3, PAGES[0], 4), (2, PAGES[1], 0)),
        located("1", (4, PAGES[0], 0), (1, PAGES[1], 2)),
        located("3", (10, PAGES[2], None)),
    ]
    located_pages = many_located(partition for _, partition in found)
    plan = plan_of([cursor for cursor, _ in found], located_pages, 100)
    pieces = plan.pieces
    assert [(piece.location.address, piece.location.first_row, piece.rows) for piece in pieces] == [
        (PAGES[0], 0, 7),
        (PAGES[1], 0, 3),
        (PAGES[2], None, 10),
    ]
    assert [each for _, each in segments(plan)] == [
        [("1", 0, 4), ("2", 0, 3)],
        [("2", 3, 2), ("1", 4, 1)],
        [("3", 0, 10)],
    ]


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(1, 6), st.sampled_from(PAGES), st.none() | st.integers(0, 20)),
            min_size=1,
            max_size=6,
        ),
        min_size=1,
        max_size=5,
    ),
    st.data(),
)
def test_every_row_is_read_once_and_in_the_order_of_its_partition(
    partitions: list[list[tuple[int, PageAddress, int | None]]], data: st.DataObject
) -> None:
    found = [located(str(number), *pages) for number, pages in enumerate(partitions)]
    cursors = [cursor for cursor, _ in found]
    for cursor in cursors:
        cursor.offset = data.draw(st.integers(0, cursor.stop), label="offset")
    rows_max = data.draw(st.integers(1, 40), label="rows of each")
    expected = {
        cursor.partition: list(range(cursor.offset, min(cursor.stop, cursor.offset + rows_max)))
        for cursor in cursors
    }
    rows_of: dict[tuple[str, int], tuple[PageAddress, int]] = {}
    for cursor, partition in found:
        for location in partition.locations:
            for row in range(location.rows):
                where = (location.first_row or 0) + row
                rows_of[cursor.partition, location.start_offset + row] = (location.address, where)
    read: dict[Partition, list[int]] = {cursor.partition: [] for cursor in cursors}
    plan = plan_of(cursors, many_located(partition for _, partition in found), rows_max)
    for piece, parts in segments(plan):
        assert all(rows > 0 for _, _, rows in parts)
        assert piece.rows == sum(rows for _, _, rows in parts)
        assert piece.first + piece.rows <= piece.location.rows
        row = (piece.location.first_row or 0) + piece.first
        for partition, start, rows in parts:
            for offset in range(start, start + rows):
                assert rows_of[partition, offset] == (piece.location.address, row)
                read[partition].append(offset)
                row += 1
    assert read == expected
