"""Engines: a DuckDB instance runs one statement at a time, over the tables that it is given.

Each is a database in memory of its own, so that memory, threads and spilled bytes are bounded for
each query. Files, extensions and Python's variables are out of reach, and its configuration is
locked. It takes 20 ms to open, so it is kept for the next query, unless one failed in it.

What a statement was given stays by name until another one is given something else: most are about
the same tables as the one before, and making views takes as long as running a look-up.
"""

import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

CATALOG = "wings"
"""The one catalog in which tables are."""

_EXPLAIN = "EXPLAIN "

_SETTINGS = (
    "SET TimeZone = 'UTC'",
    "SET errors_as_json = true",
    f"ATTACH ':memory:' AS {CATALOG}",
    f"USE {CATALOG}",
    "SET lock_configuration = true",
)

SCHEMAS_KEPT_MAX = 256
"""Schemas of results that are known by the columns and types that DuckDB tells of."""

SCHEMA_LENGTH_MAX = 8_192
"""Characters of these, of one that is kept."""

_HARMLESS = ("ParserException", "BinderException", "CatalogException")
"""What is wrong with a statement before it runs."""


@dataclass(frozen=True, slots=True)
class EngineBounds:
    """What an engine may use."""

    memory_bytes: int
    """As far as DuckDB counts it."""
    spill_bytes: int
    threads: int
    """0: one for each core."""


@dataclass(frozen=True, slots=True)
class View:
    """A view to be made for a statement."""

    create: str
    drop: str


class EngineFailed(Exception):  # noqa: N818 - callers see what it is translated into.
    """What DuckDB, or Arrow within it, refused or failed with.

    Attributes:
        message: With DuckDB's JSON in it, where it is DuckDB's.
        kind: The exception's class.
        shift: How many bytes DuckDB got before the statement.
    """

    def __init__(self, message: str, kind: str, shift: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.shift = shift

    @classmethod
    def stopped(cls) -> "EngineFailed":
        """Return what a query fails with that is to end."""
        return cls("the query was stopped", "InterruptException")

    @property
    def harmless(self) -> bool:
        """Whether the engine is as good as before."""
        return self.kind in _HARMLESS


@contextmanager
def engine_errors(shift: int = 0) -> Generator[None]:
    """Raise what DuckDB and Arrow raise within the block as `EngineFailed`."""
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
    """What DuckDB scans: `opening` says how.

    As the datasets of other formats do, it takes the place of those made by Arrow: DuckDB asks
    nothing of it but a schema and scanners.

    Args:
        schema: The columns that may be asked for.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

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
        """Return what reads some columns of the rows that pass a filter."""
        names = self._schema.names if columns is None else columns
        schema = pa.schema([self._schema.field(name) for name in names])
        return Scanner(schema, self.opening(schema, filter))

    def opening(self, schema: pa.Schema, condition: Any) -> Callable[[], pa.RecordBatchReader]:
        """Return what begins a scan of these columns, of the rows that pass a condition."""
        raise NotImplementedError


class _Slot(ScannedTable):
    """What DuckDB knows by a name: the table of the present statement, as long as that runs."""

    table: Any = None

    def scanner(self, *arguments: Any, **options: Any) -> Any:
        """Return what reads some columns of the rows that pass a filter."""
        return self.table.scanner(*arguments, **options)


class Engine:
    """One instance of DuckDB, and the directory that it spills to; one thread at a time uses it.

    Args:
        bounds: What it may use.
        directory: Where it spills to; None: to a temporary one of its own.
    """

    def __init__(self, bounds: EngineBounds, directory: str | None = None) -> None:
        self._spill: tempfile.TemporaryDirectory[str] | None = None
        if directory is None:
            self._spill = spill_directory()
            directory = self._spill.name
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
        self._views: list[View] = []
        self._slots: dict[str, _Slot] = {}
        self._schemas: dict[tuple[tuple[str, ...], ...], pa.Schema] = {}
        self.connection = self._connected()

    def _connected(self) -> duckdb.DuckDBPyConnection:
        connection = duckdb.connect(":memory:", config=self._config)
        for setting in (self._spill_bound, *_SETTINGS):
            connection.execute(setting)
        return connection

    def prepare(
        self, tables: Mapping[str, Any], views: Sequence[View], text: str
    ) -> pa.Schema | None:
        """Make tables and views, and plan a statement over them; nothing is read yet.

        Args:
            tables: Datasets and tables of Arrow, by the names under which views know them.
            views: Made in this order.
            text: The statement.

        Returns:
            The schema of its rows; None: it returns none.

        Raises:
            EngineFailed: DuckDB refuses the statement.
        """
        self.release()
        with engine_errors():
            self._show(tables, views)
            try:
                self._relation = cast("duckdb.DuckDBPyRelation | None", self.connection.sql(text))
            except duckdb.Error:
                self._explain(text)
                raise
            return None if self._relation is None else self._schema_of(self._relation)

    def _show(self, tables: Mapping[str, Any], views: Sequence[View]) -> None:
        """Give names to tables, and make views over them; no others are left."""
        same = self._slots.keys() == tables.keys() and all(
            slot.schema.equals(tables[name].schema, check_metadata=True)
            for name, slot in self._slots.items()
        )
        if not same or views != self._views:
            self._clear()
            for name, table in tables.items():
                self._slots[name] = _Slot(table.schema)
                self.connection.register(name, self._slots[name])
            for view in views:
                self._views.append(view)
                self.connection.execute(view.create)
        for name, table in tables.items():
            self._slots[name].table = ds.dataset(table) if isinstance(table, pa.Table) else table

    def _clear(self) -> None:
        """Remove all tables and views; opens a new instance where one is left."""
        views, self._views = self._views, []
        slots, self._slots = self._slots, {}
        try:
            if views:
                self.connection.execute("; ".join(view.drop for view in reversed(views)))
            for name in slots:
                self.connection.unregister(name)
        except (duckdb.Error, RuntimeError):
            # The next statement may not see what this one was given.
            self.connection.close()
            self.connection = self._connected()

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
            self.connection.execute(f"{_EXPLAIN}{text}")

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
                    return
            yield batch

    def interrupt(self) -> None:
        """Have what runs end soon; from any thread. Before it runs this has no effect."""
        with suppress(duckdb.Error):  # It was closed just now.
            self.connection.interrupt()

    def release(self) -> None:
        """Let go of the present statement and its tables."""
        self._relation = None
        for slot in self._slots.values():
            slot.table = None

    def close(self) -> None:
        """Free its memory, and delete what it spilled."""
        self.release()
        self.connection.close()
        if self._spill is not None:
            self._spill.cleanup()


def spill_directory() -> tempfile.TemporaryDirectory[str]:
    """Return a directory to spill to."""
    return tempfile.TemporaryDirectory(prefix="wings-sql-", ignore_cleanup_errors=True)
