"""A topic to Parquet by Spark, appended as the topic grows: each flight once.

    topic flights ─▶ Spark: a directory for each origin ─▶ LAKE/flights/origin=JFK/part-….parquet

A run reads what is new since the last one, writes it and ends (`availableNow`), so it can be
started by the clock. What has been read is in the checkpoint beside the data, and the directory
LAKE/flights/_spark_metadata names the files that count: a file of a batch that failed is not among
them. Spark reads the lake with `spark.read.parquet("LAKE/flights")`.

Without --endpoint it starts a server of its own, pushes half a year of made-up flights, runs,
pushes the other half, runs again, and leaves nothing (but the lake, with --lake):

    python examples/lake.py

With one, it makes one run:

    python examples/lake.py --endpoint grpc://127.0.0.1:7777 --lake ./lake
"""

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import flights
from spark_setting import FLIGHTS, push_flights, say, server_at

import wings_spark
from wings_spark.testing import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def append(spark: "SparkSession", endpoint: str, lake: Path) -> int:
    """Append to the lake what it does not have yet; return how many rows that were."""
    source = spark.readStream.format("wings").option("endpoint", endpoint).option("topic", FLIGHTS)
    departures = source.option("startingOffsets", "earliest").load()
    sink = departures.writeStream.format("parquet").partitionBy("origin")
    sink = sink.option("path", str(lake / FLIGHTS))
    sink = sink.option("checkpointLocation", str(lake / "checkpoint"))
    query = sink.trigger(availableNow=True).start()
    query.awaitTermination()
    appended = sum(progress["numInputRows"] for progress in query.recentProgress)
    rows = spark.read.parquet(str(lake / FLIGHTS)).count() if appended else 0
    say(f"appended {appended:,} flights" + (f": the lake holds {rows:,}" if rows else ""))
    return appended


def main() -> None:
    """Run once, or show two runs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--endpoint", help="of a server, like grpc://127.0.0.1:7777")
    parser.add_argument("--lake", type=Path, help="directory (a temporary one)")
    parser.add_argument(
        "--rows", type=int, default=200_000, help="flights to make up (%(default)s)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, server_at(options.endpoint) as endpoint:
        lake = options.lake or Path(directory)
        if options.endpoint is not None:
            parts = [[]]
        else:
            batches = list(flights.generate(options.rows, batch_rows=max(1, options.rows // 100)))
            parts = [batches[: len(batches) // 2], batches[len(batches) // 2 :]]
        with local_session() as spark:
            wings_spark.register(spark)
            for part in parts:
                if part:
                    push_flights(endpoint, part)
                append(spark, endpoint, lake)


if __name__ == "__main__":
    main()
