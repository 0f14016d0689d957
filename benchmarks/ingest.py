"""Files to a topic, against Spark writing the same files to Parquet."""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import wings_client
from benchmarks.harness import Row, compare
from wings_core.queue.sqlite import SqliteQueue
from wings_server.testing import server_process
from wings_spark.ingest.run import start
from wings_spark.ingest.settings import SourceSettings
from wings_spark.testing import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from wings_client import Client

COLUMNS = {"id": "int64", "customer": "string", "amount": "double", "country": "string"}
SPARK_COLUMNS = "id bigint, customer string, amount double, country string"
FILES = 8
FILE_ROWS = 100_000
ROWS = FILES * FILE_ROWS
CORES = 2
SECONDS_MAX = 120.0
"""For one run."""


def run() -> Iterator[Row]:
    """Measure the rows per second of JSON lines, from the queue's message to the visible row."""
    with (
        server_process() as server,
        wings_client.connect(server.flight) as client,
        local_session(CORES) as spark,
        tempfile.TemporaryDirectory(prefix="wings-bench-") as name,
    ):
        directory = Path(name)
        files = _write(directory)
        client.create_topic("orders", COLUMNS)
        settings = SourceSettings.parse(
            {
                "name": "orders",
                "checkpoint": str(directory / "checkpoint"),
                "queue": {"kind": "sqlite", "path": str(directory / "queue"), "wait_seconds": 0.1},
                "target": {"endpoint": server.flight, "topic": "orders"},
                "limits": {"trigger_seconds": 0.1},
                "files": {"dedup_key": "uri+version"},
            },
            "bench",
        )
        queue = SqliteQueue(directory / "queue")
        query = start(spark, settings)
        try:
            yield compare(
                "Spark, files of JSON lines to a topic, against writing them to Parquet",
                "M rows/s",
                0.7,
                _ingest(client, queue, files),
                _to_parquet(spark, directory),
                runs=3,
            )
        finally:
            query.stop()
            queue.close()


def _write(directory: Path) -> list[Path]:
    (directory / "files").mkdir()
    paths: list[Path] = []
    for file in range(FILES):
        path = directory / "files" / f"{file:02}.jsonl"
        with path.open("w") as out:
            for row in range(file * FILE_ROWS, (file + 1) * FILE_ROWS):
                out.write(
                    f'{{"id": {row}, "customer": "customer-{row % 9_973}", '
                    f'"amount": {row % 100_000 / 100}, "country": "DE"}}\n'
                )
        paths.append(path)
    return paths


def _ingest(client: "Client", queue: SqliteQueue, files: list[Path]) -> Callable[[], float]:
    runs = iter(range(1_000))

    def measure() -> float:
        version = str(next(runs))
        (state,) = client.partitions("orders")
        wanted = state.next_offset + ROWS
        started = time.perf_counter()
        queue.send(
            json.dumps({"uri": str(path), "version": version, "size": path.stat().st_size})
            for path in files
        )
        client.fetch("orders", offset=wanted - 1, timeout=SECONDS_MAX)
        seconds = time.perf_counter() - started
        (state,) = client.partitions("orders")
        assert state.next_offset == wanted
        return ROWS / seconds / 1e6

    return measure


def _to_parquet(spark: "SparkSession", directory: Path) -> Callable[[], float]:
    def measure() -> float:
        started = time.perf_counter()
        frame = spark.read.schema(SPARK_COLUMNS).json(str(directory / "files"))
        frame.write.mode("overwrite").parquet(str(directory / "parquet"))
        return ROWS / (time.perf_counter() - started) / 1e6

    return measure
