"""The reader of SQLite's pages: of a sound file it finds what SQLite does."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from earlier_directories import unpack_earlier
from fix_metadata import SCHEMA, batch_of

from wings_core.data_directory import DataDirectory
from wings_core.deployments import OneDirectory
from wings_core.errors import InvalidArgument
from wings_core.ingest.pending import PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.limits import Limits
from wings_core.log import Log
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.metadata.sqlite.files import metadata_problems
from wings_core.names import DEFAULT_NAMESPACE, TopicName
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.repair.pages import PageSource
from wings_core.repair.salvage import NOT_SALVAGED, read_shapes, salvage

LONG = Partition(f'"{"x" * 20_000}"')
"""Its row goes on in several pages."""


def assert_all_is_found(path: Path) -> None:
    found = salvage(path)
    assert not found.problems
    with closing(sqlite3.connect(path)) as connection:
        for name, shape in read_shapes().items():
            if name in NOT_SALVAGED:
                continue
            rows = connection.execute(f"SELECT {', '.join(shape.columns)} FROM {name}").fetchall()
            salvaged = [tuple(row[column] for column in shape.columns) for row in found.rows(name)]
            assert sorted(map(repr, salvaged)) == sorted(map(repr, rows)), name
            assert not found.lost(name)


def test_all_rows_of_a_sound_file_are_found(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    with SqliteMetadata(path) as metadata:
        topic = metadata.admin.create_topic(DEFAULT_NAMESPACE.topic("t"), SCHEMA, "key")
        values = [LONG, *(Partition(f'"customer {at}"') for at in range(700))]
        for folio in ("f", "g", "h"):
            metadata.registry.commit([batch_of(topic, dict.fromkeys(values, 7), folio=folio)])
        metadata.registry.commit_offsets("etl", [(topic, value, 5) for value in values])
    assert_all_is_found(path)


def test_rows_from_before_columns_were_added_are_found(tmp_path: Path) -> None:
    unpack_earlier("0.1.0", tmp_path)
    path = tmp_path / "data" / "metadata.sqlite"
    with pytest.raises(InvalidArgument, match="brings it up to date"):
        salvage(path)
    SqliteMetadata(path).close()
    assert_all_is_found(path)


def test_a_write_ahead_log_that_is_cut_off_is_told(tmp_path: Path) -> None:
    path, copy = tmp_path / "metadata.sqlite", tmp_path / "copy.sqlite"
    with SqliteMetadata(path) as metadata:
        topic = metadata.admin.create_topic(DEFAULT_NAMESPACE.topic("t"), SCHEMA)
        for folio in ("f", "g", "h"):
            metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 7}, folio=folio)])
        shutil.copy(path, copy)
        log = path.with_name(f"{path.name}-wal").read_bytes()
    beside = copy.with_name(f"{copy.name}-wal")
    beside.write_bytes(log)
    found = salvage(copy)
    assert (len(found.rows("pages")), found.losses) == (3, [])
    for left in (len(log) - 10, len(log) - 4_120):  # Within a frame, and without the last one.
        beside.write_bytes(log[:left])
        found = salvage(copy)
        assert len(found.rows("pages")) == 2
        assert "may be lost" in found.losses[0]


def test_the_check_finds_a_damaged_write_ahead_log(tmp_path: Path) -> None:
    path, copy = tmp_path / "metadata.sqlite", tmp_path / "copy.sqlite"
    with SqliteMetadata(path) as metadata:
        topic = metadata.admin.create_topic(DEFAULT_NAMESPACE.topic("t"), SCHEMA)
        for number in range(9):
            metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 7}, folio=f"f{number}")])
        shutil.copy(path, copy)
        log = path.with_name(f"{path.name}-wal").read_bytes()
        assert not list(metadata_problems(path)), "beside a process that has it open"
    beside = copy.with_name(f"{copy.name}-wal")
    beside.write_bytes(log)
    assert not list(metadata_problems(copy))
    for at in (5, 25, 32 + 10, len(log) // 4, len(log) // 2):
        damaged = bytearray(log)
        damaged[at] ^= 64
        beside.write_bytes(damaged)
        assert any("write-ahead log" in each for each in metadata_problems(copy)), at
    beside.write_bytes(log[:-10])  # As a crash may leave it.
    assert not list(metadata_problems(copy))


def test_versions_that_are_lost_make_no_earlier_version(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    with SqliteMetadata(path) as metadata:
        metadata.admin.create_topic(DEFAULT_NAMESPACE.topic("t"), SCHEMA)
    for lost in ("version > 3 AND version <> 7", "TRUE"):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"DELETE FROM migrations WHERE {lost}")
            connection.commit()
        assert len(salvage(path).rows("topics")) == 1


def test_another_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (n)")
        connection.commit()
    with pytest.raises(InvalidArgument, match="not metadata of Wings"):
        salvage(path)


# What a repair finds of the pages of a directory, also of those that metadata keeps itself. #######

KEYED = pa.schema([("k", pa.string()), ("n", pa.int64())])


def test_pages_that_metadata_keeps_itself_are_read_and_tell_their_partition(tmp_path: Path) -> None:
    rows = pa.record_batch({"k": ["a", "a"], "n": [1, 2]}, schema=KEYED)
    with DataDirectory.open(tmp_path / "data") as directory:
        with closing(Log.open(OneDirectory(directory), Limits(maintenance_seconds=1e6))) as log:
            topic = log.admin.create_topic(TopicName.parse("t"), KEYED, "k")
            prepared = Preparer(topic, log.limits).prepare(rows, PushOptions())
            log.group_commit.submit(PushStream(), prepared, awaited=True).accepted()
            value = Partition('"a"')
            (location,) = log.registry.locate(topic.uuid, value, 0, 10).locations
            inline = log.registry.read_inline([location.address.folio])
        with closing(PageSource(directory, inline)) as source:
            assert source.rows(topic, location) == rows
            assert source.partition_of(topic, location) == value
            assert source.is_right(topic, value, location)
        with closing(PageSource(directory, {})) as source:
            assert source.rows(topic, location) is None
