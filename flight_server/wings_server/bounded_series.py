"""Bounded series: the largest of each owner by name, and the sum of the others as `other`.

So sums over the label are correct, however many there are, and scrapes stay small.
"""

from collections.abc import Iterable
from typing import NamedTuple

OTHER = "other"
"""Name for all without series of their own. No partition has this text, as JSON strings have
quotes, and no topic, whose name is a path."""


class BoundedSeries(NamedTuple):
    """One value of an owner's item, such as a topic's partition."""

    owner: tuple[str, ...]
    """Values of the labels before the last one."""
    name: str
    """Value of the last label, which is bounded."""
    value: float


class Bounded(NamedTuple):
    """Series within their bound."""

    series: list[BoundedSeries]
    summed: int
    """Number of series that are part of a sum."""


def bounded(series: Iterable[BoundedSeries], each_max: int, all_max: int) -> Bounded:
    """Return the largest series of each owner, and one with the sum of its others.

    Args:
        series: Series, unique by owner and name.
        each_max: Most series of one owner, including its sum; at least 1.
        all_max: Most series in total. With more owners, those with the largest sums have one
            series each, and the others share one, whose owner is `other` too.
    """
    owned: dict[tuple[str, ...], list[BoundedSeries]] = {}
    for each in series:
        owned.setdefault(each.owner, []).append(each)
    found: list[BoundedSeries] = []
    summed = 0
    owners = list(owned.values())
    if len(owners) > all_max:
        owners.sort(key=_sum, reverse=True)
        rest = [each for few in owners[all_max - 1 :] for each in few]
        del owners[all_max - 1 :]
        found.append(BoundedSeries((OTHER,) * len(rest[0].owner), OTHER, _sum(rest)))
        summed += len(rest)
    each_max = min(each_max, max(1, (all_max - len(found)) // max(1, len(owners))))
    for few in owners:
        if len(few) <= each_max:
            found += few
            continue
        few.sort(key=_value, reverse=True)
        found += few[: each_max - 1]
        found.append(BoundedSeries(few[0].owner, OTHER, _sum(few[each_max - 1 :])))
        summed += len(few) - each_max + 1
    return Bounded(found, summed)


def _value(series: BoundedSeries) -> float:
    return series.value


def _sum(series: Iterable[BoundedSeries]) -> float:
    return sum(each.value for each in series)
