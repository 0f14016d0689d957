"""The fast path: a batch read that passes batches to Spark through `mapInArrow`.

Spark converts and counts a data source's rows one by one; this avoids some of that work (measured
with four columns: 14 million rows per second instead of 10), and fetches only the wanted columns.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from wings_spark.ranges import Range


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
    """Return a topic as a DataFrame, as of this call.

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
    import json

    from wings_spark.cold_path import cold_part
    from wings_spark.options import SparkReadOptions
    from wings_spark.ranges import pack_with_holes
    from wings_spark.read_task import TaskReader
    from wings_spark.reader import planned_ranges
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
