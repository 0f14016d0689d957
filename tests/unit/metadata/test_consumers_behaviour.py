"""How every `OffsetRegistry` remembers where named consumers read on."""

import pytest
from fix_metadata import NOON, SECOND, A, B, C, MetadataUnderTest, batch_of
from tables import each

from wings_core.contracts.actions import OFFSETS_MAX
from wings_core.errors import InvalidArgument, OffsetOutOfRange, TopicNotFound
from wings_core.model import CommittedOffset, ConsumerCommit, Topic
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.partitions import UNPARTITIONED, Partition, partition_of_value, partition_value


def pushed(metadata: MetadataUnderTest, partition_key: str | None = None) -> Topic:
    """Create a topic with ten rows in each partition that tests name."""
    topic = metadata.create_topic(partition_key)
    partitions = (UNPARTITIONED,) if partition_key is None else (A, B)
    metadata.registry.commit([batch_of(topic, dict.fromkeys(partitions, 10))])
    return topic


def test_a_consumer_reads_on_where_it_committed(metadata: MetadataUnderTest) -> None:
    topic = pushed(metadata, "key")
    metadata.registry.commit_offsets("reader", [(topic, B, 7), (topic, A, 0)])
    metadata.reopen()
    assert metadata.registry.get_offsets("reader") == [
        CommittedOffset(topic.name, A, 0, NOON),
        CommittedOffset(topic.name, B, 7, NOON),
    ]


def test_offsets_are_forgotten_by_partition_by_topic_and_all(metadata: MetadataUnderTest) -> None:
    one, two = pushed(metadata, "key"), pushed(metadata, "key")
    registry = metadata.registry
    every = [(topic, partition, 1) for topic in (one, two) for partition in (A, B)]
    for consumer in ("reader", "other"):
        registry.commit_offsets(consumer, every)

    def left(consumer: str) -> set[tuple[Topic, Partition]]:
        found = {(each.topic, each.partition) for each in metadata.registry.get_offsets(consumer)}
        return {(topic, part) for topic, part, _ in every if (topic.name, part) in found}

    registry.forget_offsets("reader", one.uuid, [B, C])
    assert left("reader") == {(one, A), (two, A), (two, B)}
    registry.forget_offsets("reader", two.uuid)
    metadata.reopen()
    registry = metadata.registry
    assert left("reader") == {(one, A)}
    registry.forget_offsets("reader", two.uuid[::-1])
    registry.forget_offsets("reader")
    assert left("reader") == set()
    assert len(left("other")) == len(every)
    assert registry.list_consumers(10) == ["other"]


def test_offsets_of_many_topics_and_of_any_text_are_committed_at_once(
    metadata: MetadataUnderTest,
) -> None:
    topics = [metadata.create_topic("key") for _ in range(3)]
    texts = ["", "a", 'a"b', "a\\b", "a/b", "Ωä€😀", "\t\n", "null", "1", "{}", "[", "%s?:x"]
    partitions = [partition_of_value(text) for text in texts]
    offsets = [
        (topic, partition, number)
        for number, partition in enumerate(partitions)
        for topic in topics
    ]
    for topic in topics:
        metadata.registry.commit([batch_of(topic, dict.fromkeys(partitions, len(partitions)))])
    metadata.registry.commit_offsets("reader", offsets)
    found = {
        (each.topic, each.partition): each.offset
        for each in metadata.registry.get_offsets("reader")
    }
    assert found == {(topic.name, partition): offset for topic, partition, offset in offsets}


def test_committing_again_replaces_the_offset_of_that_partition_alone(
    metadata: MetadataUnderTest,
) -> None:
    topic = pushed(metadata, "key")
    metadata.registry.commit_offsets("reader", [(topic, A, 5), (topic, B, 5)])
    metadata.clock.time += SECOND
    metadata.registry.commit_offsets("reader", [(topic, A, 3)])
    assert metadata.registry.get_offsets("reader") == [
        CommittedOffset(topic.name, A, 3, NOON + SECOND),
        CommittedOffset(topic.name, B, 5, NOON),
    ]


def test_of_two_offsets_for_a_partition_in_one_call_the_last_holds(
    metadata: MetadataUnderTest,
) -> None:
    topic = pushed(metadata)
    metadata.registry.commit_offsets(
        "reader", [(topic, UNPARTITIONED, 5), (topic, UNPARTITIONED, 4)]
    )
    (entry,) = metadata.registry.get_offsets("reader")
    assert entry.offset == 4


def test_a_consumer_never_heard_of_has_no_offsets(metadata: MetadataUnderTest) -> None:
    metadata.registry.commit_offsets("reader", [(pushed(metadata), UNPARTITIONED, 5)])
    assert metadata.registry.get_offsets("Reader") == []


def test_consumers_do_not_see_each_others_offsets(metadata: MetadataUnderTest) -> None:
    topic = pushed(metadata)
    for number, consumer in enumerate(("one", "two")):
        metadata.registry.commit_offsets(consumer, [(topic, UNPARTITIONED, number)])
    (entry,) = metadata.registry.get_offsets("one")
    assert entry.offset == 0


def test_offsets_are_listed_by_topic_and_partition_value(metadata: MetadataUnderTest) -> None:
    z, a = (
        metadata.admin.create_topic(DEFAULT_NAMESPACE.topic(topic_id), schema, "n")
        for topic_id, schema in (
            ("z", metadata.create_topic().schema),
            ("a", metadata.create_topic().schema),
        )
    )
    numbers = [Partition(str(number)) for number in (10, 9, -1)]
    offsets = [(topic, partition, 0) for topic in (z, a) for partition in numbers]
    metadata.registry.commit_offsets("reader", offsets)
    listed = [
        (entry.topic.topic, entry.partition) for entry in metadata.registry.get_offsets("reader")
    ]
    assert listed == [(topic, number) for topic in "az" for number in ("-1", "9", "10")]


def test_offsets_can_be_asked_for_one_topic(metadata: MetadataUnderTest) -> None:
    topic, other = pushed(metadata), pushed(metadata)
    metadata.registry.commit_offsets(
        "reader", [(topic, UNPARTITIONED, 1), (other, UNPARTITIONED, 2)]
    )
    (entry,) = metadata.registry.get_offsets("reader", other.uuid)
    assert (entry.topic, entry.offset) == (other.name, 2)


def test_nothing_is_remembered_if_one_of_the_topics_is_deleted(
    metadata: MetadataUnderTest,
) -> None:
    topic, deleted = metadata.create_topic(), metadata.create_topic()
    metadata.admin.delete_topic(deleted.name)
    with pytest.raises(TopicNotFound):
        metadata.registry.commit_offsets(
            "reader", [(topic, UNPARTITIONED, 1), (deleted, UNPARTITIONED, 2)]
        )
    assert metadata.registry.get_offsets("reader") == []


def test_a_deleted_topics_offsets_are_gone_also_when_its_name_is_used_again(
    metadata: MetadataUnderTest,
) -> None:
    topic = pushed(metadata)
    metadata.registry.commit_offsets("reader", [(topic, UNPARTITIONED, 1)])
    metadata.admin.delete_topic(topic.name)
    again: Topic = metadata.admin.create_topic(topic.name, topic.schema)
    assert metadata.registry.get_offsets("reader") == []
    assert metadata.registry.get_offsets("reader", topic.uuid) == []
    assert metadata.registry.get_offsets("reader", again.uuid) == []


@each("offset", [-1, 1 << 63, 1 << 80])
def test_an_offset_that_no_log_can_have_is_refused(
    metadata: MetadataUnderTest, offset: int
) -> None:
    topic = pushed(metadata, "key")
    with pytest.raises(InvalidArgument):
        metadata.registry.commit_offsets("reader", [(topic, A, 1), (topic, B, offset)])
    assert metadata.registry.get_offsets("reader") == []


@each("partition", [B, C])
def test_an_offset_past_the_end_of_its_log_is_refused(
    metadata: MetadataUnderTest, partition: Partition
) -> None:
    other, topic = pushed(metadata, "key"), pushed(metadata, "key")
    end = 10 if partition == B else 0
    one_more = [(other, A, 0), (topic, A, 10), (topic, partition, end + 1)]
    reader = f"reader of {partition}"
    with pytest.raises(OffsetOutOfRange, match=f"offset {end + 1} is past the end") as caught:
        metadata.registry.commit_offsets(reader, one_more)
    facts = {"partition": partition_value(partition), "log_start_offset": 0, "log_end_offset": end}
    assert caught.value.facts == {"topic": str(topic.name), **facts}
    assert metadata.registry.get_offsets(reader) == []
    metadata.registry.commit_offsets(reader, [(topic, partition, end), (topic, A, 10)])
    assert {found.offset for found in metadata.registry.get_offsets(reader)} == {10, end}


@pytest.mark.parametrize("count", [1_000, pytest.param(OFFSETS_MAX, marks=pytest.mark.soak)])
def test_as_many_offsets_as_a_commit_may_have_are_compared_with_their_logs(
    metadata: MetadataUnderTest, count: int
) -> None:
    topic = metadata.create_topic("key")
    partitions = [Partition(f'"{number}"') for number in range(count)]
    metadata.registry.commit([batch_of(topic, dict.fromkeys(partitions, 1))])
    metadata.registry.commit_offsets("reader", [(topic, each, 1) for each in partitions])
    with pytest.raises(OffsetOutOfRange, match=f'partition "{count - 1}"'):
        metadata.registry.commit_offsets(
            "reader", [(topic, each, 1 + (each == partitions[-1])) for each in partitions]
        )


@each("consumer", ["\ud800", "a\0b", "x" * 257])
def test_a_consumers_name_that_cannot_be_stored_is_refused(
    metadata: MetadataUnderTest, consumer: str
) -> None:
    topic = metadata.create_topic()
    with pytest.raises(InvalidArgument):
        metadata.registry.commit_offsets(consumer, [(topic, UNPARTITIONED, 1)])


def test_consumers_are_listed_by_name_up_to_a_number(metadata: MetadataUnderTest) -> None:
    kept, deleted = pushed(metadata), pushed(metadata)
    assert metadata.registry.list_consumers(10) == []
    for consumer in ("b", "a", "C"):
        metadata.registry.commit_offsets(consumer, [(kept, UNPARTITIONED, 1)])
    metadata.registry.commit_offsets("a", [(deleted, UNPARTITIONED, 1)])
    metadata.registry.commit_offsets("gone", [(deleted, UNPARTITIONED, 1)])
    metadata.admin.delete_topic(deleted.name)
    assert metadata.registry.list_consumers(10) == ["C", "a", "b"]
    assert metadata.registry.list_consumers(2) == ["C", "a"]


def test_a_note_is_kept_with_its_offset_until_the_next_commit(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    registry = metadata.registry
    entries = [(topic, A, 0), (topic, B, 0)]
    registry.commit_offsets("c", entries, notes=["caf\u00e9", ""])
    metadata.reopen()
    assert [kept.note for kept in metadata.registry.get_offsets("c")] == ["caf\u00e9", ""]
    commit = ConsumerCommit("c", tuple(entries), notes=("", "x" * 4_096))
    metadata.stages.publish("w", 0, [], offsets=commit)
    assert [kept.note for kept in metadata.registry.get_offsets("c")] == ["", "x" * 4_096]
    for notes in (["one"], ["a\0b", ""], ["x" * 4_097, ""]):
        with pytest.raises(InvalidArgument):
            metadata.registry.commit_offsets("c", entries, notes=notes)
    metadata.registry.commit_offsets("c", entries)
    assert [kept.note for kept in metadata.registry.get_offsets("c")] == ["", ""]
