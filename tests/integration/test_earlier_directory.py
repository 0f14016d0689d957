"""A directory that a commit before this one wrote: what is in its journal is there, and goes on."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from earlier_directories import unpack_earlier

import wings_client
from wings_core.check import check_directory
from wings_core.limits import Limits
from wings_server.testing import running_server

KEPT = Limits(maintenance_seconds=100_000, stage_seconds_max=1e9)
"""Pages are merged only when the test says so, and the stage is not swept, however old it is."""


def test_what_the_journal_of_an_earlier_version_has_is_there_and_goes_on(tmp_path: Path) -> None:
    unpack_earlier("with_a_journal", tmp_path)
    expected = json.loads((tmp_path / "expected.json").read_text())
    data = tmp_path / "data"
    with running_server(data, limits=KEPT) as server, wings_client.connect(server.flight) as client:

        def rows() -> dict[str, list[int]]:
            keyed = {key: client.scan("keyed", key).read_all() for key in "ab"}
            found = {"plain": client.scan("plain").read_all(), **keyed}
            return {name: table.column("n").to_pylist() for name, table in found.items()}

        assert rows() == expected["rows"]
        last = expected["sequence"] - 1
        key = "ab"[last % 2]
        with client.producer("keyed", producer_id="till", sequence=last) as producer:
            producer.send({"k": [key], "n": [last]})  # It was pushed already.
            producer.send({"k": [key], "n": [1_000]})
        expected["rows"][key].append(1_000)
        assert server.server.log.drain is not None
        assert server.server.log.drain.run()
        assert rows() == expected["rows"]
    assert check_directory(data).ok
    with closing(sqlite3.connect(data / "metadata.sqlite")) as connection:
        assert not connection.execute(
            "SELECT 1 FROM sqlite_schema WHERE name = 'journal'"
        ).fetchall()
