"""Parts: ranges of many partitions, divided."""

from hypothesis import given
from hypothesis import strategies as st
from tables import each

from wings_core.contracts.info import TEXT_BYTES_MAX, Piece, divide
from wings_core.contracts.reads import ENTRIES_MAX
from wings_core.partitions import Partition


def divided(rows: list[int], parts: int, length: int = 1) -> list[list[Piece]]:
    """Divide, and check that the parts are the ranges again, whole and each row once."""
    found = divide([Partition("x" * length)] * len(rows), rows, parts)
    pieces = sorted(piece for part in found for piece in part)
    assert all(found), "no part is empty"
    assert max(map(len, found), default=0) <= ENTRIES_MAX
    reached: dict[int, int] = {}
    for index, first, end in pieces:
        assert first == reached.get(index, 0)
        assert end > first or rows[index] == 0
        reached[index] = end
    assert reached == dict(enumerate(rows))
    return found


def sizes(parts: list[list[Piece]]) -> list[int]:
    return [sum(piece.end - piece.first for piece in part) for part in parts]


@given(st.lists(st.integers(0, 1_000_000), max_size=30), st.integers(1, 40))
def test_parts_are_as_many_as_asked_for_and_equal_in_rows(rows: list[int], parts: int) -> None:
    found = divided(rows, parts)
    assert len(found) == (max(1, min(parts, sum(rows))) if rows else 0)
    assert max(sizes(found), default=0) - min(sizes(found), default=0) <= 1
    # Neighbours stay together, in their order.
    assert sorted(piece for part in found for piece in part) == [
        piece for part in found for piece in part
    ]


@each(
    ("rows", "parts", "expected"),
    [
        ([5] * 20_000, 1, 2),
        ([5] * 20_000, 3, 3),
        ([*range(20_000)], 1, 2),
        ([0] * 10_001, 1, 2),
        ([10**6, *[1] * 19_998], 5, 5),
        ([*[1] * 10_000, 10**6, *[1] * 9_998], 5, 5),
        ([1 + 10**6 // (1 + index) for index in range(19_000)], 2, 2),
        # As many ranges as two parts can have, and some of them must be cut.
        ([1 + 10**6 // (1 + index) for index in range(20_000)], 1, 3),
    ],
)
def test_more_ranges_than_a_ticket_takes_are_equal_in_rows_too(
    rows: list[int], parts: int, expected: int
) -> None:
    found = divided(rows, parts)
    assert len(found) == expected
    assert max(sizes(found)) - min(sizes(found)) <= 0.01 * sum(rows) / len(found)


def test_partition_values_that_are_long_are_in_more_parts() -> None:
    assert len(divided([1] * 100, 1, length=TEXT_BYTES_MAX // 50)) == 3
