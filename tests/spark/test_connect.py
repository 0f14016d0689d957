"""The same over Spark Connect, by a client without Java: one process has one kind of session."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from fix_client import NewTopic

from wings_client import Client
from wings_server.testing import RunningServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(300)]

PROGRAM = """
import json, sys, tempfile

import wings_spark
from pyspark.sql import SparkSession

remote, endpoint, topic, copy = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
wings_spark.register(spark)
found = {"session": type(spark).__module__}

def reader(frames):
    return frames.format("wings").option("endpoint", endpoint).option("topic", topic)

found["batch"] = reader(spark.read).option("minPartitions", 2).load().agg({"n": "sum"}).first()[0]
fast = wings_spark.read(spark, endpoint, topic, columns=["n"], filter="n >= 990")
found["fast"] = sorted(row["n"] for row in fast.collect())
with tempfile.TemporaryDirectory() as directory:
    frames = reader(spark.readStream).option("startingOffsets", "earliest")
    frames = frames.option("maxOffsetsPerTrigger", 600).load()
    query = (
        frames.writeStream.format("memory").queryName("read")
        .option("checkpointLocation", directory).trigger(availableNow=True).start()
    )
    assert query.awaitTermination(250)
    found["stream"] = spark.table("read").agg({"n": "sum"}).first()[0]
with tempfile.TemporaryDirectory() as directory:
    writer = reader(spark.read).load().write.format("wings").option("endpoint", endpoint)
    writer.mode("append").save(copy)
    query = (
        reader(spark.readStream).option("startingOffsets", "earliest").load()
        .writeStream.format("wings").option("endpoint", endpoint).option("topic", copy)
        .option("checkpointLocation", directory).trigger(availableNow=True).start()
    )
    assert query.awaitTermination(250)
print("found", json.dumps(found))
spark.stop()
"""


@pytest.fixture
def remote(spark: "SparkSession") -> Iterator[str]:
    """Serve Spark Connect from the Java of the tests' session; return its address."""
    pytest.importorskip("grpc_status")
    java = cast("Any", spark)._jvm
    package = java.org.apache.spark.sql.connect.service
    service = getattr(getattr(package, "SparkConnectService$"), "MODULE$")  # Scala's one object.
    service.start(cast("Any", spark.sparkContext)._jsc.sc())
    yield f"sc://127.0.0.1:{service.localPort()}"
    service.stop(java.scala.Option.empty(), java.scala.Option.empty())


def test_reads_writes_and_streams_work_over_spark_connect(
    remote: str, wings: Client, new_topic: NewTopic, server: RunningServer
) -> None:
    topic = new_topic()
    wings.push(topic, pa.table({"n": pa.array(range(1_000))}))
    copy = wings.create_topic(f"{topic.id}-copy", {"n": "int64"})
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, remote, server.flight, topic.id, copy.id],
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4_000:]
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("found ")]
    found = json.loads(line.removeprefix("found "))
    assert found["session"].startswith("pyspark.sql.connect")
    assert found["batch"] == found["stream"] == sum(range(1_000))
    assert found["fast"] == list(range(990, 1_000))
    copied = pa.Table.from_batches(wings.scan(copy)).column("n").to_pylist()
    assert Counter(copied) == dict.fromkeys(range(1_000), 2)
