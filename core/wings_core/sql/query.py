"""Queries: statements run by DuckDB over topics, their results as streams of batches.

    text ─▶ parse ─▶ tables: authorize, then look up ─▶ their end offsets ─▶ DuckDB ─▶ batches

DuckDB parses and runs statements in a worker process; see `workers`. A query holds its worker from
`open` to `close`, for at most `sql_seconds_max`. DuckDB's errors are translated into ours, with
their position in the statement.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from wings_core.arrow_types import fields_of
from wings_core.contracts.sql import DEAD_LETTERS, SYSTEM
from wings_core.errors import Internal, InvalidSql, ResourceExhausted, WingsError
from wings_core.fetch.fetcher import Cancel, Fetcher
from wings_core.model import PartitionState
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName
from wings_core.security.principal import ANYONE, Principal
from wings_core.sql.live import LiveView, live_view
from wings_core.sql.parameters import BoundText, Parameters, Peer, bind, peers_of
from wings_core.sql.statement import (
    Statement,
    TableName,
    invalid_sql,
    parse,
    topic_of,
    without_hints,
)
from wings_core.sql.system import SystemReader
from wings_core.sql.topic_table import SCAN_ROWS, ScanCount, TopicTable, looked_up, states_of
from wings_core.sql.workers import LogTable, Run, Workers
from wings_core.sql_process.interface import CATALOG, EngineFailed, View

if TYPE_CHECKING:
    from wings_core.log import Log

_MAIN = "main"
"""The schema of unqualified names in DuckDB."""

BATCH_ROWS = 65_536

BATCH_BYTES = 16 << 20
"""Target bytes of a batch, estimated from the topic's average row size."""

MESSAGE_LENGTH_MAX = 400

_EXHAUSTED = frozenset({"Out of Memory", "IO", "Out of Range Memory"})
_FAULTS = frozenset({"INTERNAL", "FATAL"})

Authorize = Callable[[str], None]
"""Checks a topic's full name; raises `PermissionDenied` if the caller may not read the topic."""


class Sql:
    """SQL over the topics of a log. Methods may be called from any thread.

    Args:
        log: The log.
    """

    def __init__(self, log: "Log") -> None:
        self._log = log
        self._workers = Workers(log.limits)
        limits = log.limits.model_copy(update={"wire_rows_max": SCAN_ROWS})
        self._fetcher = Fetcher(log.store, log.registry, limits, log.versions)

    @property
    def running(self) -> int:
        """Number of running queries."""
        return self._workers.lent

    def open(
        self,
        text: str,
        authorize: Authorize,
        parameters: Parameters = (),
        namespace: NamespaceName = DEFAULT_NAMESPACE,
        cancel: Cancel | None = None,
        seconds_max: float | None = None,
        principal: Principal = ANYONE,
        sent: Mapping[str, bytes] | None = None,
    ) -> "Query":
        """Parse, check and plan a statement; reads the end offsets of its topics, but no rows yet.

        Blocks while the maximum number of queries runs, for a few seconds at most.

        Args:
            text: One read-only statement.
            authorize: Checks each topic that the statement reads.
            parameters: Values of its parameters.
            namespace: The namespace of tables named without a schema.
            cancel: Ends the query.
            seconds_max: Longest run time of this query; capped by the limit of all queries.
            principal: The caller; system tables show what it may see.
            sent: Tables sent with the statement, by name, as IPC streams.

        Returns:
            A query; the caller closes it.

        Raises:
            InvalidSql: DuckDB rejects the statement, or it contains something not allowed.
            PermissionDenied: The caller may not read a topic of the statement.
            TopicNotFound: A topic of the statement does not exist.
            ResourceExhausted: Too many queries run, or the statement is too long.
            WingsError: The error that `cancel` was set with.
        """
        query = Query(self._log, self._fetcher, self._workers, cancel, seconds_max)
        try:
            query.prepare(text, authorize, parameters, namespace, principal, sent or {})
        except BaseException:
            query.close()
            raise
        return query

    def parameters(self, text: str, cancel: Cancel | None = None) -> list[Peer]:
        """Return a statement's parameters, in order, with their peers; nothing is looked up.

        Raises:
            WingsError: Errors of `open` that concern the statement's text.
        """
        query = Query(self._log, self._fetcher, self._workers, cancel)
        try:
            return query.parameters(text)
        finally:
            query.close()

    def live(self, text: str, namespace: NamespaceName = DEFAULT_NAMESPACE) -> LiveView:
        """Return the live view that a statement describes; nothing is looked up.

        Raises:
            InvalidSql: Errors of `open` that concern the text, or no follow can serve the
                statement.
        """
        query = Query(self._log, self._fetcher, self._workers)
        try:
            return query.live(text, namespace)
        finally:
            query.close()

    def close(self) -> None:
        """End the workers; all queries must be closed."""
        self._workers.close()


class Query:
    """A planned or running statement.

    Args:
        log: The log to read.
        fetcher: Reads topics.
        workers: Lends the worker.
        cancel: Ends the query.
        seconds_max: Longest run time of this query; capped by the limit of all queries.
    """

    _run: Run | None = None
    _schema: pa.Schema | None = None
    _bound: BoundText | None = None
    _text = ""

    def __init__(
        self,
        log: "Log",
        fetcher: Fetcher,
        workers: Workers,
        cancel: Cancel | None = None,
        seconds_max: float | None = None,
    ) -> None:
        self._closing = threading.Lock()
        self._log = log
        self._fetcher = fetcher
        self._cancel = cancel = cancel or Cancel()
        limit = log.limits.sql_seconds_max
        self._seconds_max = limit if seconds_max is None else min(limit, seconds_max)
        ends_at = self._ends_at = time.monotonic() + self._seconds_max

        # Threads of the run hold this function, so it must not hold the query, which is closed when
        # nothing refers to it any longer.
        def ends() -> bool:
            return cancel.error is not None or time.monotonic() >= ends_at

        self._ends = ends
        self.count = ScanCount()
        self._tables: dict[str, LogTable] = {}
        """The tables to scan, by the names that the views use."""
        self._sent: dict[str, bytes] = {}
        """IPC streams of tables sent with the statement, by the names that the views use."""
        self._views: list[View] = []
        self._batch_rows = BATCH_ROWS
        self._run = Run(workers, cancel, ends, self.count.failed)

    def __del__(self) -> None:
        """Release the worker of a query whose stream was never started."""
        self.close()

    @property
    def schema(self) -> pa.Schema:
        """Schema of the batches."""
        assert self._schema is not None, "a query is prepared once opened"
        return self._schema

    def parameters(self, text: str) -> list[Peer]:
        """Return a statement's parameters; see `Sql.parameters`."""
        with self._running(text) as run:
            return peers_of(parse(text, run.parse), run.write)

    def live(self, text: str, namespace: NamespaceName) -> LiveView:
        """Return the live view that a statement describes; see `Sql.live`."""
        with self._running(text) as run:
            return live_view(parse(text, run.parse), run.write, namespace)

    def prepare(
        self,
        text: str,
        authorize: Authorize,
        parameters: Parameters,
        namespace: NamespaceName,
        principal: Principal,
        sent: Mapping[str, bytes],
    ) -> None:
        """Plan a statement; see `Sql.open`."""
        with self._running(text) as run:
            statement = parse(text, run.parse, frozenset(name.lower() for name in sent))
            self._bound = bind(statement, parameters)
            self._sent = {**sent}
            system = SystemReader(self._log, principal, self._cancel, self.count)
            self._show_system(statement, system, authorize, namespace)
            self._show_topics(statement, parameters, authorize, namespace)
            found = run.prepare(self._tables, self._sent, self._views, self._bound.text)
            if found is None:
                raise InvalidSql("the statement returns no rows")
            _check_types(found)
            self._schema = found

    def batches(self) -> Generator[pa.RecordBatch]:
        """Yield the rows, then close the query.

        Raises:
            InvalidSql: The statement fails on the data.
            ResourceExhausted: The query exceeds its time, memory, disk or rows.
            StorageCorrupt: A page is damaged; also the other errors of reads.
            WingsError: The error that the query was cancelled with.
        """
        rows, limit = 0, self._log.limits.sql_rows_max
        try:
            with self._running() as run:
                batches = run.batches(self._batch_rows)
            while True:
                with self._running():
                    batch = next(batches, None)
                if batch is None:
                    break
                rows += batch.num_rows
                if rows > limit:
                    raise ResourceExhausted(f"a SQL result has at most {limit} rows")
                # DuckDB's reader gives duplicate columns the same name; the schema tells them
                # apart.
                yield pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)
            if self.count.error is not None:
                raise self.count.error  # A worker cannot tell an aborted scan from a finished one.
        finally:
            self.close()

    def close(self) -> None:
        """End the query and release its worker. Idempotent."""
        with self._closing:
            run, self._run = self._run, None
        if run is not None:
            run.close()

    @contextmanager
    def _running(self, text: str | None = None) -> Generator[Run]:
        """Return the run for one step; errors within the block are translated to the query's."""
        self._text = self._text if text is None else text
        assert self._run is not None, "a query that is closed does nothing"
        try:
            yield self._run
        except (WingsError, EngineFailed) as error:
            raise self._failed(error) from None

    def _failed(self, error: WingsError | EngineFailed) -> WingsError:
        """Return the cause of a failed step: cancellation, timeout, a scan's error, or DuckDB's."""
        if self._cancel.error is not None:
            return self._cancel.error
        if time.monotonic() >= self._ends_at:
            return ResourceExhausted(
                f"the query was stopped after {self._seconds_max:g} s, the longest allowed"
            )
        if isinstance(error, WingsError):
            return error
        if self.count.error is not None:
            return self.count.error
        return translated(error, self._text, self._bound)

    def _show_system(
        self,
        statement: Statement,
        system: SystemReader,
        authorize: Authorize,
        namespace: NamespaceName,
    ) -> None:
        """Register the system tables that a statement names."""
        for index, table in enumerate(statement.tables):
            if table.schema != SYSTEM:
                continue
            kind, slash, rest = table.table.partition("/")
            if slash and kind == DEAD_LETTERS:
                schema, _, source = rest.rpartition("/")
                topic = topic_of(TableName(schema, source), namespace)
                authorize(str(topic))
                rows = system.dead_letters(self._log.admin.get_topic(topic))
            elif table.table == DEAD_LETTERS:
                rows = system.dead_letters(None)
            else:
                rows = system.table(table.table)
            known = f"__system{index}"
            if isinstance(rows, bytes):
                self._sent[known] = rows
            else:
                self._tables[known] = rows
            self._views.append(_view(table, known))

    def _show_topics(
        self,
        statement: Statement,
        parameters: Parameters,
        authorize: Authorize,
        namespace: NamespaceName,
    ) -> None:
        """Register the topics that a statement names, with their current end offsets."""
        tables = [table for table in statement.tables if table.schema != SYSTEM]
        named = [(table, topic_of(table, namespace)) for table in tables]
        for name in dict.fromkeys(topic for _, topic in named):
            authorize(str(name))
        topics = {name: self._log.admin.get_topic(name) for _, name in named}
        wanted = None
        if len(topics) == 1:
            wanted = looked_up(statement, parameters, *topics.values())
        states = states_of(self._log, list(topics.values()), wanted)
        for found in states.values():
            self._batch_rows = min(self._batch_rows, _batch_rows(found))
        for index, (table, name) in enumerate(named):
            topic = topics[name]
            found = states[topic.uuid]
            shown = TopicTable(self._fetcher, topic, found, self._cancel, self.count, self._ends)
            self._tables[f"__scan{index}"] = shown
            self._views.append(_view(table, f"__scan{index}", shown))


def _view(table: TableName, name: str, topic: TopicTable | None = None) -> View:
    """Return the view that maps a table's name in the statement to its internal name."""
    query = f"FROM {name}"
    if topic is not None:
        shown = topic.shown.columns.values()
        columns = ", ".join(f"{quoted(each.scanned_as)} AS {quoted(each.name)}" for each in shown)
        query = f"SELECT {columns} FROM {name}"
    schema = f"{CATALOG}.{quoted(table.schema or _MAIN)}"
    view = f"{schema}.{quoted(table.table)}"
    create, drop = f"CREATE VIEW {view} AS {query}", f"DROP VIEW IF EXISTS {view}"
    if table.schema:
        create = f"CREATE SCHEMA IF NOT EXISTS {schema}; {create}"
        drop = f"{drop}; DROP SCHEMA IF EXISTS {schema} CASCADE"
    return View(create, drop)


def quoted(name: str) -> str:
    """Return a name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _batch_rows(states: Sequence[PartitionState]) -> int:
    """Return the rows per batch, from the average row size of the topic."""
    rows = sum(state.next_offset - state.log_start_offset for state in states)
    size = sum(state.bytes for state in states)
    return BATCH_ROWS if size <= 0 else max(1, min(BATCH_ROWS, BATCH_BYTES * rows // size))


def translated(error: EngineFailed, text: str, bound: BoundText | None) -> WingsError:
    """Translate an error of DuckDB, or of Arrow within it, into the error of a query.

    Args:
        error: The failure, with DuckDB's JSON in its message.
        text: The statement as the caller wrote it.
        bound: The statement as sent to DuckDB.
    """
    if error.of_memory:
        return ResourceExhausted("the query needs more memory than it may use")
    found = _json_in(error.message)
    kind = str(found.get("exception_type", ""))
    message = str(found.get("exception_message", error)).strip()
    # The rest are hints about settings, which the caller cannot change, and names of tables.
    message = re.split(r"\n(?:Did you mean|Possible solutions|\n|LINE )", message)[0]
    message = without_hints(message.replace("\n", " "))[:MESSAGE_LENGTH_MAX]
    if kind in _EXHAUSTED or "max_temp_directory_size" in message:
        return ResourceExhausted(f"the query needs more memory or disk than it may use: {message}")
    if kind in _FAULTS:
        return Internal(f"the query failed in DuckDB: {message}")
    byte = int(found["position"]) if str(found.get("position", "")).isdigit() else None
    if byte is not None and bound is not None:
        byte = bound.original(byte - error.shift)
    return invalid_sql(message, text, byte)


def _json_in(message: str) -> dict[str, Any]:
    start = message.find("{")
    if start < 0:
        return {}
    try:
        found, _ = json.JSONDecoder().raw_decode(message[start:])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _check_types(schema: pa.Schema) -> None:
    """Reject result types that no response format supports.

    Raises:
        InvalidSql: A column is an ENUM or of a type of DuckDB's own, or contains one.
    """
    for field in fields_of(schema):
        if _is_of_duckdb_alone(field.type):
            raise InvalidSql(
                f"column {field.name!r:.80} has type {field.type!s:.80}: cast it, say ::VARCHAR"
            )


def _is_of_duckdb_alone(data_type: pa.DataType) -> bool:
    if pa.types.is_dictionary(data_type) or isinstance(data_type, pa.BaseExtensionType):
        return True
    inner = (data_type.field(index).type for index in range(data_type.num_fields))
    return any(map(_is_of_duckdb_alone, inner))
