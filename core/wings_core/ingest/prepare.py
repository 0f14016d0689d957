"""Prepares a pushed batch for the flush: checks it, routes it, encodes its pages if it is large."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from wings_core.arrow_compute import pc
from wings_core.batches import BatchCheck
from wings_core.errors import BatchTooLarge, InvalidArgument
from wings_core.ingest.route import Run, bytes_of_runs, check_numbers, check_single_partition, route
from wings_core.limits import Limits
from wings_core.model import (
    CommitBatch,
    ExpectedOffset,
    PartitionSequence,
    Sequence,
    StageEntry,
    StoredPage,
    Topic,
)
from wings_core.partitions import UNPARTITIONED, Partition, partitions_of_keys
from wings_core.storage.codecs import PUSHES
from wings_core.storage.interfaces import EncodedPage
from wings_core.storage.lru import BySchema
from wings_core.storage.page import PageEncoder


@dataclass(slots=True)  # Not frozen: construction would take three times as long.
class PushOptions:
    """A producer's options for one batch."""

    partition: Partition | None = None
    """Partition of all rows; None to route by the key column."""
    sequence: Sequence | None = None
    expected_offset: int | None = None
    timestamp: int | None = None
    """Timestamp in microseconds since the epoch; None for the time of commit."""
    stage: StageEntry | None = None
    """Stage of the batch; None to make it visible at once."""
    partition_sequence: PartitionSequence | None = None
    """Numbers of the batch's rows, all of one partition; excludes a sequence and an expected
    offset."""


SMALL_BYTES_MAX = 64 * 1024
"""Most bytes of a small batch, which shares a page with others of its flush: copying its rows costs
less than a page of its own."""

SMALL_ROWS_MAX = 64 * 1024
"""Most rows of a small batch; rows may have no bytes, but get a timestamp each when drained."""

RUN_BYTES_MIN = 64 * 1024
"""Average size from which the runs of a large batch get a page each, without a copy; smaller runs
share pages."""

SHARED_PAGE_BYTES = 256 * 1024
"""Approximate bytes of a page that partitions share. A reader of one partition verifies the whole
page, and fetches all of it from an object store."""

SHARED_PAGE_ROWS = 256 * 1024
"""Approximate rows of a page that partitions share."""

PENDING_BYTES = 1_536
"""Memory of a pending batch in addition to its rows, in bytes."""

JOINED_BATCHES_MAX = 1_024
"""Most small batches of a stream that are joined; also bounded by `SHARED_PAGE_BYTES`, and if all
are of one partition by `SHARED_PAGE_ROWS`."""


SPREAD_CHARACTERS_MAX = 256
"""Longest partition value of batches of several partitions that are joined: no store rejects it."""


@dataclass(slots=True)  # Not frozen: construction would take three times as long.
class PreparedBatch:
    """A checked batch, or several joined ones of a stream, ready for a flush."""

    topic: Topic
    parts: list[pa.RecordBatch]
    """Rows of each joined batch; concatenated, they are in the order of `runs`."""
    runs: tuple[Run, ...]
    """Runs in order of rows; empty for an empty batch. Joined batches have a common one if all are
    of one partition, or else one each."""
    run_bytes: tuple[int, ...]
    """Approximate bytes of each run, at least 1."""
    pages: tuple[EncodedPage, ...]
    """Pages of the runs, in order, each run within one page; empty for a small batch, which the
    flush packs with others."""
    page_runs: tuple[int, ...]
    """Number of runs in each page."""
    bytes: int
    """Bytes of the rows."""
    sequence: Sequence | None
    """Sequence of the first batch; joined ones have consecutive numbers."""
    expected: ExpectedOffset | None
    timestamp: int | None
    stage: StageEntry | None
    joinable: bool
    """Whether the batch is small, each joined part has one partition, no offset is expected, and
    rows have no numbers."""
    partition_sequence: PartitionSequence | None = None

    @property
    def num_rows(self) -> int:
        """Rows of all joined batches."""
        return sum([rows for _, rows in self.runs])

    @property
    def pending_bytes(self) -> int:
        """Memory until the end of its flush, in bytes."""
        return self.bytes + PENDING_BYTES * len(self.parts)

    @property
    def is_spread(self) -> bool:
        """True of joined batches of several partitions."""
        return len(self.parts) > 1 and len(self.runs) > 1

    def join(self, batch: "PreparedBatch") -> bool:
        """Append the next batch of the stream, if both can share a page.

        Both must be small, have the same timestamp and stage, and expect no offset. Those of one
        partition share a range of offsets; those of several are of no stage. Without sequences they
        are accepted or rejected together, with consecutive sequences they form a series; see
        `CommitBatch.series`.

        Returns:
            Whether `batch` was appended.
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
        """Return the request to the registry.

        Args:
            stream: Number of its stream.
            pages: Its stored pages.
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
            self.partition_sequence,
            series,
        )

    @property
    def producer_id(self) -> str | None:
        """Id of the producer; None without a sequence."""
        return None if self.sequence is None else self.sequence.producer_id

    def take(
        self,
        rows: pa.RecordBatch,
        size: int,
        partition: Partition,
        timestamp: int | None,
        number: int | None,
    ) -> bool:
        """Append the rows of the next batch of the stream, if possible; see `join`.

        Args:
            rows: Checked rows, of the same stage and producer.
            size: Size of the rows in bytes.
            partition: Partition of the rows.
            timestamp: Timestamp of the rows, as in `PushOptions`.
            number: Number of their sequence; None without one.

        Returns:
            Whether the rows were appended.
        """
        whole = size + self.bytes
        joined = len(self.parts)
        if not self.joinable or whole > SHARED_PAGE_BYTES or joined >= JOINED_BATCHES_MAX:
            return False
        sequence = self.sequence
        if number != (None if sequence is None else sequence.sequence + joined):
            return False
        own, count = self.runs[-1]
        count += rows.num_rows
        if timestamp != self.timestamp or count > SHARED_PAGE_ROWS:
            return False
        if partition == own and len(self.runs) == 1:
            self.runs = ((own, count),)
            self.run_bytes = (whole or 1,)
        elif self.stage is not None or max(len(own), len(partition)) > SPREAD_CHARACTERS_MAX:
            return False
        else:
            if len(self.runs) < joined:  # So far all are of one partition.
                self.runs = tuple([(own, part.num_rows) for part in self.parts])
                self.run_bytes = (max(1, self.bytes // joined),) * joined
            self.runs += ((partition, rows.num_rows),)
            self.run_bytes += (size or 1,)
        self.parts.append(rows)
        self.bytes = whole
        return True


CHECKS_KEPT_MAX = 1_024
"""Topics whose `BatchCheck` is cached."""

_checks: BySchema[BatchCheck] = BySchema(lambda topic: BatchCheck(topic.schema), CHECKS_KEPT_MAX)
"""Cached checks: constructing one takes a third of the time of a short stream."""


class Preparer:
    """A checker and router of one topic's batches, in their producer's thread.

    Constructed once for a stream, so that work on the schema is done once.

    Args:
        topic: Topic of the batches.
        limits: Limits of bytes and partitions.
    """

    def __init__(self, topic: Topic, limits: Limits) -> None:
        self._topic = topic
        self._check = _checks.get(topic)
        self._encoder: PageEncoder | None = None
        self._partitions_max = limits.batch_partitions_max
        self._rows_max = limits.batch_rows_max
        configured = topic.config.batch_bytes_max
        self._bytes_max = min(limits.batch_bytes_max, configured or limits.batch_bytes_max)
        self._small_bytes_max = min(SMALL_BYTES_MAX, self._bytes_max)
        self._small_rows_max = min(SMALL_ROWS_MAX, self._rows_max)
        self._key_index = -1
        if topic.partition_key is not None:
            self._key_index = topic.schema.get_field_index(topic.partition_key)
        self._is_numbered = topic.config.kafka is not None
        self._time_column = topic.time_column
        self._keys: pa.Array[Any] | None = None
        """Keys of the last small batch of one partition, if the topic has a key."""
        self._partition = UNPARTITIONED
        """Partition of that batch."""

    def check_small(self, batch: pa.RecordBatch, size: int) -> Partition | None:
        """Check a batch as `prepare` does; returns its partition if that is known without routing.

        Args:
            batch: The batch; see `prepare`.
            size: Bytes of its buffers.

        Returns:
            The partition of the rows; None if the batch is empty, not small, has several rows with
            other keys than the last small batch, or times of its own, so that `prepare` must look
            at it.

        Raises:
            SchemaMismatch: Invalid data, or nulls in a non-nullable column.
            PartitionTypeMismatch: The key is too long to name a partition.
        """
        self._check.check(batch)
        if size > self._small_bytes_max or not 0 < batch.num_rows <= self._small_rows_max:
            return None
        if self._time_column is not None:
            return None
        if self._key_index >= 0:
            keys = batch.column(self._key_index)
            if self._keys is None or not self._keys.equals(keys):
                if batch.num_rows > 1 or keys.null_count or self._is_numbered:
                    return None
                (self._partition,) = partitions_of_keys(keys)
                self._keys = keys
        return self._partition

    def prepare(
        self, batch: pa.RecordBatch, options: PushOptions, *, checked: bool = False
    ) -> PreparedBatch:
        """Check and route a batch, and encode it if it is large.

        Args:
            batch: A batch whose schema has passed `batches.check_stream_schema`. Its buffers must
                not change until the end of its flush.
            options: The producer's options.
            checked: Whether `check_small` was called with it.

        Raises:
            BatchTooLarge: The batch exceeds the limits of bytes, rows or partitions.
            SchemaMismatch: Invalid data, or nulls in a non-nullable column.
            PartitionRequired: A null in the key column.
            InvalidArgument: A row does not belong to the given partition or to a numbered one of
                the topic, or an expected offset is given for rows of several partitions.
        """
        if batch.num_rows > self._rows_max:
            raise BatchTooLarge(
                f"the batch has {batch.num_rows} rows, the limit is {self._rows_max}",
                rows=batch.num_rows,
                rows_max=self._rows_max,
            )
        if not checked:
            # Before its bytes are counted, which would read past the buffers if offsets are bad.
            self._check.check(batch)
        # Counting whole buffers is faster than counting a slice's parts of them.
        size = batch.get_total_buffer_size()
        # A small slice of large buffers is copied into a page now, as it would keep all of them.
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
        check_numbers(self._topic, runs)
        # Rows of type null may have no bytes.
        run_bytes = (size or 1,) if len(runs) == 1 else bytes_of_runs(rows, runs)
        pages, page_runs = ((), ()) if small else self._encode(rows, runs, run_bytes)
        expected = None
        if options.expected_offset is not None:
            expected = _expected(self._topic, options.partition, options.expected_offset, runs)
        numbered = options.partition_sequence is not None
        joinable = small and len(runs) == 1 and expected is None and not numbered
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
            timestamp=self._timestamp(batch, options.timestamp),
            stage=options.stage,
            joinable=joinable,
            partition_sequence=options.partition_sequence,
        )

    def _timestamp(self, batch: pa.RecordBatch, given: int | None) -> int | None:
        """Return the timestamp of a batch, no earlier than `Topic.time_column` in it."""
        if self._time_column is None:
            return given
        times = batch.column(self._time_column).cast(pa.int64())
        if times.null_count == len(times):
            return given
        latest: int = pc.max(times).as_py()
        return max(given or 0, latest * 1_000)

    def _encode(
        self, rows: pa.RecordBatch, runs: tuple[Run, ...], run_bytes: tuple[int, ...]
    ) -> tuple[tuple[EncodedPage, ...], tuple[int, ...]]:
        """Encode a large batch: a page for each run if runs are large, otherwise shared pages.

        Returns:
            The pages, and the number of runs in each.
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
    """Return an expected offset with its partition."""
    if partition is not None:
        return ExpectedOffset(partition, offset)
    if topic.partition_key is None:
        return ExpectedOffset(UNPARTITIONED, offset)
    if len(runs) != 1:
        raise InvalidArgument(
            f"expected_offset is for a batch of one partition, this one has {len(runs)}"
        )
    return ExpectedOffset(runs[0][0], offset)
