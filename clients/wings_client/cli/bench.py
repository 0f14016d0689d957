"""`wings bench`: measures a server from this machine, in a topic of its own."""

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Annotated, NamedTuple
from uuid import uuid4

import pyarrow as pa
import typer

from wings_client import Client, Topic
from wings_client.cli.endpoint import connected
from wings_client.cli.options import DEFAULT, EndpointOption, FormatOption
from wings_client.cli.output import write_list
from wings_core.errors import Unavailable, WingsError

BATCH_ROWS = 32_768
"""Rows of a batch of four int64 columns: 1 MiB."""

DELIVERY_SECONDS_MAX = 30.0
"""Longest delivery of a message before the benchmark fails."""

COLUMNS = ("a", "b", "c", "d")


class Figure(NamedTuple):
    """One measured value."""

    name: str
    value: int
    unit: str
    more: str


def bench(
    *,
    mebibytes: Annotated[
        int, typer.Option(metavar="MIB", min=1, max=65_536, help="Amount to push and to read.")
    ] = 256,
    messages: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=100_000, help="Number of single messages to time."),
    ] = 200,
    wanted_format: FormatOption = "table",
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Measure a running server from here: throughput, and latency of single messages.

        $ wings bench --endpoint grpc://127.0.0.1:7777

    Everything goes to a topic of its own, which is deleted at the end. The figures include this
    machine, the network and the server's disk; each push is durable when it counts.
    """
    with connected(endpoint) as client:
        schema = pa.schema([pa.field(name, pa.int64()) for name in COLUMNS])
        topic = client.create_topic(f"bench-{uuid4().hex[:12]}", schema)
        try:
            figures = list(_measure(client, topic, mebibytes, messages))
        finally:
            with suppress(WingsError):  # An earlier error is the more specific one.
                client.delete_topic(topic)
    write_list(("figure", "value", "unit", "more"), figures, wanted_format)


def _measure(client: Client, topic: Topic, mebibytes: int, messages: int) -> Iterator[Figure]:
    batch = _batch(BATCH_ROWS)
    client.push(topic, batch)  # Opens connections and files before the clock runs.
    seconds = _timed(lambda: _push(client, topic, batch, mebibytes))
    yield _throughput("push, 1 MiB batches", seconds, batch, mebibytes)
    seconds = _timed(lambda: _scan(client, topic))
    yield _throughput("scan", seconds, batch, mebibytes + 1)
    yield _latency("push of one message", _push_times(client, topic, messages))
    yield _latency("fetch of one message", _fetch_times(client, topic, messages))
    yield _latency("push to delivery", _delivery_times(client, topic, messages))


def _push(client: Client, topic: Topic, batch: pa.RecordBatch, times: int) -> None:
    with client.producer(topic) as producer:
        for _ in range(times):
            producer.send(batch)


def _scan(client: Client, topic: Topic) -> None:
    for _ in client.scan(topic):
        pass


def _push_times(client: Client, topic: Topic, messages: int) -> list[float]:
    one = _batch(1)
    with client.producer(topic) as producer:
        producer.send(one).result()
        return [_timed(lambda: producer.send(one).result()) for _ in range(messages)]


def _fetch_times(client: Client, topic: Topic, messages: int) -> list[float]:
    def fetch() -> None:
        client.fetch(topic, offset=0, max_messages=1)

    fetch()
    return [_timed(fetch) for _ in range(messages)]


def _delivery_times(client: Client, topic: Topic, messages: int) -> list[float]:
    """Time from sending a message until a follower on this machine has it."""
    one = _batch(1)
    arrived = threading.Semaphore(0)
    with client.follow(topic, offset="latest") as followed, client.producer(topic) as producer:
        reader = threading.Thread(
            target=lambda: [arrived.release() for _ in followed], name="wings-bench", daemon=True
        )
        reader.start()

        def deliver() -> None:
            producer.send(one)
            if not arrived.acquire(timeout=DELIVERY_SECONDS_MAX):
                raise Unavailable("a message was not delivered in time")

        deliver()
        times = [_timed(deliver) for _ in range(messages)]
        followed.close()
        reader.join(DELIVERY_SECONDS_MAX)
    return times


def _throughput(name: str, seconds: float, batch: pa.RecordBatch, times: int) -> Figure:
    rows, size = batch.num_rows * times, batch.nbytes * times
    return Figure(name, round(size / seconds / 1e6), "MB/s", f"{rows / seconds:,.0f} rows/s")


def _latency(name: str, times: list[float]) -> Figure:
    ordered = sorted(times)
    high = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    median = round(statistics.median(ordered) * 1e6)
    return Figure(name, median, "µs", f"99 of 100 within {high * 1e6:,.0f} µs")


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _batch(rows: int) -> pa.RecordBatch:
    return pa.record_batch({name: list(range(rows)) for name in COLUMNS})
