"""Streams in Spark's data source API.

Spark makes a reader in several processes that share nothing: one plans, one on the driver returns
offsets as long as the query runs, and the tasks read. All state of a query is in its offsets; a
reader's own state (a connection, the target of an available-now trigger, the time of the last
batch) may be lost with its process. Nothing depends on `commit` or `stop`, which may be called late
or never.
"""

from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from wings_client import Client
from wings_core.errors import InvalidArgument
from wings_core.partitions import Partition
from wings_spark.bounds import Bound
from wings_spark.options import MAX_TRIGGER_DELAY_SECONDS, SparkReadOptions
from wings_spark.ranges import Range, ReadTask, TaskPartition, pack
from wings_spark.reader import TaskReader
from wings_spark.spark_versions import (
    HAS_READ_LIMITS,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from wings_spark.stream_offsets import (
    Heads,
    StreamOffset,
    TopicOffset,
    between,
    check_nothing_lost,
    next_offsets,
    still_kept,
)
from wings_spark.subscription import Subscription, resolve, states_of_all, what_is_kept


class WingsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader that follows topics.

    Args:
        options: Options, checked for a stream.
        schema: Schema of the rows that Spark takes.

    Raises:
        WingsError: The topic does not exist or lacks a column of the schema, or an option needs a
            later version of Spark.
    """

    def __init__(self, options: SparkReadOptions, schema: StructType) -> None:
        limits = (options.max_offsets_per_trigger, options.min_offsets_per_trigger)
        if not HAS_READ_LIMITS and limits != (None, None):
            raise InvalidArgument(
                "options 'maxOffsetsPerTrigger' and 'minOffsetsPerTrigger' need Spark 4.2 or later"
            )
        self._options = options
        self._client: Client | None = None  # Opened where offsets are asked for, never pickled.
        self._heads: Heads | None = None
        self._target: StreamOffset | None = None
        self._triggered_at: float | None = None
        with options.server.connect(options.retry_timeout) as client:
            subscription = Subscription.checked(client, options)
            nodes = client.locations(subscription.topics[0])
        self._task_reader = TaskReader.of(options, schema, subscription, nodes)

    # Offsets.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name.
        """Return the offset at which a new query begins.

        Raises:
            InvalidArgument: An offset is past the log's end.
            OffsetOutOfRange: An offset is below the log's start, and `failOnDataLoss` holds.
        """
        client, options = self._connected(), self._options
        topics: dict[str, TopicOffset] = {}
        subscription = Subscription.find(client, options)
        subscription.check_bounds(options)
        for topic, states in states_of_all(client, subscription, options):
            starts = resolve(client, topic, states, options.start(Bound("latest")), "earliest")
            kept: dict[Partition, int] = {}
            for partition, state in states.items():
                left = Range(
                    topic.name, topic.uuid, partition, starts[partition], state.next_offset
                )
                found = what_is_kept(left, state.log_start_offset, options)
                kept[partition] = found.start_offset
            topics[topic.name] = TopicOffset(topic.uuid, kept)
        return StreamOffset(topics).to_json()

    def latestOffset(  # noqa: N802 - Spark's name.
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the end of the next batch: `start` itself if there is nothing to read.

        Args:
            start: The batch's begin; None in Spark 4.1, which has no limits.
            limit: Spark's limit of the batch.

        Raises:
            OffsetOutOfRange: Unread messages were deleted, and `failOnDataLoss` holds.
        """
        self._heads = Heads.ask(self._connected(), self._options)
        if start is None:
            return self._heads.offset.to_json()
        begin = StreamOffset.from_json(start)
        rows_min, rows_max = self._limits(limit)
        batch = next_offsets(begin, self._heads, self._target, rows_max, self._options)
        if batch.rows < rows_min and not self._waited_enough():
            return start
        if batch.end == begin:
            return start  # As it is: one of an earlier version may have another form.
        if batch.rows:
            self._triggered_at = monotonic()
        return batch.end.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name.
        """Return the limit in the options."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name.
        """Set the query's end to the last committed messages."""
        self._target = Heads.ask(self._connected(), self._options).offset

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name.
        """Return the log's end as of the last trigger, for the query's progress."""
        return None if self._heads is None else self._heads.offset.to_json(whole=False)

    # Reading.

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks that read from one offset to another; none if they are equal.

        Raises:
            OffsetOutOfRange: Messages were deleted or a topic was replaced since, and
                `failOnDataLoss` holds.
        """
        begun, ended = StreamOffset.from_json(start), StreamOffset.from_json(end)
        heads = Heads.ask(self._connected(), self._options)
        if self._options.fail_on_data_loss:
            check_nothing_lost(begun, ended, heads)
        kept = still_kept(between(begun, ended), heads, self._options)
        options = self._options
        tasks = pack(kept, options.min_partitions, options.max_records_per_partition)
        return [TaskPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        task = getattr(partition, "value", None)  # Spark 4.1 passes None for an empty batch.
        return self._task_reader.read(task) if isinstance(task, ReadTask) else iter(())

    def stop(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connected(self) -> Client:
        if self._client is None:
            self._client = self._options.server.connect(self._options.retry_timeout)
        return self._client

    def _limits(self, limit: ReadLimit | None) -> tuple[int, int | None]:
        """Return the least and the most rows of a batch; None: no limit."""
        if limit is None or isinstance(limit, ReadAllAvailable):
            return 0, None
        rows_min = self._options.min_offsets_per_trigger or 0
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if isinstance(limit, ReadMinRows):
            rows_min = limit.min_rows
        # An available-now query must not wait for more messages.
        return (0 if self._target is not None else rows_min), rows_max

    def _waited_enough(self) -> bool:
        if self._triggered_at is None:
            return True
        delay = self._options.max_trigger_delay
        if delay is None:
            delay = MAX_TRIGGER_DELAY_SECONDS
        return monotonic() - self._triggered_at >= delay
