"""The tables of the metadata in PostgreSQL, as numbered migrations.

A migration that was released is never changed; another is added. Each runs in a transaction of its
own, together with the row that says so, under a lock that all nodes take: of several that start at
once, one migrates.
"""

from collections.abc import Callable, Sequence
from typing import LiteralString

from psycopg import sql

from wings_core.errors import Internal
from wings_core.metadata.postgres.connections import Connection
from wings_core.metadata.postgres.database import PostgresDatabase
from wings_core.metadata.postgres.versions import from_1, from_10, from_17
from wings_core.metadata.store.locks import Lock

MIGRATION_SECONDS_MAX = 3_600
"""How long a migration may take, which may look at every page: each of its statements at the
server, and all of it here."""

Migrations = Sequence[Sequence[LiteralString]]
"""Each is the statements that bring a schema to its next version."""

MIGRATIONS: Sequence[Sequence[LiteralString]] = (
    *from_1.MIGRATIONS,
    *from_10.MIGRATIONS,
    *from_17.MIGRATIONS,
)
"""Each brings the schema from the version before it (its index) to the next; `now` is bound."""


_UNHURRIED = """
SELECT set_config(name, CASE name WHEN 'statement_timeout' THEN %s ELSE '0' END, true)
FROM pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout')
"""
"""Servers before 17 have no bound of a transaction; where there is one, 0 takes it off."""


def migrate(database: PostgresDatabase, schema: str, clock: Callable[[], int]) -> None:
    """Bring the schema to the version of this code, creating it at first.

    Raises:
        Internal: It is newer than this code, or holds tables of something else.
    """
    while database.write(
        lambda connection: step(connection, schema, clock()), seconds=MIGRATION_SECONDS_MAX
    ):
        pass


def check_version(database: PostgresDatabase, schema: str) -> None:
    """Make sure that a schema opened for reading only is of this code's version.

    Raises:
        Internal: It is not there, newer or older, or holds tables of something else.
    """
    database.read(lambda connection: check_tables(connection, schema))


def check_tables(connection: Connection, schema: str, migrations: Migrations | None = None) -> None:
    """Make sure that the tables that a connection sees are of this code's version.

    Args:
        connection: To the database.
        schema: Of the tables.
        migrations: None: those of metadata.

    Raises: as `check_version`.
    """
    migrations = MIGRATIONS if migrations is None else migrations
    version = _version(connection, schema)
    if version is None:
        raise Internal(f"the database has no metadata of Wings: there is no schema {schema!r}")
    _refuse_newer(version, len(migrations))
    if version < len(migrations):
        raise Internal(
            f"the metadata is of version {version}, this code reads {len(migrations)}: "
            "start the server once, which brings it up to date"
        )


def has_schema(connection: Connection, schema: str) -> bool:
    """Tell whether a schema is there, with tables."""
    return bool(_version(connection, schema))


def step(
    connection: Connection, schema: str, now: int, migrations: Migrations | None = None
) -> bool:
    """Apply the next migration, in the transaction of the caller; return whether there are more.

    Args:
        connection: In a transaction.
        schema: Created if it is not there.
        now: Bound in statements that name it.
        migrations: None: those of metadata.

    Raises:
        Internal: The schema is newer than this code, or holds tables of something else.
    """
    migrations = MIGRATIONS if migrations is None else migrations
    connection.take_lock(Lock.MIGRATIONS)
    version = _version(connection, schema)
    if version is None:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    if not version:
        version = 0
        connection.execute(
            "CREATE TABLE IF NOT EXISTS migrations "
            "(version INTEGER PRIMARY KEY, applied_at BIGINT NOT NULL)"
        )
    _refuse_newer(version, len(migrations))
    if version == len(migrations):
        return False
    connection.execute(_UNHURRIED, (f"{MIGRATION_SECONDS_MAX}s",))
    for statement in migrations[version]:
        connection.execute(statement, {"now": now} if "%(now)s" in statement else None)
    connection.execute(
        "INSERT INTO migrations (version, applied_at) VALUES (%s, %s)", (version + 1, now)
    )
    return version + 1 < len(migrations)


def _version(connection: Connection, schema: str) -> int | None:
    """Return the schema's version, 0 for an empty one, None where there is none."""
    tables = {
        name
        for (name,) in connection.execute(
            "SELECT relation.relname FROM pg_namespace AS namespace "
            "LEFT JOIN pg_class AS relation ON relation.relnamespace = namespace.oid "
            "AND relation.relkind = 'r' WHERE namespace.nspname = %s",
            (schema,),
        ).fetchall()
    }
    if not tables:
        return None
    tables -= {None}
    if not tables:
        return 0
    if "migrations" not in tables:
        raise Internal(f"the schema {schema!r} holds tables, but not metadata of Wings")
    row = connection.execute("SELECT coalesce(max(version), 0) FROM migrations").fetchone()
    assert row is not None
    return int(row[0])


def _refuse_newer(version: int, newest: int) -> None:
    if version > newest:
        raise Internal(
            f"the metadata is of version {version}, newer than {newest}, which this code knows: "
            "it was written by a later Wings and needs one to be read"
        )
