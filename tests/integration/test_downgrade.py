"""A directory that a later version wrote is refused, and not changed."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

import wings_client
from wings_core.errors import Internal, InvalidArgument
from wings_core.metadata.sqlite.schema import VERSIONS
from wings_server.testing import running_server

LOCKS = {"LOCK", "METADATA.LOCK", "RESERVE"}


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name not in LOCKS
    }


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with (
        running_server(tmp_path / "data") as server,
        wings_client.connect(server.flight) as client,
    ):
        client.create_topic("orders", pa.schema([("n", pa.int64())]))
        client.push("orders", {"n": [1, 2, 3]})
    return tmp_path / "data"


def test_a_directory_of_a_later_format_is_refused_and_stays_as_it_is(directory: Path) -> None:
    (directory / "FORMAT").write_text("wings data directory, format 2\n")
    before = contents(directory)
    with pytest.raises(InvalidArgument, match="has format 2"), running_server(directory):
        pass
    assert contents(directory) == before


def test_later_metadata_is_refused_and_stays_as_it_is(directory: Path) -> None:
    later = VERSIONS.newest + 1
    with closing(sqlite3.connect(directory / "metadata.sqlite")) as connection:
        connection.execute("INSERT INTO migrations (version, applied_at) VALUES (?, 0)", (later,))
        connection.commit()
    before = contents(directory)
    with pytest.raises(Internal, match=f"version {later}, newer"), running_server(directory):
        pass
    assert contents(directory) == before
