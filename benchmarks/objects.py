"""Messages in an object store: scans, a few of many columns, and memory.

The store is a bare S3 server in a process of its own.
"""

import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import obstore
import pyarrow as pa
from obstore.store import S3Store

from benchmarks.harness import (
    Row,
    at_most,
    compare,
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
from wings_core.ingest.pending import PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.log import Log
from wings_core.model import Location, Topic
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED
from wings_server.testing import server_process

MIB = 1 << 20
CACHE_MIB = 32
GROWTH_MIB_MAX = 64.0

_BUCKET = "bench"


def run() -> Iterator[Row]:
    """Measure reading from an object store."""
    with tempfile.TemporaryDirectory() as directory, _s3_server(Path(directory, "s3")):
        with DataDirectory.open(Path(directory, "data")) as opened:
            log = Log.open(OneDirectory(opened, hot=f"s3://{_BUCKET}/log"))
            with closing(log):
                yield from _scan(log)
                yield _pruned(log)
        yield _memory()


@contextmanager
def _s3_server(directory: Path) -> Generator[None]:
    """Run an S3 server over a directory, and let this process and its children find it."""
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.s3_server", str(directory)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        os.environ.update(
            AWS_ENDPOINT_URL=f"http://127.0.0.1:{int(child.stdout.readline())}",
            AWS_ACCESS_KEY_ID="bench",
            AWS_SECRET_ACCESS_KEY="bench",
            AWS_REGION="us-east-1",
        )
        yield
    finally:
        child.kill()
        child.wait()


def _fill(log: Log, name: str, batch: pa.RecordBatch, times: int) -> Topic:
    topic = log.admin.create_topic(TopicName.parse(name), batch.schema)
    preparer, stream = Preparer(topic, log.limits), PushStream()
    pending = [
        log.group_commit.submit(stream, preparer.prepare(batch, PushOptions()), awaited=False)
        for _ in range(times)
    ]
    for each in pending:
        each.accepted()
    return topic


def _scan(log: Log) -> Iterator[Row]:
    for name, columns, batch in (
        ("narrow", 4, narrow(32_768)),
        ("hundred", 100, wide(1_310)),
    ):
        topic = _fill(log, name, batch, 192)
        located = _all_locations(log, topic)
        yield compare(
            f"scan from S3, 1 MiB batches, {columns} columns",
            "M rows/s",
            0.8,
            partial(_rows_per_second, log, topic, None),
            partial(_plain_rows_per_second, topic, located),
        )


def _all_locations(log: Log, topic: Topic) -> list[Location]:
    end = log.registry.partition_state(topic.uuid, UNPARTITIONED).next_offset
    locations: list[Location] = []
    while not locations or locations[-1].end_offset + 1 < end:
        offset = locations[-1].end_offset + 1 if locations else 0
        locations += log.registry.locate(topic.uuid, UNPARTITIONED, offset, end).locations
    return locations


def _rows_per_second(log: Log, topic: Topic, columns: Sequence[str] | None) -> float:
    """Scan a topic of which nothing is in memory; millions of rows per second."""
    log.storage.cache.clear()
    selection = Selection.of(
        topic, ReadOptions(columns=None if columns is None else tuple(columns))
    )
    end = log.registry.partition_state(topic.uuid, UNPARTITIONED).next_offset
    started = time.perf_counter()
    read = Read.of(topic, [PartitionCursor(UNPARTITIONED, 0, end)], selection)
    rows = sum(chunk.batch.num_rows for chunk in log.fetcher.scan(read, Cancel()))
    assert rows == end
    return rows / (time.perf_counter() - started) / 1e6


def _plain_rows_per_second(topic: Topic, located: Sequence[Location]) -> float:
    """Read the same objects by obstore and pyarrow alone, one after the other, unverified."""
    client = S3Store.from_url(f"s3://{_BUCKET}/log", client_options={"allow_http": True})
    started = time.perf_counter()
    rows = 0
    name, data = "", pa.py_buffer(b"")
    for location in located:
        address = location.address
        if address.folio != name:
            name = address.folio
            data = pa.py_buffer(obstore.get(client, name).bytes())
        page = data.slice(address.position, address.length)
        header, _, length = struct.unpack_from("<IIQ", page, 8)
        rows += pa.ipc.read_record_batch(page.slice(header, length), topic.schema).num_rows
    return rows / (time.perf_counter() - started) / 1e6


def _pruned(log: Log) -> Row:
    """Compare the bytes that are read for ten columns with those of all."""
    topic = _fill(log, "wide", wide(16_384), 10)
    reads = log.storage.objects["hot"].counts

    def read_mib(columns: Sequence[str] | None) -> float:
        before = reads.snapshot()["read"].bytes
        _rows_per_second(log, topic, columns)
        return (reads.snapshot()["read"].bytes - before) / MIB

    some = [f"c{index}" for index in range(0, 100, 10)]
    return compare(
        "10 of 100 columns from S3: bytes read",
        "MiB",
        0.2,
        lambda: read_mib(some),
        lambda: read_mib(None),
        runs=3,
        more_is_better=False,
    )


def _memory() -> Row:
    """Measure the growth of RssAnon over scans of ten times the cache, after a first one."""
    flags = ["--hot", f"s3://{_BUCKET}/memory"]
    environment = {"WINGS_LIMITS__PAGE_CACHE_BYTES_MAX": str(CACHE_MIB * MIB)}
    with (
        server_process(flags=flags, environment=environment) as server,
        server.client() as client,
    ):
        batch = narrow(32_768)
        create_topic(client, "large", batch.schema)
        push(client, "large", batch, 10 * CACHE_MIB)
        wanted = ticket(kind="scan", topic="large")
        drain(client, wanted)
        before = status_kib(server.pid, "RssAnon")
        growths: list[float] = []
        for _ in range(3):
            drain(client, wanted)
            growths.append((status_kib(server.pid, "RssAnon") - before) / 1024)
        return at_most(
            "RssAnon growth over a scan of S3, ten times the cache", "MiB", GROWTH_MIB_MAX, growths
        )
