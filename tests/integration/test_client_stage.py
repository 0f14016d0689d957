"""The client's stages: written over one stream, published once, aborted, and what fails them."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from breakable_proxy import BreakableProxy
from fix_calls import Calls
from fix_client import EAGER, NewTopic, async_in_soak

import wings_client
from wings_client import (
    Client,
    Connection,
    Published,
    PublishedRange,
    ShardCounts,
    ShardProgress,
    ShardsPruned,
    ShardState,
    Staged,
    Topic,
)
from wings_core.errors import (
    AlreadyExists,
    InvalidArgument,
    PublishFenced,
    ResourceExhausted,
    SchemaMismatch,
    StageNotFound,
    TopicNotFound,
    Unavailable,
)
from wings_core.memory import ReadRoom
from wings_server.testing import running_server


def fresh() -> str:
    return f"s-{uuid4()}"


def numbers(client: Client, topic: Topic | str) -> list[Any]:
    return client.scan(topic).read_all()["n"].to_pylist()


@async_in_soak
def test_what_is_staged_is_visible_once_it_is_published(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    stage_id, writer = fresh(), fresh()
    with wings.stage(topic, stage_id, batch_rows=10) as stage:
        for start in range(0, 100, 25):
            stage.write({"n": list(range(start, start + 25))})
    staged = stage.close()
    assert (staged.stage, staged.rows, staged.batches) == (stage_id, 100, 12)
    assert staged.bytes > 800
    assert numbers(wings, topic) == []
    published = wings.publish(writer, 0, [staged])
    assert published == Published((PublishedRange(topic.name, None, 0, 99),), replayed=False)
    assert numbers(wings, topic) == list(range(100))
    assert wings.publish(writer, 0, [stage_id]) == Published(published.committed, replayed=True)


@async_in_soak
def test_more_than_the_window_goes_through(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic("n: int64", "text: string")
    table = pa.table({"n": range(100), "text": ["x" * 500_000] * 100})
    with wings.stage(topic, fresh(), batch_rows=1) as stage:
        stage.write(table)
    assert (stage.close().rows, stage.close().batches) == (100, 100)
    wings.publish(fresh(), 0, [stage.id])
    assert wings.scan(topic, columns=["n"]).read_all()["n"].to_pylist() == list(range(100))


def test_rows_are_routed_by_key_or_go_to_the_partition_named(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic("key: string", "n: int64", partition_key="key")
    with wings.stage(topic, fresh()) as routed, wings.stage(topic, fresh(), partition="a") as one:
        routed.write([{"key": "b", "n": 1}, {"key": "a", "n": 2}])
        one.write([{"key": "a", "n": 3}])
    published = wings.publish(fresh(), 7, [one.id, routed.id])
    found = {each.partition: (each.start_offset, each.end_offset) for each in published.committed}
    assert found == {"a": (0, 1), "b": (0, 0)}
    assert wings.scan(topic, "a").read_all()["n"].to_pylist() == [3, 2]


def test_a_stage_of_nothing_can_be_published(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    with wings.stage(topic, fresh()) as stage:
        stage.write([])
    assert (stage.close().rows, stage.close().bytes) == (0, 0)
    assert wings.publish(fresh(), 0, [stage.id]).committed == ()


@async_in_soak
def test_a_timestamp_can_be_given(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    with wings.stage(topic, fresh(), timestamp="2026-01-01T00:00:00Z") as stage:
        stage.write({"n": [1]})
    wings.publish(fresh(), 0, [stage.id])
    (stamp,) = wings.scan(topic, system_columns=True).read_all()["__timestamp"].to_pylist()
    assert stamp == datetime(2026, 1, 1, tzinfo=UTC)


def test_data_that_does_not_fit_fails_the_write_alone(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    with wings.stage(topic, fresh()) as stage:
        stage.write({"n": [1]})
        with pytest.raises(SchemaMismatch):
            stage.write({"n": ["x"]})
        stage.write({"n": [2]})
    assert stage.close().rows == 2


def test_a_stage_that_is_left_by_an_error_is_deleted(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    stage = wings.stage(topic, fresh())

    def fail() -> None:
        with stage:
            stage.write({"n": [1]})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with pytest.raises(StageNotFound) as caught:
        wings.publish(fresh(), 0, [stage.id])
    assert caught.value.stage == stage.id


def test_a_stage_whose_last_rows_are_refused_is_deleted(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic("n: int64 not null")
    stage = wings.stage(topic, fresh())

    def write() -> None:
        with stage:
            stage.write({"n": [1]})
            stage.write(pa.table({"n": pa.array([None], pa.int64())}))

    with pytest.raises(SchemaMismatch, match="null"):
        write()
    with pytest.raises(StageNotFound):
        wings.publish(fresh(), 0, [stage.id])


@async_in_soak
def test_a_stage_of_anothers_id_leaves_that_of_the_other(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    with wings.stage(topic, fresh()) as first:
        first.write({"n": [1]})
    second = wings.stage(topic, first.id)

    def write() -> None:
        with second:
            second.write({"n": [2]})

    with pytest.raises(AlreadyExists):
        write()
    wings.publish(fresh(), 0, [first.id])
    assert numbers(wings, topic) == [1]


@async_in_soak
def test_a_stage_is_written_by_one_stream(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    with wings.stage(topic, fresh()) as stage:
        stage.write({"n": [1]})
    again = wings.stage(topic, stage.id)
    again.write({"n": [2]})
    for _ in range(2):
        with pytest.raises(AlreadyExists):
            again.close()
    with pytest.raises(AlreadyExists):
        again.write({"n": [3]})
    wings.publish(fresh(), 0, [stage.id])
    assert numbers(wings, topic) == [1]


def test_a_closed_stage_takes_no_more(wings: Client, new_topic: NewTopic) -> None:
    stage = wings.stage(new_topic(), fresh())
    stage.close()
    with pytest.raises(InvalidArgument, match="is closed"):
        stage.write({"n": [1]})


def test_what_cannot_be_is_refused_at_once(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    with pytest.raises(InvalidArgument, match="is not a stage id"):
        wings.stage(topic, "a b")
    with pytest.raises(TopicNotFound):
        wings.stage("no-such-topic", fresh())
    with pytest.raises(InvalidArgument, match="key 'batch'"):
        wings.publish("w", -1, [])
    with pytest.raises(InvalidArgument, match="key 'stages'"):
        wings.abort("w", ["a", "a"])
    with pytest.raises(InvalidArgument, match="must be positive"):
        wings.stage(topic, fresh(), seconds_max=0)


@async_in_soak
def test_a_topic_that_is_deleted_fails_the_stage(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    stage = wings.stage(topic, fresh())
    wings.delete_topic(topic)

    def endless() -> Iterator[dict[str, int]]:
        while True:
            yield {"n": 1}

    with pytest.raises(TopicNotFound):
        stage.write(endless())
    with pytest.raises(TopicNotFound):
        stage.close()


def test_publishes_are_fenced_and_aborts_tell_what_was_published(
    wings: Client, new_topic: NewTopic
) -> None:
    topic, writer = new_topic(), fresh()
    stages: list[Staged] = []
    for _ in range(2):
        with wings.stage(topic, fresh()) as stage:
            stage.write({"n": [1]})
        stages.append(stage.close())
    wings.publish(writer, 3, stages[:1])
    with pytest.raises(PublishFenced) as caught:
        wings.publish(writer, 2, stages[1:])
    assert caught.value.last_batch == 3
    aborted = wings.abort(writer, stages, batch=3)
    assert (aborted.deleted, aborted.published) == ((stages[1].stage,), True)
    assert wings.abort(writer, ["any"]).published is None
    with wings.stage(topic, f"{writer}.left") as left:
        left.write({"n": [1]})
    assert wings.abort(writer, [], prefix=f"{writer}.").deleted == (left.id,)


def test_a_lost_connection_fails_the_stage(
    shaky: Client, proxy: BreakableProxy, new_topic: NewTopic
) -> None:
    topic = new_topic()
    stage = shaky.stage(topic, fresh())
    stage.write({"n": [1]})
    assert wait_for_rows(stage, 1)
    proxy.cut()
    with pytest.raises(Unavailable) as caught:
        stage.close()
    assert caught.value.connection == Connection.LOST
    with shaky.stage(topic, fresh()) as again:
        again.write({"n": [1]})
    shaky.publish(fresh(), 0, [again.id])
    assert numbers(shaky, topic) == [1]


def wait_for_rows(stage: wings_client.Stage, rows: int) -> bool:
    pause = threading.Event()
    for _ in range(3_000):
        if stage.rows == rows:
            return True
        pause.wait(0.01)
    return False


@async_in_soak
def test_a_server_that_went_silent_fails_the_stage_in_the_clients_time(
    server: Any, proxy: BreakableProxy, new_topic: NewTopic
) -> None:
    del server
    topic = new_topic()
    with wings_client.connect(proxy.endpoint, timeout=3.0, retry=EAGER) as client:
        stage = client.stage(topic, fresh())
        stage.write({"n": [1]})
        assert wait_for_rows(stage, 1)
        proxy.stall()
        stage.write({"n": [2]})
        with pytest.raises(Unavailable) as caught:
            stage.close()
        assert caught.value.connection == Connection.TIMEOUT
        proxy.go_on()


@async_in_soak
def test_a_publish_whose_answer_is_lost_is_sent_again_and_published_once(
    shaky: Client, proxy: BreakableProxy, wings: Client, new_topic: NewTopic
) -> None:
    topic, writer = new_topic(), fresh()
    with shaky.stage(topic, fresh()) as stage:
        stage.write({"n": [1, 2]})
    proxy.stall_answers()
    got: list[Published] = []
    publishing = threading.Thread(target=lambda: got.append(shaky.publish(writer, 0, [stage.id])))
    publishing.start()
    pause = threading.Event()
    while not numbers(wings, topic):
        pause.wait(0.01)
    proxy.cut()
    proxy.go_on()
    publishing.join(60)
    assert [each.replayed for each in got] == [True]
    assert numbers(wings, topic) == [1, 2]


def test_a_stream_whose_end_is_refused_after_all_answers_completes_the_stage(
    calls: Calls,
) -> None:
    read: set[ReadRoom] = set()

    def refuse_after_a_batch(room: ReadRoom) -> None:
        if room in read:
            raise ResourceExhausted("no room")

    def note(room: ReadRoom, _: int) -> None:
        read.add(room)

    with running_server() as server, wings_client.connect(server.flight) as client:
        client.create_topic("t", {"n": "int64"})
        calls.before(ReadRoom, "begin", refuse_after_a_batch)
        calls.before(ReadRoom, "end", note)
        with client.stage("t", "s") as stage:
            stage.write({"n": [1, 2]})
        assert stage.close().rows == 2
        assert client.push("t", {"n": [3]}).rows == 1  # On another stream, which ends so too.
        calls.stop()
        client.publish("w", 0, ["s"])
        assert numbers(client, "t") == [3, 1, 2]


def test_closing_the_client_ends_its_stages(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    client = wings_client.connect(wings.endpoint)
    stage = client.stage(topic, fresh())
    stage.write({"n": [1]})
    client.close()
    with pytest.raises(Unavailable):
        stage.close()


@async_in_soak
def test_many_stages_at_once_are_published_as_one(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic("key: int32", "n: int64", partition_key="key")
    ids = [fresh() for _ in range(8)]

    def rows(number: int) -> Iterator[dict[str, int]]:
        for row in range(200):
            yield {"key": row % 3, "n": number * 1_000 + row}

    def task(number: int) -> None:
        with wings.stage(topic, ids[number], batch_rows=7) as stage:
            stage.write(rows(number))

    threads = [threading.Thread(target=task, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    published = wings.publish(fresh(), 0, ids)
    assert sum(each.end_offset + 1 for each in published.committed) == 1_600
    expected = sorted(row["n"] for number in range(8) for row in rows(number))
    assert sorted(numbers(wings, topic)) == expected


# The client's shards: opened, acquired, published with rows, listed, reset and pruned. ############

URI = "s3://bucket/größe +1.jsonl"


@async_in_soak
def test_a_shard_is_published_with_its_rows_by_its_owner_alone(
    wings: Client, new_topic: NewTopic
) -> None:
    topic, source = new_topic(), fresh()
    (shard,) = wings.open_shards(source, "a", [URI])
    assert (shard.token, shard.position, shard.state) == ("a", 0, ShardState.OPEN)
    assert wings.open_shards(source, "b", [URI]) == [shard]
    with wings.stage(topic, fresh()) as stage:
        stage.write({"n": [1, 2, 3]})
    foreign = ShardProgress(source, URI, "b", 0, 3, ShardState.FINISHED)
    with pytest.raises(PublishFenced) as raised:
        wings.publish(fresh(), 0, [stage.id], [foreign])
    assert (raised.value.source, raised.value.shard) == (source, URI)
    assert wings.scan(topic).read_all().num_rows == 0
    own = ShardProgress(source, URI, "a", 0, 3, ShardState.FINISHED)
    wings.publish(fresh(), 0, [stage.id], [own])
    assert wings.scan(topic).read_all().num_rows == 3
    (shard,) = wings.get_shards(source, [URI, "nowhere"])
    assert (shard.position, shard.state) == (3, ShardState.FINISHED)


def test_shards_are_taken_over_listed_reset_and_pruned(wings: Client) -> None:
    source = fresh()
    wings.open_shards(source, "a", ["one", "two", "three"])
    taken = wings.acquire_shards(source, "b", {"one": "a", "two": "c", "nowhere": "a"}, 0.0)
    assert [(shard.shard, shard.token) for shard in taken] == [("one", "b"), ("two", "a")]
    ends = [
        ShardProgress(source, "one", "b", 0, 0, ShardState.DEAD, "row 7 is bad"),
        ShardProgress(source, "two", "a", 0, 5, ShardState.FINISHED),
    ]
    wings.publish(fresh(), 0, [], ends)
    assert wings.count_shards(source) == ShardCounts(1, 1, 1, 5)
    (dead,) = wings.list_shards(source, "dead")
    assert (dead.error, dead.failures) == ("row 7 is bad", 1)
    assert [shard.shard for shard in wings.list_shards(source, after="one")] == ["three", "two"]
    assert wings.list_shards(source, limit=1) == [dead]
    (reset,) = wings.reset_shards(source, ["one", "two"])
    assert (reset.token, reset.state, reset.updated_at) == ("", ShardState.OPEN, 0)
    assert wings.prune_shards(source, 0.0, interval_seconds=60.0) == ShardsPruned(1, False)
    assert wings.prune_shards(source, 0.0, interval_seconds=60.0) == ShardsPruned(0, True)
    assert [shard.shard for shard in wings.list_shards(source)] == ["one", "three"]


def test_what_cannot_be_is_refused_by_name(wings: Client) -> None:
    with pytest.raises(InvalidArgument, match="'state'"):
        wings.list_shards("s", "closed")
    with pytest.raises(InvalidArgument, match="named twice"):
        wings.open_shards("s", "a", ["x", "x"])
    with pytest.raises(InvalidArgument, match="'token'"):
        wings.open_shards("s", "", ["x"])
