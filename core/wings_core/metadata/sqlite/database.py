"""Transactions on SQLite, and PostgreSQL's SQL as SQLite runs it."""

import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, TypeVar

from wings_core.metadata.sqlite.connections import CommitCache, SqliteConnections
from wings_core.metadata.store.database import Lock, Notification, no_notification
from wings_core.metadata.waiting import Waiters
from wings_core.partitions import VALUE_BYTES_MAX

STATEMENTS_MAX = 1_024
"""Statements kept as SQLite runs them; there are fewer."""

STATEMENT_ROWS = 50
"""Rows that one statement inserts, where there are so many; see `insert_rows`."""

_NOT_OF_SQLITE = re.compile(
    r"""
    ::\w+                                                     # A type: values have one here.
    | [ ]FOR[ ](UPDATE|NO[ ]KEY[ ]UPDATE|KEY[ ]SHARE|SHARE)   # One process writes at a time.
      ([ ]OF[ ]\w+)?([ ]SKIP[ ]LOCKED)?
    """,
    re.VERBOSE,
)
_LIMIT = re.compile(r"LIMIT (%s|%\(\w+\)s)")
_NAMED = re.compile(r"%\((\w+)\)s")

T = TypeVar("T")


@lru_cache(STATEMENTS_MAX)
def in_sqlite(query: str) -> str:
    """Return a statement of PostgreSQL as SQLite runs it; one of SQLite stays as it is.

    Parameters are written otherwise, casts and row locks go, and no limit (NULL) is -1.
    """
    query = _NOT_OF_SQLITE.sub("", query.strip())
    query = _LIMIT.sub(r"LIMIT ifnull(\1, -1)", query)
    return _NAMED.sub(r":\1", query).replace("%s", "?")


@lru_cache(STATEMENTS_MAX)
def _given(columns: tuple[str, ...]) -> str:
    """Return the table of the rows that are given, of columns by name and type."""
    names = [
        f"json_extract(value, '$[{place}]') AS \"{column.split()[0]}\""
        for place, column in enumerate(columns)
    ]
    return f"(SELECT key AS place, {', '.join(names)} FROM json_each(%(given)s)) AS given"


class SqliteConnection:
    """A connection to SQLite as `store.database.Connection`.

    Args:
        raw: SQLite's own, for statements in its SQL that must be quick, or run many times.
        cache: Rows that the last commits read and wrote.
    """

    __slots__ = ("cache", "raw")

    def __init__(self, raw: sqlite3.Connection, cache: CommitCache) -> None:
        self.raw = raw
        self.cache = cache

    def execute(
        self, query: str, params: Sequence[Any] | Mapping[str, Any] | None = None, /
    ) -> sqlite3.Cursor:
        """Run a statement in the SQL of SQLite or of PostgreSQL; see `in_sqlite`."""
        return self.raw.execute(in_sqlite(query), params or ())

    def execute_rows(
        self,
        query: str,
        columns: Mapping[str, Sequence[Any]],
        params: Mapping[str, Any] | None = None,
        /,
    ) -> sqlite3.Cursor:
        """Run a statement over rows that are given; see `store.database.Connection`."""
        given = json.dumps(list(zip(*columns.values(), strict=True)), ensure_ascii=False)
        return self.raw.execute(
            in_sqlite(query.replace("{given}", _given(tuple(columns)))),
            {"given": given, **(params or {})},
        )

    def expect_rows(self, rows: int) -> None:
        """Do nothing: plans are the same for any number."""

    def note(self, table: str, rows: Sequence[Any]) -> None:
        """Keep rows for the notes of a repair; see `notes`."""
        self.cache.note(table, rows)

    def purge_outcomes(self, rows_max: int) -> int:
        """Do nothing: no process asks for the outcome of a transaction."""
        del rows_max
        return 0

    def take_lock(self, lock: Lock, names: Iterable[str] = ("",)) -> None:
        """Do nothing: one process writes at a time."""

    def share_lock(self, lock: Lock, names: Iterable[str]) -> None:
        """Do nothing: one process writes at a time."""


def insert_rows(
    raw: sqlite3.Connection, into: str, values: str, rows: Sequence[Sequence[Any]]
) -> None:
    """Insert rows, many by one statement: that takes two thirds of the time of one after another.

    Args:
        raw: SQLite's own connection.
        into: `INSERT INTO table (columns)`.
        values: The placeholders of a row, in parentheses.
        rows: Their values, in the order of the placeholders.
    """
    whole = 0
    if len(rows) >= STATEMENT_ROWS:
        whole = len(rows) - len(rows) % STATEMENT_ROWS
        raw.executemany(
            f"{into} VALUES {', '.join([values] * STATEMENT_ROWS)}",
            (
                list(chain.from_iterable(rows[first : first + STATEMENT_ROWS]))
                for first in range(0, whole, STATEMENT_ROWS)
            ),
        )
    raw.executemany(f"{into} VALUES {values}", rows[whole:] if whole else rows)


class SqliteDatabase:
    """A `Database` in SQLite, of one process.

    Args:
        connections: To the database.
        waiters: Woken by what transactions changed.
        clock: Microseconds since the epoch.
    """

    partition_bytes_max = VALUE_BYTES_MAX

    def __init__(
        self, connections: SqliteConnections, waiters: Waiters, clock: Callable[[], int]
    ) -> None:
        self._connections = connections
        self._waiters = waiters
        self._clock = clock

    def now(self) -> int:
        """Return the time, in microseconds since the epoch."""
        return self._clock()

    def lease_now(self, connection: SqliteConnection, /) -> int:
        """Return the time: one process grants all leases."""
        del connection
        return self._clock()

    def read(self, work: Callable[[SqliteConnection], T], /) -> T:
        """Run statements that need not see the same state; see `Database.read`."""
        cache = self._connections.commit_cache
        return self._connections.read(lambda raw: work(SqliteConnection(raw, cache)))

    def write(
        self,
        work: Callable[[SqliteConnection], T],
        notification: Callable[[T], Notification | None] = no_notification,
        /,
        *,
        committed: Callable[[T], None] | None = None,
        keeps_cache: bool = False,
    ) -> T:
        """Run a durable transaction; see `Database.write`."""
        writer = self._connections.acquire_writer()
        cache = self._connections.commit_cache
        try:
            if not keeps_cache:
                cache.forget()
            try:
                with writer.transaction() as raw:
                    result = work(SqliteConnection(raw, cache))
                    # Readers of the database see more from COMMIT on, which is before `confirm`.
                    cache.hide_tail()
                cache.confirm()
            except BaseException:  # Ctrl-C too, which may come between the commit and this.
                cache.forget()
                raise
            if committed is not None:
                committed(result)
        finally:
            self._connections.release_writer(writer)
        changed = notification(result)
        if changed is not None:
            changed.wake(self._waiters)
        return result
