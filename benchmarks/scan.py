"""Reading a committed log: catch-up scans, and a few of many columns."""

import threading
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.flight as flight

from benchmarks.harness import (
    Row,
    bare_server,
    compare,
    create_topic,
    drain,
    narrow,
    open_put,
    push,
    ticket,
    wide,
)
from wings_server.testing import server_process

MIB = 1 << 20


def run() -> Iterator[Row]:
    """Measure the scans of section "Limits and figures to hold"."""
    with bare_server() as bare, server_process() as server, server.client() as client:
        for name, batch, times in (
            ("narrow-1mib", narrow(32_768), 600),
            ("wide-1mib", wide(1_310), 600),
            ("wide-16k-rows", wide(16_384), 60),
            ("narrow-10-rows", narrow(10), 20_000),
        ):
            _load(bare, client, name, batch, times)
        yield from _catch_up(bare, client, server.flight)
        yield _pruned(client, "wide-16k-rows", "16,384-row batches", 8.0)
        # Of a page of 1,310 rows, all columns are decoded before ten are picked.
        yield _pruned(client, "wide-1mib", "1 MiB batches (no bound)", 0.0)


def _load(
    bare: flight.FlightClient,
    client: flight.FlightClient,
    name: str,
    batch: pa.RecordBatch,
    times: int,
) -> None:
    create_topic(client, name, batch.schema)
    push(client, name, batch, times)
    # The baseline streams what Wings sends: where Wings merges small batches, it gets them merged.
    merged = batch
    if batch.num_rows < 100:
        merged = pa.concat_batches([batch] * 1_000)  # pyright: ignore[reportAttributeAccessIssue] - not in the stubs
        times //= 1_000
    command = f'{{"keep": "{name}", "times": {times}}}'
    descriptor = flight.FlightDescriptor.for_command(command)
    writer, answers = open_put(bare, descriptor, merged.schema)
    writer.write_batch(merged)
    answers.read()
    writer.close()


def _catch_up(
    bare: flight.FlightClient, client: flight.FlightClient, endpoint: str
) -> Iterator[Row]:
    for name, shown, hold in (
        ("narrow-1mib", "scan, 1 MiB batches, 4 columns", 0.9),
        ("wide-1mib", "scan, 1 MiB batches, 100 columns", 0.9),
    ):
        for clients in (1, 8):
            yield compare(
                f"{shown}, {clients} client{'s' if clients > 1 else ''}",
                "M rows/s",
                hold,
                _rate(client, ticket(kind="scan", topic=name), clients),
                _rate(bare, flight.Ticket(name.encode()), clients),
            )
    # No bound in the design: a log of 10-row pushes, read before any compaction.
    yield compare(
        "scan, a log of 10-row pushes, not compacted (no bound)",
        "M rows/s",
        0.0,
        _rate(client, ticket(kind="scan", topic="narrow-10-rows"), 1),
        _rate(bare, flight.Ticket(b"narrow-10-rows"), 1),
    )


def _rate(client: flight.FlightClient, wanted: flight.Ticket, clients: int) -> Callable[[], float]:
    """Return a measure of the rows per second, in millions, that all clients read together."""

    def measure() -> float:
        rows: list[int] = []
        threads = [
            threading.Thread(target=lambda: rows.append(drain(client, wanted)))
            for _ in range(clients)
        ]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(rows) / (time.perf_counter() - started) / 1e6

    return measure


def _pruned(client: flight.FlightClient, topic: str, shown: str, hold: float) -> Row:
    columns = [f"c{index}" for index in range(0, 100, 10)]
    return compare(
        f"10 of 100 columns against all 100, {shown}",
        "M rows/s",
        hold,
        _rate(client, ticket(kind="scan", topic=topic, columns=columns), 1),
        _rate(client, ticket(kind="scan", topic=topic), 1),
    )
