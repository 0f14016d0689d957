"""Kafka's clients that read nothing, or are many: bounded together, and not held for long."""

import logging
import resource
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from test_kafka import LATER, Rdkafka, connected, fetch_request, head, text

from wings_core.limits import MIB, Limits
from wings_server.kafka import wire
from wings_server.testing import RunningServer, running_server, server_process

STORED_BYTES = 24 * MIB
"""More than sockets take that nobody reads."""

CONNECTION_BYTES_MAX = 32 * 1024
"""Most memory of a connection of thousands, that polls or not."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    """A server with a topic `large`, and room for one response that is not read."""
    limits = Limits(http_pending_bytes_max=MIB)
    with running_server(tmp_path, kafka=True, limits=limits) as running:
        rdkafka = Rdkafka(running.kafka)
        rdkafka.create("large")
        big: dict[str, Any] = {"message.max.bytes": 5_000_000}
        rdkafka.produce("large", [bytes(MIB)] * (STORED_BYTES // MIB), **big)
        yield running


def asking(server: RunningServer) -> socket.socket:
    """Return a connection that asks for all that there is, and takes little of it unread."""
    host, port = server.kafka.split(":")
    stream = socket.socket()
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    stream.settimeout(LATER)
    stream.connect((host, int(port)))
    bounds = struct.pack(">iiiib", -1, 0, 1, 2 * STORED_BYTES, 0)
    partition = struct.pack(">iiqi", 1, 0, 0, 2 * STORED_BYTES)
    frame = head(1, 4) + bounds + struct.pack(">i", 1) + text("large") + partition
    stream.sendall(struct.pack(">i", len(frame)) + frame)
    return stream


def resident_bytes(pid: int) -> int:
    """Return the memory that a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def length_of(stream: socket.socket) -> int:
    """Read the length of the response."""
    return struct.unpack(">i", stream.recv(4))[0]


def read(stream: socket.socket, size: int, pause: float = 0.0) -> int:
    """Read so many bytes, a piece at a time; returns how many there are."""
    left = size
    while left and (piece := stream.recv(min(left, MIB // 4))):
        left -= len(piece)
        time.sleep(pause)
    return size - left


def test_a_response_waits_until_others_are_read(server: RunningServer) -> None:
    with asking(server) as first:
        length = length_of(first)
        with asking(server) as second:
            second.settimeout(0.5)
            with pytest.raises(TimeoutError):
                second.recv(1)
            assert read(first, length) == length
            second.settimeout(LATER)
            assert length_of(second) == length


def test_a_client_may_read_slowly(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "FRAME_SECONDS_MAX", 1.0)
    with asking(server) as stream:
        length = length_of(stream)
        begin = time.monotonic()
        assert read(stream, length, pause=0.008) == length
        assert time.monotonic() - begin > 1.5


def test_a_client_that_reads_nothing_loses_its_connection(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wire, "FRAME_SECONDS_MAX", 0.5)
    end = time.monotonic() + LATER
    with caplog.at_level(logging.INFO), asking(server) as stream:
        length = length_of(stream)
        while "reads too little" not in caplog.text:
            assert time.monotonic() < end
            time.sleep(0.02)
        assert read(stream, length) < length


@pytest.mark.soak
def test_thousands_of_connections_take_little_memory_and_hear_of_records() -> None:
    """Of 5,000 connections, or as many as a listener takes here, 1,000 poll."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    count, polling = min(5_000, soft // 4), 1_000
    with server_process(flags=["--kafka", "127.0.0.1:0"]) as server, ExitStack() as opened:
        rdkafka = Rdkafka(server.kafka)
        rdkafka.create("idle")
        rdkafka.create("polled")
        before = resident_bytes(server.pid)
        connections = [opened.enter_context(connected(server.kafka)) for _ in range(count - 20)]
        for _ in range(3):
            for connection in connections[:polling]:
                connection.send(fetch_request("polled", 500))
            for connection in connections[:polling]:
                assert b"late" not in (connection.receive() or b"late")
        assert resident_bytes(server.pid) - before < count * CONNECTION_BYTES_MAX
        for connection in connections[:polling]:
            connection.send(fetch_request("polled", 60_000))
        rdkafka.produce("polled", [b"late"])
        for connection in connections[:polling]:
            assert b"late" in (connection.receive() or b"")
        for connection in connections[polling:]:
            connection.send(fetch_request("idle", 0))
        for connection in connections[polling:]:
            assert connection.receive()
