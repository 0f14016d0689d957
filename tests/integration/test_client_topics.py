from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from fix_client import NewTopic, async_in_soak

from wings_client import Client
from wings_core.errors import (
    AlreadyExists,
    InvalidArgument,
    InvalidName,
    InvalidSchema,
    NamespaceNotEmpty,
    NamespaceNotFound,
    PartitionRequired,
    TopicNotFound,
)


def test_a_topic_is_created_described_listed_and_deleted(wings: Client, new_topic_id: str) -> None:
    schema = pa.schema([pa.field("key", pa.string(), nullable=False), pa.field("n", pa.int64())])
    created = wings.create_topic(new_topic_id, schema, "key", {"batch_bytes_max": 1000})
    assert created.id == new_topic_id
    assert created.name == f"tenants/default/namespaces/default/topics/{new_topic_id}"
    assert created.schema == schema
    assert created.partition_key == "key"
    assert created.config["batch_bytes_max"] == 1000
    assert abs(datetime.now(UTC) - created.created_at) < timedelta(minutes=1)
    assert wings.topic(new_topic_id) == created
    assert wings.topic(created) == created
    assert created in wings.topics()
    assert wings.delete_topic(created) == created
    with pytest.raises(TopicNotFound):
        wings.topic(new_topic_id)


def test_fields_by_name_and_type_make_a_schema(wings: Client, new_topic_id: str) -> None:
    fields = {"key": "string not null", "at": "timestamp[us, tz=UTC]", "l": "list<item: int64>"}
    assert wings.create_topic(new_topic_id, fields).schema == pa.schema(
        [
            pa.field("key", pa.string(), nullable=False),
            pa.field("at", pa.timestamp("us", tz="UTC")),
            pa.field("l", pa.list_(pa.int64())),
        ]
    )


def test_encodings_become_plain_types(wings: Client, new_topic_id: str) -> None:
    encoded = pa.schema([("a", pa.dictionary(pa.int8(), pa.string())), ("b", pa.string_view())])
    plain = pa.schema([("a", pa.string()), ("b", pa.string())])
    assert wings.create_topic(new_topic_id, encoded).schema == plain


def test_a_second_topic_of_a_name_is_refused_unless_it_may_exist(
    wings: Client, new_topic_id: str
) -> None:
    first = wings.create_topic(new_topic_id, {"n": "int64"})
    with pytest.raises(AlreadyExists):
        wings.create_topic(new_topic_id, {"n": "int64"})
    assert wings.create_topic(new_topic_id, {"n": "int64"}, if_not_exists=True) == first
    for schema, key, why in (
        ({"n": "string"}, None, "column 'n' is int64, not string; alter the schema"),
        ({"n": "int64 not null"}, None, "column 'n' is int64, not int64 not null; alter"),
        ({"n": "int64", "urgent": "bool"}, None, "no column 'urgent'; alter the schema to add it"),
        ({"n": "int64"}, "n", "with the partition key None, not 'n'"),
    ):
        with pytest.raises(AlreadyExists, match=why):
            wings.create_topic(new_topic_id, schema, key, if_not_exists=True)


def test_what_a_topic_may_not_be_is_refused(wings: Client, new_topic_id: str) -> None:
    with pytest.raises(InvalidSchema) as reserved:
        wings.create_topic(new_topic_id, {"__offset": "int64"})
    assert reserved.value.column == "__offset"
    with pytest.raises(InvalidSchema, match="whole_number"):
        wings.create_topic(new_topic_id, {"n": "whole_number"})
    with pytest.raises(InvalidName):
        wings.create_topic("No Such Name", {"n": "int64"})
    with pytest.raises(InvalidArgument, match="colour"):
        wings.create_topic(new_topic_id, {"n": "int64"}, config={"colour": "red"})


def test_the_keys_of_a_configuration_that_are_named_are_altered(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    changes: list[dict[str, Any]] = [
        {"retention_ms": 60_000, "segment_bytes": 1_000},
        {"batch_bytes_max": 5_000, "retention_on_acceptance": True},
        {},
        {"retention_ms": None, "segment_bytes": None, "retention_on_acceptance": None},
    ]
    expected = dict(topic.config)
    for change in changes:
        altered = wings.alter_topic(topic, change)
        defaults = {key: topic.config[key] for key, value in change.items() if value is None}
        expected |= change | defaults
        assert altered.config == expected
        assert wings.topic(topic).config == expected
    assert expected == {**topic.config, "batch_bytes_max": 5_000}


def test_namespaces_are_created_listed_and_deleted_once_they_are_empty(wings: Client) -> None:
    name = "tenants/acme/namespaces/sales"
    created = wings.create_namespace(name)
    assert created.name == name
    assert created in wings.namespaces()
    assert wings.topics(name) == []
    topic = wings.create_topic(f"{name}/topics/orders", {"n": "int64"})
    assert wings.topics(name) == [topic]
    assert topic not in wings.topics("tenants/default/namespaces/default")
    with pytest.raises(NamespaceNotEmpty):
        wings.delete_namespace(name)
    wings.delete_topic(topic)
    assert wings.delete_namespace(name) == created
    with pytest.raises(NamespaceNotFound):
        wings.topics(name)


def test_partitions_tell_where_they_stand(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic("key: string", "n: int64", partition_key="key")
    assert wings.partitions(topic) == []
    result = wings.push(topic, {"key": ["b", "a", "b"], "n": [1, 2, 3]})
    states = wings.partitions(topic)
    assert [(state.partition, state.log_start_offset, state.next_offset) for state in states] == [
        ("a", 0, 1),
        ("b", 0, 2),
    ]
    assert states[0].last_timestamp == result.committed[0].timestamp
    assert states[0].bytes > 0


def test_a_time_is_turned_into_an_offset(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    noon = datetime(2020, 11, 20, 12, tzinfo=UTC)
    for hour in range(3):
        wings.push(topic, {"n": [hour]}, timestamp=noon + timedelta(hours=hour))
    assert wings.offset_for_timestamp(topic, noon) == 0
    assert wings.offset_for_timestamp(topic, "2020-11-20T14:30:01+02:00") == 1
    assert wings.offset_for_timestamp(topic, noon + timedelta(days=1)) == 3
    assert wings.resolve_offset(topic, noon + timedelta(minutes=1)) == 1
    assert wings.resolve_offset(topic, "earliest") == 0
    assert wings.resolve_offset(topic, "latest") == 3
    with pytest.raises(InvalidArgument, match="no zone"):
        wings.offset_for_timestamp(topic, datetime(2020, 11, 20))  # noqa: DTZ001 - that is the point.


def test_an_offset_of_a_partitioned_topic_needs_its_partition(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic("key: binary", "n: int64", partition_key="key")
    with pytest.raises(PartitionRequired):
        wings.resolve_offset(topic, "latest")
    wings.push(topic, {"key": [b"\xff"], "n": [1]})
    with pytest.raises(PartitionRequired):
        wings.resolve_offset(topic, "latest")
    assert wings.resolve_offset(topic, "latest", b"\xff") == 1
    assert wings.offset_for_timestamp(topic, datetime.now(UTC), "/w==") == 1


@async_in_soak
def test_offsets_are_kept_by_name(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic("key: int64", partition_key="key")
    wings.push(topic, {"key": [1, 2]})
    name = f"reader-of-{topic.id}"
    assert wings.committed_offsets(name, topic) == []
    wings.commit_offsets(name, topic, {1: 1, 2: 0})
    found = wings.committed_offsets(name, topic)
    assert [(each.topic, each.partition, each.offset) for each in found] == [
        (topic.name, 1, 1),
        (topic.name, 2, 0),
    ]
    assert wings.committed_offsets(name) == found
    assert wings.committed_offsets("another") == []
