"""Long polls: how fast a commit reaches one that waits, and what thousands that wait cost."""

import json
import statistics
import threading
import time
from collections.abc import Iterator

import pyarrow.flight as flight

from benchmarks.harness import (
    Row,
    at_most,
    bare_server,
    compare,
    cpu_seconds,
    create_topic,
    drain,
    median_seconds,
    narrow,
    open_put,
    status_kib,
    ticket,
)
from wings_server.testing import ServerProcess, server_process

POLLS = 2_000
WAKES = 200
WATCH_SECONDS = 5.0


def run() -> Iterator[Row]:
    """Measure wake-ups, then the cost of idle polls."""
    with bare_server() as bare, server_process() as server, server.client() as client:
        create_topic(client, "news", narrow(1).schema)
        create_topic(client, "quiet", narrow(1).schema)
        _keep_small(bare)
        delays = [_delivery_ms(client, server.flight) for _ in range(3)]
        yield at_most("commit to delivery at a long poll, p50", "ms", 2.0, delays)
        yield compare(
            "commit to delivery against a bare small DoGet",
            "ms",
            3.0,
            lambda: _delivery_ms(client, server.flight),
            lambda: median_seconds(lambda: drain(bare, flight.Ticket(b"small")), WAKES) * 1e3,
            runs=3,
            more_is_better=False,
        )
        yield from _idle(client, server)


def _keep_small(bare: flight.FlightClient) -> None:
    batch = narrow(1)
    command = json.dumps({"keep": "small", "times": 1})
    descriptor = flight.FlightDescriptor.for_command(command)
    writer, answers = open_put(bare, descriptor, batch.schema)
    writer.write_batch(batch)
    answers.read()
    writer.close()


def _delivery_ms(client: flight.FlightClient, endpoint: str) -> float:
    """Return the median time from an acknowledgement to the delivery of its row, in ms.

    Where the row arrives before the acknowledgement does, the time is 0.
    """
    batch = narrow(1)
    delivered: list[float] = []
    waiting = threading.Semaphore(0)

    def consume() -> None:
        with flight.connect(endpoint) as consumer:
            offset: object = "latest"
            for _ in range(WAKES):
                wanted = ticket(topic="news", offset=offset, timeout_ms=30_000)
                reader = consumer.do_get(wanted)
                waiting.release()
                metadata = reader.read_chunk().app_metadata
                assert metadata is not None
                end_offset = json.loads(metadata.to_pybytes())["end_offset"]
                delivered.append(time.perf_counter())
                offset = end_offset + 1
                reader.read_chunk()

    thread = threading.Thread(target=consume)
    thread.start()
    descriptor = flight.FlightDescriptor.for_path("news")
    writer, answers = open_put(client, descriptor, batch.schema)
    committed: list[float] = []
    for _ in range(WAKES):
        waiting.acquire()
        time.sleep(0.003)  # The poll's schema is sent before its wait begins.
        writer.write_batch(batch)
        answers.read()
        committed.append(time.perf_counter())
    writer.close()
    thread.join()
    pairs = zip(committed, delivered, strict=True)
    return statistics.median(max(0.0, arrived - acked) for acked, arrived in pairs) * 1e3


def _idle(client: flight.FlightClient, server: ServerProcess) -> Iterator[Row]:
    memory_before = status_kib(server.pid, "RssAnon")
    alone = [_delivery_ms(client, server.flight) for _ in range(3)]
    readers: list[flight.FlightStreamReader] = []
    clients: list[flight.FlightClient] = []
    for index in range(POLLS):
        if index % 100 == 0:  # gRPC allows about a hundred streams on one connection.
            clients.append(flight.connect(server.flight))
        wanted = ticket(topic="quiet", offset=0, timeout_ms=300_000)
        readers.append(clients[-1].do_get(wanted))
    while status_kib(server.pid, "Threads") < POLLS:
        time.sleep(0.1)
    memory = status_kib(server.pid, "RssAnon") - memory_before
    yield at_most(f"{POLLS:,} idle polls, memory each", "kB", 160.0, [memory * 1.024 / POLLS])
    shares: list[float] = []
    for _ in range(3):
        before = cpu_seconds(server.pid)
        time.sleep(WATCH_SECONDS)
        shares.append((cpu_seconds(server.pid) - before) / WATCH_SECONDS * 100)
    yield at_most(f"{POLLS:,} idle polls, share of a core", "%", 5.0, shares)
    crowded = [_delivery_ms(client, server.flight) for _ in range(3)]
    # Not slowed: within half as much again, as both are a fraction of a millisecond.
    bound = max(0.2, statistics.median(alone) * 1.5)
    yield at_most(f"commit to delivery beside {POLLS:,} idle polls, p50", "ms", bound, crowded)
    for reader in readers:
        reader.cancel()
    for other in clients:
        other.close()
