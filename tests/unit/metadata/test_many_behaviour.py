"""What every `OffsetRegistry` says of many partitions at once, and whom it tells of a topic."""

import threading
from collections.abc import Mapping
from contextlib import ExitStack

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from fix_metadata import NOON, A, B, C, MetadataUnderTest, accepted, batch_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from property_examples import examples

from wings_core.errors import TopicNotFound
from wings_core.metadata.interfaces.offset_registry import integers, locations_of
from wings_core.metadata.waiting import GatheredChanges
from wings_core.model import LocatedPartition, Location, PartitionState
from wings_core.partitions import UNPARTITIONED, Partition, partition_of

LONG = 60.0
"""Seconds; longer than anything here takes, unless it is wrong."""


def starts(found: LocatedPartition) -> list[int]:
    return [location.start_offset for location in found.locations]


def test_partitions_are_located_at_once_in_the_order_asked(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    for _ in range(3):
        accepted(metadata.registry.commit([batch_of(topic, {A: 2, B: 5})])[0])
    found = metadata.registry.locate_many(topic.uuid, [(B, 7), (C, 4), (A, 0)], 4)
    assert [each.state for each in found] == [
        PartitionState(B, 0, 15, 300, NOON),
        PartitionState(C, 0, 0, 0, None),
        PartitionState(A, 0, 6, 300, NOON),
    ]
    assert [starts(each) for each in found] == [[5, 10], [], [0, 2]]
    single = metadata.registry.locate(topic.uuid, A, 0, 4)
    assert found[2].locations == single.locations


def test_where_partitions_stand_is_told_without_pages(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    assert metadata.registry.locate_many(topic.uuid, [], 1) == []
    metadata.push(topic, 3)
    (found,) = metadata.registry.locate_many(topic.uuid, [(UNPARTITIONED, 0)], 0)
    assert (found.state.next_offset, found.locations) == (3, ())


def test_the_offsets_for_times_of_partitions_are_found_at_once(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic("key")
    for time in (NOON, NOON + 10, NOON + 20):
        metadata.push(topic, 5, A, timestamp=time)
        metadata.push(topic, 3, B, timestamp=time)
    positions = [(B, NOON + 11), (C, NOON), (A, NOON - 1), (A, NOON + 10), (B, NOON + 21)]
    found = metadata.registry.offsets_for_timestamps(topic.uuid, positions)
    assert found == [6, 0, 0, 5, 9]
    assert metadata.registry.offsets_for_timestamps(topic.uuid, []) == []


def test_an_offset_below_the_logs_start_finds_what_is_kept(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    for time in range(3):
        metadata.push(topic, 2, A, timestamp=NOON + time)
    metadata.opened.maintenance.expire(topic.uuid, A, age_us=None, bytes_kept=100, pages_max=10)
    (found,) = metadata.registry.locate_many(topic.uuid, [(A, 1)], 1)
    assert (found.state.log_start_offset, starts(found)) == (4, [4])


def test_a_bound_on_locations_leaves_out_the_last_partitions(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    for _ in range(3):
        accepted(metadata.registry.commit([batch_of(topic, {A: 1, B: 1})])[0])
    found = metadata.registry.locate_many(topic.uuid, [(A, 0), (B, 0), (C, 0)], 10, 4)
    assert found[0].state.partition == A
    assert 1 <= sum(len(each.locations) for each in found) <= 4
    for each in found:
        assert starts(each) == list(range(len(each.locations)))
    metadata.admin.delete_topic(topic.name)
    with pytest.raises(TopicNotFound):
        metadata.registry.locate_many(topic.uuid, [(A, 0)], 1)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(8, 200)
)
@given(st.data())
def test_many_are_located_as_one_by_one(metadata: MetadataUnderTest, data: st.DataObject) -> None:
    topic = metadata.create_topic("key")
    partitions = [Partition(str(number)) for number in range(6)]
    batches = st.dictionaries(st.sampled_from(partitions), st.integers(1, 5), min_size=1)
    for rows in data.draw(st.lists(batches, max_size=6), label="batches"):
        accepted(metadata.registry.commit([batch_of(topic, rows)])[0])
    offsets = st.dictionaries(st.sampled_from(partitions), st.integers(0, 12), min_size=1)
    positions = list(data.draw(offsets, label="positions").items())
    messages_max = data.draw(st.integers(1, 12), label="messages")
    found = metadata.registry.locate_many(topic.uuid, positions, messages_max)
    assert len(found) == len(positions)
    for each, (partition, offset) in zip(found, positions, strict=True):
        alone = metadata.registry.locate(topic.uuid, partition, offset, messages_max)
        assert each.state == metadata.registry.partition_state(topic.uuid, partition)
        assert each.locations == alone.locations


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(8, 200)
)
@given(st.data())
def test_slices_are_found_as_columns_as_they_are_one_by_one(
    metadata: MetadataUnderTest, data: st.DataObject
) -> None:
    topic = metadata.create_topic("key")
    names = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    partitions = data.draw(st.lists(names, min_size=1, max_size=5, unique=True), label="names")
    known = [partition_of(name, pa.string()) for name in partitions]
    batches = st.dictionaries(st.sampled_from(known), st.integers(1, 5), min_size=1)
    for rows in data.draw(st.lists(batches, max_size=5), label="batches"):
        accepted(metadata.registry.commit([batch_of(topic, rows)])[0])
    offsets = st.dictionaries(st.sampled_from(known), st.integers(0, 12), min_size=1)
    positions = list(data.draw(offsets, label="positions").items())
    messages_max = data.draw(st.integers(1, 12), label="messages")
    registry = metadata.registry
    found = registry.locate_slices(topic.uuid, positions, messages_max)
    expected = registry.locate_many(topic.uuid, positions, messages_max)
    states = [each.state for each in expected]
    assert list(found.log_start_offsets) == [each.log_start_offset for each in states]
    assert list(found.log_end_offsets) == [each.next_offset for each in states]
    locations: list[list[Location]] = [[] for _ in positions]
    places = integers(found.slices.column("place"))
    for place, location in zip(places, locations_of(found.slices, found.folios), strict=True):
        locations[place].append(location)
    assert locations == [list(each.locations) for each in expected]


def test_a_bound_on_slices_leaves_out_the_last_partitions(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    assert len(metadata.registry.locate_slices(topic.uuid, [], 1)) == 0
    for _ in range(3):
        accepted(metadata.registry.commit([batch_of(topic, {A: 1, B: 1})])[0])
    found = metadata.registry.locate_slices(topic.uuid, [(A, 0), (B, 0), (C, 0)], 10, 4)
    assert len(found) >= 1
    assert 1 <= found.slices.num_rows <= 4
    places = found.slices.column("place")
    for place in range(len(found)):
        begun = found.slices.filter(pc.equal(places, pa.scalar(place))).column("start_offset")
        assert integers(begun) == list(range(len(begun)))
    metadata.admin.delete_topic(topic.name)
    with pytest.raises(TopicNotFound):
        metadata.registry.locate_slices(topic.uuid, [(A, 0)], 1)


class Told:
    """Waits until a watch of a topic has told of something."""

    def __init__(self) -> None:
        self.changed = threading.Event()
        self.changes = GatheredChanges(self.changed.set)

    def next(self) -> Mapping[Partition, int] | None:
        assert self.changed.wait(LONG)
        self.changed.clear()
        return self.changes.take()


def begin(metadata: MetadataUnderTest, told: Told) -> None:
    """Wait until a watch over a network has begun."""
    if metadata.across_a_network:
        assert told.next() is None


def test_a_watch_of_a_topic_is_told_of_commits_to_any_partition(
    metadata: MetadataUnderTest,
) -> None:
    topic, other = metadata.create_topic("key"), metadata.create_topic("key")
    told = Told()
    with metadata.registry.watch_topic(topic.uuid, told.changes.hear):
        begin(metadata, told)
        metadata.push(other, 1, A)
        metadata.push(topic, 2, A)
        assert told.next() == {A: 2}
        accepted(metadata.registry.commit([batch_of(topic, {A: 1, B: 4})])[0])
        assert told.next() == {A: 3, B: 4}
        metadata.stage(topic, "stage", {C: 5})
        metadata.stages.publish("writer", 0, ["stage"])
        assert told.next() == {C: 5}
    metadata.push(topic, 1, A)
    assert not told.changed.wait(0.05)


def test_a_watch_ends_with_a_look_at_everything_where_its_topic_goes(
    metadata: MetadataUnderTest,
) -> None:
    topic = metadata.create_topic("key")
    told, later = Told(), Told()
    with metadata.registry.watch_topic(topic.uuid, told.changes.hear):
        begin(metadata, told)
        with metadata.registry.watch_topic(topic.uuid, later.changes.hear):
            metadata.admin.delete_topic(topic.name)
            assert told.next() is None
            assert later.next() is None


def test_a_reader_of_some_partitions_is_not_woken_for_others(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    told, some = Told(), Told()
    some.changes = GatheredChanges(some.changed.set, {B})
    with metadata.registry.watch_topic(topic.uuid, told.changes.hear), ExitStack() as stack:
        begin(metadata, told)  # For both, who share a stream where it is over a network.
        stack.enter_context(metadata.registry.watch_topic(topic.uuid, some.changes.hear))
        metadata.push(topic, 1, A)
        assert told.next() == {A: 1}
        assert not some.changed.is_set()
        metadata.push(topic, 1, B)
        assert some.next() == {B: 1}
