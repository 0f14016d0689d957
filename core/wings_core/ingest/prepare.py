"""Prepare a pushed batch for the flush: check it, route it, encode its pages."""

from dataclasses import dataclass

import pyarrow as pa

from wings_core.batches import BatchCheck
from wings_core.errors import BatchTooLarge, InvalidArgument
from wings_core.ingest.route import check_single_partition, route
from wings_core.limits import Limits
from wings_core.model import ExpectedOffset, Sequence, StageEntry, Topic
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.storage.codecs import PUSHES
from wings_core.storage.interfaces import EncodedPage


@dataclass(frozen=True, slots=True)
class PushOptions:
    """What a producer says about one batch."""

    partition: Partition | None = None
    """The partition of all rows; None: by the key column."""
    sequence: Sequence | None = None
    expected_offset: int | None = None
    timestamp: int | None = None
    """Microseconds since the epoch; None: the time of commit."""
    stage: StageEntry | None = None
    """None: visible at once."""


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A checked batch as encoded pages, ready for a flush."""

    topic: Topic
    pages: tuple[tuple[Partition, EncodedPage], ...]
    """By first row of each partition."""
    bytes: int
    sequence: Sequence | None
    expected: ExpectedOffset | None
    timestamp: int | None
    stage: StageEntry | None


class Preparer:
    """Checks and encodes the batches of one topic, one after another, in their producer's thread.

    Made once for a stream, since what only depends on the schema is then looked at once.

    Args:
        topic: Where the batches go.
        limits: Bounds on bytes and partitions.
    """

    def __init__(self, topic: Topic, limits: Limits) -> None:
        self._topic = topic
        self._check = BatchCheck(topic.schema)
        self._encoder = PUSHES.encoder(topic.uuid, topic.schema)
        self._partitions_max = limits.batch_partitions_max
        configured = topic.config.batch_bytes_max
        self._bytes_max = min(limits.batch_bytes_max, configured or limits.batch_bytes_max)

    def prepare(self, batch: pa.RecordBatch, options: PushOptions) -> PreparedBatch:
        """Check a batch and encode it.

        Args:
            batch: Its schema has passed `batches.check_stream_schema`.
            options: What the producer said about it.

        Raises:
            BatchTooLarge: Over the bytes or partitions allowed.
            SchemaMismatch: Invalid data, or nulls where none may be.
            PartitionRequired: A null in the key column.
            InvalidArgument: A row of another partition than the one named, or an expected offset
                for rows that are not of exactly one partition.
        """
        # First of all: to count the bytes of a batch with bad offsets reads beyond its buffers.
        self._check.check(batch)
        # Whole buffers are counted faster than the part of them that a slice refers to.
        if batch.get_total_buffer_size() > self._bytes_max and batch.nbytes > self._bytes_max:
            raise BatchTooLarge(
                f"the batch has {batch.nbytes} bytes, the limit is {self._bytes_max}",
                bytes=batch.nbytes,
                bytes_max=self._bytes_max,
            )
        if options.partition is None:
            routed = route(self._topic, batch, self._partitions_max)
        else:
            check_single_partition(self._topic, batch, options.partition)
            routed = [(options.partition, batch)] if batch.num_rows else []
        pages = tuple((partition, self._encoder.encode(rows)) for partition, rows in routed)
        return PreparedBatch(
            topic=self._topic,
            pages=pages,
            bytes=sum(page.length for _, page in pages),
            sequence=options.sequence,
            expected=_expected(self._topic, options, pages),
            timestamp=options.timestamp,
            stage=options.stage,
        )


def _expected(
    topic: Topic, options: PushOptions, pages: tuple[tuple[Partition, EncodedPage], ...]
) -> ExpectedOffset | None:
    """Say which partition an expected offset is about."""
    if options.expected_offset is None:
        return None
    if options.partition is not None:
        return ExpectedOffset(options.partition, options.expected_offset)
    if topic.partition_key is None:
        return ExpectedOffset(UNPARTITIONED, options.expected_offset)
    if len(pages) != 1:
        raise InvalidArgument(
            f"expected_offset is for a batch of one partition, this one has {len(pages)}"
        )
    return ExpectedOffset(pages[0][0], options.expected_offset)
