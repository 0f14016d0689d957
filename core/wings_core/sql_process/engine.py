"""Engines: a DuckDB instance runs one statement at a time, over the tables that it is given.

Each is a database in memory of its own, so that memory, threads and spilled bytes are bounded for
each query. Files, extensions and Python's variables are out of reach, and its configuration is
locked. Opening one takes 20 ms, so it is kept for the next query, unless one failed in it.

Tables and views stay until a statement is given others: most statements are about the tables of
the one before, and making views takes as long as running a look-up.
"""

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

from wings_core.sql_process.interface import CATALOG, EngineFailed, Parsed, View

_EXPLAIN = "EXPLAIN "

_SETTINGS = (
    "SET TimeZone = 'UTC'",
    "SET errors_as_json = true",
    f"ATTACH ':memory:' AS {CATALOG}",
    f"USE {CATALOG}",
    "SET lock_configuration = true",
)

SCHEMAS_KEPT_MAX = 256
"""Schemas of results that are cached by their columns and types."""

SCHEMA_LENGTH_MAX = 8_192
"""Characters of the columns and types of a cached schema."""

OpenScan = Callable[[str, Sequence[str], "pc.Expression | None"], pa.RecordBatchReader]
"""Begins a scan of a table, by its name, its columns, and the condition of its rows."""


@dataclass(frozen=True, slots=True)
class EngineBounds:
    """The resources that an engine may use."""

    memory_bytes: int
    """Memory that DuckDB counts."""
    spill_bytes: int
    threads: int
    """0: one for each core."""


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
    """Returns the rows; they are read as they are asked for."""


class ScannedTable(ds.Dataset):
    """A table as DuckDB scans it.

    It takes the place of a dataset of Arrow, of which DuckDB asks a schema and scanners.

    Args:
        name: The name by which scans are begun.
        schema: The columns that may be asked for.
        open_scan: Begins a scan.
    """

    def __init__(self, name: str, schema: pa.Schema, open_scan: OpenScan) -> None:
        self._name = name
        self._schema = schema
        self._open_scan = open_scan

    @property
    def schema(self) -> pa.Schema:
        """The columns that may be asked for."""
        return self._schema

    def scanner(  # pyright: ignore[reportIncompatibleMethodOverride] - of what DuckDB asks for
        self,
        columns: Sequence[str] | None = None,
        filter: Any = None,  # noqa: A002 - the name that DuckDB calls it by.
        **_: Any,
    ) -> Scanner:
        """Return the scan of some columns, of the rows that pass a filter."""
        names = self._schema.names if columns is None else columns
        schema = pa.schema([self._schema.field(name) for name in names])
        return Scanner(schema, partial(self._open_scan, self._name, names, filter))


class StatementEngine:
    """One instance of DuckDB; one thread at a time uses it.

    Args:
        bounds: The resources that it may use.
        directory: The directory that it spills to.
        open_scan: Begins scans of tables.
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
        # As an option of the connection, DuckDB 2.0 shows it and does not heed it.
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
        """Return the syntax tree of a text; for some texts it takes hours."""
        with engine_errors():
            tree = self._value("SELECT json_serialize_sql(?::VARCHAR)", text)
            if '"error_type":"not implemented"' not in tree[:200]:
                return Parsed(tree, ())
            try:
                statements = self._connection.extract_statements(text)
                return Parsed(tree, tuple(each.type.name for each in statements))
            except ValueError:  # A kind that DuckDB's Python cannot name: UPDATE EXTENSIONS.
                return Parsed(tree, ())

    def write(self, tree: str) -> str:
        """Return the text of a syntax tree."""
        with engine_errors():
            return self._value("SELECT json_deserialize_sql(?::JSON)", tree)

    def _value(self, query: str, value: str) -> str:
        # All rows: one that is left is in the way of the next statement.
        ((found,),) = self._connection.execute(query, [value]).fetchall()
        return str(found)

    def prepare(
        self,
        tables: Mapping[str, pa.Schema],
        sent: Mapping[str, pa.Table],
        views: Sequence[View],
        text: str,
    ) -> pa.Schema | None:
        """Make tables and views, and plan a statement over them; nothing is read yet.

        Args:
            tables: The schemas of the tables to be scanned, by name.
            sent: Tables that are here, by name.
            views: Made in this order.
            text: The statement.

        Returns:
            The schema of its rows; None: it returns none.

        Raises:
            EngineFailed: DuckDB refuses the statement.
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
        """Make tables and views; no others are left."""
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
        """Remove all tables and views; opens a new instance where one is left."""
        views, self._views = self._views, []
        names, self._tables, self._sent = [*self._tables, *self._sent], {}, set()
        try:
            if views:
                self._connection.execute("; ".join(view.drop for view in reversed(views)))
            for name in names:
                self._connection.unregister(name)
        except (duckdb.Error, RuntimeError):
            # The next statement may not see the tables of this one.
            self._connection.close()
            self._connection = self._connected()

    def _schema_of(self, relation: duckdb.DuckDBPyRelation) -> pa.Schema:
        """Return the schema of a relation's rows, which follows from its columns and types."""
        described = tuple(relation.columns), tuple(map(str, relation.types))
        found = self._schemas.get(described)
        if found is None:
            # Of no rows, so nothing is read.
            found = relation.limit(0).to_arrow_table().schema.remove_metadata()
            if sum(map(len, (*described[0], *described[1]))) <= SCHEMA_LENGTH_MAX:
                if len(self._schemas) >= SCHEMAS_KEPT_MAX:
                    self._schemas.clear()
                self._schemas[described] = found
        return found

    def _explain(self, text: str) -> None:
        """Raise the error of a statement, with its place: of a relation DuckDB tells none."""
        with engine_errors(len(_EXPLAIN)):
            self._connection.execute(f"{_EXPLAIN}{text}")

    def batches(self, rows: int) -> Generator[pa.RecordBatch]:
        """Yield the rows of the statement, about so many at a time.

        Raises:
            EngineFailed: The statement fails on the data, or needs more than it may.
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
        """Let go of the statement, and of tables that were sent with it."""
        self._relation = None
        if self._sent:
            self._clear()

    def close(self) -> None:
        """Free its memory."""
        self._relation = None
        self._connection.close()
