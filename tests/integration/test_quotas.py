"""Quotas of a token: a refusal names the quota; what a call used is released however it ends."""

import json
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import count
from typing import Any, cast

import httpx
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import act, create_topic, get, ticket_of
from share_calls import ShareStreamCall
from test_client_token import wings
from token_calls import ROOT, bearer, client_of, new_token

import wings_client
from wings_client import ResourceExhausted
from wings_core.security.quotas import Usage
from wings_core.times import Deadline
from wings_server.testing import RunningServer, running_server

SCHEMA = pa.schema([("n", pa.int64())])
KEYED = pa.schema([("k", pa.string())])
NAMESPACE = "tenants/default/namespaces/default"
EVERYTHING = ("read=*", "write=*", "share=*")
LARGE_ROWS = 200_000
WAIT_SECONDS = 60.0
"""Far beyond what any wait takes, on a busy machine too."""

_numbers = count()


@pytest.fixture(scope="module")
def server() -> Generator[RunningServer]:
    with running_server(root_token=ROOT) as running:
        with client_of(running.flight, ROOT) as root:
            create_topic(root, "topic", ["n: int64"])
            create_topic(root, "large", ["n: int64"])
            act(root, "share-create", topic="topic", group="g")
        with wings_client.connect(running.flight, token=ROOT) as client:
            client.push("large", pa.record_batch({"n": range(LARGE_ROWS)}, schema=SCHEMA))
        yield running


@pytest.fixture
def root(server: RunningServer) -> Generator[flight.FlightClient]:
    with client_of(server.flight, ROOT) as client:
        yield client


def bounded(root: flight.FlightClient, *grants: str, **quotas: int) -> str:
    return new_token(root, f"team-{next(_numbers)}", *(grants or EVERYTHING), quotas=quotas)


def usage_of(server: RunningServer, token: str) -> Usage:
    """What a token's principal uses."""
    usage = server.server.http_service.gate.principal(token, "test").usage
    assert usage is not None
    return usage


def wait_for(used: Callable[[], int], expected: int) -> None:
    """Wait until a quota's use is that expected."""
    deadline = Deadline.after(WAIT_SECONDS)
    pause = threading.Event()  # Never set.
    while used() != expected:
        assert not deadline.passed, f"{used()} are in use after {WAIT_SECONDS} s, not {expected}"
        pause.wait(0.002)


@contextmanager
def refused(quota: str) -> Generator[None]:
    with pytest.raises(flight.FlightUnavailableError) as error:
        yield
    told = json.loads(error.value.extra_info)
    assert (told["code"], told["quota"]) == ("RESOURCE_EXHAUSTED", quota)
    assert f"the quota '{quota}' of team-" in told["message"]


def follow(client: flight.FlightClient) -> flight.FlightStreamReader:
    return client.do_get(ticket_of(kind="follow", topic="topic", offset="latest"))


def put(client: flight.FlightClient, topic: str, *batches: pa.RecordBatch, **keys: Any) -> None:
    """Push batches by one stream, and wait for it to end."""
    command = json.dumps({"topic": topic, **keys}).encode()
    descriptor = flight.FlightDescriptor.for_command(command)
    writer, _ = cast("Any", client).do_put(descriptor, batches[0].schema)
    with writer:
        for batch in batches:
            writer.write_batch(batch)


def one(schema: pa.Schema = SCHEMA, value: object = 1) -> pa.RecordBatch:
    return pa.record_batch([pa.array([value], schema.field(0).type)], schema=schema)


def test_calls_beyond_the_quota_are_refused_on_every_face(
    server: RunningServer, root: flight.FlightClient
) -> None:
    token = bounded(root, "admin=*", calls=1)
    usage = usage_of(server, token)
    with client_of(server.flight, token) as client:
        reader = follow(client)
        wait_for(lambda: usage.calls, 1)
        for call in (
            lambda: act(client, "list-topics"),
            lambda: get(client, topic="topic", offset=0, timeout_ms=2),
            lambda: put(client, "topic", one()),
            lambda: client.get_flight_info(flight.FlightDescriptor.for_path("topic")),
            lambda: list(client.list_flights()),
        ):
            with refused("calls"):
                call()
        answer = httpx.get(f"{server.http}/v1/namespaces", headers=bearer(token))
        assert (answer.status_code, answer.json()["code"]) == (429, "RESOURCE_EXHAUSTED")
        assert "the quota 'calls' of team-" in answer.json()["message"]
        assert act(root, "list-topics")
        reader.cancel()
        wait_for(lambda: usage.calls, 0)
        assert act(client, "list-topics")
    assert (usage.calls, usage.bytes) == (0, 0)


def test_a_call_is_released_however_it_ends(
    server: RunningServer, root: flight.FlightClient
) -> None:
    token = bounded(root, "read=topic", "write=topic", calls=1)
    usage = usage_of(server, token)
    with client_of(server.flight, token) as client:
        put(client, "topic", one(), one())
        assert get(client, topic="topic", offset=0).table.num_rows
        with pytest.raises(flight.FlightServerError):
            get(client, topic="topic", offset=0, columns=["nothing"])
        with pytest.raises(flight.FlightServerError):
            put(client, "topic", one(KEYED, "k"))
        for call in (
            lambda: get(client, topic="others", offset=0),
            lambda: put(client, "others", one()),
            lambda: act(client, "token-list"),
        ):
            with pytest.raises(flight.FlightUnauthorizedError):
                call()
        wait_for(lambda: usage.calls, 0)
    # A client that goes away in the middle: of a stream that it reads, and of one that it writes.
    with client_of(server.flight, token) as leaving:
        reading = follow(leaving)  # Its call ends as soon as it is dropped.
        wait_for(lambda: usage.calls, 1)
        del reading
    wait_for(lambda: usage.calls, 0)
    with client_of(server.flight, token) as leaving:
        writer, _ = leaving.do_put(flight.FlightDescriptor.for_path("topic"), SCHEMA)
        writer.write_batch(one())
        wait_for(lambda: usage.calls, 1)
        del writer
    wait_for(lambda: usage.calls, 0)
    assert usage.bytes == 0


def test_a_long_poll_of_http_counts_until_its_client_goes(
    server: RunningServer, root: flight.FlightClient
) -> None:
    token = bounded(root, calls=1)
    usage = usage_of(server, token)
    body = {
        "namespace": NAMESPACE,
        "timeout_ms": 60_000,
        "topics": [{"topic": "topic", "offset": 1 << 40}],
    }
    head = (
        f"POST /v1/fetch HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n"
        f"content-length: {len(json.dumps(body))}\r\n\r\n"
    )
    host, port = server.http.removeprefix("http://").rsplit(":", 1)
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + json.dumps(body).encode())
        wait_for(lambda: usage.calls, 1)
        with client_of(server.flight, token) as client, refused("calls"):
            act(client, "list-topics")
    wait_for(lambda: usage.calls, 0)
    assert usage.bytes == 0


def test_a_share_stream_is_a_call(server: RunningServer, root: flight.FlightClient) -> None:
    token = bounded(root, calls=1)
    usage = usage_of(server, token)
    with client_of(server.flight, token) as client:
        stream = ShareStreamCall(client, "topic", group="g")
        wait_for(lambda: usage.calls, 1)
        with refused("calls"):
            act(client, "list-topics")
        stream.close()
        wait_for(lambda: usage.calls, 0)


@contextmanager
def half_a_push(server: RunningServer, token: str, sent: int) -> Generator[None]:
    """Send the beginning of the body of a push, for as long as the block lasts."""
    head = (
        f"POST /v1/push HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n"
        f"content-length: {2 * sent}\r\n\r\n"
    )
    host, port = server.http.removeprefix("http://").rsplit(":", 1)
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + b" " * sent)
        yield


def test_bytes_beyond_the_quota_are_refused_on_every_face(
    server: RunningServer, root: flight.FlightClient
) -> None:
    token = bounded(root, bytes=1_000)
    usage = usage_of(server, token)
    with client_of(server.flight, token) as client:
        with half_a_push(server, token, 2_000):
            wait_for(lambda: usage.bytes, 2_000)
            with refused("bytes"):
                get(client, topic="large", offset=0)
            with refused("bytes"):
                put(client, "topic", one())
            push = {"namespace": NAMESPACE, "batches": [{"topic": "topic", "data": [{"n": 1}]}]}
            answer = httpx.post(f"{server.http}/v1/push", headers=bearer(token), json=push)
            assert (answer.status_code, answer.json()["code"]) == (429, "RESOURCE_EXHAUSTED")
            assert "the quota 'bytes' of team-" in answer.json()["message"]
        wait_for(lambda: usage.bytes, 0)
        # By itself, a call may exceed it.
        assert get(client, topic="large", offset=0, max_messages=5_000).table.num_rows == 5_000
    wait_for(lambda: usage.calls, 0)
    assert usage.bytes == 0


def test_a_stream_of_pushes_waits_for_its_own_bytes(
    server: RunningServer, root: flight.FlightClient
) -> None:
    token = bounded(root, bytes=100)
    usage = usage_of(server, token)
    before = get(root, topic="topic", offset="latest", timeout_ms=2).log_end_offset
    batch = pa.record_batch({"n": range(10)}, schema=SCHEMA)
    with client_of(server.flight, token) as client:
        put(client, "topic", *[batch] * 200)
    assert get(root, topic="topic", offset="latest", timeout_ms=2).log_end_offset == before + 2_000
    wait_for(lambda: usage.calls, 0)
    assert usage.bytes == 0


def test_topics_that_a_team_may_administer_count() -> None:
    with running_server(root_token=ROOT) as own, client_of(own.flight, ROOT) as operator:
        token = new_token(
            operator, "team-a", "admin=a-*", "write=a-*", "share=a-*", quotas={"topics": 2}
        )
        create_topic(operator, "b-one", ["n: int64"])
        create_topic(operator, "a-one", ["n: int64"])
        with client_of(own.flight, token) as client:
            create_topic(client, "a-two", ["n: int64"])
            with refused("topics"):
                create_topic(client, "a-three", ["n: int64"])
            fields = {"fields": [{"name": "n", "type": "int64"}]}
            act(client, "create-topic", topic="a-two", schema=fields, if_not_exists=True)
            with refused("topics"):
                act(client, "share-create", topic="a-one", group="g",
                    config={"dlq_topic": f"{NAMESPACE}/topics/a-dead"})  # fmt: skip
            path = f"{own.http}/v1/{NAMESPACE}/topics"
            body = {"topic": "a-three", "schema": fields}
            answer = httpx.post(path, headers=bearer(token), json=body)
            assert (answer.status_code, answer.json()["code"]) == (429, "RESOURCE_EXHAUSTED")
            act(client, "delete-topic", topic="a-one")
            create_topic(client, "a-three", ["n: int64"])
            act(operator, "token-alter", name="team-a", quotas={"topics": 3})
            create_topic(client, "a-four", ["n: int64"])


def test_partitions_that_a_team_may_write_to_count(
    server: RunningServer, root: flight.FlightClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wings_server.quotas.LOOK_SECONDS", 0)
    monkeypatch.setattr("wings_server.quotas.LOOK_SHARE", 0)
    create_topic(root, "p-one", ["k: string"], "k")
    create_topic(root, "p-two", ["k: string"], "k")
    put(root, "p-two", one(KEYED, "others"))
    token = bounded(root, "write=p-*", "write=topic", partitions=3)
    with client_of(server.flight, token) as client:
        put(client, "p-one", one(KEYED, "a"), one(KEYED, "b"), one(KEYED, "a"))
        for keys in ({}, {"stage": "s"}):
            with refused("partitions"):
                put(client, "p-one", one(KEYED, "c"), **keys)
        push = {
            "namespace": NAMESPACE,
            "batches": [{"topic": "p-one", "data": [{"k": key}]} for key in ("a", "c")],
        }
        answer = httpx.post(f"{server.http}/v1/push", headers=bearer(token), json=push)
        done, not_done = answer.json()["batches"]
        assert done["_tag"] == "success"
        assert (not_done["_tag"], not_done["code"]) == ("error", "RESOURCE_EXHAUSTED")
        assert "the quota 'partitions' of team-" in not_done["message"]
        put(client, "topic", one())  # It has no key.
        act(root, "delete-topic", topic="p-two")
        put(client, "p-one", one(KEYED, "c"))


def test_the_client_tells_which_quota(server: RunningServer, root: flight.FlightClient) -> None:
    create_topic(root, "q", ["k: string"], "k")
    token = bounded(root, "write=q", partitions=0)
    with (
        wings_client.connect(server.flight, token=token) as client,
        pytest.raises(ResourceExhausted, match="'partitions'") as error,
    ):
        client.push("q", {"k": ["a"]})
    assert (error.value.quota, error.value.most) == ("partitions", 0)


def test_quotas_are_set_and_shown_by_the_command(server: RunningServer) -> None:
    environment = {"WINGS_TOKEN": ROOT}
    created = wings(
        server, "token", "create", "cli", "--grant", "read=*", "--quota", "calls=5",
        "--quota", "topics=0", **environment,
    )  # fmt: skip
    assert created.returncode == 0
    listed = wings(server, "token", "list", **environment).stdout
    assert "calls=5 topics=0" in listed
    altered = wings(server, "token", "alter", "cli", "--quota", "bytes=7", **environment)
    assert altered.stderr == "cli: bytes=7\n"
    assert "calls=5" not in wings(server, "token", "list", **environment).stdout
    assert "no quotas" in wings(server, "token", "alter", "cli", **environment).stderr
    bad = wings(server, "token", "alter", "cli", "--quota", "rows=7", **environment)
    assert bad.returncode != 0
    assert "'rows=7' is not a quota" in bad.stderr
