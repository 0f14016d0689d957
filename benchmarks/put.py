"""Durable pushes: throughput of large batches, and the time until a small one is acknowledged."""

import itertools
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight

from benchmarks.harness import (
    Row,
    bare_server,
    compare,
    create_topic,
    median_seconds,
    narrow,
    open_put,
    push,
    wide,
)
from wings_server.testing import server_process

BATCHES = 300
SMALL_PUSHES = 1_000


def run() -> Iterator[Row]:
    """Measure throughput and acknowledgements."""
    with bare_server() as bare, server_process() as server, server.client() as client:
        for name, batch in (("narrow", narrow(32_768)), ("wide", wide(1_310))):
            create_topic(client, name, batch.schema)
            yield _throughput(bare, client, name, batch, clients=1)
        yield _throughput(bare, client, "narrow", narrow(32_768), clients=8)
        create_topic(client, "small", narrow(10).schema)
        yield _acknowledgement(bare, client)


def _throughput(
    bare: flight.FlightClient,
    client: flight.FlightClient,
    topic: str,
    batch: pa.RecordBatch,
    clients: int,
) -> Row:
    syncs = BATCHES

    def wings() -> float:
        nonlocal syncs
        seconds, timestamps = _push_all(client, topic, batch, clients)
        # The batches of one flush share its timestamp, so this counts the syncs.
        syncs = len(timestamps)
        return batch.nbytes * BATCHES / seconds / 1e6

    def baseline() -> float:
        """The slower of a bare DoPut and the disk's own write with the same number of syncs."""
        started = time.perf_counter()
        workers = [
            threading.Thread(target=_push_bare, args=(bare, batch, BATCHES // clients))
            for _ in range(clients)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        put = time.perf_counter() - started
        return batch.nbytes * BATCHES / max(put, _disk_seconds(batch.nbytes, syncs)) / 1e6

    shown = f"{len(batch.schema)} columns, {clients} client{'s' if clients > 1 else ''}"
    return compare(f"durable push, 1 MiB batches, {shown}", "MB/s", 0.8, wings, baseline)


def _push_all(
    client: flight.FlightClient, topic: str, batch: pa.RecordBatch, clients: int
) -> tuple[float, set[str]]:
    timestamps: list[str] = []

    def one() -> None:
        timestamps.extend(push(client, topic, batch, BATCHES // clients))

    workers = [threading.Thread(target=one) for _ in range(clients)]
    started = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.perf_counter() - started, set(timestamps)


def _push_bare(bare: flight.FlightClient, batch: pa.RecordBatch, times: int) -> None:
    descriptor = flight.FlightDescriptor.for_command("{}")
    writer, answers = open_put(bare, descriptor, batch.schema)
    for _ in range(times):
        writer.write_batch(batch)
    writer.done_writing()
    for _ in range(times):
        answers.read()
    writer.close()


def _disk_seconds(batch_bytes: int, syncs: int) -> float:
    """Write the same bytes to a file, with as many syncs, evenly spread."""
    data = os.urandom(batch_bytes)
    with tempfile.TemporaryDirectory() as directory:
        file = os.open(Path(directory) / "file", os.O_WRONLY | os.O_CREAT)
        started = time.perf_counter()
        for index in range(BATCHES):
            os.write(file, data)
            if (index + 1) * syncs // BATCHES > index * syncs // BATCHES:
                os.fdatasync(file)
        seconds = time.perf_counter() - started
        os.close(file)
    return seconds


def _acknowledgement(bare: flight.FlightClient, client: flight.FlightClient) -> Row:
    batch = narrow(10)
    return compare(
        "ack of a small durable push, p50",
        "ms",
        1.5,
        lambda: _push_ms(client, batch),
        lambda: _parts_ms(bare, batch),
        more_is_better=False,
    )


def _push_ms(client: flight.FlightClient, batch: pa.RecordBatch) -> float:
    """Return the median time from a batch written to its answer on an open stream, in ms."""
    descriptor = flight.FlightDescriptor.for_path("small")
    writer, answers = open_put(client, descriptor, batch.schema)

    def push_one() -> None:
        writer.write_batch(batch)
        answers.read()

    median = median_seconds(push_one, SMALL_PUSHES) * 1e3
    writer.close()
    return median


def _parts_ms(bare: flight.FlightClient, batch: pa.RecordBatch) -> float:
    """Return the median time of what a push cannot do without, one after the other, in ms.

    A bare DoPut round trip, a small write with fdatasync, and a SQLite commit with full sync. They
    take turns, as in a push: each wakes from a wait with the caches that the last one left.
    """
    descriptor = flight.FlightDescriptor.for_command("{}")
    writer, answers = open_put(bare, descriptor, batch.schema)
    with tempfile.TemporaryDirectory() as directory:
        file = os.open(Path(directory) / "file", os.O_WRONLY | os.O_CREAT)
        database = sqlite3.connect(Path(directory) / "database", isolation_level=None)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("CREATE TABLE page (number INTEGER PRIMARY KEY, place TEXT)")
        numbers = itertools.count()

        def do_parts() -> None:
            writer.write_batch(batch)
            answers.read()
            os.write(file, bytes(1_024))
            os.fdatasync(file)
            database.execute("BEGIN IMMEDIATE")
            database.execute("INSERT INTO page VALUES (?, ?)", (next(numbers), "x" * 60))
            database.execute("COMMIT")

        median = median_seconds(do_parts, SMALL_PUSHES) * 1e3
        database.close()
        os.close(file)
    writer.close()
    return median
