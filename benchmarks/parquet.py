"""Segments as Parquet files beside those of Arrow: size, merging, cold scans; CPU time."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.harness import Row, compare
from wings_core.contracts.reads import ReadOptions
from wings_core.data_directory import DataDirectory
from wings_core.deployments import OneDirectory
from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.fetcher import Cancel, Read
from wings_core.fetch.selection import Selection
from wings_core.ingest.pending import PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.limits import Limits
from wings_core.log import Log
from wings_core.model import Topic, TopicConfig
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED

MIB = 1 << 20
PUSHES = 8
ROWS = 65_536
COLUMNS = 100
SOME = [f"c{index}" for index in range(0, COLUMNS, 10)]
RUNS = 5


def run() -> Iterator[Row]:
    """Measure both formats over the same rows."""
    with (
        tempfile.TemporaryDirectory() as directory,
        DataDirectory.open(Path(directory)) as opened,
        closing(Log.open(OneDirectory(opened), Limits(maintenance_seconds=1e6))) as log,
    ):
        for shape, batches in (("events", _events), ("wide", _wide)):
            arrow, parquet = (_filled(log, shape, each, batches) for each in ("arrow", "parquet"))
            yield from _figures(log, shape, arrow, parquet)


def _figures(log: Log, shape: str, arrow: "_Filled", parquet: "_Filled") -> Iterator[Row]:
    yield _compare(f"{shape}: stored", "MiB", 2.0, lambda: parquet.size, lambda: arrow.size)
    yield _compare(f"{shape}: merge, CPU", "s", 3.0, lambda: parquet.merge, lambda: arrow.merge)
    for name, columns in (("all", None), ("10 of 100", SOME)):
        if columns is None or shape == "wide":
            yield _compare(
                f"{shape}: cold scan of {name} columns, CPU",
                "s",
                3.0,
                partial(_scan, log, parquet.topic, columns),
                partial(_scan, log, arrow.topic, columns),
            )


class _Filled:
    """A topic of which all rows are merged, and what that took."""

    def __init__(self, topic: Topic, size: float, merge: float) -> None:
        self.topic, self.size, self.merge = topic, size, merge


def _compare(
    name: str, unit: str, hold: float, parquet: Callable[[], float], arrow: Callable[[], float]
) -> Row:
    title = f"Parquet against Arrow segments, {name}"
    return compare(title, unit, hold, parquet, arrow, runs=RUNS, more_is_better=False)


def _filled(
    log: Log, shape: str, format_: str, batches: Callable[[int], pa.RecordBatch]
) -> _Filled:
    name = TopicName.parse(f"{shape}-{format_}")
    config = TopicConfig.model_validate({"tier_after_ms": 0, "segment_format": format_})
    topic = log.admin.create_topic(name, batches(0).schema, config=config)
    preparer, stream = Preparer(topic, log.limits), PushStream()
    for number in range(PUSHES):
        batch = preparer.prepare(batches(number), PushOptions())
        log.group_commit.submit(stream, batch, awaited=True).accepted()
    before = time.process_time()
    report = log.maintainer.run(topic)
    return _Filled(topic, report.segment_bytes / MIB, time.process_time() - before)


def _scan(log: Log, topic: Topic, columns: Sequence[str] | None) -> float:
    """Scan a topic of which nothing is in memory; seconds of CPU."""
    log.storage.cache.clear()
    selection = Selection.of(
        topic, ReadOptions(columns=None if columns is None else tuple(columns))
    )
    before = time.process_time()
    read = Read.of(topic, [PartitionCursor(UNPARTITIONED, 0, PUSHES * ROWS)], selection)
    rows = sum(chunk.batch.num_rows for chunk in log.fetcher.scan(read, Cancel()))
    assert rows == PUSHES * ROWS
    return time.process_time() - before


def _random(rows: int, bytes_each: int) -> bytes:
    return os.urandom(rows * bytes_each)


def _events(number: int) -> pa.RecordBatch:
    """Return what services tell: a key, a name of few, numbers, a text."""
    draws = _random(ROWS, 4)
    first = number * ROWS
    return pa.record_batch(
        {
            "id": pa.array(range(first, first + ROWS), pa.int64()),
            "kind": pa.array([f"kind-{draw % 20}" for draw in draws[:ROWS]]),
            "value": pa.array([draw / 7 for draw in draws[ROWS : 2 * ROWS]]),
            "user": pa.array([draw * 1_000 for draw in draws[2 * ROWS : 3 * ROWS]], pa.int32()),
            "text": pa.array([f"{first + row} took {draws[row]} ms" for row in range(ROWS)]),
        }
    )


def _wide(number: int) -> pa.RecordBatch:
    """Return numbers of which two bytes are random."""
    columns: dict[str, Any] = {}
    for index in range(COLUMNS):
        low = pa.Array.from_buffers(pa.uint16(), ROWS, [None, pa.py_buffer(_random(ROWS, 2))])
        columns[f"c{index}"] = low.cast(pa.int64())
    del number
    return pa.record_batch(columns)
