"""What Spark asks of a stream and of a task, asked directly: of real topics, without a session.

Spark asks from processes that share nothing, so here each is a reader of its own.
"""

import pickle
from typing import cast

import pytest
from fix_client import NewTopic
from fix_server import Trim
from pyspark.sql.datasource import Filter, GreaterThan, In

import wings_spark.stream
from wings_client import Client, Topic
from wings_core.errors import InvalidArgument, OffsetOutOfRange
from wings_server.testing import RunningServer
from wings_spark.options import ReadOptions
from wings_spark.reader import PushingReader, WingsReader, task_ranges
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
    made = WingsStreamReader(ReadOptions.parse(options_given).for_stream(), schema)
    return pickle.loads(pickle.dumps(made))


def trigger(reader: WingsStreamReader, start: dict[str, object]) -> dict[str, object]:
    """Return where the next batch ends, as Spark asks for it."""
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def rows(reader: WingsStreamReader, start: dict[str, object], end: dict[str, object]) -> list[int]:
    return [
        n
        for part in reader.partitions(start, end)
        for batch in reader.read(part)
        for n in cast("list[int]", batch.column(0).to_pylist())
    ]


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


@pytest.mark.parametrize("fail", [True, False])
def test_messages_that_go_between_planning_and_reading_are_told_or_skipped(
    server: RunningServer, wings: Client, new_topic: NewTopic, trim: Trim, fail: bool
) -> None:
    topic = new_topic()
    wings.push(topic, {"n": [0, 1]})
    wings.push(topic, {"n": [2, 3]})
    options = given(server, topic, failOnDataLoss=fail)
    reader = WingsReader(ReadOptions.parse(options), WingsDataSource(options).schema())
    (part,) = reader.partitions()
    trim(topic, 2)
    if fail:
        with pytest.raises(OffsetOutOfRange, match="messages from 0 on are gone"):
            list(reader.read(part))
    else:
        (batch,) = reader.read(part)
        assert batch.column(0).to_pylist() == [2, 3]


def test_many_small_pushes_come_as_full_batches(
    server: RunningServer, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    for first in range(0, 200_000, 1_000):
        wings.push(topic, {"n": list(range(first, first + 1_000))})
    options = given(server, topic, minPartitions=1)
    reader = WingsReader(ReadOptions.parse(options), WingsDataSource(options).schema())
    (part,) = reader.partitions()
    sizes = [batch.num_rows for batch in reader.read(part)]
    assert sum(sizes) == 200_000
    assert min(sizes[:-1]) >= 60_000


@pytest.mark.parametrize(
    "own",
    [
        "n IN (" + ", ".join(str(1_000_000_000_000 + n) for n in range(750)) + ", 5)",
        " OR ".join(f"n = {n}" for n in range(5, 6 + 500)),
        f"n = {'0' * (16_384 - 5)}5",
    ],
)
def test_filters_that_are_too_much_beside_the_users_own_are_left_to_spark(
    server: RunningServer, wings: Client, new_topic: NewTopic, own: str
) -> None:
    topic = new_topic()
    wings.push(topic, {"n": [4, 5]})
    options = given(server, topic, filter=own)
    reader = PushingReader(ReadOptions.parse(options), WingsDataSource(options).schema())
    small: list[Filter] = [GreaterThan(("n",), number) for number in range(-60, 0)]
    filters = [*small, In(("n",), tuple(range(400)))]
    assert list(reader.pushFilters(filters)) == filters
    (part,) = reader.partitions()
    assert [batch.column(0).to_pylist() for batch in reader.read(part)] == [[5]]


def test_filters_are_taken_beside_the_users_own(
    server: RunningServer, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    wings.push(topic, {"n": list(range(10))})
    options = given(server, topic, filter="n = 1 OR n = 8")
    reader = PushingReader(ReadOptions.parse(options), WingsDataSource(options).schema())
    assert list(reader.pushFilters([GreaterThan(("n",), 5)])) == []
    (part,) = reader.partitions()
    assert [batch.column(0).to_pylist() for batch in reader.read(part)] == [[8]]


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("again", [True, False])
def test_what_was_planned_of_a_topic_is_not_read_of_another_of_its_name(
    server: RunningServer, wings: Client, new_topic: NewTopic, fails: bool, again: bool
) -> None:
    topic = new_topic()
    wings.push(topic, {"n": [0, 1, 2, 3]})
    options = ReadOptions.parse(given(server, topic, failOnDataLoss=fails))
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
    planned = WingsReader(ReadOptions.parse(options_given).for_batch(), schema)
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
    reader = WingsReader(ReadOptions.parse(options_given).for_batch(), schema)
    with pytest.raises(InvalidArgument, match=f"option '{option}': topic .*/fligths is not one"):
        reader.partitions()
    if option == "startingOffsets":
        stream = WingsStreamReader(ReadOptions.parse(options_given).for_stream(), schema)
        with pytest.raises(InvalidArgument, match="fligths is not one that is read"):
            stream.initialOffset()
        stream.stop()


def test_a_topic_of_a_pattern_that_is_deleted_while_a_query_is_planned_is_left_out(
    server: RunningServer, wings: Client, new_topic: NewTopic
) -> None:
    kept = new_topic()
    gone = wings.create_topic(f"{kept.id}-gone", kept.schema)
    wings.push(kept, {"n": [1]})
    options = ReadOptions.parse({"endpoint": server.flight, "topicsPattern": f"{kept.id}.*"})
    subscription = Subscription.find(wings, options)
    assert len(subscription.topics) == 2
    wings.delete_topic(gone)
    assert [part.topic for part in task_ranges(wings, subscription, options)] == [kept.name]
