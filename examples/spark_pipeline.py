"""Spark from topic to topic, exactly once: how late flights leave, by origin and week.

    topic flights ─▶ Spark: windows of a week, by origin ─▶ topic delays

Kill it whenever you like and start it again with the same --checkpoint: the topic delays holds what
it would hold without. Spark's checkpoint knows which flights each batch has read; the tasks stage
their rows in Wings, durable and invisible, and the driver publishes those of a batch in one call,
under the query's id and the batch's number. A batch that comes again after a crash is answered with
what was published the first time.

Without --endpoint it starts a server of its own, pushes a year of made-up flights, shows the
result, and leaves nothing:

    python examples/spark_pipeline.py

With one, it reads the flights that are there, as a job that is started again and again would:

    python examples/spark_pipeline.py --endpoint grpc://127.0.0.1:7777 --checkpoint ./delays
"""

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import flights
from spark_setting import FLIGHTS, push_flights, say, server_at

import wings_client
import wings_spark
from wings_spark.testing import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELAYS = "delays"

COLUMNS = {
    "origin": "string not null",
    "week": "timestamp[us, tz=UTC] not null",
    "flights": "int64 not null",
    "late": "int64 not null",
    "mean_delay": "double",
    "max_delay": "int32",
}
"""Of the topic that is written: one row for each origin and week."""

LATENESS = "1 day"
"""A week is complete when flights of this much later have been read."""


def statistics(departures: "DataFrame") -> "DataFrame":
    """Return a row for each origin and week, once the week is complete."""
    from pyspark.sql import functions as f

    weekly = departures.withWatermark("date", LATENESS).groupBy(
        "origin", f.window("date", "7 days")
    )
    found = weekly.agg(
        f.count("*").alias("flights"),
        f.count_if(f.col("delay") > 15).alias("late"),
        f.avg("delay").alias("mean_delay"),
        f.max("delay").alias("max_delay"),
    )
    # Columns are found by name; their order is of no matter.
    return found.withColumn("week", f.col("window.start")).drop("window")


def run(
    spark: "SparkSession", endpoint: str, target: str, checkpoint: Path, batch_rows: int
) -> None:
    """Read what flights there are, from where the checkpoint ends, and write their statistics."""
    source = spark.readStream.format("wings").option("endpoint", endpoint).option("topic", FLIGHTS)
    source = source.option("startingOffsets", "earliest").option("columns", "date,delay,origin")
    departures = source.option("maxOffsetsPerTrigger", batch_rows).load()
    sink = statistics(departures).writeStream.format("wings").option("endpoint", endpoint)
    sink = sink.option("topic", target).option("checkpointLocation", str(checkpoint))
    query = sink.trigger(availableNow=True).start()
    query.awaitTermination()
    for progress in query.recentProgress:
        say(f"batch {progress['batchId']}: read {progress['numInputRows']:,} flights")


def show(endpoint: str, target: str) -> None:
    """Print what is in the topic of statistics."""
    with wings_client.connect(endpoint) as client:
        parts = client.partitions(target)
        rows = [
            row
            for part in parts
            for batch in client.scan(target, part.partition)
            for row in batch.to_pylist()
        ]
    say(f"the topic {target} holds {len(rows):,} rows, of {len(parts)} origins; the worst weeks:")
    for row in sorted(rows, key=lambda row: -row["late"] / row["flights"])[:5]:
        share = row["late"] / row["flights"]
        say(
            f"    {row['origin']} from {row['week']:%Y-%m-%d}: {share:.0%} of {row['flights']} late"
        )


def main() -> None:
    """Run the pipeline."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--endpoint", help="of a server, like grpc://127.0.0.1:7777")
    parser.add_argument("--target", default=DELAYS, help="topic that is written (%(default)s)")
    parser.add_argument("--checkpoint", type=Path, help="directory (a temporary one)")
    parser.add_argument("--batch-rows", type=int, default=50_000, help="of a batch (%(default)s)")
    parser.add_argument(
        "--rows", type=int, default=200_000, help="flights to make up (%(default)s)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, server_at(options.endpoint) as endpoint:
        if options.endpoint is None:
            push_flights(endpoint, list(flights.generate(options.rows)))
        with wings_client.connect(endpoint) as client:
            client.create_topic(options.target, COLUMNS, "origin", if_not_exists=True)
        with local_session() as spark:
            wings_spark.register(spark)
            checkpoint = options.checkpoint or Path(directory) / "checkpoint"
            run(spark, endpoint, options.target, checkpoint, options.batch_rows)
        show(endpoint, options.target)


if __name__ == "__main__":
    main()
