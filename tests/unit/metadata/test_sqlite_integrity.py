"""Damage to the file of metadata: found whatever it changes, and never a traceback."""

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fix_metadata import SCHEMA, batch_of
from pages import encode_page
from property_examples import examples

from wings_core.check import check_directory
from wings_core.data_directory import DataDirectory
from wings_core.errors import WingsError
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.metadata.sqlite.files import CHECKSUMS, metadata_problems, open_to_check
from wings_core.model import CommitBatch, StoredPage, TopicConfig
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.storage.inline_folios import InlineFolios

FLIPS = examples(40, 120)
TABLES = (
    *("namespaces", "topics", "partitions", "pages", "consumer_offsets", "producer_results"),
    "identity",
)
ROWS = pa.record_batch({"n": pa.array(range(3), pa.int64())})


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with a few hundred rows of each kind."""
    path = tmp_path_factory.mktemp("sound") / "data"
    with DataDirectory.open(path) as directory, SqliteMetadata(directory.metadata) as metadata:
        directory.bind(metadata.store_id, own=True)
        admin, registry = metadata.admin, metadata.registry
        for number in range(20):
            namespace = admin.create_namespace(NamespaceName("default", f"n{number}")).name
            topic = admin.create_topic(namespace.topic("orders"), SCHEMA, "key")
            values = [Partition(f'"customer {at}"') for at in range(10)]
            rows = dict.fromkeys(values, 7)
            registry.commit([batch_of(topic, rows, sequence=("p", 0), folio=f"f{number}")])
            registry.commit([batch_of(topic, dict.fromkeys(values, 3), folio=f"g{number}")])
            registry.commit_offsets("etl", [(topic, value, 5) for value in values])
    return path


@pytest.fixture
def path(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "data"))


def damages(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield a file with one byte changed, and cut off, in many places."""
    chance = random.Random(20)
    for _ in range(FLIPS):
        damaged = bytearray(data)
        at = chance.randrange(len(data))
        damaged[at] ^= chance.randrange(1, 256)
        yield f"byte {at}", bytes(damaged)
    for length in [0, 1, 99, 512, *(chance.randrange(len(data)) for _ in range(6))]:
        yield f"length {length}", data[:length]


def values_in(file: Path) -> dict[str, list[Any]] | None:
    """Return all rows of the tables that are checked; None where they cannot be read."""
    try:
        with closing(open_to_check(file)) as connection:
            found: dict[str, list[Any]] = {}
            for table in TABLES:
                rows = connection.execute(f"SELECT * FROM {table}")
                at = [name[0] for name in rows.description]
                kept = [number for number, name in enumerate(at) if name != "checksum"]
                found[table] = sorted(repr([row[number] for number in kept]) for row in rows)
            return found
    except (sqlite3.Error, UnicodeDecodeError):
        return None


@pytest.mark.hypothesis
def test_no_value_changes_unseen_and_nothing_ends_in_a_traceback(path: Path) -> None:
    file = path / "metadata.sqlite"
    data, expected = file.read_bytes(), values_in(file)
    assert expected is not None
    assert not list(metadata_problems(file))
    changed = 0
    for number, (what, damaged) in enumerate(damages(data)):
        for left in path.glob("metadata.sqlite*"):
            left.unlink()
        file.write_bytes(damaged)
        found = list(metadata_problems(file))
        if values_in(file) != expected:
            changed += 1
            assert found, what
        if number % 5:  # Which reads everything several times.
            continue
        try:
            report = check_directory(path)
        except WingsError:
            assert not found, what
        else:
            assert not report.ok or not found, what
    assert changed > FLIPS // 8


@pytest.mark.parametrize("table", CHECKSUMS)
def test_a_changed_number_names_its_row(path: Path, table: str) -> None:
    """As a byte on the disk that has changed: the row says one thing, its checksum another."""
    file = path / "metadata.sqlite"
    with closing(sqlite3.connect(file)) as connection:
        ((text,),) = connection.execute(
            "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ?", (table,)
        ).fetchall()
        # Without the expression, SQLite computes nothing anew.
        plain = text.replace(f"GENERATED ALWAYS AS ({CHECKSUMS[table]}) STORED", "DEFAULT 0")
        assert "GENERATED" not in plain
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (plain, table))
        connection.commit()
    column = {
        "pages": "position",
        "partitions": "next_offset",
        "consumer_offsets": "offset",
        "producer_results": "sequence",
    }[table]
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(f"UPDATE {table} SET {column} = {column} + 256")
        connection.commit()
    problems = [str(problem) for problem in check_directory(path).problems]
    assert any(f"the row of {table}" in problem for problem in problems)


def test_a_value_changed_by_another_program_names_its_row(path: Path) -> None:
    """SQLite computes no checksum of a row with texts: what else changes it is seen."""
    file = path / "metadata.sqlite"
    data = file.read_bytes()
    for change, problem in {
        "producer_results SET committed = replace(committed, '6', '5')": "row of producer_results",
        "producer_results SET committed = CAST(x'ff' AS TEXT)": "row of producer_results",
        "producer_results SET sequence = sequence + 64": "row of producer_results",
        "folios SET pages = pages + 1": "folio f0 are not as many",
        "identity SET id = hex(id)": "belongs to metadata",
        "sqlite_sequence SET seq = 19 WHERE name = 'topics'": "below that of topic 20",
    }.items():
        with closing(sqlite3.connect(file)) as connection:
            connection.execute(f"UPDATE {change}")
            connection.commit()
        assert any(problem in str(each) for each in check_directory(path).problems), change
        file.write_bytes(data)


def test_a_changed_byte_of_an_inline_page_is_found(tmp_path: Path) -> None:
    with DataDirectory.open(tmp_path) as directory, SqliteMetadata(directory.metadata) as metadata:
        topic = metadata.admin.create_topic(DEFAULT_NAMESPACE.topic("t"), ROWS.schema)
        folio, (address,) = InlineFolios(metadata.registry.read_inline).begin(
            [encode_page(ROWS, topic.uuid)]
        )
        page = StoredPage(UNPARTITIONED, 3, address)
        metadata.registry.commit([CommitBatch(0, topic.uuid, (page,))], inline=folio)
    assert check_directory(tmp_path).ok
    with closing(sqlite3.connect(tmp_path / "metadata.sqlite")) as connection:
        data = bytearray(folio.data)
        data[-60] ^= 4
        connection.execute("UPDATE inline_folios SET data = ?", (bytes(data),))
        connection.commit()
    (problem,) = check_directory(tmp_path).problems
    assert "checksum" in problem.message
    assert problem.folio == folio.name


def test_a_key_that_a_later_release_added_to_a_topic_is_ignored(tmp_path: Path) -> None:
    """As where nodes of two releases share a database."""
    name = DEFAULT_NAMESPACE.topic("t")
    with DataDirectory.open(tmp_path) as directory, SqliteMetadata(directory.metadata) as metadata:
        metadata.admin.create_topic(name, ROWS.schema, config=TopicConfig(retention_ms=5))
        file = directory.metadata
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("UPDATE topics SET config = json_set(config, '$.owner', 'a team')")
        connection.commit()
    with DataDirectory.open(tmp_path) as directory, SqliteMetadata(directory.metadata) as metadata:
        assert metadata.admin.get_topic(name).config == TopicConfig(retention_ms=5)
        altered = metadata.admin.alter_topic(name, TopicConfig(batch_bytes_max=7))
        assert altered.config == TopicConfig(retention_ms=5, batch_bytes_max=7)
        assert len(metadata.registry.partition_states(altered.uuid)) == 1
