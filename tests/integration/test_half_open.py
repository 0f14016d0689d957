"""Connections that are opened and not used: they end, and no other client waits for that."""

import json
import resource
import select
import socket
import ssl
import threading
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from flight_calls import act, create_topic, get, numbers, push
from pyarrow.flight import FlightClient
from typer.testing import CliRunner

from wings_core.limits import Limits
from wings_server import certificates
from wings_server.http.app import create_app
from wings_server.http.listener import HEAD_BYTES_MAX, HttpListener
from wings_server.settings import Address
from wings_server.testing import RunningServer, running_server, server_process
from wings_server.tls import Tls

SECONDS_MAX = 60.0
HALF = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Begun: "
WHOLE = HALF + b"and ended\r\n\r\n"

FILES = 256
"""That a process may open, in the test of many connections."""

MANY = 700


def connect(url: str) -> socket.socket:
    host, port = url.rpartition("/")[2].split(":")
    return socket.create_connection((host, int(port)), SECONDS_MAX)


def read_to_end(connection: socket.socket) -> bytes:
    """Read until the server ends the connection."""
    received = b""
    try:
        while piece := connection.recv(65_536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def ends(connection: socket.socket) -> bool:
    """Take what has come; return whether it is the end of the connection."""
    try:
        return connection.recv(65_536) == b""
    except ConnectionResetError:
        return True


def refusal(received: bytes) -> tuple[int, str, str]:
    """Return the status, code and message of an answer."""
    head, _, body = received.partition(b"\r\n\r\n")
    error = json.loads(body)
    return int(head.split()[1]), error["code"], error["message"]


def read_healthy(connection: socket.socket) -> None:
    """Read the answer of `WHOLE` from a connection that stays open."""
    received = b""
    while not received.endswith(b'{"status":"ok"}'):
        piece = connection.recv(65_536)
        assert piece, received
        received += piece
    assert received.startswith(b"HTTP/1.1 200 ")


@contextmanager
def many_half_open(url: str, count: int) -> Generator[list[socket.socket]]:
    """Open connections that each have sent half of a head."""
    with ExitStack() as opened:
        connections: list[socket.socket] = []
        for _ in range(count):
            connections.append(opened.enter_context(connect(url)))
            connections[-1].sendall(HALF)
        yield connections


def test_a_half_sent_head_is_refused_after_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = (408, "INVALID_ARGUMENT", "the head of the request was not complete after 0.2 s")
    with running_server() as server:
        with connect(server.http) as second:
            second.sendall(WHOLE)
            read_healthy(second)
            _bound_heads(monkeypatch, 0.2)
            second.sendall(HALF)
            assert refusal(read_to_end(second)) == expected
        with connect(server.http) as silent:
            assert read_to_end(silent) == b""
        received = b""
        while not received:  # Else half of it was not sent in time.
            with connect(server.http) as connection, suppress(ConnectionError):
                connection.sendall(HALF)
                received = read_to_end(connection)
        assert refusal(received) == expected


def test_a_head_that_comes_byte_by_byte_is_refused_after_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _bound_heads(monkeypatch, 0.5)
    received = b""
    with running_server() as server:
        while not received:  # Else its beginning was not sent in time.
            with connect(server.http) as connection, suppress(ConnectionError):
                connection.sendall(HALF)
                received = trickle(connection)
    assert received.startswith(b"HTTP/1.1 408 ")


def trickle(connection: socket.socket) -> bytes:
    """Send a byte now and then until something comes; returns that."""
    connection.settimeout(0.02)
    for _ in range(10_000):
        try:
            return connection.recv(65_536)
        except TimeoutError:
            with suppress(ConnectionError):  # It is being closed; what came before is read yet.
                connection.sendall(b"x")
    return b""


def test_an_idle_connection_is_closed_after_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wings_server.http.listener.KEEP_ALIVE_SECONDS", 0.2)
    with running_server() as server, connect(server.http) as connection:
        connection.sendall(WHOLE)
        read_healthy(connection)
        assert read_to_end(connection) == b""


def test_a_large_head_is_refused(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "wings_server.http.listener.REFUSED_SECONDS", SECONDS_MAX
    )  # However long the rest takes.
    room = HEAD_BYTES_MAX - len(HALF) - 4
    with connect(server.http) as connection:
        connection.sendall(HALF + b"x" * room + b"\r\n\r\n")
        read_healthy(connection)
        connection.sendall(HALF + b"x" * (room + 1) + b"\r\n\r\n")
        status, code, message = refusal(read_to_end(connection))
        assert (status, code) == (431, "INVALID_ARGUMENT")
        assert str(HEAD_BYTES_MAX) in message
    for size in (100_000, 1_000_000):
        with connect(server.http) as connection:
            connection.sendall(HALF + b"x" * size)
            assert refusal(read_to_end(connection))[0] == 431


def test_half_open_connections_make_room_for_others() -> None:
    limits = Limits(http_connections_max=5)
    with running_server(limits=limits) as server, many_half_open(server.http, 50) as connections:
        assert read_to_end(connections[0]) == b""
        for _ in range(20):
            assert httpx.get(f"{server.http}/readyz").status_code == 200
        act(server.client(), "list-topics")
        connections[-1].close()


def test_connections_beyond_the_bound_are_refused_where_all_are_busy() -> None:
    limits = Limits(http_connections_max=3)
    with (
        running_server(limits=limits) as server,
        ExitStack() as opened,
        httpx.Client(base_url=server.http) as waiting,
    ):
        create_topic(server.client(), "t", ["n: int64"])
        polls: Sequence[socket.socket] = [
            opened.enter_context(connect(server.http)) for _ in range(3)
        ]
        body = json.dumps(
            {
                "namespace": "tenants/default/namespaces/default",
                "topics": [{"topic": "t", "offset": 0}],
                "timeout_ms": 300_000,
            }
        ).encode()
        head = f"POST /v1/fetch HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        for poll in polls:
            poll.sendall(head.encode() + body)
        server.wait_for_waiting(3)
        for _ in range(5):
            refused = waiting.get("/healthz")
            assert refused.status_code == 429
            assert refused.json() == {
                "message": "3 connections are busy already",
                "code": "RESOURCE_EXHAUSTED",
            }
        polls[0].close()
        server.wait_for_waiting(2)
        assert waiting.get("/healthz").status_code == 200


def test_connections_of_flight_beyond_the_bound_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wings_server.flight.calls.CONNECTIONS_LOOK_SECONDS", 0.02)
    with (
        running_server(limits=Limits(flight_connections_max=4)) as server,
        ExitStack() as opened,
    ):
        used = server.client()
        create_topic(used, "t", ["n: int64"])
        polling = threading.Thread(
            target=lambda: get(used, topic="t", offset=0, timeout_ms=300_000), daemon=True
        )
        polling.start()
        server.wait_for_waiting(1)
        connections = [opened.enter_context(connect(server.flight)) for _ in range(50)]
        left = set(connections)
        while len(left) > 4:
            ready = select.select(list(left), [], [], SECONDS_MAX)[0]
            assert ready
            left -= {each for each in ready if ends(each)}
        for _ in range(10):
            with FlightClient(server.flight) as another:
                act(another, "list-topics")
        assert server.server.log.fetcher.waits.waiting == 1
        push(used, "t", numbers(1))
        polling.join(SECONDS_MAX)
        assert not polling.is_alive()


def test_many_half_open_connections_leave_a_process_its_files(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * MANY:
        pytest.skip(f"this process may open {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * MANY), hard))
    try:
        with (
            server_process(tmp_path / "data", open_files_max=FILES) as server,
            many_half_open(server.http, MANY) as half,
            many_half_open(server.flight, FILES) as rude,
        ):
            for connection in half[: MANY - FILES]:
                read_to_end(connection)
            for number in range(10):
                client = server.client()
                create_topic(client, f"topic-{number}", ["n: int64"])
                assert httpx.get(f"{server.http}/readyz").status_code == 200
            assert len(act(server.client(), "list-topics")) == 10
            rude[0].close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_half_done_handshake_ends_after_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _bound_heads(monkeypatch, 0.3)
    made = CliRunner().invoke(certificates.app, ["dev", "--out", str(tmp_path)])
    assert made.exit_code == 0, made.output
    tls = Tls(tmp_path / "server.pem", tmp_path / "server-key.pem", None)
    listener = HttpListener(create_app(lambda: True), Address("127.0.0.1", 0), tls, 3)
    try:
        with ExitStack() as opened:
            silent = [opened.enter_context(connect(f"http://{listener.address}")) for _ in range(9)]
            for connection in silent:
                assert read_to_end(connection) == b""
            context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
            url = f"https://{listener.address}/healthz"
            answer = None
            while answer is None:  # Else its own handshake took too long.
                with suppress(httpx.TransportError):
                    answer = httpx.get(url, verify=context)
            assert answer.status_code == 200
    finally:
        listener.stop()


def _bound_heads(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Bound how long the head of a request may take to come."""
    monkeypatch.setattr("wings_server.http.listener.HEAD_SECONDS", seconds)
