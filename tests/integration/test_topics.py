"""The actions, GetFlightInfo, GetSchema and ListFlights, by a plain Flight client."""

import base64
import json
from typing import Any, cast

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import act, code_of, create_topic, error_of, get, numbers, push, read_answer
from tables import each

INT = {"fields": [{"name": "n", "type": "int64"}]}


@pytest.fixture
def keyed(client: flight.FlightClient, new_topic_id: str) -> str:
    create_topic(client, new_topic_id, ["n: int64", "key: int32"], "key")
    return new_topic_id


def keyed_rows(*keys: int) -> pa.RecordBatch:
    return pa.record_batch(
        {"n": pa.array(range(len(keys)), pa.int64()), "key": pa.array(keys, pa.int32())}
    )


def full(topic: str) -> str:
    return f"tenants/default/namespaces/default/topics/{topic}"


def refused(client: flight.FlightClient, action: str, **body: Any) -> dict[str, Any]:
    with pytest.raises(flight.FlightError) as caught:
        act(client, action, **body)
    return error_of(caught.value)


def test_a_topic_is_described_as_it_was_created(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    fields = [
        {"name": "id", "type": "int64", "nullable": False},
        {"name": "tags", "type": "list<item: string>", "nullable": True},
        {"name": "at", "type": "timestamp[us, tz=UTC]", "nullable": True},
        {"name": "price", "type": "decimal128(10, 2)", "nullable": True},
        {"name": "where", "type": "struct<lat: double, lon: double>", "nullable": True},
        {"name": "extra", "type": "map<string, int64>", "nullable": True},
    ]
    created = act(
        client, "create-topic", topic=new_topic_id, schema={"fields": fields}, partition_key="id"
    )
    assert set(created) == {
        "topic", "uuid", "schema", "schema_ipc", "schema_version", "partition_key", "config",
        "created_at",
    }  # fmt: skip
    assert created["topic"] == full(new_topic_id)
    assert created["schema"] == {
        "fields": [field | {"id": number} for number, field in enumerate(fields, 1)]
    }
    assert created["partition_key"] == "id"
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(created["schema_ipc"])))
    assert [str(field.type) for field in schema] == [field["type"] for field in fields]
    assert act(client, "describe-topic", topic=new_topic_id) == created
    assert act(client, "describe-topic", topic=full(new_topic_id)) == created


def test_a_schema_may_be_given_as_ipc(client: flight.FlightClient, new_topic_id: str) -> None:
    schema = pa.schema([pa.field("odd, name: <x>", pa.int8(), nullable=False)])
    encoded = base64.b64encode(schema.serialize().to_pybytes()).decode()
    created = act(client, "create-topic", topic=new_topic_id, schema_ipc=encoded)
    assert created["schema"]["fields"][0]["name"] == "odd, name: <x>"
    assert created["schema_ipc"] == encoded


@each(
    ("body", "code"),
    [
        ({"schema": {"fields": [{"name": "n", "type": "whole number"}]}}, "INVALID_SCHEMA"),
        ({"schema_ipc": "not base64"}, "INVALID_SCHEMA"),
        ({"schema": INT, "partition_key": "m"}, "INVALID_SCHEMA"),
        ({"schema": INT, "surprise": 1}, "INVALID_ARGUMENT"),
        (
            {"schema": INT, "topic": "tenants/default/namespaces/none/topics/t"},
            "NAMESPACE_NOT_FOUND",
        ),
        ({"schema": INT, "topic": "Bad"}, "INVALID_NAME"),
    ],
)
def test_a_bad_topic_is_refused(
    client: flight.FlightClient, new_topic_id: str, body: dict[str, Any], code: str
) -> None:
    error = refused(client, "create-topic", **{"topic": new_topic_id, **body})
    assert error["code"] == code
    assert error["message"]


def test_a_topic_deleted_and_created_again_is_another_one(
    client: flight.FlightClient, topic: str
) -> None:
    push(client, topic, numbers(1, 2), producer_id="p", sequence=0)
    deleted = act(client, "delete-topic", topic=topic)
    assert refused(client, "describe-topic", topic=topic)["code"] == "TOPIC_NOT_FOUND"
    create_topic(client, topic, ["n: int64"])
    assert act(client, "describe-topic", topic=topic)["uuid"] != deleted["uuid"]
    (answer,) = push(client, topic, numbers(3), producer_id="p", sequence=0)
    assert answer["committed"][0]["start_offset"] == 0
    assert get(client, topic=topic, offset=0).column("n") == [3]


def test_the_configuration_can_be_altered(client: flight.FlightClient, topic: str) -> None:
    altered = act(client, "alter-topic", topic=topic, config={"batch_bytes_max": 100})
    assert altered["config"]["batch_bytes_max"] == 100
    assert act(client, "describe-topic", topic=topic) == altered
    # What is not named stays; null is a key's default.
    config = {"retention_ms": 5, "segment_bytes": None}
    again = act(client, "alter-topic", topic=topic, config=config)
    assert again["config"] == {**altered["config"], "retention_ms": 5}


def test_topics_and_namespaces_are_listed_by_name(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    namespace = f"tenants/acme/namespaces/{new_topic_id}"
    made = act(client, "create-namespace", namespace=namespace)
    assert made["namespace"] == namespace
    assert made["created_at"].endswith("Z")
    assert refused(client, "create-namespace", namespace=namespace)["code"] == "ALREADY_EXISTS"
    for name in ("b", "a"):
        create_topic(client, f"{namespace}/topics/{name}", ["n: int64"])
    listed = act(client, "list-topics", namespace=namespace)
    assert [topic["topic"] for topic in listed] == [f"{namespace}/topics/{n}" for n in "ab"]
    names = [entry["namespace"] for entry in act(client, "list-namespaces")]
    assert namespace in names
    assert "tenants/default/namespaces/default" in names
    assert names == sorted(names)
    error = refused(client, "delete-namespace", namespace=namespace)
    assert error["code"] == "NAMESPACE_NOT_EMPTY"
    for name in ("b", "a"):
        act(client, "delete-topic", topic=f"{namespace}/topics/{name}")
    assert act(client, "delete-namespace", namespace=namespace) == made
    assert refused(client, "list-topics", namespace=namespace)["code"] == "NAMESPACE_NOT_FOUND"
    assert refused(client, "delete-namespace", namespace=namespace)["code"] == (
        "NAMESPACE_NOT_FOUND"
    )


def test_partition_states_are_by_value(client: flight.FlightClient, keyed: str) -> None:
    assert act(client, "partition-states", topic=keyed) == []
    push(client, keyed, keyed_rows(10, 9, 10, -1))
    states = act(client, "partition-states", topic=keyed)
    assert [(s["partition"], s["log_start_offset"], s["next_offset"]) for s in states] == [
        (-1, 0, 1),
        (9, 0, 1),
        (10, 0, 2),
    ]
    assert all(state["bytes"] > 0 and state["last_timestamp"].endswith("Z") for state in states)


def test_a_topic_without_a_key_has_its_partition_from_the_start(
    client: flight.FlightClient, topic: str
) -> None:
    assert act(client, "partition-states", topic=topic) == [
        {
            "partition": None,
            "log_start_offset": 0,
            "next_offset": 0,
            "bytes": 0,
            "last_timestamp": None,
        }
    ]


def test_named_consumers_remember_where_they_read_on(
    client: flight.FlightClient, keyed: str
) -> None:
    push(client, keyed, keyed_rows(*[3] * 5, *[2] * 7))
    offsets = [
        {"topic": keyed, "partition": 3, "offset": 5},
        {"topic": keyed, "partition": 2, "offset": 7},
    ]
    committed = act(client, "commit-offsets", consumer="billing", offsets=offsets)
    assert committed["consumer"] == "billing"
    read = act(client, "get-offsets", consumer="billing", topic=keyed)["offsets"]
    assert [(o["topic"], o["partition"], o["offset"]) for o in read] == [
        (full(keyed), 2, 7),
        (full(keyed), 3, 5),
    ]
    assert all(entry["committed_at"].endswith("Z") for entry in read)
    assert act(client, "get-offsets", consumer="nobody") == {"offsets": []}
    act(
        client,
        "commit-offsets",
        consumer="billing",
        offsets=[{"topic": keyed, "partition": 3, "offset": 1}],
    )
    again = act(client, "get-offsets", consumer="billing")["offsets"]
    assert [o["offset"] for o in again if o["topic"] == full(keyed)] == [7, 1]
    assert act(client, "delete-offsets", consumer="billing", topic=keyed)["offsets"] == again
    assert act(client, "get-offsets", consumer="billing") == {"offsets": []}
    assert act(client, "delete-offsets", consumer="billing") == {"offsets": []}


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ({"partition": 1}, "INVALID_ARGUMENT"),
        ({"partition": "1", "offset": 1}, "PARTITION_TYPE_MISMATCH"),
        ({"offset": 1}, "PARTITION_REQUIRED"),
        ({"partition": 1, "offset": 1, "topic": "nobody"}, "TOPIC_NOT_FOUND"),
    ],
)
def test_bad_consumer_offsets_are_refused_whole(
    client: flight.FlightClient, keyed: str, entry: dict[str, Any], code: str
) -> None:
    good = {"topic": keyed, "partition": 1, "offset": 1}
    error = refused(
        client, "commit-offsets", consumer=f"c-{keyed}", offsets=[good, {"topic": keyed, **entry}]
    )
    assert error["code"] == code
    assert act(client, "get-offsets", consumer=f"c-{keyed}") == {"offsets": []}


@pytest.mark.parametrize(
    ("action", "raw", "code"),
    [
        ("create-topic", b"{", "INVALID_ARGUMENT"),
        ("describe-topic", b'{"topic": "nobody"}', "TOPIC_NOT_FOUND"),
        ("delete-topic", b'{"topic": "nobody"}', "TOPIC_NOT_FOUND"),
        ("list-topics", b'{"namespace": "x"}', "INVALID_NAME"),
        ("no-such-action", b"{}", "INVALID_ARGUMENT"),
    ],
)
def test_a_bad_action_is_refused(
    client: flight.FlightClient, action: str, raw: bytes, code: str
) -> None:
    with pytest.raises(flight.FlightError) as caught:
        list(client.do_action(flight.Action(action, raw)))
    assert code_of(caught.value) == code


def test_what_is_misspelt_is_told_what_there_is(
    client: flight.FlightClient, topic: str, subtests: pytest.Subtests
) -> None:
    fields = [{"name": "n", "type": "int46"}]
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("descibe-topic", {}, "did you mean 'describe-topic'"),
        ("describe-topic", {"topc": topic}, "did you mean 'topic'? There is topic"),
        ("alter-topic", {"topic": topic, "config": {"retension_ms": 1}}, "'retention_ms'"),
        ("create-topic", {"topic": "t", "schema": {"fields": fields}}, "did you mean 'int64'"),
        (
            "share-create",
            {"group": "g", "topic": topic, "config": {"deliver_at_column": "m"}},
            "there is n",
        ),
    ]
    for action, body, hint in cases:
        with subtests.test(action):
            assert hint in refused(client, action, **body)["message"]
    for ticket, hint in (
        ({"ofset": 0}, "did you mean 'offset'"),
        ({"offset": 0, "columns": ["N"]}, "did you mean 'n'? There is n"),
        ({"kind": "scna"}, "did you mean 'scan'"),
    ):
        with subtests.test(ticket=ticket):
            with pytest.raises(flight.FlightServerError) as caught:
                get(client, topic=topic, **ticket)
            assert hint in error_of(caught.value)["message"]


def test_the_actions_are_listed(client: flight.FlightClient) -> None:
    listed = cast("list[flight.ActionType]", client.list_actions())
    actions = {action.type: action.description for action in listed}
    assert {
        "create-topic", "describe-topic", "delete-topic", "alter-topic", "list-topics",
        "create-namespace", "delete-namespace", "list-namespaces", "partition-states",
        "offset-for-timestamp", "commit-offsets", "get-offsets", "delete-offsets",
        "stage-publish", "stage-abort",
        "maintain",
    } <= set(actions)  # fmt: skip
    assert all(actions.values())


def info_of(client: flight.FlightClient, **command: Any) -> flight.FlightInfo:
    return client.get_flight_info(flight.FlightDescriptor.for_command(json.dumps(command).encode()))


def read_all(client: flight.FlightClient, info: flight.FlightInfo) -> list[list[int]]:
    return [read_answer(client.do_get(endpoint.ticket)).column("n") for endpoint in info.endpoints]


def test_flight_info_has_an_endpoint_for_each_partition(
    client: flight.FlightClient, keyed: str
) -> None:
    push(client, keyed, keyed_rows(1, 2, 1))
    info = client.get_flight_info(flight.FlightDescriptor.for_path(keyed))
    assert read_all(client, info) == [[0, 2], [1]]
    assert info.total_records == 3
    assert info.total_bytes > 0
    assert info.schema.names == ["n", "key"]


def test_splits_cut_a_partition_into_near_equal_ranges(
    client: flight.FlightClient, topic: str
) -> None:
    push(client, topic, numbers(*range(10)))
    parts = read_all(client, info_of(client, topic=topic, splits=3))
    assert [n for part in parts for n in part] == list(range(10))
    assert sorted(len(part) for part in parts) == [3, 3, 4]
    assert len(info_of(client, topic=topic, splits=50).endpoints) == 10


def test_the_ranges_of_an_info_are_fixed(client: flight.FlightClient, topic: str) -> None:
    push(client, topic, numbers(1, 2))
    info = info_of(client, topic=topic, offset=1)
    push(client, topic, numbers(3))
    assert read_all(client, info) == [[2]]
    assert info.total_records == 1


def test_an_info_carries_columns_filter_and_system_columns(
    client: flight.FlightClient, keyed: str
) -> None:
    push(client, keyed, keyed_rows(5, 6, 5))
    info = info_of(
        client, topic=keyed, partition=5, columns=["n"], filter="n > 0", system_columns=True
    )
    assert info.total_records == -1
    assert info.schema.names == ["n", "__offset", "__timestamp"]
    (endpoint,) = info.endpoints
    answer = read_answer(client.do_get(endpoint.ticket))
    assert (answer.column("n"), answer.column("__offset")) == ([2], [1])


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"topic": "nobody"}, "TOPIC_NOT_FOUND"),
        ({"topic": "x", "surprise": 1}, "INVALID_ARGUMENT"),
    ],
)
def test_a_bad_info_command_is_refused(
    client: flight.FlightClient, command: dict[str, Any], code: str
) -> None:
    with pytest.raises(flight.FlightError) as caught:
        info_of(client, **command)
    assert code_of(caught.value) == code


def test_an_unknown_column_of_an_info_command_is_named(
    client: flight.FlightClient, topic: str
) -> None:
    with pytest.raises(flight.FlightError) as caught:
        info_of(client, topic=topic, columns=["nope"])
    assert code_of(caught.value) == "INVALID_ARGUMENT"
    assert error_of(caught.value)["column"] == "nope"


def test_more_endpoints_than_an_answer_may_have_are_refused(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(client, new_topic_id, ["key: int32"], "key")
    rows = pa.record_batch({"key": pa.array([*range(11)] * 10_000, pa.int32())})
    push(client, new_topic_id, rows)
    with pytest.raises(flight.FlightError, match="more than 100000 endpoints") as caught:
        info_of(client, topic=new_topic_id, splits=10_000)
    assert code_of(caught.value) == "INVALID_ARGUMENT"


def test_the_schema_of_a_topic(client: flight.FlightClient, keyed: str) -> None:
    descriptor = flight.FlightDescriptor.for_path(keyed)
    answer: Any = client.get_schema(descriptor)
    assert answer.schema == pa.schema([("n", pa.int64()), ("key", pa.int32())])


def flights_of(client: flight.FlightClient, namespace: str) -> list[flight.FlightInfo]:
    criteria: Any = json.dumps({"namespace": namespace}).encode()
    return list(client.list_flights(criteria))


def test_list_flights_gives_the_topics_of_a_namespace(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    namespace = f"tenants/list/namespaces/{new_topic_id}"
    act(client, "create-namespace", namespace=namespace)
    create_topic(client, f"{namespace}/topics/one", ["n: int64"])
    (info,) = flights_of(client, namespace)
    assert info.descriptor.path == [f"{namespace}/topics/one".encode()]
    assert info.schema.names == ["n"]
    everything = [found.descriptor.path for found in client.list_flights()]
    assert info.descriptor.path in everything
    with pytest.raises(flight.FlightError) as caught:
        flights_of(client, "tenants/a/namespaces/none")
    assert code_of(caught.value) == "NAMESPACE_NOT_FOUND"
