"""Gather against what one would write by hand: one DoGet after another, and a pool of threads.

A topic of 64 partitions, each with a batch of 1 MiB or a small one.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa
import pyarrow.flight as flight

import wings_client
from benchmarks.harness import Row, act, compare_in_turn, rate, ticket
from wings_client import Client
from wings_client.gather import Request
from wings_server.testing import server_process

PARTITIONS = 64
ROWS_MAX = 65_536

POOL_THREADS = (8, 64)
"""Of the pool that is written by hand, and is kept from one request to the next: what one would
take on a few cores, and as many as a gather may have."""

FIRST_REPLIES = 50

PAUSE_SECONDS = 0.02
"""After each first reply, so that what it left behind has ended before the next."""


def run() -> Iterator[Row]:
    """Measure gathers of large and of small replies."""
    with (
        server_process() as server,
        server.client() as plain,
        wings_client.connect(server.flight) as client,
    ):
        for name, rows, shown in (("large", ROWS_MAX, "1 MiB each"), ("small", 10, "10 rows each")):
            _fill(plain, client, name, rows)
            yield from _figures(plain, client, name, shown)


def _fill(plain: flight.FlightClient, client: Client, topic: str, rows: int) -> None:
    fields = [{"name": "key", "type": "int64"}, {"name": "n", "type": "int64"}]
    act(plain, "create-topic", topic=topic, schema={"fields": fields}, partition_key="key")
    column = pa.arange(0, rows)  # pyright: ignore[reportAttributeAccessIssue] - not in the stubs
    with client.producer(topic) as producer:
        for key in range(PARTITIONS):
            keys = pa.repeat(pa.scalar(key, pa.int64()), rows)
            producer.send(pa.record_batch({"key": keys, "n": column}))


def _figures(plain: flight.FlightClient, client: Client, topic: str, shown: str) -> Iterator[Row]:
    tickets = [
        ticket(topic=topic, partition=key, offset=0, max_messages=ROWS_MAX)
        for key in range(PARTITIONS)
    ]
    requests = [Request(topic, key, offset=0, max_messages=ROWS_MAX) for key in range(PARTITIONS)]

    def gathered() -> int:
        return sum(reply.batch.num_rows for reply in client.gather(requests))

    def one_by_one() -> int:
        return sum(_read(plain, each) for each in tickets)

    yield compare_in_turn(
        f"gather of {PARTITIONS} partitions, {shown}, against DoGets one by one (no bound)",
        "M rows/s",
        0.0,
        rate(gathered),
        rate(one_by_one),
    )
    for threads in POOL_THREADS:
        with ThreadPoolExecutor(threads) as pool:

            def pooled(pool: ThreadPoolExecutor = pool) -> int:
                return sum(pool.map(partial(_read, plain), tickets))

            yield compare_in_turn(
                f"gather of {PARTITIONS} partitions, {shown}, against a pool of {threads}",
                "M rows/s",
                1.0,
                rate(gathered),
                rate(pooled),
            )
    yield compare_in_turn(
        f"gather's first reply, {shown}, against the first batch of a single DoGet",
        "ms",
        1.2,
        lambda: _first_of_gather(client, requests),
        lambda: _first_of_one(plain, tickets[0]),
        times=FIRST_REPLIES,
        more_is_better=False,
    )


def _first_of_gather(client: Client, requests: list[Request]) -> float:
    started = time.perf_counter()
    with client.gather(requests) as gather:
        replies = iter(gather)  # Kept: letting go of it ends the gather, which is not measured.
        next(replies)
        seconds = time.perf_counter() - started
    time.sleep(PAUSE_SECONDS)
    return seconds * 1e3


def _first_of_one(plain: flight.FlightClient, wanted: flight.Ticket) -> float:
    started = time.perf_counter()
    reader = plain.do_get(wanted)
    reader.read_chunk()
    seconds = time.perf_counter() - started
    reader.cancel()
    time.sleep(PAUSE_SECONDS)
    return seconds * 1e3


def _read(plain: flight.FlightClient, wanted: flight.Ticket) -> int:
    return plain.do_get(wanted).read_all().num_rows
