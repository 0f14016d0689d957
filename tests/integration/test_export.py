"""`wings export` of a real server, read back by other programs' readers."""

import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backup_world import rows
from fix_commands import Command

import wings_client
from wings_client import Client
from wings_server.testing import RunningServer

TIMES = [f"2026-01-01T00:00:{second:02}Z" for second in range(4)]


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[Client]:
    with wings_client.connect(server.flight) as connected:
        connected.create_topic("orders", rows(0, 1).schema, partition_key="k")
        connected.create_topic("empty", rows(0, 1).schema)
        for number, time in enumerate(TIMES):
            connected.push("orders", rows(10 * number, 10), timestamp=time)
        yield connected


Export = Command


@pytest.fixture
def export(server: RunningServer, client: Client, command: Command) -> Export:
    del client
    return lambda *arguments: command("export", *arguments, "--endpoint", server.flight)


def numbers(table: pa.Table) -> list[int]:
    values: list[Any] = table.column("n").to_pylist()
    return sorted(values)


def test_each_format_holds_all_messages(export: Export, tmp_path: Path) -> None:
    for name in ("a.parquet", "a.arrow", "a.csv", "a.jsonl"):
        status, out, err = export("orders", tmp_path / name)
        assert (status, err) == (0, "")
        assert "40 messages" in out
    assert numbers(pq.read_table(tmp_path / "a.parquet")) == list(range(40))
    assert numbers(pa.ipc.open_file(str(tmp_path / "a.arrow")).read_all()) == list(range(40))
    with (tmp_path / "a.csv").open() as file:
        found = list(csv.DictReader(file))
    assert sorted(int(row["n"]) for row in found) == list(range(40))
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert sorted(line["n"] for line in lines) == list(range(40))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_values_that_json_has_no_form_for_are_counted(
    export: Export, client: Client, tmp_path: Path
) -> None:
    odd = [float("nan"), float("inf"), None, 1.5]
    maps = pa.array([[("k", value)] for value in odd], pa.map_(pa.string(), pa.float32()))
    client.create_topic("odd", pa.schema([("x", pa.float64()), ("m", maps.type)]))
    client.push("odd", pa.table({"x": odd, "m": maps}))
    status, _, err = export("odd", tmp_path / "a.jsonl")
    assert (status, err) == (0, "4 values are NaN or infinite: null, as JSON has no such number\n")
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [line["x"] for line in lines] == [None, None, None, 1.5]
    assert export("odd", tmp_path / "b.jsonl", "--columns", "m")[2].startswith("2 values are NaN")
    assert export("odd", tmp_path / "a.csv")[2] == ""


def test_a_part_is_exported(export: Export, tmp_path: Path) -> None:
    file = tmp_path / "part.parquet"

    def part(*arguments: str) -> list[int]:
        assert export("orders", file, "--force", *arguments)[0] == 0
        return numbers(pq.read_table(file))

    assert part("--offset", TIMES[1], "--end", TIMES[3]) == list(range(10, 30))
    assert part("--end", TIMES[0]) == []
    of_one = [number for number in range(40) if number % 3 == 1]
    assert part("--partition", "key-1") == of_one
    assert part("--partition", "key-1", "--offset", "2", "--end", "5") == of_one[2:5]
    assert part("--partition", "key-1", "--end", TIMES[1]) == [1, 4, 7]
    assert part("--filter", "n >= 35", "--columns", "n,k") == [35, 36, 37, 38, 39]
    assert pq.read_table(file).column_names == ["n", "k"]
    part("--system-columns")
    assert {"__offset", "__timestamp"} <= set(pq.read_table(file).column_names)


def test_a_file_that_is_there_stays_and_a_failed_export_leaves_none(
    export: Export, tmp_path: Path
) -> None:
    file = tmp_path / "a.csv"
    file.write_text("mine")
    status, _, err = export("orders", file)
    assert status == 1
    assert "--force replaces it" in err
    assert file.read_text() == "mine"
    assert export("orders", tmp_path / "b.csv", "--filter", "nonsense +")[0] == 1
    assert export("nothing", tmp_path / "b.csv")[0] == 1
    assert export("orders", tmp_path / "b.what")[0] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_an_empty_topic_is_a_file_with_its_columns(export: Export, tmp_path: Path) -> None:
    assert export("empty", tmp_path / "a.parquet")[0] == 0
    assert pq.read_table(tmp_path / "a.parquet").schema.names == ["k", "n", "text"]


def test_standard_output_takes_all_formats(server: RunningServer, client: Client) -> None:
    del client
    for name in ("parquet", "jsonl"):
        arguments = ["export", "orders", "-", "--format", name, "--endpoint", server.flight]
        done = subprocess.run(
            [sys.executable, "-m", "wings_client.cli", *arguments],
            stdout=subprocess.PIPE,
            check=True,
        )
        if name == "parquet":
            assert numbers(pq.read_table(pa.BufferReader(done.stdout))) == list(range(40))
        else:
            assert len(done.stdout.splitlines()) == 40
