"""How every store of `ConsumerGroups` keeps members, and fences commits by them."""

from dataclasses import replace

import pytest
from fix_metadata import SECOND, A, B, MetadataUnderTest

from wings_core.errors import FencedMember, InvalidArgument
from wings_core.kafka_topics import BINARY_SCHEMA
from wings_core.metadata.maintenance import MaintenanceLease
from wings_core.model import (
    GroupChange,
    GroupMember,
    KafkaConfig,
    MemberEpoch,
    StoredGroup,
    TopicConfig,
)
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.partitions import SLOTS, Partition, mask_of, slot_of

LEASE = "consumer-groups/1"
EVERY = mask_of(range(SLOTS))


def acquire(metadata: MetadataUnderTest, holder: str = "one") -> MaintenanceLease:
    token = metadata.opened.maintenance.acquire_lease(LEASE, holder, 10)
    assert token is not None
    return MaintenanceLease(LEASE, holder, token)


def member(name: str, epoch: int, topic: str = "uuid", slots: int = EVERY) -> GroupMember:
    held = {topic: slots}
    return GroupMember(
        name, epoch, epoch - 1, frozenset({topic}), f"i-{name}", 6_000, held, held, held
    )


def save(metadata: MetadataUnderTest, *members: GroupMember, removed: tuple[str, ...] = ()) -> bool:
    epoch = max((each.epoch for each in members), default=0)
    change = GroupChange(epoch, members, removed)
    return metadata.opened.consumer_groups.save(acquire(metadata), "group", change)


def test_a_group_is_as_it_was_saved(metadata: MetadataUnderTest) -> None:
    groups = metadata.opened.consumer_groups
    assert groups.load("group") == StoredGroup()
    one, two = member("one", 2), member("two", 3)
    assert save(metadata, one, two)
    metadata.reopen()
    groups = metadata.opened.consumer_groups
    assert groups.load("group") == StoredGroup(3, (one, two))
    later = replace(one, epoch=4, instance=None, previous_epoch=None, held={})
    assert save(metadata, later, removed=("two",))
    assert groups.load("group") == StoredGroup(4, (later,))


def test_groups_are_listed_by_name(metadata: MetadataUnderTest) -> None:
    groups, lease = metadata.opened.consumer_groups, acquire(metadata)
    assert groups.names(10) == []
    for name in ("b", "a", "c"):
        assert groups.save(lease, name, GroupChange(1, (member("m", 1),), ()))
    assert groups.names(10) == ["a", "b", "c"]
    assert groups.names(1, after="a") == ["b"]


def test_a_group_is_saved_under_its_lease_only(metadata: MetadataUnderTest) -> None:
    groups = metadata.opened.consumer_groups
    lease = acquire(metadata)
    metadata.clock.time += 10 * SECOND
    change = GroupChange(1, (member("one", 1),), ())
    assert not groups.save(lease, "group", change)
    taken = acquire(metadata, "other")
    assert not groups.save(lease, "group", change)
    assert groups.load("group") == StoredGroup()
    assert groups.save(taken, "group", change)


def test_the_holder_of_a_lease_is_named_until_it_ends(metadata: MetadataUnderTest) -> None:
    maintenance = metadata.opened.maintenance
    assert maintenance.lease_holder(LEASE) is None
    acquire(metadata)
    assert maintenance.lease_holder(LEASE) == "one"
    maintenance.release_lease(LEASE, "one")
    assert maintenance.lease_holder(LEASE) is None
    acquire(metadata, "other")
    metadata.clock.time += 10 * SECOND
    assert maintenance.lease_holder(LEASE) is None


def test_a_commit_is_of_a_member_that_holds_all_its_partitions(
    metadata: MetadataUnderTest,
) -> None:
    keyed = metadata.create_topic("key")
    registry = metadata.opened.registry
    assert slot_of(A) != slot_of(B)
    assert save(metadata, member("one", 5, keyed.uuid, mask_of([slot_of(A)])))
    for epoch in (5, 4):
        registry.commit_offsets("group", [(keyed, A, 0)], MemberEpoch("one", epoch))
    for stated, partitions in (
        (MemberEpoch("one", 3), (A,)),
        (MemberEpoch("one", 6), (A,)),
        (MemberEpoch("one", 5), (B,)),
        (MemberEpoch("one", 5), (A, B)),
        (MemberEpoch("two", 5), (A,)),
        (None, (A,)),
    ):
        with pytest.raises(FencedMember):
            registry.commit_offsets("group", [(keyed, each, 0) for each in partitions], stated)
    assert [each.partition for each in registry.get_offsets("group")] == [A]


def test_a_commit_of_a_generation_is_of_the_last_one_and_of_a_group_without_members(
    metadata: MetadataUnderTest,
) -> None:
    keyed = metadata.create_topic("key")
    registry, groups = metadata.opened.registry, metadata.opened.consumer_groups

    def commits(generation: int) -> bool:
        try:
            registry.commit_offsets("group", [(keyed, A, 0)], MemberEpoch("", generation))
        except FencedMember:
            return False
        return True

    assert not commits(0)
    for generation in (1, 2):
        assert groups.save(acquire(metadata), "group", GroupChange(generation, (), ()))
        assert [each for each in range(4) if commits(each)] == [generation]
    assert save(metadata, member("one", 2, keyed.uuid, mask_of([slot_of(A)])))
    assert not commits(2)


def test_the_slot_of_a_numbered_partition_is_its_number(metadata: MetadataUnderTest) -> None:
    topic = metadata.opened.admin.create_topic(
        DEFAULT_NAMESPACE.topic("numbered"),
        BINARY_SCHEMA,
        "partition",
        TopicConfig(kafka=KafkaConfig(partitions=300)),
    )
    registry, one = metadata.opened.registry, MemberEpoch("one", 5)
    assert save(metadata, member("one", 5, topic.uuid, mask_of([7, 299])))
    registry.commit_offsets(
        "group", [(topic, Partition("299"), 0), (topic, Partition("7"), 0)], one
    )
    for other in ("8", "-1", "300"):
        with pytest.raises(FencedMember):
            registry.commit_offsets("group", [(topic, Partition(other), 0)], one)


def test_a_commit_without_a_member_is_taken_once_the_group_has_none(
    metadata: MetadataUnderTest,
) -> None:
    keyed = metadata.create_topic("key")
    registry = metadata.opened.registry
    assert save(metadata, member("one", 1, keyed.uuid))
    with pytest.raises(FencedMember):
        registry.forget_offsets("group")
    assert save(metadata, removed=("one",))
    registry.commit_offsets("group", [(keyed, A, 0)])
    registry.forget_offsets("group")
    with pytest.raises(FencedMember):
        registry.commit_offsets("group", [(keyed, A, 0)], MemberEpoch("one", 1))


def test_a_member_is_stored_that_can_be(metadata: MetadataUnderTest) -> None:
    for name in ("a\0b", "x" * 2_000):
        with pytest.raises(InvalidArgument):
            save(metadata, member(name, 1))
