"""Prepare a pushed batch for the flush: check it, route it, encode its pages if it is large."""

from dataclasses import dataclass

import pyarrow as pa

from wings_core.batches import BatchCheck
from wings_core.errors import BatchTooLarge, InvalidArgument
from wings_core.ingest.route import Run, check_single_partition, route
from wings_core.ingest.sizes import bytes_of_runs
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


SMALL_BYTES_MAX = 64 * 1024
"""Batches of at most so many bytes are packed into a page with others of their flush: copying their
rows costs less than a page of their own does."""

RUN_BYTES_MIN = 64 * 1024
"""Runs of a large batch that are larger on average get a page each, which needs no copy; smaller
ones share pages."""

SHARED_PAGE_BYTES = 256 * 1024
"""About so many bytes are in a page that partitions share. A reader of one of them verifies all of
its page, and out of an object store fetches all of it."""

PENDING_BYTES = 1_536
"""What a batch takes in memory beside its rows, until its flush has ended."""


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A checked batch, ready for a flush."""

    topic: Topic
    rows: pa.RecordBatch
    """In the order of `runs`."""
    runs: tuple[Run, ...]
    """By first row of each partition; none for an empty batch."""
    run_bytes: tuple[int, ...]
    """About how many bytes each run has."""
    pages: tuple[EncodedPage, ...]
    """Of the runs, one after another, each run in one of them; none where the batch is small, and
    the flush packs it with others."""
    bytes: int
    """Of its rows."""
    sequence: Sequence | None
    expected: ExpectedOffset | None
    timestamp: int | None
    stage: StageEntry | None

    @property
    def pending_bytes(self) -> int:
        """What it takes in memory until its flush has ended."""
        return self.bytes + PENDING_BYTES


class Preparer:
    """Checks and routes the batches of one topic, one after another, in their producer's thread.

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
        """Check a batch and route it; encode it where it is large.

        Args:
            batch: Its schema has passed `batches.check_stream_schema`. Its buffers must not change
                until its flush has ended.
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
        size = batch.get_total_buffer_size()
        # A small part of large buffers is copied into a page at once: it would keep all of them.
        small = size <= SMALL_BYTES_MAX
        if size > min(SMALL_BYTES_MAX, self._bytes_max):
            size = batch.nbytes
        if size > self._bytes_max:
            raise BatchTooLarge(
                f"the batch has {size} bytes, the limit is {self._bytes_max}",
                bytes=size,
                bytes_max=self._bytes_max,
            )
        if options.partition is None:
            rows, runs = route(self._topic, batch, self._partitions_max)
        else:
            check_single_partition(self._topic, batch, options.partition)
            rows, runs = batch, ((options.partition, batch.num_rows),) if batch.num_rows else ()
        run_bytes = (size,) if len(runs) == 1 else bytes_of_runs(rows, runs)
        return PreparedBatch(
            topic=self._topic,
            rows=rows,
            runs=runs,
            run_bytes=run_bytes,
            pages=() if small else self._encode(rows, runs, run_bytes),
            bytes=size,
            sequence=options.sequence,
            expected=_expected(self._topic, options, runs),
            timestamp=options.timestamp,
            stage=options.stage,
        )

    def _encode(
        self, rows: pa.RecordBatch, runs: tuple[Run, ...], run_bytes: tuple[int, ...]
    ) -> tuple[EncodedPage, ...]:
        """Encode a large batch: a page for each run where these are large, else shared ones."""
        shared = sum(run_bytes) < RUN_BYTES_MIN * len(runs)
        page_bytes = SHARED_PAGE_BYTES if shared else 0
        pages: list[EncodedPage] = []
        first = count = size = 0
        for (_, run_rows), run_size in zip(runs, run_bytes, strict=True):
            if count and size + run_size > page_bytes:
                pages.append(self._encoder.encode(rows.slice(first, count)))
                first, count, size = first + count, 0, 0
            count += run_rows
            size += run_size
        if count:
            pages.append(self._encoder.encode(rows.slice(first, count)))
        return tuple(pages)


def _expected(topic: Topic, options: PushOptions, runs: tuple[Run, ...]) -> ExpectedOffset | None:
    """Say which partition an expected offset is about."""
    if options.expected_offset is None:
        return None
    if options.partition is not None:
        return ExpectedOffset(options.partition, options.expected_offset)
    if topic.partition_key is None:
        return ExpectedOffset(UNPARTITIONED, options.expected_offset)
    if len(runs) != 1:
        raise InvalidArgument(
            f"expected_offset is for a batch of one partition, this one has {len(runs)}"
        )
    return ExpectedOffset(runs[0][0], options.expected_offset)
