"""A client that is in the middle of a call of each kind, all at once, until it is killed.

    python vanishing_client.py FLIGHT HTTP

It prints one line once it is.
"""

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.flight as flight
from flight_calls import Stream, act, ticket_of
from http_calls import NAMESPACE
from share_calls import Member, ShareStreamCall

LARGE_ROWS = 200_000
LONG_MS = 300_000

_kept: list[object] = []
"""What must not be freed, as that would end a call in order."""


def numbers(rows: int) -> pa.RecordBatch:
    """Return a batch of one int64 column `n`."""
    return pa.record_batch({"n": pa.array(range(rows), pa.int64())})


class Calls:
    """The calls; each returns once it is in its middle.

    Args:
        flight_url: Of the server.
        http: Its `HOST:PORT`.
    """

    def __init__(self, flight_url: str, http: str) -> None:
        self.url = flight_url
        self.http = http

    def all(self) -> Sequence[Callable[[], None]]:
        """Return each call."""
        return (
            *(self.idle_push, self.unread_push, self.large_pushes, self.staged_push),
            *(self.waiting_fetch, self.follow, self.unread_scan, self.actions),
            *(self.waiting_acquire, self.share_stream),
            *(self.http_poll, self.half_http_push, self.half_flight_connection),
        )

    def idle_push(self) -> None:
        """Push a batch, and keep the stream open."""
        self._stream("pushed").push(numbers(1))

    def unread_push(self) -> None:
        """Push batches and read no answer."""
        stream = self._stream("pushed")
        for _ in range(1_000):
            stream.send(numbers(1))

    def large_pushes(self) -> None:
        """Push large batches without an end: it is killed within one."""
        stream = self._stream("pushed")
        stream.push(numbers(LARGE_ROWS))

        def go_on() -> None:
            while True:
                stream.push(numbers(LARGE_ROWS))

        threading.Thread(target=go_on, daemon=True).start()

    def staged_push(self) -> None:
        """Stage a batch, and keep the stream open."""
        self._stream("pushed", stage="vanishing").push(numbers(1))

    def waiting_fetch(self) -> None:
        """Wait for messages."""
        self._read(kind="fetch", topic="silent", offset=0, timeout_ms=LONG_MS)

    def follow(self) -> None:
        """Follow a topic that grows."""
        reader = self._read(kind="follow", topic="pushed", offset="earliest")
        reader.read_chunk()

    def unread_scan(self) -> None:
        """Read the beginning of much."""
        self._read(kind="scan", topic="large").read_chunk()

    def actions(self) -> None:
        """Call actions without an end."""
        client = self._client()
        act(client, "list-topics")

        def go_on() -> None:
            while True:
                act(client, "partition-states", topic="large")

        threading.Thread(target=go_on, daemon=True).start()

    def waiting_acquire(self) -> None:
        """Wait for messages of a share group."""
        member = Member(self._client(), "silent")
        threading.Thread(target=lambda: member.acquire(timeout_ms=LONG_MS), daemon=True).start()

    def share_stream(self) -> None:
        """Hold messages of a share group on a stream."""
        call = ShareStreamCall(self._client(), "shared")
        _kept.append(call)
        call.delivery()

    def http_poll(self) -> None:
        """Wait for messages over HTTP."""
        body = {
            "namespace": NAMESPACE,
            "timeout_ms": LONG_MS,
            "topics": [{"topic": "silent", "offset": 0}],
        }
        text = json.dumps(body)
        self._http(f"POST /v1/fetch HTTP/1.1\r\nContent-Length: {len(text)}", text)

    def half_http_push(self) -> None:
        """Send a part of a body."""
        self._http("POST /v1/push HTTP/1.1\r\nContent-Length: 1000000", '{"namespace": "')

    def half_flight_connection(self) -> None:
        """Open a connection to Flight without a call."""
        host, port = self.url.rpartition("/")[2].split(":")
        connection = socket.create_connection((host, int(port)))
        _kept.append(connection)
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM")

    def _client(self) -> flight.FlightClient:
        client = flight.FlightClient(self.url)
        _kept.append(client)
        return client

    def _stream(self, topic: str, **command: str) -> Stream:
        stream = Stream(self._client(), numbers(0).schema, topic, **command)
        _kept.append(stream)
        return stream

    def _read(self, **ticket: object) -> flight.FlightStreamReader:
        reader = self._client().do_get(ticket_of(**ticket))
        _kept.append(reader)
        return reader

    def _http(self, head: str, body: str) -> None:
        host, port = self.http.split(":")
        connection = socket.create_connection((host, int(port)))
        _kept.append(connection)
        text = f"{head}\r\nHost: localhost\r\nContent-Type: application/json\r\n\r\n{body}"
        connection.sendall(text.encode())


if __name__ == "__main__":
    for _call in Calls(sys.argv[1], sys.argv[2]).all():
        _call()
    sys.stdout.write("in the middle\n")
    sys.stdout.flush()
    while True:
        time.sleep(60)
