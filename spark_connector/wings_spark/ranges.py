"""Ranges: the parts of a log that the tasks of one query read."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition

from wings_core.partitions import Partition

RANGE_ROWS_MIN = 65_536
"""Least rows of a task, a full batch, unless the user asks for more partitions."""


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets `[start_offset, end_offset)` of one partition of a topic."""

    topic: str
    """Full."""
    uuid: str
    """The topic's: one of the same name that is created later holds other messages."""
    partition: Partition
    start_offset: int
    end_offset: int

    @property
    def rows(self) -> int:
        """How many offsets it has."""
        return self.end_offset - self.start_offset


class RangePartition(InputPartition):
    """The input of one task of a data source."""

    value: Range


def split(ranges: Iterable[Range], partitions_min: int | None) -> list[Range]:
    """Split ranges into tasks; empty ranges are left out.

    Args:
        ranges: Of a query.
        partitions_min: Least number of parts, as far as there are rows; None: one for each core of
            this machine, but none of fewer than `RANGE_ROWS_MIN` rows.

    Returns:
        The parts, in the order of the ranges and by offset.
    """
    filled = [each for each in ranges if each.rows]
    rows = sum(each.rows for each in filled)
    wanted = partitions_min or os.cpu_count() or 1
    if wanted <= len(filled):
        return filled
    rows_min = 1 if partitions_min else RANGE_ROWS_MIN
    parts = [max(1, min(-(-each.rows * wanted // rows), each.rows // rows_min)) for each in filled]
    return [part for each, count in zip(filled, parts, strict=True) for part in _cut(each, count)]


def share(budget: int, sizes: Sequence[int]) -> list[int]:
    """Divide a number of rows in proportion to `sizes`, none getting more than its size.

    Each non-empty one gets at least one row if the budget allows, so that a small partition does
    not starve beside a large one.

    Returns:
        The share of each; their sum is the budget, or the sum of sizes if that is less.
    """
    first = [min(size, 1) for size in sizes]
    if budget < sum(first):
        first = [0] * len(sizes)
    rest = [size - one for size, one in zip(sizes, first, strict=True)]
    budget, total = budget - sum(first), sum(rest)
    if budget >= total:
        return list(sizes)
    shares = [one + size * budget // total for one, size in zip(first, rest, strict=True)]
    # The remainder of rounding goes to those that it cut most.
    by_loss = sorted(range(len(rest)), key=lambda index: -(rest[index] * budget % total))
    for index in by_loss[: budget + sum(first) - sum(shares)]:
        shares[index] += 1
    return shares


def _cut(whole: Range, parts: int) -> Iterator[Range]:
    for part in range(parts):
        yield replace(
            whole,
            start_offset=whole.start_offset + whole.rows * part // parts,
            end_offset=whole.start_offset + whole.rows * (part + 1) // parts,
        )
