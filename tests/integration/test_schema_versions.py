"""Schemas that grow: pages of all versions for readers and writers of all versions."""

import decimal
import json
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from fix_client import NewTopic, async_in_soak
from flight_calls import Stream, act, get, push, put_stream, ticket_of

from wings_client import Client, Topic
from wings_core.errors import InvalidSchema, InvalidTicket, SchemaMismatch

pytestmark = async_in_soak


def values(reader: pa.RecordBatchReader) -> list[dict[str, Any]]:
    return reader.read_all().to_pylist()


def pinned(client: flight.FlightClient, topic: Topic, version: int, **keys: Any) -> Any:
    keys.setdefault("offset", 0)
    return get(client, kind="scan", topic=topic.name, schema_version=version, **keys).table


def opened(client: flight.FlightClient, **keys: Any) -> flight.FlightStreamReader:
    return client.do_get(ticket_of(**keys))


def rows_of(reader: flight.FlightStreamReader) -> list[dict[str, Any]]:
    """Return the rows of the next chunk."""
    batch = reader.read_chunk().data
    assert batch is not None
    return batch.to_pylist()


def test_a_description_has_the_version_and_an_id_of_each_field(
    wings: Client, client: flight.FlightClient, new_topic: NewTopic
) -> None:
    topic = new_topic("a: int32", "b: string not null")
    assert topic.schema_version == 1
    altered = wings.alter_schema(topic, add={"c": "double"}, widen={"a": "int64"}, nullable=["b"])
    assert altered.schema_version == 2
    assert altered.schema == pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.float64())])
    described = act(client, "describe-topic", topic=topic.name)
    assert described["schema_version"] == 2
    assert [(field["id"], field["name"]) for field in described["schema"]["fields"]] == [
        (1, "a"),
        (2, "b"),
        (3, "c"),
    ]
    assert wings.topic(topic) == altered


def test_what_is_there_already_changes_nothing(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic("a: int32", "b: string")
    same = wings.alter_schema(topic, add={"a": "int32"}, widen={"a": "int32"}, nullable=["b"])
    assert same == topic
    once = wings.alter_schema(topic, add={"c": "double"})
    assert wings.alter_schema(topic, add={"c": "double"}) == once
    assert once.schema_version == 2
    # A topic that has grown is still the one that its first producers ask for.
    assert wings.create_topic(topic.name, topic.schema, if_not_exists=True) == once


def test_anything_but_growing_is_refused_with_the_column(
    wings: Client, new_topic: NewTopic, subtests: pytest.Subtests
) -> None:
    topic = new_topic(
        "k: int32", "i: int32", "u: uint8", "f: float", "d: decimal128(5, 2)", "s: string not null",
        partition_key="k",
    )  # fmt: skip
    refused: list[tuple[dict[str, Any], str]] = [
        ({"add": {"i": "int64"}}, "is there already, as int32"),
        ({"add": {"s": "string"}}, "is there already, as string not null"),
        ({"add": {"__x": "int64"}}, "reserved"),
        ({"add": {"x": "dictionary"}}, "type"),
        ({"widen": {"x": "int64"}}, "is not a column"),
        ({"widen": {"k": "int64"}}, "partition key"),
        ({"nullable": ["k"]}, "partition key"),
        ({"nullable": ["x"]}, "is not a column"),
        ({"widen": {"i": "int16"}}, "cannot become int16"),
        ({"widen": {"i": "uint64"}}, "cannot become uint64"),
        ({"widen": {"i": "double"}}, "cannot become double"),
        ({"widen": {"u": "int64"}}, "cannot become int64"),
        ({"widen": {"f": "halffloat"}}, "cannot become halffloat"),
        ({"widen": {"d": "decimal128(6, 3)"}}, "cannot become"),
        ({"widen": {"d": "decimal128(4, 2)"}}, "cannot become"),
        ({"widen": {"s": "large_string"}}, "cannot become large_string"),
    ]
    for change, why in refused:
        with subtests.test(change=change), pytest.raises(InvalidSchema, match=why):
            wings.alter_schema(topic, **change)
    assert wings.topic(topic) == topic


def test_readers_get_the_current_schema_and_earlier_ones_on_request(
    wings: Client, client: flight.FlightClient, new_topic: NewTopic
) -> None:
    topic = new_topic("a: int32", "d: decimal128(5, 2)", "f: float")
    row = {"a": 1, "d": decimal.Decimal("1.50"), "f": 0.5}
    wings.push(topic, pa.RecordBatch.from_pylist([row], topic.schema))
    altered = wings.alter_schema(
        topic,
        add={"n": "string", "l": "list<item: int64>"},
        widen={"a": "int64", "d": "decimal128(20, 2)", "f": "double"},
    )
    wings.push(topic, pa.RecordBatch.from_pylist([row], topic.schema))
    wide = {"a": 2, "d": decimal.Decimal("2.50"), "f": 0.25, "n": "x", "l": [1]}
    wings.push(altered, pa.RecordBatch.from_pylist([wide], altered.schema))
    added = {"n": None, "l": None}
    assert values(wings.scan(topic)) == [row | added, row | added, wide]
    assert wings.scan(topic).schema == altered.schema
    found = pinned(client, topic, 1)
    assert found.schema == topic.schema
    assert found.to_pylist() == [row, row, {key: wide[key] for key in row}]
    some = get(client, kind="scan", topic=topic.name, columns=["n", "a"], system_columns=True)
    assert some.column("n") == [None, None, "x"]
    assert some.column("a") == [1, 1, 2]
    assert some.column("__offset") == [0, 1, 2]
    only = get(client, kind="scan", topic=topic.name, columns=["n"])
    assert only.column("n") == [None, None, "x"]
    assert get(client, kind="scan", topic=topic.name, filter="n = 'x'").column("a") == [2]
    assert get(client, kind="scan", topic=topic.name, filter="n IS NULL AND a < 2").column("a") == [
        1,
        1,
    ]
    for version in (0, 3):
        with pytest.raises(flight.FlightServerError) as refused:
            pinned(client, topic, version)
        assert b"INVALID_TICKET" in refused.value.extra_info
    with pytest.raises(InvalidTicket):
        wings.fetch(topic, offset=0, columns=["none"])


def test_a_value_that_an_earlier_version_cannot_hold_is_refused_where_it_is_met(
    wings: Client, client: flight.FlightClient, new_topic: NewTopic, subtests: pytest.Subtests
) -> None:
    topic = new_topic("a: int8 not null", "d: decimal128(3, 1)", "f: float")
    rows = [{"a": 1, "d": decimal.Decimal("1.5"), "f": 0.5}]
    wings.push(topic, pa.RecordBatch.from_pylist(rows, topic.schema))
    altered = wings.alter_schema(
        topic, widen={"a": "int16", "d": "decimal128(8, 1)", "f": "double"}, nullable=["a"]
    )
    bad: list[dict[str, Any]] = [{"a": 300}, {"a": None}, {"d": decimal.Decimal("1000.5")}]
    bad.append({"f": 1e300})
    for offset, change in enumerate(bad, 1):
        with subtests.test(change=change):
            row = rows[0] | change
            wings.push(altered, pa.RecordBatch.from_pylist([row], altered.schema))
            reader = opened(client, kind="scan", topic=topic.name, offset=offset, schema_version=1)
            with pytest.raises(flight.FlightServerError) as refused:
                reader.read_all()
            assert b"SCHEMA_MISMATCH" in refused.value.extra_info
            assert next(iter(change)) in json.loads(refused.value.extra_info)["message"]
            # Columns that are not asked for are not looked at.
            other = "f" if "f" not in change else "a"
            assert pinned(client, topic, 1, offset=offset, columns=[other]).num_rows == 1
    # What stands before is delivered.
    reader = client.do_get(
        flight.Ticket(
            json.dumps({"kind": "scan", "topic": topic.name, "schema_version": 1}).encode()
        )
    )
    assert rows_of(reader) == rows
    assert len(values(wings.scan(topic))) == 5


@pytest.mark.parametrize("merged", [False, True])
def test_the_row_that_an_earlier_version_cannot_hold_is_named(
    wings: Client,
    client: flight.FlightClient,
    new_topic: NewTopic,
    merged: bool,
    subtests: pytest.Subtests,
) -> None:
    topic = new_topic("k: string", "a: int8", partition_key="k")
    altered = wings.alter_schema(topic, widen={"a": "int16"})
    keys = ["a", "a", "b", "b", "b", "c"]
    wings.push(altered, {"k": keys, "a": [1] * 6})
    wings.push(altered, {"k": keys, "a": [1, 1, 1, 1, 1_000, 1]})
    if merged:
        act(client, "maintain", topic=topic.name)
    ways: list[dict[str, Any]] = [
        {"partition": "b"},
        {"partition": "b", "offset": 4},
        {"partitions": "all"},
        {"partitions": ["b"]},
        {"partitions": ["c", "b", "a"]},
        {"partitions": "all", "columns": ["a"], "system_columns": True},
    ]
    for way in ways:
        with subtests.test(way=way), pytest.raises(SchemaMismatch) as refused:
            wings.scan(topic, schema_version=1, **way).read_all()
        assert "partition \"b\", offset 5: column 'a' is int8" in refused.value.message
        assert (refused.value.partition, refused.value.offset) == ("b", 5)


@pytest.mark.parametrize("which", [{}, {"partitions": "all"}])
def test_rows_before_the_offset_asked_for_may_be_what_the_version_cannot_hold(
    wings: Client, client: flight.FlightClient, new_topic: NewTopic, which: dict[str, Any]
) -> None:
    topic = new_topic("a: int8")
    wings.alter_schema(topic, widen={"a": "int16"})
    wings.push(topic.name, {"a": [1_000, 1, 2]})
    keys = {"kind": "scan", "topic": topic.name, "schema_version": 1, **which}
    assert opened(client, offset=1, **keys).read_all().to_pydict() == {"a": [1, 2]}
    with pytest.raises(flight.FlightServerError, match="cannot hold"):
        opened(client, offset=0, **keys).read_all()


def test_rows_come_up_to_the_first_that_any_column_cannot_hold(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic("a: int8", "b: int8")
    wider = wings.alter_schema(topic, widen={"a": "int16", "b": "int16"})
    wings.push(wider, {"a": [1, 2, 3, 1_000], "b": [1, 2, 1_000, 4]})
    batches = iter(wings.scan(topic, schema_version=1))
    assert next(batches)["a"].to_pylist() == [1, 2]
    with pytest.raises(SchemaMismatch) as refused:
        next(batches)
    assert refused.value.offset == 2


def test_a_stream_keeps_the_schema_it_began_with(
    wings: Client, client: flight.FlightClient, new_topic: NewTopic
) -> None:
    topic = new_topic("a: int32")
    batch = pa.RecordBatch.from_pylist([{"a": 1}], topic.schema)
    with wings.producer(topic) as producer:
        producer.send(batch)
        producer.flush()
        reader = opened(client, kind="follow", topic=topic.name)
        assert rows_of(reader) == [{"a": 1}]
        altered = wings.alter_schema(topic, add={"b": "string"}, widen={"a": "int64"})
        producer.send(batch)
        producer.flush()
    assert rows_of(reader) == [{"a": 1}]
    wings.push(altered, pa.RecordBatch.from_pylist([{"a": 5, "b": "x"}], altered.schema))
    # A version that came after the reader did.
    assert rows_of(reader) == [{"a": 5}]
    reader.cancel()
    assert values(wings.scan(topic))[-1] == {"a": 5, "b": "x"}


def test_a_stream_may_have_the_columns_of_any_version_and_of_no_other(
    wings: Client, client: flight.FlightClient, new_topic: NewTopic
) -> None:
    topic = new_topic("a: int32")
    wings.alter_schema(topic, add={"b": "string"})
    altered = wings.alter_schema(topic, add={"c": "string"}, widen={"a": "int64"})
    for schema in (
        pa.schema([("a", pa.int64()), ("b", pa.string())]),
        pa.schema([("a", pa.int32()), ("c", pa.string())]),
        altered.schema.append(pa.field("d", pa.string())),
    ):
        refused = Stream(client, schema, topic.name)
        answer = refused.push(pa.RecordBatch.from_pylist([{}], schema))
        assert answer["error"]["code"] == "SCHEMA_MISMATCH"
        with pytest.raises(flight.FlightServerError):
            refused.close()
    second = pa.schema([("a", pa.int32()), ("b", pa.string())])
    for schema, row in (
        (topic.schema, {"a": 1}),
        (second, {"a": 1, "b": "x"}),
        (altered.schema, {"a": 1 << 40, "b": "x", "c": "y"}),
    ):
        (answer,) = push(client, topic.name, pa.RecordBatch.from_pylist([row], schema))
        assert len(answer["committed"]) == 1
    assert values(wings.scan(topic)) == [
        {"a": 1, "b": None, "c": None},
        {"a": 1, "b": "x", "c": None},
        {"a": 1 << 40, "b": "x", "c": "y"},
    ]


def test_the_client_fills_in_columns_that_came_later(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic("a: int32 not null")
    with pytest.raises(SchemaMismatch, match="missing"):
        wings.push(topic, pa.table({"b": [1]}))
    altered = wings.alter_schema(topic, add={"b": "string", "c": "double"}, widen={"a": "int64"})
    old = {"a": [1]}
    for data in (pa.table(old), pa.record_batch(old), old, [{"a": 1}], iter([pa.table(old)])):
        wings.push(altered, data)
    wings.push(altered, {"a": [1], "c": [0.5]})
    assert values(wings.scan(topic)) == [
        *(5 * [{"a": 1, "b": None, "c": None}]),
        {"a": 1, "b": None, "c": 0.5},
    ]


def test_tickets_of_get_flight_info_name_the_version_they_were_planned_with(
    wings: Client, client: flight.FlightClient, new_topic: NewTopic
) -> None:
    topic = new_topic("a: int32")
    wings.push(topic, pa.RecordBatch.from_pylist([{"a": 1}], topic.schema))
    info = client.get_flight_info(flight.FlightDescriptor.for_path(topic.name))
    wings.alter_schema(topic, add={"b": "string"})
    ticket = info.endpoints[0].ticket
    assert json.loads(ticket.ticket)["schema_version"] == 1
    assert client.do_get(ticket).read_all().schema == info.schema == topic.schema
    command = {"topic": topic.name, "partitions": "all", "schema_version": 1}
    early = client.get_flight_info(flight.FlightDescriptor.for_command(json.dumps(command)))
    assert early.schema == topic.schema
    descriptor = flight.FlightDescriptor.for_command(json.dumps(command | {"schema_version": 9}))
    with pytest.raises(flight.FlightServerError) as refused:
        client.get_flight_info(descriptor)
    assert b"INVALID_ARGUMENT" in refused.value.extra_info


def test_nulls_come_in_as_soon_as_they_may(
    wings: Client, client: flight.FlightClient, new_topic: NewTopic
) -> None:
    topic = new_topic("a: int32 not null", "b: int32")
    bare = pa.schema([("a", pa.int32()), ("b", pa.int32())])
    full, null = (pa.RecordBatch.from_pylist([{"a": value, "b": 1}], bare) for value in (7, None))
    with (
        put_stream(client, bare, topic.name) as early,
        put_stream(client, bare, topic.name) as joined,
    ):
        early.push(full)
        for _ in range(3):  # From the third on, small batches are joined.
            joined.push(full)
        wings.alter_schema(topic, nullable=["a"])
        early.push(null)
        joined.push(null)
    assert [row["a"] for row in values(wings.scan(topic))] == [7, 7, 7, 7, None, None]
    with pytest.raises(flight.FlightServerError, match="not null"):
        pinned(client, topic, 1)


def test_share_groups_deliver_the_schema_of_now(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic("a: int32")
    old = pa.RecordBatch.from_pylist([{"a": 1}], topic.schema)
    wings.push(topic, old)
    wings.create_share_group(
        "billing",
        topic,
        {"start": "earliest", "dlq_topic": f"{topic.id}-dlq", "dlq_copy_payload": True},
    )
    with wings.share_consumer("billing", topic=topic, max_messages=1) as consumer:
        deliveries = iter(consumer)
        first = next(deliveries)
        assert first.rows.to_pylist() == [{"a": 1}]
        altered = wings.alter_schema(topic, add={"b": "string"}, widen={"a": "int64"})
        # What the consumer's stream cannot hold ends it, and comes by another one, uncounted.
        wide = {"a": 1 << 40, "b": "x"}
        wings.push(altered, pa.RecordBatch.from_pylist([wide], altered.schema))
        consumer.accept(first)
        second = next(deliveries)
        assert second.rows.to_pylist() == [wide]
        assert second.delivery_count == 1
        consumer.reject(second)
    letters = wings.scan(f"{topic.id}-dlq").read_all()
    assert letters.num_rows == 1
    assert wings.redrive(f"{topic.id}-dlq").redriven == 1
    assert values(wings.scan(topic))[-1] == wide


def test_http_alters_a_schema_and_pushes_what_came_later(
    wings: Client, http: httpx.Client, new_topic: NewTopic
) -> None:
    topic = new_topic("a: int32")
    path = f"/v1/{topic.name}"
    body = {"schema": {"add": [{"name": "b", "type": "string"}]}}
    altered = http.patch(path, json=body)
    assert altered.status_code == 200
    assert altered.json()["schema_version"] == 2
    assert altered.json()["schema"]["fields"][1] == {
        "name": "b", "type": "string", "nullable": True, "id": 2,
    }  # fmt: skip
    assert http.patch(path, json=body | {"topic": topic.id}).json() == altered.json()
    both = http.patch(path, json={"config": {"retention_ms": 5}, "schema": {"nullable": ["a"]}})
    assert both.json()["config"]["retention_ms"] == 5
    for bad, code in (
        ({}, "INVALID_ARGUMENT"),
        ({"schema": {"drop": ["a"]}}, "INVALID_ARGUMENT"),
        (body | {"topic": "another"}, "INVALID_ARGUMENT"),
        ({"schema": {"widen": [{"name": "a", "type": "string"}]}}, "INVALID_SCHEMA"),
    ):
        refused = http.patch(path, json=bad)
        assert (refused.status_code, refused.json()["code"]) == (400, code)
    assert http.patch(f"{path}-none", json=body).status_code == 404
    rows = [{"a": 1}, {"a": 2, "b": "x"}]
    namespace = topic.name.rpartition("/topics/")[0]
    pushed = http.post(
        "/v1/push", json={"namespace": namespace, "batches": [{"topic": topic.id, "data": rows}]}
    )
    assert pushed.json()["batches"][0]["_tag"] == "success"
    fetched = http.post(
        "/v1/fetch", json={"namespace": namespace, "topics": [{"topic": topic.id, "offset": 0}]}
    )
    assert [row["b"] for row in fetched.json()["topics"][0]["messages"]] == [None, "x"]


def test_followers_and_consumers_go_on_with_the_schema_of_now(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic("k: string", "a: int32", partition_key="k")
    wings.push(topic, [{"k": "x", "a": 1}])
    followed = iter(wings.follow(topic, "x"))
    many = iter(wings.follow(topic, partitions="all"))
    with wings.consumer("reader", topic) as consumer:
        consumed = iter(consumer)
        firsts = [next(followed)[0], next(many)[0], next(consumed)[0]]
        assert [first.to_pylist() for first in firsts] == 3 * [[{"k": "x", "a": 1}]]
        altered = wings.alter_schema(topic, widen={"a": "int64"}, add={"b": "string"})
        wide = {"k": "x", "a": 1 << 40, "b": "y"}
        wings.push(altered, [wide])
        seconds = [next(followed)[0], next(many)[0], next(consumed)[0]]
        assert [second.to_pylist() for second in seconds] == 3 * [[wide]]
    early = wings.follow(topic, "x", schema_version=1)
    with pytest.raises(SchemaMismatch):
        list(early)
    assert wings.fetch(topic, "x", offset=0, schema_version=1, columns=["k"]).table.num_rows == 2
    everything = wings.fetch(topic, offset={}, partitions="all", schema_version=1, columns=["k"])
    assert everything.schema.names == ["k"]
    with pytest.raises(SchemaMismatch):
        wings.scan(topic, partitions="all", schema_version=1).read_all()
