"""What moves next in a partition."""

from wings_core.maintain.plan import MERGED_ROWS, SEGMENT_BYTES_MAX, Due, find_due, groups_of
from wings_core.model import Location, PageAddress

AFTER = 1_000


def page(start: int, rows: int, time: int, *, merged: bool = False, size: int = 100) -> Location:
    address = PageAddress("folio", start, size)
    return Location(start, start + rows - 1, time, address, time if merged else None)


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
    full = page(0, MERGED_ROWS, 0, merged=True)
    pages = [full, *hot(2, time=5_000, start=MERGED_ROWS)]
    assert due(pages, 5_500) == Due((), MERGED_ROWS)


def test_a_small_merged_page_is_merged_again_with_what_follows() -> None:
    small = page(0, 100, 0, merged=True)
    pages = [small, *hot(3, start=100)]
    assert due(pages, 10_000) == Due(tuple(pages), 0)
    assert due([small], 10_000) == Due((), 0)


def test_small_merged_pages_do_not_keep_what_follows_from_moving() -> None:
    small = [page(10 * number, 10, 0, merged=True) for number in range(25)]
    pages = [*small, *hot(3, start=250)]
    found = due(pages, 10_000)
    assert found.settled_offset == 200
    assert found.pages == tuple(pages[20:])


def test_pages_before_one_that_is_merged_well_move_by_themselves() -> None:
    first = hot(2)
    full = page(20, MERGED_ROWS, 0, merged=True)
    assert due([*first, full], AFTER).pages == tuple(first)


def test_groups_are_of_about_a_batch() -> None:
    pages = [page(start, 1_000, 0) for start in range(0, 200_000, 1_000)]
    groups = list(groups_of(pages))
    assert [len(group) for group in groups] == [65, 65, 65, 5]
    assert [each for group in groups for each in group] == pages


def test_a_large_page_is_a_group_of_its_own() -> None:
    pages = [page(0, 10, 0), page(10, 500_000, 0), page(500_010, 10, 0)]
    assert list(groups_of(pages)) == [[each] for each in pages]


def test_groups_of_wide_rows_are_bounded_by_their_bytes() -> None:
    pages = [page(number, 1, 0, size=1 << 20) for number in range(40)]
    assert [len(group) for group in groups_of(pages)] == [16, 16, 8]
