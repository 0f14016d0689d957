"""Batch reads as Spark's data source API has them.

Spark pickles a reader after `pushFilters` and before `partitions`, so what `partitions` determines
reaches the tasks in the partitions alone.
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

import wings_client
from wings_client import Client
from wings_core.errors import InvalidFilter
from wings_spark.filters import pushable
from wings_spark.options import ReadOptions
from wings_spark.positions import batch_ranges, states_of_all
from wings_spark.ranges import Range, RangePartition, split
from wings_spark.read_range import RangeReader, both
from wings_spark.subscription import Subscription
from wings_spark.worker import prepare_worker


def task_ranges(client: Client, subscription: Subscription, options: ReadOptions) -> list[Range]:
    """Return the ranges of a batch read, as of this call, one for each task.

    Raises:
        InvalidArgument: A position is past a log's end, or of a topic or partition that the query
            does not read.
        OffsetOutOfRange: A start is below a log's start, and `failOnDataLoss` holds.
    """
    subscription.check_bounds(options)
    ranges = [
        each
        for topic, states in states_of_all(client, subscription, options)
        for each in batch_ranges(client, topic, states, options)
    ]
    return split(ranges, options.min_partitions)


class WingsReader(DataSourceReader):
    """Reads what is committed when the query is planned.

    Args:
        options: Checked for a batch read.
        schema: Of the rows that Spark takes.

    Raises:
        WingsError: The topic does not exist, or lacks a column of the schema.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        prepare_worker()
        self.options = options
        self.schema = schema
        with wings_client.connect(options.endpoint) as client:
            self._subscription = Subscription.checked(client, options)
            self._nodes = client.locations(self._subscription.topics[0])
        self.range_reader = RangeReader.of(options, schema, self._subscription, nodes=self._nodes)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges of the query's tasks, whose ends are fixed by this call."""
        with wings_client.connect(self.options.endpoint) as client:
            ranges = task_ranges(client, self._subscription, self.options)
        # Spark accepts a list only.
        return [RangePartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range; nothing if the query has no ranges."""
        part = getattr(partition, "value", None)  # Spark 4.1 passes None for an empty query.
        return self.range_reader.read(part) if isinstance(part, Range) else iter(())


class PushingReader(WingsReader):
    """A reader that pushes filters to the server.

    A class of its own, since Spark rejects a reader with `pushFilters` while the setting
    `spark.sql.python.filterPushdown.enabled` is off, its default.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name.
        """Push the filters that mean the same on the server, and return the others.

        Raises:
            WingsError: The server could not be reached.
        """
        topic = self._subscription.topics[0]
        pushed, rest = pushable(filters, self.schema, topic.schema)
        if pushed is None:
            return rest
        try:
            with wings_client.connect(self.options.endpoint) as client:
                client.scan_tickets(
                    topic, offset="latest", filter=both(self.options.filter, pushed)
                )
        except InvalidFilter:
            return filters  # Together with the user's own, longer than the server's limit.
        self.range_reader = RangeReader.of(
            self.options, self.schema, self._subscription, pushed, self._nodes
        )
        return rest
