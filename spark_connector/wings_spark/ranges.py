"""Ranges: the parts of a log that the tasks of one query read."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition

from wings_core.partitions import Partition

RANGE_ROWS_MIN = 65_536
"""Unless the user asks for more partitions, none is cut smaller than a full batch."""


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
    """What one task of a data source reads."""

    value: Range


def split(ranges: Iterable[Range], partitions_min: int | None) -> list[Range]:
    """Cut ranges until there are as many as a query should have tasks; leave out empty ones.

    Args:
        ranges: What is read.
        partitions_min: How many there shall be at least, so far as there are rows; None: as many as
            this machine has cores, if they are worth a task.

    Returns:
        By topic, partition and offset, as the ranges came.
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
    """Share out a number of rows, to each in proportion to what it has and no more than that.

    Each gets one at least, where there are as many: next to a large one that never gets smaller, a
    small one would wait for ever.

    Returns:
        What each gets; together exactly the budget, or all there is where that is less.
    """
    first = [min(size, 1) for size in sizes]
    if budget < sum(first):
        first = [0] * len(sizes)
    rest = [size - one for size, one in zip(sizes, first, strict=True)]
    budget, total = budget - sum(first), sum(rest)
    if budget >= total:
        return list(sizes)
    shares = [one + size * budget // total for one, size in zip(first, rest, strict=True)]
    # What rounding left over goes to those that it cut most.
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
