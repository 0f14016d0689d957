"""HTTP against Flight: the same messages out and in, and what a thousand idle polls cost."""

import json
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection

import pyarrow as pa
import pyarrow.flight as flight

from benchmarks.harness import (
    Row,
    at_most,
    compare,
    cpu_seconds,
    create_topic,
    drain,
    median_seconds,
    push,
    status_kib,
    ticket,
)
from wings_core.json_rows import encode_rows
from wings_server.testing import ServerProcess, server_process

MESSAGES = 10_000
CALLS = 10
QUICK_CALLS = 100
POLLS = 1_000
WATCH_SECONDS = 5.0

NAMESPACE = "tenants/default/namespaces/default"


def run() -> Iterator[Row]:
    """Measure fetches and pushes, then idle polls."""
    with server_process() as server, server.client() as client:
        http = HTTPConnection(*_address(server))
        batch = _rows()
        for topic in ("read", "by-http", "by-flight", "quiet"):
            create_topic(client, topic, batch.schema)
        push(client, "read", batch, 1)
        yield compare(
            f"HTTP fetch of {MESSAGES:,} messages against Flight",
            "rows/s",
            0.0,  # No bound in the design: told, not held.
            lambda: MESSAGES / median_seconds(lambda: _fetch(http, "read", 0, 2), CALLS),
            lambda: MESSAGES / median_seconds(lambda: _drain(client), CALLS),
        )
        body = _push_body("by-http", batch)
        yield compare(
            f"HTTP push of {MESSAGES:,} messages against Flight",
            "rows/s",
            0.0,
            lambda: MESSAGES / median_seconds(lambda: _post(http, "/v1/push", body), CALLS),
            lambda: MESSAGES / median_seconds(lambda: push(client, "by-flight", batch, 1), CALLS),
        )
        yield from _idle(server, http)
        http.close()


def _rows() -> pa.RecordBatch:
    """Return messages of four columns, as the design's figure for JSON has them."""
    moments = pa.array(range(MESSAGES), pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    return pa.record_batch(
        {
            "id": pa.array(range(MESSAGES), pa.int64()),
            "delay": pa.array([n * 0.37 for n in range(MESSAGES)]),
            "origin": pa.array(["JFK", "LAX", "SFO", "ORD"] * (MESSAGES // 4)),
            "at": moments,
        }
    )


def _address(server: ServerProcess) -> tuple[str, int]:
    host, port = server.http.removeprefix("http://").split(":")
    return host, int(port)


def _post(http: HTTPConnection, path: str, body: bytes) -> bytes:
    http.request("POST", path, body)
    answer = http.getresponse()
    received = answer.read()
    assert answer.status == 200, received[:200]
    return received


def _fetch(http: HTTPConnection, topic: str, offset: int, timeout_ms: int) -> bytes:
    return _post(http, "/v1/fetch", _fetch_body(topic, offset, timeout_ms))


def _fetch_body(topic: str, offset: int, timeout_ms: int) -> bytes:
    topics = [{"topic": topic, "offset": offset}]
    body = {"namespace": NAMESPACE, "timeout_ms": timeout_ms, "topics": topics}
    return json.dumps(body).encode()


def _push_body(topic: str, batch: pa.RecordBatch) -> bytes:
    head = f'{{"namespace": "{NAMESPACE}", "batches": [{{"topic": "{topic}", "data": '
    return head.encode() + encode_rows(batch) + b"}]}"


def _drain(client: flight.FlightClient) -> None:
    assert drain(client, ticket(topic="read", offset=0, max_messages=MESSAGES)) == MESSAGES


def _quick_ms(http: HTTPConnection) -> float:
    """Return the median time of a fetch that need not wait, in ms."""
    return median_seconds(lambda: _fetch(http, "read", MESSAGES - 1, 2), QUICK_CALLS) * 1e3


def _waiting(http: HTTPConnection) -> float:
    http.request("GET", "/metrics")
    lines = http.getresponse().read().decode().splitlines()
    return next(
        float(line.split()[1]) for line in lines if line.startswith("wings_waiting_readers ")
    )


def _idle(server: ServerProcess, http: HTTPConnection) -> Iterator[Row]:
    alone = [_quick_ms(http) for _ in range(5)]
    threads = status_kib(server.pid, "Threads")
    memory_before = status_kib(server.pid, "RssAnon")
    body = _fetch_body("quiet", 0, 300_000)
    head = f"POST /v1/fetch HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n\r\n"
    with ExitStack() as polls:
        for _ in range(POLLS):
            poll = polls.enter_context(socket.create_connection(_address(server)))
            poll.sendall(head.encode() + body)
        while _waiting(http) < POLLS:
            time.sleep(0.1)
        memory = status_kib(server.pid, "RssAnon") - memory_before
        yield at_most(
            f"{POLLS:,} idle HTTP polls, memory each", "kB", 40.0, [memory * 1.024 / POLLS]
        )
        more = status_kib(server.pid, "Threads") - threads
        yield at_most(f"{POLLS:,} idle HTTP polls, threads more", "threads", 4.0, [float(more)])
        shares: list[float] = []
        for _ in range(3):
            before = cpu_seconds(server.pid)
            time.sleep(WATCH_SECONDS)
            shares.append((cpu_seconds(server.pid) - before) / WATCH_SECONDS * 100)
        yield at_most(f"{POLLS:,} idle HTTP polls, share of a core", "%", 5.0, shares)
        crowded = [_quick_ms(http) for _ in range(5)]
        # Not slowed: within half as much again, as both are a millisecond or two.
        bound = statistics.median(alone) * 1.5
        yield at_most(f"HTTP fetch beside {POLLS:,} idle polls, p50", "ms", bound, crowded)
