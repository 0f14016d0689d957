"""The client's shards: opened, acquired, published with rows, listed, reset and pruned."""

from uuid import uuid4

import pytest
from fix_client import NewTopic, async_in_soak

from wings_client import Client, ShardCounts, ShardProgress, ShardsPruned, ShardState
from wings_core.errors import InvalidArgument, PublishFenced

URI = "s3://bucket/größe +1.jsonl"


def fresh() -> str:
    return f"s-{uuid4()}"


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
