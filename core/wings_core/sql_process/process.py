"""A process that runs statements for a server, one after another, until the server ends.

    server ─▶ prepare: tables, views, text     schema | failed ─▶ server
           ─▶ run: a pipe for the rows         done | failed   ─▶ server
           ◀─ scan: a pipe for the rows of a table

It ends with the server: the kernel signals it when the last end of the server's pipe is closed. Its
memory is bounded by the kernel, too.
"""

import fcntl
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from wings_core.sql_process.channel import Channel, Message, readable
from wings_core.sql_process.engine import (
    Engine,
    EngineBounds,
    EngineFailed,
    ScannedTable,
    View,
    engine_errors,
)
from wings_core.sql_process.memory import bound_memory
from wings_core.sql_process.rows import open_pipe, reader_of, serialized, writer_to

_OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryException")


def main(arguments: Sequence[str]) -> None:
    """Serve one server.

    Args:
        arguments: The descriptors of the channel and of the pipe that tells of the server's end;
            bytes that DuckDB may use, and those that the process may use beyond; bytes to spill;
            threads; the directory to spill to.
    """
    channel, life, memory, beyond, spill, threads = map(int, arguments[:6])
    _end_with(life)
    bounds = EngineBounds(memory, spill, threads)
    process = Process(Channel(socket.socket(fileno=channel)), lambda: Engine(bounds, arguments[6]))
    bound_memory(memory + beyond)
    process.serve()


def _end_with(life: int) -> None:
    """Have the kernel end this process once the other end of a pipe is closed."""
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    # The signal is SIGIO, whose default action is to terminate: no thread need run for it.
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    if readable([life], 0):
        sys.exit(0)


class Process:
    """Runs what a server asks for.

    Args:
        channel: To the server.
        open_engine: Opens what runs the statements.
    """

    def __init__(self, channel: Channel, open_engine: Callable[[], Engine]) -> None:
        self._channel = channel
        self._open_engine = open_engine
        self._engine = open_engine()

    def serve(self) -> None:
        """Answer messages until the server closes the channel, or memory was short."""
        while (message := self._channel.receive()) is not None:
            try:
                self._answer(message)
            except EngineFailed as failed:
                usable = failed.harmless or self._renewed(failed)
                told = {"message": failed.message, "kind": failed.kind, "shift": failed.shift}
                self._channel.send({"failed": told, "usable": usable})
                if not usable:
                    return

    def _answer(self, message: Message) -> None:
        if "prepare" in message.head:
            self._prepare(message.head["prepare"], message.body)
        else:
            assert message.descriptor is not None, "the rows go to a pipe"
            try:
                self._run(message.head["run"], message.descriptor)
            finally:
                os.close(message.descriptor)
            self._engine.release()
            self._channel.send({"done": True})

    def _renewed(self, failed: EngineFailed) -> bool:
        """Return whether there is a new engine: none is opened where memory may be in pieces."""
        if failed.kind in _OUT_OF_MEMORY:
            return False
        self._engine.close()
        self._engine = self._open_engine()
        return True

    def _prepare(self, asked: Mapping[str, Any], body: bytes) -> None:
        tables: dict[str, Any] = {}
        raw = memoryview(body)
        with engine_errors():
            for entry in asked["tables"]:
                part, raw = pa.py_buffer(raw[: entry["bytes"]]), raw[entry["bytes"] :]
                name = entry["name"]
                if entry["sent"]:
                    tables[name] = sent_table(part)
                else:
                    tables[name] = _RemoteTable(self._channel, name, pa.ipc.read_schema(part))
        views = [View(create, drop) for create, drop in asked["views"]]
        schema = self._engine.prepare(tables, views, asked["text"])
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


class _RemoteTable(ScannedTable):
    """A table whose rows the server reads, each time that DuckDB scans it."""

    def __init__(self, channel: Channel, name: str, schema: pa.Schema) -> None:
        super().__init__(schema)
        self._channel = channel
        self._name = name

    def opening(self, schema: pa.Schema, condition: Any) -> Callable[[], pa.RecordBatchReader]:
        """See `ScannedTable.opening`."""
        return partial(self._open, schema, serialized(condition))

    def _open(self, schema: pa.Schema, condition: bytes) -> pa.RecordBatchReader:
        """Return the rows as they come."""
        read, write = open_pipe()
        try:
            scan = {"scan": self._name, "columns": schema.names}
            self._channel.send(scan, condition, write)
        finally:
            os.close(write)
        return reader_of(read)


def sent_table(raw: pa.Buffer) -> pa.Table:
    """Return a table that a client has sent, as an IPC stream; its buffers are checked."""
    with pa.ipc.open_stream(raw) as reader:
        table = reader.read_all()
    table.validate(full=True)
    return table
