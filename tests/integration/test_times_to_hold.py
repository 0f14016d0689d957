"""How soon nodes and processes hear of each other's commits and ends: waits up to each bound.

What a bound is for is waited for up to it: a busy machine makes these slow, and not wrong.
"""

import os
import random
import signal
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pyarrow.flight as flight
import pytest
from fix_calls import Calls
from fix_postgres import PostgresServer
from flight_calls import act, create_topic, get, numbers, push
from server_processes import SECONDS, children, is_running, serves, serving
from stateless_nodes import Nodes
from waiting import until

import wings_client
from wings_core.metadata.postgres import listener
from wings_server.testing import ServerProcess, node_process, server_process

LONG_MS = 120_000
BUSY_SECONDS = 30.0
"""What a busy machine may add to any of them."""

UNTOLD_SECONDS = 10.0 + BUSY_SECONDS
"""In which a poll finds what its node was not told of."""

LISTED_SECONDS = 15.0 + BUSY_SECONDS
"""In which a node that ended without a word is off the lists."""

ORPHANS_SECONDS = 10.0 + BUSY_SECONDS
"""In which processes end whose parent was killed."""

PRODUCERS = 3
IN_FLIGHT = 32
RETRY = wings_client.Retry(attempts=1_000, delay_max=0.2, reconnect_seconds=120.0)


def _polled_from_another_node(nodes: Nodes, seconds: float) -> None:
    """Poll at one node, push at another; the poll has the rows within so many seconds."""
    here, there = nodes.start().client(), nodes.start().client()
    create_topic(here, "t", ["n: int64"])
    with ThreadPoolExecutor(1) as threads:
        polled = threads.submit(get, there, topic="t", offset=0, timeout_ms=LONG_MS)
        while not polled.running():
            time.sleep(0.01)
        push(here, "t", numbers(1))
        answer = polled.result(seconds)
    assert (answer.column("n"), answer.end) == ([1], "min_messages")


def test_a_push_on_one_node_wakes_a_poll_on_another_before_it_looks(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_at_nothing(*_: object) -> None: ...

    monkeypatch.setattr(listener.Listener, "_look", look_at_nothing)
    with ExitStack() as stack:
        nodes = Nodes(postgres.new_database(), tmp_path / "objects", stack)
        _polled_from_another_node(nodes, SECONDS)


def test_a_push_whose_notification_is_lost_wakes_a_poll_on_another_node(
    postgres: PostgresServer, tmp_path: Path, calls: Calls
) -> None:
    calls.change(listener, "encode_notification", lambda *_: [])
    with ExitStack() as stack:
        nodes = Nodes(postgres.new_database(), tmp_path / "objects", stack)
        _polled_from_another_node(nodes, UNTOLD_SECONDS)


def _locations(client: flight.FlightClient, topic: str) -> set[str]:
    (endpoint,) = client.get_flight_info(flight.FlightDescriptor.for_path(topic)).endpoints
    return {each.uri.decode() for each in endpoint.locations}


def test_a_node_that_was_killed_is_off_the_lists(postgres: PostgresServer, tmp_path: Path) -> None:
    url, hot = postgres.new_database(), (tmp_path / "objects").as_uri()
    with node_process(url, hot) as one, node_process(url, hot) as other:
        client = one.client()
        create_topic(client, "t", ["n: int64"])
        until(lambda: _locations(client, "t") == {one.flight, other.flight}, SECONDS)
        other.kill()
        until(lambda: _locations(client, "t") == {one.flight}, LISTED_SECONDS)
        assert [each["flight"] for each in act(client, "list-nodes")] == [one.flight]


def test_a_process_that_was_killed_serves_again(tmp_path: Path) -> None:
    with server_process(tmp_path, flags=["--processes", "2"]) as server:
        addresses = [each["flight"] for each in act(server.client(), "list-nodes")]
        for pid in serving(server.pid):
            os.kill(pid, signal.SIGKILL)
            until(lambda pid=pid: not is_running(pid))
            until(lambda: all(map(serves, addresses)), 4 * SECONDS)


def test_no_process_with_calls_under_way_outlives_its_parent(tmp_path: Path) -> None:
    with server_process(tmp_path, flags=["--processes", "2"]) as server:
        create_topic(server.client(), "t", ["n: int64"])
        started = children(server.pid)
        with ThreadPoolExecutor(2) as threads, ExitStack() as stack:
            polls: list[Future[object]] = []
            for each in act(server.client(), "list-nodes"):
                client = stack.enter_context(flight.FlightClient(each["flight"]))
                polls.append(threads.submit(get, client, topic="t", offset=0, timeout_ms=LONG_MS))
                descriptor = flight.FlightDescriptor.for_command(b'{"topic": "t"}')
                writer, _ = client.do_put(descriptor, numbers(1).schema)
                writer.write_batch(numbers(1))  # And then the stream stays open.
            server.kill()
            until(lambda: not any(map(is_running, started)), ORPHANS_SECONDS)
            for each in polls:
                each.exception(SECONDS)
    with server_process(tmp_path):
        pass  # The directory is free.


class _Load:
    """Producers of one topic, each with many rows in flight, that go on whatever fails."""

    def __init__(self, addresses: list[str], topic: str) -> None:
        self.acknowledged = [0] * PRODUCERS
        self.stopping = threading.Event()
        self._threads = ThreadPoolExecutor(PRODUCERS)
        self.producers = [
            self._threads.submit(self._produce, addresses, topic, number)
            for number in range(PRODUCERS)
        ]

    def _produce(self, addresses: list[str], topic: str, number: int) -> None:
        sent: deque[Future[wings_client.Committed]] = deque()
        with (
            wings_client.connect(addresses, retry=RETRY) as client,
            client.producer(topic) as producer,
        ):
            row = 0
            while not self.stopping.is_set() or sent:
                while len(sent) < IN_FLIGHT and not self.stopping.is_set():
                    sent.append(producer.send({"producer": [number], "n": [row]}))
                    row += 1
                sent.popleft().result(4 * SECONDS)
                self.acknowledged[number] += 1

    def goes_on(self, rows: int) -> None:
        """Wait until so many more rows were acknowledged."""
        wanted = sum(self.acknowledged) + rows
        until(lambda: sum(self.acknowledged) >= wanted or self._ended(), 4 * SECONDS)
        assert not self._ended()

    def _ended(self) -> bool:
        return any(each.done() for each in self.producers)

    def finish(self) -> None:
        """Send no more, and wait for what is in flight."""
        self.stopping.set()
        for each in self.producers:
            each.result(8 * SECONDS)
        self._threads.shutdown()


def _kill_one_of(pids: list[int]) -> bool:
    """Kill any; return whether it was still there."""
    try:
        os.kill(random.choice(pids), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _kill_children_in_mid_push(server: ServerProcess, kills: int) -> None:
    create_topic(server.client(), "load", ["producer: int64", "n: int64"])
    addresses = [each["flight"] for each in act(server.client(), "list-nodes")]
    load = _Load(addresses, "load")
    try:
        for _ in range(kills):
            load.goes_on(random.randint(1, 500))  # Then at whatever step it is.
            until(lambda: _kill_one_of(children(server.pid)))
        load.goes_on(1)
    finally:
        load.finish()
    with wings_client.connect(addresses, retry=RETRY) as client:
        found = client.scan("load").read_all()
    for number, acknowledged in enumerate(load.acknowledged):
        rows = zip(found["producer"].to_pylist(), found["n"].to_pylist(), strict=True)
        assert [row for producer, row in rows if producer == number] == [*range(acknowledged)]


def test_processes_killed_in_mid_push_lose_and_double_nothing(tmp_path: Path) -> None:
    with server_process(tmp_path, flags=["--processes", "2"]) as server:
        _kill_children_in_mid_push(server, kills=3)


@pytest.mark.soak
@pytest.mark.timeout(1_200)
def test_processes_killed_in_mid_push_again_and_again(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    with server_process(tmp_path / "data", flags=["--processes", "2"]) as server:
        _kill_children_in_mid_push(server, kills=40)
    url, hot = postgres.new_database(), (tmp_path / "objects").as_uri()
    with node_process(url, hot, flags=["--processes", "2"]) as server:
        _kill_children_in_mid_push(server, kills=40)
