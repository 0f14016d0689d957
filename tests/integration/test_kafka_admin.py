"""Administration by Kafka's own clients, unmodified: librdkafka's and kafka-python's."""

import struct
import warnings
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions
from test_kafka import LATER, Rdkafka, connected, expect_polled, head, taken, text

import wings_client
from wings_server.kafka.messages import Api
from wings_server.testing import RunningServer, server_process

pytestmark = pytest.mark.server(kafka=True)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # It reads its own resources the old way.
    from kafka import (
        TopicPartition as PythonPartition,  # pyright: ignore[reportAttributeAccessIssue]
    )
    from kafka.admin import ConfigResource as PythonResource
    from kafka.admin import KafkaAdminClient


@pytest.fixture
def rdkafka(server: RunningServer) -> Rdkafka:
    return Rdkafka(server.kafka)


@pytest.fixture
def admin(rdkafka: Rdkafka) -> AdminClient:
    return AdminClient(rdkafka.config)


@pytest.fixture
def python(server: RunningServer) -> Iterator[Any]:
    """An admin client of kafka-python, whose types are those of an earlier version."""
    with closing(KafkaAdminClient(bootstrap_servers=server.kafka)) as client:
        yield client


def only(futures: Any) -> Any:
    """Return the result of the only future of a mapping."""
    (future,) = futures.values()
    return future.result(LATER)


def refusal(futures: Any) -> int:
    """Return the code that the only future of a mapping fails with."""
    with pytest.raises(ck.KafkaException) as error:
        only(futures)
    return error.value.args[0].code()


def configured(admin: AdminClient, topic: str) -> dict[str, str]:
    found = only(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
    return {name: entry.value for name, entry in found.items()}


def altered(admin: AdminClient, topic: str, *changes: tuple[str, str | None, Any]) -> Any:
    entries = [
        ConfigEntry(name, value, incremental_operation=operation)
        for name, value, operation in changes
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    return admin.incremental_alter_configs([resource])


def test_configuration_is_described_and_altered_key_by_key(
    server: RunningServer, rdkafka: Rdkafka, admin: AdminClient, new_topic_id: str
) -> None:
    rdkafka.create(new_topic_id, 1, **{"retention.ms": "60000"})
    before = configured(admin, new_topic_id)
    assert before["retention.ms"] == "60000"
    assert (before["retention.bytes"], before["cleanup.policy"]) == ("-1", "delete")
    set_, delete = AlterConfigOpType.SET, AlterConfigOpType.DELETE
    changes = [("retention.ms", "", delete), ("segment.bytes", "1000000", set_)]
    changes.append(("no.such", "", delete))  # MirrorMaker deletes all that its Kafka knows.
    only(altered(admin, new_topic_id, *changes, ("cleanup.policy", "compact", set_)))
    changed = {"segment.bytes": "1000000", "cleanup.policy": "compact"}
    expected = {**before, "retention.ms": "-1", **changed}
    assert configured(admin, new_topic_id) == expected
    with wings_client.connect(server.flight) as client:
        config = client.topic(new_topic_id).config
        assert (config["retention_ms"], config["segment_bytes"]) == (None, 1_000_000)
    refused = [("no.such", "1"), ("retention.ms", "x"), ("segment.bytes", "0")]
    refused.append(("cleanup.policy", "no"))
    for name, value in refused:
        mixed = altered(admin, new_topic_id, ("retention.bytes", "5", set_), (name, value, set_))
        assert refusal(mixed) == ck.KafkaError.INVALID_CONFIG, name
    appended = altered(admin, new_topic_id, ("retention.ms", "5", AlterConfigOpType.APPEND))
    assert refusal(appended) == ck.KafkaError.INVALID_CONFIG
    for operation, policy in (("APPEND", "compact,delete"), ("SUBTRACT", "compact")):
        only(
            altered(admin, new_topic_id, ("cleanup.policy", "delete", AlterConfigOpType[operation]))
        )
        assert configured(admin, new_topic_id)["cleanup.policy"] == policy
    missing = altered(admin, "no-such-topic", ("retention.ms", "5", set_))
    assert refusal(missing) == ck.KafkaError.UNKNOWN_TOPIC_OR_PART
    assert configured(admin, new_topic_id) == expected


def test_a_compacted_topic_says_so_and_takes_no_null_keys(
    server: RunningServer, rdkafka: Rdkafka, admin: AdminClient, new_topic_id: str
) -> None:
    rdkafka.create(new_topic_id, 2, **{"cleanup.policy": "delete, compact"})
    only(admin.create_partitions([NewPartitions(new_topic_id, 3)]))
    assert configured(admin, new_topic_id)["cleanup.policy"] == "compact,delete"
    entry: dict[str, Any] = {"value": b"keyed", "key": b"", "partition": 0}
    rdkafka.produce(new_topic_id, [entry, {**entry, "value": None}])
    codes: dict[bytes, int | None] = {}

    def delivered(error: ck.KafkaError | None, message: ck.Message) -> None:
        value = message.value()
        assert isinstance(value, bytes)
        codes[value] = None if error is None else error.code()

    producer = ck.Producer({**rdkafka.config, "linger.ms": 500})
    for number, key in enumerate((b"key", None, b"key", None)):
        producer.produce(new_topic_id, b"%d" % number, key, 0, on_delivery=delivered)
    assert producer.flush(LATER) == 0
    other, refused = ck.KafkaError._INVALID_DIFFERENT_RECORD, ck.KafkaError.INVALID_RECORD
    assert codes == {b"0": other, b"1": refused, b"2": other, b"3": refused}
    only(altered(admin, new_topic_id, ("cleanup.policy", None, AlterConfigOpType.DELETE)))
    assert configured(admin, new_topic_id)["cleanup.policy"] == "delete"
    rdkafka.produce(new_topic_id, [{"value": b"without", "partition": 0}])


def test_a_topic_without_a_number_of_partitions_has_as_many_as_the_server_says() -> None:
    with server_process(flags=("--kafka", "127.0.0.1:0", "--kafka-partitions", "3")) as running:
        rdkafka = Rdkafka(running.kafka)
        rdkafka.create("created", -1)
        rdkafka.produce("on-demand", [{"value": b"v", "partition": 2}])
        listed = AdminClient(rdkafka.config).list_topics(timeout=LATER).topics
    assert [len(listed[name].partitions) for name in ("created", "on-demand")] == [3, 3]


def test_a_topic_that_is_named_twice_is_not_made(server: RunningServer) -> None:
    topic = text("twice") + struct.pack(">ihii", 1, 1, 0, 0)
    frame = head(Api.CREATE_TOPICS.value, 2) + struct.pack(">i", 2) + 2 * topic
    with connected(server.kafka) as connection:
        connection.send(frame + struct.pack(">ib", 1_000, 0))
        (result,) = connection.received(Api.CREATE_TOPICS, 2).topics
    assert result.error_code.name == "invalid_request"
    with (
        wings_client.connect(server.flight) as client,
        pytest.raises(wings_client.TopicNotFound),
    ):
        client.topic("twice")


def test_configuration_of_the_broker_is_described(admin: AdminClient) -> None:
    (broker,) = admin.describe_cluster().result(LATER).nodes
    found = only(admin.describe_configs([ConfigResource(ResourceType.BROKER, str(broker.id))]))
    assert int(found["message.max.bytes"].value) >= 1 << 20


def test_partitions_are_added_and_reach_a_group(
    rdkafka: Rdkafka, admin: AdminClient, new_topic_id: str
) -> None:
    rdkafka.create(new_topic_id, 2)
    fast: dict[str, Any] = {"topic.metadata.refresh.interval.ms": 500}
    with closing(rdkafka.consumer(new_topic_id, **fast)) as consumer:
        consumer.subscribe([new_topic_id])
        expect_polled(lambda: len(consumer.assignment()) == 2, consumer)
        only(admin.create_partitions([NewPartitions(new_topic_id, 5)]))
        rdkafka.produce(new_topic_id, [{"value": b"new", "partition": 4}])
        (message,) = taken(consumer, 1)
        assert (message.partition(), message.value()) == (4, b"new")
    for count in (5, 3, 100_000):
        refused = admin.create_partitions([NewPartitions(new_topic_id, count)])
        assert refusal(refused) == ck.KafkaError.INVALID_PARTITIONS
    checked = admin.create_partitions([NewPartitions(new_topic_id, 7)], validate_only=True)
    only(checked)
    assert len(admin.list_topics(timeout=LATER).topics[new_topic_id].partitions) == 5


def test_records_before_an_offset_are_deleted(
    server: RunningServer, rdkafka: Rdkafka, admin: AdminClient, new_topic_id: str
) -> None:
    rdkafka.create(new_topic_id, 2)

    def deleted(offset: int, partition: int = 0) -> int:
        asked = ck.TopicPartition(new_topic_id, partition, offset)
        return only(admin.delete_records([asked])).low_watermark

    def begins() -> int:
        with closing(rdkafka.consumer()) as consumer:
            low, high = consumer.get_watermark_offsets(ck.TopicPartition(new_topic_id, 0), LATER)
        assert high == 20
        return low

    def values() -> list[tuple[int, bytes]]:
        found = rdkafka.consume(new_topic_id, 20 - begins())
        return [(each.offset(), each.value()) for each in found]

    records = [(number, b"%d" % number) for number in range(20)]
    rdkafka.produce(new_topic_id, [value for _, value in records], **{"linger.ms": 500})
    assert deleted(0) == 0
    assert values() == records
    assert deleted(7) == begins() == 7  # Within a batch that is kept for consumers.
    assert values() == records[7:]
    server.server.log.maintainer.run()  # Pages are in segments from here on.
    assert deleted(15) == begins() == 15
    assert values() == records[15:]
    assert deleted(-1) == 20
    assert begins() == deleted(3) == 20
    assert deleted(-1, partition=1) == 0
    assert rdkafka.produce(new_topic_id, [b"later"]) == [(0, 20)]
    (later,) = rdkafka.consume(new_topic_id, 1)
    assert later.offset() == 20
    for topic, partition, offset, code in (
        (new_topic_id, 0, 22, ck.KafkaError.OFFSET_OUT_OF_RANGE),
        (new_topic_id, 1, 1, ck.KafkaError.OFFSET_OUT_OF_RANGE),
        (new_topic_id, 2, 0, ck.KafkaError.UNKNOWN_TOPIC_OR_PART),
        ("no-such-topic", 0, 0, ck.KafkaError.UNKNOWN_TOPIC_OR_PART),
    ):
        with connected(server.kafka) as connection:
            partitions = [{"partition_index": partition, "offset": offset}]
            asked = [{"name": topic, "partitions": partitions}]
            (answer,) = connection.ask(Api.DELETE_RECORDS, 2, topics=asked).topics
        (part,) = answer.partitions
        assert (part.error_code.value, part.low_watermark) == (code, -1)


def test_the_cluster_is_one_broker(server: RunningServer, admin: AdminClient, python: Any) -> None:
    cluster = admin.describe_cluster().result(LATER)
    (broker,) = cluster.nodes
    assert (cluster.cluster_id, f"{broker.host}:{broker.port}") == ("wings", server.kafka)
    assert cluster.controller.id == broker.id
    assert python.describe_cluster()["controller_id"] == broker.id


def test_groups_are_listed_and_described_with_and_without_members(
    rdkafka: Rdkafka, admin: AdminClient, new_topic_id: str
) -> None:
    rdkafka.create(new_topic_id, 2)

    def listed(**wanted: Any) -> dict[str, str]:
        found = admin.list_consumer_groups(**wanted).result(LATER)
        assert not found.errors
        return {each.group_id: each.state.name for each in found.valid}

    assert new_topic_id not in listed()
    with closing(rdkafka.consumer(new_topic_id, **{"client.id": "reader"})) as consumer:
        consumer.subscribe([new_topic_id])
        expect_polled(lambda: len(consumer.assignment()) == 2, consumer)
        assert listed()[new_topic_id] == "STABLE"
        described = only(admin.describe_consumer_groups([new_topic_id]))
        (member,) = described.members
        assert (described.state.name, described.partition_assignor) == ("STABLE", "range")
        assert member.client_id == "reader"
        owned = {(each.topic, each.partition) for each in member.assignment.topic_partitions}
        assert owned == {(new_topic_id, 0), (new_topic_id, 1)}
        rdkafka.produce(new_topic_id, [b"one"])
        consumer.commit(message=taken(consumer, 1)[0], asynchronous=False)
    assert listed()[new_topic_id] == "EMPTY"
    stable = {ck.ConsumerGroupState.STABLE}
    assert new_topic_id not in listed(states=stable)
    described = only(admin.describe_consumer_groups([new_topic_id]))
    assert (described.state.name, described.members) == ("EMPTY", [])
    assert only(admin.describe_consumer_groups(["no-such-group"])).state.name == "DEAD"


def test_groups_and_offsets_are_deleted_once_the_group_has_no_members(
    server: RunningServer,
    rdkafka: Rdkafka,
    admin: AdminClient,
    python: Any,
    new_topic_id: str,
) -> None:
    rdkafka.create(new_topic_id, 3)
    rdkafka.produce(new_topic_id, [{"value": b"v", "partition": number} for number in range(3)])
    every = [ck.TopicPartition(new_topic_id, number, 1) for number in range(3)]
    consumer = rdkafka.consumer(new_topic_id)
    consumer.subscribe([new_topic_id])
    expect_polled(lambda: len(consumer.assignment()) == 3, consumer)
    consumer.commit(offsets=every, asynchronous=False)
    refused = admin.delete_consumer_groups([new_topic_id])
    assert refusal(refused) == ck.KafkaError.NON_EMPTY_GROUP
    consumer.close()
    position = PythonPartition(new_topic_id, 1)
    assert python.delete_group_offsets(new_topic_id, [position])[position].errno == 0
    with wings_client.connect(server.flight) as client:

        def committed() -> list[object]:
            found = client.committed_offsets(f"kafka:{new_topic_id}", new_topic_id)
            return [each.partition for each in found]

        assert committed() == [0, 2]
        only(admin.delete_consumer_groups([new_topic_id]))
        assert committed() == []
    missing = admin.delete_consumer_groups([new_topic_id])
    assert refusal(missing) == ck.KafkaError.GROUP_ID_NOT_FOUND


def test_the_only_leader_epoch_ends_where_the_log_does(
    rdkafka: Rdkafka, new_topic_id: str, subtests: pytest.Subtests
) -> None:
    rdkafka.create(new_topic_id)
    rdkafka.produce(new_topic_id, [b"one", b"two"])
    asked = {
        "it": (0, -1, 0, (0, 0, 0, 2)),
        "a later one": (0, -1, 3, (0, 0, -1, -1)),
        "a leader to come": (0, 1, 0, (75, 0, -1, -1)),
        "no partition": (9, -1, 0, (3, 9, -1, -1)),
    }
    with connected(rdkafka.config["bootstrap.servers"]) as connection:
        for name, (partition, current, epoch, expected) in asked.items():
            with subtests.test(name):
                one = struct.pack(">i", 1)
                parts = one + struct.pack(">iii", partition, current, epoch)
                request = head(Api.OFFSET_FOR_LEADER_EPOCH, 2) + one + text(new_topic_id) + parts
                connection.send(request)
                answer = connection.receive() or b""
                assert struct.unpack_from(">hiiq", answer[-18:]) == expected


def test_kafka_python_administers(
    server: RunningServer, rdkafka: Rdkafka, python: Any, new_topic_id: str
) -> None:
    rdkafka.create(new_topic_id, 1)
    kind: Any = "TOPIC"
    python.create_partitions({new_topic_id: 3})
    python.alter_configs([PythonResource(kind, new_topic_id, {"retention.ms": "70000"})])
    described = python.describe_configs([PythonResource(kind, new_topic_id)])
    assert described["topic"][new_topic_id]["retention.ms"]["value"] == "70000"
    with closing(rdkafka.consumer(new_topic_id)) as consumer:
        consumer.subscribe([new_topic_id])
        expect_polled(lambda: len(consumer.assignment()) == 3, consumer)
        groups = {each["group_id"]: each for each in python.list_groups()}
        assert groups[new_topic_id]["group_state"] == "Stable"
        described = python.describe_groups([new_topic_id])[new_topic_id]
        assert len(described["members"]) == 1
