"""The tables of the embedded metadata, as numbered migrations.

A migration that was released is never changed; another is added. Each runs in a transaction of its
own, together with the row that says so, so an interrupted start finishes at the next one.
"""

import sqlite3
from collections.abc import Callable, Sequence

from wings_core.errors import Internal
from wings_core.metadata.sqlite.connections import Connections
from wings_core.metadata.sqlite.integrity import add_row_checksum
from wings_core.metadata.sqlite.versions import from_1, from_10, from_17

MIGRATIONS: Sequence[Sequence[str]] = (
    *from_1.MIGRATIONS,
    *from_10.MIGRATIONS,
    *from_17.MIGRATIONS,
)
"""Each brings the database from the version before it (its index) to the next; `:now` is bound."""


def migrate(connections: Connections, clock: Callable[[], int]) -> None:
    """Bring the database to the version of this code, creating its tables at first.

    Raises:
        Internal: It is newer than this code, or not a database of Wings.
    """
    writer = connections.acquire_writer()
    try:
        with writer.transaction() as connection:
            version = _version(connection)
            if version == 0:
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS migrations "
                    "(version INTEGER PRIMARY KEY, applied_at INTEGER NOT NULL) STRICT"
                )
            add_row_checksum(connection)
        _refuse_newer(version)
        for number, statements in enumerate(MIGRATIONS[version:], version + 1):
            with writer.transaction() as connection:
                now = clock()
                for statement in statements:
                    connection.execute(statement, {"now": now} if ":now" in statement else ())
                connection.execute(
                    "INSERT INTO migrations (version, applied_at) VALUES (?, ?)", (number, now)
                )
    finally:
        connections.release_writer(writer)


def check_version(connections: Connections) -> None:
    """Make sure that a database opened for reading only is of this code's version.

    Raises:
        Internal: It is newer or older, or not a database of Wings.
    """
    version = connections.read(_version)
    _refuse_newer(version)
    if version < len(MIGRATIONS):
        raise Internal(
            f"the metadata is of version {version}, this code reads {len(MIGRATIONS)}: "
            "start the server once, which brings it up to date"
        )


def _version(connection: sqlite3.Connection) -> int:
    tables = {
        name
        for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
    }
    if tables and "migrations" not in tables:
        raise Internal("the file is an SQLite database, but not metadata of Wings")
    if not tables:
        return 0
    ((version,),) = connection.execute("SELECT coalesce(max(version), 0) FROM migrations")
    return version


def _refuse_newer(version: int) -> None:
    if version > len(MIGRATIONS):
        raise Internal(
            f"the metadata is of version {version}, newer than {len(MIGRATIONS)}, which this code "
            "knows: it was written by a later Wings and needs one to be read"
        )
