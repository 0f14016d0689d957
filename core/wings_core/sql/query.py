"""Queries: a statement run by DuckDB over topics, as a stream of batches.

    text ─▶ parse ─▶ tables: authorize, then look up ─▶ where they end, now ─▶ DuckDB ─▶ batches

DuckDB runs in this process where a statement takes no more memory than it counts; see `bounded`;
else in a worker. A query holds an engine from its opening until it is closed, at most
`sql_seconds_max`.
"""

import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from wings_core.contracts.sql import DEAD_LETTERS, SYSTEM
from wings_core.errors import InvalidSql, ResourceExhausted, WingsError
from wings_core.fetch.fetcher import Cancel, Fetcher
from wings_core.model import PartitionState
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName
from wings_core.security.principal import ANYONE, Principal
from wings_core.sql.bounded import COLUMNS_MAX, is_bounded
from wings_core.sql.engines import Engines, LocalRun
from wings_core.sql.failures import check_types, translated
from wings_core.sql.large_pages import SCAN_ROWS
from wings_core.sql.live import LiveView, live_view
from wings_core.sql.moment import looked_up, states_of
from wings_core.sql.names import topic_of
from wings_core.sql.parameters import Bound, Parameters, bind
from wings_core.sql.parser import Parser
from wings_core.sql.peers import Peer, peers_of
from wings_core.sql.plain import PlainRun, plain_run
from wings_core.sql.statement import Statement, TableName, parse
from wings_core.sql.system import SystemReader
from wings_core.sql.topic_table import ScanCount, TopicTable
from wings_core.sql.workers import RemoteRun, Workers
from wings_core.sql_process.engine import CATALOG, EngineFailed, View

if TYPE_CHECKING:
    from wings_core.log import Log

_MAIN = "main"
"""The schema of names without one."""

BATCH_ROWS = 65_536

BATCH_BYTES = 16 << 20
"""Of rows as long as those of a topic are on average, a batch has no more."""

Authorize = Callable[[str], None]
"""Raises `PermissionDenied` where the caller may not read a topic, by its full name."""


class Sql:
    """Runs SQL over the topics of a log; from any thread.

    Args:
        log: The log.
    """

    def __init__(self, log: "Log") -> None:
        self._log = log
        self._engines = Engines(log.limits)
        self._workers = Workers(log.limits)
        self._parser = Parser()
        limits = log.limits.model_copy(update={"wire_rows_max": SCAN_ROWS})
        self._fetcher = Fetcher(log.store, log.registry, limits, log.versions)

    @property
    def running(self) -> int:
        """How many queries run."""
        return self._engines.lent

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
            namespace: Of tables named without a schema.
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
            WingsError: What `cancel` was set with.
        """
        limit = self._log.limits.sql_seconds_max
        seconds = limit if seconds_max is None else min(limit, seconds_max)
        query = self._query(cancel or Cancel(), seconds)
        try:
            query.prepare(text, authorize, parameters, namespace, principal, sent or {})
        except BaseException:
            query.close()
            raise
        return query

    def parameters(self, text: str, cancel: Cancel | None = None) -> list[Peer]:
        """Return a statement's parameters, in order, with their peers; nothing is looked up.

        Raises: as `open`, of the statement alone.
        """
        query = self._query(cancel or Cancel(), self._log.limits.sql_seconds_max)
        try:
            return query.parameters(text)
        finally:
            query.close()

    def live(self, text: str, namespace: NamespaceName = DEFAULT_NAMESPACE) -> LiveView:
        """Return what a follow is to show for a statement; nothing is looked up.

        Raises: as `open`, of the statement alone; `InvalidSql` too where no follow can serve it.
        """
        query = self._query(Cancel(), self._log.limits.sql_seconds_max)
        try:
            return query.live(text, namespace)
        finally:
            query.close()

    def _query(self, cancel: Cancel, seconds: float) -> "Query":
        return Query(
            self._log, self._fetcher, self._parser, self._engines, self._workers, cancel, seconds
        )

    def close(self) -> None:
        """Close the engines, and end the workers; queries must have ended."""
        self._engines.close()
        self._workers.close()
        self._parser.close()


class Query:
    """A statement that is planned, or runs.

    Args:
        log: What it reads.
        fetcher: Reads topics.
        parser: Parses it.
        engines: Where it borrows its engine.
        workers: Where it borrows a worker, if it needs one.
        cancel: Ends it.
        seconds_max: How long it may take.
    """

    def __init__(
        self,
        log: "Log",
        fetcher: Fetcher,
        parser: Parser,
        engines: Engines,
        workers: Workers,
        cancel: Cancel,
        seconds_max: float,
    ) -> None:
        self._log = log
        self._fetcher = fetcher
        self._engines = engines
        self._workers = workers
        self._cancel = cancel
        self._seconds_max = seconds_max
        ends_at = self._ends_at = time.monotonic() + seconds_max

        # What threads of the run know, so not the query: it ends once nothing else knows it.
        def ends() -> bool:
            return cancel.error is not None or time.monotonic() >= ends_at

        self._ends = ends
        self._parse = partial(parser.parse, ends=ends)
        self.count = ScanCount()
        self._text = ""
        self._bound: Bound | None = None
        self._schema: pa.Schema | None = None
        self._tables: dict[str, Any] = {}
        """What views are over, by name."""
        self._named: list[tuple[TableName, str]] = []
        """What the statement names them."""
        self._batch_rows = BATCH_ROWS
        self._run: PlainRun | LocalRun | RemoteRun | None = None
        self._closing = threading.Lock()
        self._closed = False
        self._engine = engines.borrow(cancel)

    def __del__(self) -> None:
        """Return the engine of a query whose stream was never begun."""
        self.close()

    @property
    def schema(self) -> pa.Schema:
        """Of the batches."""
        assert self._schema is not None, "a query is prepared once opened"
        return self._schema

    @property
    def is_local(self) -> bool:
        """Whether it runs in this process."""
        return not isinstance(self._run, RemoteRun)

    def parameters(self, text: str) -> list[Peer]:
        """Return a statement's parameters; see `Sql.parameters`."""
        self._text = text
        with _Translated(self):
            return peers_of(parse(text, self._parse), self._engine.connection)

    def live(self, text: str, namespace: NamespaceName) -> LiveView:
        """Return what a follow is to show for a statement; see `Sql.live`."""
        self._text = text
        with _Translated(self):
            return live_view(parse(text, self._parse), self._engine.connection, namespace)

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
        self._text = text
        with _Translated(self):
            known = frozenset(name.lower() for name in sent)
            statement = parse(text, self._parse, known)
            self._bound = bind(statement, parameters)
            system = SystemReader(self._log, principal, self._cancel, self.count)
            self._show_system(statement, system, authorize, namespace)
            self._show_topics(statement, parameters, authorize, namespace)
            self._workers.warm()
            self._run = run = self._placed(statement, self._bound, parameters, sent)
            if isinstance(run, PlainRun):
                self._schema = run.schema
                return
            views = [_view(name, known, self._tables[known]) for name, known in self._named]
            found = run.prepare(views, self._bound.text)
            if found is None:
                raise InvalidSql("the statement returns no rows")
            check_types(found)
            self._schema = found

    def _placed(
        self,
        statement: Statement,
        bound: Bound,
        parameters: Parameters,
        sent: Mapping[str, bytes],
    ) -> PlainRun | LocalRun | RemoteRun:
        """Return the run of a statement: here, without DuckDB if it is plain, or in a worker."""
        topics = [table for table in self._tables.values() if isinstance(table, TopicTable)]
        plain = plain_run(statement, parameters, topics[0]) if len(topics) == 1 else None
        if plain is not None:
            return plain
        columns = [column for topic in topics for column in topic.shown.columns.values()]
        nested = [each.name.lower() for each in columns if pa.types.is_nested(each.field.type)]
        few = len(columns) <= COLUMNS_MAX and not sent
        if few and is_bounded(statement, bound.text, frozenset(nested)):
            return LocalRun(self._engine, self._tables, self._ends, self._engines.watch)
        return RemoteRun(self._workers, self._tables, sent, self.count.failed, self._ends)

    def batches(self) -> Generator[pa.RecordBatch]:
        """Yield the rows; closes the query at the end.

        Raises:
            InvalidSql: The statement fails on the data.
            ResourceExhausted: It needs more time, memory, disk or rows than it may.
            StorageCorrupt: A page that it reads is damaged; and the other errors of reads.
            WingsError: What the query was cancelled with.
        """
        rows, limit = 0, self._log.limits.sql_rows_max
        try:
            assert self._run is not None, "the query was prepared"
            batches = self._run.batches(self._batch_rows)
            while True:
                with _Translated(self):
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
        """End the query and return its engine; more than once is as good."""
        if getattr(self, "_engine", None) is None:
            return  # It got no engine.
        with self._closing:
            if self._closed:
                return
            self._closed = True
            usable = True
            if self._run is not None:
                self._run.close()
                usable = isinstance(self._run, RemoteRun) or self._run.usable
            self._engines.put_back(self._engine, usable=usable)

    def failed(self, error: BaseException) -> WingsError:
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
        shift = error.shift if isinstance(error, EngineFailed) else 0
        return translated(error, self._text, self._bound, shift)

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
            self._show(table, f"__system{index}", rows)

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
            self._show(table, f"__scan{index}", shown)

    def _show(self, table: TableName, name: str, rows: Any) -> None:
        self._tables[name] = rows
        self._named.append((table, name))


class _Translated:
    """What is raised inside of the block becomes an error of ours."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        if isinstance(error, (WingsError, EngineFailed, duckdb.Error)):
            raise self._query.failed(error) from None


def _view(table: TableName, name: str, rows: Any) -> View:
    """Return the view by which a statement's name is a table that is known by another."""
    query = f"FROM {name}"
    if isinstance(rows, TopicTable):
        shown = rows.shown.columns.values()
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
