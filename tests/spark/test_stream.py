import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fix_client import NewTopic
from fix_server import Trim

from wings_client import Client, Topic
from wings_server.testing import RunningServer
from wings_spark.spark_versions import HAS_READ_LIMITS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

needs_limits = pytest.mark.skipif(not HAS_READ_LIMITS, reason="Spark 4.1 has no limits")


@dataclass
class Stream:
    """A query from a topic into a list of batches, which can be stopped and started again."""

    spark: "SparkSession"
    endpoint: str
    checkpoint: Path
    batches: list[tuple[int, list[int]]] = field(default_factory=list[tuple[int, list[int]]])
    """Id and values of `n` of each batch, in the order of running."""
    queries: "list[StreamingQuery]" = field(default_factory=list["StreamingQuery"])

    def start(self, topic: Topic | None = None, *, once: bool = True, **options: object) -> Any:
        reader = self.spark.readStream.format("wings").option("endpoint", self.endpoint)
        if topic is not None:
            reader = reader.option("topic", topic.name)
        for name, value in options.items():
            reader = reader.option(name, str(value))
        writer = reader.load().writeStream.foreachBatch(self._keep)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        if once:
            writer = writer.trigger(availableNow=True)
        query = writer.start()
        self.queries.append(query)
        return query

    def run(self, topic: Topic | None = None, **options: object) -> "StreamingQuery":
        """Read what is there, and end."""
        query = self.start(topic, once=True, **options)
        assert query.awaitTermination(250)
        return query

    def _keep(self, frame: "DataFrame", batch: int) -> None:
        self.batches.append((batch, sorted(row["n"] for row in frame.select("n").collect())))

    @property
    def values(self) -> list[int]:
        return sorted(n for _, found in self.batches for n in found)


@pytest.fixture
def stream(spark: "SparkSession", server: RunningServer, tmp_path: Path) -> Iterator[Stream]:
    made = Stream(spark, server.flight, tmp_path / "checkpoint")
    yield made
    for query in made.queries:
        query.stop()


def test_a_stream_goes_on_from_its_checkpoint(
    wings: Client, new_topic: NewTopic, stream: Stream
) -> None:
    topic = new_topic()
    wings.push(topic, {"n": list(range(10))})
    stream.run(topic, startingOffsets="earliest")
    assert stream.values == list(range(10))
    wings.push(topic, {"n": list(range(10, 30))})
    stream.run(topic, startingOffsets="earliest")
    assert stream.values == list(range(30))


def test_a_checkpoint_of_many_partitions_is_small_and_one_of_an_earlier_version_goes_on(
    wings: Client, new_topic: NewTopic, stream: Stream
) -> None:
    topic = new_topic("key: int64", "n: int64", partition_key="key")
    keys = list(range(1_500))
    wings.push(topic, {"key": keys, "n": keys})
    stream.run(topic, startingOffsets="earliest")
    (number,) = [batch for batch, _ in stream.batches]
    kept = stream.checkpoint / "offsets" / str(number)
    *lines, packed = kept.read_text(encoding="utf-8").splitlines()
    assert len(packed) < 2_000
    # As an earlier version wrote it: each partition by its value.
    plain = {topic.name: {str(key): 1 for key in keys}, "uuids": {topic.name: topic.uuid}}
    kept.write_text("\n".join([*lines, json.dumps(plain)]), encoding="utf-8")
    (kept.parent / f".{number}.crc").unlink()
    for first in (1_500, 1_502):
        wings.push(topic, {"key": [7, first], "n": [first, first + 1]})
        stream.run(topic, startingOffsets="earliest")
    assert stream.values == list(range(1_504))


@needs_limits
def test_no_trigger_reads_more_than_its_limit(
    wings: Client, new_topic: NewTopic, stream: Stream
) -> None:
    topic = new_topic("key: string", "n: int64", partition_key="key")
    wings.push(topic, {"key": ["a"] * 20 + ["b"] * 5, "n": list(range(25))})
    stream.run(topic, startingOffsets="earliest", maxOffsetsPerTrigger=10)
    assert [len(found) for _, found in stream.batches] == [10, 10, 5]
    assert stream.values == list(range(25))


@needs_limits
def test_partitions_born_while_it_runs_are_read_and_its_lag_is_seen(
    wings: Client, new_topic: NewTopic, stream: Stream
) -> None:
    topic = new_topic("key: string", "n: int64", partition_key="key")
    wings.push(topic, {"key": ["old"], "n": [-1]})
    query = stream.start(topic, once=False, maxOffsetsPerTrigger=4)
    query.processAllAvailable()
    assert stream.values == []  # A stream begins at the end of the log.
    wings.push(topic, {"key": ["old"] * 3 + ["new"] * 9, "n": list(range(12))})
    query.processAllAvailable()
    assert stream.values == list(range(12))
    sources = [progress["sources"][0] for progress in query.recentProgress]
    first = next(source for source in sources if source["numInputRows"])
    read, there = (
        first[name] if isinstance(first[name], dict) else json.loads(first[name])
        for name in ("endOffset", "latestOffset")
    )
    assert there[topic.name] == {'"new"': 9, '"old"': 4}
    assert sum(read[topic.name].values()) == 1 + 4


def test_a_batch_that_was_not_committed_comes_again_with_the_same_rows(
    wings: Client, new_topic: NewTopic, stream: Stream
) -> None:
    topic = new_topic()
    wings.push(topic, {"n": list(range(10))})
    stream.run(topic, startingOffsets="earliest")
    (last,) = stream.batches
    # As if it had ended between the sink and the checkpoint's commit.
    commits = stream.checkpoint / "commits"
    for name in (f"{last[0]}", f".{last[0]}.crc"):
        (commits / name).unlink()
    wings.push(topic, {"n": [10]})
    stream.run(topic, startingOffsets="earliest")
    if not HAS_READ_LIMITS:  # Then a run is one batch, here the one that comes again.
        stream.run(topic, startingOffsets="earliest")
    assert stream.batches == [last, last, (last[0] + 1, [10])]


@pytest.mark.parametrize("fail", [True, False])
def test_retention_that_passes_a_stopped_query_is_told_or_skipped(
    wings: Client,
    new_topic: NewTopic,
    stream: Stream,
    trim: Trim,
    fail: bool,
) -> None:
    topic = new_topic()
    wings.push(topic, {"n": [0, 1]})
    stream.run(topic, startingOffsets="earliest")
    wings.push(topic, {"n": [2, 3]})
    wings.push(topic, {"n": [4]})
    trim(topic, 4)
    if fail:
        with pytest.raises(Exception, match="starts at offset 4: messages from 2 on are gone"):
            stream.run(topic, startingOffsets="earliest")
        assert stream.values == [0, 1]
    else:
        stream.run(topic, startingOffsets="earliest", failOnDataLoss="false")
        assert stream.values == [0, 1, 4]


def test_topics_that_come_to_match_a_pattern_are_read_from_their_start(
    wings: Client, new_topic_id: str, stream: Stream
) -> None:
    namespace = f"tenants/default/namespaces/{new_topic_id}"
    wings.create_namespace(namespace)
    wings.push(wings.create_topic(f"{namespace}/topics/part-1", {"n": "int64"}), {"n": [1]})
    pattern = f"{namespace}/topics/part-[0-9]"
    stream.run(topicsPattern=pattern, startingOffsets="earliest")
    wings.push(wings.create_topic(f"{namespace}/topics/part-2", {"n": "int64"}), {"n": [2]})
    stream.run(topicsPattern=pattern)
    assert stream.values == [1, 2]
