"""Tiers: merging old pages, and reading them from the remote store."""

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight

from benchmarks.harness import (
    Row,
    act,
    at_least,
    at_most,
    bare_server,
    compare,
    cpu_seconds,
    create_topic,
    drain,
    narrow,
    push,
    status_kib,
    ticket,
    wide,
)
from wings_core.contracts.reads import ReadOptions
from wings_core.data_directory import DataDirectory
from wings_core.deployments import OneDirectory
from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.fetcher import Cancel, Read
from wings_core.fetch.selection import Selection
from wings_core.log import Log
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED
from wings_server.testing import server_process

MIB = 1 << 20

LARGE_ROWS = 32_768
LARGE_PUSHES = 300
"""About 300 MiB of Arrow data."""

SMALL_PUSHES = 20_000
"""Of ten rows each."""

WIDE_PUSHES = 4

SCANS = 5
"""Without compaction beside them."""

CACHE_MIB = 8
GROWTH_MIB_MAX = 64.0


def run() -> Iterator[Row]:
    """Measure compaction, and scans of what it wrote."""
    with tempfile.TemporaryDirectory() as directory:
        data, remote = Path(directory, "data"), Path(directory, "remote")
        with (
            server_process(data, flags=("--remote", str(remote))) as server,
            flight.FlightClient(server.flight) as client,
        ):
            yield from _measure(client, server.pid, remote)
        with DataDirectory.open(data) as opened, closing(Log.open(OneDirectory(opened))) as log:
            yield from _in_process(log, remote)
    with tempfile.TemporaryDirectory() as directory:
        yield _memory(Path(directory))


def _measure(client: flight.FlightClient, pid: int, remote: Path) -> Iterator[Row]:
    large, small = narrow(LARGE_ROWS), narrow(10)
    for name in ("alone", "large", "other"):
        create_topic(client, name, large.schema)
        push(client, name, large, LARGE_PUSHES)
    create_topic(client, "small", small.schema)
    push(client, "small", small, SMALL_PUSHES)
    # The same rows as the small pushes, in large ones.
    create_topic(client, "as-large", small.schema)
    push(client, "as-large", narrow(LARGE_ROWS), SMALL_PUSHES * 10 // LARGE_ROWS)
    create_topic(client, "wide", wide(1).schema)
    push(client, "wide", wide(LARGE_ROWS), WIDE_PUSHES)
    _compact(client, "wide", None)

    megabytes = LARGE_PUSHES * large.nbytes / 1e6
    before = cpu_seconds(pid)
    _compact(client, "alone", None)
    rate = megabytes / (cpu_seconds(pid) - before)
    yield at_least("compaction, of Arrow data, per second of a core", "MB/s", 100, [rate])
    _rate(client, "other")  # Verifies what is read for the first time.
    alone = statistics.median(_rate(client, "other") for _ in range(SCANS))
    beside = statistics.median(_compact(client, "large", "other"))
    yield at_least("a scan beside compaction, of one alone", "share", 0.667, [beside / alone])
    _compact(client, "small", None)
    yield compare(
        "scan, a log of 10-row pushes, compacted, against one of large pushes",
        "M rows/s",
        0.7,
        lambda: _rate(client, "small"),
        lambda: _rate(client, "as-large"),
    )
    directory = remote / "segments" / _uuid(client, "large")
    with bare_server() as bare:
        yield compare(
            "scan from the remote tier against a bare server that reads the segments",
            "M rows/s",
            0.8,
            lambda: _rate(client, "large"),
            lambda: _drained(bare, flight.Ticket(str(directory).encode())),
        )


def _compact(client: flight.FlightClient, topic: str, scanned: str | None) -> list[float]:
    """Merge a topic's pages; return the rates of scans of another that ended meanwhile."""
    act(client, "alter-topic", topic=topic, config={"tier_after_ms": 0})
    ended = threading.Event()
    rates: list[float] = []

    def scan() -> None:
        while scanned is not None:
            rate = _rate(client, scanned)
            if ended.is_set():
                return
            rates.append(rate)

    thread = threading.Thread(target=scan)
    thread.start()
    act(client, "maintain", topic=topic)
    ended.set()
    thread.join()
    return rates


def _uuid(client: flight.FlightClient, topic: str) -> str:
    described = act(client, "describe-topic", topic=topic)
    assert isinstance(described, dict)
    return str(described["uuid"])  # pyright: ignore[reportUnknownArgumentType] - it is JSON


def _rate(client: flight.FlightClient, topic: str) -> float:
    """Return the rows per second, in millions, of a scan."""
    return _drained(client, ticket(kind="scan", topic=topic))


def _drained(client: flight.FlightClient, wanted: flight.Ticket) -> float:
    started = time.perf_counter()
    return drain(client, wanted) / (time.perf_counter() - started) / 1e6


def _in_process(log: Log, remote: Path) -> Iterator[Row]:
    """Compare what the wire has no part in."""
    uuid = log.admin.get_topic(TopicName.parse("large")).uuid
    files = sorted((remote / "segments" / uuid).iterdir())
    yield compare(
        "scan from the remote tier, in process, against pyarrow reading the segments",
        "M rows/s",
        0.8,
        partial(_scan_rate, log, "large", None),
        lambda: _plain_rate(files),
    )
    reads = log.storage.objects["remote"].counts

    def read_mib(columns: Sequence[str] | None) -> float:
        before = reads.snapshot()["read"].bytes
        _scan_rate(log, "wide", columns)
        return (reads.snapshot()["read"].bytes - before) / MIB

    some = [f"c{index}" for index in range(0, 100, 10)]
    yield compare(
        "10 of 100 columns from the remote tier: bytes read",
        "MiB",
        0.2,
        lambda: read_mib(some),
        lambda: read_mib(None),
        runs=3,
        more_is_better=False,
    )


def _scan_rate(log: Log, name: str, columns: Sequence[str] | None) -> float:
    """Scan a topic of which nothing is in memory; millions of rows per second."""
    log.storage.cache.clear()
    topic = log.admin.get_topic(TopicName.parse(name))
    selection = Selection.of(
        topic, ReadOptions(columns=None if columns is None else tuple(columns))
    )
    end = log.registry.partition_state(topic.uuid, UNPARTITIONED).next_offset
    started = time.perf_counter()
    read = Read.of(topic, [PartitionCursor(UNPARTITIONED, 0, end)], selection)
    rows = sum(chunk.batch.num_rows for chunk in log.fetcher.scan(read, Cancel()))
    assert rows == end
    return rows / (time.perf_counter() - started) / 1e6


def _plain_rate(files: Sequence[Path]) -> float:
    """Read segments by pyarrow alone, one after the other, unverified."""
    started = time.perf_counter()
    rows = 0
    for path in files:
        with pa.OSFile(str(path), "rb") as source:
            file = pa.ipc.open_file(source)
            for number in range(file.num_record_batches):
                rows += file.get_batch(number).num_rows
    return rows / (time.perf_counter() - started) / 1e6


def _memory(directory: Path) -> Row:
    """Measure the growth of RssAnon over scans of ten times the cache, after a first one."""
    values = pa.Array.from_buffers(
        pa.int64(), LARGE_ROWS * 4, [None, pa.py_buffer(os.urandom(MIB))]
    )
    batch = pa.record_batch({"n": values})
    with (
        server_process(
            directory / "data",
            flags=("--remote", str(directory / "remote")),
            environment={"WINGS_LIMITS__PAGE_CACHE_BYTES_MAX": str(CACHE_MIB * MIB)},
        ) as server,
        flight.FlightClient(server.flight) as client,
    ):
        create_topic(client, "random", batch.schema)
        push(client, "random", batch, 10 * CACHE_MIB)
        _compact(client, "random", None)
        _rate(client, "random")
        before = status_kib(server.pid, "RssAnon")
        growths: list[float] = []
        for _ in range(3):
            _rate(client, "random")
            growths.append((status_kib(server.pid, "RssAnon") - before) / 1024)
        return at_most(
            "RssAnon growth over a scan of merged segments, ten times the cache",
            "MiB",
            GROWTH_MIB_MAX,
            growths,
        )
