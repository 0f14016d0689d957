"""Batch reads in Spark's data source API, and the read of one task of any query.

Spark pickles a reader before `partitions`, so results of `partitions` reach the tasks only in the
partitions.

There is no `pushFilters`: Spark 4.1 to 4.3 keep the plan of a DataFrame's first query with its
filters, and give later queries of the same DataFrame only the rows that passed them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from wings_client import Client
from wings_client.ranges import read_ranges
from wings_core.contracts.reads import PartitionEntry
from wings_core.contracts.tickets import ScanTicket
from wings_core.errors import OffsetOutOfRange, TopicNotFound
from wings_core.partitions import JsonScalar, partition_of_value, partition_value
from wings_spark.connection import ServerAccess, prepare_worker
from wings_spark.options import SparkReadOptions, tell_of_growth
from wings_spark.ranges import Range, ReadTask, TaskPartition, pack
from wings_spark.subscription import (
    TOPIC_COLUMN,
    Subscription,
    batch_ranges,
    data_loss,
    states_of_all,
    topic_replaced,
)
from wings_spark.types import SchemaConverter, arrow_schema


class WingsReader(DataSourceReader):
    """A reader of the messages that are committed when the query is planned.

    Args:
        options: Options, checked for a batch read.
        schema: Schema of the rows that Spark takes.

    Raises:
        WingsError: The topic does not exist, or lacks a column of the schema.
    """

    def __init__(self, options: SparkReadOptions, schema: StructType) -> None:
        prepare_worker()
        self._options = options
        with options.server.connect(options.retry_timeout) as client:
            self._subscription = Subscription.checked(client, options)
            nodes = client.locations(self._subscription.topics[0])
        self._task_reader = TaskReader.of(options, schema, self._subscription, nodes)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the query's tasks, with ends as of this call."""
        with self._options.server.connect(self._options.retry_timeout) as client:
            tasks = plan(client, self._subscription, self._options)
        # Spark accepts a list only.
        return [TaskPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task; none for an empty query."""
        task = getattr(partition, "value", None)  # Spark 4.1 passes None for an empty query.
        return self._task_reader.read(task) if isinstance(task, ReadTask) else iter(())


@dataclass(frozen=True, slots=True)
class TaskReader:
    """A reader of any task of one query, pickled to the tasks."""

    server: ServerAccess
    schema: StructType
    """Schema of the rows that Spark takes."""
    columns: tuple[str, ...]
    """Columns of the topic to request from the server."""
    system_columns: bool
    filter: str | None
    fail_on_data_loss: bool
    nodes: tuple[str, ...] = ()
    """Endpoints of the cluster's nodes at planning, among which tasks are distributed."""
    retry_timeout: float | None = None
    """Time of retries in seconds; see `ServerAccess.connect`."""
    versions: Mapping[str, int] = field(default_factory=dict[str, int])
    """Versions of the topics' schemas at planning, by UUID, which all tasks read. A stream gets new
    columns when it is restarted."""

    @classmethod
    def of(
        cls,
        options: SparkReadOptions,
        schema: StructType,
        subscription: Subscription,
        nodes: tuple[str, ...] = (),
    ) -> "TaskReader":
        """Return the reader of a query.

        Args:
            options: Options of the user.
            schema: Schema of the rows that Spark takes.
            subscription: The topics and columns to read.
            nodes: Endpoints of the cluster's nodes; empty for a single server.

        Raises:
            SchemaMismatch: The schema has a column that the topic lacks, or a type that the topic's
                column cannot be converted to.
        """
        available = subscription.all_columns(options)
        tell_of_growth(schema, lambda: subscription.schema(options))
        SchemaConverter(available, arrow_schema(schema))  # Raises at planning.
        columns = [name for name in schema.names if not name.startswith("__")]
        return cls(
            server=options.server,
            schema=schema,
            # A ticket must name at least one column.
            columns=tuple(columns or subscription.topics[0].schema.names[:1]),
            system_columns=len(columns) < len(schema.names),
            filter=options.filter,
            fail_on_data_loss=options.fail_on_data_loss,
            nodes=nodes,
            retry_timeout=options.retry_timeout,
            versions={topic.uuid: topic.schema_version for topic in subscription.topics},
        )

    def read(self, task: ReadTask) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task, in order of offset within each partition.

        Raises:
            OffsetOutOfRange: The messages or their topic were deleted, and `failOnDataLoss` holds;
                for ranges from `earliest`, only if the topic was deleted.
            SchemaMismatch: A value does not fit the type requested by the user.
        """
        prepare_worker()
        target = arrow_schema(self.schema)
        converter: SchemaConverter | None = None
        with self.server.connect(self.retry_timeout, nodes=self.nodes) as client:
            if not self._is_there(client, task):
                return
            for batch in self._batches(client, task):
                if converter is None:
                    constants = {TOPIC_COLUMN: task.topic}
                    converter = SchemaConverter(batch.schema, target, constants)
                yield converter.convert(batch)
            # Tickets name a topic by name: if it was replaced meanwhile, the rows are another
            # topic's.
            self._is_there(client, task)

    def _is_there(self, client: Client, task: ReadTask) -> bool:
        """Return whether a task's topic is still the planned one."""
        try:
            if client.topic(task.topic).uuid == task.uuid:
                return True
        except TopicNotFound:
            pass
        if self.fail_on_data_loss:
            raise topic_replaced(task.topic)
        return False

    def _batches(self, client: Client, task: ReadTask) -> Iterator[pa.RecordBatch]:
        left = {partition_value(partition): (start, end) for partition, start, end in task.spans}
        shrinks = False
        # Each pass reduces the rest, or raises an error.
        while left:
            try:
                if shrinks:
                    left = self._still_kept(client, task, left)
                for batch, reached in self._chunks(client, task, left):
                    for value, end_offset in reached:
                        left[value] = (end_offset + 1, left[value][1])
                    yield batch
                return
            except TopicNotFound as error:
                if self.fail_on_data_loss:
                    raise topic_replaced(task.topic) from error
                return
            except OffsetOutOfRange as error:
                value = error.facts.get("partition") if len(left) > 1 else next(iter(left))
                lost = left[value][0]
                log_start_offset = int(error.log_start_offset)
                is_loss = self.fail_on_data_loss and not task.clamps
                if is_loss or log_start_offset <= lost:
                    partition = partition_of_value(value)
                    raise data_loss(task.topic, partition, lost, log_start_offset) from error
                left[value] = (log_start_offset, left[value][1])
                shrinks = True

    def _chunks(
        self, client: Client, task: ReadTask, left: dict[JsonScalar, tuple[int, int]]
    ) -> Iterator[tuple[pa.RecordBatch, Iterable[tuple[JsonScalar, int]]]]:
        """Yield batches, each with the partitions of its rows and their last offsets."""
        ticket = ScanTicket(
            topic=task.topic,
            schema_version=self.versions.get(task.uuid),
            columns=self.columns,
            filter=self.filter,
            system_columns=self.system_columns,
        )
        if len(left) == 1:
            ((value, (start, end)),) = left.items()
            ticket = ticket.model_copy(
                update={"partition": value, "offset": start, "end_offset": end}
            )
            for chunk in client.read_ticket(ticket):
                yield chunk.batch, [(value, chunk.end_offset)]
            return
        entries = [PartitionEntry(value, start, end) for value, (start, end) in left.items()]
        ticket = ticket.model_copy(update={"partitions": tuple(entries)})
        for batch, ranges in read_ranges(client, ticket):
            yield batch, [(each.partition, each.end_offset) for each in ranges]

    def _still_kept(
        self, client: Client, task: ReadTask, left: dict[JsonScalar, tuple[int, int]]
    ) -> dict[JsonScalar, tuple[int, int]]:
        """Return the part of the rest that the log still holds."""
        starts = {
            state.partition: state.log_start_offset for state in client.partitions(task.topic)
        }
        found = {
            value: (max(start, starts.get(value, 0)), end) for value, (start, end) in left.items()
        }
        return {value: (start, end) for value, (start, end) in found.items() if start < end}


def plan(client: Client, subscription: Subscription, options: SparkReadOptions) -> list[ReadTask]:
    """Return the tasks of a batch read, with ranges as of this call.

    Raises:
        InvalidArgument: A position is past a log's end, or names a topic or partition that the
            query does not read.
        OffsetOutOfRange: A start is below a log's start, and `failOnDataLoss` holds.
    """
    ranges = planned_ranges(client, subscription, options)
    return pack(ranges, options.min_partitions, options.max_records_per_partition)


def planned_ranges(
    client: Client, subscription: Subscription, options: SparkReadOptions
) -> list[Range]:
    """Return the ranges of a batch read, as of this call; raises like `plan`."""
    subscription.check_bounds(options)
    return [
        each
        for topic, states in states_of_all(client, subscription, options)
        for each in batch_ranges(client, topic, states, options)
    ]
