"""Ranges: the parts of a log that the tasks of one query read."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from wings_core.contracts.info import divide
from wings_core.partitions import Partition

TASK_ROWS_MIN = 65_536
"""Least rows of a task: a full batch, unless the user requests more partitions."""

TASK_ROWS = 10_000_000
"""Default number of most rows of a task, approximately."""

TASKS_MAX = 10_000
"""Most tasks of a query, unless it reads more topics: Spark's driver tracks each task."""


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets `[start_offset, end_offset)` of one partition of a topic."""

    topic: str
    """Full name of the topic."""
    uuid: str
    """UUID of the topic: a later topic of the same name holds other messages."""
    partition: Partition
    start_offset: int
    end_offset: int
    clamps: bool = False
    """Whether messages deleted before they are read are skipped, as in a batch read from
    `earliest`; otherwise `failOnDataLoss` decides."""

    @property
    def rows(self) -> int:
        """Number of offsets."""
        return self.end_offset - self.start_offset


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Ranges of one topic that one task reads, in one stream."""

    topic: str
    """Full name of the topic."""
    uuid: str
    """UUID of the topic."""
    spans: tuple[tuple[Partition, int, int], ...]
    """Partition, first offset and end offset of each range; none is empty. Tuples, as Spark pickles
    them and a query may have a hundred thousand."""
    clamps: bool = False
    """See `Range.clamps`."""

    @property
    def rows(self) -> int:
        """Number of offsets."""
        return sum(end_offset - start_offset for _, start_offset, end_offset in self.spans)


class TaskPartition(InputPartition):
    """Input of one task of a data source."""

    value: ReadTask


def pack(
    ranges: Iterable[Range], tasks_min: int | None = None, task_rows: int | None = None
) -> list[ReadTask]:
    """Pack ranges into tasks with nearly equal numbers of rows, for any number of partitions.

    Args:
        ranges: Ranges of a query, topic by topic; empty ones are left out.
        tasks_min: Least number of tasks, if there are enough rows; None for one per core of this
            machine, but none with fewer than `TASK_ROWS_MIN` rows.
        task_rows: Most rows of a task, approximately; None for `TASK_ROWS`.

    Returns:
        The tasks, in the order of the topics: at least one for each topic, and one for each 10,000
        of its partitions. All ranges of a task have the same `clamps`.
    """
    topics: dict[tuple[str, bool], list[Range]] = {}
    for each in ranges:
        if each.rows:
            topics.setdefault((each.uuid, each.clamps), []).append(each)
    rows = sum(each.rows for found in topics.values() for each in found)
    least = tasks_min or min(os.cpu_count() or 1, rows // TASK_ROWS_MIN)
    wanted = min(TASKS_MAX, max(1, least, -(-rows // (task_rows or TASK_ROWS))))
    return [task for found in topics.values() for task in _tasks(found, wanted, rows)]


def pack_with_holes(
    ranges: Iterable[Range], tasks_min: int | None = None, task_rows: int | None = None
) -> list[ReadTask]:
    """Pack ranges, several per partition allowed, with one per partition in a task; see `pack`."""
    turns: list[list[Range]] = []
    seen: dict[tuple[str, Partition], int] = {}
    for each in ranges:
        turn = seen[each.uuid, each.partition] = seen.get((each.uuid, each.partition), -1) + 1
        if turn == len(turns):
            turns.append([])
        turns[turn].append(each)
    return [task for turn in turns for task in pack(turn, tasks_min, task_rows)]


def _tasks(ranges: Sequence[Range], wanted: int, rows: int) -> Iterator[ReadTask]:
    """Yield the tasks of one topic: its share of `wanted` tasks for `rows` rows."""
    sizes = [each.rows for each in ranges]
    parts = divide([each.partition for each in ranges], sizes, -(-sum(sizes) * wanted // rows))
    for part in parts:
        spans = [
            (
                ranges[index].partition,
                ranges[index].start_offset + first,
                ranges[index].start_offset + end,
            )
            for index, first, end in part
        ]
        yield ReadTask(ranges[0].topic, ranges[0].uuid, tuple(spans), ranges[0].clamps)


def share(budget: int, sizes: Sequence[int]) -> list[int]:
    """Divide a number of rows in proportion to `sizes`, none getting more than its size.

    Each non-empty partition gets at least one row if the budget allows, so that small partitions
    do not starve beside large ones.

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
    # The remainder of rounding goes to the partitions that lost most by it.
    by_loss = sorted(range(len(rest)), key=lambda index: -(rest[index] * budget % total))
    for index in by_loss[: budget + sum(first) - sum(shares)]:
        shares[index] += 1
    return shares
