"""Nodes at a metadata service against an embedded server, in one run."""

import json
import statistics
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
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
from benchmarks.locate import lengthen
from wings_server.testing import metadata_process, server_process

PUSHES = 300
WAKES = 100
CONSUMERS = 1_000
CONSUMERS_EACH_CONNECTION = 100
FETCHES = 300
RUNS = 5
ACK_RATIO_MAX = 5.0
"""A commit through the service adds a round trip in Python on both sides; wake-ups add two."""


def run() -> Iterator[Row]:
    """Measure pushes and wake-ups, a thousand consumers at one tail, and a long log."""
    with (
        server_process() as embedded,
        embedded.client() as alone,
        _nodes() as (one, other, endpoint),
    ):
        for client in (alone, one):
            for topic in ("small", "news", "tail"):
                create_topic(client, topic, narrow(1).schema)
        yield compare(
            "ack of a small durable push: a node against embedded",
            "ms",
            ACK_RATIO_MAX,
            lambda: _push_ms(one),
            lambda: _push_ms(alone),
            runs=RUNS,
            more_is_better=False,
        )
        delays = [_delivery_ms(one, other) for _ in range(RUNS)]
        yield at_most("commit on one node to delivery on another, p50", "ms", 5.0, delays)
        at_home = statistics.median(_delivery_ms(alone, alone) for _ in range(RUNS))
        yield at_most("the same on one embedded server, p50", "ms", 2.0, [at_home])
        waves = [_wave_ms(one, endpoint, number) for number in range(RUNS)]
        yield at_most(f"commit to the last of {CONSUMERS:,} at one tail", "ms", 2_000.0, waves)
    yield _long_log()


@contextmanager
def _nodes(
    metadata: Path | None = None, pages: Path | None = None
) -> Generator[tuple[flight.FlightClient, flight.FlightClient, str]]:
    """Run a metadata service and two nodes on one directory; yield clients, the last's address."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        service = stack.enter_context(metadata_process(metadata or directory / "metadata"))
        shared, flags = pages or directory / "pages", ("--metadata", service.address)
        nodes = [stack.enter_context(server_process(shared, flags=flags)) for _ in range(2)]
        yield nodes[0].client(), nodes[1].client(), nodes[1].flight


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


def _long_log() -> Row:
    with tempfile.TemporaryDirectory() as directory:
        metadata, pages = Path(directory) / "metadata", Path(directory) / "pages"
        with _nodes(metadata, pages) as (client, *_):
            for topic in ("short", "long"):
                create_topic(client, topic, narrow(1).schema)
                push(client, topic, narrow(1), 1_000)
        lengthen(metadata, "long", 1_000_000 - 1_000)
        with _nodes(metadata, pages) as (client, *_):
            push(client, "long", narrow(1), 1)
            return compare(
                "fetch at the end through the service: 1,000,000 locations against 1,000",
                "ms",
                1.2,
                lambda: _fetch_ms(client, "long", 1_000_000),
                lambda: _fetch_ms(client, "short", 999),
                runs=RUNS,
                more_is_better=False,
            )


def _fetch_ms(client: flight.FlightClient, topic: str, offset: int) -> float:
    wanted = ticket(topic=topic, offset=offset)
    assert drain(client, wanted) == 1
    return median_seconds(lambda: drain(client, wanted), FETCHES) * 1e3
