"""Queries: a statement run by DuckDB over topics, as a stream of batches.

    text ─▶ parse ─▶ tables: authorize, then look up ─▶ where they end, now ─▶ DuckDB ─▶ batches

A query holds an engine from its opening until it is closed, at most `sql_seconds_max`.
"""

import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import duckdb
import pyarrow as pa

from wings_core.contracts.sql import SYSTEM
from wings_core.errors import InvalidSql, ResourceExhausted, WingsError
from wings_core.fetch.fetcher import Cancel
from wings_core.model import PartitionState, Topic
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName
from wings_core.security.principal import ANYONE, Principal
from wings_core.sql.engines import Engine, Engines
from wings_core.sql.failures import check_types, translated
from wings_core.sql.names import topic_of
from wings_core.sql.parameters import Bound, Parameters, bind
from wings_core.sql.statement import CATALOG, Statement, TableName, parse
from wings_core.sql.system import system_table
from wings_core.sql.topic_table import ScanCount, TopicTable

if TYPE_CHECKING:
    from wings_core.log import Log

_HARMLESS = (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException)
"""What is wrong with a statement before it runs."""

_EXPLAIN = "EXPLAIN "

_MAIN = "main"
"""The schema of names without one."""

INTERRUPT_SECONDS = 0.02
"""Between two interrupts of a query that is to end: one before it runs has no effect."""

LOOKS_MAX = 8
"""How often it is looked where the logs of several topics end, until no commit came between."""

BATCH_ROWS = 65_536

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
        query = Query(self._log, self._engines, cancel or Cancel(), seconds)
        try:
            query.prepare(text, authorize, parameters, namespace, principal)
        except BaseException:
            query.close()
            raise
        return query

    def parameters(self, text: str) -> list[str]:
        """Return the names of a statement's parameters, numbers in order; nothing is looked up.

        Raises: as `open`, of the statement alone.
        """
        query = Query(self._log, self._engines, Cancel(), self._log.limits.sql_seconds_max)
        try:
            return query.parameters(text)
        finally:
            query.close()

    def close(self) -> None:
        """Close the engines; queries must have ended."""
        self._engines.close()


class Query:
    """A statement that is planned, or runs.

    Args:
        log: What it reads.
        engines: Where it borrows its engine.
        cancel: Ends it.
        seconds_max: How long it may take.
    """

    def __init__(self, log: "Log", engines: Engines, cancel: Cancel, seconds_max: float) -> None:
        self._log = log
        self._engines = engines
        self._cancel = cancel
        self._seconds_max = seconds_max
        self._ends_at = time.monotonic() + seconds_max
        self.count = ScanCount()
        self._text = ""
        self._bound: Bound | None = None
        self._relation: duckdb.DuckDBPyRelation | None = None
        self._schema: pa.Schema | None = None
        self._usable = True
        """Whether its engine may be lent again: nothing was begun there that did not end."""
        self._made: list[str] = []
        """What drops what was made in the engine, in the order in which it was made."""
        self._registered: list[str] = []
        self._closing = threading.Lock()
        self._ended = threading.Event()
        self._engine: Engine | None = engines.borrow(cancel)
        self._watch = threading.Thread(
            target=_interrupt_at_end,
            args=(self._engine, cancel, self._ended, self._ends_at),
            name="wings-sql-watch",
            daemon=True,
        )
        self._watch.start()

    def __del__(self) -> None:
        """Return the engine of a query whose stream was never begun."""
        self.close()

    @property
    def schema(self) -> pa.Schema:
        """Of the batches."""
        assert self._schema is not None, "a query is prepared once opened"
        return self._schema

    @property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        assert self._engine is not None, "the query is not closed"
        return self._engine.connection

    def parameters(self, text: str) -> list[str]:
        """Return the names of a statement's parameters; see `Sql.parameters`."""
        self._text = text
        with _Translated(self):
            found = parse(text, self._connection).parameters
        return list(dict.fromkeys(parameter.name for parameter in found))

    def prepare(
        self,
        text: str,
        authorize: Authorize,
        parameters: Parameters,
        namespace: NamespaceName,
        principal: Principal,
    ) -> None:
        """Plan a statement; see `Sql.open`."""
        self._text = text
        with _Translated(self):
            statement = parse(text, self._connection)
            self._bound = bind(statement, parameters)
            self._show_system(statement, principal)
            self._show_topics(statement, authorize, namespace)
            self._relation = self._planned(self._bound.text)
            if self._relation is None:
                raise InvalidSql("the statement returns no rows")
            # Of no rows, so nothing is read.
            empty = self._relation.limit(0).to_arrow_table()
            found: pa.Schema = empty.schema.remove_metadata()
            check_types(found)
            self._schema = found

    def _planned(self, text: str) -> duckdb.DuckDBPyRelation | None:
        try:
            return self._connection.sql(text)
        except duckdb.Error as error:
            if self._cancel.error is None and time.monotonic() < self._ends_at:
                self._explain(text)
            raise error

    def _explain(self, text: str) -> None:
        """Raise the error of a statement, with its place: of a relation DuckDB tells none."""
        try:
            self._connection.execute(f"{_EXPLAIN}{text}")
        except duckdb.Error as error:
            shift = len(_EXPLAIN)
            raise translated(error, self._text, self._bound, shift) from None

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
            assert self._relation is not None, "the query was prepared"
            with _Translated(self):
                reader = cast("Any", self._relation).to_arrow_reader(BATCH_ROWS)
            while True:
                with _Translated(self):
                    try:
                        batch: pa.RecordBatch = reader.read_next_batch()
                    except StopIteration:
                        return
                rows += batch.num_rows
                if rows > limit:
                    raise ResourceExhausted(f"a SQL result has at most {limit} rows")
                # DuckDB's reader gives columns of one name the same name; the schema tells them.
                yield pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)
        except BaseException:
            self._usable = False
            raise
        finally:
            self.close()

    def close(self) -> None:
        """End the query and return its engine; more than once is as good."""
        ended: threading.Event | None = getattr(self, "_ended", None)
        if ended is None:
            return  # It got no engine.
        with self._closing:
            engine, self._engine = getattr(self, "_engine", None), None
            if engine is None:
                return
            self._relation = None
            ended.set()
            if threading.current_thread() is not self._watch:
                self._watch.join()
            usable = self._usable and self._sweep(engine.connection)
            self._engines.put_back(engine, usable=usable)

    def _sweep(self, connection: duckdb.DuckDBPyConnection) -> bool:
        """Remove what the query has made in its engine; returns whether all is gone."""
        try:
            if self._made:
                connection.execute("; ".join(reversed(self._made)))
            for name in self._registered:
                connection.unregister(name)
        except (duckdb.Error, RuntimeError):
            return False
        return True

    def failed(self, error: BaseException) -> WingsError:
        """Return the error that tells why a step of the query failed."""
        if not isinstance(error, (WingsError, *_HARMLESS)):
            self._usable = False
        if self._cancel.error is not None:
            return self._cancel.error
        if isinstance(error, WingsError):
            return error
        if self.count.error is not None:
            return self.count.error
        if time.monotonic() >= self._ends_at and "INTERRUPT" in str(error):
            return ResourceExhausted(
                f"the query was stopped after {self._seconds_max:g} s, the longest it may take"
            )
        return translated(error, self._text, self._bound)

    def _show_system(self, statement: Statement, principal: Principal) -> None:
        """Make views of the system tables that a statement names."""
        for table in statement.tables:
            if table.schema == SYSTEM:
                name = f"__system_{table.table}"
                rows = system_table(table.table, self._log, principal)
                self._register(name, rows)
                self._view(table, f"FROM {quoted(name)}")

    def _show_topics(
        self, statement: Statement, authorize: Authorize, namespace: NamespaceName
    ) -> None:
        """Make views of the topics that a statement names."""
        tables = [table for table in statement.tables if table.schema != SYSTEM]
        named = [(table, topic_of(table, namespace)) for table in tables]
        for name in dict.fromkeys(topic for _, topic in named):
            authorize(str(name))
        topics = {name: self._log.admin.get_topic(name) for _, name in named}
        states = _states(self._log, list(topics.values()))
        for index, (table, name) in enumerate(named):
            topic = topics[name]
            shown = TopicTable(self._log, topic, states[topic.uuid], self._cancel, self.count)
            self._register(f"__scan{index}", shown)
            columns = ", ".join(
                f"{quoted(column.scanned_as)} AS {quoted(column.name)}" for column in shown.columns
            )
            self._view(table, f"SELECT {columns} FROM __scan{index}")

    def _view(self, table: TableName, query: str) -> None:
        schema = f"{CATALOG}.{quoted(table.schema or _MAIN)}"
        view = f"{schema}.{quoted(table.table)}"
        create = f"CREATE VIEW {view} AS {query}"
        if table.schema:
            create = f"CREATE SCHEMA IF NOT EXISTS {schema}; {create}"
            self._made.append(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        self._made.append(f"DROP VIEW IF EXISTS {view}")
        self._connection.execute(create)

    def _register(self, name: str, rows: Any) -> None:
        self._registered.append(name)
        self._connection.register(name, rows)


class _Translated:
    """What is raised inside of the block becomes an error of ours."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        if isinstance(error, (WingsError, duckdb.Error, OSError, pa.ArrowException, MemoryError)):
            raise self._query.failed(error) from None


def quoted(name: str) -> str:
    """Return a name as SQL quotes it."""
    return '"' + name.replace('"', '""') + '"'


def _states(log: "Log", topics: Sequence[Topic]) -> Mapping[str, Sequence[PartitionState]]:
    """Return where the partitions of topics stand, by their UUIDs, all at one moment.

    Of several topics the same answers twice in a row were all true between the two looks.
    """
    found: Mapping[str, Sequence[PartitionState]] = {}
    for _ in range(LOOKS_MAX):
        before, found = (
            found,
            {topic.uuid: log.registry.partition_states(topic.uuid) for topic in topics},
        )
        if len(topics) < 2 or found == before:
            break
    return found


def _interrupt_at_end(
    engine: Engine, cancel: Cancel, ended: threading.Event, ends_at: float
) -> None:
    """Interrupt a query whose time is over, or that was cancelled, until it has ended."""
    while not ended.wait(INTERRUPT_SECONDS):
        if cancel.error is not None or time.monotonic() >= ends_at:
            engine.connection.interrupt()
