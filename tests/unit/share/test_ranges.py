from hypothesis import given
from hypothesis import strategies as st

from wings_core.share.state.ranges import RangeMap

OFFSETS = 40

changes = st.lists(
    st.tuples(st.integers(0, OFFSETS - 1), st.integers(0, 8), st.sampled_from(["a", "b", None])),
    max_size=40,
)


@given(changes)
def test_a_range_map_is_a_dictionary_of_offsets_with_equal_neighbours_merged(
    steps: list[tuple[int, int, str | None]],
) -> None:
    ranges: RangeMap[str] = RangeMap()
    model: dict[int, str] = {}
    mirror: set[tuple[int, int, str]] = set()
    for first, more, value in steps:
        last = first + more
        for offset in range(first, last + 1):
            model.pop(offset, None)
            if value is not None:
                model[offset] = value
        change = ranges.remove(first, last) if value is None else ranges.put(first, last, value)
        assert mirror.issuperset(change.removed)
        mirror.difference_update(change.removed)
        assert mirror.isdisjoint(change.added)
        mirror.update(change.added)
        found = list(ranges)
        assert mirror == set(found)
        assert len(found) == len(ranges)
        assert found == _merged(model)
        assert ranges.head() == (found[0] if found else None)
        for low, high in ((0, OFFSETS + 8), (first, last), (last, last + 3)):
            inside = {offset: model[offset] for offset in range(low, high + 1) if offset in model}
            assert ranges.parts(low, high) == _merged(inside)
        for offset in range(OFFSETS):
            at = ranges.at(offset)
            assert (None if at is None else at[2]) == model.get(offset)


@given(changes, st.booleans())
def test_a_range_map_of_ranges_is_what_putting_each_of_them_makes(
    steps: list[tuple[int, int, str | None]], in_order: bool
) -> None:
    wanted = [(first, first + more, value) for first, more, value in steps]
    if in_order:
        wanted.sort(key=lambda each: each[0])
    put: RangeMap[str | None] = RangeMap()
    for first, last, value in wanted:
        put.put(first, last, value)
    made = RangeMap[str | None].of(wanted)
    assert list(made) == list(put)
    assert made.at(OFFSETS // 2) == put.at(OFFSETS // 2)


def _merged(model: dict[int, str]) -> list[tuple[int, int, str]]:
    merged: list[tuple[int, int, str]] = []
    for offset, value in sorted(model.items()):
        if merged and merged[-1][1] == offset - 1 and merged[-1][2] == value:
            merged[-1] = (merged[-1][0], offset, value)
        else:
            merged.append((offset, offset, value))
    return merged
