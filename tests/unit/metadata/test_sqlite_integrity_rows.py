"""Damage to rows of metadata: what changes a value is found, whatever the table."""

import random
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from property_examples import examples

from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.metadata.sqlite.files import (
    PAGE_BYTES,
    DatabaseFile,
    checksum_of,
    metadata_problems,
    open_to_check,
)
from wings_core.repair.records import Trees

FLIPS = examples(20, 60)
ROWS = 3

NOT_BY_THE_FILE = {
    "fences": "nothing is answered by them",
    "inline_folios": "pages have checksums of their own, and are missed where they are to be",
    "migrations": "the version of the file is another",
}
"""Tables whose values the file itself does not tell to be changed, and what does."""

Values = dict[str, int | str | bytes]


def _tables() -> list[str]:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "metadata.sqlite"
        SqliteMetadata(path).close()
        with closing(sqlite3.connect(path)) as connection:
            found = connection.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
            ).fetchall()
    return sorted(name for (name,) in found if name not in NOT_BY_THE_FILE)


TABLES = _tables()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Values]]:
    """A file with `ROWS` rows in each table, and the last one of each."""
    path = tmp_path_factory.mktemp("metadata") / "metadata.sqlite"
    SqliteMetadata(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.executescript("DELETE FROM identity; DELETE FROM namespaces")
        rows = {
            table: insert_row(connection, table, 100 * (ROWS * number + row))
            for number, table in enumerate(TABLES)
            for row in range(ROWS)
        }
    assert not list(metadata_problems(path))
    return path, rows


def insert_row(connection: sqlite3.Connection, table: str, number: int) -> Values:
    """Insert a row into a table, all values of which are found in the file by their bytes."""
    values: Values = {}
    for _, column, kind, *_, hidden in connection.execute(f"PRAGMA table_xinfo({table})"):
        number += 1
        unlike = number * 1_000_003
        if not hidden:
            values[column] = {
                "INTEGER": 2**52 + 2 * unlike + 1,
                "TEXT": f"text {unlike:012}",
                "BLOB": b"blob %012d" % unlike,
            }[kind]
    if table in ("pages", "staged_pages"):
        ((values["folio_id"],),) = connection.execute("SELECT max(id) FROM folios")
        connection.execute("UPDATE folios SET pages = pages + 1 WHERE id = :folio_id", values)
    if table == "folios":
        values["pages"] = 0
    if "checksum" in values:
        values["checksum"] = checksum_of(table, values)
    connection.execute(
        f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})",
        [*values.values()],
    )
    return values


@pytest.mark.hypothesis
@pytest.mark.parametrize("table", TABLES)
def test_a_changed_byte_of_a_row_is_found(
    written: tuple[Path, dict[str, Values]], tmp_path: Path, table: str
) -> None:
    sound, _ = written
    with closing(open_to_check(sound)) as connection:
        ((root,),) = connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)
        ).fetchall()
    expected, (start, end) = records_of(sound, root)
    assert len(expected) == ROWS
    data = sound.read_bytes()
    chance = random.Random(table)
    path = tmp_path / "metadata.sqlite"
    changed = 0
    for _ in range(FLIPS):
        damaged = bytearray(data)
        at = chance.randrange(start, end)
        damaged[at] ^= chance.choice([1 << chance.randrange(8), chance.randrange(1, 256)])
        path.write_bytes(damaged)
        if records_of(path, root)[0] != expected:
            changed += 1
            assert list(metadata_problems(path)), (table, at)
    assert changed > FLIPS // 2


def records_of(path: Path, page: int) -> tuple[list[Any], tuple[int, int]]:
    """Return the records of a tree of one page that can be read, and where in the file they lie."""
    with DatabaseFile(path) as file:
        found = list(Trees(file).walk(page, []))
        data = file.page(page)
    assert data is not None
    start = (page - 1) * PAGE_BYTES
    return found, (start + int.from_bytes(data[5:7], "big"), start + PAGE_BYTES)


def test_a_changed_value_of_any_column_is_found(
    written: tuple[Path, dict[str, Values]], tmp_path: Path
) -> None:
    sound, rows = written
    data = sound.read_bytes()
    path = tmp_path / "metadata.sqlite"
    for table, row in rows.items():
        for column, value in row.items():
            if (table, column) == ("folios", "pages"):  # Few, and the rows of pages are counted.
                continue
            places = [
                found.end() - 1
                for stored in stored_as(value)
                for found in re.finditer(re.escape(stored), data)
            ]
            assert places, (table, column)
            for at in places:
                damaged = bytearray(data)
                damaged[at] ^= 1
                path.write_bytes(damaged)
                assert list(metadata_problems(path)), (table, column)


def stored_as(value: int | str | bytes) -> set[bytes]:
    """Return the bytes of a value in a file: an integer's are others where it is a row id."""
    if isinstance(value, str):
        return {value.encode()}
    if isinstance(value, bytes):
        return {value}
    size = next(size for size in (1, 2, 3, 4, 6, 8) if value < 1 << 8 * size - 1)
    parts = [value >> shift & 0x7F for shift in range(49, -1, -7)]
    row_id = bytes(part | 0x80 for part in parts[:-1]) + bytes(parts[-1:])
    return {value.to_bytes(size, "big"), row_id}
