"""Bounds on series, by property: no more than allowed, the largest, and nothing lost of the sum."""

from hypothesis import given
from hypothesis import strategies as st

from wings_server.log_metrics import OTHER, BoundedSeries, bounded

given_series = st.dictionaries(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from("123456789")), st.integers(0, 1_000)
)


@given(given_series, st.integers(1, 5), st.integers(1, 20))
def test_series_are_few_and_their_sum_is_that_of_all(
    values: dict[tuple[str, str], int], each_max: int, all_max: int
) -> None:
    series = [BoundedSeries((owner,), name, value) for (owner, name), value in values.items()]
    found, summed = bounded(series, each_max, all_max)
    assert len(found) <= all_max
    assert sum(each.value for each in found) == sum(values.values())
    assert len({(each.owner, each.name) for each in found}) == len(found)
    named = [each for each in found if each.name != OTHER]
    assert len(named) + summed == len(series)
    for owner in {each.owner for each in found if each.owner != (OTHER,)}:
        of_owner = [each for each in found if each.owner == owner]
        assert len(of_owner) <= each_max
        kept = [each.value for each in of_owner if each.name != OTHER]
        others = [each.value for each in series if each.owner == owner and each not in of_owner]
        assert not kept or not others or min(kept) >= max(others)


def test_without_need_nothing_is_summed() -> None:
    series = [BoundedSeries(("t",), str(number), number) for number in range(3)]
    assert bounded(series, 3, 3) == (series, 0)
    assert bounded([], 3, 3) == ([], 0)
