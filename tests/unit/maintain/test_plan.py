"""What moves next in a partition."""

import itertools
import random
from collections.abc import Iterator

import pytest

from wings_core.maintain.plan import (
    FAN_IN,
    LEVEL_ROWS,
    MERGED_BYTES,
    MERGED_ROWS,
    SEGMENT_BYTES_MAX,
    Due,
    MergeGroup,
    find_due,
    parts_of_rows,
)
from wings_core.model import Location, PageAddress, PageFormat

AFTER = 1_000

_names = map(str, itertools.count())


def page(
    start: int,
    rows: int,
    time: int,
    *,
    merged: bool = False,
    size: int = 100,
    folio: str | None = None,
) -> Location:
    """Return a page, the only one of its folio unless that is given."""
    address = PageAddress(folio or next(_names), start, size)
    end = start + rows - 1
    if merged:
        return Location(start, end, time, address, time, PageFormat.SEGMENT)
    return Location(start, end, time, address)


def hot(count: int, time: int = 0, start: int = 0) -> list[Location]:
    return [page(start + 10 * number, 10, time) for number in range(count)]


def due(pages: list[Location], now: int, segment_bytes: int = 1_000) -> Due:
    return find_due(pages, 0, now, AFTER, segment_bytes)


def test_young_pages_stay() -> None:
    assert due(hot(20, time=500), 1_400) == Due((), 0)


def test_pages_move_when_there_are_enough_for_a_segment() -> None:
    pages = hot(25)
    assert due(pages, AFTER).pages == tuple(pages[:10])


def test_a_segment_is_bounded_whatever_the_topic_says() -> None:
    pages = [page(number, 1, 0, size=SEGMENT_BYTES_MAX // 4) for number in range(10)]
    assert due(pages, AFTER, segment_bytes=1 << 60).pages == tuple(pages[:4])


def test_few_pages_wait_until_the_oldest_is_twice_as_old() -> None:
    pages = [*hot(3), *hot(3, time=1_500, start=30)]
    assert due(pages, 1_999).pages == ()
    assert due(pages, 2_000).pages == tuple(pages[:3])


def test_with_an_age_of_none_all_move_at_once() -> None:
    pages = hot(3, time=77)
    assert find_due(pages, 0, 77, 0, 1_000_000).pages == tuple(pages)


def test_what_is_merged_well_is_settled() -> None:
    full = page(0, MERGED_ROWS // 2, 0, merged=True)
    pages = [full, *hot(2, time=5_000, start=MERGED_ROWS // 2)]
    assert due(pages, 5_500) == Due((), MERGED_ROWS // 2)


def test_a_page_that_is_not_the_last_of_its_segment_is_settled_however_small_it_is() -> None:
    pages = [page(10 * number, 10, 0, merged=True, folio="one") for number in range(5)]
    fresh = hot(30, start=50)
    assert due([*pages, *fresh], 10_000, 1 << 20) == Due((pages[-1], *fresh), 40)


def test_a_small_merged_page_is_merged_again_with_what_makes_it_of_a_higher_level() -> None:
    small = page(0, 100, 0, merged=True)
    pages = [small, *hot(93, start=100)]
    assert due(pages, 10_000, 1 << 20) == Due(tuple(pages), 0)
    assert due(pages[:-1], 10_000, 1 << 20) == Due(tuple(pages[1:-1]), 0)
    assert due([small], 10_000) == Due((), 0)


def test_smaller_pages_come_along_where_a_larger_one_stays() -> None:
    large = page(0, LEVEL_ROWS[1], 0, merged=True)
    small = page(large.end_offset + 1, 1, 0, merged=True)
    fresh = hot(4, start=small.end_offset + 1)
    assert due([large, small, *fresh], 10_000) == Due((small, *fresh), 0)


def test_no_more_small_pages_are_looked_at_than_become_one() -> None:
    rows = LEVEL_ROWS[-1] - 1
    small = [page(rows * number, rows, 0, merged=True) for number in range(5)]
    fresh = page(5 * rows, 10, 0)
    found = due([*small, fresh], 10_000)
    assert (found.final_offset, found.pages) == (3 * rows, (*small[3:], fresh))


def test_pages_before_one_that_is_merged_move_by_themselves() -> None:
    first = hot(2)
    merged = page(20, MERGED_ROWS, 0, merged=True)
    assert due([*first, merged], AFTER).pages == tuple(first)


QUICK = {(50, 300), (2_000, 1), (2_000, None), (100_000, 300)}
"""Sizes of rows and of batches; the other pairs are tried in soak tests."""


@pytest.mark.parametrize(
    ("row_bytes", "batch_rows"),
    [
        pytest.param(size, rows, marks=() if (size, rows) in QUICK else pytest.mark.soak)
        for size in (50, 2_000, 100_000)
        for rows in (1, 10, 300, None)
    ],
)
def test_no_row_is_written_more_often_than_there_are_levels(
    row_bytes: int, batch_rows: int | None
) -> None:
    """Rows that compress to a twentieth come by and by, and all that is due moves each time."""
    choice = random.Random(17)
    written: list[int] = []  # How often each row was.
    pages: list[Location] = []
    settled = 0
    for _ in range(2_200):
        if len(written) >= 40_000 or len(written) * row_bytes > 1 << 29:
            break
        rows = batch_rows or int(2 ** choice.uniform(0, 13))
        pages.append(page(len(written), rows, 0, size=rows * row_bytes))
        written += [0] * rows
        found = find_due(pages, 0, 0, 0, 64 << 20)
        assert found.final_offset >= settled
        settled = found.final_offset
        first = pages.index(found.pages[0])
        pages[first:] = _merged(found.pages, row_bytes)
        for offset in range(found.pages[0].start_offset, len(written)):
            written[offset] += 1
    assert max(written) <= len(LEVEL_ROWS) + 1
    # Nor are there many small pages at any time.
    assert len(pages) <= FAN_IN * len(LEVEL_ROWS) + len(written) * row_bytes // (MERGED_BYTES // 2)


def _merged(pages: tuple[Location, ...], row_bytes: int) -> list[Location]:
    """Return what pages become, in a segment of their own."""
    start, rows = pages[0].start_offset, sum(each.rows for each in pages)
    folio = next(_names)
    return [
        page(start + first, count, 0, merged=True, size=count * row_bytes // 20, folio=folio)
        for first, count in parts_of_rows(rows, rows * row_bytes)
    ]


def groups_of(sizes: list[tuple[int, int]]) -> Iterator[int]:
    """Yield of how many pages each group is, of pages of these rows and decoded bytes."""
    group = MergeGroup()
    for number, (rows, size) in enumerate(sizes):
        one = page(number, rows, 0)
        if not group.takes(one, size):
            yield len(group.pages)
            group = MergeGroup()
        group.add(one, size)
    yield len(group.pages)


def test_groups_are_of_about_a_batch() -> None:
    assert list(groups_of([(1_000, 100)] * 200)) == [65, 65, 65, 5]


def test_a_large_page_is_a_group_of_its_own() -> None:
    assert list(groups_of([(10, 100), (500_000, 100), (10, 100)])) == [1, 1, 1]


def test_groups_of_wide_rows_are_bounded_by_their_decoded_bytes() -> None:
    assert list(groups_of([(1, 1 << 20)] * 40)) == [16, 16, 8]


@pytest.mark.parametrize(
    ("rows", "size", "parts"),
    [
        (1, 0, 1),
        (1, 1 << 40, 1),
        (MERGED_ROWS, MERGED_BYTES, 1),
        (MERGED_ROWS + 1, 1, 2),
        (10, 3 * MERGED_BYTES, 3),
        (3, 64 * MERGED_BYTES, 3),
    ],
)
def test_rows_are_cut_into_pages_of_about_one_size(rows: int, size: int, parts: int) -> None:
    found = list(parts_of_rows(rows, size))
    assert len(found) == parts
    assert [first for first, _ in found] == list(
        itertools.accumulate((count for _, count in found[:-1]), initial=0)
    )
    assert sum(count for _, count in found) == rows
    assert max(count for _, count in found) - min(count for _, count in found) <= 1
