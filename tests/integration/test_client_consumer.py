import threading
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from breakable_proxy import BreakableProxy, breakable
from fix_calls import Calls
from fix_client import EAGER, Connect, NewTopic, async_in_soak
from fix_server import Trim
from server_processes import until_let_go

import wings_client
from wings_client import Client, ConsumedBatch, Consumer, RangesBatch, Retry, Topic, TopicBatch
from wings_core.errors import InvalidArgument, OffsetOutOfRange, TopicNotFound, Unavailable
from wings_core.partitions import Partition
from wings_server.testing import RunningServer, running_server, server_process

Consumed = ConsumedBatch | RangesBatch | TopicBatch

KEYED = ("key: int64", "n: int64")
IDLE = 0.7
"""Seconds after which a test takes it that nothing more comes; longer than a look for news."""


def push(client: Client, topic: Any, key: int, *values: int) -> None:
    client.push(topic, {"key": [key] * len(values), "n": list(values)})


def values(batches: Iterable[Consumed]) -> dict[Any, list[Any]]:
    """Return the values of column `n` by partition, in the order in which they came."""
    found: dict[Any, list[Any]] = defaultdict(list)
    for taken in batches:
        for batch, partition, start_offset, end_offset in taken.parts():
            assert end_offset - start_offset + 1 == batch.num_rows
            found[partition] += batch.column("n").to_pylist()
    return dict(found)


def take(consumer: Consumer, rows: int) -> dict[Any, list[Any]]:
    """Take so many rows."""
    taken: list[Consumed] = []
    while sum(found.batch.num_rows for found in taken) < rows:
        taken.append(next(consumer))
    return values(taken)


def each(keys: Iterable[int], *numbers: int) -> dict[Any, list[int]]:
    """Return the same values for each of the partitions."""
    return {key: list(numbers) for key in keys}


def committed(client: Client, name: str, topic: Topic) -> dict[Any, int]:
    return {found.partition: found.offset for found in client.committed_offsets(name, topic)}


@async_in_soak
def test_a_consumer_reads_all_partitions_each_in_order(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic(*KEYED, partition_key="key")
    for start in (0, 10):
        for key in (1, 2, 3):
            push(wings, topic, key, *range(start, start + 10))
    with wings.consumer("reader", topic, timeout=IDLE) as consumer:
        assert values(consumer) == {key: list(range(20)) for key in (1, 2, 3)}
        assert consumer.positions == {1: 20, 2: 20, 3: 20}


@async_in_soak
def test_a_consumer_goes_on_where_it_committed(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    wings.push(topic, {"n": [0, 1]})
    with wings.consumer("reader", topic) as consumer:
        assert take(consumer, 2) == {None: [0, 1]}
    assert committed(wings, "reader", topic) == {None: 2}
    wings.push(topic, {"n": [2]})
    with wings.consumer("reader", topic) as consumer:
        assert take(consumer, 1) == {None: [2]}
    with wings.consumer("another", topic) as consumer:
        assert take(consumer, 3) == {None: [0, 1, 2]}


@async_in_soak
def test_partitions_that_come_into_being_are_picked_up(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic(*KEYED, partition_key="key")
    with wings.consumer("reader", topic) as consumer:
        for key in range(5):
            push(wings, topic, key, 7)
            assert take(consumer, 1) == {key: [7]}


def test_how_far_a_consumer_is_behind_is_told_by_topic_and_partition(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic("key: int64", partition_key="key")
    wings.push(topic, {"key": [0] * 5 + [1] * 3})
    name = f"behind-{topic.id}"
    wings.commit_offsets(name, topic, {0: 1, 1: 2})
    (listed,) = (each for each in wings.consumers() if each.consumer == name)
    assert (listed.lag, listed.partitions) == (5, ())
    (of_topic,) = listed.topics
    assert (of_topic.topic, of_topic.partitions, of_topic.lag) == (topic.name, 2, 5)
    state = wings.consumer_lag(name, topic)
    found = [(each.partition, each.offset, each.next_offset, each.lag) for each in state.partitions]
    assert found == [(0, 1, 5, 4), (1, 2, 3, 1)]
    assert [each.lag for each in wings.consumer_lag(name, limit=1).partitions] == [4]
    assert wings.consumer_lag("nobody").topics == ()


@async_in_soak
def test_a_message_is_handed_on_as_soon_as_it_is_committed(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    with wings.consumer("reader", topic) as consumer:
        for number in range(20):
            pusher = threading.Thread(target=wings.push, args=(topic, {"n": [number]}))
            pusher.start()
            assert take(consumer, 1) == {None: [number]}
            pusher.join()


@async_in_soak
def test_a_batch_is_committed_once_the_next_is_asked_for(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic(*KEYED, partition_key="key")
    push(wings, topic, 1, 0)
    consumer = wings.consumer("reader", topic, timeout=IDLE)
    assert values([next(consumer)]) == {1: [0]}
    assert committed(wings, "reader", topic) == {}
    wings.push(topic, {"key": [2, 3], "n": [0, 0]})
    assert values([next(consumer)]) == {2: [0], 3: [0]}
    assert committed(wings, "reader", topic) == {1: 1}
    consumer.close()
    assert committed(wings, "reader", topic) == {1: 1}
    with wings.consumer("reader", topic) as again:
        assert take(again, 2) == {2: [0], 3: [0]}


@async_in_soak
def test_of_one_partition_an_item_has_its_offsets(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic(*KEYED, partition_key="key")
    push(wings, topic, 1, 0, 1)
    push(wings, topic, 2, 0)
    with wings.consumer("reader", topic, partitions=[1], system_columns=True) as consumer:
        taken = next(consumer)
        assert isinstance(taken, ConsumedBatch)
        batch, partition, start_offset, end_offset = taken
        assert (batch.num_rows, partition, start_offset, end_offset) == (2, 1, 0, 1)
        assert batch.schema.names == ["key", "n", "__offset", "__timestamp"]
        assert [*taken.ranges] == [(1, 0, 1, 2)]


def test_a_batch_whose_processing_failed_comes_again(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    wings.push(topic, {"n": [0]})

    def process() -> None:
        with wings.consumer("reader", topic) as consumer:
            next(consumer)
            raise KeyError

    with pytest.raises(KeyError):
        process()
    with wings.consumer("reader", topic) as consumer:
        assert take(consumer, 1) == {None: [0]}


@async_in_soak
def test_without_auto_commit_only_commit_commits(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    for number in range(3):
        wings.push(topic, {"n": [number]})
    with wings.consumer("reader", topic, auto_commit=False) as consumer:
        take(consumer, 3)
    assert committed(wings, "reader", topic) == {}
    with wings.consumer("reader", topic, auto_commit=False) as consumer:
        take(consumer, 3)
        consumer.commit()
        assert committed(wings, "reader", topic) == {None: 3}


@async_in_soak
def test_commits_can_be_spaced_out(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic(*KEYED, partition_key="key")
    for key in range(4):
        push(wings, topic, key, 0)
    with wings.consumer("reader", topic, auto_commit=3600.0) as consumer:
        take(consumer, 4)
        assert committed(wings, "reader", topic) == {}
    assert committed(wings, "reader", topic) == dict.fromkeys(range(4), 1)


@async_in_soak
def test_a_new_name_begins_where_it_is_told_and_later_partitions_at_their_start(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic(*KEYED, partition_key="key")
    push(wings, topic, 1, 0, 1)
    wings.consumer("reader", topic, start="latest").close()
    push(wings, topic, 1, 2)
    push(wings, topic, 2, 0)
    for _ in range(2):  # The second time, it is no new name.
        with wings.consumer("reader", topic, start="latest") as consumer:
            assert take(consumer, 2) == {1: [2], 2: [0]}
            wings.commit_offsets("reader", topic, {1: 2, 2: 0})
            consumer.close()
        wings.commit_offsets("reader", topic, {1: 2, 2: 0})


@async_in_soak
@pytest.mark.parametrize("partitions", [None, [None]])
def test_a_new_name_begins_at_the_start_of_what_is_kept(
    wings: Client, new_topic: NewTopic, trim: Trim, partitions: list[None] | None
) -> None:
    topic = new_topic()
    for number in range(4):
        wings.push(topic, {"n": [number]})
    trim(topic, 2)
    with wings.consumer("new", topic, partitions=partitions, timeout=IDLE) as consumer:
        assert values(consumer) == {None: [2, 3]}
    assert committed(wings, "new", topic) == {None: 4}


def test_a_new_name_begins_at_a_time(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    noon = datetime(2020, 11, 20, 12, tzinfo=UTC)
    for hour in range(3):
        wings.push(topic, {"n": [hour]}, timestamp=noon + timedelta(hours=hour))
    with wings.consumer("reader", topic, start=noon + timedelta(minutes=1)) as consumer:
        assert take(consumer, 2) == {None: [1, 2]}


@async_in_soak
def test_partitions_can_be_shared_out(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic(*KEYED, partition_key="key")
    for key in range(4):
        push(wings, topic, key, key)
    with (
        wings.consumer("reader", topic, partitions=[0, 1], timeout=IDLE) as one,
        wings.consumer("reader", topic, partitions=[2, 3, 99], timeout=IDLE) as other,
    ):
        assert values(one) == {0: [0], 1: [1]}
        assert values(other) == {2: [2], 3: [3]}
        push(wings, topic, 99, 7)
        assert values(other) == {99: [7]}


def test_columns_and_filters_are_pushed_down(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic(*KEYED, partition_key="key")
    push(wings, topic, 1, *range(10))
    consumer = wings.consumer(
        "reader", topic, columns=["n"], filter="n % 2 = 1", system_columns=True
    )
    with consumer:
        batch = next(consumer).batch
    assert batch.schema.names == ["n", "__partition", "__offset", "__timestamp"]
    assert batch.column("__offset").to_pylist() == [1, 3, 5, 7, 9]
    assert committed(wings, "reader", topic) == {1: 10}


@async_in_soak
def test_a_stream_and_a_thread_read_many_partitions(
    server: RunningServer, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic(*KEYED, partition_key="key")
    partitions = 100
    keys = list(range(partitions))
    wings.push(topic, {"key": keys[:20] * 5, "n": [n for n in range(5) for _ in range(20)]})
    with wings.consumer("reader", topic) as consumer:
        assert take(consumer, 100) == each(range(20), *range(5))
        server.wait_for_calls(1)
        wings.push(topic, {"key": keys, "n": [7] * partitions})
        assert take(consumer, partitions) == each(keys, 7)
        wings.push(topic, {"key": keys, "n": [8] * partitions})
        assert take(consumer, partitions) == each(keys, 8)
        names = [thread.name for thread in threading.enumerate()]
        ours = [name for name in names if name.startswith("wings-consumer")]
        assert len(ours) == 1
        server.wait_for_calls(1)
    assert committed(wings, "reader", topic) == dict.fromkeys(keys, 2) | dict.fromkeys(range(20), 7)


def test_a_closed_consumer_ends_for_the_thread_that_waits_in_it(
    server: RunningServer, wings: Client, new_topic: NewTopic
) -> None:
    consumer = wings.consumer("reader", new_topic())
    found: list[Consumed] = []
    reader = threading.Thread(target=lambda: found.extend(consumer))
    reader.start()
    server.wait_for_calls(1)
    consumer.close()
    reader.join(60)
    assert not reader.is_alive()
    assert found == []
    assert list(consumer) == []
    server.wait_for_calls(0)


@async_in_soak
def test_a_deleted_topic_ends_a_consumer(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic(*KEYED, partition_key="key")
    push(wings, topic, 1, 0)
    with wings.consumer("reader", topic, auto_commit=False) as consumer:
        take(consumer, 1)
        wings.delete_topic(topic)
        with pytest.raises(TopicNotFound):
            next(consumer)


@async_in_soak
def test_a_breaking_connection_hands_every_message_on_in_order(
    shaky: Client, proxy: BreakableProxy, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic(*KEYED, partition_key="key")
    with shaky.consumer("reader", topic) as consumer:
        for number in range(10):
            for key in (1, 2, 3):
                push(wings, topic, key, number)
            proxy.cut()
        assert take(consumer, 30) == each((1, 2, 3), *range(10))
    assert committed(wings, "reader", topic) == dict.fromkeys((1, 2, 3), 10)


@async_in_soak
def test_a_killed_and_restarted_server_loses_nothing(tmp_path: Path, connect: Connect) -> None:
    with (
        server_process(tmp_path) as server,
        breakable(server.flight) as proxy,
        connect(proxy.endpoint, retry=EAGER) as client,
    ):
        topic = client.create_topic("crash", {"key": "int64", "n": "int64"}, "key")
        consumer = client.consumer("reader", topic)
        for key in (1, 2):
            push(client, topic, key, *range(5))
        assert take(consumer, 10) == each((1, 2), *range(5))
        server.kill()
        with server_process(tmp_path) as again:
            proxy.retarget(again.flight)
            for key in (1, 2, 3):
                push(client, topic, key, 5)
            assert take(consumer, 3) == each((1, 2, 3), 5)
            consumer.commit()
            consumer.close()
            assert committed(client, "reader", topic) == {1: 6, 2: 6, 3: 1}


@async_in_soak
def test_a_consumer_at_the_end_waits(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    wings.push(topic, {"n": [0]})
    wings.commit_offsets("reader", topic, {None: 1})
    with wings.consumer("reader", topic, timeout=0.2) as consumer:
        assert list(consumer) == []
        wings.push(topic, {"n": [1, 2]})
        assert take(consumer, 2) == {None: [1, 2]}


@async_in_soak
def test_a_consumer_that_is_let_go_of_stops_to_read(
    server: RunningServer, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic(*KEYED, partition_key="key")
    push(wings, topic, 1, 0)
    consumer = wings.consumer("dropped", topic, auto_commit=False)
    assert next(consumer).batch.num_rows == 1
    server.wait_for_calls(1)
    del consumer
    until_let_go(server)
    for thread in threading.enumerate():
        if thread.name.startswith("wings-consumer"):
            thread.join(60)
            assert not thread.is_alive()


@async_in_soak
@pytest.mark.parametrize("partitions", [1_000, pytest.param(10_000, marks=pytest.mark.soak)])
def test_a_consumer_of_many_partitions_reads_them_all_and_commits_in_one_call(
    wings: Client, new_topic: NewTopic, partitions: int
) -> None:
    topic = new_topic(*KEYED, partition_key="key")
    keys = list(range(partitions))
    wings.push(topic, {"key": keys, "n": keys})
    with wings.consumer("reader", topic, timeout=0.05) as consumer:
        batches = [taken.batch for taken in consumer]
    found: list[Any] = pa.Table.from_batches(batches)["n"].to_pylist()
    assert sorted(found) == keys
    assert committed(wings, "reader", topic) == dict.fromkeys(keys, 1)
    wings.push(topic, {"key": [7, partitions], "n": [8, 9]})
    with wings.consumer("reader", topic, timeout=0.05) as consumer:
        assert values(consumer) == {7: [8], partitions: [9]}


@async_in_soak
@pytest.mark.parametrize("partitions", [None, [1]])
def test_a_consumer_does_not_take_a_silent_server_for_the_end(
    shaky: Client,
    proxy: BreakableProxy,
    wings: Client,
    new_topic: NewTopic,
    partitions: list[int] | None,
) -> None:
    topic = new_topic(*KEYED, partition_key="key")
    push(wings, topic, 1, 0)
    consumer = shaky.consumer("reader", topic, partitions=partitions, timeout=0.01)
    proxy.stop_listening()
    found: list[Any] = []
    reader = threading.Thread(target=lambda: found.append(values(consumer)))
    reader.start()
    reader.join(0.3)  # Several times as long as the consumer waits for a message.
    proxy.listen_again()
    reader.join(60)
    assert found == [{1: [0]}]


def test_a_server_that_stays_away_is_an_error_and_no_end(
    proxy: BreakableProxy, wings: Client, new_topic: NewTopic, connect: Connect
) -> None:
    topic = new_topic(*KEYED, partition_key="key")
    retry = Retry(delay=0.01, delay_max=0.05, reconnect_seconds=0.3)
    with connect(proxy.endpoint, retry=retry) as client:
        consumer = client.consumer("reader", topic, timeout=0.01, auto_commit=False)
        proxy.stop_listening()
        with pytest.raises(Unavailable):
            next(consumer)


@async_in_soak
def test_what_a_filter_drops_is_read_to_its_end_before_a_consumer_ends(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic(*KEYED, partition_key="key")
    for key in range(3):
        wings.push(topic, {"key": [key] * 100_000, "n": list(range(100_000))})
    with wings.consumer("reader", topic, filter="n = 99999", timeout=0.001) as consumer:
        assert sum(taken.batch.num_rows for taken in consumer) == 3


@async_in_soak
def test_a_committed_offset_that_retention_passed_is_an_error(
    wings: Client, new_topic: NewTopic, trim: Trim
) -> None:
    topic = new_topic(*KEYED, partition_key="key")
    for number in range(3):
        push(wings, topic, 1, number)
        push(wings, topic, 2, number)
    wings.commit_offsets("reader", topic, {1: 1})
    trim(topic, 2, Partition("1"))
    trim(topic, 2, Partition("2"))
    with pytest.raises(OffsetOutOfRange) as caught:
        next(wings.consumer("reader", topic, auto_commit=False))
    assert (caught.value.facts["partition"], caught.value.log_start_offset) == (1, 2)
    wings.commit_offsets("reader", topic, {1: 2})
    with wings.consumer("reader", topic) as consumer:
        assert take(consumer, 2) == {1: [2], 2: [2]}


@async_in_soak
@pytest.mark.parametrize(
    "partitions", [None, [1, 2], [1]], ids=["all partitions", "two of them", "one"]
)
def test_a_consumer_may_skip_what_retention_took(
    wings: Client,
    new_topic: NewTopic,
    trim: Trim,
    caplog: pytest.LogCaptureFixture,
    partitions: list[Any] | None,
) -> None:
    topic = new_topic(*KEYED, partition_key="key")
    for number in range(4):
        for key in (1, 2) if partitions is None else partitions:
            push(wings, topic, key, number)
    expected = {key: [2, 3] for key in (1, 2) if partitions is None or key in partitions}
    wings.commit_offsets("reader", topic, {1: 1, 2: 0} if len(expected) > 1 else {1: 1})
    for key in expected:
        trim(topic, 2, Partition(str(key)))
    for _ in range(2):  # Each time, until it goes on.
        with pytest.raises(OffsetOutOfRange, match="on_data_loss='skip' goes on"):
            next(wings.consumer("reader", topic, partitions=partitions))
    options: Any = {"partitions": partitions, "timeout": IDLE, "on_data_loss": "skip"}
    with wings.consumer("reader", topic, **options) as consumer:
        assert values(consumer) == expected
    assert "partition 1: 1 messages from offset 1 on are gone" in caplog.text
    assert committed(wings, "reader", topic) == dict.fromkeys(expected, 4)
    with pytest.raises(InvalidArgument, match='must be "error" or "skip"'):
        wings.consumer("reader", topic, on_data_loss="ignore")  # pyright: ignore[reportArgumentType]


@async_in_soak
def test_a_follow_may_skip_what_retention_took(
    wings: Client, new_topic: NewTopic, trim: Trim, subtests: pytest.Subtests
) -> None:
    topic = new_topic(*KEYED, partition_key="key")
    for number in range(3):
        push(wings, topic, 1, number)
        push(wings, topic, 2, number)
    trim(topic, 2, Partition("1"))
    trim(topic, 1, Partition("2"))
    expected: dict[Any, Any] = {1: [2], 2: [1, 2]}
    for options, found in (
        ({"partition": 1, "offset": 1}, {1: [2]}),
        ({"partitions": "all", "offset": {1: 1, 2: 0}}, expected),
        ({"partitions": [1, 2], "offset": {1: 1, 2: 0}}, expected),
        ({"partitions": "all", "offset": 1}, expected),
    ):
        arguments: Any = {"timeout": IDLE, "system_columns": True, **options}
        with subtests.test(options=options):
            with pytest.raises(OffsetOutOfRange):
                list(wings.follow(topic, **arguments))
            rows: dict[Any, list[int]] = defaultdict(list)
            for taken in wings.follow(topic, **arguments, on_data_loss="skip"):
                for row in taken.batch.to_pylist():
                    rows[row["key"]].append(row["__offset"])
            assert rows == found


def test_what_comes_while_the_server_is_asked_for_more_is_not_missed(
    calls: Calls, tmp_path: Path
) -> None:
    with running_server(tmp_path) as server, wings_client.connect(server.flight) as client:
        client.create_topic("t", {"n": "int64"})
        with client.consumer("reader", "t", timeout=0.05) as consumer:
            reads = consumer.engine.reads

            def push_behind_it(_: bool) -> None:
                """Have what it said, that nothing is left, be of a moment ago."""
                if not consumer.positions:
                    client.push("t", {"n": [1]})
                    while reads.handover.idle:
                        pass

            calls.after(reads, "lags", push_behind_it)
            assert values(consumer) == {None: [1]}
