"""The directory of each released version opens: all that is in it is read, checked and goes on."""

import json
import runpy
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from earlier_directories import EARLIER, unpack_earlier
from flight_calls import act
from token_calls import ROOT, client_of, names_of

import wings_client
from wings_client import Client
from wings_core.check import check_directory
from wings_core.errors import Internal, InvalidArgument
from wings_core.limits import Limits
from wings_core.metadata.sqlite.schema import VERSIONS
from wings_core.model import ShardProgress
from wings_server.testing import running_server

RELEASES = sorted(path.name for path in EARLIER.iterdir() if path.name[0].isdigit())
KEPT = Limits(maintenance_seconds=100_000, stage_seconds_max=1e9)
"""Pages are merged only when the test says so, and the stage is not swept, however old it is."""


def rows_in(client: Client, rows_of: Callable[..., Any], topics: Any) -> dict[str, Any]:
    """Return all rows, as `expected.json` has them."""
    return json.loads(json.dumps({each: rows_of(client, each) for each in topics}, default=str))


@pytest.mark.parametrize("release", RELEASES)
def test_a_directory_of_a_released_version_opens_and_goes_on(release: str, tmp_path: Path) -> None:
    unpack_earlier(release, tmp_path)
    expected = json.loads((tmp_path / "expected.json").read_text())
    make = runpy.run_path(str(EARLIER / release / "make.py"))
    with running_server(tmp_path / "data", limits=KEPT, root_token=ROOT) as server:
        with wings_client.connect(server.flight, token=ROOT) as client:
            assert rows_in(client, make["rows_of"], expected["rows"]) == expected["rows"]
            _what_was_begun_goes_on(client, expected)
            if "totals" in expected["rows"]:
                _groups_and_transactions_go_on(client)
            before = rows_in(client, make["rows_of"], make["FORMATS"])
            make["merge"](client)
            assert rows_in(client, make["rows_of"], make["FORMATS"]) == before
        with client_of(server.flight, expected["token"]) as reader:
            assert len(names_of(act(reader, "list-topics"), "topic")) == len(expected["rows"])
    report = check_directory(tmp_path / "data")
    assert report.ok, report.problems


def _groups_and_transactions_go_on(client: Client) -> None:
    before = client.read("totals").to_arrow()["n"].to_pylist()
    assert sum(before) == 6
    client.push("orders", {"k": ["a"], "n": [10]})
    transactions = client.transactions("adder")
    with client.consumer("adders", "orders", group=True, auto_commit=False, timeout=60) as consumer:
        taken = next(iter(consumer))
        with transactions.begin() as transaction:
            transaction.push("totals", taken.batch.select(["n"]))
            transaction.commit(consumer)
    assert client.read("totals").to_arrow()["n"].to_pylist() == [*before, 10]
    offsets = {each.partition: each.offset for each in client.committed_offsets("adders", "orders")}
    assert offsets == {"a": 3, "b": 1}
    client.push("numbered", {"partition": [1], "n": [4]})
    assert client.read("numbered", partition=1).to_arrow()["n"].to_pylist() == [2, 3, 4]


def _what_was_begun_goes_on(client: Client, expected: dict[str, Any]) -> None:
    for topic in ("arrow", "parquet"):
        assert client.topic(topic).schema_version == 2
        assert client.scan(topic, schema_version=1).schema == pa.schema([("n", pa.int32())])
    offsets = {each.partition: each.offset for each in client.committed_offsets("reader", "keyed")}
    assert offsets == {"a": 1, "b": 1}
    with client.producer("keyed", producer_id="till") as producer:
        producer.send({"k": ["a"], "n": [5]})  # It was pushed already.
    assert client.scan("keyed", "a").read_all()["n"].to_pylist() == [1, 3, 5]
    progress = [ShardProgress("files", "one", "me", 10, 20)]
    assert client.publish("import", 5, [expected["pending"]], progress).committed
    assert client.scan("keyed", "b").read_all()["n"].to_pylist() == [2, 6, 7]
    assert {each.shard: each.position for each in client.list_shards("files")} == {
        "one": 20,
        "two": 0,
    }
    assert client.share_group("workers", "arrow").partitions[0].lag == expected["lag"]
    lasting = [*range(5, 30), 2**40, 31]
    with client.share_consumer("workers", "arrow", timeout=60) as consumer:
        delivered: list[Any] = []
        while len(delivered) < len(lasting):
            delivery = next(consumer)
            delivered += delivery.batch.column("n").to_pylist()
            consumer.accept(delivery)
    assert delivered == lasting


# A directory that a commit before this one wrote: what is in its journal is there, and goes on. ###


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


# A directory that a later version wrote is refused, and not changed. ##############################

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
