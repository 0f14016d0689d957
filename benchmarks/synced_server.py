"""A baseline of queues: a bare DoExchange that syncs a row of SQLite before each answer.

    python -m benchmarks.synced_server
    python -m benchmarks.synced_server PORT - MESSAGES SECONDS

The first line on standard output is the port. Each message of a client is answered with a batch of
one row, as a worker that takes one message at a time gets. An exchange's command is a number: 0, or
that of the floor under a queue's, which does the least that is owed to a worker that takes so many
messages at a time, by plain Python, for members of one group without errors, time-outs, credit,
metrics or a second partition. What several accept at a time is committed together. The second form
is such a worker, as `share_worker` is.
"""

import json
import sqlite3
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.flight as flight

from benchmarks.share_worker import work

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
        self._offsets = count()
        self._uncommitted: deque[tuple[int, threading.Event]] = deque()

    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        """Answer each message of a client until it ends its side."""
        assert descriptor.command is not None
        if messages := int(descriptor.command):
            self._deliver(reader, writer, messages)
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
        self,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
        messages: int,
    ) -> None:
        """Answer each acceptance once it is durable, and deliver the next messages after it."""
        schema = ROWS.schema.append(pa.field("__lease", pa.string()))
        nothing = pa.RecordBatch.from_pylist([], schema)
        held: dict[int, str] = {}
        writer.begin(schema)
        for request in count():
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            assert chunk.app_metadata is not None
            asked = json.loads(chunk.app_metadata.to_pybytes())
            if request:
                (entry,) = asked["acks"]
                first, last = entry["first"], entry["last"]
                assert held.pop(first) == entry["lease"]
                self._commit(last)
                result = f'{{"first": {first}, "last": {last}, "code": null}}'
                answer = f'{{"request": {request}, "results": [{result}]}}'
                writer.write_with_metadata(nothing, pa.py_buffer(answer.encode()))
            first = next(self._offsets) * messages
            lease = held[first] = f"coordinator.{first}.member"
            rows = ROWS.slice(first % ROWS.num_rows, messages)
            columns = [*rows.columns, pa.array([lease] * messages)]
            batch = pa.RecordBatch.from_arrays(columns, schema=schema)
            last = first + messages - 1
            about = f'{{"start_offset": {first}, "end_offset": {last}, "lease": "{lease}"}}'
            writer.write_with_metadata(batch, pa.py_buffer(about.encode()))

    def _commit(self, offset: int) -> None:
        """Commit with all that wait to be: the first of them does, for all."""
        done = threading.Event()
        self._uncommitted.append((offset, done))
        with self._lock:
            if done.is_set():
                return
            waiting = [self._uncommitted.popleft() for _ in range(len(self._uncommitted))]
            self._database.execute("BEGIN IMMEDIATE")
            for each, _ in waiting:
                checksum = crc32(f"1\0{each}".encode())
                self._database.execute("UPDATE finished SET before = ?, sum = ?", (each, checksum))
            self._database.execute("COMMIT")
            for _, each_done in waiting:
                each_done.set()


def _parsed(chunk: flight.FlightStreamChunk) -> dict[str, Any]:
    assert chunk.app_metadata is not None
    return json.loads(chunk.app_metadata.to_pybytes())


def _json(**message: object) -> pa.Buffer:
    return pa.py_buffer(json.dumps(message).encode())


def _accept(client: flight.FlightClient, messages: int) -> Iterator[int]:
    """Take messages and accept them; yields how many."""
    descriptor = flight.FlightDescriptor.for_command(str(messages).encode())
    writer, reader = client.do_exchange(descriptor)
    writer.write_metadata(_json(credit=messages))
    for request in count(1):
        found = _parsed(reader.read_chunk())
        ack = {"first": found["start_offset"], "last": found["end_offset"], "lease": found["lease"]}
        writer.write_metadata(_json(request=request, acks=[{**ack, "type": "accept"}]))
        assert _parsed(reader.read_chunk())["request"] == request
        yield messages


def take(port: int, messages: int, seconds: float) -> None:
    """Work until the time is up."""
    with flight.FlightClient(f"grpc://127.0.0.1:{port}") as client:
        work(_accept(client, messages), seconds)


def main() -> None:
    """Serve until terminated, or work."""
    if sys.argv[1:]:
        take(int(sys.argv[1]), int(sys.argv[3]), float(sys.argv[4]))
        return
    with tempfile.TemporaryDirectory() as directory:
        server = SyncedServer(Path(directory))
        print(server.port, flush=True)  # noqa: T201 - told to the parent process
        threading.Event().wait()


if __name__ == "__main__":
    main()
