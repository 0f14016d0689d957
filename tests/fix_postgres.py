"""A real PostgreSQL: one server for all tests of a run, and servers that a test may kill."""

import contextlib
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count

import psycopg
import pytest
from psycopg import sql

from wings_server.testing_postgres import PASSWORD, PostgresServer, postgres_server

__all__ = ["PASSWORD", "PostgresServer", "empty_schema", "new_schema", "postgres_server"]

_numbers = count()

_empty_schemas: dict[str, list[str]] = {}
"""Those that were used and can be used again, by the server's address."""


def new_schema() -> str:
    """Return the name of a schema that nobody else has, and that is not there yet."""
    return f"wings_{next(_numbers)}"


@contextmanager
def empty_schema(server: PostgresServer, created_at: int) -> Generator[str]:
    """Lend a schema without anything in it that a new one has not.

    Making one takes longer than most tests, so they are used again.

    Args:
        server: Where it is.
        created_at: Of the default namespace.
    """
    empty_ones = _empty_schemas.setdefault(server.url, [])
    schema = empty_ones.pop() if empty_ones else new_schema()
    yield schema
    with psycopg.connect(server.url, autocommit=True, options=f"-c search_path={schema}") as empty:
        tables = empty.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)
        ).fetchall()
        kept = {"migrations", "store"}
        for table in {name for (name,) in tables} - kept:
            empty.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table)))
        empty.execute(
            "INSERT INTO namespaces (tenant, name, created_at, uuid) "
            "VALUES ('default', 'default', %s, gen_random_uuid()::text)",
            (created_at,),
        )
    empty_ones.append(schema)


def _running(*, sync: bool) -> Generator[PostgresServer]:
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(postgres_server(sync=sync))
        except RuntimeError as error:
            pytest.skip(str(error))
        yield server


@pytest.fixture(scope="session")
def postgres() -> Generator[PostgresServer]:
    """The server of all tests that need not harm it; it does not sync, so it is fast."""
    yield from _running(sync=False)


@pytest.fixture(scope="session")
def earnest_postgres() -> Generator[PostgresServer]:
    """A server that syncs what it commits, for tests that kill it and start it again."""
    yield from _running(sync=True)
