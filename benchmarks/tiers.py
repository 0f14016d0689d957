"""Tiers: merging old pages, and reading them from the remote store."""

import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight

from benchmarks.harness import (
    Row,
    act,
    at_least,
    compare,
    create_topic,
    drain,
    narrow,
    push,
    ticket,
)
from wings_server.testing import server_process

LARGE_ROWS = 32_768
LARGE_PUSHES = 300
"""About 300 MiB of Arrow data."""

SMALL_PUSHES = 20_000
"""Of ten rows each."""


def run() -> Iterator[Row]:
    """Measure compaction, and scans of what it wrote."""
    with tempfile.TemporaryDirectory() as directory:
        remote = Path(directory, "remote")
        flags = ("--remote", str(remote))
        with (
            server_process(Path(directory, "data"), flags=flags) as server,
            flight.FlightClient(server.flight) as client,
        ):
            yield from _measure(client, remote)


def _measure(client: flight.FlightClient, remote: Path) -> Iterator[Row]:
    large, small = narrow(LARGE_ROWS), narrow(10)
    for name in ("large", "other"):
        create_topic(client, name, large.schema)
        push(client, name, large, LARGE_PUSHES)
    create_topic(client, "small", small.schema)
    push(client, "small", small, SMALL_PUSHES)
    # The same rows as the small pushes, in large ones.
    create_topic(client, "as-large", small.schema)
    push(client, "as-large", narrow(LARGE_ROWS), SMALL_PUSHES * 10 // LARGE_ROWS)

    alone = _rate(client, "other")
    megabytes = LARGE_PUSHES * large.nbytes / 1e6
    seconds, beside = _compact(client, "large", "other")
    yield at_least("compaction, beside a scan, of Arrow data", "MB/s", 100, [megabytes / seconds])
    yield at_least(
        "a scan beside compaction, of one alone", "share", 0.667, [min(1.0, beside / alone)]
    )
    _compact(client, "small", None)
    yield compare(
        "scan, a log of 10-row pushes, compacted, against one of large pushes",
        "M rows/s",
        0.7,
        lambda: _rate(client, "small"),
        lambda: _rate(client, "as-large"),
    )
    files = sorted((remote / "segments" / _uuid(client, "large")).iterdir())
    yield compare(
        "scan from the remote tier against plain pyarrow reading the segments",
        "M rows/s",
        0.8,
        lambda: _rate(client, "large"),
        lambda: _plain(files),
    )


def _compact(client: flight.FlightClient, topic: str, scanned: str | None) -> tuple[float, float]:
    """Merge a topic's pages; return the seconds, and the rate of scans of another meanwhile."""
    act(client, "alter-topic", topic=topic, config={"tier_after_ms": 0})
    ended = threading.Event()
    rates: list[float] = []

    def scan() -> None:
        while scanned is not None and not ended.is_set():
            rates.append(_rate(client, scanned))

    thread = threading.Thread(target=scan)
    started = time.perf_counter()
    thread.start()
    act(client, "maintain", topic=topic)
    seconds = time.perf_counter() - started
    ended.set()
    thread.join()
    return seconds, sum(rates) / max(1, len(rates))


def _uuid(client: flight.FlightClient, topic: str) -> str:
    described = act(client, "describe-topic", topic=topic)
    assert isinstance(described, dict)
    return str(described["uuid"])  # pyright: ignore[reportUnknownArgumentType] - it is JSON


def _rate(client: flight.FlightClient, topic: str) -> float:
    """Return the rows per second, in millions, of a scan."""
    started = time.perf_counter()
    rows = drain(client, ticket(kind="scan", topic=topic))
    return rows / (time.perf_counter() - started) / 1e6


def _plain(files: list[Path]) -> float:
    started = time.perf_counter()
    rows = 0
    for path in files:
        with pa.OSFile(str(path), "rb") as source:
            file = pa.ipc.open_file(source)
            for number in range(file.num_record_batches):
                rows += file.get_batch(number).num_rows
    return rows / (time.perf_counter() - started) / 1e6
