"""Clients that vanish, and bounds that are reached: places come free, and the server goes on."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import (
    Stream,
    act,
    chunks,
    code_of,
    create_topic,
    get,
    numbers,
    push,
    put_stream,
    ticket_of,
)
from share_calls import ShareStreamCall, create_group
from waiting import until

from wings_core.limits import Limits
from wings_server.testing import RunningServer, running_server

WAIT = {"topic": "t", "offset": 0, "timeout_ms": 300_000}


@pytest.mark.parametrize("polls", [1, 100, pytest.param(400, marks=pytest.mark.soak)])
def test_polls_of_clients_that_leave_come_free(
    server: RunningServer, topic: str, polls: int
) -> None:
    clients = [flight.FlightClient(server.flight) for _ in range(-(-polls // 50))]
    wanted = ticket_of(topic=topic, offset=0, timeout_ms=300_000)
    readers = [clients[number // 50].do_get(wanted) for number in range(polls)]
    server.wait_for_calls(polls)
    for reader in readers[::2]:
        reader.cancel()
    server.wait_for_calls(polls - len(readers[::2]))
    for client in clients:
        client.close()
    for reader in readers[1::2]:
        reader.cancel()
    server.wait_for_calls(0)


def test_a_poll_beside_many_is_woken_all_the_same(
    server: RunningServer, client: flight.FlightClient, topic: str, new_topic_id: str
) -> None:
    create_topic(client, f"{new_topic_id}-busy", ["n: int64"])
    others = [flight.FlightClient(server.flight) for _ in range(4)]
    idle = ticket_of(topic=topic, offset=0, timeout_ms=300_000)
    readers = [other.do_get(idle) for other in others for _ in range(50)]
    server.wait_for_calls(200)
    reader = client.do_get(ticket_of(topic=f"{new_topic_id}-busy", offset=0, timeout_ms=300_000))
    push(client, f"{new_topic_id}-busy", numbers(5))
    chunk = next(chunks(reader))
    assert chunk.data is not None
    assert chunk.data["n"].to_pylist() == [5]
    for waiting in readers:
        waiting.cancel()
    for other in others:
        other.close()


def test_a_scan_that_is_abandoned_frees_its_call(
    server: RunningServer, client: flight.FlightClient, topic: str
) -> None:
    large = pa.record_batch({"n": pa.array(range(500_000), pa.int64())})
    push(client, topic, *([large] * 10))
    with flight.FlightClient(server.flight) as leaving:
        reader = leaving.do_get(ticket_of(kind="scan", topic=topic))
        reader.read_chunk()
        reader.cancel()
    server.wait_for_calls(0)
    assert get(client, topic=topic, offset=0, max_messages=1).column("n") == [0]


def test_more_waiting_polls_than_allowed_are_refused_until_places_come_free() -> None:
    with running_server(limits=Limits(calls_waiting_max=2)) as server:
        client = server.client()
        create_topic(client, "t", ["n: int64"])
        first, second = (client.do_get(ticket_of(**WAIT)) for _ in range(2))
        server.wait_for_waiting(2)
        with pytest.raises(flight.FlightUnavailableError) as caught:
            get(client, **WAIT)  # A short wait may be over before it would take a place.
        assert code_of(caught.value) == "RESOURCE_EXHAUSTED"
        first.cancel()
        server.wait_for_waiting(1)
        assert get(client, topic="t", offset=0, timeout_ms=50).end == "deadline"
        second.cancel()


def test_more_calls_than_allowed_are_refused_until_places_come_free() -> None:
    with running_server(limits=Limits(calls_running_max=2)) as server:
        client = server.client()
        create_topic(client, "t", ["n: int64"])
        readers = [client.do_get(ticket_of(**WAIT)) for _ in range(2)]
        server.wait_for_calls(2)
        with pytest.raises(flight.FlightUnavailableError) as caught:
            get(client, **WAIT)
        assert code_of(caught.value) == "RESOURCE_EXHAUSTED"
        for reader in readers:
            reader.cancel()
        server.wait_for_calls(0)
        push(client, "t", numbers(1))


def test_pending_bytes_at_their_bound_slow_producers_and_lose_nothing() -> None:
    with running_server(limits=Limits(pending_bytes_max=20_000)) as server:
        create_topic(server.client(), "t", ["n: int64"])

        def produce(producer: int) -> None:
            with flight.FlightClient(server.flight) as client:
                start = producer * 100_000
                with put_stream(client, numbers().schema, "t") as stream:
                    for n in range(100):
                        stream.send(numbers(*range(start + n * 500, start + n * 500 + 500)))
                    for _ in range(100):
                        answer = stream.answer()
                        assert answer is not None
                        assert "committed" in answer

        producers = [threading.Thread(target=produce, args=(n,)) for n in range(3)]
        for producer in producers:
            producer.start()
        for producer in producers:
            producer.join(timeout=150)
            assert not producer.is_alive()
        rows = get(server.client(), kind="scan", topic="t").column("n")
        for producer in range(3):
            ours = [n for n in rows if n // 100_000 == producer]
            assert ours == list(range(producer * 100_000, producer * 100_000 + 50_000))


def test_a_batch_above_64_mib_is_refused_and_the_server_goes_on(
    client: flight.FlightClient, topic: str
) -> None:
    values = pa.array(range(1_000_000), pa.int64())
    large = pa.record_batch({"n": pa.concat_arrays([values] * 9)})  # 72 MB.
    stream = Stream(client, large.schema, topic)
    answer = stream.push(large)
    assert answer["error"]["code"] == "BATCH_TOO_LARGE"
    with pytest.raises(flight.FlightError):
        stream.close()
    push(client, topic, large.slice(0, 8_000_000))
    assert get(client, topic=topic, offset=7_999_999).column("n") == [999_999]


# Clients that are killed in the middle of calls of every kind leave nothing behind. ###############

CLIENT = Path(__file__).with_name("vanishing_client.py")
SECONDS_MAX = 60.0
LARGE_ROWS = 1_000_000
SHARED_ROWS = 50

SETTLED = 3
"""Rounds after which a process has all the threads and descriptors that it will need."""

SPARE = 8
"""Threads and descriptors that come and go meanwhile."""


def vanish(server: RunningServer) -> None:
    """Run a client until it is in the middle of all its calls, and kill it."""
    command = [sys.executable, str(CLIENT), server.flight, server.http.rpartition("/")[2]]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout is not None
        assert client.stderr is not None
        said = client.stdout.readline()
        # Its waiting calls are under way.
        until(lambda: server.server.log.fetcher.waits.waiting > 0)
        client.kill()
        assert said == "in the middle\n", client.stderr.read()


def nothing_is_left(server: RunningServer) -> None:
    log = server.server.log
    server.wait_for_calls(0)
    until(lambda: log.fetcher.waits.waiting == 0)
    until(lambda: log.group_commit.pending_bytes == 0 and log.memory.held == 0)


def threads_and_descriptors() -> tuple[int, int]:
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))  # noqa: PTH208


@pytest.mark.parametrize(
    "rounds", [1, pytest.param(40, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)])]
)
def test_clients_that_are_killed_within_their_calls_leave_nothing(rounds: int) -> None:
    settled = (0, 0)
    with running_server() as server:
        client = server.client()
        for topic in ("pushed", "silent", "large", "shared"):
            create_topic(client, topic, ["n: int64"])
        push(client, "large", pa.record_batch({"n": pa.array(range(LARGE_ROWS), pa.int64())}))
        push(client, "shared", numbers(*range(SHARED_ROWS)))
        for topic in ("silent", "shared"):
            create_group(client, topic, lock_duration_ms=600_000, delivery_limit=100)
        for number in range(rounds):
            vanish(server)
            nothing_is_left(server)
            # What it held is delivered to another at once.
            call = ShareStreamCall(client, "shared")
            offsets: list[int] = []
            while len(offsets) < SHARED_ROWS:
                offsets += call.delivery().offsets
            assert sorted(offsets) == list(range(SHARED_ROWS))
            call.close()
            if number == SETTLED:
                settled = threads_and_descriptors()
        if rounds > SETTLED:
            until(lambda: _at_most(threads_and_descriptors(), settled))
        (state,) = act(client, "partition-states", topic="pushed")
        assert get(client, kind="scan", topic="pushed").table.num_rows == state["next_offset"]


def _at_most(found: tuple[int, int], settled: tuple[int, int]) -> bool:
    return all(now <= before + SPARE for now, before in zip(found, settled, strict=True))
