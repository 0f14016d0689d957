"""Spark's own reader of what a topic's table has, cell by cell beside all of it by Flight."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fix_calls import Calls

import wings_client
import wings_spark
from wings_client import Client
from wings_client.cold import ColdFile
from wings_core.limits import Limits
from wings_core.partitions import Partition
from wings_server.testing import RunningServer, running_server
from wings_spark import cold_path
from wings_spark.cold_path import split
from wings_spark.ranges import Range, pack_with_holes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
pytest.importorskip("pyiceberg")

TABLE = {"tier_after_ms": 0, "table": "iceberg", "segment_bytes": 1}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path, limits=Limits(maintenance_seconds=100_000)) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with wings_client.connect(server.flight) as connected:
        yield connected


def rows(frame: "DataFrame", key: str) -> list[dict[str, Any]]:
    found: list[Any] = frame.toArrow().to_pylist()
    return sorted(found, key=lambda row: (row.get(key) or "", row["__offset"]))


def assert_same(spark: "SparkSession", server: RunningServer, files: int, **options: Any) -> None:
    """The read has so many files, and the columns, types and rows of one by Flight alone."""
    options = {"includeSystemColumns": True, **options}
    found = wings_spark.read(spark, server.flight, "t", **options)
    by_flight = wings_spark.read(spark, server.flight, "t", cold_files=False, **options)
    assert len(found.inputFiles()) == files
    assert by_flight.inputFiles() == []
    assert found.dtypes == by_flight.dtypes
    assert rows(found, "key") == rows(by_flight, "key")


def test_ranges_of_a_log_of_many_versions_are_those_of_flight(
    spark: "SparkSession", server: RunningServer, client: Client
) -> None:
    columns = {
        "n": "int16 not null",
        "u": "uint8",
        "f": "float32",
        "d": "decimal128(9, 2)",
        "at": "timestamp[ms, tz=Europe/Berlin]",
        "there": "timestamp[s]",
        "day": "date32",
        "b": "binary",
        "a.b": "string",
        "deep": "struct<x: int8, tags: list<item: string>, m: map<string, int16>>",
    }
    client.create_topic("t", columns, config=TABLE)
    row = {
        "n": 3,
        "u": 255,
        "f": 0.5,
        "d": Decimal("-1.25"),
        "at": datetime(1890, 1, 1, tzinfo=UTC),
        "there": datetime(2030, 1, 1, tzinfo=UTC).replace(tzinfo=None),
        "day": date(1500, 1, 1),
        "b": b"\0",
        "a.b": "é",
        "deep": {"x": 1, "tags": ["a", None], "m": [("k", 7)]},
    }
    nothing = dict.fromkeys(columns) | {"n": -1}
    client.push("t", [row, nothing, row])
    server.server.log.maintainer.run(None)
    wider = {"n": "int64", "u": "uint32", "f": "double", "d": "decimal128(20, 2)"}
    client.alter_schema("t", add={"more": "string"}, widen=wider)
    client.push("t", [{**row, "n": 1 << 40, "more": "z"}, {**nothing, "more": None}])
    server.server.log.maintainer.run(None)
    client.push("t", [{**row, "more": "hot"}, row])
    assert_same(spark, server, 2)
    some = {"startingOffsets": '{"t": 1}', "endingOffsets": '{"t": 6}'}
    assert_same(spark, server, 2, columns=["more", "u"], **some)
    assert_same(spark, server, 1, startingOffsets='{"t": 2}', endingOffsets='{"t": 3}')
    options: list[dict[str, Any]] = [{"startingOffsets": '{"t": 5}'}, {"filter": "n > 0"}]
    for option in options:
        assert wings_spark.read(spark, server.flight, "t", **option).inputFiles() == []
    whole = wings_spark.read(spark, server.flight, "t")
    assert whole.where("n > 3").count() == 1


def test_of_a_topic_with_a_key_whole_files_are_read_by_spark(
    spark: "SparkSession", server: RunningServer, client: Client
) -> None:
    client.create_topic("t", {"key": "string", "n": "int64"}, "key", config=TABLE)
    for start in (0, 6):
        ns = list(range(start, start + 6))
        client.push("t", {"key": ["a" if n % 2 else "b" * 30 for n in ns], "n": ns})
        server.server.log.maintainer.run(None)
    client.push("t", {"key": ["a", "c"], "n": [12, 13]})
    assert_same(spark, server, 4)
    assert_same(spark, server, 3, startingOffsets='{"t": {"a": 1}}')


def test_where_the_files_cannot_be_reached_all_comes_by_flight(
    spark: "SparkSession", server: RunningServer, client: Client, calls: Calls
) -> None:
    client.create_topic("t", {"n": "int64"}, config=TABLE)
    client.push("t", {"n": [1, 2, 3]})
    server.server.log.maintainer.run(None)
    assert_same(spark, server, 1)
    moved = ColdFile("file:///nowhere/x.parquet", Partition("null"), 0, 3)
    calls.change(cold_path, "cold_files", lambda *_: [moved])
    assert_same(spark, server, 0)


def test_a_range_is_split_into_files_and_what_lies_between_them() -> None:
    one = Partition("null")
    files = [ColdFile(f"{start}", one, start, start + 10) for start in (0, 10, 30)]
    found = split([Range("t", "u", one, 5, 37)], files, keyed=False)
    assert (found.whole, found.cut, found.bounds) == (["10"], ["0", "30"], (5, 37))
    assert [(each.start_offset, each.end_offset) for each in found.rest] == [(20, 30)]
    tasks = pack_with_holes([*found.rest, Range("t", "u", one, 40, 41)])
    assert [task.spans for task in tasks] == [((one, 20, 30),), ((one, 40, 41),)]
    found = split([Range("t", "u", one, 5, 37)], files, keyed=True)
    assert (found.whole, found.cut) == (["10"], [])
    assert [(each.start_offset, each.end_offset) for each in found.rest] == [(5, 10), (20, 37)]
