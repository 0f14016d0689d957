"""Queries: a statement run by DuckDB over topics, as a stream of batches.

    text ─▶ parse ─▶ tables: authorize, then look up ─▶ where they end, now ─▶ DuckDB ─▶ batches

DuckDB parses and runs it in a worker; see `workers`. A query holds its worker from its opening
until it is closed, at most `sql_seconds_max`.
"""

import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from wings_core.contracts.sql import DEAD_LETTERS, SYSTEM
from wings_core.errors import InvalidSql, ResourceExhausted, WingsError
from wings_core.fetch.fetcher import Cancel, Fetcher
from wings_core.model import PartitionState
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName
from wings_core.security.principal import ANYONE, Principal
from wings_core.sql.failures import check_types, translated
from wings_core.sql.live import LiveView, live_view
from wings_core.sql.moment import looked_up, states_of
from wings_core.sql.parameters import BoundText, Parameters, bind
from wings_core.sql.peers import Peer, peers_of
from wings_core.sql.statement import Statement, TableName, parse, topic_of
from wings_core.sql.system import SystemReader
from wings_core.sql.topic_table import SCAN_ROWS, ScanCount, TopicTable
from wings_core.sql.workers import LogTable, Run, Workers
from wings_core.sql_process.interface import CATALOG, EngineFailed, View

if TYPE_CHECKING:
    from wings_core.log import Log

_MAIN = "main"
"""The schema of names without one."""

BATCH_ROWS = 65_536

BATCH_BYTES = 16 << 20
"""Bytes of a batch whose rows are as long as those of its topic on average."""

Authorize = Callable[[str], None]
"""Raises `PermissionDenied` where the caller may not read a topic, by its full name."""


class Sql:
    """Runs SQL over the topics of a log; from any thread.

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
        """How many queries run."""
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
        """Parse, check and plan a statement; nothing is read yet but where its topics end.

        Blocks while as many queries run as may, for a few seconds at most.

        Args:
            text: One statement that reads.
            authorize: Decides what of it the caller may read.
            parameters: Values of its parameters.
            namespace: The namespace of tables named without a schema.
            cancel: Ends the query.
            seconds_max: How long it may take, at most as long as any may.
            principal: The caller, for what system tables show.
            sent: Tables that came along, by name: IPC streams, which the worker reads.

        Returns:
            A query, which the caller closes.

        Raises:
            InvalidSql: DuckDB refuses it, or it holds what is not allowed.
            PermissionDenied: The caller may not read a topic that it names.
            TopicNotFound: There is no such topic.
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
            WingsError: As `open`, of the statement alone.
        """
        query = Query(self._log, self._fetcher, self._workers, cancel)
        try:
            return query.parameters(text)
        finally:
            query.close()

    def live(self, text: str, namespace: NamespaceName = DEFAULT_NAMESPACE) -> LiveView:
        """Return what a follow is to show for a statement; nothing is looked up.

        Raises:
            InvalidSql: As `open`, of the statement alone; or no follow can serve it.
        """
        query = Query(self._log, self._fetcher, self._workers)
        try:
            return query.live(text, namespace)
        finally:
            query.close()

    def close(self) -> None:
        """End the workers; queries must have ended."""
        self._workers.close()


class Query:
    """A statement that is planned, or runs.

    Args:
        log: The log that it reads.
        fetcher: Reads topics.
        workers: Lends the worker.
        cancel: Ends it.
        seconds_max: How long it may take, at most as long as any may.
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

        # Threads of the run know it, so not the query: that ends once nothing else knows it.
        def ends() -> bool:
            return cancel.error is not None or time.monotonic() >= ends_at

        self._ends = ends
        self.count = ScanCount()
        self._tables: dict[str, LogTable] = {}
        """The tables to be scanned, by the names under which views know them."""
        self._sent: dict[str, bytes] = {}
        """IPC streams of tables that are sent along, by such names."""
        self._views: list[View] = []
        self._batch_rows = BATCH_ROWS
        self._run = Run(workers, cancel, ends, self.count.failed)

    def __del__(self) -> None:
        """Return the worker of a query whose stream was never begun."""
        self.close()

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches."""
        assert self._schema is not None, "a query is prepared once opened"
        return self._schema

    def parameters(self, text: str) -> list[Peer]:
        """Return a statement's parameters; see `Sql.parameters`."""
        with self._running(text) as run:
            return peers_of(parse(text, run.parse), run.write)

    def live(self, text: str, namespace: NamespaceName) -> LiveView:
        """Return what a follow is to show for a statement; see `Sql.live`."""
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
            check_types(found)
            self._schema = found

    def batches(self) -> Generator[pa.RecordBatch]:
        """Yield the rows; closes the query at the end.

        Raises:
            InvalidSql: The statement fails on the data.
            ResourceExhausted: It needs more time, memory, disk or rows than it may.
            StorageCorrupt: A page that it reads is damaged; and the other errors of reads.
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
                # DuckDB's reader gives columns of one name the same name; the schema tells them.
                yield pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)
            if self.count.error is not None:
                raise self.count.error  # To a worker, a scan that was cut looks like its end.
        finally:
            self.close()

    def close(self) -> None:
        """End the query and return its worker; further calls do nothing."""
        with self._closing:
            run, self._run = self._run, None
        if run is not None:
            run.close()

    @contextmanager
    def _running(self, text: str | None = None) -> Generator[Run]:
        """Return the run, for one step of it; errors within the block become those of the query."""
        self._text = self._text if text is None else text
        assert self._run is not None, "a query that is closed does nothing"
        try:
            yield self._run
        except (WingsError, EngineFailed) as error:
            raise self._failed(error) from None

    def _failed(self, error: WingsError | EngineFailed) -> WingsError:
        """Return the error that tells why a step of the query failed."""
        if self._cancel.error is not None:
            return self._cancel.error
        if time.monotonic() >= self._ends_at:
            return ResourceExhausted(
                f"the query was stopped after {self._seconds_max:g} s, the longest it may take"
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
        """Look up the system tables that a statement names."""
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
        """Look up the topics that a statement names, and where they end."""
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
            shown = TopicTable(
                self._log, self._fetcher, topic, found, self._cancel, self.count, self._ends
            )
            self._tables[f"__scan{index}"] = shown
            self._views.append(_view(table, f"__scan{index}", shown))


def _view(table: TableName, name: str, topic: TopicTable | None = None) -> View:
    """Return the view by which a statement's name is a table that is known by another."""
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
    """Return a name as SQL quotes it."""
    return '"' + name.replace('"', '""') + '"'


def _batch_rows(states: Sequence[PartitionState]) -> int:
    """Return how many rows of a topic, if all were of one length, make a batch."""
    rows = sum(state.next_offset - state.log_start_offset for state in states)
    size = sum(state.bytes for state in states)
    return BATCH_ROWS if size <= 0 else max(1, min(BATCH_ROWS, BATCH_BYTES * rows // size))
