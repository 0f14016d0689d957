"""How every `Groups` keeps share groups."""

from uuid import uuid4

import pytest
from fix_metadata import MetadataUnderTest
from tables import each

from wings_core.errors import (
    AlreadyExists,
    GroupNotFound,
    InvalidArgument,
    ResourceExhausted,
    TopicNotFound,
)
from wings_core.metadata import checks
from wings_core.model import ShareConfig, ShareGroup, Topic


def config(**keys: object) -> ShareConfig:
    return ShareConfig.model_validate(keys)


def new(topic: Topic, name: str = "billing", **keys: object) -> ShareGroup:
    return ShareGroup(name, str(uuid4()), topic, config(**keys))


def test_a_group_is_kept_as_it_was_created(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    group = new(topic, lock_duration_ms=1_000, delivery_limit=3, dlq_topic="dead")
    assert metadata.groups.create(group) == group
    metadata.reopen()
    found = metadata.groups.get(topic, "billing")
    assert found == group
    assert found.config.dlq_topic == "tenants/default/namespaces/default/topics/dead"
    assert found.config.in_flight_max == 2_000


@each("name", ["Ä ö/ü", "x" * 256, "a\\b"])
def test_a_group_may_have_any_name_of_some_length(metadata: MetadataUnderTest, name: str) -> None:
    topic = metadata.create_topic()
    group = new(topic, name)
    metadata.groups.create(group)
    assert metadata.groups.get(topic, name) == group
    assert metadata.groups.of_topic(topic) == [group]


@each("name", ["", "x" * 257, "\ud800", "a\0b"])
def test_a_name_that_cannot_be_kept_is_refused(metadata: MetadataUnderTest, name: str) -> None:
    with pytest.raises(InvalidArgument, match="name"):
        metadata.groups.create(new(metadata.create_topic(), name))


def test_a_group_is_created_once(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    group = new(topic, delivery_limit=3)
    metadata.groups.create(group)
    with pytest.raises(AlreadyExists, match="billing"):
        metadata.groups.create(new(topic))
    again = metadata.groups.create(new(topic, delivery_limit=7), if_not_exists=True)
    assert again == group


def test_groups_of_one_name_on_two_topics_are_two(metadata: MetadataUnderTest) -> None:
    one, two = new(metadata.create_topic()), new(metadata.create_topic())
    metadata.groups.create(one)
    metadata.groups.create(two)
    metadata.groups.delete(one.topic, "billing")
    assert metadata.groups.of_topic(one.topic) == []
    assert metadata.groups.of_topic(two.topic) == [two]


def test_groups_are_listed_by_name(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    for name in ("b", "ä", "a", "B"):
        metadata.groups.create(new(topic, name))
    assert [group.name for group in metadata.groups.of_topic(topic)] == ["B", "a", "b", "ä"]


def test_a_topic_has_a_bounded_number_of_groups(
    metadata: MetadataUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "GROUPS_PER_TOPIC_MAX", 2)
    topic = metadata.create_topic()
    for name in ("a", "b"):
        metadata.groups.create(new(topic, name))
    with pytest.raises(ResourceExhausted, match="2 groups"):
        metadata.groups.create(new(topic, "c"))
    metadata.groups.create(new(metadata.create_topic(), "c"))


def test_altering_replaces_the_keys_given_alone(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    group = new(topic, delivery_limit=5, start="earliest", dlq_topic="dead")
    metadata.groups.create(group)
    altered = metadata.groups.alter(topic, "billing", config(delivery_limit=3))
    assert altered.uuid == group.uuid
    assert altered.config == config(delivery_limit=3, start="earliest", dlq_topic="dead")
    altered = metadata.groups.alter(topic, "billing", config(dlq_topic=None))
    assert altered.config == config(delivery_limit=3, start="earliest")
    metadata.reopen()
    assert metadata.groups.get(topic, "billing") == altered


def test_a_group_that_is_not_there_is_not_found(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    for attempt in (
        lambda: metadata.groups.get(topic, "billing"),
        lambda: metadata.groups.alter(topic, "billing", config()),
        lambda: metadata.groups.delete(topic, "billing"),
    ):
        with pytest.raises(GroupNotFound, match="billing"):
            attempt()


def test_a_deleted_group_is_gone_and_its_name_is_free(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    group = new(topic)
    metadata.groups.create(group)
    assert metadata.groups.delete(topic, "billing") == group
    with pytest.raises(GroupNotFound):
        metadata.groups.get(topic, "billing")
    again = metadata.groups.create(new(topic))
    assert again.uuid != group.uuid


def test_a_group_goes_with_its_topic(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic("key")
    metadata.groups.create(new(topic))
    metadata.admin.delete_topic(topic.name)
    for attempt in (
        lambda: metadata.groups.get(topic, "billing"),
        lambda: metadata.groups.of_topic(topic),
        lambda: metadata.groups.create(new(topic, "another")),
        lambda: metadata.groups.alter(topic, "billing", config()),
        lambda: metadata.groups.delete(topic, "billing"),
    ):
        with pytest.raises(TopicNotFound):
            attempt()
    while metadata.registry.purge(1):
        pass
    again = metadata.admin.create_topic(topic.name, topic.schema, "key")
    assert metadata.groups.of_topic(again) == []


def test_a_group_begins_anew_with_another_uuid(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    group = new(topic, delivery_limit=3)
    metadata.groups.create(group)
    uuid = str(uuid4())
    restarted = metadata.groups.restart(group, uuid)
    assert restarted == ShareGroup("billing", uuid, topic, group.config)
    assert metadata.groups.get(topic, "billing") == restarted
    assert metadata.groups.restart(group, uuid) == restarted, "a call that is made again"
    with pytest.raises(GroupNotFound):
        metadata.groups.restart(group, str(uuid4()))
    with pytest.raises(GroupNotFound):
        metadata.groups.restart(new(topic, "other"), str(uuid4()))
    with pytest.raises(GroupNotFound):
        metadata.groups.delete(topic, "billing", group.uuid)
