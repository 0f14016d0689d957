"""The write-ahead log is written in advance, and what is in it survives a crash as before."""

import os
import shutil
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path

import pytest

from wings_core.metadata.sqlite.files import DatabaseFile
from wings_core.metadata.sqlite.writer import LENGTHENED_AFTER, WAL_BYTES_AHEAD, SqliteWriter


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "numbers.sqlite"


@pytest.fixture
def insert(path: Path) -> Generator[Callable[[int], None]]:
    writer = SqliteWriter(path, sqlite3.Connection)
    with writer.transaction() as database:
        database.execute("CREATE TABLE numbers (number INTEGER PRIMARY KEY, filler BLOB)")

    def insert(number: int) -> None:
        with writer.transaction() as database:
            database.execute("INSERT INTO numbers VALUES (?, zeroblob(500))", (number,))

    yield insert
    writer.close()


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def numbers_after_a_crash(path: Path, into: Path) -> list[int]:
    """Return what is in a copy of the files as they are now."""
    into.mkdir()
    for each in (path, log_of(path)):
        shutil.copy(each, into)
    with closing(sqlite3.connect(into / path.name)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return [number for (number,) in database.execute("SELECT number FROM numbers ORDER BY 1")]


def test_all_is_there_after_a_crash_before_and_after_the_log_was_lengthened(
    path: Path, insert: Callable[[int], None], tmp_path: Path
) -> None:
    lengths: list[int] = []
    for number in range(3 * LENGTHENED_AFTER):
        insert(number)
        lengths.append(log_of(path).stat().st_size)
        if number % 5 == 0 or number in range(LENGTHENED_AFTER - 4, LENGTHENED_AFTER + 4):
            found = numbers_after_a_crash(path, tmp_path / f"crash-{number}")
            assert found == list(range(number + 1))
    assert lengths[LENGTHENED_AFTER - 3] < WAL_BYTES_AHEAD
    assert set(lengths[LENGTHENED_AFTER:]) == {WAL_BYTES_AHEAD}


def test_a_log_that_was_lengthened_is_begun_again_and_not_grown(
    path: Path, insert: Callable[[int], None], tmp_path: Path
) -> None:
    for number in range(1_500):
        insert(number)
    assert log_of(path).stat().st_size < 1.1 * WAL_BYTES_AHEAD
    assert numbers_after_a_crash(path, tmp_path / "crash") == list(range(1_500))


def test_a_log_that_cannot_be_lengthened_grows_as_it_would(
    path: Path,
    insert: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for number in range(2 * LENGTHENED_AFTER):
        insert(number)
    assert numbers_after_a_crash(path, tmp_path / "crash") == list(range(2 * LENGTHENED_AFTER))


@pytest.mark.parametrize(("later", "is_damage"), [(1, False), (2, True)])
def test_what_is_left_of_a_transaction_that_another_replaced_is_no_damage(
    path: Path, insert: Callable[[int], None], tmp_path: Path, later: int, is_damage: bool
) -> None:
    insert(0)
    durable = log_of(path).stat().st_size
    (tmp_path / "replaced").mkdir()
    replaced = tmp_path / "replaced" / path.name
    for each in (path, log_of(path)):
        shutil.copy(each, replaced.parent)
    writer = SqliteWriter(replaced, sqlite3.Connection)
    with writer.transaction() as database:  # As one whose sync failed.
        database.executemany(
            "INSERT INTO numbers VALUES (?, zeroblob(5000))", [(n,) for n in [7, 8]]
        )
    failed = log_of(replaced).read_bytes()
    for number in range(later):
        insert(number + 1)
    log = bytearray(log_of(path).read_bytes())
    assert len(log) < len(failed)
    log[durable + 100] ^= 1  # Power was lost before the sync of what replaced it.
    copy = tmp_path / "cut"
    copy.mkdir()
    shutil.copy(path, copy)
    log_of(copy / path.name).write_bytes(log + failed[len(log) :])
    assert bool(DatabaseFile.log_problems_of(copy / path.name)) is is_damage
    writer.close()
