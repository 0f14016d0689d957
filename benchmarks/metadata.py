"""Nodes at a metadata service, over SQLite and PostgreSQL, against an embedded server."""

import json
import statistics
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight

from benchmarks.harness import (
    Row,
    at_most,
    compare,
    create_topic,
    drain,
    median_seconds,
    narrow,
    open_put,
    push,
    ticket,
)
from benchmarks.locate import lengthen, lengthen_in_postgres
from wings_server.testing import metadata_process, server_process
from wings_server.testing_postgres import postgres_server

PUSHES = 300
WAKES = 100
CONSUMERS = 1_000
CONSUMERS_EACH_CONNECTION = 100
FETCHES = 300
RUNS = 5
TOPICS = ("small", "news", "tail")
ACK_RATIO_MAX = {"SQLite": 5.0, "PostgreSQL": 8.0}
"""A commit through the service adds a round trip in Python on both sides, and over PostgreSQL two
more and its own commit; wake-ups add two."""


def run() -> Iterator[Row]:
    """Measure pushes and wake-ups, a thousand consumers at one tail, and a long log."""
    with (
        postgres_server(sync=True) as postgres,
        server_process() as embedded,
        embedded.client() as alone,
    ):
        for topic in TOPICS:
            create_topic(alone, topic, narrow(1).schema)
        at_home = [_delivery_ms(alone, alone) for _ in range(RUNS)]
        yield at_most("commit to delivery on one embedded server, p50", "ms", 2.0, at_home)
        with tempfile.TemporaryDirectory() as directory, _nodes(Path(directory)) as nodes:
            yield from _rows("SQLite", alone, nodes)
        url = postgres.new_database()
        with tempfile.TemporaryDirectory() as directory, _nodes(Path(directory), url) as nodes:
            yield from _rows("PostgreSQL", alone, nodes)
        yield _long_log(None)
        yield _long_log(postgres.new_database())


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Clients of two nodes at one metadata service."""

    one: flight.FlightClient
    other: flight.FlightClient
    endpoint: str
    """Of the other."""


@contextmanager
def _nodes(directory: Path, url: str | None = None) -> Generator[_Nodes]:
    """Run a metadata service, over PostgreSQL where it is told one, and two nodes."""
    with ExitStack() as stack:
        environment = {} if url is None else {"WINGS_METADATA_URL": url}
        service = stack.enter_context(
            metadata_process(directory / "metadata", environment=environment)
        )
        flags = ("--metadata", service.address)
        one, other = (
            stack.enter_context(server_process(directory / "pages", flags=flags)) for _ in range(2)
        )
        yield _Nodes(one.client(), other.client(), other.flight)


def _rows(store: str, alone: flight.FlightClient, nodes: _Nodes) -> Iterator[Row]:
    for topic in TOPICS:
        create_topic(nodes.one, topic, narrow(1).schema)
    yield compare(
        f"ack of a small durable push: a node over {store} against embedded",
        "ms",
        ACK_RATIO_MAX[store],
        lambda: _push_ms(nodes.one),
        lambda: _push_ms(alone),
        runs=RUNS,
        more_is_better=False,
    )
    delays = [_delivery_ms(nodes.one, nodes.other) for _ in range(RUNS)]
    yield at_most(f"commit on one node to delivery on another over {store}, p50", "ms", 5.0, delays)
    waves = [_wave_ms(nodes.one, nodes.endpoint, number) for number in range(RUNS)]
    name = f"commit to the last of {CONSUMERS:,} at one tail over {store}"
    yield at_most(name, "ms", 2_000.0, waves)


def _push_ms(client: flight.FlightClient) -> float:
    batch = narrow(10)
    writer, answers = open_put(client, flight.FlightDescriptor.for_path("small"), batch.schema)

    def push_one() -> None:
        writer.write_batch(batch)
        answers.read()

    median = median_seconds(push_one, PUSHES) * 1e3
    writer.close()
    return median


def _delivery_ms(producer: flight.FlightClient, consumer: flight.FlightClient) -> float:
    """Return the median time from an acknowledgement to the delivery of its row, in ms."""
    delivered: list[float] = []
    waiting = threading.Semaphore(0)

    def consume() -> None:
        offset: object = "latest"
        for _ in range(WAKES):
            reader = consumer.do_get(ticket(topic="news", offset=offset, timeout_ms=30_000))
            waiting.release()
            metadata = reader.read_chunk().app_metadata
            assert metadata is not None
            delivered.append(time.perf_counter())
            offset = json.loads(metadata.to_pybytes())["end_offset"] + 1
            reader.read_chunk()

    thread = threading.Thread(target=consume)
    thread.start()
    writer, answers = open_put(producer, flight.FlightDescriptor.for_path("news"), narrow(1).schema)
    committed: list[float] = []
    for _ in range(WAKES):
        waiting.acquire()
        time.sleep(0.01)  # The poll's schema is sent before its wait begins.
        writer.write_batch(narrow(1))
        answers.read()
        committed.append(time.perf_counter())
    writer.close()
    thread.join()
    pairs = zip(committed, delivered, strict=True)
    return statistics.median(max(0.0, arrived - acked) for acked, arrived in pairs) * 1e3


def _wave_ms(producer: flight.FlightClient, endpoint: str, offset: int) -> float:
    """Return the time until all consumers at one tail have a row, in ms."""
    clients = [flight.connect(endpoint) for _ in range(CONSUMERS // CONSUMERS_EACH_CONNECTION)]
    wanted = ticket(topic="tail", offset=offset, timeout_ms=60_000)
    readers = [clients[index % len(clients)].do_get(wanted) for index in range(CONSUMERS)]
    time.sleep(1.0)  # The last schemas are sent before their waits begin.
    started = time.perf_counter()
    push(producer, "tail", narrow(1), 1)
    for reader in readers:
        batch: pa.RecordBatch | None = reader.read_chunk().data
        assert batch is not None
        assert batch.num_rows == 1
    elapsed = (time.perf_counter() - started) * 1e3
    for client in clients:
        client.close()
    return elapsed


def _long_log(url: str | None) -> Row:
    store = "SQLite" if url is None else "PostgreSQL"
    with tempfile.TemporaryDirectory() as parent:
        directory = Path(parent)
        with _nodes(directory, url) as nodes:
            for topic in ("short", "long"):
                create_topic(nodes.one, topic, narrow(1).schema)
                push(nodes.one, topic, narrow(1), 1_000)
        if url is None:
            lengthen(directory / "metadata", "long", 1_000_000 - 1_000)
        else:
            lengthen_in_postgres(url, "long", 1_000_000 - 1_000)
        with _nodes(directory, url) as nodes:
            push(nodes.one, "long", narrow(1), 1)
            return compare(
                f"fetch at the end through the service over {store}: 1,000,000 locations against "
                "1,000",
                "ms",
                1.2,
                lambda: _fetch_ms(nodes.one, "long", 1_000_000),
                lambda: _fetch_ms(nodes.one, "short", 999),
                runs=RUNS,
                more_is_better=False,
            )


def _fetch_ms(client: flight.FlightClient, topic: str, offset: int) -> float:
    wanted = ticket(topic=topic, offset=offset)
    assert drain(client, wanted) == 1
    return median_seconds(lambda: drain(client, wanted), FETCHES) * 1e3
