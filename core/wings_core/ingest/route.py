"""Routing of a pushed batch's rows to their partitions: runs of rows, and the bytes of each."""

from collections.abc import Sequence
from itertools import accumulate, islice, repeat
from operator import add, itemgetter, sub
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from wings_core.arrow_compute import pc
from wings_core.errors import BatchTooLarge, InvalidArgument, PartitionRequired
from wings_core.model import Topic
from wings_core.partitions import UNPARTITIONED, Partition, partition_value, partitions_of_keys

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowArray

Run = tuple[Partition, int]
"""Consecutive rows of one partition: the partition and the number of rows, at least 1."""


def route(
    topic: Topic, batch: pa.RecordBatch, partitions_max: int
) -> tuple[pa.RecordBatch, tuple[Run, ...]]:
    """Order a batch's rows by partition, by the topic's key column.

    Rows of one partition keep their order; partitions are in the order of their first rows. A
    batch of one partition is returned without a copy.

    Args:
        topic: The topic; without a key it has a single partition.
        batch: A batch checked against the topic's schema.
        partitions_max: Most partitions allowed, at least 1.

    Returns:
        The ordered rows, and a run for each partition; no run for an empty batch.

    Raises:
        PartitionRequired: A null in the key column.
        BatchTooLarge: More than `partitions_max` partitions.
    """
    if batch.num_rows == 0:
        return batch, ()
    if topic.partition_key is None:
        return batch, ((UNPARTITIONED, batch.num_rows),)
    column = _key_column(topic, batch)
    if batch.num_rows == 1:
        return batch, ((partitions_of_keys(column)[0], 1),)
    encoded = column.dictionary_encode()
    # Counted before they are processed: each costs far more than its row.
    partitions = len(encoded.dictionary)
    if partitions > partitions_max:
        raise BatchTooLarge(
            f"the batch touches {partitions} partitions, the limit is {partitions_max}",
            partitions=partitions,
            partitions_max=partitions_max,
        )
    keys = partitions_of_keys(encoded.dictionary)
    if len(keys) == 1:
        return batch, ((keys[0], batch.num_rows),)
    if partitions == batch.num_rows:  # One row each, in order already.
        return batch, tuple(zip(keys, repeat(1)))
    # The sort is stable, so rows of one partition keep their order, and dictionary codes count up
    # by first appearance, so partitions do too.
    codes = encoded.indices
    grouped = batch.take(pc.array_sort_indices(codes))
    counts = cast("list[int]", pc.value_counts(codes).field("counts").to_pylist())
    return grouped, tuple(zip(keys, counts, strict=True))


def check_single_partition(topic: Topic, batch: pa.RecordBatch, partition: Partition) -> None:
    """Check that every row of a batch belongs to the partition that its producer named.

    Raises:
        PartitionRequired: A null in the key column.
        InvalidArgument: A row has another key.
    """
    if topic.partition_key is None or batch.num_rows == 0:
        return
    for found in partitions_of_keys(_key_column(topic, batch).dictionary_encode().dictionary):
        if found != partition:
            raise InvalidArgument(
                f"the push is for partition {partition:.80}, but a row's key in column "
                f"{topic.partition_key!r} is {found:.80}",
                column=topic.partition_key,
                partition=partition_value(partition),
            )


def check_numbers(topic: Topic, runs: tuple[Run, ...]) -> None:
    """Check that rows belong to partitions of the topic, where these are numbered.

    Raises:
        InvalidArgument: A partition's number is out of range.
    """
    if topic.config.kafka is None:
        return
    for partition, _ in runs:
        if not 0 <= int(partition) < topic.slots:
            raise InvalidArgument(
                f"the topic has the partitions 0 to {topic.slots - 1}, not {partition}",
                column=topic.partition_key,
                partition=partition_value(partition),
            )


def bytes_of_runs(rows: pa.RecordBatch, runs: Sequence[Run]) -> tuple[int, ...]:
    """Return the approximate bytes of each run in Arrow buffers, at least 1.

    Exact for fixed-width, string and binary columns, and lists and structs of these; in other
    columns, such as maps, each row counts as the average.

    Args:
        rows: Valid rows, in the order of `runs`.
        runs: Runs that cover all rows.
    """
    if not runs:
        return ()
    borders = [0, *accumulate(map(itemgetter(1), runs))]
    widths = [_fixed_width(data_type) for data_type in rows.schema.types]
    fixed = sum([width for width in widths if width is not None])
    before: list[float] = [fixed * border for border in borders]
    for column, width in zip(rows.columns, widths, strict=True):
        if width is None:
            before = list(map(add, before, _bytes_before(column, borders)))
    return tuple([int(size) or 1 for size in map(sub, islice(before, 1, None), before)])


def _key_column(topic: Topic, batch: pa.RecordBatch) -> "pa.Array[Any]":
    column: pa.Array[Any] = batch.column(topic.schema.get_field_index(str(topic.partition_key)))
    if column.null_count:
        row: int = pc.indices_nonzero(column.is_null())[0].as_py()
        raise PartitionRequired(
            f"the partition key {topic.partition_key!r} is null in row {row} of the batch",
            column=topic.partition_key,
            row=row,
        )
    return column


def _bytes_before(array: "ArrowArray", borders: Sequence[int]) -> Sequence[float]:
    """Return the bytes of an array before each of the rows `borders`, which are ascending."""
    data_type = array.type
    nested = cast("Any", array)
    if _has_offsets(data_type):
        offsets = _offsets(nested)
        starts = itemgetter(*borders)(offsets)
        if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
            inside = _bytes_before(nested.values, starts)
        else:
            inside = starts
        width = offsets.itemsize
        return [each + width * border for each, border in zip(inside, borders, strict=True)]
    if pa.types.is_struct(data_type):
        fields = [
            _bytes_before(nested.field(index), borders) for index in range(data_type.num_fields)
        ]
        return [sum(values) for values in zip(*fields, strict=True)] or [0.0 for _ in borders]
    width = _fixed_width(data_type)
    if width is None:
        width = array.nbytes / max(1, len(array))
    return [width * border for border in borders]


def _fixed_width(data_type: pa.DataType) -> float | None:
    """Return the bytes per value of a type; None if it varies."""
    try:
        bits = data_type.bit_width
    except ValueError:
        return None
    return bits / 8 if bits % 8 else bits // 8  # Integers add faster.


def _has_offsets(data_type: pa.DataType) -> bool:
    kinds = (
        *(pa.types.is_string, pa.types.is_binary, pa.types.is_large_string),
        *(pa.types.is_large_binary, pa.types.is_list, pa.types.is_large_list),
    )
    return any(is_kind(data_type) for is_kind in kinds)


def _offsets(array: Any) -> "memoryview[int]":
    """Return the start of each row's values, and the end of the last one's."""
    data_type = array.type
    large = (
        pa.types.is_large_string(data_type)
        or pa.types.is_large_binary(data_type)
        or pa.types.is_large_list(data_type)
    )
    width = 8 if large else 4
    buffer = array.buffers()[1]
    if buffer is None or buffer.size == 0:  # An empty array may have no buffer.
        return memoryview(bytes(width)).cast("q" if large else "i")
    start = array.offset * width
    data = memoryview(buffer)[start : start + (len(array) + 1) * width]
    return data.cast("B").cast("q" if large else "i")
