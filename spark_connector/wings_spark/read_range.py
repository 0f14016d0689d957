"""One task's read: a range of the log as batches of Spark's schema."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructType

import wings_client
from wings_client import Client
from wings_core.contracts.tickets import ScanTicket
from wings_core.errors import OffsetOutOfRange, TopicNotFound
from wings_core.partitions import partition_value
from wings_spark.options import ReadOptions
from wings_spark.positions import data_loss, topic_replaced
from wings_spark.ranges import Range
from wings_spark.subscription import TOPIC_COLUMN, Subscription
from wings_spark.to_spark_schema import SchemaConverter, arrow_schema
from wings_spark.worker import prepare_worker


def both(filter: str | None, pushed: str | None) -> str | None:  # noqa: A002 - the contract's word.
    """Return the conjunction of two predicates, either of which may be None."""
    # One alone is not put into brackets, which might make it longer than the server's limit.
    return f"({filter}) AND ({pushed})" if filter and pushed else filter or pushed


@dataclass(frozen=True, slots=True)
class RangeReader:
    """Reads any range of one query; goes to the tasks pickled."""

    endpoint: str
    schema: StructType
    """Of the rows that Spark takes."""
    columns: tuple[str, ...]
    """Of the topic, as asked for on the wire."""
    system_columns: bool
    filter: str | None
    fail_on_data_loss: bool
    nodes: tuple[str, ...] = ()
    """Endpoints of a cluster's nodes at planning, over which tasks are spread."""

    @classmethod
    def of(
        cls,
        options: ReadOptions,
        schema: StructType,
        subscription: Subscription,
        pushed: str | None = None,
        nodes: tuple[str, ...] = (),
    ) -> "RangeReader":
        """Return the reader of a query.

        Args:
            options: The user's.
            schema: Of the rows that Spark takes.
            subscription: The topics and columns that are read.
            pushed: A predicate besides the user's.
            nodes: Of the cluster; empty for a single server.

        Raises:
            SchemaMismatch: The schema has a column that the topic lacks, or a type that the topic's
                cannot become.
        """
        available = subscription.all_columns(options)
        SchemaConverter(available, arrow_schema(schema))  # Raises at planning.
        columns = [name for name in schema.names if not name.startswith("__")]
        return cls(
            endpoint=options.endpoint,
            schema=schema,
            # A ticket cannot ask for no column at all.
            columns=tuple(columns or subscription.topics[0].schema.names[:1]),
            system_columns=len(columns) < len(schema.names),
            filter=both(options.filter, pushed),
            fail_on_data_loss=options.fail_on_data_loss,
            nodes=nodes,
        )

    def read(self, part: Range) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range, in order of offset.

        Raises:
            OffsetOutOfRange: They, or their topic, were deleted, and `failOnDataLoss` holds.
            SchemaMismatch: A value does not fit the type that the user asked for.
        """
        prepare_worker()
        target = arrow_schema(self.schema)
        converter: SchemaConverter | None = None
        with wings_client.connect([*self.nodes, self.endpoint]) as client:
            if not self._is_there(client, part):
                return
            for batch in self._batches(client, part):
                if converter is None:
                    constants = {TOPIC_COLUMN: part.topic}
                    converter = SchemaConverter(batch.schema, target, constants)
                yield converter.convert(batch)
            # Tickets name a topic by name: the rows are another's if it was replaced meanwhile.
            self._is_there(client, part)

    def ticket(self, part: Range) -> ScanTicket:
        """Return the ticket that reads a range."""
        return ScanTicket(
            topic=part.topic,
            partition=partition_value(part.partition),
            offset=part.start_offset,
            end_offset=part.end_offset,
            columns=self.columns,
            filter=self.filter,
            system_columns=self.system_columns,
        )

    def _is_there(self, client: Client, part: Range) -> bool:
        """Tell whether a range's topic is the one that was planned."""
        try:
            if client.topic(part.topic).uuid == part.uuid:
                return True
        except TopicNotFound:
            pass
        if self.fail_on_data_loss:
            raise topic_replaced(part.topic)
        return False

    def _batches(self, client: Client, part: Range) -> Iterator[pa.RecordBatch]:
        ticket = self.ticket(part)
        next_offset = part.start_offset
        # Each iteration begins at a later offset, so there are no more than rows.
        while next_offset < part.end_offset:
            try:
                ticket = ticket.model_copy(update={"offset": next_offset})
                for chunk in client.read_ticket(ticket):
                    next_offset = chunk.end_offset + 1
                    yield chunk.batch
                return
            except TopicNotFound as error:
                if self.fail_on_data_loss:
                    raise topic_replaced(part.topic) from error
                return
            except OffsetOutOfRange as error:
                log_start_offset = int(error.log_start_offset)
                if self.fail_on_data_loss or log_start_offset <= next_offset:
                    raise data_loss(
                        part.topic, part.partition, next_offset, log_start_offset
                    ) from error
                next_offset = log_start_offset
