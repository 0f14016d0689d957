"""Hostile input hurts no other: each is answered, typed, and the server goes on."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import grpc
import httpx
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import act, code_of, create_topic, get, open_put, push
from fuzz import flight_messages, made_up, mutated, mutated_json, path_descriptor
from google.protobuf.message_factory import GetMessageClass

from wings_core.protocol.flight_sql import flight_sql_pb2 as pb
from wings_core.protocol.v1 import (
    admin_pb2,
    groups_pb2,
    holds_pb2,
    maintenance_pb2,
    offset_registry_pb2,
    shards_pb2,
    tokens_pb2,
)
from wings_server.flight_sql import ACTIONS as SQL_ACTIONS
from wings_server.flight_sql.messages import pack
from wings_server.testing import (
    MetadataProcess,
    ServerProcess,
    hold_process,
    metadata_process,
    server_process,
)

SEED = 20_261_123
FEW, MANY = 100, 170_000
"""Inputs of each of seven kinds."""

CALL_SECONDS = 0.1
"""What a made-up request may wait for is awaited so long."""

OPTIONS = flight.FlightCallOptions(timeout=CALL_SECONDS)

inputs_of_each = pytest.mark.parametrize(
    "inputs", [FEW, pytest.param(MANY, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)])]
)

SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("list", pa.list_(pa.decimal128(10, 2))),
    ]
)
FIELDS = ["key: string not null", "n: int64", "list: list<item: decimal128(10, 2)>"]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with server_process() as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[flight.FlightClient]:
    with flight.connect(server.flight) as connected:
        create_topic(connected, "t", ["key: string not null", "n: int64"], "key")
        push(connected, "t", rows_of(10))
        yield connected
        assert server.running, server.stderr
        goes_on(connected)
        told = httpx.get(f"{server.http}/metrics").text.splitlines()
        faults = [line.split() for line in told if 'code="INTERNAL"' in line]
        assert faults, told
        assert all(float(count) == 0 for _, count in faults), (faults, server.stderr)
        for topic in act(connected, "list-topics"):
            act(connected, "delete-topic", topic=topic["topic"])


def rows_of(rows: int) -> pa.RecordBatch:
    return pa.record_batch(
        {"key": [f"k{n % 3}" for n in range(rows)], "n": pa.array(range(rows), pa.int64())},
        schema=pa.schema([SCHEMA.field("key"), SCHEMA.field("n")]),
    )


def goes_on(client: flight.FlightClient) -> None:
    """See to it that the server serves as if nothing had happened."""
    create_topic(client, "after", ["n: int64"])
    push(client, "after", pa.record_batch({"n": pa.array([1, 2, 3], pa.int64())}))
    assert get(client, topic="after", offset=0, max_messages=3).column("n") == [1, 2, 3]


def judge(call: Callable[[], Any], given: bytes) -> None:
    """Make a call: it succeeds, waits, or is refused with a code that is no fault of the server."""
    code = None
    try:
        call()
    except flight.FlightTimedOutError:
        pass
    except (pa.ArrowException, OSError) as error:
        code = code_of(error)
    assert code != "INTERNAL", given[:2_000]


def fetch(client: flight.FlightClient, ticket: bytes) -> None:
    client.do_get(flight.Ticket(ticket), OPTIONS).read_all()


def perform(client: flight.FlightClient, action: str, body: bytes) -> None:
    list(client.do_action(flight.Action(action, body), OPTIONS))


@inputs_of_each
def test_tickets(client: flight.FlightClient, inputs: int) -> None:
    random = Random(SEED)
    tickets = [
        {"kind": "fetch", "topic": "t", "partition": "k0", "offset": 0, "timeout_ms": 1},
        {"kind": "scan", "topic": "t", "partition": "k1", "offset": 0, "end_offset": 2},
        {"kind": "fetch", "topic": "t", "partitions": "all", "timeout_ms": 1, "filter": "n > 3"},
        {
            "kind": "follow",
            "topic": "t",
            "partitions": [
                "k0",
                {"partition": "k1", "offset": {"timestamp": "2026-01-01T00:00:00Z"}},
            ],
            "timeout_ms": 1,
            "columns": ["n"],
            "system_columns": True,
        },
        {"kind": "acquire", "topic": "t", "group": "g", "member": "m", "timeout_ms": 1},
    ]
    names = sorted({name for ticket in tickets for name in ticket} | {"min_messages", "x"})
    for _ in range(inputs):
        given = mutated_json(random, random.choice(tickets), names)
        judge(partial(fetch, client, given), given)


@inputs_of_each
def test_actions(client: flight.FlightClient, inputs: int) -> None:
    random = Random(SEED)
    names = [found.type for found in client.list_actions()]
    fields = [{"name": "n", "type": "int64"}, {"name": "m", "type": "list<string>"}]
    body = {
        "topic": "t",
        "partition": "k0",
        "group": "g",
        "config": {"retention_ms": 1_000},
        "schema": {"fields": fields},
        "partition_key": "n",
        "offsets": [{"topic": "t", "partition": "k0", "offset": 3}],
        "consumer": "c",
        "member": "m",
        "acks": [
            {
                "partition": "k0",
                "start_offset": 0,
                "end_offset": 1,
                "lease": "1",
                "action": "accept",
            }
        ],
        "stage": "s",
        "source": "s",
        "namespace": "n",
        "timestamp": "2026-01-01T00:00:00Z",
    }
    for _ in range(inputs):
        name = random.choice(names)
        kept = {key: value for key, value in body.items() if random.random() < 0.4} or body
        given = mutated_json(random, kept, list(body))
        judge(partial(perform, client, name, given), given)
        if name.startswith("token-"):
            with suppress(pa.ArrowException):
                for token in act(client, "token-list"):
                    act(client, "token-revoke", name=token["name"])


@inputs_of_each
def test_streams_of_batches(
    client: flight.FlightClient, server: ServerProcess, inputs: int
) -> None:
    random = Random(SEED)
    create_topic(client, "wide", FIELDS)
    wide = pa.table({"key": ["a", "b"], "n": [1, None], "list": [[None, 1], []]}, schema=SCHEMA)
    narrow = pa.Table.from_batches([rows_of(5)])
    puts = [
        flight_messages(path_descriptor("wide"), wide, [b"", b"{}"]),
        flight_messages(path_descriptor("t"), narrow, [b"", b'{"sequence": 1}']),
        flight_messages(path_descriptor("t"), narrow),
    ]
    with grpc.insecure_channel(server.flight.removeprefix("grpc://")) as channel:
        put = channel.stream_stream("/arrow.flight.protocol.FlightService/DoPut")
        for _ in range(inputs):
            messages = list(random.choice(puts))
            for _ in range(random.choice((1, 1, 2))):
                at = random.randrange(len(messages))
                match random.randrange(8):
                    case 0:
                        del messages[at:]
                    case 1:
                        messages.insert(at, messages[random.randrange(len(messages))])
                    case _:
                        messages[at] = mutated(random, messages[at])
                messages = messages or [b""]
            with suppress(grpc.RpcError):  # Of what kind, the metrics tell.
                list(put(iter(messages), timeout=20))


@inputs_of_each
def test_messages_of_flight_sql(client: flight.FlightClient, inputs: int) -> None:
    random = Random(SEED)
    handle = {
        "sql": "select n from t where n = ?",
        "namespace": "tenants/default/namespaces/default",
        "parameters": [["int", "1"], ["Decimal", "1.50"], ["bytes", "QQ=="]],
        "run": "00",
    }
    kinds = [
        *(pb.CommandGetTables, pb.CommandGetDbSchemas, pb.CommandGetSqlInfo, pb.CommandGetCatalogs),
        *(pb.CommandGetXdbcTypeInfo, pb.CommandGetPrimaryKeys, pb.CommandStatementQuery),
        *(pb.TicketStatementQuery, pb.CommandPreparedStatementQuery, pb.CommandStatementIngest),
        *(pb.ActionCreatePreparedStatementRequest, pb.ActionCancelQueryRequest),  # pyright: ignore[reportDeprecated]
        pb.ActionClosePreparedStatementRequest,
    ]
    for _ in range(inputs):
        handles = [mutated_json(random, handle, list(handle)) for _ in range(3)]
        texts = ["select 1", "select n from t where n = ?", "a", "%", "system", "t"]
        known: dict[str, Any] = {
            **dict.fromkeys(("statement_handle", "prepared_statement_handle"), handles),
            **dict.fromkeys(("query", "table", "schema", "catalog"), texts),
        }
        given = pack(made_up(random, random.choice(kinds), known))
        if random.random() < 0.1:
            given = mutated(random, given)
        match random.randrange(4):
            case 0:
                judge(partial(fetch, client, given), given)
            case 1:
                descriptor = flight.FlightDescriptor.for_command(given)
                judge(partial(client.get_flight_info, descriptor, OPTIONS), given)
            case 2:
                name = random.choice(list(SQL_ACTIONS))
                judge(partial(perform, client, name, given), given)
            case _:
                judge(partial(put, client, given, rows_of(random.randrange(3))), given)


def put(client: flight.FlightClient, command: bytes, rows: pa.RecordBatch) -> None:
    descriptor = flight.FlightDescriptor.for_command(command)
    writer, _ = open_put(client, descriptor, rows.schema, OPTIONS)
    with writer:
        writer.write_batch(rows)


@inputs_of_each
def test_bodies_of_http(client: flight.FlightClient, server: ServerProcess, inputs: int) -> None:
    del client
    random = Random(SEED)
    bodies = {
        "/v1/push": {"batches": [{"topic": "t", "data": [{"key": "k0", "n": 1}, {"key": "k1"}]}]},
        "/v1/fetch": {
            "entries": [{"topic": "t", "partition": "k0", "offset": 0, "max_messages": 1}],
            "timeout_ms": 1,
        },
        "/v1/topics": {"topic": "u", "schema": {"fields": [{"name": "n", "type": "int64"}]}},
    }
    paths = list(bodies)
    names = ["topic", "partition", "offset", "data", "batches", "entries", "filter", "format"]
    with httpx.Client(base_url=server.http, timeout=60) as http:
        for _ in range(inputs):
            path = random.choice(paths)
            given = mutated_json(random, bodies[path], names)
            headers = {"content-type": random.choice(("application/json", "text/plain", "x"))}
            answer = http.post(path, content=given, headers=headers)
            assert answer.status_code < 500, (answer.status_code, answer.text[:500], given[:2_000])


@inputs_of_each
def test_messages_of_metadata(tmp_path: Path, inputs: int) -> None:
    with metadata_process(tmp_path / "data") as process:
        modules = (
            *(admin_pb2, groups_pb2, maintenance_pb2, offset_registry_pb2, shards_pb2),
            tokens_pb2,
        )
        fuzz_services(process, modules, inputs)


@inputs_of_each
def test_messages_of_holds(tmp_path: Path, inputs: int) -> None:
    with hold_process(tmp_path / "data") as process:
        fuzz_services(process, (holds_pb2,), inputs)


def fuzz_services(process: MetadataProcess, modules: Any, inputs: int) -> None:
    random = Random(SEED)
    methods = [
        method
        for module in modules
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]
    known: dict[str, Any] = {
        "tenant": ["default"],
        "namespace": ["default"],
        "name": ["t", "a"],
        "topic": ["t"],
        "partition": ["null", '"a"', b"null"],
        "folio": ["18eab04753596d69-7d235ee30dded5f8.seg", "../../../../etc/passwd"],
        "rows": [1, 2**62, -1],
    }
    with grpc.insecure_channel(process.address) as channel:
        for _ in range(inputs):
            method = random.choice(methods)
            message = made_up(random, GetMessageClass(method.input_type), known)
            given = message.SerializeToString()
            if random.random() < 0.2:
                given = mutated(random, given)
            refused = refusal(channel, method, given)
            # gRPC itself says that of bytes that are no message.
            if refused is not None and "DecodeError" not in str(refused.details()):
                faults = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
                assert refused.code() not in faults, (method.full_name, refused, given[:500])
    faults = [line for line in process.stderr.splitlines() if "DecodeError" not in line]
    assert not any("Traceback" in line for line in faults), faults


def refusal(channel: grpc.Channel, method: Any, given: bytes) -> Any:
    """Call a method; return how it was refused, None where it was not."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    try:
        if method.client_streaming and method.server_streaming:
            list(channel.stream_stream(path)(iter([given]), timeout=CALL_SECONDS))
        elif method.server_streaming:
            list(channel.unary_stream(path)(given, timeout=CALL_SECONDS))
        else:
            assert not method.client_streaming
            channel.unary_unary(path)(given, timeout=CALL_SECONDS)
    except grpc.RpcError as error:
        return error
    return None


def test_the_same_inputs_each_time() -> None:
    """A fault that is found is found again."""
    value = {"a": [1, {"b": 2}]}
    first, second = (
        [mutated_json(Random(SEED), value, ["c"]) + mutated(Random(SEED), b"abc" * 9)] * 3
        for _ in range(2)
    )
    assert first == second
    assert json.loads(json.dumps(value)) == value
