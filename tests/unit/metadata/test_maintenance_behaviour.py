"""How every `Maintenance` lends leases, and drops what is kept no longer."""

from uuid import uuid4

import pytest
from fix_metadata import SECOND, A, B, MetadataUnderTest, batch_of, offsets_of

from wings_core.errors import OffsetOutOfRange, TopicNotFound
from wings_core.metadata.maintenance import Finished
from wings_core.model import Expired, ShareConfig, ShareGroup, Topic
from wings_core.partitions import UNPARTITIONED, Partition


def expire(
    metadata: MetadataUnderTest,
    topic: Topic,
    partition: Partition = UNPARTITIONED,
    *,
    age_us: int | None = None,
    bytes_kept: int | None = None,
    finished: Finished | None = None,
    before_offset: int = 0,
    pages_max: int = 1_000,
) -> Expired:
    return metadata.opened.maintenance.expire(
        topic.uuid,
        partition,
        age_us=age_us,
        bytes_kept=bytes_kept,
        finished=finished,
        before_offset=before_offset,
        pages_max=pages_max,
    )


def push_pages(metadata: MetadataUnderTest, topic: Topic, pages: int, rows: int = 10) -> None:
    """Push pages of 100 bytes, a second apart."""
    for _ in range(pages):
        metadata.push(topic, rows)
        metadata.clock.time += SECOND


def test_a_lease_has_one_holder_until_it_ends(metadata: MetadataUnderTest) -> None:
    maintenance = metadata.opened.maintenance
    token = maintenance.acquire_lease("p", "one", 60)
    assert token is not None
    assert maintenance.acquire_lease("p", "other", 60) is None
    assert maintenance.acquire_lease("q", "other", 60) is not None
    metadata.clock.time += 59 * SECOND
    assert maintenance.acquire_lease("p", "one", 60) == token
    metadata.clock.time += 59 * SECOND
    assert maintenance.acquire_lease("p", "other", 60) is None
    metadata.clock.time += SECOND
    taken = maintenance.acquire_lease("p", "other", 60)
    assert taken not in (None, token)
    assert maintenance.acquire_lease("p", "one", 60) is None


def test_a_lease_outlasts_a_clock_that_was_set_back_by_no_more_than_its_length(
    metadata: MetadataUnderTest,
) -> None:
    maintenance = metadata.opened.maintenance
    token = maintenance.acquire_lease("p", "lost", 60)
    metadata.clock.time -= 3_600 * SECOND
    assert maintenance.acquire_lease("p", "other", 60) is None
    metadata.clock.time += 30 * SECOND
    assert maintenance.acquire_lease("p", "other", 60) is None
    assert maintenance.lease_holder("p") == "lost"
    metadata.clock.time += 30 * SECOND
    assert maintenance.acquire_lease("p", "other", 60) not in (None, token)


def test_a_lease_is_renewed_by_a_clock_that_was_set_back(metadata: MetadataUnderTest) -> None:
    maintenance = metadata.opened.maintenance
    token = maintenance.acquire_lease("p", "one", 60)
    metadata.clock.time -= 3_600 * SECOND
    assert maintenance.acquire_lease("p", "other", 60) is None
    metadata.clock.time += 59 * SECOND
    assert maintenance.acquire_lease("p", "one", 60) == token
    metadata.clock.time += 59 * SECOND
    assert maintenance.acquire_lease("p", "other", 60) is None


def test_a_lease_that_ended_has_another_token_for_the_same_holder(
    metadata: MetadataUnderTest,
) -> None:
    maintenance = metadata.opened.maintenance
    token = maintenance.acquire_lease("p", "one", 1)
    metadata.clock.time += SECOND
    assert maintenance.acquire_lease("p", "one", 1) not in (None, token)


def test_only_its_holder_gives_a_lease_back(metadata: MetadataUnderTest) -> None:
    maintenance = metadata.opened.maintenance
    maintenance.acquire_lease("p", "one", 60)
    maintenance.release_lease("p", "other")
    assert maintenance.acquire_lease("p", "other", 60) is None
    maintenance.release_lease("p", "one")
    assert maintenance.acquire_lease("p", "other", 60) is not None
    maintenance.release_lease("never there", "one")


def test_pages_older_than_their_age_go_and_the_log_starts_later(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    push_pages(metadata, topic, 5)
    assert expire(metadata, topic, age_us=3 * SECOND) == Expired(20, 2, 20, 200)
    assert offsets_of(metadata.registry, topic, offset=20) == [(20, 29), (30, 39), (40, 49)]
    state = metadata.registry.partition_state(topic.uuid, UNPARTITIONED)
    assert (state.log_start_offset, state.next_offset, state.bytes) == (20, 50, 300)
    with pytest.raises(OffsetOutOfRange) as caught:
        metadata.registry.locate(topic.uuid, UNPARTITIONED, 19, 1)
    assert caught.value.facts == {"log_start_offset": 20}
    assert expire(metadata, topic, age_us=3 * SECOND) == Expired(20, 0, 0, 0)


def test_the_newest_pages_are_kept_with_at_least_the_bytes_asked_for(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    push_pages(metadata, topic, 5)
    assert expire(metadata, topic, bytes_kept=500) == Expired(0, 0, 0, 0)
    assert expire(metadata, topic, bytes_kept=201) == Expired(20, 2, 20, 200)
    assert expire(metadata, topic, bytes_kept=1) == Expired(40, 2, 20, 200)
    assert expire(metadata, topic, age_us=None, bytes_kept=None) == Expired(40, 0, 0, 0)


def test_what_either_bound_says_goes(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    push_pages(metadata, topic, 5)
    assert expire(metadata, topic, age_us=4 * SECOND, bytes_kept=200).log_start_offset == 30


def new_group(metadata: MetadataUnderTest, topic: Topic, name: str) -> ShareGroup:
    return metadata.groups.create(ShareGroup(name, str(uuid4()), topic, ShareConfig()))


def test_what_the_groups_have_finished_goes_by_whole_pages(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    push_pages(metadata, topic, 5)
    groups = frozenset(new_group(metadata, topic, name).uuid for name in ("one", "other"))
    assert expire(metadata, topic, finished=Finished(9, groups)) == Expired(0, 0, 0, 0)
    assert expire(metadata, topic, finished=Finished(29, groups)) == Expired(20, 2, 20, 200)
    assert expire(metadata, topic, finished=Finished(29, groups)) == Expired(20, 0, 0, 0)
    assert expire(metadata, topic, bytes_kept=200, finished=Finished(20, groups)).pages == 1
    assert expire(metadata, topic, finished=Finished(50, groups)) == Expired(50, 2, 20, 200)
    assert metadata.push(topic, 2).start_offset == 50


def test_nothing_goes_where_the_groups_are_others_than_those_that_finished(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic()
    push_pages(metadata, topic, 5)
    one = new_group(metadata, topic, "one")
    finished = Finished(30, frozenset([one.uuid]))
    other = new_group(metadata, topic, "other")
    assert expire(metadata, topic, finished=finished).pages == 0
    metadata.groups.delete(topic, "other")
    both = Finished(30, frozenset([one.uuid, other.uuid]))
    assert expire(metadata, topic, finished=both).pages == 0
    moved = metadata.groups.restart(one, str(uuid4()))
    assert expire(metadata, topic, finished=finished).pages == 0
    assert expire(metadata, topic, finished=Finished(30, frozenset([moved.uuid]))).pages == 3
    metadata.groups.delete(topic, "one")
    assert expire(metadata, topic, finished=Finished(50, frozenset([moved.uuid]))).pages == 0


def test_one_step_drops_a_bounded_number_of_pages(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    push_pages(metadata, topic, 5)
    steps = [expire(metadata, topic, age_us=0, pages_max=2) for _ in range(4)]
    assert [step.pages for step in steps] == [2, 2, 1, 0]
    assert [step.log_start_offset for step in steps] == [20, 40, 50, 50]


def test_a_log_of_which_nothing_is_kept_goes_on_where_it_was(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    metadata.push(topic, 10, timestamp=metadata.clock.time + 100 * SECOND)
    assert expire(metadata, topic, age_us=-101 * SECOND) == Expired(10, 1, 10, 100)
    state = metadata.registry.partition_state(topic.uuid, UNPARTITIONED)
    assert (state.log_start_offset, state.next_offset, state.bytes) == (10, 10, 0)
    now = metadata.clock.time
    assert metadata.registry.offset_for_timestamp(topic.uuid, UNPARTITIONED, now) == 10
    assert not metadata.registry.locate(topic.uuid, UNPARTITIONED, 10, 1).locations
    committed = metadata.push(topic, 2)
    assert (committed.start_offset, committed.end_offset) == (10, 11)
    assert committed.timestamp == now + 100 * SECOND


def test_retention_of_one_partition_leaves_the_others_alone(metadata: MetadataUnderTest) -> None:
    topic, other = metadata.create_topic("key"), metadata.create_topic("key")
    for each in (topic, other):
        metadata.registry.commit([batch_of(each, {A: 1, B: 1})] * 3)
    metadata.clock.time += SECOND
    assert expire(metadata, topic, A, age_us=0).log_start_offset == 3
    assert expire(metadata, topic, Partition('"new"'), age_us=0) == Expired(0, 0, 0, 0)
    assert offsets_of(metadata.registry, topic, B) == [(0, 0), (1, 1), (2, 2)]
    assert offsets_of(metadata.registry, other, A) == [(0, 0), (1, 1), (2, 2)]


def test_a_folio_is_not_live_when_all_its_pages_are_gone(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    metadata.registry.commit([batch_of(topic, {A: 1}, folio="of a")])
    metadata.registry.commit([batch_of(topic, {A: 1, B: 1}, folio="of both")])
    metadata.clock.time += SECOND
    expire(metadata, topic, A, age_us=0)
    assert metadata.registry.live_folios() == {"of both"}
    expire(metadata, topic, B, age_us=0)
    assert metadata.registry.live_folios() == set()


def test_times_are_looked_for_in_what_is_kept(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    start = metadata.clock.time
    push_pages(metadata, topic, 5)
    expire(metadata, topic, age_us=3 * SECOND)
    found = [
        metadata.registry.offset_for_timestamp(topic.uuid, UNPARTITIONED, start + second * SECOND)
        for second in range(6)
    ]
    assert found == [20, 20, 20, 30, 40, 50]


def test_the_log_starts_there_after_a_restart_too(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    push_pages(metadata, topic, 2)
    expire(metadata, topic, bytes_kept=100)
    metadata.reopen()
    metadata.push(topic)
    state = metadata.registry.partition_state(topic.uuid, UNPARTITIONED)
    assert (state.log_start_offset, state.next_offset, state.bytes) == (10, 21, 200)


def test_messages_before_an_offset_are_deleted(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    push_pages(metadata, topic, 5)
    registry, start = metadata.opened.registry, 0
    for before_offset, pages_max, pages, then, size in (
        (0, 9, 0, 0, 500),
        (9, 9, 0, 9, 410),  # A tenth of the first page is left.
        (9, 9, 0, 9, 410),
        (5, 9, 0, 9, 410),
        (10, 9, 1, 10, 400),
        (39, 1, 1, 20, 300),
        (39, 9, 1, 39, 110),
        (45, 9, 1, 45, 50),
        (48, 9, 0, 48, 20),
        (50, 9, 1, 50, 0),
        (50, 9, 0, 50, 0),
    ):
        gone = expire(metadata, topic, before_offset=before_offset, pages_max=pages_max)
        assert (gone.log_start_offset, gone.pages, gone.rows) == (then, pages, then - start)
        start = then
        state = registry.partition_state(topic.uuid, UNPARTITIONED)
        assert (state.log_start_offset, state.next_offset, state.bytes) == (then, 50, size)
        if then < 50:
            (first, *_) = registry.locate(topic.uuid, UNPARTITIONED, then, 50).locations
            assert (first.start_offset, first.first_row or 0) == (then, then % 10)
            with pytest.raises(OffsetOutOfRange):
                registry.locate(topic.uuid, UNPARTITIONED, then - 1, 50)
    metadata.push(topic, 1)
    assert offsets_of(metadata.registry, topic, offset=50) == [(50, 50)]


def test_nothing_expires_in_a_topic_that_was_deleted(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    push_pages(metadata, topic, 1)
    metadata.admin.delete_topic(topic.name)
    with pytest.raises(TopicNotFound):
        expire(metadata, topic, age_us=0)
