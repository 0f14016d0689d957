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
from wings_core.model import Accepted, AssignedRange
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

ANSWERED, RECORDED, COMMITTED, HANDED_OVER = "answered", "recorded", "committed", "handed over"
OWED, WINGS, SQLITE = "owed", "wings", "sqlite"
HOWS = {
    ANSWERED: "nothing is kept: the bare round trip",
    RECORDED: "one record, written and synced to a file that does not grow, without SQLite",
    COMMITTED: "one insert of a page and where it lies, committed by the call's own thread",
    HANDED_OVER: "by a second thread, so that pushes that come meanwhile could share a commit",
    OWED: "and the rows checked, and encoded with checksums; an answer with their range",
}
"""How each batch is answered, and so the names of the databases."""


class Database:
    """A database in which each transaction is synced."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = FULL",
            (
                "CREATE TABLE journal (id INTEGER PRIMARY KEY, partition_id INTEGER, "
                "start_offset INTEGER, end_offset INTEGER, timestamp INTEGER, folio TEXT, "
                "data BLOB)"
            ),
        ):
            self._database.execute(statement)
        # Its log has its full size from here on, as that of a server that has run for a while: a
        # sync of a file that grows takes longer, and few pages would be far from the end.
        self._database.execute(
            "INSERT INTO journal VALUES (-1, 0, 0, 0, 0, '', ?)", (bytes(LOG_BYTES),)
        )
        self._database.execute("DELETE FROM journal")
        self._number = 0

    def commit(self, page: bytes = bytes(ROW_BYTES)) -> tuple[int, int]:
        """Insert a page and where it lies in the log; blocks until it is durable.

        Returns:
            Its offset, and its time in microseconds.
        """
        number = self._number = self._number + 1
        now = time.time_ns() // 1000
        row = (number, 1, number, number, now, f"{now:016x}-{number:x}.inline", page)
        self._database.execute("BEGIN IMMEDIATE")
        self._database.execute("INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        self._database.execute("COMMIT")
        return number, now

    def commit_owed(self, schema: pa.Schema) -> Callable[[pa.RecordBatch], bytes]:
        """Return what does all that a push is owed: a check, a page with checksums, an answer."""
        check = BatchCheck(schema).check
        encoder = codecs.PUSHES.encoder(TOPIC_UUID, schema)

        def commit(batch: pa.RecordBatch) -> bytes:
            check(batch)
            number, now = self.commit(b"".join(encoder.encode(batch).parts))
            committed = AssignedRange(UNPARTITIONED, number, number, now)
            return result_to_json(number, Accepted((committed,)))

        return commit

    def close(self) -> None:
        """Close it."""
        self._database.close()


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
            }.get(how, database.commit)

            commit_owed = database.commit_owed(reader.schema)

            def answer(batch: pa.RecordBatch) -> None:
                if how == OWED:
                    writer.write(pa.py_buffer(commit_owed(batch)))
                    return
                commit()
                writer.write(pa.py_buffer(b"{}"))

            if how not in (HANDED_OVER, OWED):
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
    least, owed, own = (medians[name] / parts for name in (COMMITTED, OWED, WINGS))
    print(  # noqa: T201
        f"{HOLD} can{'' if owed <= HOLD else 'not'} be held here by Python over SQLite: the least "
        f"takes {least:.2f} of the sum, with all that is owed to a push {owed:.2f}, Wings {own:.2f}"
    )


if __name__ == "__main__":
    serve_or_measure(AckServer, measure, ROUNDS)
