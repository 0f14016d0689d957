"""Filters: over all partitions of the demo's rows, and what a filter adds to a small read."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.flight as flight

from benchmarks.harness import (
    Row,
    act,
    at_least,
    at_most,
    drain,
    median_seconds,
    open_put,
    ticket,
)
from wings_server.testing import server_process

sys.path.append(str(Path(__file__).parents[1] / "examples"))
import flights

ROWS = 1_000_000
RUNS = 15
READS = 200

PLAIN = "delay > 60 and distance < 500"
"""The demo's: Arrow's kernels evaluate it."""

IN_DUCKDB = "abs(delay) > 60 and distance < 500"
"""Means nearly the same; DuckDB evaluates it."""


def run() -> Iterator[Row]:
    """Measure filters over the flights of 18 airports."""
    with server_process() as server, server.client() as client:
        _load(client)
        yield _by_one(client, "plain filter over 18 partitions, one after another", PLAIN, 20.0)
        yield _in_one_stream(client, "plain filter over 18 partitions in one stream", PLAIN, 20.0)
        yield _in_one_stream(client, "the same in DuckDB (any rate)", IN_DUCKDB, 1.0)
        yield _known(client)


def _load(client: flight.FlightClient) -> None:
    fields = [
        {"name": field.name, "type": str(field.type), "nullable": field.nullable}
        for field in flights.SCHEMA
    ]
    act(client, "create-topic", topic="flights", schema={"fields": fields}, partition_key="origin")
    descriptor = flight.FlightDescriptor.for_path("flights")
    writer, answers = open_put(client, descriptor, flights.SCHEMA)
    for batch in flights.generate(ROWS):
        writer.write_batch(batch)
        assert answers.read() is not None
    writer.close()


def _in_one_stream(client: flight.FlightClient, name: str, text: str, hold: float) -> Row:
    """Measure the rows looked at in a second."""
    wanted = ticket(
        kind="scan", topic="flights", partitions="all", columns=["destination"], filter=text
    )
    return _rates(name, hold, lambda: drain(client, wanted))


def _by_one(client: flight.FlightClient, name: str, text: str, hold: float) -> Row:
    """Measure the rows looked at in a second, by one read after another of each partition."""
    command = {"topic": "flights", "columns": ["destination", "delay"], "filter": text}

    def read() -> int:
        info = client.get_flight_info(flight.FlightDescriptor.for_command(json.dumps(command)))
        return sum(drain(client, endpoint.ticket) for endpoint in info.endpoints)

    return _rates(name, hold, read)


def _rates(name: str, hold: float, read: Callable[[], int]) -> Row:
    assert 0 < read() < ROWS
    rates = [ROWS / median_seconds(read, 1) / 1e6 for _ in range(RUNS)]
    return at_least(name, "M rows/s", hold, rates)


def _known(client: flight.FlightClient) -> Row:
    """Measure what a filter that the server knows adds to the read of one row."""
    asked = {"topic": "flights", "partition": "JFK", "offset": 0, "max_messages": 1}

    def added() -> float:
        with_filter = ticket(**asked, filter="distance >= 0")
        pairs = [
            median_seconds(lambda wanted=wanted: drain(client, wanted), READS)
            for wanted in (ticket(**asked), with_filter)
        ]
        return 1e3 * (pairs[1] - pairs[0])

    added()
    values = [added() for _ in range(RUNS)]
    return at_most("a known filter, beside the same read without it", "ms", 0.3, values)
