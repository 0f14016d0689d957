"""Bounds on series: the largest of each owner by name, and the sum of all others as `other`.

So a sum over the label is right, however many there are, and a scrape stays small.
"""

from collections.abc import Iterable
from typing import NamedTuple

OTHER = "other"
"""Stands for all that have no series of their own. No partition is written so, as JSON has its
texts in quotes, and no topic, whose name is a path."""


class BoundedSeries(NamedTuple):
    """One value, of one of the things that an owner has."""

    owner: tuple[str, ...]
    """The values of the labels that come before the last."""
    name: str
    """The value of the last label, which is bounded."""
    value: float


class Bounded(NamedTuple):
    """BoundedSeries within their bound."""

    series: list[BoundedSeries]
    summed: int
    """How many of those that were given are in a sum."""


def bounded(series: Iterable[BoundedSeries], each_max: int, all_max: int) -> Bounded:
    """Return the largest series of each owner, and one with the sum of its others.

    Args:
        series: Each owner and name once.
        each_max: The most series of one owner, its sum included; at least 1.
        all_max: The most of all. Where there are more owners, those with the largest sums have one
            series each, and all others one together, whose owner is `other` too.
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
