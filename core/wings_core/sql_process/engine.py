"""Engines: a DuckDB instance runs one statement at a time, over the tables that it is given.

Each is a database in memory of its own, so that memory, threads and spilled bytes are bounded for
each query. Files, extensions and Python's variables are out of reach, and its configuration is
locked. It takes 20 ms to open, so it is kept for the next query, unless one failed in it.
"""

import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import duckdb
import pyarrow as pa

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


class EngineFailed(Exception):  # noqa: N818 - translated before anyone sees it.
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
        config: dict[str, str | bool | int | float | list[str]] = {
            "enable_external_access": "false",
            "autoload_known_extensions": "false",
            "autoinstall_known_extensions": "false",
            "python_enable_replacements": "false",
            "memory_limit": f"{bounds.memory_bytes}B",
            "temp_directory": str(Path(directory) / "duckdb"),
            "max_temp_directory_size": f"{bounds.spill_bytes}B",
        }
        if bounds.threads:
            config["threads"] = str(bounds.threads)
        self.connection = duckdb.connect(":memory:", config=config)
        for setting in _SETTINGS:
            self.connection.execute(setting)
        self._relation: duckdb.DuckDBPyRelation | None = None
        self._drops: list[str] = []
        self._registered: list[str] = []

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
        with engine_errors():
            for name, rows in tables.items():
                self._registered.append(name)
                self.connection.register(name, rows)
            for view in views:
                self._drops.append(view.drop)
                self.connection.execute(view.create)
            try:
                self._relation = cast("duckdb.DuckDBPyRelation | None", self.connection.sql(text))
            except duckdb.Error:
                self._explain(text)
                raise
            if self._relation is None:
                return None
            # Of no rows, so nothing is read.
            empty = self._relation.limit(0).to_arrow_table()
            return empty.schema.remove_metadata()

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
        self.connection.interrupt()

    def sweep(self) -> bool:
        """Remove what a statement has made; returns whether all is gone."""
        self._relation = None
        drops, self._drops = self._drops, []
        registered, self._registered = self._registered, []
        try:
            if drops:
                self.connection.execute("; ".join(reversed(drops)))
            for name in registered:
                self.connection.unregister(name)
        except (duckdb.Error, RuntimeError):
            return False
        return True

    def close(self) -> None:
        """Free its memory, and delete what it spilled."""
        self._relation = None
        self.connection.close()
        if self._spill is not None:
            self._spill.cleanup()


def spill_directory() -> tempfile.TemporaryDirectory[str]:
    """Return a directory to spill to."""
    return tempfile.TemporaryDirectory(prefix="wings-sql-", ignore_cleanup_errors=True)
