"""What the ack of a one-row push costs at least, in Python over SQLite: the floor under Wings' own.

    python -m benchmarks.ack_floor [rounds]

A bare pyarrow server answers a batch once it is durable, in ways that differ in one thing
each, and Wings beside it. All are pushed to in turn, one push each, so that what else the machine
does meets all alike, in an order that differs each time. The ratio is to the sum that
`benchmarks.small` holds Wings to, and the last line says whether a server that does the least could
keep to it on this machine.

Pages are those that a commit writes to SQLite's log, counted in the logs themselves: a server that
wrote fewer than its index needs would be no floor.
"""

import json
import os
import sqlite3
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from queue import SimpleQueue

import pyarrow as pa
import pyarrow.flight as flight

from benchmarks.acks import (
    Acks,
    ack_server,
    batches,
    in_the_way,
    pushing,
    serve_or_measure,
    take_in_turn,
)
from benchmarks.harness import create_topic
from benchmarks.small import people
from wings_core.batches import BatchCheck
from wings_core.contracts.put import result_to_json
from wings_core.model import Accepted, CommittedRange
from wings_core.partitions import UNPARTITIONED
from wings_core.storage import codecs
from wings_server.testing import server_process

PUSHES = 200
"""Of each, in a round."""

ROUNDS = 5

RECORDS_BYTES = 1024 * 1024

LOG_BYTES = 5 * 1024 * 1024
"""More than SQLite's log has before it is moved into the database, and written from its start."""

TOPIC_UUID = "0" * 32

ROW_BYTES = 600
"""About what a page of one row has."""

HOLD = 1.25
"""What `benchmarks.small` holds the ack to."""

ANSWERED, RECORDED, COMMITTED, LEAST = "answered", "recorded", "committed", "least"
HANDED_OVER, INDEXED, OWED, WINGS, SQLITE = "handed over", "indexed", "owed", "wings", "sqlite"
HOWS = {
    ANSWERED: "nothing is kept: the bare round trip",
    RECORDED: "one record, written and synced to a file that does not grow, without SQLite",
    COMMITTED: "one insert, committed by the call's own thread",
    LEAST: "and where it lies, and where its partition ends: the least that a log needs",
    HANDED_OVER: "one insert, committed and answered by a second thread",
    INDEXED: "by the call's own thread, all rows and indexes that Wings has of a push",
    OWED: "as indexed; the rows checked, and encoded with checksums; an answer with their range",
}
"""How each batch is answered, and so the names of the databases."""


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
                "position INTEGER, length INTEGER, format INTEGER, "
                "PRIMARY KEY (partition_id, end_offset)) WITHOUT ROWID"
            ),
            "CREATE INDEX pages_inline ON pages (partition_id, end_offset) WHERE format = 3",
            "INSERT INTO partitions VALUES (1, 0, 0)",
        ):
            self._database.execute(statement)
        # Its log has its full size from here on, as that of a server that has run for a while: a
        # sync of a file that grows takes longer, and few pages would be far from the end.
        self._database.execute("INSERT INTO inline VALUES (-1, ?)", (bytes(LOG_BYTES),))
        self._database.execute("DELETE FROM inline")
        self._number = 0

    def commit(self) -> None:
        """Insert the bytes of a page; blocks until they are durable."""
        self._database.execute("BEGIN IMMEDIATE")
        self._insert()
        self._database.execute("COMMIT")

    def commit_least(self) -> None:
        """Insert the bytes of a page, where they lie in the log, and its partition's end."""
        self._database.execute("BEGIN IMMEDIATE")
        self._insert_place(self._insert(), 1)
        self._database.execute("COMMIT")

    def commit_indexed(self, page: bytes = bytes(ROW_BYTES)) -> int:
        """Insert as `commit_least`, a folio with its name, and an entry for the drain.

        Returns:
            The number of the commit.
        """
        self._database.execute("BEGIN IMMEDIATE")
        number = self._insert(page)
        self._insert_place(number, 3)
        name = f"{time.time_ns():016x}-{number:x}.inline"
        self._database.execute("INSERT INTO folios VALUES (?, ?, 1)", (number, name))
        self._database.execute("COMMIT")
        return number

    def commit_owed(self, schema: pa.Schema) -> Callable[[pa.RecordBatch], bytes]:
        """Return what does all that a push is owed: a check, a page with checksums, an answer."""
        check = BatchCheck(schema).check
        encoder = codecs.PUSHES.encoder(TOPIC_UUID, schema)

        def commit(batch: pa.RecordBatch) -> bytes:
            check(batch)
            number = self.commit_indexed(b"".join(encoder.encode(batch).parts))
            committed = CommittedRange(UNPARTITIONED, number, number, time.time_ns() // 1000)
            return result_to_json(number, Accepted((committed,)))

        return commit

    def close(self) -> None:
        """Close it."""
        self._database.close()

    def _insert(self, page: bytes = bytes(ROW_BYTES)) -> int:
        self._number += 1
        self._database.execute("INSERT INTO inline VALUES (?, ?)", (self._number, page))
        return self._number

    def _insert_place(self, number: int, page_format: int) -> None:
        self._database.execute(
            "UPDATE partitions SET next_offset = ?, bytes = bytes + ? WHERE id = 1",
            (number, ROW_BYTES),
        )
        self._database.execute(
            "INSERT INTO pages VALUES (1, ?, ?, 0, ?, ?)", (number, number, ROW_BYTES, page_format)
        )


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
            commit = {
                ANSWERED: lambda: None,
                RECORDED: records.commit,
                LEAST: database.commit_least,
                INDEXED: database.commit_indexed,
            }.get(how, database.commit)

            def answer(batch: pa.RecordBatch) -> None:
                del batch
                commit()
                writer.write(pa.py_buffer(b"{}"))

            if how == OWED:
                commit_owed = database.commit_owed(reader.schema)
                for batch in batches(reader):
                    writer.write(pa.py_buffer(commit_owed(batch)))
                return
            if how != HANDED_OVER:
                for batch in batches(reader):
                    answer(batch)
                return
            arrived: SimpleQueue[pa.RecordBatch | None] = SimpleQueue()

            def answer_all() -> None:
                for batch in iter(arrived.get, None):
                    answer(batch)

            second = threading.Thread(target=answer_all)
            second.start()
            for batch in batches(reader):
                arrived.put(batch)
            arrived.put(None)
            second.join()


def _pages_of_a_commit(database: Path) -> float:
    """Return how many pages a commit wrote, on average, to the log beside a database in use."""
    data = Path(f"{database}-wal").read_bytes()
    page_bytes, salts = struct.unpack(">I", data[8:12])[0], data[16:24]
    frames = commits = 0
    for at in range(32, len(data) - 23, 24 + page_bytes):
        if data[at + 8 : at + 16] != salts:
            break  # From here on it is older.
        frames += 1
        commits += data[at + 4 : at + 8] != bytes(4)
    return frames / max(1, commits)


def measure(rounds: int) -> None:
    """Print the ack's median of each way, its ratio to the sum, CPU and pages; and what follows."""
    with ExitStack() as stack:
        bare, bare_pid, told = stack.enter_context(ack_server("benchmarks.ack_floor"))
        databases = Path(told)
        wings = stack.enter_context(server_process())
        client = stack.enter_context(wings.client())
        create_topic(client, "acks", people(1).schema)
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        database = stack.enter_context(closing(Database(Path(directory) / "client")))
        calls: dict[str, tuple[Callable[[], object], int]] = {
            how: (pushing(stack, bare, in_the_way(how)), bare_pid) for how in HOWS
        }
        ours = pushing(stack, client, flight.FlightDescriptor.for_path("acks"))
        calls[WINGS] = ours, wings.pid
        calls[SQLITE] = database.commit, 0
        acks = Acks.median_of(take_in_turn(calls, PUSHES, rounds))
        logs = {name: databases / name for name in HOWS if name not in (ANSWERED, RECORDED)}
        logs |= {WINGS: wings.data_dir / "metadata.sqlite", SQLITE: Path(directory) / "client"}
        pages = {name: _pages_of_a_commit(log) for name, log in logs.items()}
    medians = acks.seconds
    parts = medians[ANSWERED] + medians[SQLITE]
    print(f"{'':12} {'p50, ms':>8} {'CPU, µs':>8} {'pages':>6} {'ratio':>6}")  # noqa: T201
    for name in calls:
        median = medians[name]
        print(  # noqa: T201
            f"{name:12} {median * 1e3:8.3f} {acks.cpu_us[name]:8.0f} {pages.get(name, 0):6.1f} "
            f"{median / parts:6.2f}  {HOWS.get(name, '')}"
        )
    least, indexed, owed, own = (medians[name] / parts for name in (LEAST, INDEXED, OWED, WINGS))
    print(  # noqa: T201
        f"{HOLD} can{'' if owed <= HOLD else 'not'} be held here by Python over SQLite: the least "
        f"takes {least:.2f} of the sum, with Wings' own rows {indexed:.2f}, with all that is owed "
        f"to a push {owed:.2f}, Wings {own:.2f}"
    )


if __name__ == "__main__":
    serve_or_measure(AckServer, measure, ROUNDS)
