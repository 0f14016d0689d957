"""Export metadata out of PostgreSQL, as it is at one moment, as an embedded server's SQLite file.

Both have the same tables, but for a few that are a database's own: so the columns of SQLite's are
read out of PostgreSQL, in one transaction that sees one state and keeps no writer waiting.
"""

import sqlite3
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from wings_core.metadata.postgres.connections import Connection, PostgresConnections
from wings_core.metadata.postgres.faults import discard, translated
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.metadata.sqlite.files import CHECKSUMS, add_row_checksum, new_copy, told_of

EXPORT_SECONDS_MAX = 3_600
"""How long an export may take: each of its statements at the server, and all of it here."""

FETCHED_ROWS = 5_000
"""Rows that are fetched and inserted at a time."""

CACHE_KIB = 64 * 1024
"""Pages of the SQLite file that are kept in memory while it is written."""

_LEFT_OUT = frozenset(
    {
        *("migrations", "identity", "fences", "nodes", "leases", "topic_tables", "table_segments"),
        *("consumer_groups", "consumer_group_members"),
    }
)
"""SQLite's own, and what is of the processes that run, or of a catalog."""

_MADE = {"partitions": sql.SQL("WHERE last_timestamp IS NOT NULL")}
"""Rows that are of use: others are of partitions to which a refused batch was pushed."""

_BOUNDS = """
SELECT set_config(name, CASE name WHEN 'statement_timeout' THEN %s ELSE '0' END, true)
FROM pg_settings WHERE name IN (
    'statement_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout'
)
"""


@contextmanager
def reading(connections: PostgresConnections) -> Generator[Connection]:
    """Lend a connection of its own in a transaction whose statements all see one state.

    That is the state at its beginning; for up to `EXPORT_SECONDS_MAX`.

    Raises:
        WingsError: PostgreSQL cannot be reached, or failed.
    """
    connection: Connection | None = None
    try:
        connection = connections.open()
        with connections.watchdog.guarding(connection, EXPORT_SECONDS_MAX):
            connection.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            # The first statement fixes what the others see.
            connection.execute(_BOUNDS, (f"{EXPORT_SECONDS_MAX}s",)).fetchall()
            yield connection
    except psycopg.Error as error:
        raise translated(error) from error
    finally:
        discard(connection)


@contextmanager
def exporting(
    connections: PostgresConnections, check: Callable[[Connection], None]
) -> Generator[Callable[[Path], None]]:
    """Fix the state of metadata at one moment; see `Metadata.copying`.

    Args:
        connections: To the database; the connection is none of those that it lends.
        check: Raises where the tables are not of this code's version.
    """
    with reading(connections) as connection:
        check(connection)
        yield partial(_export, connection)


def rows_of(connection: Connection, query: sql.Composable) -> Iterator[Sequence[tuple[Any, ...]]]:
    """Yield the rows of a query, up to `FETCHED_ROWS` at a time; no other runs meanwhile."""
    connection.execute(sql.SQL("DECLARE rows NO SCROLL CURSOR FOR {}").format(query))
    fetch = sql.SQL("FETCH {} FROM rows").format(FETCHED_ROWS)
    while rows := connection.execute(fetch).fetchall():
        yield rows
    connection.execute("CLOSE rows")


def _export(connection: Connection, into: Path) -> None:
    row = connection.execute("SELECT id::text FROM store").fetchone()
    assert row is not None
    with told_of("the copy of metadata"), new_copy(into) as copy:
        SqliteMetadata(into).close()  # Makes its tables.
        copy.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        copy.execute("BEGIN")
        tables = copy.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        ).fetchall()
        for (table,) in tables:
            if table not in _LEFT_OUT:
                _copy_table(connection, copy, table)
        copy.execute("UPDATE identity SET id = ?", row)
        add_row_checksum(copy)
        copy.execute(f"UPDATE producer_results SET checksum = {CHECKSUMS['producer_results']}")
        # An id of a topic is never used again; stages keep those of topics that are gone.
        copy.execute(
            "UPDATE sqlite_sequence SET seq = max(seq, (SELECT ifnull(max(topic_id), 0) "
            "FROM stages)) WHERE name = 'topics'"
        )
        copy.execute("COMMIT")
        copy.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _copy_table(connection: Connection, copy: sqlite3.Connection, table: str) -> None:
    """Copy all columns but checksums, in the order of the table's key."""
    found = copy.execute(f"PRAGMA table_xinfo({table})").fetchall()
    columns = [row[1] for row in found if not row[6] and row[1] != "checksum"]
    key = [name for place, name in sorted((row[5], row[1]) for row in found) if place]
    query = sql.SQL("SELECT {} FROM {} {} ORDER BY {}").format(
        sql.SQL(", ").join(map(sql.Identifier, columns)),
        sql.Identifier(table),
        _MADE.get(table, sql.SQL("")),
        sql.SQL(", ").join(map(sql.Identifier, key)),
    )
    names, values = ", ".join(columns), ", ".join("?" * len(columns))
    copy.execute(f"DELETE FROM {table}")
    for rows in rows_of(connection, query):
        copy.executemany(f"INSERT INTO {table} ({names}) VALUES ({values})", rows)
