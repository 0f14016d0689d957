"""A baseline of queues: a bare DoExchange that syncs a row of SQLite before each answer.

    python -m benchmarks.synced_server

The first line on standard output is the port. Each message of a client is answered with a batch of
one row, as a worker that takes one message at a time gets. An exchange of the command `OWED` is the
floor under a queue's: it does the least that is owed to such a worker, by plain Python, for one
member of one group without errors, time-outs, credit, metrics or a second partition.
"""

import json
import sqlite3
import tempfile
import threading
from itertools import count
from pathlib import Path
from zlib import crc32

import pyarrow as pa
import pyarrow.flight as flight

OWED = b"owed"

ROWS = pa.record_batch(
    {"n": pa.array(range(1_000), pa.int64()), "text": ["x" * 50] * 1_000, "__offset": range(1_000)}
)
"""What is delivered, again and again."""

ROW = pa.record_batch({"n": pa.array([1], pa.int64()), "text": ["x" * 50]})


class SyncedServer(flight.FlightServerBase):
    """Answers each message once a row is on the disk."""

    def __init__(self, directory: Path) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._lock = threading.Lock()
        self._database = sqlite3.connect(
            directory / "rows.sqlite", isolation_level=None, check_same_thread=False
        )
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.execute("CREATE TABLE t (n INTEGER)")
        self._database.execute("CREATE TABLE finished (id INTEGER, before INTEGER, sum INTEGER)")
        self._database.execute("INSERT INTO finished VALUES (1, 0, 0)")

    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        """Answer each message of a client until it ends its side."""
        if descriptor.command == OWED:
            self._deliver(reader, writer)
            return
        writer.begin(ROW.schema)
        while True:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            with self._lock:
                self._database.execute("INSERT INTO t VALUES (1)")
            assert chunk.app_metadata is not None
            writer.write_with_metadata(ROW, chunk.app_metadata)

    def _deliver(
        self, reader: flight.MetadataRecordBatchReader, writer: flight.MetadataRecordBatchWriter
    ) -> None:
        """Answer each acceptance once it is durable, and deliver the next message after it."""
        schema = ROWS.schema.append(pa.field("__lease", pa.string()))
        nothing = pa.RecordBatch.from_pylist([], schema)
        held: dict[int, str] = {}
        writer.begin(schema)
        for offset in count():
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            assert chunk.app_metadata is not None
            asked = json.loads(chunk.app_metadata.to_pybytes())
            if offset:
                (entry,) = asked["acks"]
                assert held.pop(entry["first"]) == entry["lease"]
                checksum = crc32(f"1\0{offset}".encode())
                self._commit("UPDATE finished SET before = ?, sum = ?", (offset, checksum))
                result = f'{{"first": {offset - 1}, "last": {offset - 1}, "code": null}}'
                answer = f'{{"request": {offset}, "results": [{result}]}}'
                writer.write_with_metadata(nothing, pa.py_buffer(answer.encode()))
            lease = held[offset] = f"coordinator.{offset}.member"
            row = ROWS.slice(offset % ROWS.num_rows, 1)
            batch = pa.RecordBatch.from_arrays([*row.columns, pa.array([lease])], schema=schema)
            about = f'{{"start_offset": {offset}, "end_offset": {offset}, "lease": "{lease}"}}'
            writer.write_with_metadata(batch, pa.py_buffer(about.encode()))

    def _commit(self, statement: str, values: tuple[int, ...]) -> None:
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.execute(statement, values)
            self._database.execute("COMMIT")


def main() -> None:
    """Serve until terminated."""
    with tempfile.TemporaryDirectory() as directory:
        server = SyncedServer(Path(directory))
        print(server.port, flush=True)  # noqa: T201 - told to the parent process
        threading.Event().wait()


if __name__ == "__main__":
    main()
