"""What every `Admin` does."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from fix_metadata import NOON, SCHEMA, SECOND, MetadataUnderTest, batch_of

from wings_core.errors import (
    AlreadyExists,
    InvalidArgument,
    InvalidName,
    InvalidSchema,
    NamespaceNotEmpty,
    NamespaceNotFound,
    TopicNotFound,
    WingsError,
)
from wings_core.kafka_topics import BINARY_SCHEMA, topic_id_of, topic_name_of
from wings_core.metadata.checks import DELETED_KEPT_US
from wings_core.metadata.store import topics
from wings_core.model import (
    KafkaConfig,
    NamespaceState,
    Node,
    ShardClaim,
    ShareConfig,
    ShareGroup,
    StageEntry,
    Topic,
    TopicConfig,
)
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.schema_changes import SchemaChange

ORDERS = DEFAULT_NAMESPACE.topic("orders")
ELSEWHERE = NamespaceName("acme", "elsewhere")
CONFIG = TopicConfig(batch_bytes_max=1_000)


def test_the_default_namespace_is_there_from_the_first_start(metadata: MetadataUnderTest) -> None:
    (namespace,) = metadata.admin.list_namespaces()
    assert namespace == NamespaceState(DEFAULT_NAMESPACE, namespace.uuid, NOON)
    assert namespace.uuid


def test_a_namespace_deleted_stays_deleted_after_a_restart(metadata: MetadataUnderTest) -> None:
    metadata.admin.delete_namespace(DEFAULT_NAMESPACE)
    metadata.reopen()
    assert metadata.admin.list_namespaces() == []


def test_a_created_namespace_can_be_read_back(metadata: MetadataUnderTest) -> None:
    metadata.clock.time = NOON + SECOND
    created = metadata.admin.create_namespace(ELSEWHERE)
    assert created == NamespaceState(ELSEWHERE, created.uuid, NOON + SECOND)
    metadata.clock.time = NOON + 2 * SECOND
    assert metadata.admin.get_namespace(ELSEWHERE) == created
    metadata.reopen()
    assert metadata.admin.get_namespace(ELSEWHERE) == created


def test_a_namespace_is_created_once(metadata: MetadataUnderTest) -> None:
    metadata.admin.create_namespace(ELSEWHERE)
    with pytest.raises(AlreadyExists):
        metadata.admin.create_namespace(ELSEWHERE)


def test_namespaces_of_the_same_id_in_two_tenants_are_two(metadata: MetadataUnderTest) -> None:
    other = NamespaceName("other", ELSEWHERE.namespace)
    metadata.admin.create_namespace(ELSEWHERE)
    metadata.admin.create_namespace(other)
    metadata.admin.create_topic(other.topic("orders"), SCHEMA)
    assert metadata.admin.list_topics(ELSEWHERE) == []


def test_namespaces_are_listed_by_name(metadata: MetadataUnderTest) -> None:
    names = [NamespaceName("b", "a"), NamespaceName("a", "b"), NamespaceName("a", "a")]
    for name in names:
        metadata.admin.create_namespace(name)
    listed = [namespace.name for namespace in metadata.admin.list_namespaces()]
    assert listed == sorted([*names, DEFAULT_NAMESPACE])


def test_deleting_an_empty_namespace_returns_what_it_was(metadata: MetadataUnderTest) -> None:
    created = metadata.admin.create_namespace(ELSEWHERE)
    assert metadata.admin.delete_namespace(ELSEWHERE) == created
    with pytest.raises(NamespaceNotFound):
        metadata.admin.get_namespace(ELSEWHERE)


def test_a_namespace_with_a_topic_cannot_be_deleted(metadata: MetadataUnderTest) -> None:
    topic = metadata.admin.create_topic(ORDERS, SCHEMA)
    with pytest.raises(NamespaceNotEmpty):
        metadata.admin.delete_namespace(DEFAULT_NAMESPACE)
    assert metadata.admin.get_topic(ORDERS) == topic


def test_a_namespace_is_empty_once_its_topics_are_deleted(metadata: MetadataUnderTest) -> None:
    topic = metadata.admin.create_topic(ORDERS, SCHEMA)
    metadata.push(topic)
    metadata.admin.delete_topic(ORDERS)
    metadata.admin.delete_namespace(DEFAULT_NAMESPACE)
    metadata.admin.create_namespace(DEFAULT_NAMESPACE)
    assert metadata.admin.list_topics(DEFAULT_NAMESPACE) == []


def test_nothing_is_found_in_a_namespace_that_is_not_there(metadata: MetadataUnderTest) -> None:
    admin, name = metadata.admin, ELSEWHERE.topic("orders")
    with pytest.raises(NamespaceNotFound):
        admin.get_namespace(ELSEWHERE)
    with pytest.raises(NamespaceNotFound):
        admin.delete_namespace(ELSEWHERE)
    with pytest.raises(NamespaceNotFound):
        admin.list_topics(ELSEWHERE)
    with pytest.raises(NamespaceNotFound):
        admin.create_topic(name, SCHEMA)
    with pytest.raises(NamespaceNotFound):
        admin.get_topic(name)
    with pytest.raises(NamespaceNotFound):
        admin.alter_topic(name, CONFIG)
    with pytest.raises(NamespaceNotFound):
        admin.delete_topic(name)


def test_a_topic_that_is_not_there_is_not_found(metadata: MetadataUnderTest) -> None:
    with pytest.raises(TopicNotFound):
        metadata.admin.get_topic(ORDERS)
    with pytest.raises(TopicNotFound):
        metadata.admin.alter_topic(ORDERS, CONFIG)
    with pytest.raises(TopicNotFound):
        metadata.admin.delete_topic(ORDERS)


def test_a_created_topic_can_be_read_back(metadata: MetadataUnderTest) -> None:
    schema = pa.schema(
        [
            pa.field("Key, with spaces", pa.large_string(), nullable=False),
            pa.field("price", pa.decimal128(10, 2)),
            pa.field("at", pa.timestamp("us", tz="UTC")),
            pa.field("tags", pa.map_(pa.string(), pa.list_(pa.int64()))),
            pa.field("where", pa.struct([pa.field("é", pa.float64(), nullable=False)])),
        ]
    )
    created = metadata.admin.create_topic(ORDERS, schema, "Key, with spaces", CONFIG)
    assert created == Topic(ORDERS, created.uuid, schema, "Key, with spaces", CONFIG, NOON)
    metadata.clock.time += SECOND
    assert metadata.admin.get_topic(ORDERS) == created
    assert metadata.admin.list_topics(DEFAULT_NAMESPACE) == [created]
    metadata.reopen()
    assert metadata.admin.get_topic(ORDERS) == created


def test_a_topic_without_a_key_or_configuration_has_the_defaults(
    metadata: MetadataUnderTest,
) -> None:
    metadata.admin.create_topic(ORDERS, SCHEMA)
    topic = metadata.admin.get_topic(ORDERS)
    assert (topic.partition_key, topic.config) == (None, TopicConfig())


def test_a_topic_is_created_once(metadata: MetadataUnderTest) -> None:
    topic = metadata.admin.create_topic(ORDERS, SCHEMA)
    with pytest.raises(AlreadyExists):
        metadata.admin.create_topic(ORDERS, SCHEMA)
    assert metadata.admin.get_topic(ORDERS) == topic


def test_if_not_exists_returns_the_same_topic_as_it_is(metadata: MetadataUnderTest) -> None:
    topic = metadata.admin.create_topic(ORDERS, SCHEMA, "key", CONFIG, if_not_exists=True)
    noted = pa.schema(SCHEMA, metadata={"writer": "x"})
    again = metadata.admin.create_topic(ORDERS, noted, "key", TopicConfig(), if_not_exists=True)
    assert again == topic


@pytest.mark.parametrize(
    ("schema", "key"),
    [
        (SCHEMA, "n"),
        (SCHEMA, None),
        (pa.schema([("key", pa.string()), ("n", pa.int64()), ("more", pa.int8())]), "key"),
        (pa.schema([pa.field("key", pa.string()), pa.field("n", pa.int64(), False)]), "key"),
    ],
)
def test_if_not_exists_refuses_another_schema_or_key(
    metadata: MetadataUnderTest, schema: pa.Schema, key: str | None
) -> None:
    metadata.admin.create_topic(ORDERS, SCHEMA, "key")
    with pytest.raises(AlreadyExists):
        metadata.admin.create_topic(ORDERS, schema, key, if_not_exists=True)


def test_of_many_who_create_a_topic_at_once_one_succeeds(metadata: MetadataUnderTest) -> None:
    def create(_: int) -> Topic | WingsError:
        try:
            return metadata.admin.create_topic(ORDERS, SCHEMA)
        except AlreadyExists as error:
            return error

    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(create, range(8)))
    (created,) = [result for result in results if isinstance(result, Topic)]
    assert metadata.admin.get_topic(ORDERS) == created


def test_topics_are_listed_by_name(metadata: MetadataUnderTest) -> None:
    metadata.admin.create_namespace(ELSEWHERE)
    metadata.admin.create_topic(ELSEWHERE.topic("m"), SCHEMA)
    names = [DEFAULT_NAMESPACE.topic(topic_id) for topic_id in ("b", "a-2", "a", "a2")]
    for name in names:
        metadata.admin.create_topic(name, SCHEMA)
    listed = [topic.name for topic in metadata.admin.list_topics(DEFAULT_NAMESPACE)]
    assert listed == sorted(names)


def test_altering_a_topic_changes_the_keys_that_are_given(metadata: MetadataUnderTest) -> None:
    created = metadata.admin.create_topic(ORDERS, SCHEMA, config=TopicConfig(retention_ms=5))
    for change, expected in (
        (TopicConfig(segment_bytes=7), TopicConfig(retention_ms=5, segment_bytes=7)),
        (TopicConfig(), TopicConfig(retention_ms=5, segment_bytes=7)),
        (
            TopicConfig.model_validate({"segment_bytes": None, "retention_bytes": 3}),
            TopicConfig(retention_ms=5, retention_bytes=3),
        ),
        (TopicConfig(retention_ms=None), TopicConfig(retention_bytes=3)),
    ):
        assert metadata.admin.alter_topic(ORDERS, change) == replace(created, config=expected)
        metadata.reopen()
        assert metadata.admin.get_topic(ORDERS).config == expected


def test_changes_of_two_keys_at_once_are_both_made(metadata: MetadataUnderTest) -> None:
    metadata.admin.create_topic(ORDERS, SCHEMA)
    changes = [
        TopicConfig.model_validate({key: number})
        for number in range(1, 6)
        for key in ("retention_ms", "retention_bytes", "batch_bytes_max")
    ]
    with ThreadPoolExecutor(3) as threads:
        for start in range(0, len(changes), 3):
            some = changes[start : start + 3]
            list(threads.map(partial(metadata.admin.alter_topic, ORDERS), some))
            number = start // 3 + 1
            expected = TopicConfig(
                retention_ms=number, retention_bytes=number, batch_bytes_max=number
            )
            assert metadata.admin.get_topic(ORDERS, fresh=True).config == expected


def test_altering_a_topic_changes_its_configuration_alone(metadata: MetadataUnderTest) -> None:
    topic = metadata.admin.create_topic(ORDERS, SCHEMA, "key")
    assert metadata.admin.get_topic(ORDERS) == topic
    altered = metadata.admin.alter_topic(ORDERS, CONFIG)
    assert altered == Topic(ORDERS, topic.uuid, SCHEMA, "key", CONFIG, topic.created_at)
    assert metadata.admin.get_topic(ORDERS) == altered
    metadata.reopen()
    assert metadata.admin.get_topic(ORDERS) == altered


def test_the_versions_of_a_schema_are_bounded_in_bytes(
    metadata: MetadataUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = metadata.admin.create_topic(ORDERS, SCHEMA, "key", CONFIG)
    monkeypatch.setattr(topics, "VERSIONS_BYTES_MAX", SCHEMA.serialize().size)
    first, second = (SchemaChange(add=pa.schema([(name, pa.int8())])) for name in ("a", "b"))
    altered = metadata.admin.alter_schema(ORDERS, first)
    assert altered.schemas == (*created.schemas, altered.schema)
    with pytest.raises(InvalidSchema, match="versions"):
        metadata.admin.alter_schema(ORDERS, second)
    assert metadata.admin.alter_schema(ORDERS, first) == altered


def test_altering_a_schema_makes_a_version_of_it(metadata: MetadataUnderTest) -> None:
    topic = metadata.admin.create_topic(ORDERS, SCHEMA, "key", CONFIG)
    change = SchemaChange(add=pa.schema([("later", pa.int32())]))
    altered = metadata.admin.alter_schema(ORDERS, change)
    assert altered.schema == SCHEMA.append(pa.field("later", pa.int32()))
    assert (altered.schema_version, altered.earlier_schemas) == (2, (SCHEMA,))
    assert (altered.uuid, altered.config) == (topic.uuid, CONFIG)
    assert metadata.admin.alter_schema(ORDERS, change, topic.uuid) == altered
    widened = metadata.admin.alter_schema(
        ORDERS, SchemaChange(widen=pa.schema([("later", pa.int64())]))
    )
    assert widened.schemas == (SCHEMA, altered.schema, widened.schema)
    assert metadata.admin.get_topic(ORDERS, fresh=True) == widened
    assert metadata.admin.list_topics(DEFAULT_NAMESPACE) == [widened]
    assert metadata.admin.alter_topic(ORDERS, TopicConfig()).schemas == widened.schemas
    with pytest.raises(InvalidSchema) as refused:
        metadata.admin.alter_schema(ORDERS, change)
    assert refused.value.column == "later"
    with pytest.raises(TopicNotFound):
        metadata.admin.alter_schema(ORDERS, change, str(uuid4()))
    with pytest.raises(TopicNotFound):
        metadata.admin.alter_schema(DEFAULT_NAMESPACE.topic("none"), change)
    # A topic that has grown is what its first producers ask for.
    for schema in widened.schemas:
        again = metadata.admin.create_topic(ORDERS, schema, "key", if_not_exists=True)
        assert again.schema_version == 3
    metadata.reopen()
    assert metadata.admin.get_topic(ORDERS).schemas == widened.schemas


def test_schemas_altered_at_once_all_count(metadata: MetadataUnderTest) -> None:
    metadata.admin.create_topic(ORDERS, SCHEMA)
    names = [f"c{number}" for number in range(8)]

    def add(name: str) -> None:
        metadata.admin.alter_schema(ORDERS, SchemaChange(add=pa.schema([(name, pa.int32())])))

    with ThreadPoolExecutor() as threads:
        list(threads.map(add, names))
    topic = metadata.admin.get_topic(ORDERS, fresh=True)
    assert sorted(topic.schema.names[len(SCHEMA) :]) == names
    assert topic.schema_version == len(names) + 1


def test_pages_keep_the_version_of_their_schema(metadata: MetadataUnderTest) -> None:
    topic = metadata.admin.create_topic(ORDERS, SCHEMA)
    batch = batch_of(topic, {UNPARTITIONED: 4})
    batch.pages[0].schema_version = 3
    staged = batch_of(topic, {UNPARTITIONED: 2})
    staged.pages[0].schema_version = 2
    staged.stage = StageEntry("stage", "writing", True)
    metadata.registry.commit([batch, staged])
    (kept,) = metadata.stages.pages("stage", 0, 10)
    assert kept.schema_version == 2
    metadata.stages.publish("writer", 0, ["stage"])
    metadata.reopen()
    located = metadata.registry.locate(topic.uuid, UNPARTITIONED, 0, 10)
    assert [each.schema_version for each in located.locations] == [3, 2]
    many = metadata.registry.locate_slices(topic.uuid, [(UNPARTITIONED, 0)], 10)
    assert many.slices.column("schema_version").to_pylist() == [3, 2]


def test_deleting_a_topic_returns_what_it_was(metadata: MetadataUnderTest) -> None:
    topic = metadata.admin.create_topic(ORDERS, SCHEMA, "key", CONFIG)
    assert metadata.admin.get_topic(ORDERS) == topic
    assert metadata.admin.delete_topic(ORDERS) == topic
    assert metadata.admin.list_topics(DEFAULT_NAMESPACE) == []
    with pytest.raises(TopicNotFound):
        metadata.admin.get_topic(ORDERS)
    metadata.reopen()
    with pytest.raises(TopicNotFound):
        metadata.admin.get_topic(ORDERS)


def test_a_topic_deleted_and_created_again_is_another_one(metadata: MetadataUnderTest) -> None:
    first = metadata.admin.create_topic(ORDERS, SCHEMA)
    metadata.push(first, rows=3)
    metadata.admin.delete_topic(ORDERS)
    second = metadata.admin.create_topic(ORDERS, SCHEMA)
    assert second.uuid != first.uuid
    assert metadata.push(second).start_offset == 0


UUID_1, UUID_2 = str(uuid4()), str(uuid4())


def test_a_namespace_created_again_by_its_uuid_is_there_once(metadata: MetadataUnderTest) -> None:
    created = metadata.admin.create_namespace(ELSEWHERE, UUID_1)
    assert created.uuid == UUID_1
    metadata.clock.time += SECOND
    assert metadata.admin.create_namespace(ELSEWHERE, UUID_1) == created
    with pytest.raises(AlreadyExists):
        metadata.admin.create_namespace(ELSEWHERE, UUID_2)


def test_a_namespace_is_deleted_by_its_uuid_alone(metadata: MetadataUnderTest) -> None:
    metadata.admin.create_namespace(ELSEWHERE, UUID_1)
    metadata.admin.delete_namespace(ELSEWHERE, UUID_1)
    again = metadata.admin.create_namespace(ELSEWHERE, UUID_2)
    with pytest.raises(NamespaceNotFound):
        metadata.admin.delete_namespace(ELSEWHERE, UUID_1)
    assert metadata.admin.get_namespace(ELSEWHERE) == again


def test_a_topic_created_again_by_its_uuid_is_the_same(metadata: MetadataUnderTest) -> None:
    created = metadata.admin.create_topic(ORDERS, SCHEMA, uuid=UUID_1)
    assert created.uuid == UUID_1
    metadata.clock.time += SECOND
    assert metadata.admin.create_topic(ORDERS, SCHEMA, uuid=UUID_1) == created
    with pytest.raises(AlreadyExists):
        metadata.admin.create_topic(ORDERS, SCHEMA, uuid=UUID_2)
    with pytest.raises(AlreadyExists):
        metadata.admin.create_topic(DEFAULT_NAMESPACE.topic("other"), SCHEMA, uuid=UUID_1)


def test_a_topic_that_was_created_and_deleted_is_not_created_again_by_its_uuid(
    metadata: MetadataUnderTest,
) -> None:
    created = metadata.admin.create_topic(ORDERS, SCHEMA, uuid=UUID_1)
    metadata.push(created)
    metadata.admin.delete_topic(ORDERS)
    while metadata.registry.purge(100):
        pass
    assert metadata.admin.create_topic(ORDERS, SCHEMA, uuid=UUID_1) == created
    assert metadata.admin.list_topics(DEFAULT_NAMESPACE) == []
    other = metadata.admin.create_topic(ORDERS, SCHEMA, uuid=UUID_2)
    assert metadata.admin.create_topic(ORDERS, SCHEMA, uuid=UUID_1) == created
    assert metadata.admin.list_topics(DEFAULT_NAMESPACE) == [other]


def test_a_purged_topic_is_forgotten_in_the_end(metadata: MetadataUnderTest) -> None:
    metadata.admin.create_topic(ORDERS, SCHEMA, uuid=UUID_1)
    metadata.admin.delete_topic(ORDERS)
    metadata.registry.purge(100)
    metadata.clock.time += DELETED_KEPT_US
    metadata.registry.purge(100)
    metadata.admin.create_topic(ORDERS, SCHEMA, uuid=UUID_1)
    assert [topic.uuid for topic in metadata.admin.list_topics(DEFAULT_NAMESPACE)] == [UUID_1]


def test_a_topic_is_altered_and_deleted_by_its_uuid_alone(metadata: MetadataUnderTest) -> None:
    first = metadata.admin.create_topic(ORDERS, SCHEMA)
    assert metadata.admin.alter_topic(ORDERS, CONFIG, first.uuid).config == CONFIG
    assert metadata.admin.delete_topic(ORDERS, first.uuid).uuid == first.uuid
    second = metadata.admin.create_topic(ORDERS, SCHEMA)
    with pytest.raises(TopicNotFound):
        metadata.admin.alter_topic(ORDERS, CONFIG, first.uuid)
    with pytest.raises(TopicNotFound):
        metadata.admin.delete_topic(ORDERS, first.uuid)
    assert metadata.admin.get_topic(ORDERS) == second


def test_what_is_no_uuid_is_refused(metadata: MetadataUnderTest) -> None:
    with pytest.raises(InvalidArgument, match="'orders' is not a UUID"):
        metadata.admin.create_topic(ORDERS, SCHEMA, uuid="orders")
    with pytest.raises(InvalidArgument, match="'orders' is not a UUID"):
        metadata.admin.create_namespace(ELSEWHERE, "orders")


def test_a_closed_store_says_so(metadata: MetadataUnderTest) -> None:
    metadata.opened.close()
    with pytest.raises(WingsError) as caught:
        metadata.admin.get_topic(ORDERS)
    assert caught.value.code == "UNAVAILABLE"
    with pytest.raises(WingsError) as caught:
        metadata.admin.create_topic(ORDERS, SCHEMA)
    assert caught.value.code == "UNAVAILABLE"


@pytest.mark.parametrize(("bad", "why"), [("a\0b", "NUL"), ("a\ud800", "Unicode")])
def test_names_that_are_no_text_are_refused_by_every_store(
    metadata: MetadataUnderTest, bad: str, why: str
) -> None:
    """PostgreSQL's text holds no NUL, and UTF-8 no half of a surrogate pair."""
    topic = metadata.create_topic()
    name = DEFAULT_NAMESPACE.topic("bad")
    group = ShareGroup(bad, str(uuid4()), topic, ShareConfig())
    calls: list[Callable[[], object]] = [
        lambda: metadata.stages.publish(bad, 0, []),
        lambda: metadata.stages.publish("w", 0, [bad]),
        lambda: metadata.stages.abort(bad, []),
        lambda: metadata.stages.abort("w", [bad]),
        lambda: metadata.stages.abort("w", [], prefix=bad),
        lambda: metadata.stages.pages(bad, 0, 1),
        lambda: metadata.groups.create(group),
        lambda: metadata.groups.get(topic, bad),
        lambda: metadata.groups.alter(topic, bad, ShareConfig()),
        lambda: metadata.groups.delete(topic, bad),
        lambda: metadata.registry.commit_offsets(bad, []),
        lambda: metadata.registry.get_offsets(bad),
        lambda: metadata.shards.open(bad, "token", []),
        lambda: metadata.shards.open("s", bad, []),
        lambda: metadata.shards.get("s", [bad]),
        lambda: metadata.shards.acquire("s", "token", [ShardClaim("a", bad)], 1),
        lambda: metadata.opened.nodes.renew(Node(bad, "127.0.0.1:1"), 5.0),
        lambda: metadata.opened.nodes.renew(Node("n", bad), 5.0),
        lambda: metadata.opened.nodes.leave(bad),
        lambda: metadata.opened.maintenance.acquire_lease(bad, "holder", 1),
        lambda: metadata.opened.maintenance.acquire_lease("lease", bad, 1),
        lambda: metadata.opened.maintenance.release_lease(bad, "holder"),
    ]
    if bad == "a\0b":  # The other names no column, and no stage that a ticket asks for.
        schema = pa.schema([pa.field(bad, pa.string())])
        calls.append(lambda: metadata.admin.create_topic(name, schema, bad))
        calls.append(lambda: metadata.stage(topic, bad))
    for call in calls:
        with pytest.raises(InvalidArgument, match=why):
            call()
    with pytest.raises(InvalidName):
        NamespaceName.parse(f"tenants/t/namespaces/{bad}")
    with pytest.raises(InvalidName):
        DEFAULT_NAMESPACE.topic(bad)


def kafka_topic(
    metadata: MetadataUnderTest, named: str, schema: pa.Schema = BINARY_SCHEMA, **kafka: Any
) -> Topic:
    config = TopicConfig(kafka=KafkaConfig.model_validate({"partitions": 3, **kafka}))
    where = topic_name_of(named, DEFAULT_NAMESPACE)
    return metadata.admin.create_topic(where, schema, "partition", config)


def test_numbered_partitions_are_listed_from_the_creation_on_and_page_by_page(
    metadata: MetadataUnderTest,
) -> None:
    topic = kafka_topic(metadata, "numbers", partitions=11)
    written = [Partition("2"), Partition("10")]
    for each in written:
        metadata.push(topic, partition=each)
    states = metadata.registry.partition_states(topic.uuid)
    assert [state.partition for state in states] == [str(number) for number in range(11)]
    assert [state.partition for state in states if state.next_offset] == written
    assert all((state.last_timestamp is None) == (state.next_offset == 0) for state in states)
    page = metadata.registry.partition_states(topic.uuid, after=Partition("1"), items_max=3)
    assert [state.partition for state in page] == ["2", "3", "10"]
    assert metadata.opened.maintenance.topic_state(topic.uuid).sums.partitions == 11


def test_a_kafka_topic_has_the_id_of_its_name(metadata: MetadataUnderTest) -> None:
    for name, topic_id in (
        ("orders", "orders"),
        ("My.Topic", "my-topic-927fec86"),
        ("__changes_v2", "changes_v2-3ca5f2a2"),
        ("0.0", "topic-8aed642b"),
        ("x" * 64, f"{'x' * 54}-7ce10097"),
    ):
        assert topic_id_of(name) == topic_id
    for name in ("", ".", "..", "a b", "x" * 250, "h\u00e9"):
        with pytest.raises(InvalidArgument, match="not a name of a Kafka topic"):
            topic_id_of(name)
    topic = kafka_topic(metadata, "My.Topic", name="My.Topic")
    assert metadata.admin.get_topic(topic_name_of("My.Topic", DEFAULT_NAMESPACE)) == topic
    assert topic.kafka_name == "My.Topic"
    with pytest.raises(AlreadyExists):
        kafka_topic(metadata, "My.Topic", name="My.Topic")
    for where, name in (("orders", "Orders"), ("My.Other", "My.Topic")):
        with pytest.raises(InvalidArgument, match="has the id"):
            kafka_topic(metadata, where, name=name)


def test_a_kafka_topic_has_the_columns_that_it_must_have(metadata: MetadataUnderTest) -> None:
    columns = list(BINARY_SCHEMA)
    key = pa.field("partition", pa.int32())
    for schema, value in (
        (pa.schema([pa.field("partition", pa.int64()), *columns[1:]]), "binary"),
        (pa.schema(columns[:-1]), "binary"),
        (pa.schema([*columns, pa.field("more", pa.int8())]), "binary"),
        (pa.schema([*columns[:2], pa.field("value", pa.binary(), False), *columns[3:]]), "binary"),
        (pa.schema([pa.field("partition", pa.string())]), "json"),
    ):
        with pytest.raises(InvalidSchema):
            kafka_topic(metadata, "refused", schema, value=value)
    config = TopicConfig(kafka=KafkaConfig(partitions=1))
    with pytest.raises(InvalidSchema, match="key of a Kafka topic"):
        metadata.admin.create_topic(ORDERS, BINARY_SCHEMA, "key", config)
    binary = kafka_topic(metadata, "binary")
    more = SchemaChange(add=pa.schema([pa.field("more", pa.int8())]))
    with pytest.raises(InvalidSchema):
        metadata.admin.alter_schema(binary.name, more)
    rows = kafka_topic(metadata, "rows", pa.schema([key, pa.field("n", pa.int64())]), value="json")
    assert metadata.admin.alter_schema(rows.name, more).schema.names == ["partition", "n", "more"]


def test_partitions_of_a_kafka_topic_only_rise(metadata: MetadataUnderTest) -> None:
    topic = kafka_topic(metadata, "Rising", name="Rising")

    def alter(kafka: dict[str, Any] | None) -> Topic:
        return metadata.admin.alter_topic(topic.name, TopicConfig.model_validate({"kafka": kafka}))

    altered = alter({"partitions": 5})
    assert altered.config.kafka == KafkaConfig(partitions=5, name="Rising")
    assert len(metadata.registry.partition_states(topic.uuid)) == 5
    for refused in (
        {"partitions": 4},
        {"partitions": 5, "value": "json"},
        {"partitions": 5, "name": "Other"},
        None,
    ):
        with pytest.raises(InvalidArgument):
            alter(refused)
    metadata.admin.create_topic(ORDERS, SCHEMA)
    with pytest.raises(InvalidArgument, match="neither added nor removed"):
        metadata.admin.alter_topic(ORDERS, TopicConfig(kafka=KafkaConfig(partitions=1)))
    metadata.reopen()
    assert metadata.admin.get_topic(topic.name) == altered
