"""Prepare a pushed batch for the flush: check it, route it, encode its pages."""

from dataclasses import dataclass

import pyarrow as pa

from wings_core.batches import check_batch
from wings_core.errors import BatchTooLarge, InvalidArgument
from wings_core.ingest.route import check_single_partition, route
from wings_core.limits import Limits
from wings_core.model import ExpectedOffset, Sequence, Topic
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.storage.interfaces import EncodedPage
from wings_core.storage.page import encode_page


@dataclass(frozen=True, slots=True)
class PushOptions:
    """What a producer says about one batch."""

    partition: Partition | None = None
    """The partition of all rows; None: by the key column."""
    sequence: Sequence | None = None
    expected_offset: int | None = None
    timestamp: int | None = None
    """Microseconds since the epoch; None: the time of commit."""


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A checked batch as encoded pages, ready for a flush; it no longer refers to its rows."""

    topic: Topic
    pages: tuple[tuple[Partition, EncodedPage], ...]
    """By first row of each partition."""
    bytes: int
    sequence: Sequence | None
    expected: ExpectedOffset | None
    timestamp: int | None


def prepare(
    topic: Topic, batch: pa.RecordBatch, options: PushOptions, limits: Limits
) -> PreparedBatch:
    """Check a batch and encode it; runs in the producer's own thread.

    Args:
        topic: Where the batch goes.
        batch: Its schema has passed `batches.check_stream_schema`.
        options: What the producer said about it.
        limits: Bounds on bytes and partitions.

    Raises:
        BatchTooLarge: Over the bytes or partitions allowed.
        SchemaMismatch: Invalid data, or nulls where none may be.
        PartitionRequired: A null in the key column.
        InvalidArgument: A row of another partition than the one named, or an expected offset for
            rows that are not of exactly one partition.
    """
    bytes_max = min(limits.batch_bytes_max, topic.config.batch_bytes_max or limits.batch_bytes_max)
    # Whole buffers are counted faster than the part of them that a slice refers to.
    if batch.get_total_buffer_size() > bytes_max and batch.nbytes > bytes_max:
        raise BatchTooLarge(
            f"the batch has {batch.nbytes} bytes, the limit is {bytes_max}",
            bytes=batch.nbytes,
            bytes_max=bytes_max,
        )
    check_batch(topic.schema, batch)
    if options.partition is None:
        routed = route(topic, batch, limits.batch_partitions_max)
    else:
        check_single_partition(topic, batch, options.partition)
        routed = [(options.partition, batch)] if batch.num_rows else []
    pages = tuple((partition, encode_page(rows, topic.uuid)) for partition, rows in routed)
    return PreparedBatch(
        topic=topic,
        pages=pages,
        bytes=sum(page.length for _, page in pages),
        sequence=options.sequence,
        expected=_expected(topic, options, [partition for partition, _ in routed]),
        timestamp=options.timestamp,
    )


def _expected(
    topic: Topic, options: PushOptions, partitions: list[Partition]
) -> ExpectedOffset | None:
    """Say which partition an expected offset is about."""
    if options.expected_offset is None:
        return None
    if options.partition is not None:
        return ExpectedOffset(options.partition, options.expected_offset)
    if topic.partition_key is None:
        return ExpectedOffset(UNPARTITIONED, options.expected_offset)
    if len(partitions) != 1:
        raise InvalidArgument(
            f"expected_offset is for a batch of one partition, this one has {len(partitions)}"
        )
    return ExpectedOffset(partitions[0], options.expected_offset)
