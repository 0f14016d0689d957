"""Kafka's own clients, unmodified, against a server: librdkafka, kafka-python and aiokafka."""

import asyncio
import io
import socket
import struct
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import aiokafka  # pyright: ignore[reportMissingTypeStubs]
import confluent_kafka as ck
import httpx
import pyarrow as pa
import pytest
from aiokafka.record._crecords import (  # pyright: ignore[reportMissingTypeStubs]
    DefaultRecordBatchBuilder,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from fix_calls import Calls
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

import wings_client
from wings_core.errors import InvalidArgument
from wings_core.limits import Limits
from wings_server.kafka import group_requests
from wings_server.kafka.fetch import Fetches, KafkaFetch
from wings_server.kafka.messages import VERSIONS, Api, builder_of
from wings_server.kafka.records import decode
from wings_server.kafka.service import KeptBatches
from wings_server.shared_reads import Waiting
from wings_server.testing import RunningServer, running_server

pytestmark = pytest.mark.server(kafka=True)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # It reads its own resources the old way.
    import kafka

LATER = 60.0
"""How long what is awaited may take on a busy machine."""

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


class Rdkafka:
    """Clients of librdkafka."""

    def __init__(self, address: str) -> None:
        self.config: dict[str, Any] = {"bootstrap.servers": address, "log_level": 0}

    def create(self, name: str, partitions: int = 1, **config: str) -> str:
        topic = NewTopic(name, partitions, 1, config=config)
        admin = AdminClient(self.config)  # It must outlive its futures.
        admin.create_topics([topic])[name].result(LATER)
        return name

    def produce(self, topic: str, values: list[Any], **config: Any) -> list[tuple[int, int]]:
        """Produce values, or whole records; returns where they are."""
        producer = ck.Producer({**self.config, **config})
        placed: list[tuple[int, int]] = []

        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            placed.append((message.partition(), message.offset()))

        for value in values:
            record: Any = value if isinstance(value, dict) else {"value": value, "partition": 0}
            producer.produce(topic, on_delivery=delivered, **record)
        assert producer.flush(LATER) == 0
        return placed

    def consumer(self, group: str = "anyone", **config: Any) -> ck.Consumer:
        given = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        return ck.Consumer({**self.config, **given, **config})

    def consume(self, topic: str, count: int, partition: int = 0, **config: Any) -> list[Any]:
        with closing(self.consumer(**config)) as consumer:
            consumer.assign([ck.TopicPartition(topic, partition, 0)])
            return taken(consumer, count)


def taken(consumer: ck.Consumer, count: int) -> list[Any]:
    """Return the next messages of a consumer."""
    found: list[Any] = []
    end = time.monotonic() + LATER
    while len(found) < count:
        assert time.monotonic() < end, f"{len(found)} of {count} messages"
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(message)
    return found


def expect_polled(holds: Callable[[], bool], *consumers: ck.Consumer) -> None:
    """Poll consumers, whose messages are of no interest, until something holds."""
    end = time.monotonic() + LATER
    while not holds():
        assert time.monotonic() < end
        for consumer in consumers:
            consumer.poll(0.05)


@pytest.fixture
def rdkafka(server: RunningServer) -> Rdkafka:
    return Rdkafka(server.kafka)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_records_come_back_as_they_were_produced(
    rdkafka: Rdkafka, new_topic_id: str, compression: str
) -> None:
    rdkafka.create(new_topic_id)
    headers = [("a", b"1"), ("a", None), ("b", b"")]
    records: list[dict[str, Any]] = [
        {"value": b"value", "key": b"key", "headers": headers, "timestamp": 1_700_000_000_123},
        {"value": None, "key": b""},
        {"value": b"", "key": None},
        *({"value": b"%d" % number * 50} for number in range(1_000)),
    ]
    records = [{**record, "partition": 0} for record in records]
    placed = rdkafka.produce(new_topic_id, records, **{"compression.type": compression})
    assert placed == [(0, offset) for offset in range(len(records))]
    found = rdkafka.consume(new_topic_id, len(records), **{"check.crcs": True})
    assert [each.offset() for each in found] == list(range(len(records)))
    assert [(each.key(), each.value()) for each in found] == [
        (record.get("key"), record["value"]) for record in records
    ]
    assert found[0].timestamp() == (ck.TIMESTAMP_CREATE_TIME, 1_700_000_000_123)
    assert found[0].headers() == headers
    assert not found[1].headers()


def test_what_kafka_produced_is_read_over_flight(
    server: RunningServer, rdkafka: Rdkafka, new_topic_id: str
) -> None:
    rdkafka.create(new_topic_id, 3)
    records = [
        {"value": b"%d" % n, "key": b"k", "partition": n % 3, "headers": [("h", b"x")]}
        for n in range(30)
    ]
    rdkafka.produce(new_topic_id, records)
    with wings_client.connect(server.flight) as client:
        rows: list[dict[str, Any]] = []
        for number in range(3):
            rows = client.scan(new_topic_id, partition=number).read_all().to_pylist()
            assert [row["value"] for row in rows] == [b"%d" % n for n in range(number, 30, 3)]
            assert {row["partition"] for row in rows} == {number}
            assert rows[0]["headers"] == [{"key": "h", "value": b"x"}]
        # And the reverse: rows that Flight pushed are records.
        client.push(new_topic_id, [{**rows[0], "key": None, "value": b"pushed"}])
    found = rdkafka.consume(new_topic_id, 11, partition=2)
    assert (found[-1].key(), found[-1].value()) == (None, b"pushed")


@pytest.mark.parametrize("count", [3, 1_500])
def test_headers_that_kafka_cannot_have_stop_no_consumer(
    server: RunningServer, rdkafka: Rdkafka, new_topic_id: str, count: int
) -> None:
    rdkafka.create(new_topic_id)
    headers: list[Any] = [None, [None], [{"key": None, "value": b"x"}, {"key": "a", "value": None}]]
    rows = [
        {"partition": 0, "key": None, "value": b"v", "headers": headers[n % 3], "timestamp": None}
        for n in range(count)
    ]
    with wings_client.connect(server.flight) as client:
        client.push(new_topic_id, rows)
    found = rdkafka.consume(new_topic_id, count)
    assert [each.headers() for each in found[:3]] == [None, None, [("", b"x"), ("a", None)]]


def test_names_that_are_no_ids_are_kept_and_listed(server: RunningServer, rdkafka: Rdkafka) -> None:
    name = rdkafka.create("Orders.EU_1", 2)
    rdkafka.produce(name, [b"one"])
    listed = AdminClient(rdkafka.config).list_topics(timeout=LATER).topics
    assert sorted(listed[name].partitions) == [0, 1]
    assert [each.value() for each in rdkafka.consume(name, 1)] == [b"one"]
    with wings_client.connect(server.flight) as client:
        (topic,) = [each for each in client.topics() if "orders-eu" in each.name]
        assert topic.name not in listed


def test_a_topic_is_made_on_demand_only_where_the_client_allows_it(
    rdkafka: Rdkafka, new_topic_id: str
) -> None:
    with closing(rdkafka.consumer()) as consumer:
        missing = consumer.list_topics(new_topic_id, timeout=LATER).topics[new_topic_id]
        assert missing.error.code() == ck.KafkaError.UNKNOWN_TOPIC_OR_PART
    rdkafka.produce(new_topic_id, [b"one"])
    assert len(rdkafka.consume(new_topic_id, 1)) == 1


def test_topics_are_created_and_deleted_with_their_errors(
    rdkafka: Rdkafka, new_topic_id: str, subtests: pytest.Subtests
) -> None:
    admin = AdminClient(rdkafka.config)
    rdkafka.create(new_topic_id, 2, **{"retention.ms": "60000", "cleanup.policy": "compact"})
    refused = {
        "exists": (NewTopic(new_topic_id, 2, 1), ck.KafkaError.TOPIC_ALREADY_EXISTS),
        "name": (NewTopic("a/b", 1, 1), ck.KafkaError.TOPIC_EXCEPTION),
        "partitions": (NewTopic("bad", 0, 1), ck.KafkaError.INVALID_PARTITIONS),
        "key": (NewTopic("bad", 1, 1, config={"no.such": "1"}), ck.KafkaError.INVALID_CONFIG),
        "value": (
            NewTopic("bad", 1, 1, config={"retention.ms": "x"}),
            ck.KafkaError.INVALID_CONFIG,
        ),
    }
    for name, (topic, code) in refused.items():
        with subtests.test(name), pytest.raises(ck.KafkaException) as error:
            admin.create_topics([topic])[topic.topic].result(LATER)
        if name != "partitions":  # Which librdkafka refuses itself.
            assert error.value.args[0].code() == code
    checked = admin.create_topics([NewTopic("only-checked", 1, 1)], validate_only=True)
    checked["only-checked"].result(LATER)
    assert "only-checked" not in admin.list_topics(timeout=LATER).topics
    admin.delete_topics([new_topic_id])[new_topic_id].result(LATER)
    with pytest.raises(ck.KafkaException) as error:
        admin.delete_topics([new_topic_id])[new_topic_id].result(LATER)
    assert error.value.args[0].code() == ck.KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_topic_made_anew_is_read_from_its_beginning(rdkafka: Rdkafka, new_topic_id: str) -> None:
    rdkafka.create(new_topic_id)
    rdkafka.produce(new_topic_id, [b"old", b"old"])
    with closing(
        rdkafka.consumer(new_topic_id, **{"topic.metadata.refresh.interval.ms": 200})
    ) as consumer:
        consumer.assign([ck.TopicPartition(new_topic_id, 0, 0)])
        taken(consumer, 2)
        admin = AdminClient(rdkafka.config)
        admin.delete_topics([new_topic_id])[new_topic_id].result(LATER)
        rdkafka.create(new_topic_id)
        rdkafka.produce(new_topic_id, [b"new"])
        assert [each.value() for each in taken(consumer, 1)] == [b"new"]


def test_two_members_share_partitions_and_one_reads_on_for_the_other(
    rdkafka: Rdkafka, new_topic_id: str
) -> None:
    rdkafka.create(new_topic_id, 4)
    rdkafka.produce(new_topic_id, [{"value": b"%d" % n, "partition": n % 4} for n in range(40)])
    first, second = (rdkafka.consumer(new_topic_id) for _ in range(2))
    first.subscribe([new_topic_id])
    taken(first, 40)
    second.subscribe([new_topic_id])
    expect_polled(lambda: len(first.assignment()) == len(second.assignment()) == 2, first, second)
    owned = [{each.partition for each in member.assignment()} for member in (first, second)]
    assert owned[0] | owned[1] == {0, 1, 2, 3}
    offsets = [ck.TopicPartition(new_topic_id, number, 7) for number in owned[0]]
    first.commit(offsets=offsets, asynchronous=False)
    first.close()
    expect_polled(lambda: len(second.assignment()) == 4, second)
    committed = {each.partition: each.offset for each in second.committed(second.assignment())}
    assert {number: committed[number] for number in owned[0]} == dict.fromkeys(owned[0], 7)
    second.close()


def test_a_member_that_vanishes_is_replaced_after_its_session(
    rdkafka: Rdkafka, new_topic_id: str
) -> None:
    rdkafka.create(new_topic_id, 2)
    short: dict[str, Any] = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
    second = rdkafka.consumer(new_topic_id, **short)
    # A client of our own joins, and says nothing more.
    with expect_member(rdkafka.config["bootstrap.servers"], new_topic_id, new_topic_id):
        second.subscribe([new_topic_id])
        expect_polled(lambda: len(second.assignment()) == 2, second)
    second.close()


def test_offsets_of_a_group_survive_a_restart(tmp_path: Path, new_topic_id: str) -> None:
    for begins_at in (0, 3):
        with running_server(tmp_path, kafka=True) as running:
            rdkafka = Rdkafka(running.kafka)
            if begins_at == 0:
                rdkafka.create(new_topic_id)
                rdkafka.produce(new_topic_id, [b"%d" % number for number in range(6)])
            with closing(rdkafka.consumer("readers")) as consumer:
                consumer.subscribe([new_topic_id])
                found = taken(consumer, 3)
                assert [each.offset() for each in found] == [begins_at + n for n in range(3)]
                consumer.commit(message=found[-1], asynchronous=False)
                position = ck.TopicPartition(new_topic_id, 0)
                (committed,) = consumer.committed([position], timeout=LATER)
                assert committed.offset == begins_at + 3
            with wings_client.connect(running.flight) as client:
                (kept,) = client.committed_offsets("kafka:readers", new_topic_id)
                assert (kept.partition, kept.offset) == (0, begins_at + 3)


def test_a_commit_of_a_generation_before_a_restart_is_refused(
    tmp_path: Path, new_topic_id: str
) -> None:
    def joined(connection: Connection) -> tuple[int, bytes]:
        """Join as the only member; returns generation and id, as they are sent."""
        connection.send(join_request("readers", new_topic_id))
        answer = connection.receive() or b""
        error, generation = struct.unpack_from(">hi", answer, 4)
        assert error == 0
        member = answer[10 + 2 + len("range") :]
        member = member[: 2 + struct.unpack_from(">h", member)[0]]  # It leads.
        connection.send(
            head(14, 0) + text("readers") + struct.pack(">i", generation) + member + bytes(4)
        )
        assert connection.receive() is not None
        return generation, member

    def committed(connection: Connection, generation: int, member: bytes) -> int:
        part = struct.pack(">iiqh", 1, 0, 1, -1)
        connection.send(
            head(8, 2) + text("readers") + struct.pack(">i", generation) + member
            + struct.pack(">qi", -1, 1) + text(new_topic_id) + part
        )  # fmt: skip
        return struct.unpack(">h", (connection.receive() or b"")[-2:])[0]

    with running_server(tmp_path, kafka=True) as running, connected(running.kafka) as connection:
        rdkafka = Rdkafka(running.kafka)
        rdkafka.create(new_topic_id)
        rdkafka.produce(new_topic_id, [b"one"])
        before = joined(connection)
        assert committed(connection, *before) == 0
    with running_server(tmp_path, kafka=True) as running, connected(running.kafka) as connection:
        assert committed(connection, *before) == 25  # UNKNOWN_MEMBER_ID
        after = joined(connection)
        assert after[0] > before[0]
        assert committed(connection, *before) == 25
        assert committed(connection, *after) == 0


def test_a_commit_of_a_member_that_leaves_meanwhile_is_refused(
    rdkafka: Rdkafka, new_topic_id: str, calls: Calls
) -> None:
    rdkafka.create(new_topic_id)
    address = rdkafka.config["bootstrap.servers"]
    with connected(address) as member, connected(address) as other:
        group = {"group_id": new_topic_id}
        sessions = {"session_timeout": 6_000, "rebalance_timeout": 6_000}
        protocols = [{"name": "range", "metadata": b""}]
        kind = {"protocol_type": "consumer", "protocols": protocols}
        joined = member.ask(Api.JOIN_GROUP, 3, **group, **sessions, **kind)
        named = {**group, "member_id": joined.member_id}
        member.ask(Api.SYNC_GROUP, 1, **named, generation_id=joined.generation_id)
        left: list[Any] = []

        def leave(*_: object) -> None:
            left.append(other.ask(Api.LEAVE_GROUP, 1, **named).error_code.value)

        calls.before(group_requests, "OffsetsToCommit", leave)
        offsets = [{"partition_index": 0, "committed_offset": 1}]
        topics = [{"name": new_topic_id, "partitions": offsets}]
        known = {"generation_id_or_member_epoch": joined.generation_id}
        (topic,) = member.ask(Api.OFFSET_COMMIT, 2, **named, **known, topics=topics).topics
        assert left == [0]
        assert topic.partitions[0].error_code.value == 25  # UNKNOWN_MEMBER_ID


def test_a_fetch_waits_for_bytes_and_holds_no_thread(
    server: RunningServer, rdkafka: Rdkafka, new_topic_id: str
) -> None:
    rdkafka.create(new_topic_id)
    waits: dict[str, Any] = {"fetch.wait.max.ms": 30_000, "fetch.error.backoff.ms": 10}
    consumers = [rdkafka.consumer(**waits) for _ in range(20)]
    try:
        for consumer in consumers:
            consumer.assign([ck.TopicPartition(new_topic_id, 0, 0)])
            consumer.poll(0)
        server.wait_for_waiting(len(consumers))
        readers = [each for each in threading.enumerate() if "kafka-read" in each.name]
        assert len(readers) < len(consumers)
        rdkafka.produce(new_topic_id, [b"late"])
        for consumer in consumers:
            assert [each.value() for each in taken(consumer, 1)] == [b"late"]
    finally:
        for consumer in consumers:
            consumer.close()
    server.wait_for_waiting(0)


def test_a_consumer_that_vanishes_ends_its_wait(
    server: RunningServer, rdkafka: Rdkafka, new_topic_id: str
) -> None:
    rdkafka.create(new_topic_id)
    with connected(rdkafka.config["bootstrap.servers"]) as connection:
        connection.send(fetch_request(new_topic_id, wait_ms=250_000))
        server.wait_for_waiting(1)
    server.wait_for_waiting(0)


def test_a_consumer_that_vanishes_while_its_fetch_is_read_leaves_no_wait(
    server: RunningServer, rdkafka: Rdkafka, new_topic_id: str, calls: Calls
) -> None:
    rdkafka.create(new_topic_id)
    closes, waits = calls.heard(Fetches, "close"), calls.heard(Waiting, "one")
    reads, closed = threading.Event(), threading.Event()

    def read(*_: object) -> None:
        reads.set()
        assert closed.wait(LATER)

    calls.before(KafkaFetch, "advance", read, 1)
    with connected(rdkafka.config["bootstrap.servers"]) as connection:
        connection.send(fetch_request(new_topic_id, wait_ms=0))
        assert reads.wait(LATER)
    expect_polled(lambda: bool(closes))
    closed.set()
    expect_polled(lambda: bool(waits))
    with connected(rdkafka.config["bootstrap.servers"]) as connection:
        connection.ask(Api.API_VERSIONS, 0)  # Answered after the fetch, by the same event loop.
    assert server.server.log.fetcher.waits.waiting == 0


def test_a_topic_that_is_deleted_while_a_fetch_takes_its_batches_is_said_to_be_gone(
    server: RunningServer, rdkafka: Rdkafka, new_topic_id: str, calls: Calls
) -> None:
    rdkafka.create(new_topic_id)
    rdkafka.produce(new_topic_id, [b"one"])
    admin = AdminClient(rdkafka.config)

    def delete(*_: object) -> None:
        admin.delete_topics([new_topic_id])[new_topic_id].result(LATER)

    calls.after(KeptBatches, "at", delete, 1)
    with connected(rdkafka.config["bootstrap.servers"]) as connection:
        (partition,) = read_of(connection, [(new_topic_id, 0)], 1 << 20)
        assert partition.error_code.value == 3  # UNKNOWN_TOPIC_OR_PARTITION


def test_a_fetch_that_is_repeated_sees_what_was_committed_in_between(
    server: RunningServer, rdkafka: Rdkafka, new_topic_id: str
) -> None:
    rdkafka.create(new_topic_id)

    def fetched(connection: Connection, correlation_id: int) -> bytes:
        connection.send(fetch_request(new_topic_id, 20, correlation_id))
        answer = connection.receive() or b""
        assert answer[:4] == struct.pack(">i", correlation_id)
        return answer[4:]

    with connected(rdkafka.config["bootstrap.servers"]) as connection:
        nothing = fetched(connection, 1)
        assert fetched(connection, 2) == fetched(connection, 3) == nothing
        rdkafka.produce(new_topic_id, [b"between"])
        with_record = fetched(connection, 4)
        assert b"between" in with_record
        assert fetched(connection, 5) == with_record
        for _ in range(2):  # The topic is deleted while a fetch is kept, and not while it waits.
            connection.send(fetch_request(new_topic_id, 20, offset=1))
            assert connection.receive()
        admin = AdminClient(rdkafka.config)
        admin.delete_topics([new_topic_id])[new_topic_id].result(LATER)
        connection.send(fetch_request(new_topic_id, 20, offset=1))
        answer = connection.receive() or b""
        (error,) = struct.unpack_from(">h", answer, len(answer) - 26)
        assert error == ck.KafkaError.UNKNOWN_TOPIC_OR_PART
    server.wait_for_waiting(0)


@pytest.mark.parametrize(("codec", "sent"), [("gzip", 1), ("zstd", 0)])
def test_a_batch_is_sent_on_as_it_came_and_anew_from_its_middle(
    rdkafka: Rdkafka, new_topic_id: str, codec: str, sent: int
) -> None:
    """Except of a codec that clients of the request's version do not know."""
    rdkafka.create(new_topic_id)
    values = [b"value-%d" % number for number in range(1_000)]
    for _ in range(2):
        rdkafka.produce(new_topic_id, values, **{"compression.type": codec, "linger.ms": 30_000})
    with connected(rdkafka.config["bootstrap.servers"]) as connection:
        for offset, compression in ((1_000, sent), (1_500, 0)):
            connection.send(fetch_request(new_topic_id, 20, offset=offset))
            answer = connection.receive() or b""
            found = decode(answer[answer.index(b"\xff\xff\xff\xff") + 8 :], 1 << 20)
            assert (found.head.base_offset, found.head.attributes) == (offset, compression)
            assert found.records.value.to_pylist() == values[offset - 1_000 :]
    assert [each.value() for each in rdkafka.consume(new_topic_id, 2_000)] == values + values


def test_a_fetch_of_nothing_is_answered_at_once_however_often(rdkafka: Rdkafka) -> None:
    with connected(rdkafka.config["bootstrap.servers"]) as connection:
        for _ in range(2):
            connection.send(head(1, 4) + struct.pack(">iiiibi", -1, 250_000, 1, 1 << 20, 0, 0))
            assert connection.receive()


def test_no_partition_starves_however_small_the_response(
    rdkafka: Rdkafka, new_topic_id: str
) -> None:
    rdkafka.create(new_topic_id, 20)
    rdkafka.produce(
        new_topic_id,
        [{"value": bytes(5_000), "partition": number % 20} for number in range(400)],
    )
    small: dict[str, Any] = {"fetch.max.bytes": 20_000, "max.partition.fetch.bytes": 6_000,
             "message.max.bytes": 10_000}  # fmt: skip
    with closing(rdkafka.consumer(**small)) as consumer:
        consumer.assign([ck.TopicPartition(new_topic_id, number, 0) for number in range(20)])
        found = taken(consumer, 400)
    by_partition: dict[int, list[int]] = {}
    for each in found:
        by_partition.setdefault(each.partition(), []).append(each.offset())
    assert by_partition == {number: list(range(20)) for number in range(20)}


def test_the_first_partition_has_a_record_however_large_it_is(
    rdkafka: Rdkafka, new_topic_id: str
) -> None:
    rdkafka.create(new_topic_id, 3)
    for number, value in enumerate((bytes(5_000), b"small", bytes(5_000))):
        rdkafka.produce(new_topic_id, [{"value": value, "partition": number}])
    with connected(rdkafka.config["bootstrap.servers"]) as connection:
        for numbers, counts in (((0, 1, 2), (1, 1, 0)), ((1, 0, 2), (1, 0, 0))):
            found = read_of(connection, [(new_topic_id, number) for number in numbers], 2_000)
            assert [bool(each.records) for each in found] == [bool(count) for count in counts]


def test_the_end_of_a_log_that_was_not_looked_at_is_not_said(
    rdkafka: Rdkafka, new_topic_id: str
) -> None:
    names = [rdkafka.create(f"{new_topic_id}-{number}") for number in range(2)]
    for name in names:
        rdkafka.produce(name, [bytes(5_000)] * 2, **{"linger.ms": 30_000})
    with connected(rdkafka.config["bootstrap.servers"]) as connection:
        found = read_of(connection, [(name, 0) for name in names], 2_000, offset=1)
    assert [each.high_watermark for each in found] == [2, -1]


def test_a_record_larger_than_a_fetch_is_delivered(rdkafka: Rdkafka, new_topic_id: str) -> None:
    rdkafka.create(new_topic_id)
    big = {"message.max.bytes": 5_000_000}
    rdkafka.produce(new_topic_id, [b"first", bytes(3_000_000), b"last"], **big)
    small: dict[str, Any] = {
        "fetch.max.bytes": 1_000,
        "message.max.bytes": 1_000,
        "max.partition.fetch.bytes": 900,
    }
    found = rdkafka.consume(new_topic_id, 3, **small)
    assert [len(each.value()) for each in found] == [5, 3_000_000, 4]


def test_of_a_log_read_anew_a_record_larger_than_a_fetch_is_delivered_before_many_small_ones(
    tmp_path: Path, new_topic_id: str
) -> None:
    with running_server(tmp_path, kafka=True) as running:
        rdkafka = Rdkafka(running.kafka)
        rdkafka.create(new_topic_id)
        rdkafka.produce(new_topic_id, [bytes(2_000), *[b"small"] * 400])
    with running_server(tmp_path, kafka=True) as running:
        small = {"fetch.max.bytes": 1_000, "message.max.bytes": 1_000}
        found = Rdkafka(running.kafka).consume(new_topic_id, 401, **small)
        assert [len(each.value()) for each in found] == [2_000, *[5] * 400]


def test_offsets_are_found_by_time_and_at_both_ends(rdkafka: Rdkafka, new_topic_id: str) -> None:
    rdkafka.create(new_topic_id)
    base = int(time.time() * 1000) - 100_000
    records = [
        {"value": b"v", "partition": 0, "timestamp": base + 1_000 * number} for number in range(10)
    ]
    rdkafka.produce(new_topic_id, records)
    with closing(rdkafka.consumer()) as consumer:
        at = ck.TopicPartition(new_topic_id, 0)
        assert consumer.get_watermark_offsets(at, timeout=LATER) == (0, 10)
        for time_ms, offset in ((0, 0), (base, 0), (base + 1, 1), (base + 9_000, 9)):
            asked = [ck.TopicPartition(new_topic_id, 0, time_ms)]
            (found,) = consumer.offsets_for_times(asked, timeout=LATER)
            assert found.offset == offset, time_ms
        (none,) = consumer.offsets_for_times(
            [ck.TopicPartition(new_topic_id, 0, base + 9_001)], timeout=LATER
        )
        assert none.offset == ck.OFFSET_END


def test_an_offset_past_the_end_is_out_of_range(rdkafka: Rdkafka, new_topic_id: str) -> None:
    rdkafka.create(new_topic_id)
    rdkafka.produce(new_topic_id, [b"one"])
    with closing(rdkafka.consumer(**{"auto.offset.reset": "error"})) as consumer:
        consumer.assign([ck.TopicPartition(new_topic_id, 0, 5)])
        message = None
        end = time.monotonic() + LATER
        while message is None and time.monotonic() < end:
            message = consumer.poll(0.1)
        assert message is not None
        error = message.error()
        assert error is not None
        assert error.name() == "_AUTO_OFFSET_RESET"


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_every_kind_of_acknowledgement_is_durable(
    rdkafka: Rdkafka, new_topic_id: str, acks: int
) -> None:
    rdkafka.create(new_topic_id)
    rdkafka.produce(new_topic_id, [b"%d" % n for n in range(100)], acks=acks, **{"linger.ms": 0})
    found = rdkafka.consume(new_topic_id, 100)
    assert [each.value() for each in found] == [b"%d" % n for n in range(100)]


def test_an_idempotent_producer_writes_each_record_once(
    rdkafka: Rdkafka, new_topic_id: str
) -> None:
    rdkafka.create(new_topic_id, 2)
    records = [{"value": b"%d" % number, "partition": number % 2} for number in range(500)]
    rdkafka.produce(new_topic_id, records, **{"enable.idempotence": True, "linger.ms": 0})
    for partition in (0, 1):
        found = rdkafka.consume(new_topic_id, 250, partition)
        assert [each.value() for each in found] == [b"%d" % n for n in range(partition, 500, 2)]


def test_a_repeated_batch_is_answered_as_at_first(
    rdkafka: Rdkafka, new_topic_id: str, subtests: pytest.Subtests
) -> None:
    rdkafka.create(new_topic_id)
    with connected(rdkafka.config["bootstrap.servers"]) as connection:
        connection.send(head(Api.INIT_PRODUCER_ID, 0) + struct.pack(">hi", -1, 0))
        error, producer, epoch = struct.unpack_from(">hqh", connection.receive() or b"", 8)
        assert (error, epoch) == (0, 0)
        written = [(0, 0, 0, 0), (0, 3, 0, 3), (0, 0, 0, 0), (0, 3, 0, 3), (1, 0, 0, 6)]
        refused = [(1, 9, 45, -1), (0, 6, 47, -1), (-1, 0, 87, -1), (1, -1, 87, -1)]
        for epoch, first, code, offset in (*written, *refused):
            with subtests.test(epoch=epoch, first=first):
                connection.send(produce_request(new_topic_id, producer, epoch, first))
                assert produced(connection) == (code, offset)
    assert len(rdkafka.consume(new_topic_id, 9)) == 9


def test_a_batch_after_one_that_was_refused_is_not_the_first_of_its_producer(
    server: RunningServer, rdkafka: Rdkafka, new_topic_id: str
) -> None:
    with wings_client.connect(server.flight) as client:
        client.create_topic(new_topic_id, pa.schema({"n": pa.int64()}))
    with connected(rdkafka.config["bootstrap.servers"]) as connection:
        good, bad = b'{"n": 1}', b"no JSON"
        sent = [(0, bad), (3, good), (6, good), (3, good), (0, good), (3, good), (6, good)]
        for first, value in sent:  # In flight together.
            connection.send(produce_request(new_topic_id, 62, 0, first, value))
        codes = [produced(connection)[0] for _ in sent]
        assert codes == [87, 45, 45, 45, 0, 0, 0]  # INVALID_RECORD, OUT_OF_ORDER_SEQUENCE_NUMBER
        later = rdkafka.create(f"{new_topic_id}-later")
        connection.send(produce_request(later, 62, 0, 0, ahead_ms=10**12))
        assert produced(connection)[0] == 32  # INVALID_TIMESTAMP, by the log.
        for first, code in ((3, 45), (0, 0), (3, 0)):
            connection.send(produce_request(later, 62, 0, first))
            assert produced(connection)[0] == code


def test_a_record_of_the_far_future_is_refused(rdkafka: Rdkafka, new_topic_id: str) -> None:
    rdkafka.create(new_topic_id)
    errors: list[Any] = []
    producer = ck.Producer(rdkafka.config)
    late = int(time.time() * 1000) + 48 * 3_600_000
    producer.produce(new_topic_id, b"v", timestamp=late, on_delivery=lambda e, _: errors.append(e))
    assert producer.flush(LATER) == 0
    assert errors[0].code() == ck.KafkaError.INVALID_TIMESTAMP


def test_a_text_is_kept_with_an_offset(rdkafka: Rdkafka, new_topic_id: str) -> None:
    rdkafka.create(new_topic_id)
    rdkafka.produce(new_topic_id, [b"one"])
    with closing(rdkafka.consumer(new_topic_id)) as consumer:
        offset = ck.TopicPartition(new_topic_id, 0, 1, metadata="where I was")
        consumer.commit(offsets=[offset], asynchronous=False)
        (found,) = consumer.committed([ck.TopicPartition(new_topic_id, 0)], timeout=LATER)
        assert (found.offset, found.metadata) == (1, "where I was")


def test_kafka_python_produces_and_consumes_in_a_group(
    server: RunningServer, new_topic_id: str
) -> None:
    address: dict[str, Any] = {"bootstrap_servers": server.kafka}
    producer = kafka.KafkaProducer(**address)
    sent = [producer.send(new_topic_id, b"%d" % n, key=b"k") for n in range(300)]
    producer.flush(LATER)
    assert [each.get(LATER).offset for each in sent] == list(range(300))
    producer.close()
    consumer = kafka.KafkaConsumer(
        new_topic_id, **address, group_id=new_topic_id, auto_offset_reset="earliest"
    )
    found = [next(consumer) for _ in range(300)]
    assert [each.value for each in found] == [b"%d" % n for n in range(300)]
    consumer.commit()
    position = kafka.TopicPartition(new_topic_id, 0)  # pyright: ignore[reportAttributeAccessIssue]
    assert consumer.committed(position) == 300
    consumer.close()


def test_aiokafka_produces_and_consumes_in_a_group(
    server: RunningServer, new_topic_id: str
) -> None:
    async def scenario() -> list[bytes | None]:
        address: dict[str, Any] = {"bootstrap_servers": server.kafka}
        async with aiokafka.AIOKafkaProducer(**address, enable_idempotence=True) as producer:
            sent = [await producer.send(new_topic_id, b"%d" % n) for n in range(300)]
            await producer.flush()
            assert (await sent[-1]).offset == 299
        group: dict[str, Any] = {"group_id": new_topic_id, "auto_offset_reset": "earliest"}
        async with aiokafka.AIOKafkaConsumer(new_topic_id, **address, **group) as consumer:
            found = [(await consumer.getone()).value for _ in range(300)]
            await consumer.commit()
            position = aiokafka.TopicPartition(new_topic_id, 0)
            assert await consumer.committed(position) == 300
            return found

    found = asyncio.run(asyncio.wait_for(scenario(), LATER))
    assert found == [b"%d" % n for n in range(300)]


class Connection:
    """A connection that sends what a test makes up."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream

    def settimeout(self, seconds: float) -> None:
        self._stream.settimeout(seconds)

    def send(self, frame: bytes) -> None:
        self._stream.sendall(struct.pack(">i", len(frame)) + frame)

    def send_raw(self, data: bytes) -> None:
        self._stream.sendall(data)

    def receive(self) -> bytes | None:
        """Return the next frame; None once the server has closed the connection."""
        try:
            head = self._read(4)
            return None if head is None else self._read(struct.unpack(">i", head)[0])
        except ConnectionError:
            return None

    def ask(self, api: Api, version: int, **values: Any) -> Any:
        """Return the response to `smallest_request`."""
        self.send(smallest_request(api, version, **values))
        return self.received(api, version)

    def received(self, api: Api, version: int) -> Any:
        """Return the next response."""
        answer = memoryview(self.receive() or b"")
        schema = load_response_schema(api.value, version)
        _, size = entity_reader(schema.__header_schema__)(answer, 0)
        return entity_reader(schema)(answer, size)[0]

    def _read(self, size: int) -> bytes | None:
        found = b""
        while len(found) < size:
            piece = self._stream.recv(size - len(found))
            if not piece:
                return None
            found += piece
        return found

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


def connected(address: str) -> Connection:
    host, port = address.split(":")
    return Connection(socket.create_connection((host, int(port)), LATER))


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def head(api: int, version: int, correlation_id: int = 7) -> bytes:
    return struct.pack(">hhi", api, version, correlation_id) + text("raw")


def fetch_request(topic: str, wait_ms: int, correlation_id: int = 7, offset: int = 0) -> bytes:
    bounds = struct.pack(">iiiib", -1, wait_ms, 1, 1 << 20, 0)
    partition = struct.pack(">iiqi", 1, 0, offset, 1 << 20)
    return head(1, 4, correlation_id) + bounds + struct.pack(">i", 1) + text(topic) + partition


def read_of(
    connection: Connection, partitions: list[tuple[str, int]], bytes_max: int, offset: int = 0
) -> list[Any]:
    """Return what a fetch of partitions, all from one offset, finds of each, in their order."""
    connection.send(
        head(1, 4)
        + struct.pack(">iiiibi", -1, 20, 1, bytes_max, 0, len(partitions))
        + b"".join(
            text(name) + struct.pack(">iiqi", 1, number, offset, 1 << 20)
            for name, number in partitions
        )
    )
    topics = connection.received(Api.FETCH, 4).responses
    return [partition for topic in topics for partition in topic.partitions]


def produce_request(
    topic: str, producer: int, epoch: int, first: int, value: bytes = b"v", ahead_ms: int = 0
) -> bytes:
    """Return a request of three records of an idempotent producer."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, producer, epoch, first, 1 << 20)
    for number in range(3):
        builder.append(number, 1_700_000_000_000 + ahead_ms, None, value, [])
    batch = bytes(builder.build())
    bounds = struct.pack(">hhii", -1, -1, 1_000, 1) + text(topic)
    return head(Api.PRODUCE, 3) + bounds + struct.pack(">iii", 1, 0, len(batch)) + batch


def produced(connection: Connection) -> tuple[int, int]:
    """Return the code and the offset of the next response to `produce_request`."""
    answer = connection.receive()
    assert answer is not None
    (length,) = struct.unpack_from(">h", answer, 8)
    return struct.unpack_from(">hq", answer, 8 + 2 + length + 8)


def join_request(group: str, topic: str) -> bytes:
    """Return a request to join a group as a new member, with a session of 6 seconds."""
    subscription = struct.pack(">hi", 0, 1) + text(topic) + struct.pack(">i", 0)
    protocols = struct.pack(">i", 1) + text("range")
    protocols += struct.pack(">i", len(subscription)) + subscription
    sessions = struct.pack(">ii", 6_000, 6_000)
    return head(11, 1) + text(group) + sessions + text("") + text("consumer") + protocols


def expect_member(address: str, group: str, topic: str) -> Connection:
    """Join a group, take its assignment, and stay silent."""
    connection = connected(address)
    connection.send(join_request(group, topic))
    answer = connection.receive()
    assert answer is not None
    (error,) = struct.unpack_from(">h", answer, 4)
    assert error == 0
    return connection


def test_every_request_that_is_announced_is_answered_in_every_version(rdkafka: Rdkafka) -> None:
    for api, (first, last) in VERSIONS.items():
        for version in range(first, last + 1):
            with connected(rdkafka.config["bootstrap.servers"]) as connection:
                connection.send(smallest_request(api, version))
                answer = connection.receive()
                assert answer is not None, f"{api.name} {version}"
                assert struct.unpack_from(">i", answer) == (7,)


def smallest_request(api: Api, version: int, **values: Any) -> bytes:
    """Return a request whose fields have the value of nothing, but for some."""
    schema: Any = load_request_schema(api.value, version)
    header: Any = schema.__header_schema__
    names = {"request_api_key": api.value, "request_api_version": version, "correlation_id": 7}
    known = {each.name for each in fields(header)}
    given = {**names, "client_id": "raw"}
    out = io.BytesIO()
    entity_writer(header)(out, header(**{key: given[key] for key in given if key in known}))
    entity_writer(schema)(out, builder_of(schema)({"acks": 1, **values}))
    return out.getvalue()


def test_versions_of_another_time_are_answered_in_the_oldest_form(rdkafka: Rdkafka) -> None:
    with connected(rdkafka.config["bootstrap.servers"]) as connection:
        connection.send(head(Api.API_VERSIONS, 99))
        answer = connection.receive()
        assert answer is not None
        correlation_id, error, count = struct.unpack_from(">ihi", answer)
        assert (correlation_id, error, count) == (7, 35, len(VERSIONS))
        listed = [struct.unpack_from(">hhh", answer, 10 + 6 * n) for n in range(count)]
        assert {api: (low, high) for api, low, high in listed} == VERSIONS
        connection.send(head(Api.METADATA, 1) + struct.pack(">i", 0))  # It goes on.
        assert connection.receive() is not None


def test_bytes_that_are_no_request_close_the_connection_alone(
    rdkafka: Rdkafka, new_topic_id: str, subtests: pytest.Subtests
) -> None:
    rdkafka.create(new_topic_id)
    address = rdkafka.config["bootstrap.servers"]
    good = fetch_request(new_topic_id, wait_ms=0)
    frames = {
        "api": head(99, 0),
        "version": head(Api.FETCH, 99),
        "no header": b"\0\1",
        "cut": good[:-3],
        "a billion topics": good[: len(head(1, 4)) + 17] + b"\x7f\xff\xff\xff",
        "more than there is memory for": smallest_request(Api.FETCH, 17)[:-4]
        + b"\xff" * 4
        + b"\x7f",
        "noise": head(Api.PRODUCE, 9) + bytes(range(256)),
        "many keys": smallest_request(Api.FIND_COORDINATOR, 4, coordinator_keys=["a"] * 300_000),
    }
    for name, frame in frames.items():
        with subtests.test(name), connected(address) as connection:
            connection.send(frame)
            assert connection.receive() is None
    for size in (-1, 0, 7, 1 << 30):
        with subtests.test("size", size=size), connected(address) as connection:
            connection.send_raw(struct.pack(">i", size))
            assert connection.receive() is None
    with subtests.test("a megabyte that is not produced"), connected(address) as connection:
        connection.send_raw(struct.pack(">ih", (1 << 20) + 1, Api.METADATA))
        assert connection.receive() is None
    with connected(address) as connection:
        for byte in struct.pack(">i", len(good)) + good:  # As slowly as one likes.
            connection.send_raw(bytes([byte]))
        assert connection.receive() is not None


def test_responses_come_in_the_order_of_the_requests(rdkafka: Rdkafka, new_topic_id: str) -> None:
    rdkafka.create(new_topic_id)
    with connected(rdkafka.config["bootstrap.servers"]) as connection:
        sent = b""
        for number in range(200):
            frame = head(Api.METADATA, 1, number) + struct.pack(">i", 0)
            if number % 3 == 0:
                frame = head(Api.PRODUCE, 3, number) + struct.pack(">hhii", -1, -1, 1_000, 0)
            sent += struct.pack(">i", len(frame)) + frame
        connection.send_raw(sent)
        answers = [connection.receive() for _ in range(200)]
        assert [struct.unpack_from(">i", answer or b"")[0] for answer in answers] == list(
            range(200)
        )


def test_faults_are_counted_and_logged(
    tmp_path: Path, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    def faults(code: str) -> float:
        wanted = f'wings_errors_total{{code="{code}",transport="kafka"}} '
        (found,) = (line for line in exposition() if line.startswith(wanted))
        return float(found.removeprefix(wanted))

    def exposition() -> list[str]:
        return httpx.get(f"{running.http}/metrics").text.splitlines()

    with running_server(tmp_path, kafka=True, limits=Limits(inline_bytes_max=0)) as running:
        rdkafka = Rdkafka(running.kafka)
        rdkafka.create("t")
        rdkafka.produce("t", [b"a record"])
    (segment,) = (tmp_path / "segments").iterdir()
    segment.unlink()
    with running_server(tmp_path, kafka=True) as running:
        with connected(running.kafka) as connection:
            (partition,) = read_of(connection, [("t", 0)], 1 << 20)
            assert partition.error_code.value == 56  # KAFKA_STORAGE_ERROR
        assert (faults("STORAGE_CORRUPT"), faults("INTERNAL")) == (1, 0)
        assert "STORAGE_CORRUPT" in caplog.text
        with connected(running.kafka) as connection:
            by_time = struct.pack(">ii", -1, 1) + text("t") + struct.pack(">iiq", 1, 0, 1)
            connection.send(head(Api.LIST_OFFSETS.value, 1) + by_time)
            (topic,) = connection.received(Api.LIST_OFFSETS, 1).topics
            assert topic.partitions[0].error_code.value == 56
        assert faults("STORAGE_CORRUPT") == 2
        for method, frame in (
            ("at", fetch_request("t", 0)),
            ("keep", produce_request("t", -1, -1, -1)),
        ):
            calls.fail(KeptBatches, method, TypeError("a bug"), 1)
            with connected(running.kafka) as connection:
                connection.send(frame)
                assert connection.receive() is None
        assert (faults("STORAGE_CORRUPT"), faults("INTERNAL")) == (2, 2)
        assert caplog.text.count("TypeError('a bug')") == 2
        assert running.server.log.traffic.errors() == (4, 4)


def test_batches_beyond_the_limit_are_refused_and_the_server_goes_on(tmp_path: Path) -> None:
    limits = Limits(batch_bytes_max=1 << 20)
    with running_server(tmp_path, kafka=True, limits=limits) as running:
        rdkafka = Rdkafka(running.kafka)
        rdkafka.create("small")
        big = {"message.max.bytes": 50_000_000, "compression.type": "zstd"}
        producer = ck.Producer({**rdkafka.config, **big})
        errors: list[Any] = []
        producer.produce("small", bytes(1 << 22), on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(LATER) == 0
        assert errors[0].code() == ck.KafkaError.MSG_SIZE_TOO_LARGE
        assert rdkafka.produce("small", [b"fits"]) == [(0, 0)]


def test_the_address_is_listed_and_in_the_ready_line(server: RunningServer) -> None:
    assert server.server.ready_line.endswith(f" kafka={server.kafka}")
    with wings_client.connect(server.flight) as client:
        found = client.sql("select kafka from system.nodes").read_all().to_pylist()
    assert found == [{"kafka": server.kafka}]


def test_a_server_of_several_processes_does_not_serve_kafka_yet() -> None:
    from wings_server.process import Server
    from wings_server.settings import Address, Settings

    address = Address("127.0.0.1", 0)
    settings = Settings(flight=address, http=address, kafka=address, processes=2)
    with pytest.raises(InvalidArgument, match="--kafka"):
        Server(settings).start()
