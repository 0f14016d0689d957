"""Delivery: the rows of leased ranges, shaped as members get them."""

import struct
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa

from wings_core.errors import WingsError
from wings_core.fetch.fetcher import Cancel
from wings_core.fetch.selection import OFFSET_FIELD, TIMESTAMP_FIELD
from wings_core.limits import Limits
from wings_core.model import Topic
from wings_core.share.delivery.record_fetcher import RecordFetcher
from wings_core.share.interfaces import ShareCoordinator
from wings_core.share.model import Acknowledgement, LeasedRange, ShareGroup

PARTITION_FIELD = pa.field("__partition", pa.string(), nullable=False)
DELIVERY_COUNT_FIELD = pa.field("__delivery_count", pa.int32(), nullable=False)
LEASE_FIELD = pa.field("__lease", pa.string(), nullable=False)


def delivery_schema(topic: Topic) -> pa.Schema:
    """Return the schema of what members get: the topic's columns and all system columns."""
    return pa.schema(
        [
            *topic.schema,
            OFFSET_FIELD,
            TIMESTAMP_FIELD,
            PARTITION_FIELD,
            DELIVERY_COUNT_FIELD,
            LEASE_FIELD,
        ]
    )


@dataclass(frozen=True, slots=True)
class Delivery:
    """Rows of a leased range, or of a part of it that is as much as goes into a batch."""

    range: LeasedRange
    """What the batch covers; messages that are gone are in it and not in the batch."""
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Undelivered:
    """A part of a leased range whose rows cannot be read."""

    range: LeasedRange
    error: WingsError


def deliver(
    coordinator: ShareCoordinator,
    records: RecordFetcher,
    limits: Limits,
    group: ShareGroup,
    member: str,
    leased: Sequence[LeasedRange],
    cancel: Cancel,
) -> Generator[Delivery]:
    """Yield the rows of leased ranges, in their order; blocks for the reads.

    What cannot be read is released, which counts as a delivery, so that a damaged message ends as
    a dead letter. What was not yielded when the iterator is closed, or `cancel` is set, is released
    without counting one.

    Raises:
        WingsError: None of it could be read, or what `cancel` was set with.
    """
    delivered = False
    failure: WingsError | None = None
    left = list(leased)
    try:
        while left:
            for part in deliveries(records, group.topic, left[0], limits):
                cancel.check()
                left[0] = replace(left[0], start_offset=part.range.end_offset + 1)
                if isinstance(part, Undelivered):
                    failure, gone = part.error, part.range
                    released = Acknowledgement(
                        gone.partition, gone.start_offset, gone.end_offset, gone.lease, "release"
                    )
                    coordinator.acknowledge(group, member, [released])
                else:
                    # A delivery is counted even where the rows are lost on their way.
                    delivered = True
                    yield part
            del left[0]
    finally:
        unsent = [each for each in left if each.messages > 0]
        if unsent:
            coordinator.release_undelivered(group, unsent)
    if failure is not None and not delivered:
        raise failure


def deliveries(
    records: RecordFetcher, topic: Topic, leased: LeasedRange, limits: Limits
) -> Iterator[Delivery | Undelivered]:
    """Yield a leased range as batches: one, where it fits the wire; blocks for the reads.

    None where retention has passed all of it.

    Args:
        records: Reads the rows.
        topic: Whose they are.
        leased: What was acquired.
        limits: The wire's bounds.
    """
    found = records.collect(topic, leased.partition, leased.start_offset, leased.end_offset)
    schema = delivery_schema(topic)
    parts = list(_within_bounds(found.batches, limits))  # None: nothing is left, or readable.
    last = leased.end_offset
    if found.error is not None:
        # What is behind the last row that was read is not delivered.
        last = _last_offset(parts[-1][-1]) if parts else leased.start_offset - 1
    start = leased.start_offset
    for number, part in enumerate(parts, 1):
        end = _first_offset(parts[number][0]) - 1 if number < len(parts) else last
        covered = replace(leased, start_offset=start, end_offset=end)
        yield Delivery(covered, _shaped(part, covered, schema))
        start = end + 1
    if found.error is not None:
        yield Undelivered(replace(leased, start_offset=last + 1), found.error)


def _within_bounds(
    batches: Sequence[pa.RecordBatch], limits: Limits
) -> Iterator[list[pa.RecordBatch]]:
    """Gather batches into groups that fit the wire; each batch does by itself."""
    group: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        rows += batch.num_rows
        size += batch.nbytes
        if group and (rows > limits.wire_rows_max or size > limits.wire_bytes_max):
            yield group
            group, rows, size = [], batch.num_rows, batch.nbytes
        group.append(batch)
    if group:
        yield group


def _shaped(
    batches: Sequence[pa.RecordBatch], leased: LeasedRange, schema: pa.Schema
) -> pa.RecordBatch:
    arrow = cast("Any", pa)  # The stubs know neither of the two functions used.
    rows: pa.RecordBatch = batches[0] if len(batches) == 1 else arrow.concat_batches(batches)
    count = rows.num_rows
    system = [
        arrow.repeat(_text(leased.partition), count),
        arrow.repeat(_integer(leased.delivery_count), count),
        arrow.repeat(_text(leased.lease), count),
    ]
    return pa.RecordBatch.from_arrays([*rows.columns, *system], schema=schema)


def _text(value: str) -> "pa.Scalar[Any]":
    # Not by `pa.scalar`: at its first use pyarrow imports pandas, where that is installed.
    stored = value.encode()
    buffers = [None, pa.py_buffer(struct.pack("=ii", 0, len(stored))), pa.py_buffer(stored)]
    return pa.Array.from_buffers(pa.string(), 1, buffers)[0]


def _integer(value: int) -> "pa.Scalar[Any]":
    buffers = [None, pa.py_buffer(struct.pack("=i", value))]
    return pa.Array.from_buffers(pa.int32(), 1, buffers)[0]


def _first_offset(batch: pa.RecordBatch) -> int:
    return cast("Any", batch.column(OFFSET_FIELD.name))[0].as_py()


def _last_offset(batch: pa.RecordBatch) -> int:
    return cast("Any", batch.column(OFFSET_FIELD.name))[-1].as_py()
