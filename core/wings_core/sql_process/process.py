"""A process that parses and runs statements for a server, one after another, until the server ends.

    server ─▶ parse: a text               a tree            ─▶ server
           ─▶ write: a tree               a text            ─▶ server
           ─▶ prepare: tables, views, text   schema | failed ─▶ server
           ─▶ run: a pipe for the rows       done | failed   ─▶ server
           ◀─ scan: a pipe for the rows of a table

The process ends with the server: the kernel signals it when the server's end of a pipe is closed.
The kernel bounds its memory, too.

DuckDB's parser takes hours for some invalid texts of a hundred characters (it backtracks through
all readings) and ignores interrupts: the kernel ends the process after some seconds of processor
time, without an answer.
"""

import fcntl
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from wings_core.sql_process.engine import EngineBounds, StatementEngine, engine_errors
from wings_core.sql_process.interface import (
    Channel,
    EngineFailed,
    Received,
    View,
    open_pipe,
    readable,
    reader_of,
    serialized,
    writer_to,
)

PARSE_SECONDS_MAX = 5.0
"""Most processor time for parsing one text; a list of 256 KiB takes one second."""

_TREE_OUT_OF_MEMORY = '{"error":true,"error_type":"out of memory"'


def main(arguments: Sequence[str]) -> None:
    """Serve one server.

    Args:
        arguments: Descriptors of the channel and of the pipe that closes with the server; bytes
            that DuckDB may use; further bytes that the process may use; bytes to spill; threads;
            directory to spill to.
    """
    channel, life, memory, beyond, spill, threads = map(int, arguments[:6])
    _end_with(life)
    bounds = EngineBounds(memory, spill, threads)
    process = Process(Channel(socket.socket(fileno=channel)), bounds, arguments[6])
    bound_memory(memory + beyond)
    process.serve()


def _end_with(life: int) -> None:
    """Have the kernel end this process when the other end of a pipe is closed."""
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    # The signal is SIGIO, whose default action terminates the process; no thread has to run.
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    if readable([life], 0):
        sys.exit(0)


def bound_memory(more: int) -> None:
    """Limit this process to its present memory and `more` bytes, enforced by the kernel."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123 - pathlib takes a while to import.
            kib = next(int(line.split()[1]) for line in status if line.startswith("VmData:"))
    except OSError:
        return  # Not Linux: only DuckDB's own limit holds.
    limit = kib * 1024 + more
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


class Process:
    """The loop that answers a server's messages.

    Args:
        channel: The channel to the server.
        bounds: Resource limits of statements.
        directory: Directory for spilled data.
    """

    def __init__(self, channel: Channel, bounds: EngineBounds, directory: str) -> None:
        self._channel = channel
        self._open_engine = partial(StatementEngine, bounds, directory, self._open_scan)
        self._engine = self._open_engine()

    def serve(self) -> None:
        """Answer messages until the server closes the channel or memory runs out."""
        while (message := self._channel.receive()) is not None:
            try:
                self._answer(message)
            except EngineFailed as failed:
                usable = failed.harmless or self._renewed(failed)
                told = {"message": failed.message, "kind": failed.kind, "shift": failed.shift}
                self._channel.send({"failed": told, "usable": usable})
                if not usable:
                    return

    def _answer(self, message: Received) -> None:
        ((asked, value),) = message.head.items()
        match asked:
            case "parse":
                self._parse(message.body.decode())
            case "write":
                self._channel.send({"written": self._engine.write(message.body.decode())})
            case "prepare":
                self._prepare(value, message.body)
            case _:
                assert message.descriptor is not None, "the rows go to a pipe"
                try:
                    self._run(value, message.descriptor)
                finally:
                    os.close(message.descriptor)
                self._engine.release()
                self._channel.send({"done": True})

    def _parse(self, text: str) -> None:
        # When it expires, SIGPROF terminates the process, as is its default action.
        signal.setitimer(signal.ITIMER_PROF, PARSE_SECONDS_MAX)
        parsed = self._engine.parse(text)
        signal.setitimer(signal.ITIMER_PROF, 0)
        if parsed.tree.startswith(_TREE_OUT_OF_MEMORY):
            sys.exit(0)  # Memory may be fragmented.
        self._channel.send({"kinds": parsed.kinds}, parsed.tree.encode())

    def _renewed(self, failed: EngineFailed) -> bool:
        """Replace the engine where needed; returns False if memory ran out, and none is opened."""
        if failed.of_memory:
            return False
        self._engine.close()
        self._engine = self._open_engine()
        return True

    def _prepare(self, asked: Mapping[str, Any], body: bytes) -> None:
        tables: dict[str, pa.Schema] = {}
        sent: dict[str, pa.Table] = {}
        raw = memoryview(body)
        with engine_errors():
            for name, size, is_sent in asked["tables"]:
                part, raw = pa.py_buffer(raw[:size]), raw[size:]
                if is_sent:
                    sent[name] = sent_table(part)
                else:
                    tables[name] = pa.ipc.read_schema(part)
        views = [View(create, drop) for create, drop in asked["views"]]
        schema = self._engine.prepare(tables, sent, views, asked["text"])
        found = b"" if schema is None else schema.serialize().to_pybytes()
        self._channel.send({"schema": schema is not None}, found)

    def _run(self, rows: int, pipe: int) -> None:
        writer = None
        for batch in self._engine.batches(rows):
            if writer is None:
                writer = writer_to(pipe, batch.schema)
            writer.write_batch(batch)
        if writer is not None:
            writer.close()

    def _open_scan(
        self, name: str, columns: Sequence[str], condition: "pc.Expression | None"
    ) -> pa.RecordBatchReader:
        """Return the rows of a table, read by the server."""
        read, write = open_pipe()
        try:
            self._channel.send({"scan": name, "columns": columns}, serialized(condition), write)
        finally:
            os.close(write)
        return reader_of(read)


def sent_table(raw: pa.Buffer) -> pa.Table:
    """Decode a table from an IPC stream, and validate its buffers."""
    with pa.ipc.open_stream(raw) as reader:
        table = reader.read_all()
    table.validate(full=True)
    return table
