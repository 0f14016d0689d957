from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from fix_client import NewTopic
from pyspark import TaskContext
from pyspark.errors import PySparkException

from wings_client import Client, Topic
from wings_server.testing import RunningServer
from wings_spark.spark_versions import HAS_READ_LIMITS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@dataclass
class Copy:
    """A query from one topic to another, which can be stopped and started again."""

    spark: "SparkSession"
    endpoint: str
    checkpoint: Path
    source: Topic
    target: Topic
    queries: "list[StreamingQuery]" = field(default_factory=list["StreamingQuery"])

    def frame(self) -> "DataFrame":
        reader = self.spark.readStream.format("wings").option("endpoint", self.endpoint)
        reader = reader.option("minPartitions", "3")  # Several tasks, of which one may fail.
        return reader.option("startingOffsets", "earliest").load(self.source.name)

    def run(self, frame: "DataFrame | None" = None, mode: str = "append") -> None:
        """Copy what is there, and end."""
        writer = (self.frame() if frame is None else frame).writeStream.format("wings")
        writer = writer.option("endpoint", self.endpoint).option("topic", self.target.name)
        writer = writer.option("checkpointLocation", str(self.checkpoint)).outputMode(mode)
        query = writer.trigger(availableNow=True).start()
        self.queries.append(query)
        assert query.awaitTermination(250)

    def forget_commit(self, batch: int) -> None:
        """Leave the checkpoint as if the query had ended between a publish and its commit."""
        for name in (f"{batch}", f".{batch}.crc"):
            (self.checkpoint / "commits" / name).unlink()


@pytest.fixture
def copy(
    spark: "SparkSession", server: RunningServer, wings: Client, new_topic: NewTopic, tmp_path: Path
) -> Iterator[Copy]:
    source = new_topic("key: string", "n: int64", partition_key="key")
    columns = {"key": "string", "n": "int64"}
    target = wings.create_topic(f"{source.id}-copy", columns, "key")
    made = Copy(spark, server.flight, tmp_path / "checkpoint", source, target)
    yield made
    for query in made.queries:
        query.stop()


def push(wings: Client, topic: Topic, values: range) -> None:
    wings.push(topic, {"key": [str(n % 3) for n in values], "n": list(values)})


def values(wings: Client, topic: Topic) -> list[int]:
    return sorted(
        n
        for partition in wings.partitions(topic)
        for batch in wings.scan(topic, partition.partition)
        for n in cast("list[int]", batch.column("n").to_pylist())
    )


def stages_of(server: RunningServer, topic: Topic) -> list[str]:
    return [stage.stage for stage in server.server.log.stages.of_topic(topic.uuid)]


def test_a_batch_that_was_published_and_comes_again_is_not_written_again(
    server: RunningServer, wings: Client, copy: Copy
) -> None:
    push(wings, copy.source, range(30))
    copy.run()
    assert values(wings, copy.target) == list(range(30))
    copy.forget_commit(0)
    push(wings, copy.source, range(30, 40))
    with wings.stage(copy.target, f"spark.{copy.queries[0].id}.0.left-by-a-crash") as left:
        left.write({"key": ["0"], "n": [99]})
    copy.run()
    if not HAS_READ_LIMITS:  # Then a run is one batch, here the one that comes again.
        copy.run()
    assert values(wings, copy.target) == list(range(40))
    assert stages_of(server, copy.target) == []


def test_a_batch_that_fails_is_not_visible_and_comes_again_whole(
    server: RunningServer, wings: Client, copy: Copy, tmp_path: Path
) -> None:
    marker = tmp_path / "failed"

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if cast("Any", TaskContext.get()).partitionId() == 1 and not marker.exists():
            if cast("Any", TaskContext.get()).attemptNumber() == 1:
                marker.touch()
            raise RuntimeError("fails for as often as a task is tried")

    push(wings, copy.source, range(30))
    frame = copy.frame()
    frame = frame.mapInArrow(fail_once, frame.schema)
    with pytest.raises(PySparkException, match=r"fails for as often|Writing job failed"):
        copy.run(frame)
    assert values(wings, copy.target) == []
    copy.run(frame)
    assert values(wings, copy.target) == list(range(30))
    # Of what the first run's tasks staged, killed or not, nothing is left either.
    assert stages_of(server, copy.target) == []


def test_rows_that_do_not_fit_fail_the_query_before_any_is_staged(
    server: RunningServer, wings: Client, copy: Copy
) -> None:
    push(wings, copy.source, range(3))
    with pytest.raises(PySparkException, match=r"'other'"):
        copy.run(copy.frame().selectExpr("n", "key AS other"))
    assert stages_of(server, copy.target) == []


@pytest.mark.parametrize("mode", ["complete", "update"])
def test_output_modes_other_than_append_are_refused(wings: Client, copy: Copy, mode: str) -> None:
    push(wings, copy.source, range(3))
    counts = copy.frame().groupBy("key").count().withColumnRenamed("count", "n")
    with pytest.raises(PySparkException, match=r"(?i)append|update"):
        copy.run(counts, mode)
    assert values(wings, copy.target) == []
