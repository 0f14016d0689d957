"""The database's version: created, brought up to date, refused."""

import re
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from fix_metadata import NOON, SCHEMA, SECOND, Clock, batch_of
from fix_new_metadata import NewMetadata

from wings_core.errors import Internal
from wings_core.metadata.sqlite import SqliteMetadata, migrations
from wings_core.metadata.sqlite.versions import from_10
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName
from wings_core.partitions import UNPARTITIONED

pytestmark = pytest.mark.usefixtures("migrated_anew")

RELEASED = list(range(1, len(migrations.MIGRATIONS) + 1))
"""The versions that this code brings a database to, one after the other."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.db"


@contextmanager
def raw(path: Path) -> Generator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def versions(path: Path) -> list[tuple[int, int]]:
    with raw(path) as connection:
        return connection.execute("SELECT * FROM migrations ORDER BY version").fetchall()


def test_each_migration_is_applied_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    SqliteMetadata(path, clock=clock).close()
    assert versions(path) == [(version, NOON) for version in RELEASED]
    clock.time += SECOND
    another = ("INSERT INTO namespaces (tenant, name, created_at) VALUES ('a', 'b', :now)",)
    monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, another))
    for _ in range(2):
        with SqliteMetadata(path, clock=clock) as metadata:
            found = [(each.name, each.created_at) for each in metadata.admin.list_namespaces()]
            assert found == [(NamespaceName("a", "b"), NOON + SECOND), (DEFAULT_NAMESPACE, NOON)]
    assert versions(path)[-1] == (len(RELEASED) + 1, NOON + SECOND)


def test_what_is_copied_to_other_tests_is_what_migrations_make(
    tmp_path: Path, copied_metadata: NewMetadata
) -> None:
    ids = re.compile("'[0-9a-f]{32}'")
    dumps: list[list[str]] = []
    for name in ("migrated", "copied", "copied-too"):
        path = tmp_path / name
        if name != "migrated":
            copied_metadata.copy(path, Clock())
        SqliteMetadata(path, clock=Clock()).close()
        with raw(path) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            dumps.append(list(connection.iterdump()))
    assert len({ids.sub("an id", "\n".join(dump)) for dump in dumps}) == 1
    found = [ids.findall("\n".join(dump)) for dump in dumps]
    assert len({each for dump in found for each in dump}) == 3 * len(found[0]) > 0


def test_a_migration_that_fails_leaves_nothing_and_is_done_at_the_next_start(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = ("CREATE TABLE extra (id INTEGER)",)
    bad = (*good, "INSERT INTO nowhere VALUES (1)")
    released = migrations.MIGRATIONS
    monkeypatch.setattr(migrations, "MIGRATIONS", (*released, bad))
    with pytest.raises(Internal, match="nowhere"):
        SqliteMetadata(path)
    assert [version for version, _ in versions(path)] == RELEASED
    monkeypatch.setattr(migrations, "MIGRATIONS", (*released, good))
    SqliteMetadata(path).close()
    assert [version for version, _ in versions(path)] == [*RELEASED, len(RELEASED) + 1]


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_database_is_refused_and_left_as_it_is(path: Path, read_only: bool) -> None:
    SqliteMetadata(path, clock=Clock()).close()
    with raw(path) as connection:
        connection.execute("INSERT INTO migrations VALUES (99, 0)")
    before = path.read_bytes()
    with pytest.raises(Internal, match=f"version 99, newer than {len(RELEASED)}"):
        SqliteMetadata(path, read_only=read_only)
    assert path.read_bytes() == before


@pytest.mark.parametrize("read_only", [False, True])
def test_a_database_of_something_else_is_refused(path: Path, read_only: bool) -> None:
    with raw(path) as connection:
        connection.execute("CREATE TABLE cookies (id INTEGER)")
    with pytest.raises(Internal, match="not metadata of Wings"):
        SqliteMetadata(path, read_only=read_only)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_is_no_database_is_refused(path: Path, read_only: bool) -> None:
    path.write_bytes(b"flights," * 1_000)
    with pytest.raises(Internal, match="not a database"):
        SqliteMetadata(path, read_only=read_only)
    assert path.read_bytes() == b"flights," * 1_000


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Internal, match="unable to open"):
        SqliteMetadata(tmp_path / "nowhere" / "metadata.db")


def test_an_older_database_is_not_read_until_a_server_brought_it_up_to_date(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SqliteMetadata(path).close()
    monkeypatch.setattr(
        migrations, "MIGRATIONS", (*migrations.MIGRATIONS, ("CREATE TABLE extra (id INTEGER)",))
    )
    with pytest.raises(Internal, match="start the server once"):
        SqliteMetadata(path, read_only=True)
    SqliteMetadata(path).close()
    SqliteMetadata(path, read_only=True).close()


def test_what_was_there_survives_a_migration(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SqliteMetadata(path) as metadata:
        topic = metadata.admin.create_topic(DEFAULT_NAMESPACE.topic("orders"), SCHEMA)
    monkeypatch.setattr(
        migrations, "MIGRATIONS", (*migrations.MIGRATIONS, ("CREATE TABLE extra (id INTEGER)",))
    )
    with SqliteMetadata(path) as metadata:
        assert metadata.admin.get_topic(topic.name) == topic


COUNTS = ("pages", "merged_pages", "merged_rows", "merged_bytes")


def test_what_tiers_hold_is_counted_by_the_migration_and_not_again(path: Path) -> None:
    counts = f"SELECT {', '.join(COUNTS)} FROM partitions"
    with SqliteMetadata(path) as metadata:
        topic = metadata.admin.create_topic(DEFAULT_NAMESPACE.topic("orders"), SCHEMA)
        for _ in range(3):
            metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 4})])
    with raw(path) as connection:
        # As if the first two pages were one that was merged.
        connection.execute("DELETE FROM pages WHERE end_offset = 3")
        connection.execute(
            "UPDATE pages SET start_offset = 0, first_timestamp = 1, format = 2 "
            "WHERE end_offset = 7"
        )
        for column in ("checksum", *COUNTS):
            connection.execute(f"ALTER TABLE partitions DROP COLUMN {column}")
        for statement in from_10.TIERS:
            connection.execute(statement)
        assert connection.execute(counts).fetchall() == [(2, 1, 8, 100)]
        connection.execute("DELETE FROM pages")
    with SqliteMetadata(path) as metadata:
        assert [state.pages for state in metadata.maintenance.tier_states(topic.uuid)] == [1, 1]
