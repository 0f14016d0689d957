"""Covers: which ranges of which partitions the rows of a chunk are, and the text that tells so.

They are made of a plan alone, so those of a plan that is read again are made once.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise, repeat
from operator import add, sub
from typing import Any, NamedTuple, cast

import pyarrow as pa

from wings_core.contracts.chunks import ranges_metadata
from wings_core.fetch.many.pieces import Plan
from wings_core.partitions import Partition

COVERS_MAX = 256
"""Covers that a plan keeps: with other columns or filters, its chunks end elsewhere."""

PartRange = tuple[Partition, int, int, int]
"""The offsets of a partition, first and last (both inclusive), that a chunk covers; and the number
of its rows in the chunk, after those of the ranges before: less than the offsets where a filter
dropped some. A plain tuple, since there are many."""


class Covered(list[PartRange]):
    """The ranges of a chunk, in the order of its rows; not changed once made."""

    @cached_property
    def metadata(self) -> bytes:
        """The chunk's app_metadata."""
        return ranges_metadata(self)


class Ranges(NamedTuple):
    """Rows of partitions, in the order of a chunk: those of each from an offset on."""

    owners: Sequence[int]
    """Indices of their cursors in the plan."""
    starts: Sequence[int]
    rows: Sequence[int]
    """As stored."""
    timestamps: Sequence[int]


def _between(plan: Plan, start: int, stop: int) -> Ranges:
    """Return the segments of the rows `[start, stop)` of a plan, cut to them."""
    first = bisect_right(plan.ends, start)
    last = bisect_left(plan.ends, stop) + 1
    starts, rows = list(plan.starts[first:last]), list(plan.rows[first:last])
    skipped = start - (plan.ends[first] - rows[0])
    starts[0] += skipped
    rows[0] -= skipped
    rows[-1] -= plan.ends[last - 1] - stop
    return Ranges(plan.owners[first:last], starts, rows, plan.timestamps[first:last])


def cut(ranges: Ranges, rows: int) -> Ranges:
    """Return the ranges of the first rows."""
    ends = list(accumulate(ranges.rows))
    last = bisect_left(ends, rows) + 1
    kept = list(ranges.rows[:last])
    kept[-1] -= ends[last - 1] - rows
    return Ranges(ranges.owners[:last], ranges.starts[:last], kept, ranges.timestamps[:last])


class Cover(NamedTuple):
    """What the rows of a chunk are."""

    stored: Ranges
    """In the order in which pages hold them."""
    order: "pa.Array[Any] | None"
    """The order of rows in which each partition's follow one another; None where they do."""
    ranges: Ranges
    """In that order, one of each partition."""
    covered: Covered
    """Of all of them."""


def cover_of(plan: Plan, start: int, stop: int) -> Cover:
    """Return what the rows `[start, stop)` of a plan are."""
    kept = plan.covers.get((start, stop))
    if kept is not None:
        return kept
    stored = ranges = _between(plan, start, stop)
    order = None
    if len(set(stored.owners)) < len(stored.owners):
        # Each partition stands in one range. To copy the rows again takes less than a range for
        # each of many small pages would, here and at the reader.
        order, ranges = _by_partition(stored)
    cover = Cover(stored, order, ranges, covered_by(plan, ranges, ranges.rows))
    if order is None and len(plan.covers) < COVERS_MAX:
        plan.covers[start, stop] = cover
    return cover


def covered_by(plan: Plan, ranges: Ranges, counts: Sequence[int]) -> Covered:
    """Return ranges as readers are told of them.

    Args:
        plan: Whose ranges they are.
        ranges: As stored.
        counts: How many rows of each are delivered.
    """
    partitions = map(plan.partitions.__getitem__, ranges.owners)
    ends = map(sub, map(add, ranges.starts, ranges.rows), repeat(1))
    return Covered(zip(partitions, ranges.starts, ends, counts, strict=True))


def _by_partition(ranges: Ranges) -> "tuple[pa.Array[Any] | None, Ranges]":
    """Return the order of rows in which each partition's follow one another, and their ranges.

    The order is None where they do already.
    """
    firsts = map(sub, accumulate(ranges.rows), ranges.rows)
    groups: dict[int, list[tuple[int, int, int, int]]] = {}
    for owner, *each in zip(
        ranges.owners, firsts, ranges.starts, ranges.rows, ranges.timestamps, strict=True
    ):
        groups.setdefault(owner, []).append(cast("tuple[int, int, int, int]", tuple(each)))
    # A partition's rows are read in order and without gaps.
    merged = Ranges(
        list(groups),
        [group[0][1] for group in groups.values()],
        [sum(rows for _, _, rows, _ in group) for group in groups.values()],
        [group[0][3] for group in groups.values()],
    )
    spans = [(first, rows) for group in groups.values() for first, _, rows, _ in group]
    if all(first < after for (first, _), (after, _) in pairwise(spans)):
        return None, merged
    indices = [cast("Any", pa).arange(first, first + rows) for first, rows in spans]
    return pa.concat_arrays(indices), merged
