"""Spark against plain pyarrow: a drain or a push by two threads, and against its Parquet reader.

Everything runs on two cores: two tasks of Spark, two threads of the baseline.
"""

import json
import tempfile
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as parquet

import wings_spark
from benchmarks.harness import (
    Row,
    act,
    at_most,
    compare,
    create_topic,
    drain,
    median_seconds,
    narrow,
    push,
    rate,
)
from wings_server.testing import server_process
from wings_spark.testing import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "narrow"
COLUMNS = ("a", "b", "c", "d")
BATCH_ROWS = 65_536
BATCHES = 305
ROWS = BATCH_ROWS * BATCHES
CORES = 2
WARM_UPS = 3
"""Runs that do not count, beside the one of each comparison: the JVM compiles what runs often."""

SMALL_QUERIES = 80
"""Queries over a few rows that come before all others.

Planning a query runs so much of Spark's code that Java goes on compiling it for a hundred queries,
on the cores that are measured here. On average of the first 30, one over a few rows took 1.15
seconds of a core in Java, after a hundred 0.2. A session compiles once, however much it reads, so
that is not counted.
"""

TRIGGERS = 200

WRITTEN_BATCHES = 154
WRITTEN_ROWS = BATCH_ROWS * WRITTEN_BATCHES
"""Of each run of a write; its topic is deleted again."""

KEYS = 10_000
KEYED_ROWS_EACH = 400
KEYED_PUSHES = 4

STREAM_ROWS = 5_000_000
"""Of one batch of the stream."""


def run() -> Iterator[Row]:
    """Measure reads, writes and a stream of up to 20 million rows, and an empty trigger."""
    with (
        server_process() as server,
        server.client() as client,
        local_session(CORES) as spark,
        tempfile.TemporaryDirectory(prefix="wings-bench-") as directory,
    ):
        batch = narrow(BATCH_ROWS)
        create_topic(client, TOPIC, batch.schema)
        push(client, TOPIC, batch, BATCHES)
        wings_spark.register(spark)
        _have_java_compile(spark, client, server.flight)
        yield from _reads(spark, client, server.flight)
        yield _against_parquet(spark, server.flight, Path(directory), batch)
        yield _over_keys(spark, client, server.flight)
        yield _write(spark, client, server.flight, batch)
        yield _topic_to_topic(spark, client, server.flight, Path(directory))
        yield _empty_trigger(server.flight)


def _have_java_compile(spark: "SparkSession", client: flight.FlightClient, endpoint: str) -> None:
    batch = narrow(1_000)
    create_topic(client, "small", batch.schema)
    push(client, "small", batch, CORES)
    for _ in range(SMALL_QUERIES):
        frame = wings_spark.read(spark, endpoint, "small", minPartitions=CORES)
        aggregate(frame, "a", rows=batch.num_rows * CORES)


def _reads(spark: "SparkSession", client: flight.FlightClient, endpoint: str) -> Iterator[Row]:
    plain = rate(lambda: _drain(client))
    for name, hold, load in (
        ("data source, 4 columns", 0.18, lambda: _load(spark, endpoint)),
        ("fast path, 4 columns", 0.25, lambda: wings_spark.read(spark, endpoint, TOPIC)),
        (
            "fast path, 1 of 4 columns",
            0.55,
            lambda: wings_spark.read(spark, endpoint, TOPIC, columns=["a"]),
        ),
    ):
        measure = rate(lambda load=load: aggregate(load(), "a"))
        for _ in range(WARM_UPS):
            measure()
        yield compare(
            f"Spark, {name}, against a plain drain of 4", "M rows/s", hold, measure, plain
        )


def _against_parquet(
    spark: "SparkSession", endpoint: str, directory: Path, batch: pa.RecordBatch
) -> Row:
    small = directory / "small.parquet"
    parquet.write_table(pa.Table.from_batches([narrow(1_000)]), small)
    for _ in range(SMALL_QUERIES):
        aggregate(spark.read.parquet(str(small)), *COLUMNS, rows=1_000)
    small.unlink()
    for part in range(CORES):
        table = pa.Table.from_batches([batch] * (BATCHES // CORES + part * (BATCHES % CORES)))
        parquet.write_table(table, directory / f"{part}.parquet")
    return compare(
        "Spark, fast path, against its Parquet reader (no bound)",
        "M rows/s",
        0.0,
        rate(lambda: aggregate(wings_spark.read(spark, endpoint, TOPIC), *COLUMNS)),
        rate(lambda: aggregate(spark.read.parquet(str(directory)), *COLUMNS)),
        runs=3,
    )


def _over_keys(spark: "SparkSession", client: flight.FlightClient, endpoint: str) -> Row:
    """Measure a read of many keys against one of the same rows in one partition."""
    each = KEYED_ROWS_EACH // KEYED_PUSHES
    batch = narrow(KEYS * each)
    keys = pa.array([key for key in range(KEYS) for _ in range(each)], pa.int64())
    batch = pa.record_batch([keys, *batch.columns[1:]], schema=batch.schema)
    fields = [{"name": name, "type": "int64"} for name in COLUMNS]
    act(client, "create-topic", topic="keyed", schema={"fields": fields}, partition_key="a")
    act(client, "create-topic", topic="unkeyed", schema={"fields": fields})
    for topic in ("keyed", "unkeyed"):
        push(client, topic, batch, KEYED_PUSHES)
    rows = KEYS * KEYED_ROWS_EACH

    def measure(topic: str) -> Callable[[], float]:
        return rate(lambda: aggregate(_load(spark, endpoint, topic), "a", rows=rows))

    return compare(
        f"Spark, {KEYS:,} keys with {KEYED_ROWS_EACH} rows each, against the same rows unkeyed",
        "M rows/s",
        0.5,
        measure("keyed"),
        measure("unkeyed"),
    )


def _write(
    spark: "SparkSession", client: flight.FlightClient, endpoint: str, batch: pa.RecordBatch
) -> Row:
    columns = [f"id + {index} AS {name}" for index, name in enumerate(COLUMNS)]
    frame = spark.range(0, WRITTEN_ROWS, 1, CORES).selectExpr(*columns)

    def write(topic: str) -> None:
        frame.write.format("wings").option("endpoint", endpoint).mode("append").save(topic)

    def push_plainly(topic: str) -> None:
        times = WRITTEN_BATCHES // CORES
        with ThreadPoolExecutor(CORES) as threads:
            for pushed in [threads.submit(push, client, topic, batch, times) for _ in range(CORES)]:
                pushed.result()

    measure = _rate_into(client, write)
    for _ in range(WARM_UPS):
        measure()
    return compare(
        "Spark, write of 4 columns, against a plain DoPut of 2 threads",
        "M rows/s",
        0.17,
        measure,
        _rate_into(client, push_plainly),
        runs=5,
    )


def _topic_to_topic(
    spark: "SparkSession", client: flight.FlightClient, endpoint: str, directory: Path
) -> Row:
    """Measure the batches of a streaming query, as it reports them, against a plain drain.

    What a query takes to start and to stop, more than a second, is not counted.
    """
    checkpoints = count()

    def stream(topic: str) -> float:
        frames = spark.readStream.format("wings").option("endpoint", endpoint)
        frames = frames.option("startingOffsets", "earliest").option("topic", TOPIC)
        frames = frames.option("maxOffsetsPerTrigger", STREAM_ROWS)
        frames = frames.option("minPartitions", CORES).load()
        writer = frames.writeStream.format("wings").option("endpoint", endpoint)
        writer = writer.option("topic", topic).trigger(availableNow=True)
        checkpoint = str(directory / f"checkpoint-{next(checkpoints)}")
        query = writer.option("checkpointLocation", checkpoint).start()
        query.awaitTermination()
        _check_written(client, topic, ROWS)
        return sum(batch["durationMs"]["triggerExecution"] for batch in query.recentProgress) / 1e3

    def measure() -> float:
        with _new_topic(client) as topic:
            return ROWS / stream(topic) / 1e6

    return compare(
        f"Spark, topic to topic, {STREAM_ROWS / 1e6:g} M rows a batch, against a plain drain",
        "M rows/s",
        0.06,
        measure,
        rate(lambda: _drain(client)),
        runs=3,
    )


def _empty_trigger(endpoint: str) -> Row:
    """Measure what Spark asks of a stream at each trigger, without Spark's own part in it."""
    from wings_spark.options import SparkReadOptions
    from wings_spark.source import WingsDataSource
    from wings_spark.stream import WingsStreamReader

    given = {"endpoint": endpoint, "topic": TOPIC}
    schema = WingsDataSource(given).schema()
    reader = WingsStreamReader(SparkReadOptions.parse(given).for_stream(), schema)
    try:
        start = reader.initialOffset()

        def trigger() -> None:
            assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
            reader.reportLatestOffset()

        trigger()
        return at_most(
            "Spark, an empty trigger of a stream, our own part",
            "ms",
            50.0,
            [1_000 * median_seconds(trigger, 1) for _ in range(TRIGGERS)],
        )
    finally:
        reader.stop()


def _load(spark: "SparkSession", endpoint: str, topic: str = TOPIC) -> "DataFrame":
    reader = spark.read.format("wings").option("endpoint", endpoint).option("topic", topic)
    return reader.option("minPartitions", str(CORES)).load()


def aggregate(frame: "DataFrame", *columns: str, rows: int = ROWS) -> int:
    """Have Spark look at every row; return how many there were."""
    (row,) = frame.selectExpr("count(*)", *(f"sum({name})" for name in columns)).collect()
    assert row[0] == rows
    return row[0]


def _drain(client: flight.FlightClient) -> int:
    command = json.dumps({"topic": TOPIC, "splits": CORES})
    info = client.get_flight_info(flight.FlightDescriptor.for_command(command))
    tickets = [found.ticket for found in info.endpoints]
    with ThreadPoolExecutor(CORES) as threads:
        return sum(threads.map(drain, [client] * len(tickets), tickets))


@contextmanager
def _new_topic(client: flight.FlightClient) -> Generator[str]:
    """Create the topic that one run writes to; it is deleted afterwards."""
    create_topic(client, "written", narrow(1).schema)
    try:
        yield "written"
    finally:
        act(client, "delete-topic", topic="written")


def _rate_into(client: flight.FlightClient, write: Callable[[str], None]) -> Callable[[], float]:
    """Return a measure as `rate` does, of a call that writes `WRITTEN_ROWS` to a new topic."""

    def measure() -> float:
        with _new_topic(client) as topic:

            def written() -> int:
                write(topic)
                return WRITTEN_ROWS

            measured = rate(written)()
            _check_written(client, topic, WRITTEN_ROWS)
            return measured

    return measure


def _check_written(client: flight.FlightClient, topic: str, rows: int) -> None:
    states: Any = act(client, "partition-states", topic=topic)
    assert states[0]["next_offset"] == rows
