"""Batch reads in Spark's data source API.

Spark pickles a reader before `partitions`, so results of `partitions` reach the tasks only in the
partitions.

There is no `pushFilters`: Spark 4.1 to 4.3 keep the plan of a DataFrame's first query with its
filters, and give later queries of the same DataFrame only the rows that passed them.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from wings_client import Client
from wings_spark.options import SparkReadOptions
from wings_spark.positions import batch_ranges, states_of_all
from wings_spark.ranges import Range, ReadTask, TaskPartition, pack
from wings_spark.read_task import TaskReader
from wings_spark.subscription import Subscription
from wings_spark.worker import prepare_worker


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
