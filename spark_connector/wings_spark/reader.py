"""Batch reads as Spark's data source API has them.

Spark pickles a reader before it asks for partitions, so what `partitions` finds out reaches the
tasks in the partitions alone; what `pushFilters` finds out is in the reader by then.
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
    """Return what a batch read reads, as of this call, cut to tasks.

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
        WingsError: The topic or the schema is not there as asked for.
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
        """Return the ranges of the query's tasks: their ends are fixed here, for all of them."""
        with wings_client.connect(self.options.endpoint) as client:
            ranges = task_ranges(client, self._subscription, self.options)
        # Spark takes nothing but a list.
        return [RangePartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range; of none, where the query has none."""
        part = getattr(partition, "value", None)  # Spark 4.1 gives None itself for none.
        return self.range_reader.read(part) if isinstance(part, Range) else iter(())


class PushingReader(WingsReader):
    """A reader that has the server filter.

    A class of its own, since Spark fails a reader that takes filters where the setting
    `spark.sql.python.filterPushdown.enabled` is off, as it is by default.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name.
        """Take the filters that the server evaluates just as Spark would, and return the others.

        Raises:
            WingsError: The server does not answer.
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
            return filters  # With the user's own, it is more than the server takes of one.
        self.range_reader = RangeReader.of(
            self.options, self.schema, self._subscription, pushed, self._nodes
        )
        return rest
