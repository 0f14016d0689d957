"""The data source `wings`, from which Spark makes readers and writers, and `read`, the fast path.

Spark imports this module in every application that uses any Python data source, so all but the
class itself is imported on use.
"""

import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from wings_spark.ranges import Range


NAME = "wings"


class WingsDataSource(DataSource):
    """Topics of Wings as DataFrames.

    For options see `wings_spark.options`.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> "StructType":
        """Return the columns of the topic, or the columns named by the option `columns`."""
        from wings_spark.connection import prepare_worker
        from wings_spark.options import SparkReadOptions, is_of_table, plain_options, with_options
        from wings_spark.subscription import Subscription
        from wings_spark.types import spark_schema

        prepare_worker()
        given = plain_options(self.options)
        options = SparkReadOptions.parse(given)
        with options.server.connect() as client:
            schema = spark_schema(Subscription.checked(client, options).schema(options))
        return with_options(schema, given) if is_of_table(self.options) else schema

    def reader(self, schema: "StructType") -> "DataSourceReader":
        """Return the reader of a batch read."""
        from wings_spark.options import SparkReadOptions
        from wings_spark.reader import WingsReader

        return WingsReader(SparkReadOptions.parse(self._options_of(schema)).for_batch(), schema)

    def streamReader(self, schema: "StructType") -> "DataSourceStreamReader":  # noqa: N802
        """Return the reader of a stream."""
        from wings_spark.options import SparkReadOptions
        from wings_spark.stream import WingsStreamReader

        return WingsStreamReader(
            SparkReadOptions.parse(self._options_of(schema)).for_stream(), schema
        )

    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
        """Return the writer of a batch write."""
        from wings_core.errors import InvalidArgument
        from wings_spark.options import WriteOptions
        from wings_spark.writer import WingsWriter

        if overwrite:
            raise InvalidArgument("a topic can only be appended to: write with mode('append')")
        return WingsWriter(WriteOptions.parse(self._options_of(schema)), schema)

    def streamWriter(  # noqa: N802 - Spark's name.
        self, schema: "StructType", overwrite: bool
    ) -> "DataSourceStreamWriter":
        """Return the writer of a stream."""
        from wings_core.errors import InvalidArgument
        from wings_spark.options import WriteOptions
        from wings_spark.writer import WingsStreamWriter

        if overwrite:
            raise InvalidArgument(
                "a topic can only be appended to: use outputMode('append'), not 'complete'"
            )
        return WingsStreamWriter(WriteOptions.for_stream(self._options_of(schema)), schema)

    def _options_of(self, schema: "StructType") -> dict[str, str]:
        from wings_spark.options import options_of

        return options_of(self.options, schema)


SETTINGS = {
    "spark.sql.execution.arrow.maxBytesPerBatch": str((1 << 31) - 1),
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(65_536),
}
"""Settings with which writes reach 5.6 million rows a second, instead of 1.5 to 2.6 (measured)."""

CODEC = "spark.sql.execution.arrow.compression.codec"


def register(spark: "SparkSession") -> None:
    """Register the format `wings` with a session, and apply `SETTINGS`.

    Without this, Spark finds the format by its name, but keeps its default settings. Settings that
    the session already has are not changed.

    Args:
        spark: A session, classic or of Spark Connect.
    """
    given = dict(spark.conf.getAll)
    for name, value in SETTINGS.items():
        if name not in given:
            spark.conf.set(name, value)
    if str(given.get(CODEC, "none")).lower() == "lz4":
        warnings.warn(
            f"{CODEC} is lz4, which makes reads and writes hundreds of times slower: "
            "set it to none or zstd",
            stacklevel=2,
        )
    spark.dataSource.register(WingsDataSource)


def read(
    spark: "SparkSession",
    endpoint: str,
    topic: str,
    *,
    columns: Sequence[str] | None = None,
    filter: str | None = None,  # noqa: A002 - the contract's word.
    cold_files: bool = True,
    **options: Any,
) -> "DataFrame":
    """Return a topic as a DataFrame, as of this call, whose batches pass through `mapInArrow`.

    Spark converts and counts a data source's rows one by one; this avoids some of that work
    (measured with four columns: 14 million rows per second instead of 10), and fetches only the
    wanted columns.

    Args:
        spark: A session, classic or of Spark Connect; this process must reach the server too.
        endpoint: URL, like `grpc://host:7777`.
        topic: Full name of the topic, or an id in the default namespace.
        columns: The wanted columns, in order; None for all.
        filter: A SQL predicate over the topic's columns, evaluated on the server.
        cold_files: Whether Spark's own reader reads the rows in files of the topic's table, if it
            can reach them (files on a disk: a session on this machine). Every column may then be
            null. A query long after this call fails if a file has been deleted. If False, or with a
            `filter`, all rows are read from the server.
        options: Further options of the format `wings` for batch reads, such as `minPartitions`,
            `startingOffsets` or `token`.

    Raises:
        TopicNotFound: There is no such topic.
        InvalidArgument: An option, a column or the filter is invalid.
    """
    from wings_spark.cold_path import cold_part
    from wings_spark.options import SparkReadOptions
    from wings_spark.ranges import pack_with_holes
    from wings_spark.reader import TaskReader, planned_ranges
    from wings_spark.subscription import Subscription
    from wings_spark.types import spark_schema

    given = {name: str(value) for name, value in options.items() if value is not None}
    given |= {"endpoint": endpoint, "topic": topic}
    if columns is not None:
        given["columns"] = json.dumps(list(columns))
    if filter is not None:
        given["filter"] = filter
    wanted = SparkReadOptions.parse(given).for_batch()
    with wanted.server.connect() as client:
        subscription = Subscription.checked(client, wanted)
        schema = spark_schema(subscription.schema(wanted))
        nodes = client.locations(subscription.topics[0])
        ranges: Sequence[Range] = planned_ranges(client, subscription, wanted)
        cold: DataFrame | None = None
        if cold_files:
            cold, ranges = cold_part(spark, client, subscription.topics[0], ranges, schema, wanted)
    tasks = pack_with_holes(ranges, wanted.min_partitions, wanted.max_records_per_partition)
    reader = TaskReader.of(wanted, schema, subscription, nodes)

    def read_tasks(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        for batch in batches:
            for index in cast("list[int]", batch.column(0).to_pylist()):
                yield from reader.read(tasks[index])

    # One number for each task, each in a partition of its own.
    numbers = spark.range(0, len(tasks), 1, max(1, len(tasks)))
    hot = numbers.mapInArrow(read_tasks, schema)
    if cold is None:
        return hot
    return cold.union(hot) if tasks else cold
