"""What the ack of a one-row push costs at least, in Python over SQLite: the floor under Wings' own.

    python -m benchmarks.ack_floor [rounds]

A bare pyarrow server answers a batch once it is durable, in ways that differ in one thing
each, and Wings beside it. All are pushed to in turn, one push each, so that what else the machine
does meets all alike; the last column is against the sum that `benchmarks.small` holds Wings to.
"""

import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from queue import SimpleQueue

import pyarrow as pa
import pyarrow.flight as flight

from benchmarks.harness import cpu_seconds, create_topic, open_put
from benchmarks.small import people
from wings_server.testing import server_process

PUSHES = 200
"""Of each, in a round."""

ROUNDS = 5

RECORDS_BYTES = 1024 * 1024

ROW_BYTES = 600
"""About what a page of one row has."""

ANSWERED, RECORDED, COMMITTED = "answered", "recorded", "committed"
HANDED_OVER, INDEXED = "handed over", "indexed"
HOWS = {
    ANSWERED: "nothing is kept: the bare round trip",
    RECORDED: "one record, written and synced to a file that does not grow, without SQLite",
    COMMITTED: "one insert, committed by the call's own thread",
    HANDED_OVER: "the same, committed and answered by a second thread",
    INDEXED: "as handed over, and the rows that an index of the log needs at least",
}


class Database:
    """A database in which each transaction is synced."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = FULL",
            "CREATE TABLE inline (id INTEGER PRIMARY KEY, bytes BLOB)",
            "CREATE TABLE folios (id INTEGER PRIMARY KEY, name TEXT UNIQUE, pages INTEGER)",
            "CREATE TABLE partitions (id INTEGER PRIMARY KEY, next_offset INTEGER, bytes INTEGER)",
            (
                "CREATE TABLE pages (partition_id INTEGER, end_offset INTEGER, folio_id INTEGER, "
                "position INTEGER, length INTEGER, PRIMARY KEY (partition_id, end_offset)) "
                "WITHOUT ROWID"
            ),
            "INSERT INTO partitions VALUES (1, 0, 0)",
        ):
            self._database.execute(statement)
        self._number = 0

    def commit(self) -> None:
        """Insert the bytes of a page; blocks until they are durable."""
        self._database.execute("BEGIN IMMEDIATE")
        self._insert()
        self._database.execute("COMMIT")

    def commit_indexed(self) -> None:
        """Insert the bytes of a page, and where they lie in the log."""
        self._database.execute("BEGIN IMMEDIATE")
        number = self._insert()
        self._database.execute(
            "UPDATE partitions SET next_offset = ?, bytes = bytes + ? WHERE id = 1",
            (number, ROW_BYTES),
        )
        name = f"{time.time_ns():016x}-{number:x}.inline"
        self._database.execute("INSERT INTO folios VALUES (?, ?, 1)", (number, name))
        self._database.execute(
            "INSERT INTO pages VALUES (1, ?, ?, 0, ?)", (number, number, ROW_BYTES)
        )
        self._database.execute("COMMIT")

    def close(self) -> None:
        """Close it."""
        self._database.close()

    def _insert(self) -> int:
        self._number += 1
        self._database.execute("INSERT INTO inline VALUES (?, ?)", (self._number, bytes(ROW_BYTES)))
        return self._number


class Records:
    """A file of records, each of which is synced: what a log without an index would do."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.write(self._file, bytes(RECORDS_BYTES))
        os.fsync(self._file)
        self._position = 0

    def commit(self) -> None:
        """Write a page over the oldest; blocks until it is durable."""
        os.pwrite(self._file, bytes(ROW_BYTES), self._position)
        os.fdatasync(self._file)
        self._position = (self._position + ROW_BYTES) % (RECORDS_BYTES - ROW_BYTES)

    def close(self) -> None:
        """Close it."""
        os.close(self._file)


class AckServer(flight.FlightServerBase):
    """Answers each batch of a stream in one of the `HOWS`, which its command names."""

    def __init__(self, directory: Path) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._directory = directory

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """Answer each batch until the client ends."""
        assert descriptor.command is not None
        how = json.loads(descriptor.command)
        with (
            closing(Database(self._directory / how)) as database,
            closing(Records(self._directory / "records")) as records,
        ):
            commit = database.commit_indexed if how == INDEXED else database.commit
            if how == RECORDED:
                commit = records.commit

            def answer() -> None:
                if how != ANSWERED:
                    commit()
                writer.write(pa.py_buffer(b"{}"))

            if how in (ANSWERED, RECORDED, COMMITTED):
                for _ in iter(lambda: _next(reader), None):
                    answer()
                return
            arrived: SimpleQueue[pa.RecordBatch | None] = SimpleQueue()

            def answer_all() -> None:
                for _ in iter(arrived.get, None):
                    answer()

            second = threading.Thread(target=answer_all)
            second.start()
            for batch in iter(lambda: _next(reader), None):
                arrived.put(batch)
            arrived.put(None)
            second.join()


def _next(reader: flight.MetadataRecordBatchReader) -> pa.RecordBatch | None:
    try:
        return reader.read_chunk().data
    except StopIteration:
        return None


@contextmanager
def _ack_server() -> Generator[tuple[flight.FlightClient, int]]:
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.ack_floor", "serve"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        with flight.connect(f"grpc://127.0.0.1:{int(child.stdout.readline())}") as client:
            yield client, child.pid
    finally:
        child.terminate()
        child.wait(timeout=10)


def measure(rounds: int) -> None:
    """Print the ack's median of each way, the server's CPU, and the ratio to the sum."""
    batch = people(1)
    seconds: dict[str, list[float]] = {}
    cpu: dict[str, float] = {}
    with ExitStack() as stack:
        bare, bare_pid = stack.enter_context(_ack_server())
        wings = stack.enter_context(server_process())
        client = stack.enter_context(wings.client())
        create_topic(client, "acks", batch.schema)
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        database = stack.enter_context(closing(Database(Path(directory) / "client")))

        def pushing(
            to: flight.FlightClient, descriptor: flight.FlightDescriptor
        ) -> Callable[[], None]:
            writer, answers = open_put(to, descriptor, batch.schema)
            stack.callback(writer.close)

            def push() -> None:
                writer.write_batch(batch)
                answers.read()

            return push

        calls: dict[str, tuple[Callable[[], None], int]] = {
            how: (pushing(bare, flight.FlightDescriptor.for_command(json.dumps(how))), bare_pid)
            for how in HOWS
        }
        calls["wings"] = pushing(client, flight.FlightDescriptor.for_path("acks")), wings.pid
        calls["sqlite"] = database.commit, 0
        for number in range(PUSHES * (rounds + 1)):
            for name, (call, pid) in calls.items():
                used = cpu_seconds(pid) if pid else time.process_time()
                started = time.perf_counter()
                call()
                took = time.perf_counter() - started
                used = (cpu_seconds(pid) if pid else time.process_time()) - used
                if number >= PUSHES:  # The first round does not count.
                    seconds.setdefault(name, []).append(took)
                    cpu[name] = cpu.get(name, 0.0) + used
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    parts = medians[ANSWERED] + medians["sqlite"]
    print(f"{'':12} {'p50, ms':>8} {'CPU, µs':>8} {'ratio':>6}")  # noqa: T201
    for name, median in medians.items():
        used = cpu[name] / (PUSHES * rounds) * 1e6
        what = HOWS.get(name, "")
        print(f"{name:12} {median * 1e3:8.3f} {used:8.0f} {median / parts:6.2f}  {what}")  # noqa: T201


def main() -> None:
    """Serve, or measure."""
    if sys.argv[1:] == ["serve"]:
        with tempfile.TemporaryDirectory() as directory:
            server = AckServer(Path(directory))
            print(server.port, flush=True)  # noqa: T201 - told to the parent process
            threading.Event().wait()
    measure(int(sys.argv[1]) if sys.argv[1:] else ROUNDS)


if __name__ == "__main__":
    main()
