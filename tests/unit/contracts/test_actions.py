"""DoAction's contracts: the body of each action, and the answers."""

import json
from typing import Any

import pyarrow as pa
import pytest
from tables import each

from wings_core.contracts.actions import (
    ActionBody,
    AlterTopic,
    CreateTopic,
    GetOffsets,
    ListNamespaces,
    ListTopics,
    NamespaceBody,
    OffsetForTimestamp,
    ShardAcquire,
    StagePublish,
    TopicBody,
    describe_namespace,
    describe_offsets,
    describe_partition_states,
    describe_topic,
)
from wings_core.contracts.commits import CommitOffsets
from wings_core.errors import InvalidArgument, InvalidSchema
from wings_core.model import (
    CommittedOffset,
    NamespaceState,
    PartitionState,
    ShardProgress,
    ShardState,
    Topic,
    TopicConfig,
)
from wings_core.names import DEFAULT_NAMESPACE, TopicName
from wings_core.partitions import partition_of_value
from wings_core.schemas import schema_from_ipc, schema_to_ipc

arrow: Any = pa
SCHEMA = arrow.schema(
    [pa.field("k", pa.string(), nullable=False), ("v", pa.list_(pa.timestamp("us", tz="UTC")))]
)
FIELDS = [
    {"name": "k", "type": "string", "nullable": False},
    {"name": "v", "type": "list<item: timestamp[us, tz=UTC]>"},
]
TIME = "2026-11-20T12:00:00Z"
TIME_US = 1_795_176_000_000_000

CREATE = {"topic": "t", "schema": {"fields": FIELDS}}
BODIES: list[tuple[type[ActionBody], dict[str, Any]]] = [
    (CreateTopic, {**CREATE, "partition_key": "k", "config": {}, "if_not_exists": True}),
    (CreateTopic, {"topic": "t", "schema_ipc": schema_to_ipc(SCHEMA), "partition_key": None}),
    (TopicBody, {"topic": "t"}),
    (AlterTopic, {"topic": "t", "config": {"batch_bytes_max": 1}}),
    (AlterTopic, {"topic": "t", "schema": {"add": [{"name": "x", "type": "int64"}]}}),
    (ListTopics, {"namespace": "n"}),
    (NamespaceBody, {"namespace": "n"}),
    (ListNamespaces, {}),
    (OffsetForTimestamp, {"topic": "t", "partition": "x", "timestamp": TIME}),
    (CommitOffsets, {"consumer": "c", "offsets": [{"topic": "t", "partition": 1, "offset": 2}]}),
    (GetOffsets, {"consumer": "c", "topic": "t"}),
]


def parse(model: type[Any], found: object) -> Any:
    return model.parse_body(json.dumps(found).encode())


def refusal(model: type[ActionBody], found: object) -> str:
    with pytest.raises(InvalidArgument) as caught:
        parse(model, found)
    assert type(caught.value) is InvalidArgument
    assert len(caught.value.message.encode()) <= 512
    return caught.value.message


def test_a_body_is_read_and_survives_its_bytes(subtests: pytest.Subtests) -> None:
    for model, found in BODIES:
        with subtests.test(f"{model!r:.60} {found!r:.60}"):
            body = parse(model, found)
            assert model.parse_body(body.to_bytes()) == body


def test_an_unknown_key_is_refused(subtests: pytest.Subtests) -> None:
    for model, found in BODIES:
        with subtests.test(f"{model!r:.60} {found!r:.60}"):
            assert "unknown key 'x'" in refusal(model, {**found, "x": 1})


def test_no_key_takes_a_value_of_another_kind(subtests: pytest.Subtests) -> None:
    for model, found in BODIES:
        with subtests.test(f"{model!r:.60} {found!r:.60}"):
            for key in found:
                if key == "partition":
                    continue
                for value in (1, 1.5, ["x"]):
                    assert f"key '{key}" in refusal(model, {**found, key: value})
                if key != "partition_key":
                    assert f"key '{key}' must not be null" in refusal(model, {**found, key: None})


REQUIRED = [
    (CreateTopic, {"schema": {"fields": FIELDS}}, "topic"),
    (TopicBody, {}, "topic"),
    (NamespaceBody, {}, "namespace"),
    (OffsetForTimestamp, {"topic": "t"}, "timestamp"),
    (CommitOffsets, {"offsets": []}, "consumer"),
    (CommitOffsets, {"consumer": "c"}, "offsets"),
    (CommitOffsets, {"consumer": "c", "offsets": [{"topic": "t"}]}, "offsets[0].offset"),
    (GetOffsets, {}, "consumer"),
]


def test_a_required_key_is_named(subtests: pytest.Subtests) -> None:
    for model, found, key in REQUIRED:
        with subtests.test(f"{model!r:.60} {found!r:.60} {key!r:.60}"):
            assert f"key '{key}' is required" in refusal(model, found)


@each("raw", [b"[]", b"null", b"{", b"\xff", b'{"topic": "t", "topic": "t"}'])
def test_a_body_is_a_json_object(raw: bytes) -> None:
    with pytest.raises(InvalidArgument):
        TopicBody.parse_body(raw)


@each("raw", [None, b"", pa.py_buffer(b""), b"{}"])
def test_an_empty_body_counts_as_an_empty_object(raw: Any) -> None:
    assert ListNamespaces.parse_body(raw) == ListNamespaces()
    assert ListTopics.parse_body(raw).namespace is None


# Topics.


def test_a_topic_is_created_from_fields_or_from_ipc() -> None:
    for found in (CREATE, {"topic": "t", "schema_ipc": schema_to_ipc(SCHEMA)}):
        body = parse(CreateTopic, found)
        assert body.arrow_schema().equals(SCHEMA)
        assert (body.partition_key, body.config, body.if_not_exists) == (None, TopicConfig(), False)


@each("keys", [{}, {"schema": {"fields": FIELDS}, "schema_ipc": schema_to_ipc(SCHEMA)}])
def test_a_topic_has_exactly_one_form_of_schema(keys: dict[str, Any]) -> None:
    assert "exactly one of the keys 'schema' and 'schema_ipc'" in refusal(
        CreateTopic, {"topic": "t", **keys}
    )


@each(
    ("fields", "message"),
    [
        ([{"name": "a"}], "key 'schema.fields[0].type' is required"),
        ([{"type": "int64"}], "key 'schema.fields[0].name' is required"),
        ([{"name": "a", "type": "int64", "x": 1}], "unknown key 'schema.fields[0].x'"),
        ([{"name": "a", "type": "int64", "nullable": 1}], "key 'schema.fields[0].nullable'"),
        ([{"name": 1, "type": "int64"}], "key 'schema.fields[0].name'"),
        ([["a", "int64"]], "key 'schema.fields[0]': must be an object"),
        ({"a": "int64"}, "key 'schema.fields': must be a list"),
    ],
)
def test_a_bad_form_of_fields_is_an_invalid_argument(fields: object, message: str) -> None:
    assert message in refusal(CreateTopic, {"topic": "t", "schema": {"fields": fields}})


@each(
    "keys",
    [
        {"schema": {"fields": []}},
        {"schema": {"fields": [{"name": "a", "type": "int65"}]}},
        {"schema": {"fields": [{"name": "__a", "type": "int64"}]}},
        {"schema": {"fields": [{"name": "a", "type": "null", "nullable": False}]}},
        {"schema": {"fields": FIELDS}, "partition_key": "v"},
        {"schema": {"fields": FIELDS}, "partition_key": "x"},
        {"schema_ipc": "!"},
        {"schema_ipc": schema_to_ipc(arrow.schema([("a", pa.string_view())]))},
    ],
)
def test_a_schema_that_no_topic_may_have_is_an_invalid_schema(keys: dict[str, Any]) -> None:
    body = parse(CreateTopic, {"topic": "t", **keys})
    with pytest.raises(InvalidSchema):
        body.arrow_schema()


@each("config", [{"batch_bytes_max": 0}, {"batch_bytes_max": "1"}, {"x": 1}])
def test_a_bad_configuration_is_refused(config: dict[str, Any]) -> None:
    assert "config." in refusal(CreateTopic, {**CREATE, "config": config})
    assert "config." in refusal(AlterTopic, {"topic": "t", "config": config})


def test_a_topics_description_can_be_created_from() -> None:
    name = TopicName(DEFAULT_NAMESPACE, "t")
    topic = Topic(name, "some-uuid", SCHEMA, "k", TopicConfig(batch_bytes_max=7), TIME_US)
    described = describe_topic(topic)
    assert described == {
        "topic": "tenants/default/namespaces/default/topics/t",
        "uuid": "some-uuid",
        "schema": {"fields": [{**FIELDS[0], "id": 1}, {**FIELDS[1], "nullable": True, "id": 2}]},
        "schema_ipc": schema_to_ipc(SCHEMA),
        "schema_version": 1,
        "partition_key": "k",
        "config": {
            "batch_bytes_max": 7,
            "retention_ms": None,
            "retention_bytes": None,
            "retention_on_acceptance": False,
            "tier_after_ms": None,
            "segment_bytes": 64 * 1024 * 1024,
            "segment_format": "arrow",
            "table": None,
            "table_partition_by": None,
            "table_commit_ms": 60_000,
            "kafka": None,
        },
        "created_at": "2026-11-20T12:00:00.000000Z",
    }
    assert schema_from_ipc(described["schema_ipc"]).equals(SCHEMA)
    for form in ("schema", "schema_ipc"):
        keys = ("topic", form, "partition_key", "config")
        body = parse(CreateTopic, {key: described[key] for key in keys})
        assert body.arrow_schema().equals(SCHEMA)
        assert body.config == topic.config


def test_a_topic_without_a_key_and_with_default_configuration_is_described_with_nulls() -> None:
    topic = Topic(DEFAULT_NAMESPACE.topic("t"), "u", SCHEMA, None, TopicConfig(), 0)
    described = describe_topic(topic)
    assert described["partition_key"] is None
    keys = ("topic", "schema", "partition_key", "config")
    assert parse(CreateTopic, {key: described[key] for key in keys}).partition_key is None


def test_a_namespaces_description() -> None:
    assert describe_namespace(NamespaceState(DEFAULT_NAMESPACE, "uuid", 0)) == {
        "namespace": "tenants/default/namespaces/default",
        "created_at": "1970-01-01T00:00:00.000000Z",
    }


# Partitions and offsets.


def test_partition_states_are_described_in_the_order_given() -> None:
    states = [
        PartitionState(partition_of_value("x"), 3, 9, 1000, TIME_US),
        PartitionState(partition_of_value(None), 0, 0, 0, None),
    ]
    assert describe_partition_states(states) == [
        {
            "partition": "x",
            "log_start_offset": 3,
            "next_offset": 9,
            "bytes": 1000,
            "last_timestamp": "2026-11-20T12:00:00.000000Z",
        },
        {
            "partition": None,
            "log_start_offset": 0,
            "next_offset": 0,
            "bytes": 0,
            "last_timestamp": None,
        },
    ]


def test_an_offset_for_a_timestamp_is_asked_in_microseconds() -> None:
    body = parse(OffsetForTimestamp, {"topic": "t", "timestamp": TIME})
    assert (body.partition, body.timestamp_us) == (None, TIME_US)
    for value in ("", "now", "2026-11-20T12:00:00", 0):
        assert "key 'timestamp'" in refusal(OffsetForTimestamp, {"topic": "t", "timestamp": value})


@each("name", ["", "x" * 256])
@each("model", [CommitOffsets, GetOffsets])
def test_a_consumer_has_a_name(model: type[ActionBody], name: str) -> None:
    rest = {"offsets": []} if "offsets" in model.model_fields else {}
    assert "key 'consumer'" in refusal(model, {"consumer": name, **rest})


def test_a_consumers_offsets_are_described_in_the_order_given() -> None:
    topic = DEFAULT_NAMESPACE.topic("t")
    offsets = [
        CommittedOffset(topic, partition_of_value("x"), 3, TIME_US),
        CommittedOffset(topic, partition_of_value(None), 0, 0),
    ]
    assert describe_offsets(offsets) == {
        "offsets": [
            {
                "topic": str(topic),
                "partition": "x",
                "offset": 3,
                "committed_at": "2026-11-20T12:00:00.000000Z",
            },
            {
                "topic": str(topic),
                "partition": None,
                "offset": 0,
                "committed_at": "1970-01-01T00:00:00.000000Z",
            },
        ]
    }


ENTRY = {"source": "s", "shard": "file:///x", "token": "a", "position": 0, "next_position": 7}


def publish(**changes: object) -> dict[str, Any]:
    entry = {key: value for key, value in {**ENTRY, **changes}.items() if value is not ...}
    return {"writer": "w", "batch": 0, "stages": [], "shards": [entry]}


def test_a_publish_tells_of_shards() -> None:
    (entry,) = parse(StagePublish, publish()).shards
    assert entry.progress() == ShardProgress("s", "file:///x", "a", 0, 7, ShardState.OPEN, None)
    (entry,) = parse(StagePublish, publish(state="dead", error="bad")).shards
    assert (entry.progress().state, entry.progress().error) == (ShardState.DEAD, "bad")
    assert parse(StagePublish, {"writer": "w", "batch": 0, "stages": []}).shards == ()
    again = StagePublish.parse_body(parse(StagePublish, publish(state="finished")).to_bytes())
    assert again.shards[0].state is ShardState.FINISHED


BAD_ENTRIES = [
    ("source", ...),
    ("token", ""),
    ("shard", "x" * 2_049),
    ("position", -1),
    ("next_position", "7"),
    ("state", "closed"),
    ("error", None),
    ("owner", "a"),
]


def test_what_a_publish_says_wrong_of_a_shard_is_named(subtests: pytest.Subtests) -> None:
    for key, value in BAD_ENTRIES:
        with subtests.test(f"{key!r:.60} {value!r:.60}"):
            if value is None:
                assert parse(StagePublish, publish(error=None)).shards[0].error is None
            else:
                assert f"shards[0].{key}" in refusal(StagePublish, publish(**{key: value}))


@each("seconds", [-1, "1", None, 1e12])
def test_a_stale_owner_is_told_by_seconds(seconds: object) -> None:
    body = {"source": "s", "token": "a", "claims": [], "stale_seconds": seconds}
    assert "key 'stale_seconds'" in refusal(ShardAcquire, body)
