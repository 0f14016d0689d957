"""Prepare a pushed batch for the flush: check it, route it, encode its pages if it is large."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from wings_core.batches import BatchCheck
from wings_core.errors import BatchTooLarge, InvalidArgument
from wings_core.ingest.route import Run, check_single_partition, route
from wings_core.ingest.sizes import bytes_of_runs
from wings_core.limits import Limits
from wings_core.model import (
    CommitBatch,
    ExpectedOffset,
    Sequence,
    StageEntry,
    StoredPage,
    Topic,
)
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.storage.by_schema import BySchema
from wings_core.storage.codecs import PUSHES, PushEncoder
from wings_core.storage.interfaces import EncodedPage


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
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

SMALL_ROWS_MAX = 64 * 1024
"""And at most so many rows, which may have no bytes: once drained, each has a timestamp."""

RUN_BYTES_MIN = 64 * 1024
"""Runs of a large batch that are larger on average get a page each, which needs no copy; smaller
ones share pages."""

SHARED_PAGE_BYTES = 256 * 1024
"""About so many bytes are in a page that partitions share. A reader of one of them verifies all of
its page, and out of an object store fetches all of it."""

SHARED_PAGE_ROWS = 256 * 1024
"""And about so many rows."""

PENDING_BYTES = 1_536
"""What a batch takes in memory beside its rows, until its flush has ended."""

JOINED_BATCHES_MAX = 1_024
"""Small batches of a stream that are joined, at most, and up to `SHARED_PAGE_BYTES` of them, and
`SHARED_PAGE_ROWS`."""


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class PreparedBatch:
    """A checked batch, ready for a flush; or several of a stream that were joined."""

    topic: Topic
    parts: list[pa.RecordBatch]
    """The rows of each batch that is joined here; one after another, in the order of `runs`."""
    runs: tuple[Run, ...]
    """By first row of each partition; none for an empty batch."""
    run_bytes: tuple[int, ...]
    """About how many bytes each run has, one at least."""
    pages: tuple[EncodedPage, ...]
    """Of the runs, one after another, each run in one of them; none where the batch is small, and
    the flush packs it with others."""
    page_runs: tuple[int, ...]
    """How many runs each page has."""
    bytes: int
    """Of its rows."""
    sequence: Sequence | None
    """Of the first batch; those that are joined with it have the next ones."""
    expected: ExpectedOffset | None
    timestamp: int | None
    stage: StageEntry | None
    joinable: bool
    """Whether it is small, of one partition, and expects no offset."""

    @property
    def num_rows(self) -> int:
        """Of all of them."""
        return sum([rows for _, rows in self.runs])

    @property
    def pending_bytes(self) -> int:
        """What it takes in memory until its flush has ended."""
        return self.bytes + PENDING_BYTES * len(self.parts)

    def join(self, batch: "PreparedBatch") -> bool:
        """Take in the next batch of the stream, if the two can share a page and a range of offsets.

        So both are small, of one partition, one time and one stage, and expect no offset. Without a
        sequence what refuses one refuses the other too: one decision does for all. With sequences,
        which follow each other, they are a series; see `CommitBatch.series`.

        Returns:
            Whether it was taken in.
        """
        if not (self.joinable and batch.joinable) or self.topic is not batch.topic:
            return False
        own, stage, sequence = self.stage, batch.stage, batch.sequence
        if own is None or stage is None:
            if own is not stage:
                return False
        elif stage.first or (own.stage, own.writing) != (stage.stage, stage.writing):
            return False
        if sequence is not None and self.producer_id != sequence.producer_id:
            return False
        (rows,) = batch.parts
        ((partition, _),) = batch.runs
        number = None if sequence is None else sequence.sequence
        return self.parts[0].schema == rows.schema and self.take(
            rows, batch.bytes, partition, batch.timestamp, number
        )

    def to_commit(self, stream: int, pages: tuple[StoredPage, ...]) -> CommitBatch:
        """Return what the registry is asked to commit.

        Args:
            stream: The number of its stream.
            pages: What is stored of it.
        """
        series = ()
        if self.sequence is not None and len(self.parts) > 1:
            series = tuple([part.num_rows for part in self.parts])
        return CommitBatch(
            stream,
            self.topic.uuid,
            pages,
            self.sequence,
            self.expected,
            self.timestamp,
            self.stage,
            series,
        )

    @property
    def producer_id(self) -> str | None:
        """The producer that numbers its batches; None: they have no sequence."""
        return None if self.sequence is None else self.sequence.producer_id

    def take(
        self,
        rows: pa.RecordBatch,
        size: int,
        partition: Partition,
        timestamp: int | None,
        number: int | None,
    ) -> bool:
        """Take in the rows of the next batch of the stream, if that can be; see `join`.

        Args:
            rows: They have been checked.
            size: Of them, in bytes.
            partition: Theirs.
            timestamp: Theirs, as in `PushOptions`.
            number: The producer's number for them; None: they have none. The stage and the producer
                are those of this batch.

        Returns:
            Whether they were taken in.
        """
        size += self.bytes
        joined = len(self.parts)
        if not self.joinable or size > SHARED_PAGE_BYTES or joined >= JOINED_BATCHES_MAX:
            return False
        sequence = self.sequence
        if number != (None if sequence is None else sequence.sequence + joined):
            return False
        ((own, count),) = self.runs
        count += rows.num_rows
        if partition != own or timestamp != self.timestamp or count > SHARED_PAGE_ROWS:
            return False
        self.parts.append(rows)
        self.runs = ((own, count),)
        self.run_bytes = (size or 1,)
        self.bytes = size
        return True


CHECKS_KEPT_MAX = 1_024
"""Topics whose check is kept for their next stream."""

_checks: BySchema[BatchCheck] = BySchema(lambda topic: BatchCheck(topic.schema), CHECKS_KEPT_MAX)
"""To make one takes a third of the steps of a short stream."""


class Preparer:
    """Checks and routes the batches of one topic, one after another, in their producer's thread.

    Made once for a stream, since what only depends on the schema is then looked at once.

    Args:
        topic: Where the batches go.
        limits: Bounds on bytes and partitions.
    """

    def __init__(self, topic: Topic, limits: Limits) -> None:
        self._topic = topic
        self._check = _checks.get(topic)
        self._encoder: PushEncoder | None = None
        self._partitions_max = limits.batch_partitions_max
        self._rows_max = limits.batch_rows_max
        configured = topic.config.batch_bytes_max
        self._bytes_max = min(limits.batch_bytes_max, configured or limits.batch_bytes_max)
        self._small_bytes_max = min(SMALL_BYTES_MAX, self._bytes_max)
        self._small_rows_max = min(SMALL_ROWS_MAX, self._rows_max)
        self._key_index = -1
        if topic.partition_key is not None:
            self._key_index = topic.schema.get_field_index(topic.partition_key)
        self._keys: pa.Array[Any] | None = None
        """Those of the last small batch of one partition, if the topic has a key."""
        self._partition = UNPARTITIONED
        """And which that is."""

    def check_small(self, batch: pa.RecordBatch, size: int) -> Partition | None:
        """Check a batch as `prepare` does, and tell at once where it belongs, if that can be told.

        Args:
            batch: As of `prepare`.
            size: The bytes of its buffers.

        Returns:
            The partition of its rows; None where it has none, is not small, or has not the keys of
            the last small batch that was prepared: its partition is `prepare`'s to find.

        Raises:
            SchemaMismatch: Invalid data, or nulls where none may be.
        """
        self._check.check(batch)
        if size > self._small_bytes_max or not 0 < batch.num_rows <= self._small_rows_max:
            return None
        if self._key_index >= 0 and (
            self._keys is None or not self._keys.equals(batch.column(self._key_index))
        ):
            return None
        return self._partition

    def prepare(
        self, batch: pa.RecordBatch, options: PushOptions, *, checked: bool = False
    ) -> PreparedBatch:
        """Check a batch and route it; encode it where it is large.

        Args:
            batch: Its schema has passed `batches.check_stream_schema`. Its buffers must not change
                until its flush has ended.
            options: What the producer said about it.
            checked: Whether `check_small` has been called with it.

        Raises:
            BatchTooLarge: Over the bytes, rows or partitions allowed.
            SchemaMismatch: Invalid data, or nulls where none may be.
            PartitionRequired: A null in the key column.
            InvalidArgument: A row of another partition than the one named, or an expected offset
                for rows that are not of exactly one partition.
        """
        if batch.num_rows > self._rows_max:
            raise BatchTooLarge(
                f"the batch has {batch.num_rows} rows, the limit is {self._rows_max}",
                rows=batch.num_rows,
                rows_max=self._rows_max,
            )
        if not checked:
            # Before its bytes are counted: that reads beyond the buffers of one with bad offsets.
            self._check.check(batch)
        # Whole buffers are counted faster than the part of them that a slice refers to.
        size = batch.get_total_buffer_size()
        # A small part of large buffers is copied into a page at once: it would keep all of them.
        small = size <= SMALL_BYTES_MAX and batch.num_rows <= SMALL_ROWS_MAX
        if size > self._small_bytes_max:
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
            if self._topic.partition_key is not None:
                check_single_partition(self._topic, batch, options.partition)
            count = batch.num_rows
            rows, runs = batch, ((options.partition, count),) if count else ()
        # Rows of nulls alone may have no bytes.
        run_bytes = (size or 1,) if len(runs) == 1 else bytes_of_runs(rows, runs)
        pages, page_runs = ((), ()) if small else self._encode(rows, runs, run_bytes)
        expected = None
        if options.expected_offset is not None:
            expected = _expected(self._topic, options.partition, options.expected_offset, runs)
        joinable = small and len(runs) == 1 and expected is None
        if joinable and self._key_index >= 0:
            self._keys = rows.column(self._key_index)
            self._partition = next(partition for partition, _ in runs)
        return PreparedBatch(
            topic=self._topic,
            parts=[rows],
            runs=runs,
            run_bytes=run_bytes,
            pages=pages,
            page_runs=page_runs,
            bytes=size,
            sequence=options.sequence,
            expected=expected,
            timestamp=options.timestamp,
            stage=options.stage,
            joinable=joinable,
        )

    def _encode(
        self, rows: pa.RecordBatch, runs: tuple[Run, ...], run_bytes: tuple[int, ...]
    ) -> tuple[tuple[EncodedPage, ...], tuple[int, ...]]:
        """Encode a large batch: a page for each run where these are large, else shared ones.

        Returns:
            The pages, and how many runs each of them has.
        """
        if self._encoder is None:
            self._encoder = PUSHES.encoder(self._topic.uuid, self._topic.schema)
        encode = self._encoder.encode
        shared = sum(run_bytes) < RUN_BYTES_MIN * len(runs)
        page_bytes = SHARED_PAGE_BYTES if shared else 0
        pages: list[EncodedPage] = []
        page_runs: list[int] = []
        first = count = size = run = first_run = 0
        for (_, run_rows), run_size in zip(runs, run_bytes, strict=True):
            if count and size + run_size > page_bytes:
                pages.append(encode(rows.slice(first, count)))
                page_runs.append(run - first_run)
                first, count, size, first_run = first + count, 0, 0, run
            count += run_rows
            size += run_size
            run += 1
        if count:
            pages.append(encode(rows.slice(first, count)))
            page_runs.append(run - first_run)
        return tuple(pages), tuple(page_runs)


def _expected(
    topic: Topic, partition: Partition | None, offset: int, runs: tuple[Run, ...]
) -> ExpectedOffset:
    """Say which partition an expected offset is about."""
    if partition is not None:
        return ExpectedOffset(partition, offset)
    if topic.partition_key is None:
        return ExpectedOffset(UNPARTITIONED, offset)
    if len(runs) != 1:
        raise InvalidArgument(
            f"expected_offset is for a batch of one partition, this one has {len(runs)}"
        )
    return ExpectedOffset(runs[0][0], offset)
