"""How every `Shards` keeps who reads what and how far, and how a publish moves it."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fix_metadata import NOON, SECOND, MetadataUnderTest, offsets_of
from tables import each

from wings_core.errors import InvalidArgument, PublishFenced
from wings_core.metadata.interfaces import OFFSET_MAX
from wings_core.metadata.stages import SHARD_BYTES_MAX
from wings_core.model import (
    PublishResult,
    Shard,
    ShardClaim,
    ShardCounts,
    ShardProgress,
    ShardsPruned,
    ShardState,
)
from wings_core.partitions import UNPARTITIONED

STALE = 60.0
URI = "s3://bucket/größe +1.jsonl"


def progress(
    position: int,
    next_position: int,
    state: ShardState = ShardState.OPEN,
    *,
    shard: str = URI,
    token: str = "a",
    error: str | None = None,
) -> ShardProgress:
    return ShardProgress("s", shard, token, position, next_position, state, error)


def only(shards: list[Shard]) -> Shard:
    (shard,) = shards
    return shard


def end(metadata: MetadataUnderTest, shard: str, state: ShardState = ShardState.FINISHED) -> None:
    """Open a shard and end it, at the present time."""
    metadata.shards.open("s", "a", [shard])
    moved = ShardProgress("s", shard, "a", 0, 0, state)
    metadata.stages.publish(f"end-{shard}", 0, [], [moved])


# Opening and acquiring.


def test_who_opens_a_shard_first_owns_it(metadata: MetadataUnderTest) -> None:
    opened = Shard("s", URI, "a", 0, ShardState.OPEN, 0, None, NOON, NOON)
    assert metadata.shards.open("s", "a", [URI]) == [opened]
    metadata.clock.time += SECOND
    assert metadata.shards.open("s", "b", [URI, "other"]) == [
        opened,
        Shard("s", "other", "b", 0, ShardState.OPEN, 0, None, NOON + SECOND, NOON + SECOND),
    ]
    metadata.reopen()
    assert metadata.shards.get("s", ["nowhere", URI]) == [opened]


def test_shards_of_two_sources_have_nothing_to_do_with_each_other(
    metadata: MetadataUnderTest,
) -> None:
    metadata.shards.open("s", "a", [URI])
    assert only(metadata.shards.open("t", "b", [URI])).token == "b"
    assert metadata.shards.get("u", [URI]) == []


def test_one_of_many_who_open_a_shard_at_once_owns_it(metadata: MetadataUnderTest) -> None:
    ids = [f"shard-{number}" for number in range(20)]
    barrier = threading.Barrier(4)

    def open_all(token: str) -> list[str]:
        barrier.wait()
        order = ids if token < "c" else list(reversed(ids))
        return [shard.token for shard in metadata.shards.open("s", token, order)]

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(open_all, "abcd"))
    owners = {shard.shard: shard.token for shard in metadata.shards.get("s", ids)}
    assert len(owners) == 20
    for token in "abcd":
        assert [shard.token for shard in metadata.shards.open("s", token, ids)] == [
            owners[shard] for shard in ids
        ]


def test_a_fresh_owner_is_not_replaced_and_a_stale_one_is(metadata: MetadataUnderTest) -> None:
    metadata.shards.open("s", "a", [URI])
    metadata.clock.time += int(STALE) * SECOND - 1
    claims = [ShardClaim(URI, "a")]
    assert only(metadata.shards.acquire("s", "b", claims, STALE)).token == "a"
    metadata.clock.time += 1
    acquired = only(metadata.shards.acquire("s", "b", claims, STALE))
    assert (acquired.token, acquired.updated_at) == ("b", metadata.clock.time)


def test_an_owner_is_stale_by_a_clock_that_was_set_back_too(metadata: MetadataUnderTest) -> None:
    metadata.shards.open("s", "a", [URI])
    metadata.clock.time -= 3_600 * SECOND
    claims = [ShardClaim(URI, "a")]
    assert only(metadata.shards.acquire("s", "b", claims, STALE)).token == "a"
    metadata.clock.time += int(STALE) * SECOND - 1
    assert only(metadata.shards.acquire("s", "b", claims, STALE)).token == "a"
    metadata.clock.time += 1
    assert only(metadata.shards.acquire("s", "b", claims, STALE)).token == "b"


def test_of_two_who_replace_a_stale_owner_one_succeeds(metadata: MetadataUnderTest) -> None:
    metadata.shards.open("s", "a", [URI])
    metadata.clock.time += 2 * int(STALE) * SECOND
    barrier = threading.Barrier(2)

    def take(token: str) -> bool:
        barrier.wait()
        found = metadata.shards.acquire("s", token, [ShardClaim(URI, "a")], STALE)
        return only(found).token == token

    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(take, "bc")) == [False, True]


def test_an_owner_that_says_that_it_is_alive_is_not_replaced(metadata: MetadataUnderTest) -> None:
    metadata.shards.open("s", "a", [URI])
    metadata.clock.time += 2 * int(STALE) * SECOND
    metadata.shards.acquire("s", "a", [ShardClaim(URI, "a")], STALE)
    assert only(metadata.shards.acquire("s", "b", [ShardClaim(URI, "a")], STALE)).token == "a"


def test_a_shard_that_is_not_there_or_has_ended_is_not_acquired(
    metadata: MetadataUnderTest,
) -> None:
    end(metadata, "done")
    metadata.clock.time += 2 * int(STALE) * SECOND
    claims = [ShardClaim("nowhere", "a"), ShardClaim("done", "a")]
    found = only(metadata.shards.acquire("s", "b", claims, STALE))
    assert (found.shard, found.token, found.state) == ("done", "a", ShardState.FINISHED)


# Publishing.


def test_progress_is_published_with_the_rows(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    metadata.shards.open("s", "a", [URI])
    metadata.stage(topic, "one", {UNPARTITIONED: 3})
    metadata.clock.time += SECOND
    metadata.stages.publish("w", 0, ["one"], [progress(0, 3)])
    assert offsets_of(metadata.registry, topic) == [(0, 2)]
    found = only(metadata.shards.get("s", [URI]))
    assert (found.position, found.state) == (3, ShardState.OPEN)
    assert found.updated_at == NOON + SECOND
    metadata.stage(topic, "two", {UNPARTITIONED: 1})
    metadata.stages.publish("w", 1, ["two"], [progress(3, 4, ShardState.FINISHED)])
    assert only(metadata.shards.get("s", [URI])).state is ShardState.FINISHED


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (progress(0, 4, token="b"), "another owner"),
        (progress(1, 4), "stands at 0, not 1"),
        (progress(0, 4, shard="nowhere"), "is not there"),
        (progress(0, 4, shard="done"), "is finished already"),
    ],
)
def test_a_wrong_token_or_position_fences_the_whole_publish(
    metadata: MetadataUnderTest, wrong: ShardProgress, why: str
) -> None:
    topic = metadata.create_topic()
    metadata.shards.open("s", "a", [URI, "good"])
    end(metadata, "done")
    metadata.stage(topic, "one", {UNPARTITIONED: 3})
    with pytest.raises(PublishFenced, match=why) as raised:
        metadata.stages.publish("w", 0, ["one"], [progress(0, 9, shard="good"), wrong])
    assert (raised.value.source, raised.value.shard) == ("s", wrong.shard)
    assert offsets_of(metadata.registry, topic) == []
    assert only(metadata.shards.get("s", ["good"])).position == 0
    # Nothing was remembered of it, so the same batch may be published without that shard.
    assert not metadata.stages.publish("w", 0, ["one"], [progress(0, 9, shard="good")]).replayed
    assert only(metadata.shards.get("s", ["good"])).position == 9


def test_the_old_owner_of_a_shard_is_fenced_and_the_new_one_goes_on_where_it_stood(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    metadata.shards.open("s", "a", [URI])
    metadata.stage(topic, "first", {UNPARTITIONED: 2})
    metadata.stages.publish("a", 0, ["first"], [progress(0, 2)])
    metadata.clock.time += 2 * int(STALE) * SECOND
    found = only(metadata.shards.acquire("s", "b", [ShardClaim(URI, "a")], STALE))
    assert (found.token, found.position) == ("b", 2)
    metadata.stage(topic, "late", {UNPARTITIONED: 5})
    with pytest.raises(PublishFenced):
        metadata.stages.publish("a", 1, ["late"], [progress(2, 7)])
    metadata.stage(topic, "new", {UNPARTITIONED: 1})
    ended = progress(2, 3, ShardState.FINISHED, token="b")
    metadata.stages.publish("b", 0, ["new"], [ended])
    assert offsets_of(metadata.registry, topic) == [(0, 1), (2, 2)]


def test_a_repeated_publish_moves_no_shard_twice(metadata: MetadataUnderTest) -> None:
    metadata.shards.open("s", "a", [URI])
    assert metadata.stages.publish("w", 0, [], [progress(0, 2)]) == PublishResult(())
    for _ in range(2):
        repeated = metadata.stages.publish("w", 0, [], [progress(0, 2)])
        assert repeated == PublishResult((), replayed=True)
    assert only(metadata.shards.get("s", [URI])).position == 2


def test_failures_are_counted_until_there_is_progress(metadata: MetadataUnderTest) -> None:
    metadata.shards.open("s", "a", [URI])
    for batch in range(2):
        metadata.stages.publish("w", batch, [], [progress(0, 0, error="row 7: \x00 bad")])
    found = only(metadata.shards.get("s", [URI]))
    assert (found.failures, found.error, found.position) == (2, "row 7: \ufffd bad", 0)
    metadata.stages.publish("w", 2, [], [progress(0, 1)])
    found = only(metadata.shards.get("s", [URI]))
    assert (found.failures, found.error) == (0, None)
    metadata.stages.publish("w", 3, [], [progress(1, 1, ShardState.DEAD, error="x" * 5_000)])
    found = only(metadata.shards.get("s", [URI]))
    assert (found.state, found.failures) == (ShardState.DEAD, 1)
    assert found.error is not None
    assert 1_000 < len(found.error) < 1_100


def test_a_dead_shard_that_is_reset_is_anybodys_and_keeps_its_position(
    metadata: MetadataUnderTest,
) -> None:
    metadata.shards.open("s", "a", [URI, "open"])
    metadata.stages.publish("w", 0, [], [progress(0, 5)])
    metadata.stages.publish("w", 1, [], [progress(5, 5, ShardState.DEAD, error="bad")])
    found = only(metadata.shards.reset("s", [URI, "open", "nowhere"]))
    assert (found.token, found.state, found.failures, found.error) == ("", ShardState.OPEN, 0, None)
    assert (found.position, found.updated_at) == (5, 0)
    assert only(metadata.shards.acquire("s", "b", [ShardClaim(URI, "")], STALE)).token == "b"
    assert metadata.shards.reset("s", [URI]) == []


# Looking and pruning.


def test_shards_are_listed_by_id_a_page_at_a_time(metadata: MetadataUnderTest) -> None:
    ids = ["a", "b", "z", "ä"]
    metadata.shards.open("s", "t", ["ä", "z", "a"])
    end(metadata, "b", ShardState.DEAD)
    assert [shard.shard for shard in metadata.shards.of_source("s", None, "", 10)] == ids
    assert [shard.shard for shard in metadata.shards.of_source("s", None, "a", 2)] == ["b", "z"]
    assert [shard.shard for shard in metadata.shards.of_source("s", ShardState.DEAD, "", 9)] == [
        "b"
    ]
    assert metadata.shards.of_source("s", None, "", -1) == []
    assert metadata.shards.of_source("other", None, "", 10) == []


def test_shards_are_counted(metadata: MetadataUnderTest) -> None:
    assert metadata.shards.count("s") == ShardCounts(0, 0, 0, 0)
    metadata.shards.open("s", "a", [URI, "x"])
    end(metadata, "dead", ShardState.DEAD)
    end(metadata, "done")
    metadata.stages.publish("w", 0, [], [progress(0, 5)])
    assert metadata.shards.count("s") == ShardCounts(2, 1, 1, 5)


def test_positions_beyond_what_an_offset_may_be_are_counted_as_the_last_one(
    metadata: MetadataUnderTest,
) -> None:
    shards = [URI, "x", "y"]
    metadata.shards.open("s", "a", shards)
    half = 1 << 62
    moves = [progress(0, half - 1, shard=URI), progress(0, half, ShardState.DEAD, shard="x")]
    metadata.stages.publish("w", 0, [], moves)
    assert metadata.shards.count("s") == ShardCounts(2, 0, 1, OFFSET_MAX)
    metadata.stages.publish("w", 1, [], [progress(0, OFFSET_MAX, shard="y")])
    assert metadata.shards.count("s") == ShardCounts(2, 0, 1, OFFSET_MAX)


def test_pruning_forgets_what_ended_long_ago_and_nothing_that_is_open(
    metadata: MetadataUnderTest,
) -> None:
    metadata.shards.open("s", "a", ["open"])
    end(metadata, "old")
    end(metadata, "old and dead", ShardState.DEAD)
    metadata.clock.time += 100 * SECOND
    end(metadata, "new")
    assert metadata.shards.prune("s", 100.0, None, 0.0) == ShardsPruned(2, debounced=False)
    left = [shard.shard for shard in metadata.shards.of_source("s", None, "", 10)]
    assert left == ["new", "open"]


def test_pruning_by_number_keeps_the_newest(metadata: MetadataUnderTest) -> None:
    metadata.shards.open("s", "a", ["open"])
    for number in range(5):
        metadata.clock.time += SECOND
        end(metadata, f"shard-{number}")
    assert metadata.shards.prune("s", 1e6, 2, 0.0).shards == 3
    left = [shard.shard for shard in metadata.shards.of_source("s", None, "", 10)]
    assert left == ["open", "shard-3", "shard-4"]


def test_one_of_many_prunings_at_once_is_done(metadata: MetadataUnderTest) -> None:
    end(metadata, "old")
    metadata.clock.time += 1_000 * SECOND
    barrier = threading.Barrier(4)

    def prune(_: int) -> ShardsPruned:
        barrier.wait()
        return metadata.shards.prune("s", 10.0, None, 60.0)

    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(prune, range(4)))
    assert sorted((found.shards, found.debounced) for found in results) == [
        *[(0, True)] * 3,
        (1, False),
    ]
    metadata.clock.time += 60 * SECOND
    assert not metadata.shards.prune("s", 10.0, None, 60.0).debounced
    assert not metadata.shards.prune("another", 10.0, None, 60.0).debounced


# What cannot be.


@each("source", ["", "s" * 257, "\ud800", "a\0b"])
def test_a_source_that_cannot_be_is_refused(metadata: MetadataUnderTest, source: str) -> None:
    calls: list[Any] = [
        lambda: metadata.shards.open(source, "a", [URI]),
        lambda: metadata.shards.acquire(source, "a", [ShardClaim(URI, "a")], 1.0),
        lambda: metadata.shards.get(source, [URI]),
        lambda: metadata.shards.of_source(source, None, "", 1),
        lambda: metadata.shards.count(source),
        lambda: metadata.shards.prune(source, 1.0, None, 1.0),
        lambda: metadata.stages.publish("w", 0, [], [ShardProgress(source, URI, "a", 0, 1)]),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument):
            call()


@each("shards", [[""], ["x" * (SHARD_BYTES_MAX + 1)], ["\ud800"], ["a\0b"], ["a", "a"]])
def test_shards_that_cannot_be_are_refused(metadata: MetadataUnderTest, shards: list[str]) -> None:
    with pytest.raises(InvalidArgument):
        metadata.shards.open("s", "a", shards)
    with pytest.raises(InvalidArgument):
        metadata.shards.get("s", shards)
    with pytest.raises(InvalidArgument):
        metadata.stages.publish("w", 0, [], [progress(0, 1, shard=shard) for shard in shards])


@each(
    "wrong",
    [
        progress(2, 1),
        progress(-1, 1),
        progress(0, 1 << 63),
        progress(0, 1, error="failed and got on"),
        progress(0, 1, token=""),
    ],
)
def test_progress_that_makes_no_sense_is_refused(
    metadata: MetadataUnderTest, wrong: ShardProgress
) -> None:
    metadata.shards.open("s", "a", [URI])
    with pytest.raises(InvalidArgument):
        metadata.stages.publish("w", 0, [], [wrong])
    assert only(metadata.shards.get("s", [URI])).position == 0


def test_an_owner_has_a_token_and_times_are_not_negative(metadata: MetadataUnderTest) -> None:
    with pytest.raises(InvalidArgument):
        metadata.shards.open("s", "", [URI])
    with pytest.raises(InvalidArgument):
        metadata.shards.acquire("s", "", [], 1.0)
    for seconds in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidArgument):
            metadata.shards.acquire("s", "a", [], seconds)
        with pytest.raises(InvalidArgument):
            metadata.shards.prune("s", seconds, None, 0.0)
