"""A topic that is a table, read by Spark: `wings_spark` beside its own reader of the files."""

from collections.abc import Iterator

import wings_client
import wings_spark
from benchmarks.harness import Row, act, compare, create_topic, narrow, push
from benchmarks.spark import (
    BATCH_ROWS,
    BATCHES,
    CORES,
    SMALL_QUERIES,
    WARM_UPS,
    aggregate,
    rate,
)
from wings_server.testing import server_process
from wings_spark.testing import local_session

TOPIC = "cold"


def run() -> Iterator[Row]:
    """Measure a sum and a count over 20 million rows that are all in files of the table."""
    with (
        server_process() as server,
        server.client() as client,
        wings_client.connect(server.flight) as wings,
        local_session(CORES) as spark,
    ):
        batch = narrow(BATCH_ROWS)
        for topic, batches in ((TOPIC, BATCHES), ("small", CORES)):
            create_topic(client, topic, batch.schema, tier_after_ms=0, table="iceberg")
            push(client, topic, batch, batches)
            act(client, "maintain", topic=topic)
        files = [task.file.file_path for task in wings.table(TOPIC).scan().plan_files()]
        wings_spark.register(spark)
        for _ in range(SMALL_QUERIES):
            small = wings_spark.read(spark, server.flight, "small")
            aggregate(small, "a", rows=CORES * BATCH_ROWS)

        def by_wings() -> int:
            return aggregate(wings_spark.read(spark, server.flight, TOPIC), "a")

        def by_parquet() -> int:
            return aggregate(spark.read.parquet(*files), "a")

        for _ in range(WARM_UPS):
            by_wings()
            by_parquet()
        yield compare(
            "Spark, a topic's table, against its Parquet reader on the same files",
            "M rows/s",
            0.8,
            rate(by_wings),
            rate(by_parquet),
        )
