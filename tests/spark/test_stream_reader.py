"""What Spark asks of a stream and of a task, asked directly: of real topics, without a session.

Spark asks from processes that share nothing, so here each is a reader of its own.
"""

import json
import pickle
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any, cast

import pyarrow as pa
import pytest
from breakable_proxy import BreakableProxy
from fix_client import NewTopic
from fix_server import Trim

import wings_spark.stream
from wings_client import Client, Topic
from wings_core.errors import InvalidArgument, OffsetOutOfRange, Unavailable
from wings_core.model import PageFormat
from wings_core.partitions import UNPARTITIONED, Partition
from wings_server.testing import RunningServer
from wings_spark.options import SparkReadOptions
from wings_spark.reader import WingsReader, plan
from wings_spark.source import WingsDataSource
from wings_spark.spark_versions import HAS_READ_LIMITS
from wings_spark.stream import WingsStreamReader
from wings_spark.subscription import Subscription

needs_limits = pytest.mark.skipif(not HAS_READ_LIMITS, reason="Spark 4.1 has no limits")


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of streams."""
    made = Clock()
    monkeypatch.setattr(wings_spark.stream, "monotonic", made)
    return made


def given(server: RunningServer, topic: Topic, **options: object) -> dict[str, str]:
    found = {name: str(value) for name, value in options.items()}
    return {"endpoint": server.flight, "topic": topic.id, "startingOffsets": "earliest"} | found


def stream_reader(server: RunningServer, topic: Topic, **options: object) -> WingsStreamReader:
    """Return what each process of Spark's makes anew."""
    options_given = given(server, topic, **options)
    schema = WingsDataSource(options_given).schema()
    made = WingsStreamReader(SparkReadOptions.parse(options_given).for_stream(), schema)
    return pickle.loads(pickle.dumps(made))


def trigger(reader: WingsStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    """Return where the next batch ends, as Spark asks for it."""
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def rows(reader: WingsStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    return [n for part in reader.partitions(start, end) for n in all_rows(reader.read(part))]


def all_rows(batches: Iterable[pa.RecordBatch]) -> list[int]:
    """Return the first column's values."""
    return [n for batch in batches for n in cast("list[int]", batch.column(0).to_pylist())]


@needs_limits
def test_a_trigger_waits_for_its_rows_and_for_no_longer_than_its_delay(
    server: RunningServer, wings: Client, new_topic: NewTopic, clock: Clock
) -> None:
    topic = new_topic()
    reader = stream_reader(server, topic, minOffsetsPerTrigger=5, maxTriggerDelay="1h")
    zero = reader.initialOffset()
    wings.push(topic, {"n": [0]})
    first = trigger(reader, zero)
    assert rows(reader, zero, first) == [0]  # One that has just begun does not wait.
    wings.push(topic, {"n": [1, 2, 3, 4]})
    clock.seconds += 3_599
    assert trigger(reader, first) == first
    wings.push(topic, {"n": [5]})
    second = trigger(reader, first)
    assert rows(reader, first, second) == [1, 2, 3, 4, 5]
    wings.push(topic, {"n": [6]})
    clock.seconds += 3_599
    assert trigger(reader, second) == second
    clock.seconds += 1
    third = trigger(reader, second)
    assert rows(reader, second, third) == [6]
    clock.seconds += 4_000
    assert trigger(reader, third) == third  # Nothing there is not worth a batch, however late.
    reader.stop()


@needs_limits
def test_a_trigger_waits_for_a_quarter_of_an_hour_where_nothing_else_is_said(
    server: RunningServer, wings: Client, new_topic: NewTopic, clock: Clock
) -> None:
    topic = new_topic()
    reader = stream_reader(server, topic, minOffsetsPerTrigger=5)
    wings.push(topic, {"n": [0]})
    first = trigger(reader, reader.initialOffset())
    wings.push(topic, {"n": [1]})
    clock.seconds += 899
    assert trigger(reader, first) == first
    clock.seconds += 1
    assert trigger(reader, first) != first
    reader.stop()


@needs_limits
def test_a_trigger_that_has_enough_takes_no_more_than_its_limit(
    server: RunningServer, wings: Client, new_topic: NewTopic, clock: Clock
) -> None:
    topic = new_topic()
    options = {"minOffsetsPerTrigger": 3, "maxOffsetsPerTrigger": 4, "maxTriggerDelay": "1m"}
    reader = stream_reader(server, topic, **options)
    wings.push(topic, {"n": list(range(10))})
    ends = [reader.initialOffset()]
    for expected in ([0, 1, 2, 3], [4, 5, 6, 7]):
        ends.append(trigger(reader, ends[-1]))
        assert rows(reader, ends[-2], ends[-1]) == expected
    assert trigger(reader, ends[-1]) == ends[-1]
    clock.seconds += 60
    assert rows(reader, ends[-1], trigger(reader, ends[-1])) == [8, 9]
    reader.stop()


@needs_limits
def test_a_driver_process_that_has_not_triggered_yet_does_not_wait_and_loses_nothing(
    server: RunningServer, wings: Client, new_topic: NewTopic, clock: Clock
) -> None:
    topic = new_topic()
    options = {"minOffsetsPerTrigger": 5, "maxTriggerDelay": "1h"}
    before = stream_reader(server, topic, **options)
    zero = before.initialOffset()
    wings.push(topic, {"n": [0, 1]})
    first = trigger(before, zero)
    wings.push(topic, {"n": [2]})
    clock.seconds += 1
    assert trigger(before, first) == first
    before.stop()
    # Its successor knows the offsets alone: it reads on at once, and then waits as any other.
    after, planner = (stream_reader(server, topic, **options) for _ in range(2))
    second = trigger(after, first)
    assert rows(planner, first, second) == [2]
    wings.push(topic, {"n": [3]})
    clock.seconds += 1
    assert trigger(after, second) == second
    for reader in (after, planner):
        reader.stop()


def test_an_available_now_trigger_does_not_wait_for_rows(
    server: RunningServer, wings: Client, new_topic: NewTopic, clock: Clock
) -> None:
    topic = new_topic()
    options = {"minOffsetsPerTrigger": 5} if HAS_READ_LIMITS else {}
    reader = stream_reader(server, topic, **options)
    zero = reader.initialOffset()
    wings.push(topic, {"n": [0]})
    reader.prepareForTriggerAvailableNow()
    first = trigger(reader, zero)
    assert rows(reader, zero, first) == [0]
    wings.push(topic, {"n": [1]})
    clock.seconds += 4_000
    assert trigger(reader, first) == first  # It ends with what was there when it began.
    reader.stop()


def test_a_read_begins_and_ends_where_it_is_told_to(
    server: RunningServer, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    for n in range(10):
        wings.push(topic, {"n": [n]}, timestamp=f"2026-01-01T00:00:0{n}Z")
    cases: list[tuple[dict[str, str], Iterable[int]]] = [
        ({"startingOffsets": "latest"}, []),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, range(10)),
        ({"startingOffsets": f'{{"{topic.id}": 7}}'}, range(7, 10)),
        ({"endingOffsets": f'{{"{topic.id}": -2}}'}, []),
        ({"endingTimestamp": "1767225605000"}, range(5)),
        ({"startingTimestamp": "2027-01-01T00:00:00Z"}, []),
    ]
    for bounds, expected in cases:
        options = {"endpoint": server.flight, "topic": topic.id} | bounds
        reader = WingsReader(SparkReadOptions.parse(options), WingsDataSource(options).schema())
        found = [n for part in reader.partitions() for n in all_rows(reader.read(part))]
        assert found == list(expected), bounds


@pytest.mark.parametrize(
    ("start", "fail"), [(0, True), (0, False), ("earliest", True), ("earliest", False)]
)
def test_messages_that_go_between_planning_and_reading_are_told_or_skipped(
    server: RunningServer,
    wings: Client,
    new_topic: NewTopic,
    trim: Trim,
    start: int | str,
    fail: bool,
) -> None:
    topic = new_topic()
    wings.push(topic, {"n": [0, 1]})
    wings.push(topic, {"n": [2, 3]})
    starts = json.dumps({topic.id: start})
    options = given(server, topic, failOnDataLoss=fail, startingOffsets=starts)
    reader = WingsReader(SparkReadOptions.parse(options), WingsDataSource(options).schema())
    (part,) = reader.partitions()
    trim(topic, 2)
    if fail and start == 0:
        with pytest.raises(OffsetOutOfRange, match="messages from 0 on are gone"):
            list(reader.read(part))
    else:
        (batch,) = reader.read(part)
        assert batch.column(0).to_pylist() == [2, 3]


@pytest.mark.parametrize("fail", [True, False])
def test_messages_of_some_of_many_partitions_that_go_meanwhile_are_told_or_skipped(
    server: RunningServer, wings: Client, new_topic: NewTopic, trim: Trim, fail: bool
) -> None:
    topic = new_topic("n: int64", "key: int64", partition_key="key")
    for first in (0, 4):
        wings.push(topic, {"n": list(range(first, first + 4)), "key": [0, 1, 2, 3]})
    starts = json.dumps({topic.id: {str(key): 0 for key in range(4)}})
    options = given(server, topic, failOnDataLoss=fail, startingOffsets=starts)
    reader = WingsReader(SparkReadOptions.parse(options), WingsDataSource(options).schema())
    (part,) = reader.partitions()
    trim(topic, 1, Partition("1"))
    trim(topic, 2, Partition("3"))
    if fail:
        with pytest.raises(OffsetOutOfRange, match=r"partition [13] of .* from 0 on are gone"):
            list(reader.read(part))
    else:
        assert sorted(all_rows(reader.read(part))) == [0, 2, 4, 5, 6]


def test_a_batch_that_begins_at_the_start_of_some_partitions_skips_what_goes_of_those(
    server: RunningServer, wings: Client, new_topic: NewTopic, trim: Trim
) -> None:
    topic = new_topic("n: int64", "key: int64", partition_key="key")
    for first in (0, 4):
        wings.push(topic, {"n": list(range(first, first + 4)), "key": [0, 1, 2, 3]})
    starts = json.dumps({topic.id: {"0": 0, "1": "earliest", "2": 1}})
    options = given(server, topic, startingOffsets=starts)
    reader = WingsReader(SparkReadOptions.parse(options), WingsDataSource(options).schema())
    parts = reader.partitions()
    trim(topic, 1, Partition("1"))
    trim(topic, 2, Partition("3"))
    assert sorted(row for part in parts for row in all_rows(reader.read(part))) == [0, 4, 5, 6]


def test_a_stream_over_many_partitions_reads_each_message_once_in_packed_tasks(
    server: RunningServer, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic("n: int64", "key: int64", partition_key="key")
    wings.push(topic, {"n": list(range(2_400)), "key": [n % 1_200 for n in range(2_400)]})
    reader = stream_reader(server, topic, minPartitions=3)
    start = reader.initialOffset()
    # As an earlier version wrote it, which wrote each partition's out.
    plain = {
        topic.name: {str(key): 1 for key in range(1_200)},
        "uuids": {topic.name: topic.uuid},
    }
    for begin, expected in ((start, range(2_400)), (plain, range(1_200, 2_400))):
        end = trigger(reader, begin) if HAS_READ_LIMITS else reader.latestOffset()
        assert len(json.dumps(end)) < 5_000
        tasks = reader.partitions(begin, end)
        assert len(tasks) == 3
        assert sorted(rows(reader, begin, end)) == list(expected)
    complete = {topic.name: {str(key): 2 for key in range(1_200)}, "uuids": plain["uuids"]}
    if HAS_READ_LIMITS:
        assert trigger(reader, complete) is complete  # Nothing new is no batch.
    wings.push(topic, {"n": [2_400, 2_401], "key": [7, 1_200]})
    last = trigger(reader, end) if HAS_READ_LIMITS else reader.latestOffset()
    assert sorted(rows(reader, end, last)) == [2_400, 2_401]
    reader.stop()


def test_many_small_pushes_come_as_few_batches(
    server: RunningServer, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    pushed = pa.table({"n": range(2_500)})
    for _ in range(80):
        wings.push(topic, pushed)
    options = given(server, topic, minPartitions=1)
    reader = WingsReader(SparkReadOptions.parse(options), WingsDataSource(options).schema())
    (part,) = reader.partitions()
    sizes = [batch.num_rows for batch in reader.read(part)]
    assert sum(sizes) == 200_000
    # Full ones, or where a drain came between the pushes, which is each second, a page of it each.
    pages = server.server.log.registry.locate(topic.uuid, UNPARTITIONED, 0, 200_000).locations
    assert len(sizes) <= 5 + sum(page.format is PageFormat.DRAINED for page in pages)


def test_a_stream_rides_out_a_server_that_is_away(
    server: RunningServer, wings: Client, new_topic: NewTopic, proxy: BreakableProxy
) -> None:
    topic = new_topic("n: int64", "key: int64", partition_key="key")
    wings.push(topic, {"n": [0, 1, 2, 3], "key": [0, 0, 1, 1]})
    options = given(server, topic) | {"endpoint": proxy.endpoint}
    schema = WingsDataSource(options).schema()

    def made(**more: str) -> WingsStreamReader:
        return WingsStreamReader(SparkReadOptions.parse(options | more).for_stream(), schema)

    @contextmanager
    def away() -> Generator[None]:
        proxy.stop_listening()
        back = threading.Timer(1.5, proxy.listen_again)  # Twice what other calls are tried.
        back.start()
        yield
        back.join()

    reader = made()
    start = reader.initialOffset()
    with away():
        end = trigger(reader, start)
    with away():
        (part,) = made().partitions(start, end)  # Planned by a process of its own.
    reader.stop()
    task = pickle.loads(pickle.dumps(reader))
    with away():
        assert sorted(all_rows(task.read(part))) == [0, 1, 2, 3]
    hasty = made(retryTimeout="0s")
    proxy.stop_listening()
    with pytest.raises(Unavailable):
        trigger(hasty, start)
    proxy.listen_again()
    hasty.stop()


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("again", [True, False])
def test_what_was_planned_of_a_topic_is_not_read_of_another_of_its_name(
    server: RunningServer, wings: Client, new_topic: NewTopic, fails: bool, again: bool
) -> None:
    topic = new_topic()
    wings.push(topic, {"n": [0, 1, 2, 3]})
    options = SparkReadOptions.parse(given(server, topic, failOnDataLoss=fails))
    schema = WingsDataSource(given(server, topic)).schema()
    planned = WingsReader(options.for_batch(), schema)
    (part,) = planned.partitions()
    wings.delete_topic(topic)
    if again:
        wings.create_topic(topic.id, topic.schema)
        wings.push(topic.id, {"n": [100]})
    task = pickle.loads(pickle.dumps(planned))
    if fails:
        with pytest.raises(OffsetOutOfRange, match="was deleted since the query read it"):
            list(task.read(part))
    else:
        assert list(task.read(part)) == []


def test_all_tasks_of_a_query_read_to_the_end_that_was_planned(
    server: RunningServer, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    wings.push(topic, {"n": [0, 1, 2, 3]})
    options_given = given(server, topic, minPartitions=2)
    schema = WingsDataSource(options_given).schema()
    planned = WingsReader(SparkReadOptions.parse(options_given).for_batch(), schema)
    first, second = planned.partitions()
    read = [list(planned.read(first))]
    wings.push(topic, {"n": [4, 5]})
    read.append(list(planned.read(second)))
    found = [batch.column(0).to_pylist() for batches in read for batch in batches]
    assert found == [[0, 1], [2, 3]]


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_positions_of_a_topic_that_is_not_read_are_an_error(
    server: RunningServer, wings: Client, new_topic: NewTopic, option: str
) -> None:
    topic = new_topic()
    options_given = given(server, topic) | {option: '{"fligths": 1}'}
    schema = WingsDataSource(given(server, topic)).schema()
    reader = WingsReader(SparkReadOptions.parse(options_given).for_batch(), schema)
    with pytest.raises(InvalidArgument, match=f"option '{option}': topic .*/fligths is not one"):
        reader.partitions()
    if option == "startingOffsets":
        stream = WingsStreamReader(SparkReadOptions.parse(options_given).for_stream(), schema)
        with pytest.raises(InvalidArgument, match="fligths is not one that is read"):
            stream.initialOffset()
        stream.stop()


def test_a_topic_of_a_pattern_that_is_deleted_while_a_query_is_planned_is_left_out(
    server: RunningServer, wings: Client, new_topic: NewTopic
) -> None:
    kept = new_topic()
    gone = wings.create_topic(f"{kept.id}-gone", kept.schema)
    wings.push(kept, {"n": [1]})
    options = SparkReadOptions.parse({"endpoint": server.flight, "topicsPattern": f"{kept.id}.*"})
    subscription = Subscription.find(wings, options)
    assert len(subscription.topics) == 2
    wings.delete_topic(gone)
    assert [part.topic for part in plan(wings, subscription, options)] == [kept.name]


def test_a_stream_sees_new_columns_once_it_is_started_again(
    wings: Client, new_topic: NewTopic, server: RunningServer
) -> None:
    topic = new_topic("n: int32")
    wings.push(topic, {"n": [1]})
    reader = stream_reader(server, topic)
    start = reader.initialOffset()
    altered = wings.alter_schema(topic, add={"added": "string"}, widen={"n": "int64"})
    wings.push(altered, {"n": [2], "added": ["x"]})
    end = trigger(reader, start)
    assert rows(reader, start, end) == [1, 2]
    again = stream_reader(server, altered)
    batches = [batch for part in again.partitions(start, end) for batch in again.read(part)]
    table = pa.Table.from_batches(batches)
    assert table.to_pylist() == [{"n": 1, "added": None}, {"n": 2, "added": "x"}]
