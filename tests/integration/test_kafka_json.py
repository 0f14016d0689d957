"""Topics of ordinary columns for Kafka's clients, unmodified: values are JSON objects of them."""

import json
import struct
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import confluent_kafka as ck
import pyarrow as pa
import pytest
from aiokafka.record._crecords import (  # pyright: ignore[reportMissingTypeStubs]
    DefaultRecordBatchBuilder,
)
from confluent_kafka.admin import AdminClient
from flight_calls import act
from test_kafka import LATER, Rdkafka, connected, head, taken, text

import wings_client
from wings_server.kafka.messages import Api
from wings_server.testing import RunningServer

pytestmark = pytest.mark.server(kafka=True)

SCHEMA = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("amount", pa.decimal128(9, 2), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("tags", pa.list_(pa.string())),
    ]
)
ONE = {"key": "ada", "amount": "1.50", "at": "2026-11-20T12:00:00.000000Z", "tags": ["a", "b"]}
TWO = {"key": None, "amount": "-2.00", "at": None, "tags": None}


@pytest.fixture
def rdkafka(server: RunningServer) -> Rdkafka:
    return Rdkafka(server.kafka)


@pytest.fixture
def client(server: RunningServer) -> Iterator[wings_client.Client]:
    with wings_client.connect(server.flight) as connected_client:
        yield connected_client


def values_of(messages: list[Any]) -> list[Any]:
    return [json.loads(message.value()) for message in messages]


def test_a_topic_without_a_key_is_one_partition_of_json(
    rdkafka: Rdkafka, client: wings_client.Client, new_topic_id: str
) -> None:
    client.create_topic(new_topic_id, SCHEMA)
    listed = AdminClient(rdkafka.config).list_topics(timeout=LATER).topics
    assert list(listed[new_topic_id].partitions) == [0]
    records = [
        {"value": json.dumps({**ONE, "key": "of the value"}), "key": b"ada", "partition": 0},
        {"value": b'{"amount": "-2.00"}', "partition": 0},
    ]
    placed = rdkafka.produce(new_topic_id, records, **{"enable.idempotence": True})
    assert placed == [(0, 0), (0, 1)]
    rows = client.scan(new_topic_id).read_all()
    assert rows.schema == SCHEMA
    client.push(new_topic_id, rows.slice(0, 1))
    found = rdkafka.consume(new_topic_id, 3)
    assert values_of(found) == [ONE, TWO, ONE]
    assert [message.key() for message in found] == [b"ada", None, b"ada"]
    states = client.scan(new_topic_id, system_columns=True).read_all().to_pylist()
    times = [int(row["__timestamp"].timestamp() * 1_000) for row in states]
    assert [message.timestamp()[1] for message in found] == times
    with closing(rdkafka.consumer()) as consumer:
        asked = [ck.TopicPartition(new_topic_id, 0, times[2] + 1)]
        assert consumer.offsets_for_times(asked, timeout=LATER)[0].offset == ck.OFFSET_END
        asked = [ck.TopicPartition(new_topic_id, 0, times[0])]
        assert consumer.offsets_for_times(asked, timeout=LATER)[0].offset == 0


def test_a_topic_with_numbered_partitions_takes_json(
    rdkafka: Rdkafka, client: wings_client.Client, new_topic_id: str
) -> None:
    schema = SCHEMA.insert(0, pa.field("partition", pa.int32(), nullable=False))
    config = {"kafka": {"partitions": 3, "value": "json"}}
    client.create_topic(new_topic_id, schema, "partition", config)
    rdkafka.produce(
        new_topic_id,
        [{"value": json.dumps({"amount": f"{n}.00"}), "partition": n % 3} for n in range(9)],
    )
    rows = client.scan(new_topic_id, partition=2).read_all().to_pylist()
    assert [(row["partition"], int(row["amount"])) for row in rows] == [(2, 2), (2, 5), (2, 8)]
    with closing(rdkafka.consumer(new_topic_id)) as consumer:
        consumer.subscribe([new_topic_id])
        found = consumer.consume(9, LATER)
    assert sorted(int(float(each["amount"])) for each in values_of(found)) == list(range(9))
    assert {each["partition"] for each in values_of(found)} == {0, 1, 2}


def test_many_rows_are_fetched_in_parts(
    rdkafka: Rdkafka, client: wings_client.Client, new_topic_id: str
) -> None:
    client.create_topic(new_topic_id, pa.schema([("n", pa.int64()), ("text", pa.string())]))
    rows = pa.record_batch({"n": range(10_000), "text": ["t" * 50] * 10_000})
    client.push(new_topic_id, rows)
    small: dict[str, Any] = {"fetch.max.bytes": 100_000, "max.partition.fetch.bytes": 30_000,
             "message.max.bytes": 50_000}  # fmt: skip
    found = values_of(rdkafka.consume(new_topic_id, 10_000, **small))
    assert [each["n"] for each in found] == list(range(10_000))


def test_members_of_the_new_groups_read_a_topic_without_a_key(
    rdkafka: Rdkafka, client: wings_client.Client, new_topic_id: str
) -> None:
    client.create_topic(new_topic_id, pa.schema([("n", pa.int64())]))
    client.push(new_topic_id, pa.record_batch({"n": [1, 2]}))
    config = {**rdkafka.config, "group.id": new_topic_id, "group.protocol": "consumer"}
    with closing(ck.Consumer({**config, "auto.offset.reset": "earliest"})) as consumer:
        consumer.subscribe([new_topic_id])
        assert values_of(taken(consumer, 2)) == [{"n": 1}, {"n": 2}]
        assert [each.partition for each in consumer.assignment()] == [0]


def test_a_waiting_consumer_reads_on_at_a_new_schema(
    server: RunningServer, rdkafka: Rdkafka, client: wings_client.Client, new_topic_id: str
) -> None:
    client.create_topic(new_topic_id, pa.schema([("n", pa.int32())]))
    long: dict[str, Any] = {"fetch.wait.max.ms": 60_000}
    with closing(rdkafka.consumer(**long)) as consumer:
        consumer.assign([ck.TopicPartition(new_topic_id, 0, 0)])
        consumer.poll(0)
        server.wait_for_waiting(1)
        schema = pa.schema([("n", pa.int64())])
        with server.client() as flight:
            act(flight, "alter-topic", topic=new_topic_id,
                schema={"widen": [{"name": "n", "type": "int64"}]})  # fmt: skip
        client.push(new_topic_id, pa.record_batch({"n": [1 << 40]}, schema=schema))
        assert values_of(taken(consumer, 1)) == [{"n": 1 << 40}]


def test_a_topic_with_another_key_is_not_listed(
    rdkafka: Rdkafka, client: wings_client.Client, new_topic_id: str
) -> None:
    client.create_topic(new_topic_id, pa.schema([("city", pa.string())]), "city")
    listed = AdminClient(rdkafka.config).list_topics(timeout=LATER).topics
    assert new_topic_id not in listed


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "null"),
        (b"", "not a JSON object"),
        (b"null", "null"),
        (b"[1]", "row 1"),
        (b'{"amount": "1.00"}, {"amount": "1.00"}', "not a JSON object"),
        (b'{"amount": "1.00"', "not a JSON object"),
        (b'{"amount": "x"}', "'amount'"),
        (b'{"amount": 1.5}', "'amount'"),
        (b"{}", "'amount'"),
        (b'{"amount": "1.00", "other": 1}', "'other'"),
        (b'{"amount": "1.00", "tags": [1]}', "'tags"),
        (b'{"amount": "1.00", "key": "\xff"}', ""),
    ],
)
def test_a_bad_value_names_its_record_and_column_and_nothing_is_written(
    rdkafka: Rdkafka, client: wings_client.Client, new_topic_id: str, value: bytes, reason: str
) -> None:
    client.create_topic(new_topic_id, SCHEMA)
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for offset, each in enumerate((b'{"amount": "1.00"}', value, b'{"amount": "2.00"}')):
        builder.append(offset, 1_700_000_000_000, None, each, [])
    batch = bytes(builder.build())
    with connected(rdkafka.config["bootstrap.servers"]) as connection:
        bounds = struct.pack(">hhii", -1, -1, 1_000, 1) + text(new_topic_id)
        frame = head(Api.PRODUCE, 8) + bounds + struct.pack(">iii", 1, 0, len(batch)) + batch
        connection.send(frame)
        answer = connection.receive()
    assert answer is not None
    at = 4 + 4 + 2 + len(new_topic_id) + 4
    number, code, offset, _, _, errors = struct.unpack_from(">ihqqqi", answer, at)
    assert (number, code, offset) == (0, 87, -1)
    if reason:
        assert (errors, *struct.unpack_from(">i", answer, at + 34)) == (1, 1)
    assert reason.encode() in answer
    assert client.scan(new_topic_id).read_all().num_rows == 0


def test_a_key_that_is_no_text_is_refused_by_a_column_of_text(
    rdkafka: Rdkafka, client: wings_client.Client, new_topic_id: str
) -> None:
    client.create_topic(new_topic_id, SCHEMA)
    errors: list[Any] = []
    producer = ck.Producer(rdkafka.config)
    producer.produce(
        new_topic_id,
        b'{"amount": "1.00"}',
        key=b"\xff",
        on_delivery=lambda error, _: errors.append(error),
    )
    assert producer.flush(LATER) == 0
    assert errors[0].code() == ck.KafkaError.INVALID_RECORD
