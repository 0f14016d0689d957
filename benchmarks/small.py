"""Small messages: one row or a hundred a push, to one partition or thousands, and read again."""

import itertools
import json
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight

from benchmarks.harness import (
    Row,
    act,
    at_most,
    bare_server,
    compare,
    cpu_seconds,
    create_topic,
    drain,
    median_seconds,
    open_put,
    ticket,
)
from wings_client import Client, connect
from wings_server.testing import ServerProcess, server_process

ACKS = 500
PUSHES = 10_000
IN_FLIGHT = 64
STREAMS = 8
KEYS = 1_000
HUNDREDS = 2_000
APPENDED = 200_000
PARTITIONS = 10_000
DRAIN_SECONDS = 10.0


def run() -> Iterator[Row]:
    """Measure pushes, and what was pushed read again."""
    with bare_server() as bare, server_process() as server, server.client() as client:
        bare_pid = _pid_of(bare)
        yield _acknowledgement(bare, client)
        yield from _one_row_pushes(bare, bare_pid, client, server)
        yield _streams_at_once(bare, client)
        yield from _other_pushes(bare, client)
        yield _hundreds(bare, client)
        yield _appended(server)
        yield from _read_again(bare, client, server)
        yield _many_partitions(client, server)
    yield _disk_after_merging()


def people(rows: int) -> pa.RecordBatch:
    """Return rows as people send them one at a time: a number, a name, a float, a time."""
    return pa.record_batch(
        {
            "id": pa.array(range(rows), pa.int64()),
            "name": pa.array([f"name-{number % 1000}" for number in range(rows)]),
            "value": pa.array([number / 7 for number in range(rows)]),
            "at": pa.array([1_700_000_000_000_000 + number for number in range(rows)]).cast(
                pa.timestamp("us", "UTC")
            ),
        }
    )


def _pid_of(bare: flight.FlightClient) -> int:
    return int(next(iter(bare.do_action(flight.Action("pid", b"")))).body.to_pybytes())


class Stream:
    """A stream of pushes, of some batches in turn, with a bounded number in flight."""

    def __init__(
        self,
        client: flight.FlightClient,
        descriptor: flight.FlightDescriptor,
        *batches: pa.RecordBatch,
    ) -> None:
        self._writer, self._answers = open_put(client, descriptor, batches[0].schema)
        self._batches = itertools.cycle(batches)

    def push(self, times: int, in_flight: int = IN_FLIGHT) -> float:
        """Push so many batches; return the seconds until all are acknowledged."""
        free = threading.Semaphore(in_flight)

        def read() -> None:
            for _ in range(times):
                assert self._answers.read() is not None, "the stream ended before its answers"
                free.release()

        reader = threading.Thread(target=read)
        started = time.perf_counter()
        reader.start()
        for batch in itertools.islice(self._batches, times):
            free.acquire()
            self._writer.write_batch(batch)
        reader.join()
        return time.perf_counter() - started

    def push_one(self) -> None:
        """Push a batch and wait for its answer."""
        self._writer.write_batch(next(self._batches))
        self._answers.read()

    def close(self) -> None:
        """End the stream."""
        self._writer.close()


def _bare_stream(bare: flight.FlightClient, *batches: pa.RecordBatch) -> Stream:
    return Stream(bare, flight.FlightDescriptor.for_command("{}"), *batches)


def _stream(client: flight.FlightClient, topic: str, batch: pa.RecordBatch) -> Stream:
    return Stream(client, flight.FlightDescriptor.for_path(topic), batch)


def _acknowledgement(bare: flight.FlightClient, client: flight.FlightClient) -> Row:
    """Measure the ack of a one-row push against a bare round trip and a synced SQLite commit."""
    batch = people(1)
    create_topic(client, "acks", batch.schema)
    with (
        closing(_stream(client, "acks", batch)) as ours,
        closing(_bare_stream(bare, batch)) as theirs,
        tempfile.TemporaryDirectory() as directory,
        closing(sqlite3.connect(Path(directory) / "database", isolation_level=None)) as database,
    ):
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("CREATE TABLE page (number INTEGER PRIMARY KEY, bytes BLOB)")
        numbers = itertools.count()

        def parts() -> None:
            theirs.push_one()
            database.execute("BEGIN IMMEDIATE")
            database.execute("INSERT INTO page VALUES (?, ?)", (next(numbers), bytes(600)))
            database.execute("COMMIT")

        return compare(
            "ack of a one-row push, p50",
            "ms",
            2.5,
            lambda: median_seconds(ours.push_one, ACKS) * 1e3,
            lambda: median_seconds(parts, ACKS) * 1e3,
            more_is_better=False,
        )


def _one_row_pushes(
    bare: flight.FlightClient, bare_pid: int, client: flight.FlightClient, server: ServerProcess
) -> Iterator[Row]:
    batch = people(1)
    create_topic(client, "ones", batch.schema)
    cpu: dict[int, float] = {}

    def rate(stream: Stream, pid: int) -> float:
        before = cpu_seconds(pid)
        seconds = stream.push(PUSHES)
        cpu[pid] = (cpu_seconds(pid) - before) / PUSHES * 1e6
        return PUSHES / seconds

    with (
        closing(_stream(client, "ones", batch)) as ours,
        closing(_bare_stream(bare, batch)) as theirs,
    ):
        yield compare(
            f"one-row pushes, {IN_FLIGHT} in flight",
            "pushes/s",
            0.5,
            lambda: rate(ours, server.pid),
            lambda: rate(theirs, bare_pid),
        )

        def cost(stream: Stream, pid: int) -> float:
            rate(stream, pid)
            return cpu[pid]

        yield compare(
            "CPU of the server for each of them",
            "us",
            3.0,
            lambda: cost(ours, server.pid),
            lambda: cost(theirs, bare_pid),
            runs=5,
            more_is_better=False,
        )


def _streams_at_once(bare: flight.FlightClient, client: flight.FlightClient) -> Row:
    """Measure several streams into one topic, each with as many pushes in flight."""
    batch = people(1)
    create_topic(client, "together", batch.schema)
    with ExitStack() as stack, ThreadPoolExecutor(STREAMS) as threads:
        ours = [
            stack.enter_context(closing(_stream(client, "together", batch))) for _ in range(STREAMS)
        ]
        theirs = [stack.enter_context(closing(_bare_stream(bare, batch))) for _ in range(STREAMS)]

        def rate(streams: list[Stream]) -> float:
            started = time.perf_counter()
            list(threads.map(Stream.push, streams, itertools.repeat(PUSHES // STREAMS)))
            return PUSHES / (time.perf_counter() - started)

        return compare(
            f"one-row pushes, {STREAMS} streams at once, {IN_FLIGHT} in flight on each",
            "pushes/s",
            0.4,
            lambda: rate(ours),
            lambda: rate(theirs),
        )


def _other_pushes(bare: flight.FlightClient, client: flight.FlightClient) -> Iterator[Row]:
    """Measure those that are numbered, staged, and routed by a key."""
    rows = people(KEYS)
    batches = [rows.slice(number, 1) for number in range(KEYS)]
    create_topic(client, "others", rows.schema)
    schema = {"fields": [{"name": f.name, "type": str(f.type)} for f in rows.schema]}
    act(client, "create-topic", topic="keyed", schema=schema, partition_key="name")
    sequences = {"producer_id": "p", "sequence": 0}
    commands: list[tuple[str, float, dict[str, object]]] = [
        ("with sequences", 0.5, {"topic": "others", **sequences}),
        ("staged", 0.5, {"topic": "others", "stage": "s"}),
        (f"keyed by {KEYS:,} keys", 0.35, {"topic": "keyed"}),
        (f"keyed by {KEYS:,} keys, with sequences", 0.35, {"topic": "keyed", **sequences}),
    ]
    for name, hold, command in commands:
        descriptor = flight.FlightDescriptor.for_command(json.dumps(command))
        with (
            closing(Stream(client, descriptor, *batches)) as ours,
            closing(_bare_stream(bare, *batches)) as theirs,
        ):
            yield compare(
                f"one-row pushes {name}, {IN_FLIGHT} in flight",
                "pushes/s",
                hold,
                lambda: PUSHES / ours.push(PUSHES),
                lambda: PUSHES / theirs.push(PUSHES),
            )


def _hundreds(bare: flight.FlightClient, client: flight.FlightClient) -> Row:
    batch = people(100)
    create_topic(client, "hundreds", batch.schema)
    with (
        closing(_stream(client, "hundreds", batch)) as ours,
        closing(_bare_stream(bare, batch)) as theirs,
    ):
        return compare(
            "100-row pushes, against half of bare",
            "rows/s",
            0.5,
            lambda: 100 * HUNDREDS / ours.push(HUNDREDS),
            lambda: 100 * HUNDREDS / theirs.push(HUNDREDS),
        )


def _appended(server: ServerProcess) -> Row:
    """Measure rows appended as dicts against pyarrow's conversion of the same rows."""
    rows = people(APPENDED).to_pylist()
    schema = people(1).schema

    def append(client: Client) -> float:
        started = time.perf_counter()
        with client.producer("appended") as producer:
            for row in rows:
                producer.append(row)
        return APPENDED / (time.perf_counter() - started)

    def convert() -> float:
        started = time.perf_counter()
        pa.Table.from_pylist(rows, schema=schema)
        return APPENDED / (time.perf_counter() - started)

    with connect(server.flight) as client:
        client.create_topic("appended", schema)
        return compare(
            "rows appended as dicts, against Table.from_pylist",
            "rows/s",
            0.4,
            lambda: append(client),
            convert,
            runs=5,
        )


def _read_again(
    bare: flight.FlightClient, client: flight.FlightClient, server: ServerProcess
) -> Iterator[Row]:
    """Measure reads of what was just pushed row by row, and of a log that had time to settle."""
    batch = people(1)
    costs: list[float] = []
    for number in range(3):
        topic = f"again-{number}"
        create_topic(client, topic, batch.schema)
        with closing(_stream(client, topic, batch)) as stream:
            stream.push(PUSHES, in_flight=1 if number == 0 else IN_FLIGHT)
        before = cpu_seconds(server.pid)
        assert drain(client, ticket(kind="scan", topic=topic)) == PUSHES
        costs.append((cpu_seconds(server.pid) - before) / PUSHES * 1e6)
    yield at_most("CPU to read one row that was just pushed", "us", 10.0, costs)

    ten = people(10)
    create_topic(client, "settled", ten.schema)
    with closing(_stream(client, "settled", ten)) as stream:
        stream.push(10 * PUSHES)
    time.sleep(DRAIN_SECONDS)
    rows = 100 * PUSHES
    with closing(
        Stream(
            bare,
            flight.FlightDescriptor.for_command(b'{"keep": "settled", "times": 16}'),
            people(65_536),
        )
    ) as keep:
        keep.push_one()

    def scan(wanted: flight.Ticket, source: flight.FlightClient, expected: int) -> float:
        started = time.perf_counter()
        assert drain(source, wanted) == expected
        return expected / (time.perf_counter() - started)

    yield compare(
        f"scan of 10-row pushes {DRAIN_SECONDS:.0f} s after the last",
        "rows/s",
        0.5,
        lambda: scan(ticket(kind="scan", topic="settled"), client, rows),
        lambda: scan(flight.Ticket(b"settled"), bare, 16 * 65_536),
    )


def _many_partitions(client: flight.FlightClient, server: ServerProcess) -> Row:
    """Measure a push to 10,000 partitions against SQLite writing as many states and locations."""
    batch = people(PARTITIONS)
    numbers = itertools.count()
    schema = {"fields": [{"name": f.name, "type": str(f.type)} for f in batch.schema]}

    def wings() -> float:
        topic = f"keys-{next(numbers)}"
        act(client, "create-topic", topic=topic, schema=schema, partition_key="id")
        with closing(_stream(client, topic, batch)) as stream:
            before = cpu_seconds(server.pid)
            stream.push_one()
            return cpu_seconds(server.pid) - before

    return compare(
        "push of 10,000 rows to 10,000 partitions, CPU",
        "s",
        3.5,
        wings,
        lambda: _sqlite_seconds(PARTITIONS),
        runs=5,
        more_is_better=False,
    )


def _sqlite_seconds(partitions: int) -> float:
    """Return the CPU that SQLite needs to write so many partition states and locations."""
    with (
        tempfile.TemporaryDirectory() as directory,
        closing(sqlite3.connect(Path(directory) / "database", isolation_level=None)) as database,
    ):
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute(
            "CREATE TABLE partitions (id INTEGER PRIMARY KEY, topic_id INTEGER, value TEXT, "
            "next_offset INTEGER, bytes INTEGER, last_timestamp INTEGER, UNIQUE (topic_id, value))"
        )
        database.execute(
            "CREATE TABLE pages (partition_id INTEGER, end_offset INTEGER, start_offset INTEGER, "
            "timestamp INTEGER, folio_id INTEGER, position INTEGER, length INTEGER, "
            "PRIMARY KEY (partition_id, end_offset)) WITHOUT ROWID"
        )
        states = [(number, 1, str(number), 1, 100, 1) for number in range(partitions)]
        pages = [(number, 0, 0, 1, 1, number, 100) for number in range(partitions)]
        before = time.process_time()
        database.execute("BEGIN IMMEDIATE")
        database.executemany("INSERT INTO partitions VALUES (?, ?, ?, ?, ?, ?)", states)
        database.executemany("INSERT INTO pages VALUES (?, ?, ?, ?, ?, ?, ?)", pages)
        database.execute("COMMIT")
        return time.process_time() - before


def _disk_after_merging() -> Row:
    """Measure what a log takes on disk that came row by row, against one that came at once."""
    rows = 20_000

    def size(pushes: int) -> float:
        with server_process() as server, server.client() as client:
            batch = people(rows // pushes)
            create_topic(client, "merged", batch.schema)
            with closing(_stream(client, "merged", batch)) as stream:
                stream.push(pushes)
            time.sleep(DRAIN_SECONDS)
            server.terminate()
            files = [path for path in server.data_dir.rglob("*") if path.is_file()]
            return float(sum(path.stat().st_size for path in files))

    return compare(
        "disk and metadata of one-row pushes, settled, against the same rows at once",
        "bytes",
        2.0,
        lambda: size(rows),
        lambda: size(1),
        runs=1,
        more_is_better=False,
    )
