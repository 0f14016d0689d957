from hypothesis import given
from hypothesis import strategies as st

from wings_core.partitions import Partition
from wings_spark.ranges import RANGE_ROWS_MIN, Range, share, split

SIZES = st.lists(st.integers(0, 1_000_000), max_size=20)


def ranges_of(sizes: list[int]) -> list[Range]:
    return [
        Range("t", "uuid", Partition(str(number)), 10, 10 + size)
        for number, size in enumerate(sizes)
    ]


@given(SIZES, st.integers(0, 10_000_000))
def test_a_budget_is_shared_out_exactly_and_to_none_more_than_it_has(
    sizes: list[int], budget: int
) -> None:
    shares = share(budget, sizes)
    assert sum(shares) == min(budget, sum(sizes))
    for got, size in zip(shares, sizes, strict=True):
        assert 0 <= got <= size
        # In proportion, but for rounding and for the one that each gets.
        if budget < sum(sizes):
            assert abs(got - size * budget / sum(sizes)) <= 1 + len(sizes)
    if budget >= len(sizes):
        assert all(got > 0 for got, size in zip(shares, sizes, strict=True) if size)


@given(SIZES, st.none() | st.integers(1, 100))
def test_splits_cover_every_row_once_in_order(sizes: list[int], wanted: int | None) -> None:
    whole = [each for each in ranges_of(sizes) if each.rows]
    parts = split(ranges_of(sizes), wanted)
    assert all(part.rows > 0 for part in parts)
    joined: list[Range] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last and last.partition == part.partition and last.end_offset == part.start_offset:
            joined[-1] = Range("t", "uuid", part.partition, last.start_offset, part.end_offset)
        else:
            joined.append(part)
    assert joined == whole
    if wanted:
        assert len(parts) >= min(wanted, sum(sizes))
        assert len(parts) <= wanted + len(whole)
    elif len(parts) > len(whole):
        assert min(part.rows for part in parts) >= RANGE_ROWS_MIN // 2


def test_nothing_to_read_is_no_part() -> None:
    assert split(ranges_of([0, 0]), 8) == []
