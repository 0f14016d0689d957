"""Files to a topic, against Spark writing the same files to Parquet."""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

import wings_client
from benchmarks import ingest_run
from benchmarks.harness import Row, compare
from wings_core.json_rows import encode_lines
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
ROWS = 800_000
FILES = 8
CORES = 2
SECONDS_MAX = 120.0
"""For one run."""

KINDS = {
    "jsonl": ("JSON lines", FILES),
    "csv": ("CSV", FILES),
    "parquet": ("Parquet", FILES),
    "jsonl-1": ("JSON lines in one file, in sections,", 1),
}
"""By directory: what the files are, and how many there are."""

arrow: Any = pa


def run() -> Iterator[Row]:
    """Measure rows per second, from the queue's message to the visible row, and a process's own."""
    yield from ingest_run.run()
    with (
        server_process() as server,
        wings_client.connect(server.flight) as client,
        local_session(CORES) as spark,
        tempfile.TemporaryDirectory(prefix="wings-bench-") as name,
    ):
        directory = Path(name)
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
            for kind, (what, count) in KINDS.items():
                files = _write(directory / kind, kind.partition("-")[0], count)
                yield compare(
                    f"Spark, {what} to a topic, against writing them to Parquet",
                    "M rows/s",
                    0.7,
                    _ingest(client, queue, files),
                    _to_parquet(spark, directory / kind, directory / "parquet-out"),
                    runs=3,
                )
        finally:
            query.stop()
            queue.close()


def _write(directory: Path, kind: str, count: int) -> list[Path]:
    directory.mkdir()
    paths: list[Path] = []
    for file in range(count):
        path = directory / f"{file:02}.{kind}"
        rows = range(file * ROWS // count, (file + 1) * ROWS // count)
        table = arrow.table(
            {
                "id": rows,
                "customer": [f"customer-{row % 9_973}" for row in rows],
                "amount": [row % 100_000 / 100 for row in rows],
                "country": ["DE"] * len(rows),
            }
        )
        if kind == "parquet":
            pyarrow.parquet.write_table(table, path)
        elif kind == "csv":
            options = pyarrow.csv.WriteOptions(quoting_style="none")
            pyarrow.csv.write_csv(table, path, options)
        else:
            path.write_bytes(b"".join(b"".join(encode_lines(b)) for b in table.to_batches()))
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


def _to_parquet(spark: "SparkSession", files: Path, target: Path) -> Callable[[], float]:
    reader = spark.read.schema(SPARK_COLUMNS)
    read: dict[str, Callable[[str], Any]] = {
        "jsonl": reader.json,
        "csv": reader.option("header", "true").csv,
        "parquet": reader.parquet,
    }

    def measure() -> float:
        started = time.perf_counter()
        frame = read[files.name.partition("-")[0]](str(files))
        frame.write.mode("overwrite").parquet(str(target))
        return ROWS / (time.perf_counter() - started) / 1e6

    return measure
