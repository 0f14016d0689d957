"""The read of one task: ranges of a log, in one stream, as batches in Spark's schema."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.types import StructType

from wings_client import Client
from wings_client.ranges import read_ranges
from wings_core.contracts.reads import PartitionEntry
from wings_core.contracts.tickets import ScanTicket
from wings_core.errors import OffsetOutOfRange, TopicNotFound
from wings_core.partitions import JsonScalar, partition_of_value, partition_value
from wings_spark.connection import ServerAccess
from wings_spark.options import SparkReadOptions
from wings_spark.positions import data_loss, topic_replaced
from wings_spark.ranges import ReadTask
from wings_spark.subscription import TOPIC_COLUMN, Subscription
from wings_spark.table_options import tell_of_growth
from wings_spark.to_spark_schema import SchemaConverter, arrow_schema
from wings_spark.worker import prepare_worker


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
