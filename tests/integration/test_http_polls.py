"""Long polls over HTTP: hundreds at once hold no thread, and whatever ends them frees them."""

import json
import socket
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import httpx
import pytest
from http_calls import create_topic, entry, error, fetch, fetch_body, push

from wings_core.limits import Limits
from wings_server.testing import RunningServer, running_server

SECONDS_MAX = 100.0

THREADS_MAX = 50
"""Those that all polls share, and others that a server starts only when it needs them."""


def request_of(topic: str, offset: int = 0, timeout_ms: int = 300_000) -> bytes:
    body = json.dumps(fetch_body(entry(topic, offset), timeout_ms=timeout_ms)).encode()
    head = f"POST /v1/fetch HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@contextmanager
def polls(server: RunningServer, topic: str, count: int) -> Generator[list[socket.socket]]:
    """Open connections that each send one long poll, and wait until all of them wait."""
    before = server.server.log.fetcher.waits.waiting
    host, port = server.http.removeprefix("http://").split(":")
    with ExitStack() as opened:
        connections = [
            opened.enter_context(socket.create_connection((host, int(port)))) for _ in range(count)
        ]
        for connection in connections:
            connection.settimeout(SECONDS_MAX)
            connection.sendall(request_of(topic))
        server.wait_for_waiting(before + count)
        yield connections


def read_answer(connection: socket.socket) -> tuple[int, object]:
    """Read one answer whose length stands in its head."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += piece_of(connection)
    head, body = received.split(b"\r\n\r\n", 1)
    (length,) = [
        int(line.split(b":")[1])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    ]
    while len(body) < length:
        body += piece_of(connection)
    return int(head.split()[1]), json.loads(body)


def piece_of(connection: socket.socket) -> bytes:
    piece = connection.recv(65_536)
    assert piece, "the connection was closed"
    return piece


@pytest.mark.parametrize("count", [300, pytest.param(1_000, marks=pytest.mark.soak)])
def test_many_polls_hold_no_thread_and_slow_no_call(
    server: RunningServer, http: httpx.Client, new_topic_id: str, count: int
) -> None:
    create_topic(http, new_topic_id, ["n: int64"])
    quick = new_topic_id + "-quick"
    create_topic(http, quick, ["n: int64"])
    push(http, {"topic": quick, "data": [{"n": 1}]})
    threads = threading.active_count()
    with polls(server, new_topic_id, count) as connections:
        assert threading.active_count() <= threads + THREADS_MAX
        for _ in range(20):  # Long before the polls end.
            assert len(fetch(http, entry(quick))[0]["messages"]) == 1
        push(http, {"topic": new_topic_id, "data": [{"n": 7}]})
        for connection in connections:
            status, answer = read_answer(connection)
            assert status == 200
            assert isinstance(answer, dict)
            assert answer["topics"][0]["messages"] == [{"n": 7}]
    server.wait_for_waiting(0)
    assert threading.active_count() <= threads + THREADS_MAX


def test_a_client_that_leaves_frees_its_wait(
    server: RunningServer, http: httpx.Client, new_topic_id: str
) -> None:
    create_topic(http, new_topic_id, ["n: int64"])
    with polls(server, new_topic_id, 20) as connections:
        for connection in connections[:15]:
            connection.close()
        server.wait_for_waiting(5)
        push(http, {"topic": new_topic_id, "data": [{"n": 1}]})
        assert [read_answer(connection)[0] for connection in connections[15:]] == [200] * 5
    server.wait_for_waiting(0)


def test_more_polls_than_may_wait_are_refused_for_now() -> None:
    with (
        running_server(limits=Limits(calls_waiting_max=2)) as server,
        httpx.Client(base_url=server.http) as http,
    ):
        create_topic(http, "t", ["n: int64"])
        with polls(server, "t", 2):
            body = fetch_body(entry("t"), timeout_ms=60_000)
            assert error(http.post("/v1/fetch", json=body)) == (429, "RESOURCE_EXHAUSTED")
        server.wait_for_waiting(0)
        fetch(http, entry("t"), timeout_ms=2)


def test_more_calls_than_may_run_are_refused_for_now() -> None:
    with (
        running_server(limits=Limits(calls_running_max=1)) as server,
        httpx.Client(base_url=server.http) as http,
    ):
        create_topic(http, "t", ["n: int64"])
        with polls(server, "t", 1):
            assert error(http.get("/v1/namespaces")) == (429, "RESOURCE_EXHAUSTED")
            assert http.get("/healthz").status_code == 200


@pytest.mark.parametrize("waiting", [1, 50])
def test_a_stop_ends_waiting_polls_with_unavailable(waiting: int) -> None:
    with running_server() as server:
        with httpx.Client(base_url=server.http) as http:
            create_topic(http, "t", ["n: int64"])
        with polls(server, "t", waiting) as connections:
            server.stop()
            for connection in connections:
                status, answer = read_answer(connection)
                assert status == 503
                assert isinstance(answer, dict)
                assert answer["code"] == "UNAVAILABLE"
                assert answer.keys() == {"message", "code"}
