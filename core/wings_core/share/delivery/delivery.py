"""Delivery: the rows of leased ranges, shaped as members get them."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa

from wings_core.errors import WingsError
from wings_core.fetch.selection import OFFSET_FIELD, PARTITION_FIELD, TIMESTAMP_FIELD
from wings_core.limits import Limits
from wings_core.model import LeasedRange, Topic
from wings_core.share.delivery.record_fetcher import RecordFetcher
from wings_core.storage.lru import BySchema

DELIVERY_COUNT_FIELD = pa.field("__delivery_count", pa.int32(), nullable=False)
LEASE_FIELD = pa.field("__lease", pa.string(), nullable=False)

SCHEMAS_MAX = 1_000
"""Schemas of deliveries that are kept."""

_SYSTEM = (OFFSET_FIELD, TIMESTAMP_FIELD, PARTITION_FIELD, DELIVERY_COUNT_FIELD, LEASE_FIELD)

_schemas = BySchema(lambda topic: pa.schema([*topic.schema, *_SYSTEM]), SCHEMAS_MAX)


def delivery_schema(topic: Topic) -> pa.Schema:
    """Return the schema of what members get: the topic's columns and all system columns."""
    return _schemas.get(topic)


@dataclass(frozen=True, slots=True)
class DeliveredBatch:
    """Rows of a leased range, or of a part of it that is as much as goes into a batch."""

    range: LeasedRange
    """Range that the batch covers, messages that are gone included."""
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Undelivered:
    """A part of a leased range whose rows cannot be read."""

    range: LeasedRange
    error: WingsError | None
    """None: retention has removed them."""
    damaged: bool
    """Whether trying again is in vain."""


def deliveries(
    records: RecordFetcher, topic: Topic, leased: LeasedRange, limits: Limits
) -> Iterator[DeliveredBatch | Undelivered]:
    """Yield a leased range as batches: one, where it fits the wire; blocks for the reads.

    Together they cover the range, in order, up to an error that may pass.

    Args:
        records: Reads the rows.
        topic: The topic of the ranges.
        leased: The acquired ranges.
        limits: The wire's bounds.
    """
    found = records.collect(topic, leased.partition, leased.start_offset, leased.end_offset)
    batches = list(found.batches)
    start = leased.start_offset
    for gap in found.unreadable:
        before = list(_taken_before(batches, gap.first))
        yield from _readable(topic, leased, start, gap.first - 1, before, limits)
        yield Undelivered(
            replace(leased, start_offset=gap.first, end_offset=gap.last), gap.error, damaged=True
        )
        start = gap.last + 1
    if found.error is None:
        yield from _readable(topic, leased, start, leased.end_offset, batches, limits)
        return
    # What is behind the last row that was read is not delivered.
    last = _last_offset(batches[-1]) if batches else start - 1
    yield from _readable(topic, leased, start, last, batches, limits)
    yield Undelivered(replace(leased, start_offset=last + 1), found.error, damaged=False)


def kept_delivery(
    records: RecordFetcher, limits: Limits, topic: Topic, leased: LeasedRange, *, near: bool
) -> DeliveredBatch | None:
    """Return a leased range as one batch, if its rows are at hand, whole, and fit the wire.

    With `near`, metadata is looked at for them.
    """
    first, last = leased.start_offset, leased.end_offset
    rows = records.kept(topic, leased.partition, first, last, near=near)
    if rows is None or rows.num_rows > limits.wire_rows_max:
        return None  # Not by bytes: less is kept than fits.
    return DeliveredBatch(leased, _shaped([rows], leased, delivery_schema(topic)))


def _readable(
    topic: Topic,
    leased: LeasedRange,
    first: int,
    last: int,
    batches: Sequence[pa.RecordBatch],
    limits: Limits,
) -> Iterator[DeliveredBatch | Undelivered]:
    """Yield the rows of `[first, last]`, none of which is damaged."""
    if first > last:
        return
    if not batches:
        gone = replace(leased, start_offset=first, end_offset=last)
        yield Undelivered(gone, None, damaged=False)
        return
    schema = delivery_schema(topic)
    parts = list(_within_bounds(batches, limits))
    for number, part in enumerate(parts, 1):
        end = _first_offset(parts[number][0]) - 1 if number < len(parts) else last
        covered = replace(leased, start_offset=first, end_offset=end)
        yield DeliveredBatch(covered, _shaped(part, covered, schema))
        first = end + 1


def _taken_before(batches: list[pa.RecordBatch], offset: int) -> Iterator[pa.RecordBatch]:
    """Take the batches out of the list that lie before an offset."""
    while batches and _first_offset(batches[0]) < offset:
        yield batches.pop(0)


def _within_bounds(
    batches: Sequence[pa.RecordBatch], limits: Limits
) -> Iterator[list[pa.RecordBatch]]:
    """Gather batches into groups that fit the wire; each batch does by itself."""
    if len(batches) == 1:
        yield list(batches)  # The size of its buffers is not looked at, which takes long.
        return
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
    system = (_text(leased.partition), _integer(leased.delivery_count), _text(leased.lease))
    if rows.num_rows != 1:
        system = [arrow.repeat(each[0], rows.num_rows) for each in system]
    return pa.RecordBatch.from_arrays([*rows.columns, *system], schema=schema)


def _text(value: str) -> "pa.Array[Any]":
    """Return an array of one text."""
    # Not by `pa.array`: at its first use pyarrow imports pandas, where that is installed.
    stored = value.encode()
    buffers = [None, pa.py_buffer(array("i", [0, len(stored)])), pa.py_buffer(stored)]
    return pa.Array.from_buffers(pa.string(), 1, buffers)


def _integer(value: int) -> "pa.Array[Any]":
    """Return an array of one integer."""
    return pa.Array.from_buffers(pa.int32(), 1, [None, pa.py_buffer(array("i", [value]))])


def _first_offset(batch: pa.RecordBatch) -> int:
    return cast("Any", batch.column(OFFSET_FIELD.name))[0].as_py()


def _last_offset(batch: pa.RecordBatch) -> int:
    return cast("Any", batch.column(OFFSET_FIELD.name))[-1].as_py()
