"""Many partitions in one stream: against the same rows in one partition, in the same run."""

import json
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

import wings_client
from benchmarks.harness import Row, compare, drain, ticket
from wings_client import Client
from wings_server.testing import server_process

PARTITIONS = 10_000
ROWS_EACH = 400
ROWS = PARTITIONS * ROWS_EACH
PUSHED_EACH = 100
"""Rows of a partition in one push, so that each has some pages."""

PUSHED_PARTITIONS = 600
"""Partitions of a push, about as many as make a full batch of it."""

DELIVERIES = 20
"""Messages whose delivery is timed for one value."""


def run() -> Iterator[Row]:
    """Measure scans, consumers, plans and waits over 10,000 partitions."""
    with (
        server_process() as server,
        server.client() as plain,
        wings_client.connect(server.flight, timeout=300) as client,
    ):
        for topic, key in (("many", "key"), ("one", None)):
            client.create_topic(topic, {"key": "int64", "n": "int64"}, key)
            _load(client, topic)
        yield compare(
            f"scan of {PARTITIONS:,} partitions in one stream, against the same rows in one",
            "M rows/s",
            0.3,
            _scan_rate(plain, topic="many", partitions="all"),
            _scan_rate(plain, topic="one"),
            runs=5,
        )
        yield compare(
            f"consumer over {PARTITIONS:,} partitions, against the same rows in one",
            "M rows/s",
            0.3,
            _consumer_rate(client, "many"),
            _consumer_rate(client, "one"),
            runs=3,
        )
        yield compare(
            f"GetFlightInfo of {PARTITIONS:,} partitions, against a list of their states",
            "ms",
            2.0,
            lambda: 1e3 * _seconds(lambda: _plan(plain)),
            lambda: 1e3 * _seconds(lambda: _states(plain)),
            more_is_better=False,
        )
        yield compare(
            f"push to delivery, a follow of {PARTITIONS:,} partitions against one of one",
            "ms",
            1.5,
            _delivery(client, "many"),
            _delivery(client, "one"),
            more_is_better=False,
        )


def _load(client: Client, topic: str) -> None:
    with client.producer(topic, batch_rows=PUSHED_EACH * PUSHED_PARTITIONS) as producer:
        for _ in range(ROWS_EACH // PUSHED_EACH):
            for first in range(0, PARTITIONS, PUSHED_PARTITIONS):
                keys = np.arange(first, min(first + PUSHED_PARTITIONS, PARTITIONS))
                column = np.repeat(keys, PUSHED_EACH)
                rows = {"key": pa.array(column), "n": pa.array(np.arange(len(column)))}
                producer.send(pa.table(rows))
        producer.flush()


def _scan_rate(client: flight.FlightClient, **keys: object) -> Callable[[], float]:
    wanted = ticket(kind="scan", **keys)

    def measure() -> float:
        started = time.perf_counter()
        assert drain(client, wanted) >= ROWS
        return ROWS / (time.perf_counter() - started) / 1e6

    return measure


def _consumer_rate(client: Client, topic: str) -> Callable[[], float]:
    """Return a measure of a new consumer that reads all rows, and commits them at its end."""
    names = iter(range(1 << 30))

    def measure() -> float:
        started = time.perf_counter()
        rows = 0
        with client.consumer(f"bench-{next(names)}", topic, auto_commit=3600.0) as consumer:
            while rows < ROWS:
                rows += next(consumer).batch.num_rows
        return rows / (time.perf_counter() - started) / 1e6

    return measure


def _plan(client: flight.FlightClient) -> None:
    command = json.dumps({"topic": "many", "partitions": "all", "splits": 8})
    info = client.get_flight_info(flight.FlightDescriptor.for_command(command))
    assert len(info.endpoints) == 8


def _states(client: flight.FlightClient) -> None:
    action = flight.Action("partition-states", json.dumps({"topic": "many"}).encode())
    (found,) = client.do_action(action)
    assert found.body.size > 0


def _seconds(call: Callable[[], None]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _delivery(client: Client, topic: str) -> Callable[[], float]:
    """Return a measure of the time from a push to its row at a follow, in milliseconds."""

    def measure() -> float:
        arrived: list[float] = []
        came = threading.Semaphore(0)
        which = "all" if topic == "many" else [None]
        follow = client.follow(topic, partitions=which, offset="latest")

        def read() -> None:
            for _ in follow:
                arrived.append(time.perf_counter())
                came.release()

        reader = threading.Thread(target=read)
        reader.start()
        row = {"key": [0], "n": [0]}
        client.push(topic, row)
        came.acquire()  # It waits from now on.
        took: list[float] = []
        for _ in range(DELIVERIES):
            started = time.perf_counter()
            client.push(topic, row)
            came.acquire()
            took.append(arrived[-1] - started)
        follow.close()
        reader.join()
        return 1e3 * sorted(took)[len(took) // 2]

    return measure
