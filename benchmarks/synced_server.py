"""A baseline of queues: a bare DoExchange that syncs a row of SQLite before each answer.

    python -m benchmarks.synced_server

The first line on standard output is the port. Each message of a client is answered with a batch of
one row, as a worker that takes one message at a time gets.
"""

import sqlite3
import tempfile
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight

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

    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        """Answer each message of a client until it ends its side."""
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


def main() -> None:
    """Serve until terminated."""
    with tempfile.TemporaryDirectory() as directory:
        server = SyncedServer(Path(directory))
        print(server.port, flush=True)  # noqa: T201 - told to the parent process
        threading.Event().wait()


if __name__ == "__main__":
    main()
