"""How every `Stages` keeps batches out of sight, and publishes, aborts and sweeps them."""

import threading
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from fix_metadata import (
    DAY,
    HOUR,
    NOON,
    SECOND,
    A,
    B,
    C,
    MetadataUnderTest,
    batch_of,
    offsets_of,
)
from property_examples import examples
from tables import each

from wings_core.errors import (
    AlreadyExists,
    BatchTooLarge,
    InvalidArgument,
    OffsetOutOfRange,
    PublishFenced,
    StageNotFound,
    TopicNotFound,
    WingsError,
)
from wings_core.metadata import stages as rules
from wings_core.metadata.waiting import Wake
from wings_core.model import (
    AbortResult,
    CommitBatch,
    CommitResult,
    ConsumerCommit,
    Location,
    PageAddress,
    Position,
    PublishedTopicRange,
    PublishResult,
    Rejected,
    StagedBatch,
    StageEntry,
    StoredPage,
    Topic,
    UnpublishedStage,
)
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.times import Deadline

HUGE = 1 << 80
"""A batch number that no database can store."""


def rejection_of(result: CommitResult) -> WingsError:
    assert isinstance(result, Rejected)
    return result.error


def range_of(topic: Topic, partition: Partition, start: int, end: int) -> PublishedTopicRange:
    return PublishedTopicRange(topic.name, partition, start, end)


def purge_all(metadata: MetadataUnderTest, pages_max: int = 1_000) -> None:
    for _ in range(10_000):
        if not metadata.registry.purge(pages_max):
            return
    raise AssertionError("the purge does not end")


# Staging.


def test_a_staged_batch_is_answered_with_its_rows_and_bytes_and_is_invisible(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic("key")
    entry = StageEntry("s", "w", first=True)
    (result,) = metadata.registry.commit([batch_of(topic, {A: 2, B: 3}, stage=entry)])
    assert result == StagedBatch("s", 5, 200)
    assert metadata.registry.partition_states(topic.uuid) == []
    assert offsets_of(metadata.registry, topic, A) == []
    assert metadata.registry.live_folios() == {"folio-1"}


def test_a_staged_batch_takes_no_offsets_from_those_that_are_visible(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic("key")
    entry = StageEntry("s", "w", first=True)
    results = metadata.registry.commit(
        [batch_of(topic, {A: 2}), batch_of(topic, {A: 5}, stage=entry), batch_of(topic, {A: 1})]
    )
    assert [type(result).__name__ for result in results] == ["Accepted", "StagedBatch", "Accepted"]
    assert offsets_of(metadata.registry, topic, A) == [(0, 1), (2, 2)]


def test_a_stage_remembers_its_pages_in_the_order_in_which_they_came(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic("key")
    metadata.stage(topic, "s", {B: 1, A: 2}, {}, {A: 3})
    metadata.clock.time += SECOND
    metadata.reopen()
    assert metadata.stages.of_topic(topic.uuid) == [
        UnpublishedStage("s", topic.uuid, 6, 300, 3, NOON)
    ]
    pages = [
        StoredPage(B, 1, PageAddress("folio-1", 0, 100)),
        StoredPage(A, 2, PageAddress("folio-1", 100, 100)),
        StoredPage(A, 3, PageAddress("folio-1", 0, 100)),
    ]
    assert metadata.stages.pages("s", 0, 10) == pages
    assert metadata.stages.pages("s", 1, 1) == pages[1:2]
    assert metadata.stages.pages("s", 3, 10) == []
    assert metadata.stages.pages("other", 0, 10) == []


def test_staged_slices_of_a_page_stay_slices_when_they_are_published(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic("key")
    page = PageAddress("folio-1", 0, 1_000)
    slices = [
        StoredPage(A, 2, page, 0, 200),
        StoredPage(A, 3, page, 2, 300),  # Goes on where the one before ends.
        StoredPage(B, 1, page, 5, 100),
        StoredPage(B, 1, page, 7, 100),
    ]
    batches = [
        CommitBatch(0, topic.uuid, (each,), stage=StageEntry("s", "w", first=index == 0))
        for index, each in enumerate(slices)
    ]
    metadata.registry.commit(batches)
    joined = [StoredPage(A, 5, page, 0, 500), *slices[2:]]
    assert metadata.stages.pages("s", 0, 10) == joined
    assert metadata.stages.of_topic(topic.uuid) == [
        UnpublishedStage("s", topic.uuid, 7, 700, 3, NOON)
    ]
    published = metadata.stages.publish("writer", 0, ["s"])
    metadata.reopen()
    locations = [metadata.registry.locate(topic.uuid, to, 0, 10).locations for to in (A, B)]
    assert locations == [
        (Location(0, 4, NOON, page, first_row=0, slice_bytes=500),),
        (
            Location(0, 0, NOON, page, first_row=5, slice_bytes=100),
            Location(1, 1, NOON, page, first_row=7, slice_bytes=100),
        ),
    ]
    states = metadata.registry.partition_states(topic.uuid)
    assert [state.bytes for state in states] == [500, 200]
    assert [each.bytes for each in published.committed] == [500, 200]


def test_stages_are_listed_by_topic_and_id(metadata: MetadataUnderTest) -> None:
    topic, other = metadata.create_topic(), metadata.create_topic()
    for stage in ("c", "a", "b"):
        metadata.stage(topic, stage)
    metadata.stage(other, "d")
    assert [stage.stage for stage in metadata.stages.of_topic(topic.uuid)] == ["a", "b", "c"]
    metadata.admin.delete_topic(topic.name)
    assert metadata.stages.of_topic(topic.uuid) == []


def test_a_second_stream_may_not_add_to_a_stage(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    metadata.stage(topic, "s", {UNPARTITIONED: 2})
    again = StageEntry("s", "another", first=True)
    batches = [batch_of(topic, {UNPARTITIONED: 9}, stage=again)] * 2
    error = rejection_of(metadata.registry.commit(batches)[0])
    assert isinstance(error, AlreadyExists)
    assert error.stage == "s"
    assert metadata.stages.publish("w", 0, ["s"]).committed[0].end_offset == 1


def test_two_streams_of_one_flush_cannot_begin_the_same_stage(
    metadata: MetadataUnderTest,
) -> None:
    topic, other = metadata.create_topic(), metadata.create_topic()
    first, second = (StageEntry("s", name, first=True) for name in ("x", "y"))
    results = metadata.registry.commit(
        [
            batch_of(topic, {UNPARTITIONED: 1}, stream=1, stage=first),
            batch_of(other, {UNPARTITIONED: 1}, stream=2, stage=second),
        ]
    )
    assert isinstance(results[0], StagedBatch)
    assert isinstance(rejection_of(results[1]), AlreadyExists)


def test_a_stage_that_a_refused_batch_would_have_begun_is_of_the_topic_whose_batch_begins_it(
    metadata: MetadataUnderTest,
) -> None:
    topic, other = metadata.create_topic(), metadata.create_topic()
    first, second = (StageEntry("s", name, first=True) for name in ("x", "y"))
    late = NOON + HOUR + SECOND
    results = metadata.registry.commit(
        [
            batch_of(topic, {UNPARTITIONED: 1}, stream=1, stage=first, timestamp=late),
            batch_of(other, {UNPARTITIONED: 2}, stream=2, stage=second),
        ]
    )
    assert isinstance(rejection_of(results[0]), InvalidArgument)
    assert results[1] == StagedBatch("s", 2, 100)
    assert metadata.stages.of_topic(topic.uuid) == []
    assert metadata.stages.publish("w", 0, ["s"]).committed == (
        range_of(other, UNPARTITIONED, 0, 1),
    )


@pytest.mark.parametrize("ending", ["publish", "abort", "sweep"])
def test_a_stream_whose_stage_is_gone_cannot_begin_it_anew_halfway(
    metadata: MetadataUnderTest, ending: str
) -> None:
    topic = metadata.create_topic()
    first = StageEntry("s", "w", first=True)
    metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 1}, stage=first)])
    match ending:
        case "publish":
            metadata.stages.publish("w", 0, ["s"])
        case "abort":
            metadata.stages.abort("w", ["s"])
        case _:
            metadata.stages.sweep(0, 10)
    later = StageEntry("s", "w", first=False)
    (result,) = metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 1}, stage=later)])
    assert isinstance(rejection_of(result), StageNotFound)
    # Nor can it add to one that another stream began under its id.
    metadata.stage(topic, "s")
    (result,) = metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 1}, stage=later)])
    assert isinstance(rejection_of(result), StageNotFound)
    assert metadata.stages.of_topic(topic.uuid)[0].rows == 1


def test_an_empty_batch_begins_a_stage(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    metadata.stage(topic, "s", {})
    assert metadata.stages.publish("w", 0, ["s"]) == PublishResult(())
    with pytest.raises(StageNotFound):
        metadata.stages.publish("w", 1, ["s"])


def test_a_staged_timestamp_too_far_ahead_is_refused_and_begins_no_stage(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    with pytest.raises(InvalidArgument, match="ahead of the server's clock"):
        metadata.stage(topic, "s", timestamp=NOON + HOUR + SECOND)
    assert metadata.stages.of_topic(topic.uuid) == []


def test_staging_for_a_deleted_topic_is_refused(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    metadata.admin.delete_topic(topic.name)
    with pytest.raises(TopicNotFound):
        metadata.stage(topic, "s")


# Publishing.


def test_a_publish_makes_all_stages_visible_and_says_what_each_partition_got(
    metadata: MetadataUnderTest,
) -> None:
    keyed, plain = metadata.create_topic("key"), metadata.create_topic()
    metadata.push(keyed, 7, A)
    metadata.stage(keyed, "one", {B: 1, A: 2}, {A: 3})
    metadata.stage(plain, "two", {UNPARTITIONED: 4})
    metadata.stage(keyed, "three", {C: 1, A: 1})
    metadata.stage(keyed, "unpublished", {A: 100})
    published = metadata.stages.publish("w", 5, ["three", "two", "one"])
    assert published == PublishResult(
        (
            range_of(keyed, C, 0, 0),
            range_of(keyed, A, 7, 12),
            range_of(plain, UNPARTITIONED, 0, 3),
            range_of(keyed, B, 0, 0),
        )
    )
    assert offsets_of(metadata.registry, keyed, A) == [(0, 6), (7, 7), (8, 9), (10, 12)]
    assert offsets_of(metadata.registry, plain) == [(0, 3)]
    state = metadata.registry.partition_state(keyed.uuid, A)
    assert (state.next_offset, state.bytes) == (13, 400)


def test_pages_keep_their_places_through_a_publish(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    metadata.stage(topic, "s", {A: 1, B: 2}, folio="staged")
    metadata.stages.publish("w", 0, ["s"])
    (location,) = metadata.registry.locate(topic.uuid, B, 0, 10).locations
    assert location.address == PageAddress("staged", 100, 100)
    assert metadata.registry.live_folios() == {"staged"}
    metadata.admin.delete_topic(topic.name)
    purge_all(metadata)
    assert metadata.registry.live_folios() == set()


def test_what_is_pushed_after_a_publish_follows_it(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    metadata.push(topic, 2)
    metadata.stage(topic, "s", {UNPARTITIONED: 3})
    metadata.push(topic, 1)
    metadata.stages.publish("w", 0, ["s"])
    assert metadata.push(topic).start_offset == 6
    metadata.reopen()
    assert metadata.push(topic).start_offset == 7


def test_timestamps_are_of_the_publish_and_never_decrease(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    metadata.stage(topic, "early", timestamp=NOON - HOUR)
    metadata.stage(topic, "plain")
    metadata.stage(topic, "late", timestamp=NOON + HOUR)
    metadata.push(topic, timestamp=NOON - SECOND)
    metadata.clock.time += 5 * SECOND
    metadata.stages.publish("w", 0, ["early", "plain"])
    metadata.clock.time -= DAY
    metadata.stages.publish("w", 1, ["late"])
    located = metadata.registry.locate(topic.uuid, UNPARTITIONED, 0, 10)
    stamps = [location.timestamp for location in located.locations]
    assert stamps == [NOON - SECOND, NOON - SECOND, NOON + 5 * SECOND, NOON + HOUR]


def test_a_publish_of_nothing_is_remembered_too(metadata: MetadataUnderTest) -> None:
    assert metadata.stages.publish("w", 0, []) == PublishResult(())
    assert metadata.stages.publish("w", 0, ["any"]) == PublishResult((), replayed=True)


def test_a_repeated_publish_is_answered_with_the_first_result(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic("key")
    metadata.stage(topic, "s", {A: 2, B: 1})
    first = metadata.stages.publish("w", 3, ["s"])
    metadata.stage(topic, "another", {A: 9})
    metadata.reopen()
    for stages in (["s"], ["another"], ["nowhere"], []):
        assert metadata.stages.publish("w", 3, stages) == PublishResult(
            first.committed, replayed=True
        )
    assert metadata.registry.partition_state(topic.uuid, A).next_offset == 2
    metadata.admin.delete_topic(topic.name)
    purge_all(metadata)
    assert metadata.stages.publish("w", 3, ["s"]) == PublishResult(first.committed, replayed=True)


def test_writers_count_their_batches_apart(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    for writer in ("a", "b"):
        metadata.stage(topic, writer)
        assert not metadata.stages.publish(writer, 0, [writer]).replayed
    assert metadata.registry.partition_state(topic.uuid, UNPARTITIONED).next_offset == 2


def test_a_batch_before_the_last_one_that_was_never_published_is_fenced(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    metadata.stage(topic, "s")
    metadata.stages.publish("w", 7, [])
    with pytest.raises(PublishFenced) as caught:
        metadata.stages.publish("w", 6, ["s"])
    assert caught.value.last_batch == 7
    assert metadata.stages.publish("w", 9, ["s"]).committed


def test_an_old_result_is_forgotten_and_its_batch_never_published_again(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    kept = rules.PUBLISH_RESULTS_KEPT_MAX
    for batch in range(kept + 1):
        metadata.stages.publish("w", 2 * batch, [])
    metadata.stage(topic, "s")
    assert metadata.stages.publish("w", 2, ["s"]).replayed
    for batch in (0, 1, 3):
        with pytest.raises(PublishFenced):
            metadata.stages.publish("w", batch, ["s"])
    assert metadata.registry.partition_state(topic.uuid, UNPARTITIONED).next_offset == 0


@pytest.mark.parametrize("purged", [False, True])
def test_a_result_is_forgotten_some_time_after_its_successor_came_and_the_last_much_later(
    metadata: MetadataUnderTest, purged: bool
) -> None:
    metadata.stages.publish("w", 0, [])
    metadata.clock.time += 30 * DAY
    assert metadata.stages.publish("w", 0, []).replayed
    metadata.stages.publish("w", 1, [])
    metadata.clock.time += 7 * DAY - 1
    assert metadata.stages.publish("w", 0, []).replayed
    metadata.clock.time += 1
    if purged:
        purge_all(metadata, 1)
    with pytest.raises(PublishFenced):
        metadata.stages.publish("w", 0, [])
    metadata.clock.time += 83 * DAY - 1
    purge_all(metadata)
    assert metadata.stages.publish("w", 1, []).replayed
    assert metadata.stages.abort("w", [], batch=1).published


def test_a_writer_that_has_long_published_nothing_is_forgotten_and_repeats_no_row(
    metadata: MetadataUnderTest,
) -> None:
    """What it staged is gone with its publish, so that a repeat finds nothing to publish."""
    topic = metadata.create_topic()
    for writer in ("old", "new"):
        for batch in range(3):
            metadata.stage(topic, f"{writer}-{batch}")
            metadata.stages.publish(writer, batch, [f"{writer}-{batch}"])
        metadata.clock.time += 45 * DAY
    purge_all(metadata, 1)
    assert metadata.stages.publish("new", 2, ["new-2"]).replayed
    with pytest.raises(StageNotFound):
        metadata.stages.publish("old", 2, ["old-2"])
    assert metadata.stages.abort("old", [], batch=2).published is False
    metadata.stage(topic, "old-0")
    assert not metadata.stages.publish("old", 0, ["old-0"]).replayed, "it begins anew"
    assert metadata.registry.partition_state(topic.uuid, UNPARTITIONED).next_offset == 7


def test_only_the_last_epoch_that_a_writer_began_publishes(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    for stage in ("before", "first", "second", "other"):
        metadata.stage(topic, stage)
    assert metadata.stages.publish("w", 0, ["before"]).committed
    with pytest.raises(PublishFenced, match="has begun no epoch"):
        metadata.stages.publish("w", 1, ["first"], epoch=1)
    assert metadata.stages.begin("w") == 1
    with pytest.raises(PublishFenced, match="name it") as caught:
        metadata.stages.publish("w", 1, ["first"])
    assert caught.value.facts["epoch"] == 1
    assert metadata.stages.publish("w", 1, ["first"], epoch=1).committed
    assert metadata.stages.begin("w") == 2
    metadata.reopen()
    for epoch in (1, 3):
        with pytest.raises(PublishFenced) as caught:
            metadata.stages.publish("w", 2, ["second"], epoch=epoch)
        assert caught.value.facts["epoch"] == 2
    for epoch in (None, 1, 2):
        assert metadata.stages.publish("w", 1, ["first"], epoch=epoch).replayed, "it was published"
    assert metadata.stages.publish("w", 2, ["second"], epoch=2).committed
    assert metadata.stages.publish("other", 0, ["other"]).committed, "of another writer"
    assert metadata.registry.partition_state(topic.uuid, UNPARTITIONED).next_offset == 4


def test_an_epoch_is_forgotten_with_its_writer(metadata: MetadataUnderTest) -> None:
    metadata.stages.begin("idle")
    metadata.stages.begin("busy")
    metadata.clock.time += 89 * DAY
    metadata.stages.publish("busy", 0, [], epoch=1)
    metadata.clock.time += 2 * DAY
    purge_all(metadata, 1)
    assert metadata.stages.begin("idle") == 1
    assert metadata.stages.begin("busy") == 2


def test_a_publish_stores_offsets_of_a_consumer_with_its_rows_or_neither(
    metadata: MetadataUnderTest,
) -> None:
    source, target = metadata.create_topic("key"), metadata.create_topic()
    metadata.registry.commit([batch_of(source, {A: 5, B: 5})])
    for stage in ("s", "t"):
        metadata.stage(target, stage)

    def state() -> tuple[int, dict[Partition, int]]:
        offsets = metadata.registry.get_offsets("reader")
        rows = metadata.registry.partition_state(target.uuid, UNPARTITIONED).next_offset
        return rows, {offset.partition: offset.offset for offset in offsets}

    read = ConsumerCommit("reader", ((source, A, 3), (source, B, 5)))
    metadata.stages.publish("w", 0, ["s"], offsets=read)
    assert state() == (1, {A: 3, B: 5})
    further = ConsumerCommit("reader", ((source, A, 5),))
    assert metadata.stages.publish("w", 0, ["s"], offsets=further).replayed
    assert state() == (1, {A: 3, B: 5}), "the offsets are the first publish's too"
    past_end = ConsumerCommit("reader", ((source, A, 4), (source, B, 6)))
    with pytest.raises(OffsetOutOfRange):
        metadata.stages.publish("w", 1, ["t"], offsets=past_end)
    with pytest.raises(StageNotFound):
        metadata.stages.publish("w", 1, ["t", "gone"], offsets=further)
    metadata.stages.begin("w")
    with pytest.raises(PublishFenced):
        metadata.stages.publish("w", 1, ["t"], offsets=further)
    assert state() == (1, {A: 3, B: 5})
    metadata.stages.publish("w", 1, ["t"], epoch=1, offsets=further)
    metadata.stages.publish(
        "w", 2, [], epoch=1, offsets=ConsumerCommit("r", ((target, UNPARTITIONED, 2),))
    )
    metadata.reopen()
    assert state() == (2, {A: 5, B: 5})


def test_offsets_of_a_deleted_topic_or_that_cannot_be_publish_nothing(
    metadata: MetadataUnderTest,
) -> None:
    source, target = metadata.create_topic(), metadata.create_topic()
    metadata.stage(target, "s")
    for offsets in (((source, UNPARTITIONED, -1),), ((source, UNPARTITIONED, HUGE),)):
        with pytest.raises(InvalidArgument):
            metadata.stages.publish("w", 0, ["s"], offsets=ConsumerCommit("reader", offsets))
    metadata.admin.delete_topic(source.name)
    with pytest.raises(TopicNotFound):
        metadata.stages.publish(
            "w", 0, ["s"], offsets=ConsumerCommit("reader", ((source, UNPARTITIONED, 0),))
        )
    assert not metadata.stages.publish("w", 0, ["s"]).replayed


def test_a_publish_that_names_a_stage_that_is_not_there_publishes_nothing(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    metadata.stage(topic, "s")
    with pytest.raises(StageNotFound, match="nowhere") as caught:
        metadata.stages.publish("w", 0, ["s", "nowhere"])
    assert caught.value.stage == "nowhere"
    assert metadata.registry.partition_state(topic.uuid, UNPARTITIONED).next_offset == 0
    assert not metadata.stages.publish("w", 0, ["s"]).replayed


@pytest.mark.parametrize("purged", [False, True])
def test_a_publish_into_a_deleted_topic_publishes_nothing(
    metadata: MetadataUnderTest, purged: bool
) -> None:
    deleted, other = metadata.create_topic(), metadata.create_topic()
    metadata.stage(other, "good", folio="good")
    metadata.stage(deleted, "bad", folio="bad")
    metadata.admin.delete_topic(deleted.name)
    again = metadata.admin.create_topic(deleted.name, deleted.schema)
    if purged:
        purge_all(metadata, 1)
        assert metadata.registry.live_folios() == {"good"}
    with pytest.raises(TopicNotFound) as caught:
        metadata.stages.publish("w", 0, ["good", "bad"])
    assert caught.value.stage == "bad"
    for topic in (other, again):
        assert metadata.registry.partition_state(topic.uuid, UNPARTITIONED).next_offset == 0
    assert metadata.stages.publish("w", 0, ["good"]).committed


def test_a_stage_is_published_once(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    metadata.stage(topic, "s")
    metadata.stages.publish("w", 0, ["s"])
    for writer, batch in (("w", 1), ("x", 0)):
        with pytest.raises(StageNotFound):
            metadata.stages.publish(writer, batch, ["s"])
    with pytest.raises(InvalidArgument, match="twice"):
        metadata.stages.publish("w", 1, ["t", "t"])


@each(("writer", "batch"), [("w", -1), ("w", HUGE), ("\ud800", 0), ("a\0b", 0), ("w" * 257, 0)])
def test_a_writer_or_batch_that_cannot_be_is_refused(
    metadata: MetadataUnderTest, writer: str, batch: int
) -> None:
    with pytest.raises(InvalidArgument):
        metadata.stages.publish(writer, batch, [])
    with pytest.raises(InvalidArgument):
        metadata.stages.abort(writer, [], batch)


def test_the_highest_batch_there_is_can_be_published(metadata: MetadataUnderTest) -> None:
    metadata.stages.publish("w", (1 << 63) - 1, [])
    assert metadata.stages.publish("w", (1 << 63) - 1, []).replayed


def test_more_pages_than_one_transaction_may_move_are_refused(
    metadata: MetadataUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "PUBLISH_PAGES_MAX", 3)
    topic = metadata.create_topic("key")
    metadata.stage(topic, "two", {A: 1, B: 1})
    metadata.stage(topic, "one", {A: 1})
    metadata.stage(topic, "another", {A: 1})
    with pytest.raises(BatchTooLarge, match="'another'"):
        metadata.stages.publish("w", 0, ["two", "one", "another"])
    assert metadata.stages.publish("w", 0, ["two", "one"]).committed
    with pytest.raises(BatchTooLarge):
        metadata.stage(topic, "wide", {A: 1, B: 1}, {A: 1, B: 1})


def test_a_wide_publish_is_moved_whole(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    partitions = {Partition(f'"{number:05}"'): 1 for number in range(2_500)}
    metadata.stage(topic, "s", partitions, partitions)
    published = metadata.stages.publish("w", 0, ["s"])
    assert [found.partition for found in published.committed] == list(partitions)
    assert {found.end_offset for found in published.committed} == {1}
    assert {state.bytes for state in metadata.registry.partition_states(topic.uuid)} == {200}


def test_a_publish_wakes_whoever_waits(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    metadata.stage(topic, "s", {A: 1})
    wake = threading.Event()
    position = Position(topic.uuid, A, 0)
    with (
        ThreadPoolExecutor(1) as threads,
        metadata.registry.watch([position], wake.set),
    ):
        assert not wake.is_set()
        waiting = threads.submit(metadata.registry.wait, [position], Deadline.after(30), Wake())
        metadata.stages.publish("w", 0, ["s"])
        assert wake.wait(30)
        waiting.result(30)


def test_of_many_publishes_of_one_batch_at_once_one_publishes(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    for number in range(8):
        metadata.stage(topic, f"s{number}", {UNPARTITIONED: 2})

    def publish(number: int) -> PublishResult:
        return metadata.stages.publish("w", 0, [f"s{number}"])

    with ThreadPoolExecutor(8) as threads:
        got = list(threads.map(publish, range(8)))
    assert sorted(published.replayed for published in got) == [False] + [True] * 7
    assert {published.committed for published in got} == {(range_of(topic, UNPARTITIONED, 0, 1),)}
    assert len(metadata.stages.of_topic(topic.uuid)) == 7


@pytest.mark.hypothesis
def test_of_a_publish_and_an_abort_at_once_one_gets_the_stage(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    with ThreadPoolExecutor(2) as threads:
        for number in range(examples(15, 50)):
            stage = f"s{number}"
            metadata.stage(topic, stage)
            publish = threads.submit(metadata.stages.publish, stage, 0, [stage])
            abort = threads.submit(metadata.stages.abort, stage, [stage], 0)
            if abort.result(30).stages:
                with pytest.raises(StageNotFound):
                    publish.result(30)
                assert not metadata.stages.abort(stage, [], 0).published
            else:
                assert publish.result(30).committed
                assert metadata.stages.abort(stage, [stage], 0) == AbortResult((), published=True)
    purge_all(metadata)


# Aborting and sweeping.


def test_an_abort_deletes_the_stages_that_are_there_and_says_which(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    for stage in ("a", "b", "c"):
        metadata.stage(topic, stage)
    metadata.stages.publish("w", 0, ["b"])
    assert metadata.stages.abort("w", ["c", "b", "nowhere", "a", "a"]) == AbortResult(
        ("c", "a"), published=None
    )
    assert metadata.stages.of_topic(topic.uuid) == []
    assert metadata.stages.pages("a", 0, 10) == []
    assert metadata.registry.partition_state(topic.uuid, UNPARTITIONED).next_offset == 1
    with pytest.raises(StageNotFound):
        metadata.stages.publish("w", 1, ["a"])
    metadata.stage(topic, "a")
    assert metadata.stages.publish("w", 1, ["a"]).committed


def test_an_abort_deletes_the_stages_whose_ids_begin_alike(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    for stage in ("a.1", "a.2", "a.10", "a", "a:", "A.1", "aa", "b", "c"):
        metadata.stage(topic, stage)
    metadata.stages.publish("w", 0, ["a.2"])
    assert metadata.stages.abort("w", ["c", "a.1"], 0, "a.") == AbortResult(
        ("c", "a.1", "a.10"), published=True
    )
    left = [stage.stage for stage in metadata.stages.of_topic(topic.uuid)]
    assert left == ["A.1", "a", "a:", "aa", "b"]
    assert metadata.stages.abort("w", [], None, "a.") == AbortResult((), published=None)
    assert metadata.stages.abort("w", [], None, "a").stages == ("a", "a:", "aa")


def test_an_abort_says_whether_the_batch_was_published(metadata: MetadataUnderTest) -> None:
    assert metadata.stages.abort("w", [], 0) == AbortResult((), published=False)
    metadata.stages.publish("w", 3, [])
    assert metadata.stages.abort("w", [], 3).published is True
    assert metadata.stages.abort("w", [], 4).published is False
    assert metadata.stages.abort("x", [], 3).published is False
    assert metadata.stages.abort("w", [], 2).published is None


def test_the_pages_of_aborted_stages_are_purged_in_steps(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    for number in range(5):
        metadata.stage(topic, f"s{number}", {A: 1, B: 1}, {A: 1}, folio=f"folio-{number}")
    metadata.stages.abort("w", ["s0", "s1", "s3"])
    assert len(metadata.registry.live_folios()) == 5
    steps = 1
    while metadata.registry.purge(2):
        steps += 1
    assert steps >= 5
    assert metadata.registry.live_folios() == {"folio-2", "folio-4"}
    metadata.stages.publish("w", 0, ["s2", "s4"])
    assert metadata.registry.live_folios() == {"folio-2", "folio-4"}
    assert metadata.registry.partition_state(topic.uuid, A).next_offset == 4


def test_a_sweep_deletes_what_has_not_changed_for_long_enough(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    entry = StageEntry("growing", uuid4().hex, first=True)
    metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 1}, stage=entry)])
    metadata.stage(topic, "old")
    metadata.clock.time += 10 * SECOND
    entry = StageEntry("growing", entry.writing, first=False)
    metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 1}, stage=entry)])
    assert metadata.stages.sweep(10.000001, 100) == 0
    assert metadata.stages.sweep(10, 100) == 1
    assert [stage.stage for stage in metadata.stages.of_topic(topic.uuid)] == ["growing"]
    with pytest.raises(StageNotFound):
        metadata.stages.publish("w", 0, ["old"])
    assert metadata.stages.publish("w", 0, ["growing"]).committed


def test_a_sweep_is_bounded_and_takes_the_oldest_first(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    for stage in ("c", "a", "b"):
        metadata.stage(topic, stage)
        metadata.clock.time += SECOND
    assert metadata.stages.sweep(0, 2) == 2
    assert [stage.stage for stage in metadata.stages.of_topic(topic.uuid)] == ["b"]


@pytest.mark.parametrize("pages_max", [1, 2, 3, 1_000])
def test_the_stages_of_a_deleted_topic_give_their_folios_back_and_are_swept_later(
    metadata: MetadataUnderTest, pages_max: int
) -> None:
    topic = metadata.create_topic("key")
    metadata.stage(topic, "s", {A: 1, B: 1}, {A: 1}, folio="staged")
    metadata.stage(topic, "aborted", {A: 1, B: 1}, folio="aborted")
    metadata.stages.abort("w", ["aborted"])
    metadata.push(topic, 1, A)
    metadata.admin.delete_topic(topic.name)
    purge_all(metadata, pages_max)
    assert metadata.registry.live_folios() == set()
    with pytest.raises(TopicNotFound):
        metadata.stages.publish("w", 0, ["s"])
    assert metadata.stages.sweep(0, 10) == 1
    purge_all(metadata, pages_max)
    with pytest.raises(StageNotFound):
        metadata.stages.publish("w", 0, ["s"])


def test_the_topics_of_stages(metadata: MetadataUnderTest) -> None:
    one, other = metadata.create_topic(), metadata.create_topic()
    for number in range(120):
        metadata.stage(one, f"one-{number}")
    metadata.stage(other, "other-1")
    topics = metadata.stages.topics
    assert topics([]) == topics(["nowhere"]) == topics([], "no") == set()
    assert topics([f"one-{number}" for number in range(120)]) == {one.name}
    assert topics(["one-1", "nowhere", "other-1"]) == {one.name, other.name}
    assert topics(["one-1"], "oth") == {one.name, other.name}
    assert topics([], "one-") == {one.name}
    metadata.stages.abort("w", ["other-1"])
    assert topics(["other-1"], "oth") == set()
    with pytest.raises(InvalidArgument):
        topics(["a\0"])
