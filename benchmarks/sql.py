"""SQL over topics: aggregates, few columns, look-ups of one row, and system tables.

Aggregates run in a worker of this process, against DuckDB over the same rows as an Arrow table in
memory here.
`WINGS_BENCH_ROWS` takes the place of their 20 million rows. Look-ups go through a client to a
server of its own; what holds is the processor time of both, as on a busy machine the time by the
clock is mostly the other processes'.
"""

import gc
import os
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import duckdb
import pyarrow as pa

import wings_client
from benchmarks.harness import Row, at_most, compare, compare_in_turn, cpu_seconds, wide
from wings_core.data_directory import DataDirectory
from wings_core.deployments import OneDirectory
from wings_core.ingest.pending import PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.limits import Limits
from wings_core.log import Log
from wings_core.model import Topic
from wings_core.names import TopicName
from wings_core.sql import Sql
from wings_server.lifecycle import collect_rarely
from wings_server.testing import server_process

ROWS = int(os.environ.get("WINGS_BENCH_ROWS", "20000000"))
BATCH_ROWS = 131_072
KEYS = 100
TEXTS = 50

AGGREGATES = {
    "a sum": "select sum(n) from numbers",
    "sums by 100 keys": "select key, sum(value) from numbers group by 1",
    "averages by 50 texts, with a condition": (
        "select text, avg(value) from numbers where n % 3 = 0 group by 1"
    ),
}

WIDE_ROWS = 16_384
WIDE_BATCHES = 10

LOOKUP_ROWS = 1_000_000
LOOKUPS = 200
"""Of a run."""

PARTITIONS = 100_000
PARTITIONS_PUSHED = 10_000
"""At once."""

MIB = 1 << 20


def run() -> Iterator[Row]:
    """Measure section "SQL" of the design."""
    yield from _aggregates()
    yield _columns()
    yield from _lookups()
    yield from _system_tables()


@contextmanager
def _log(*, hot: bool = False) -> Generator[tuple[Log, Sql]]:
    """Open a log in this process, and SQL over it, which does not maintain itself meanwhile.

    Cycles are collected as in a server's process: as Python does by itself, all that was ever
    imported is looked at again for each hundred thousand partitions' states, which takes as long.
    """
    thresholds = gc.get_threshold()
    with tempfile.TemporaryDirectory() as directory:
        url = f"file://{directory}/hot" if hot else None
        limits = Limits(maintenance_seconds=1e6, page_cache_bytes_max=1)
        with (
            DataDirectory.open(Path(directory, "data")) as opened,
            closing(Log.open(OneDirectory(opened, hot=url), limits)) as log,
            closing(Sql(log)) as sql,
        ):
            collect_rarely()
            try:
                yield log, sql
            finally:
                gc.unfreeze()
                gc.set_threshold(*thresholds)


def _filled(
    log: Log, name: str, batches: Sequence[pa.RecordBatch], key: str | None = None
) -> Topic:
    topic = log.admin.create_topic(TopicName.parse(name), batches[0].schema, key)
    preparer, stream = Preparer(topic, log.limits), PushStream()
    for batch in batches:
        prepared = preparer.prepare(batch, PushOptions())
        log.group_commit.submit(stream, prepared, awaited=True).accepted()
    return topic


def _numbers(rows: int) -> list[pa.RecordBatch]:
    """Return rows with a number, a key and a text of few, and a value, out of order."""
    text = f"""
        select n, mixed % {KEYS} as key, (mixed % 1_000_003)::double as value,
            format('text-{{:02d}}', mixed % {TEXTS}) as text
        from (select n, n * 2_654_435_761 % 4_294_967_291 as mixed from range({rows}) r(n))
    """
    with duckdb.connect() as made:
        return made.sql(text).to_arrow_table(BATCH_ROWS).to_batches(BATCH_ROWS)


def _aggregates() -> Iterator[Row]:
    with _log() as (log, sql), duckdb.connect() as memory:
        batches = _numbers(ROWS)
        _filled(log, "numbers", batches)
        memory.register("numbers", pa.Table.from_batches(batches))
        for name, text in AGGREGATES.items():
            yield compare_in_turn(
                f"SQL, {name} over {ROWS / 1e6:g} M rows, against DuckDB",
                "M rows/s",
                0.25,
                partial(_rate, partial(_answer, sql, text)),
                partial(_rate, lambda text=text: memory.sql(text).to_arrow_table()),
                runs=5,
                times=4,
            )


def _rate(ask: Callable[[], object]) -> float:
    started = time.perf_counter()
    ask()
    return ROWS / (time.perf_counter() - started) / 1e6


def _answer(sql: Sql, text: str) -> list[pa.RecordBatch]:
    return list(sql.open(text, lambda _: None).batches())


def _columns() -> Row:
    """Compare the bytes that are read for two columns with those of all."""
    with _log(hot=True) as (log, sql):
        _filled(log, "wide", [wide(WIDE_ROWS)] * WIDE_BATCHES)
        counts = log.storage.objects["hot"].counts

        def read_mib(columns: Sequence[int]) -> float:
            log.storage.cache.clear()
            before = counts.snapshot()
            shown = ", ".join(f"max(c{index})" for index in columns)
            _answer(sql, f"select {shown} from wide")
            first = before["read"].bytes if "read" in before else 0
            return (counts.snapshot()["read"].bytes - first) / MIB

        return compare(
            "SQL, 2 of 100 columns: bytes read",
            "MiB",
            0.05,
            lambda: read_mib((17, 80)),
            lambda: read_mib(range(100)),
            runs=3,
            more_is_better=False,
        )


def _lookups() -> Iterator[Row]:
    """Measure looking up one row by its offset."""
    with server_process() as server, wings_client.connect(server.flight) as client:
        client.create_topic(
            "numbers", {"n": "int64", "key": "int64", "value": "double", "text": "string"}
        )
        for batch in _numbers(LOOKUP_ROWS):
            client.push("numbers", batch)

        def look_up(index: int) -> None:
            offset = index * 7919 % LOOKUP_ROWS
            found = client.sql("select * from numbers where __offset = ?", [offset]).read_all()
            assert found.column("n").to_pylist() == [offset]

        def measure() -> tuple[float, float]:
            started, used = time.perf_counter(), time.process_time() + cpu_seconds(server.pid)
            for index in range(LOOKUPS):
                look_up(index)
            used = time.process_time() + cpu_seconds(server.pid) - used
            seconds = time.perf_counter() - started
            return used * 1e3 / LOOKUPS, seconds * 1e3 / LOOKUPS

        measure()
        measured = [measure() for _ in range(5)]
        title = "SQL, a look-up by offset through a client"
        yield at_most(f"{title}: CPU of both sides", "ms", 8.0, [used for used, _ in measured])
        yield at_most(f"{title} (any time)", "ms", 1e3, [taken for _, taken in measured])


def _system_tables() -> Iterator[Row]:
    """Measure what metadata tells of very many partitions."""
    with _log() as (log, sql):
        batches: list[pa.RecordBatch] = []
        for first in range(0, PARTITIONS, PARTITIONS_PUSHED):
            numbers: Any = cast("Any", pa).arange(first, first + PARTITIONS_PUSHED)
            batches.append(pa.record_batch({"k": numbers}))
        _filled(log, "many", batches, "k")
        for name, bound, text in (
            (
                "system.partitions",
                500.0,
                "select count(*), sum(next_offset) from system.partitions",
            ),
            ("system.segments", 1_000.0, "select tier, sum(rows) from system.segments group by 1"),
            ("system.topics", 50.0, "select count(*) from system.topics"),
            ("a look-up by key", 5.0, "select * from many where k = 77777"),
        ):
            values = [_cpu_ms(partial(_answer, sql, text)) for _ in range(6)][1:]
            title = f"SQL, {name} of {PARTITIONS:,} partitions: CPU"
            yield at_most(title, "ms", bound, values)


def _cpu_ms(call: Callable[[], object]) -> float:
    before = time.process_time()
    call()
    return (time.process_time() - before) * 1e3
