"""Backups of a log whose messages are in object stores, kept in one, restored into a directory."""

from pathlib import Path

import pyarrow as pa
import pytest
from backup_world import back_up, fill, maintain, rows, seen

import wings_client
from wings_core.backup.repository import Repository
from wings_core.backup.restore import restore
from wings_core.check import check_directory
from wings_core.limits import Limits
from wings_server.testing import running_server

LIMITS = Limits(maintenance_seconds=100_000, inline_bytes_max=0, object_flush_seconds=0.0)


@pytest.mark.parametrize("segment_format", ["arrow", "parquet"])
def test_what_lay_in_object_stores_lies_in_the_restored_directory(
    s3_url: str, tmp_path: Path, segment_format: str
) -> None:
    hot, remote, dest = (f"{s3_url}/{segment_format}-{name}" for name in ("hot", "remote", "dest"))
    schema = pa.schema([("n", pa.int64())])
    with (
        running_server(tmp_path / "data", limits=LIMITS, hot=hot, remote=remote) as server,
        wings_client.connect(server.flight) as client,
    ):
        fill(client)
        config = {"tier_after_ms": 0, "segment_format": segment_format}
        client.create_topic("merged", schema, config=config)
        for first in range(0, 30, 10):
            client.push("merged", {"n": list(range(first, first + 10))})
        maintain(client)
        client.push("merged", {"n": [30]})
        before = seen(client)
        repository = Repository.open(dest, create=True)
        first = back_up(client, repository)
        names = {file.name.rpartition(".")[2] for file in first.folios}
        assert names == {"folio", "arrow" if segment_format == "arrow" else "parquet"}
        second = back_up(client, repository)
        assert second.folios == first.folios
        client.push("merged", {"n": [31]})
    restore(repository, first, tmp_path / "restored")
    report = check_directory(tmp_path / "restored")
    assert report.ok, report.problems
    assert not (tmp_path / "restored" / "HOT").exists()
    with (
        running_server(tmp_path / "restored", limits=LIMITS) as again,
        wings_client.connect(again.flight) as restored,
    ):
        assert seen(restored) == before
        restored.push("plain", rows(70_000, 10))
