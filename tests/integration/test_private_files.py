"""What a server writes is for its own user alone."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import act, create_topic, push

from wings_server.testing import running_server


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """Have the process give every right that a file is not denied."""
    before = os.umask(0)
    yield
    os.umask(before)


def test_all_files_are_their_users_alone(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with running_server(data_dir) as server, flight.connect(server.flight) as client:
        create_topic(client, "t", ["n: int64"])
        act(client, "alter-topic", topic="t", config={"tier_after_ms": 0})
        push(client, "t", *(pa.record_batch({"n": pa.array([number])}) for number in range(3)))
        act(client, "share-create", group="g", topic="t")
        act(client, "maintain")
        found = {path.relative_to(data_dir): path.stat().st_mode for path in data_dir.rglob("*")}
    names = {path.name for path in found}
    assert {"metadata.sqlite", "metadata.sqlite-wal", "holds.sqlite", "FORMAT", "STORE"} <= names
    assert {".segment", ".feather"} <= {path.suffix for path in found}
    for path, mode in {Path(): data_dir.stat().st_mode, **found}.items():
        assert stat.S_IMODE(mode) == (0o700 if stat.S_ISDIR(mode) else 0o600), path


def test_a_directory_of_other_rights_opens_as_it_is(tmp_path: Path) -> None:
    with running_server(tmp_path) as server, flight.connect(server.flight) as client:
        create_topic(client, "t", ["n: int64"])
    for path in tmp_path.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with running_server(tmp_path) as server, flight.connect(server.flight) as client:
        act(client, "describe-topic", topic="t")
    assert stat.S_IMODE((tmp_path / "metadata.sqlite").stat().st_mode) == 0o644
