"""The database's version: created, brought up to date, refused."""

import re
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from earlier_directories import unpack_earlier
from fix_metadata import NOON, SCHEMA, SECOND, Clock
from fix_new_metadata import NewMetadata

from wings_core.errors import Internal
from wings_core.metadata.sqlite import SqliteMetadata, schema
from wings_core.metadata.sqlite.files import metadata_problems
from wings_core.metadata.sqlite.schema import VERSIONS
from wings_core.metadata.store.database import Versions
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName

pytestmark = pytest.mark.usefixtures("migrated_anew")

NEWEST = VERSIONS.newest


Release = Callable[..., None]


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Release:
    """Has the code one version more, of some statements."""

    def have_another(*statements: str) -> None:
        versions = Versions((*VERSIONS.schema, *statements), NEWEST, (statements,))
        monkeypatch.setattr(schema, "VERSIONS", versions)

    return have_another


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


def test_each_migration_is_applied_once(path: Path, release: Release) -> None:
    clock = Clock()
    SqliteMetadata(path, clock=clock).close()
    assert versions(path) == [(NEWEST, NOON)]
    clock.time += SECOND
    another = "INSERT INTO namespaces (tenant, name, created_at) VALUES ('a', 'b', :now)"
    release(another)
    for _ in range(2):
        with SqliteMetadata(path, clock=clock) as metadata:
            found = [(each.name, each.created_at) for each in metadata.admin.list_namespaces()]
            assert found == [(NamespaceName("a", "b"), NOON + SECOND), (DEFAULT_NAMESPACE, NOON)]
    assert versions(path)[-1] == (NEWEST + 1, NOON + SECOND)


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


@pytest.mark.parametrize("new", [False, True])
def test_a_migration_that_fails_leaves_nothing_and_is_done_at_the_next_start(
    path: Path, release: Release, new: bool
) -> None:
    good, bad = "CREATE TABLE extra (id INTEGER)", "INSERT INTO nowhere VALUES (1)"
    if not new:
        SqliteMetadata(path).close()
    release(good, bad)
    with pytest.raises(Internal, match="nowhere"):
        SqliteMetadata(path)
    release(good)
    SqliteMetadata(path).close()
    assert versions(path)[-1][0] == NEWEST + 1


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_database_is_refused_and_left_as_it_is(path: Path, read_only: bool) -> None:
    SqliteMetadata(path, clock=Clock()).close()
    with raw(path) as connection:
        connection.execute("INSERT INTO migrations VALUES (99, 0)")
    before = path.read_bytes()
    with pytest.raises(Internal, match=f"version 99, newer than {NEWEST}"):
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
    path: Path, release: Release
) -> None:
    SqliteMetadata(path).close()
    release("CREATE TABLE extra (id INTEGER)")
    with pytest.raises(Internal, match="start the server once"):
        SqliteMetadata(path, read_only=True)
    SqliteMetadata(path).close()
    SqliteMetadata(path, read_only=True).close()


def test_what_was_there_survives_a_migration(path: Path, release: Release) -> None:
    with SqliteMetadata(path) as metadata:
        topic = metadata.admin.create_topic(DEFAULT_NAMESPACE.topic("orders"), SCHEMA)
    release("CREATE TABLE extra (id INTEGER)")
    with SqliteMetadata(path) as metadata:
        assert metadata.admin.get_topic(topic.name) == topic


def test_a_database_older_than_the_last_release_is_refused(path: Path) -> None:
    SqliteMetadata(path).close()
    with raw(path) as connection:
        connection.execute("UPDATE migrations SET version = 21")
    with pytest.raises(Internal, match=r"wings-flight\[server\]==0.1.0"):
        SqliteMetadata(path)


@pytest.mark.parametrize("earlier", ["0.1.0", "with_a_journal"])
def test_tables_of_an_earlier_version_become_those_of_a_new_database(
    path: Path, tmp_path: Path, earlier: str
) -> None:
    SqliteMetadata(path).close()
    unpack_earlier(earlier, tmp_path)
    migrated = tmp_path / "data" / "metadata.sqlite"
    assert shapes(migrated) != shapes(path)
    SqliteMetadata(migrated).close()
    assert shapes(migrated) == shapes(path)
    assert not list(metadata_problems(migrated)), "the checksums of rows are those of their values"
    with raw(migrated) as connection:
        assert connection.execute("SELECT 1 FROM producer_results LIMIT 1").fetchone()


def shapes(path: Path) -> dict[str, object]:
    """Return the columns of all tables in order, and the texts of indexes and triggers."""
    with raw(path) as connection:
        return {
            name: connection.execute(f"PRAGMA table_xinfo({name})").fetchall()
            if kind == "table"
            else re.sub(r"\s", "", text or "")
            for kind, name, text in connection.execute(
                "SELECT type, name, sql FROM sqlite_schema"
            ).fetchall()
        }
