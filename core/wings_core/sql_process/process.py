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

Its engine is a DuckDB in memory, so that memory, threads and spilled bytes are bounded per query.
Files, extensions and Python's variables are out of reach, and the configuration is locked. Opening
one takes 20 ms, so an engine is kept for the next query unless a query failed in it.

Tables and views stay until a statement needs others: most statements read the tables of the one
before, and creating views takes as long as running a look-up.
"""

import fcntl
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from wings_core.sql_process.interface import (
    CATALOG,
    Channel,
    EngineFailed,
    Parsed,
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

_EXPLAIN = "EXPLAIN "

_SETTINGS = (
    "SET TimeZone = 'UTC'",
    "SET errors_as_json = true",
    f"ATTACH ':memory:' AS {CATALOG}",
    f"USE {CATALOG}",
    "SET lock_configuration = true",
)

SCHEMAS_KEPT_MAX = 256
"""Most result schemas cached, by columns and types."""

SCHEMA_LENGTH_MAX = 8_192
"""Most characters in the columns and types of a cached schema."""

OpenScan = Callable[[str, Sequence[str], "pc.Expression | None"], pa.RecordBatchReader]
"""Starts a scan of a table, given its name, the columns, and the condition."""


@dataclass(frozen=True, slots=True)
class EngineBounds:
    """Resource limits of an engine."""

    memory_bytes: int
    """Most memory that DuckDB may allocate, by its own count."""
    spill_bytes: int
    threads: int
    """Threads; 0 for one per core."""


@contextmanager
def engine_errors(shift: int = 0) -> Generator[None]:
    """Raise errors of DuckDB and Arrow within the block as `EngineFailed`."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError, MemoryError, RuntimeError) as error:
        raise EngineFailed(str(error), type(error).__name__, shift) from None


@dataclass(frozen=True, slots=True)
class Scanner:
    """One scan of a table."""

    projected_schema: pa.Schema
    to_reader: Callable[[], pa.RecordBatchReader]
    """Returns a reader of the rows, which reads lazily."""


class ScannedTable(ds.Dataset):
    """A table that DuckDB scans.

    It stands in for an Arrow dataset, of which DuckDB uses the schema and the scanners.

    Args:
        name: The name passed to `open_scan`.
        schema: The columns that a scan may ask for.
        open_scan: Starts a scan.
    """

    def __init__(self, name: str, schema: pa.Schema, open_scan: OpenScan) -> None:
        self._name = name
        self._schema = schema
        self._open_scan = open_scan

    @property
    def schema(self) -> pa.Schema:
        """The columns that a scan may ask for."""
        return self._schema

    def scanner(  # pyright: ignore[reportIncompatibleMethodOverride] - of what DuckDB asks for
        self,
        columns: Sequence[str] | None = None,
        filter: Any = None,  # noqa: A002 - DuckDB's keyword.
        **_: Any,
    ) -> Scanner:
        """Return the scan of `columns` of the rows that satisfy `filter`."""
        names = self._schema.names if columns is None else columns
        schema = pa.schema([self._schema.field(name) for name in names])
        return Scanner(schema, partial(self._open_scan, self._name, names, filter))


class StatementEngine:
    """One DuckDB instance, used by one thread at a time.

    Args:
        bounds: Resource limits.
        directory: Directory for spilled data.
        open_scan: Starts scans of tables.
    """

    def __init__(self, bounds: EngineBounds, directory: str, open_scan: OpenScan) -> None:
        self._open_scan = open_scan
        self._config: dict[str, str | bool | int | float | list[str]] = {
            "enable_external_access": "false",
            "autoload_known_extensions": "false",
            "autoinstall_known_extensions": "false",
            "python_enable_replacements": "false",
            "memory_limit": f"{bounds.memory_bytes}B",
            "temp_directory": str(Path(directory) / "duckdb"),
        }
        # Given as an option of the connection, DuckDB 2.0 reports the bound but ignores it.
        self._spill_bound = f"SET max_temp_directory_size = '{bounds.spill_bytes}B'"
        if bounds.threads:
            self._config["threads"] = str(bounds.threads)
        self._relation: duckdb.DuckDBPyRelation | None = None
        self._tables: dict[str, pa.Schema] = {}
        self._sent: set[str] = set()
        self._views: list[View] = []
        self._schemas: dict[tuple[tuple[str, ...], ...], pa.Schema] = {}
        self._connection = self._connected()

    def _connected(self) -> duckdb.DuckDBPyConnection:
        connection = duckdb.connect(":memory:", config=self._config)
        for setting in (self._spill_bound, *_SETTINGS):
            connection.execute(setting)
        return connection

    def parse(self, text: str) -> Parsed:
        """Return the syntax tree of a text; some texts take hours."""
        with engine_errors():
            tree = self._value("SELECT json_serialize_sql(?::VARCHAR)", text)
            if '"error_type":"not implemented"' not in tree[:200]:
                return Parsed(tree, ())
            try:
                statements = self._connection.extract_statements(text)
                return Parsed(tree, tuple(each.type.name for each in statements))
            except ValueError:  # A kind that DuckDB's Python API lacks: UPDATE EXTENSIONS.
                return Parsed(tree, ())

    def write(self, tree: str) -> str:
        """Return the text of a syntax tree."""
        with engine_errors():
            return self._value("SELECT json_deserialize_sql(?::JSON)", tree)

    def _value(self, query: str, value: str) -> str:
        # Fetches all rows: an unread one would block the next statement.
        ((found,),) = self._connection.execute(query, [value]).fetchall()
        return str(found)

    def prepare(
        self,
        tables: Mapping[str, pa.Schema],
        sent: Mapping[str, pa.Table],
        views: Sequence[View],
        text: str,
    ) -> pa.Schema | None:
        """Create tables and views, and plan a statement over them; no rows are read yet.

        Args:
            tables: Schemas of the tables to scan, by name.
            sent: Tables sent with the statement, by name.
            views: Views, created in this order.
            text: The statement.

        Returns:
            The schema of its rows; None for a statement that returns none.

        Raises:
            EngineFailed: DuckDB rejects the statement.
        """
        with engine_errors():
            self._show(tables, sent, views)
            try:
                self._relation = cast("duckdb.DuckDBPyRelation | None", self._connection.sql(text))
            except duckdb.Error:
                self._explain(text)
                raise
            return None if self._relation is None else self._schema_of(self._relation)

    def _show(
        self, tables: Mapping[str, pa.Schema], sent: Mapping[str, pa.Table], views: Sequence[View]
    ) -> None:
        """Create tables and views, and drop all others."""
        same = self._tables.keys() == tables.keys() and all(
            schema.equals(tables[name], check_metadata=True)
            for name, schema in self._tables.items()
        )
        if same and not sent and not self._sent and views == self._views:
            return
        self._clear()
        for name, schema in tables.items():
            self._tables[name] = schema
            self._connection.register(name, ScannedTable(name, schema, self._open_scan))
        for name, table in sent.items():
            self._sent.add(name)
            self._connection.register(name, table)
        for view in views:
            self._views.append(view)
            self._connection.execute(view.create)

    def _clear(self) -> None:
        """Drop all tables and views; if one remains, open a new instance."""
        views, self._views = self._views, []
        names, self._tables, self._sent = [*self._tables, *self._sent], {}, set()
        try:
            if views:
                self._connection.execute("; ".join(view.drop for view in reversed(views)))
            for name in names:
                self._connection.unregister(name)
        except (duckdb.Error, RuntimeError):
            # The next statement must not see the tables of this one.
            self._connection.close()
            self._connection = self._connected()

    def _schema_of(self, relation: duckdb.DuckDBPyRelation) -> pa.Schema:
        """Return the schema of a relation's rows, cached by its columns and types."""
        described = tuple(relation.columns), tuple(map(str, relation.types))
        found = self._schemas.get(described)
        if found is None:
            # No rows, so nothing is read.
            found = relation.limit(0).to_arrow_table().schema.remove_metadata()
            if sum(map(len, (*described[0], *described[1]))) <= SCHEMA_LENGTH_MAX:
                if len(self._schemas) >= SCHEMAS_KEPT_MAX:
                    self._schemas.clear()
                self._schemas[described] = found
        return found

    def _explain(self, text: str) -> None:
        """Raise the error of a statement with its position, which DuckDB omits for relations."""
        with engine_errors(len(_EXPLAIN)):
            self._connection.execute(f"{_EXPLAIN}{text}")

    def batches(self, rows: int) -> Generator[pa.RecordBatch]:
        """Yield the rows of the statement in batches of about `rows`.

        Raises:
            EngineFailed: The statement fails on the data, or exceeds its limits.
        """
        assert self._relation is not None, "a statement was prepared"
        with engine_errors():
            reader = cast("Any", self._relation).to_arrow_reader(rows)
        while True:
            with engine_errors():
                try:
                    batch: pa.RecordBatch = reader.read_next_batch()
                except StopIteration:
                    break
            yield batch

    def release(self) -> None:
        """Release the statement, and the tables sent with it."""
        self._relation = None
        if self._sent:
            self._clear()

    def close(self) -> None:
        """Free its memory."""
        self._relation = None
        self._connection.close()


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
