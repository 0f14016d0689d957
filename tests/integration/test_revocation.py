"""Revocation and expiry: open streams and waiting calls end within 5 s."""

import json
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, cast

import httpx
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import act, create_topic, ticket_of
from http_calls import NAMESPACE
from share_calls import ShareStreamCall
from token_calls import ROOT, bearer, client_of, new_token

from wings_server.testing import (
    RunningServer,
    ServerProcess,
    metadata_process,
    running_server,
    server_process,
)

SECONDS_MAX = 5.0 + 15.0
"""Within which a revocation holds everywhere, and what a busy machine may add."""

EXPIRES_SECONDS = 5

_numbers = count()
SCHEMA = pa.schema([("n", pa.int64())])

Server = RunningServer | ServerProcess


@pytest.fixture(scope="module")
def server() -> Generator[RunningServer]:
    with running_server(root_token=ROOT) as running:
        with client_of(running.flight, ROOT) as root:
            create_topic(root, "topic", ["n: int64"])
            create_topic(root, "pushed", ["n: int64"])
            act(root, "share-create", topic="topic", group="g")
        yield running


def read(server: Server, token: str, **keys: object) -> None:
    with client_of(server.flight, token) as client:
        client.do_get(ticket_of(topic="topic", **keys)).read_all()


def follow(server: Server, token: str) -> None:
    read(server, token, kind="follow", offset="latest")


def fetch(server: Server, token: str) -> None:
    read(server, token, offset="latest", timeout_ms=60_000)


def acquire(server: Server, token: str) -> None:
    read(server, token, kind="acquire", group="g", member="m", timeout_ms=60_000)


def push(server: Server, token: str) -> None:
    """Push until a batch is refused, then end the stream."""
    descriptor = flight.FlightDescriptor.for_path("pushed")
    with client_of(server.flight, token) as client:
        writer, reader = cast("Any", client).do_put(descriptor, SCHEMA)
        answer = {}
        while "error" not in answer:
            writer.write_batch(pa.record_batch({"n": [1]}, schema=SCHEMA))
            answer = json.loads(reader.read().to_pybytes())
            time.sleep(0.02)
        assert answer["error"]["code"] == "UNAUTHENTICATED"
        writer.close()


def http_fetch(server: Server, token: str) -> None:
    topics = [{"topic": "topic", "offset": 1 << 40}]
    body = {"namespace": NAMESPACE, "topics": topics, "timeout_ms": 60_000}
    answer = httpx.post(f"{server.http}/v1/fetch", json=body, headers=bearer(token), timeout=60)
    assert answer.status_code == 401, answer.text
    raise flight.FlightUnauthenticatedError("", json.dumps(answer.json()).encode())


def http_acquire(server: Server, token: str) -> None:
    body = {"topic": "topic", "group": "g", "member": "m", "timeout_ms": 60_000}
    answer = httpx.post(
        f"{server.http}/v1/share/acquire", json=body, headers=bearer(token), timeout=60
    )
    assert answer.status_code == 401, answer.text
    raise flight.FlightUnauthenticatedError("", json.dumps(answer.json()).encode())


@contextmanager
def ends_soon(call: Callable[[], None]) -> Generator[None]:
    """Begin a call, and check that it ends with UNAUTHENTICATED soon after the block."""
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(call)
        time.sleep(0.5)
        assert not running.done(), running.exception()
        yield
        begun = time.monotonic()
        error = running.exception(30)
        assert time.monotonic() - begun < SECONDS_MAX
        assert isinstance(error, flight.FlightUnauthenticatedError)
        assert json.loads(error.extra_info)["code"] == "UNAUTHENTICATED"


ENDLESS = [follow, fetch, acquire, push, http_fetch, http_acquire]


@pytest.mark.parametrize("call", ENDLESS)
def test_a_revocation_ends_what_is_open(
    server: RunningServer, call: Callable[[Server, str], None]
) -> None:
    name = f"revoked-{next(_numbers)}"
    with client_of(server.flight, ROOT) as root:
        token = new_token(root, name, "read=*", "write=*", "share=*")
        with ends_soon(lambda: call(server, token)):
            act(root, "token-revoke", name=name)


@pytest.mark.parametrize("call", [follow, push, http_fetch])
def test_an_expiry_ends_what_is_open(
    server: RunningServer, call: Callable[[Server, str], None]
) -> None:
    name = f"expiring-{next(_numbers)}"
    with client_of(server.flight, ROOT) as root:
        begun = time.monotonic()
        expires = f"{EXPIRES_SECONDS}s"
        token = new_token(root, name, "read=*", "write=*", "share=*", expires=expires)
    with pytest.raises(flight.FlightUnauthenticatedError) as ended:
        call(server, token)
    assert EXPIRES_SECONDS - 1 < time.monotonic() - begun < EXPIRES_SECONDS + SECONDS_MAX
    assert json.loads(ended.value.extra_info)["code"] == "UNAUTHENTICATED"


def test_a_revocation_ends_a_share_stream_in_band(server: RunningServer) -> None:
    with client_of(server.flight, ROOT) as root:
        token = new_token(root, "worker", "share=*")
        with client_of(server.flight, token) as client:
            stream = ShareStreamCall(client, "topic", group="g")
            stream.acknowledge()
            while not stream.answers:  # It is open then, and not refused as it begins.
                stream.read()
            act(root, "token-revoke", name="worker")
            begun = time.monotonic()
            assert stream.ended()["end"] == "UNAUTHENTICATED"
            assert time.monotonic() - begun < SECONDS_MAX


def test_a_stream_of_another_token_goes_on(server: RunningServer) -> None:
    with client_of(server.flight, ROOT) as root:
        new_token(root, "ended", "read=*")
        kept = new_token(root, "kept", "read=*")
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(
                read, server, kept, kind="follow", offset="latest", timeout_ms=2_500
            )
            time.sleep(0.2)
            act(root, "token-revoke", name="ended")
            running.result(30)


def test_a_revocation_at_one_node_holds_at_the_others(tmp_path: Path) -> None:
    environment = {"WINGS_ROOT_TOKEN": ROOT}
    with (
        metadata_process(tmp_path / "metadata") as metadata,
        server_process(
            tmp_path / "log", flags=("--metadata", metadata.address), environment=environment
        ) as first,
        server_process(
            tmp_path / "log", flags=("--metadata", metadata.address), environment=environment
        ) as second,
        client_of(first.flight, ROOT) as root,
    ):
        create_topic(root, "topic", ["n: int64"])
        token = new_token(root, "reader", "read=*")
        with ends_soon(lambda: follow(second, token)):
            act(root, "token-revoke", name="reader")
        with (
            client_of(second.flight, token) as client,
            pytest.raises(flight.FlightUnauthenticatedError),
        ):
            act(client, "list-topics")
