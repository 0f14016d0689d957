"""How soon nodes and processes hear of each other's commits and ends: waits up to each bound.

What a bound is for is waited for up to it: a busy machine makes these slow, and not wrong.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pyarrow.flight as flight
import pytest
from fix_calls import Calls
from fix_postgres import PostgresServer
from flight_calls import act, create_topic, get, numbers, push
from server_processes import SECONDS, children, is_running
from stateless_nodes import Nodes
from waiting import until

from wings_core.metadata.postgres import listener
from wings_server.testing import node_process, server_process

LONG_MS = 120_000
BUSY_SECONDS = 30.0
"""What a busy machine may add to any of them."""

UNTOLD_SECONDS = 10.0 + BUSY_SECONDS
"""In which a poll finds what its node was not told of."""

LISTED_SECONDS = 15.0 + BUSY_SECONDS
"""In which a node that ended without a word is off the lists."""

ORPHANS_SECONDS = 10.0 + BUSY_SECONDS
"""In which processes end whose parent was killed."""


def _expect_rows_from_another_node(nodes: Nodes, seconds: float) -> None:
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
        _expect_rows_from_another_node(nodes, SECONDS)


def test_a_push_whose_notification_is_lost_wakes_a_poll_on_another_node(
    postgres: PostgresServer, tmp_path: Path, calls: Calls
) -> None:
    calls.change(listener, "encode_notification", lambda *_: [])
    with ExitStack() as stack:
        nodes = Nodes(postgres.new_database(), tmp_path / "objects", stack)
        _expect_rows_from_another_node(nodes, UNTOLD_SECONDS)


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
