"""Nodes without a directory, and several processes over one: a small push, and many at once."""

import itertools
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pyarrow.flight as flight

from benchmarks.harness import Row, compare_in_turn, create_topic, median_seconds
from benchmarks.small import Stream, people
from wings_server.testing import ServerProcess, node_process, server_process
from wings_server.testing_postgres import postgres_server

ACKS = 200
PRODUCERS = 4
PUSHES = 2_000
"""Of each producer."""
CORES_MIN = 8
"""Where four processes are to give three times as many pushes as one."""


def run() -> Iterator[Row]:
    """Measure against a bare commit of the same PostgreSQL, and against one process."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(postgres_server(sync=True))
        yield _acknowledgement(stack, server.new_database(), directory / "objects")
    cores = len(os.sched_getaffinity(0))
    yield _pushes(4, 3.0) if cores >= CORES_MIN else _pushes(2, 0.0)


def _acknowledgement(stack: ExitStack, url: str, objects: Path) -> Row:
    connection = stack.enter_context(psycopg.connect(url, autocommit=True))
    connection.execute("CREATE TABLE bare (id BIGINT GENERATED ALWAYS AS IDENTITY, data BYTEA)")
    data = os.urandom(500)
    node = stack.enter_context(node_process(url, objects.as_uri()))
    client = node.client()
    batch = people(1)
    create_topic(client, "acks", batch.schema)
    path = flight.FlightDescriptor.for_path("acks")
    stream = stack.enter_context(closing(Stream(client, path, batch)))
    return compare_in_turn(
        "ack of a one-row push over PostgreSQL, p50, against a bare commit there",
        "ms",
        3.0,
        lambda: median_seconds(stream.push_one, ACKS) * 1e3,
        lambda: (
            median_seconds(
                lambda: connection.execute("INSERT INTO bare (data) VALUES (%s)", (data,)), ACKS
            )
            * 1e3
        ),
        times=3,
        more_is_better=False,
    )


def _pushes(processes: int, bound: float) -> Row:
    with (
        server_process() as alone,
        server_process(flags=["--processes", str(processes)]) as server,
    ):
        name = f"one-row pushes by {PRODUCERS} producers: {processes} processes against one"
        topics = itertools.count()
        return compare_in_turn(
            name,
            "pushes/s",
            bound,
            lambda: _rate(server, f"t{next(topics)}"),
            lambda: _rate(alone, f"t{next(topics)}"),
            times=3,
        )


def _rate(server: ServerProcess, topic: str) -> float:
    """Return pushes a second of some producers, each at a node of its own."""
    batch = people(1)
    create_topic(server.client(), topic, batch.schema)
    addresses = [server.flight]
    info = server.client().get_flight_info(flight.FlightDescriptor.for_path(topic))
    addresses += [each.uri.decode() for each in info.endpoints[0].locations]
    addresses = list(dict.fromkeys(addresses))

    def produce(number: int) -> None:
        with (
            flight.FlightClient(addresses[number % len(addresses)]) as client,
            closing(Stream(client, flight.FlightDescriptor.for_path(topic), batch)) as stream,
        ):
            stream.push(PUSHES)

    threads = [threading.Thread(target=produce, args=(each,)) for each in range(PRODUCERS)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return PRODUCERS * PUSHES / (time.perf_counter() - began)
