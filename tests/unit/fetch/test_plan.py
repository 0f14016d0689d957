"""Plans: however few or many partitions, every row is read once, in the order of its partition."""

from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.plan import PagePart, Plan, plan_of, plan_of_slices
from wings_core.metadata.interfaces.offset_registry import many_located
from wings_core.model import LocatedPartition, Location, PageAddress, PartitionState
from wings_core.partitions import Partition

Planned = Callable[[Sequence[tuple[PartitionCursor, LocatedPartition]], int], Plan]


def by_location(found: Sequence[tuple[PartitionCursor, LocatedPartition]], rows_max: int) -> Plan:
    return plan_of([cursor for cursor, _ in found], [pages for _, (_, pages) in found], rows_max)


def by_column(found: Sequence[tuple[PartitionCursor, LocatedPartition]], rows_max: int) -> Plan:
    located = many_located(partition for _, partition in found)
    return plan_of_slices([cursor for cursor, _ in found], located, rows_max)


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
    return PartitionCursor(name, 0, end, end), LocatedPartition(state, tuple(locations))


def spans(plan: Plan) -> Iterator[tuple[PagePart, list[tuple[Partition, int, int]]]]:
    """Yield each part of a page with the partition, first offset and rows of each of its spans."""
    done = 0
    for part in plan.parts:
        owners, starts, rows, _ = plan.between(done, done + part.rows)
        names = [plan.partitions[owner] for owner in owners]
        yield part, list(zip(names, starts, rows, strict=True))
        done += part.rows
    assert done == plan.rows
    rows = plan.spans.rows
    assert list(plan.ends) == [sum(rows[: index + 1]) for index in range(len(rows))]


PAGES = [
    PageAddress(f"folio-{folio}", position, 1_000) for folio in "ab" for position in (0, 1_000)
]


def test_slices_of_a_page_are_one_part_in_the_order_of_its_rows() -> None:
    found = [
        located("2", (3, PAGES[0], 4), (2, PAGES[1], 0)),
        located("1", (4, PAGES[0], 0), (1, PAGES[1], 2)),
        located("3", (10, PAGES[2], None)),
    ]
    plan = by_column(found, 100)
    assert [(part.location.address, part.location.first_row, part.rows) for part in plan.parts] == [
        (PAGES[0], 0, 7),
        (PAGES[1], 0, 3),
        (PAGES[2], None, 10),
    ]
    expected = [("1", 0, 4), ("2", 0, 3), ("2", 3, 2), ("1", 4, 1), ("3", 0, 10)]
    for planned in (by_column, by_location):
        assert [each for _, some in spans(planned(found, 100)) for each in some] == expected


@pytest.mark.parametrize("planned", [by_location, by_column])
@given(
    partitions=st.lists(
        st.lists(
            st.tuples(st.integers(1, 6), st.sampled_from(PAGES), st.none() | st.integers(0, 20)),
            min_size=1,
            max_size=6,
        ),
        min_size=1,
        max_size=5,
    ),
    data=st.data(),
)
def test_every_row_is_read_once_and_in_the_order_of_its_partition(
    planned: Planned,
    partitions: list[list[tuple[int, PageAddress, int | None]]],
    data: st.DataObject,
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
    for part, some in spans(planned(found, rows_max)):
        assert all(rows > 0 for _, _, rows in some)
        assert part.rows == sum(rows for _, _, rows in some)
        assert part.first + part.rows <= part.location.rows
        row = (part.location.first_row or 0) + part.first
        for partition, start, rows in some:
            for offset in range(start, start + rows):
                assert rows_of[partition, offset] == (part.location.address, row)
                read[partition].append(offset)
                row += 1
    assert read == expected
