"""The client's reads of tables: by pyiceberg, and united with what came since, for one moment."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pyarrow as pa
import pytest
from fix_calls import Calls
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from property_examples import examples

import wings_client
from wings_client import Client, ReadResult
from wings_client._snapshot import SnapshotRead, UnreadRanges
from wings_core.errors import InvalidArgument, Unavailable
from wings_core.limits import Limits
from wings_core.partitions import Partition
from wings_server.testing import RunningServer, running_server

pytest.importorskip("pyiceberg")
from pyiceberg.catalog import load_catalog
from pyiceberg.table import StaticTable

TABLE = {"tier_after_ms": 0, "table": "iceberg"}
LIMITS = Limits(maintenance_seconds=100_000)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path, limits=LIMITS) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with wings_client.connect(server.flight) as connected:
        yield connected


def maintain(server: RunningServer) -> None:
    server.server.log.maintainer.run(None)


def numbers(batch: pa.RecordBatch) -> list[Any]:
    return batch.column("n").to_pylist()


def rows(reader: pa.RecordBatchReader) -> list[dict[str, Any]]:
    found: list[Any] = reader.read_all().to_pylist()
    return sorted(found, key=lambda row: (row.get("__partition", ""), row["__offset"]))


def assert_as_scanned(client: Client, topic: str, cold_rows: int | None = None) -> None:
    """A snapshot has the rows of a scan, cell by cell, and so many of them out of files."""
    scanned = client.scan(topic, system_columns=True)
    found = client.snapshot(topic, system_columns=True)
    assert found.schema == scanned.schema
    assert rows(found) == rows(scanned)
    if cold_rows is not None:
        assert cold_rows_of(found) == cold_rows


def cold_rows_of(snapshot: ReadResult) -> int:
    """Return how many rows came out of files so far."""
    return cast("SnapshotRead", snapshot.read).cold_rows


def test_pyiceberg_reads_the_table_that_the_client_hands_out(
    server: RunningServer, client: Client, tmp_path: Path
) -> None:
    client.create_topic("t", {"n": "int64"}, config=TABLE)
    client.push("t", {"n": [1, 2, 3]})
    with pytest.raises(InvalidArgument, match="no snapshot yet"):
        client.table("t")
    maintain(server)
    client.push("t", {"n": [4]})
    table = client.table("t")
    assert isinstance(table, StaticTable)
    assert table.scan(row_filter="n > 1").to_arrow()["n"].to_pylist() == [2, 3]
    catalog = load_catalog("wings", type="sql", uri=f"sqlite:///{tmp_path}/iceberg.sqlite")
    table = client.table("t", catalog=catalog)
    assert not isinstance(table, StaticTable)
    other = load_catalog("other", type="sql", uri=f"sqlite:///{tmp_path}/iceberg.sqlite")
    with pytest.raises(Unavailable, match="has no such table"):
        client.table("t", catalog=other)
    maintain(server)
    assert table.refresh().scan().to_arrow().num_rows == 4

    async def read() -> list[int]:
        async with wings_client.connect_async(server.flight) as other:
            assert (await other.table("t")).scan().to_arrow().num_rows == 4
            async with other.snapshot("t") as snapshot:
                return [n async for batch in snapshot for n in numbers(batch)]

    assert asyncio.run(read()) == [1, 2, 3, 4]


def test_what_is_no_table_or_cannot_be_reached_is_said(
    server: RunningServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topic("plain", {"n": "int64"})
    with pytest.raises(InvalidArgument, match="no table"):
        client.table("plain")
    client.create_topic("t", {"n": "int64"}, config=TABLE)
    client.push("t", {"n": [1, 2, 3]})
    maintain(server)
    assert_as_scanned(client, "t", cold_rows=3)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pyiceberg.table", None)
        with pytest.raises(InvalidArgument, match=r"wings-flight\[iceberg\]"):
            client.table("t")
        assert_as_scanned(client, "t", cold_rows=0)
    with monkeypatch.context() as patch:

        def away(*_: object) -> None:
            raise OSError("not mounted here")

        patch.setattr(StaticTable, "from_metadata", away)
        with pytest.raises(Unavailable, match="cannot be read from here"):
            client.table("t")
        assert_as_scanned(client, "t", cold_rows=0)


def test_a_file_that_ends_while_it_is_read_is_left_to_the_server(
    server: RunningServer, client: Client, calls: Calls
) -> None:
    client.create_topic("t", {"n": "int64"}, config=TABLE)
    client.push("t", {"n": list(range(200_000))})
    maintain(server)
    from wings_client.cold import OpenColdFile

    def broken(read: Iterator[Any], *_: object) -> Iterator[Any]:
        yield next(read)
        raise OSError("the disk is gone")

    calls.change(OpenColdFile, "read", broken)
    snapshot = client.snapshot("t", system_columns=True)
    found = [n for batch in snapshot for n in numbers(batch)]
    assert sorted(found) == list(range(200_000))
    assert 0 < cold_rows_of(snapshot) < 200_000


def test_old_versions_and_all_kinds_of_columns_are_those_of_the_scan(
    server: RunningServer, client: Client
) -> None:
    columns = {
        "key": "string",
        "n": "int16",
        "d": "decimal128(9, 2)",
        "at": "timestamp[ms, tz=Europe/Berlin]",
        "spent": "duration[ms]",
        "b": "binary",
        "deep": "struct<x: int8, tags: list<item: string>>",
    }
    client.create_topic("t", columns, "key", config=TABLE)
    row = {"key": "a", "n": 3, "d": None, "at": None, "spent": None, "b": b"x", "deep": {"x": 1}}
    client.push("t", [row, {**row, "key": "b" * 40, "deep": None}])
    maintain(server)
    client.alter_schema("t", add={"more": "string"}, widen={"n": "int64"})
    client.push("t", [{**row, "n": 1 << 40, "more": "z"}])
    assert_as_scanned(client, "t", cold_rows=2)
    maintain(server)
    assert_as_scanned(client, "t", cold_rows=3)
    some = client.snapshot("t", columns=["more", "n"], filter="n > 3").read_all()
    assert some.to_pydict() == {"more": ["z"], "n": [1 << 40]}


def test_rows_of_the_moment_that_retention_took_are_in_files_or_skipped(
    server: RunningServer, client: Client
) -> None:
    client.create_topic("t", {"n": "int64"}, config={**TABLE, "segment_bytes": 1})
    for number in range(3):
        client.push("t", {"n": [number]})
        maintain(server)
    of_files, of_server = client.snapshot("t"), client.snapshot("t", filter="n >= 0")
    client.alter_topic("t", {**TABLE, "segment_bytes": 1, "retention_bytes": 1})
    maintain(server)
    assert client.scan("t").read_all()["n"].to_pylist() == [2]
    found: list[Any] = of_files.read_all()["n"].to_pylist()
    assert sorted(found) == [0, 1, 2], "its files are kept a while"
    assert of_server.read_all()["n"].to_pylist() == [2]


class Snapshots(RuleBasedStateMachine):
    """Pushes, maintenance and retention between the steps of snapshots that are being read."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        self.running = running_server(Path(self.directory.name), limits=LIMITS)
        self.server = self.running.__enter__()
        self.client = wings_client.connect(self.server.flight)
        self.next = 0
        self.kept: list[int] = []
        self.open: list[tuple[list[Any], list[Any], Iterator[pa.RecordBatch]]] = []
        """What each must have, what it has had, and the rest of it."""

    @initialize(keyed=st.booleans())
    def create(self, keyed: bool) -> None:
        config: dict[str, Any] = {**TABLE, "segment_bytes": 1}
        columns = {"k": "int64", "n": "int64"}
        self.client.create_topic("t", columns, "k" if keyed else None, config=config)

    @rule(count=st.integers(1, 5))
    def push(self, count: int) -> None:
        new = list(range(self.next, self.next + count))
        self.next += count
        self.client.push("t", {"k": [n % 3 for n in new], "n": new})

    @rule()
    def maintain(self) -> None:
        self.client.alter_topic("t", {"retention_bytes": None})
        maintain(self.server)

    @rule()
    def retain(self) -> None:
        self.client.alter_topic("t", {"retention_bytes": 500})
        maintain(self.server)

    @rule()
    def begin(self) -> None:
        wanted: list[Any] = self.client.scan("t", columns=["n"]).read_all()["n"].to_pylist()
        self.open.append((wanted, [], iter(self.client.snapshot("t", columns=["n"]))))

    @precondition(lambda self: self.open)
    @rule(index=st.integers(0, 3), steps=st.integers(1, 3), to_end=st.booleans())
    def read(self, index: int, steps: int, to_end: bool) -> None:
        wanted, found, rest = self.open[index % len(self.open)]
        try:
            for _ in range(1_000 if to_end else steps):
                found += numbers(next(rest))
        except StopIteration:
            kept: list[Any] = self.client.scan("t", columns=["n"]).read_all()["n"].to_pylist()
            assert len(set(found)) == len(found)
            assert set(wanted) & set(kept) <= set(found) <= set(wanted)
            del self.open[index % len(self.open)]

    def teardown(self) -> None:
        while self.open:
            self.read(0, 1, True)
        self.client.close()
        self.running.__exit__(None, None, None)
        self.directory.cleanup()


TestSnapshots = Snapshots.TestCase
TestSnapshots.settings = settings(
    max_examples=examples(4, 40),
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def test_ranges_know_what_is_left() -> None:
    one, other = Partition("1"), Partition("2")
    ranges = UnreadRanges({one: [(0, 10)], other: [(5, 6)]})
    ranges.take(one, 3, 5)
    ranges.take(one, 8, 20)
    assert ranges.of(one) == [(0, 3), (5, 8)]
    assert ranges.within(one, 2, 6) == [(2, 3), (5, 6)]
    ranges.take(other, 0, 9)
    assert (ranges.of(other), ranges.of(Partition("3"))) == ([], [])
