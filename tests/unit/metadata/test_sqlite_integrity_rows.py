"""Damage to rows of metadata: what changes a value is found, whatever the table."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from property_examples import examples

from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.metadata.sqlite.database_file import PAGE_BYTES, DatabaseFile
from wings_core.metadata.sqlite.integrity import FAULTS, metadata_problems, open_to_check
from wings_core.repair.records import Trees

FLIPS = examples(20, 60)
ROWS = 5
TIME = 1_795_643_989_401_034
JSON = '[["tenants/default/namespaces/default/topics/t","\\"a\\"",1510,1512]]'
GRANTS = '["read=tenants/default/namespaces/default/topics/t*"]'

TABLES: dict[str, tuple[Any, ...]] = {
    "consumer_offsets": ("consumer {n}", 7, '"a"', 1_000, TIME),
    "flushes": ("writer {n}", 300, JSON, TIME),
    "partitions": ("{n}", 7, '"value {n}"', 5, 900, 70_000, TIME, 9, 3, 500, 8_000),
    "producers": (7, "producer {n}", 300),
    "producer_results": (7, "producer {n}", 44, 300, JSON, TIME),
    "publishes": ("writer {n}", 300, JSON, None, TIME),
    "shard_prunings": ("source {n}", TIME),
    "shards": ("s", "s3://b/{n}.csv", "token {n}", 70_000, "open", 1, "why", TIME, TIME),
    "share_groups": ("{n}", "uuid {n}", 7, "group {n}", '{"delivery_limit": 5}', TIME),
    "table_segments": ("uuid", "folio {n}", '"a"', 1_500, 1_000, 300, None),
    "tokens": ("id {n}", "name {n}", b"digest {n}", GRANTS, TIME, TIME, None),
    "topic_tables": ("uuid {n}", "default.t", 300),
}
"""A row of each, in the order of its columns; of stages and pages, the check of pages tells."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("metadata") / "metadata.sqlite"
    SqliteMetadata(path).close()
    with closing(sqlite3.connect(path)) as connection:
        for table, row in TABLES.items():
            for number in range(1, ROWS + 1):
                values = [_numbered(value, number) for value in row]
                columns = [
                    name
                    for _, name, *_, hidden in connection.execute(f"PRAGMA table_xinfo({table})")
                    if not hidden
                ]
                connection.execute(
                    f"INSERT INTO {table} ({', '.join(columns)}) "
                    f"VALUES ({', '.join('?' * len(columns))})",
                    values,
                )
        connection.commit()
    assert not list(metadata_problems(path))
    return path


def _numbered(value: Any, number: int) -> Any:
    if isinstance(value, bytes):
        return value.replace(b"{n}", b"%d" % number)
    return value.replace("{n}", str(number)) if isinstance(value, str) else value


def rows_of(path: Path, table: str) -> list[Any] | None:
    """Return all rows of a table, None where they cannot be read."""
    try:
        with closing(open_to_check(path)) as connection:
            return connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()
    except FAULTS:
        return None


def places_of(path: Path, table: str) -> Iterator[int]:
    """Yield where in the file the records of a table lie."""
    with closing(sqlite3.connect(path)) as connection:
        ((root,),) = connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)
        ).fetchall()
    with DatabaseFile(path) as file:
        trees = Trees(file)
        assert len(list(trees.walk(root, []))) == ROWS
        for number in trees.used:
            page = file.page(number)
            assert page is not None
            start = (number - 1) * PAGE_BYTES
            yield from range(start + int.from_bytes(page[5:7], "big"), start + PAGE_BYTES)


@pytest.mark.hypothesis
@pytest.mark.parametrize("table", TABLES)
def test_a_changed_value_of_a_row_is_found(sound: Path, tmp_path: Path, table: str) -> None:
    expected = rows_of(sound, table)
    data = sound.read_bytes()
    places = list(places_of(sound, table))
    chance = random.Random(table)
    path = tmp_path / "metadata.sqlite"
    changed = 0
    for _ in range(FLIPS):
        damaged = bytearray(data)
        at = chance.choice(places)
        damaged[at] ^= chance.choice([1 << chance.randrange(8), chance.randrange(1, 256)])
        path.write_bytes(damaged)
        if rows_of(path, table) != expected:
            changed += 1
            assert list(metadata_problems(path)), (table, at)
    assert changed > FLIPS // 2
