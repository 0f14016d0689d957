"""`wings repair` of Parquet segments, grown schemas and tables, and where it cannot write."""

import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import act, create_topic, numbers, push
from repair_world import Partitions, read_world
from test_repair import compare

from wings_core.check import check_directory
from wings_core.errors import InvalidArgument, ResourceExhausted, Unavailable
from wings_core.limits import Limits
from wings_core.repair import repair_directory
from wings_server.testing import running_server

pytest.importorskip("pyiceberg")

LIMITS = Limits(maintenance_seconds=100_000)
ROWS = 3_000
TABLE_ROWS = 6_100
ROUNDS = 6


def rows(first: int, number: pa.DataType, *, more: bool = False) -> pa.RecordBatch:
    """Return rows of three keys."""
    values = range(first, first + ROWS)
    columns = {"key": pa.array([f"k{n % 3}" for n in values]), "n": pa.array(values, number)}
    return pa.record_batch(columns | ({"more": pa.array(["x"] * ROWS)} if more else {}))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topic of Parquet segments in two versions of its schema, and one that is a table."""
    path = tmp_path_factory.mktemp("formats") / "data"
    with running_server(path, limits=LIMITS) as server, flight.connect(server.flight) as client:
        create_topic(client, "grown", ["key: string", "n: int32"], "key")
        config = {"tier_after_ms": 0, "segment_format": "parquet"}
        act(client, "alter-topic", topic="grown", config=config)
        push(client, "grown", rows(0, pa.int32()))
        act(client, "maintain", topic="grown")
        grown = {
            "add": [{"name": "more", "type": "string"}],
            "widen": [{"name": "n", "type": "int64"}],
        }
        act(client, "alter-topic", topic="grown", schema=grown)
        push(client, "grown", rows(ROWS, pa.int64(), more=True))
        act(client, "maintain", topic="grown")
        push(client, "grown", rows(2 * ROWS, pa.int64(), more=True))
        schema = {"fields": [{"name": "n", "type": "int64"}]}
        config = {"tier_after_ms": 0, "table": "iceberg", "segment_bytes": 1}
        act(client, "create-topic", topic="table", schema=schema, config=config)
        for first in range(0, 2 * ROWS, ROWS):
            push(client, "table", numbers(*range(first, first + ROWS)))
            act(client, "maintain", topic="table")
        push(client, "table", numbers(*range(2 * ROWS, TABLE_ROWS)))
    assert check_directory(path).ok
    return path


@pytest.fixture(scope="module")
def expected(world: Path) -> Partitions:
    return read_world(world)


def test_a_table_is_made_anew_with_each_row_once(
    world: Path, expected: Partitions, tmp_path: Path
) -> None:
    report = repair_directory(world, tmp_path / "new")
    assert (report.ok, compare(expected, report, "sound")) == (True, 0)
    assert any("rebuilds its Iceberg table" in each for each in report.rebuilt)
    with (
        running_server(report.path, limits=LIMITS) as server,
        flight.connect(server.flight) as client,
    ):
        push(client, "table", numbers(TABLE_ROWS))
        act(client, "maintain", topic="table")
        described = act(client, "describe-topic", topic="table")["table"]
        assert (described["rows"], described["lag_rows"]) == (TABLE_ROWS + 1, 0)
        tables = server.server.log.tables
        assert tables is not None
        found = tables.catalog.catalog.load_table(("default", "table")).scan().to_arrow()
        assert sorted(found["n"].to_pylist()) == list(range(TABLE_ROWS + 1))
    assert check_directory(report.path).ok


def test_parquet_segments_that_are_damaged_or_gone_lose_their_rows_alone(
    world: Path, expected: Partitions, tmp_path: Path
) -> None:
    def cut(file: Path) -> None:
        file.write_bytes(file.read_bytes()[:-100])

    def flip(file: Path) -> None:
        data = bytearray(file.read_bytes())
        data[len(data) // 3] ^= 0x41
        file.write_bytes(data)

    damages: tuple[Callable[[Path], None], ...] = (cut, flip, Path.unlink)
    used = {each.name for each in repair_directory(world, tmp_path / "sound").path.rglob("*")}
    for number, damage in enumerate(damages):
        data = shutil.copytree(world, tmp_path / f"data{number}")
        found = [file for file in data.rglob("*.parquet") if file.name in used]
        damage(found[number])
        report = repair_directory(data, tmp_path / f"new{number}")
        assert compare(expected, report, damage.__name__) in (ROWS // 3, 2 * ROWS // 3, ROWS)


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_whatever_is_damaged_at_once_no_row_is_another(
    world: Path, expected: Partitions, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    data = shutil.copytree(world, tmp_path / "data")
    files = [
        *data.glob("*.sqlite"),
        data / "NOTES",
        *data.rglob("*.parquet"),
        *data.rglob("*.seg*"),
    ]
    for file in chance.sample(sorted(file for file in files if file.is_file()), 3):
        content = bytearray(file.read_bytes())
        for _ in range(chance.choice((1, 5, 50))):
            content[chance.randrange(len(content))] ^= chance.randrange(1, 256)
        file.write_bytes(content)
    report = repair_directory(data, tmp_path / "new")
    compare(expected, report, str(seed), may_return=True)
    with running_server(report.path, limits=LIMITS):
        pass


def test_no_new_directory_within_the_old_one(world: Path, tmp_path: Path) -> None:
    before = sorted(world.rglob("*"))
    link = tmp_path / "link"
    link.symlink_to(world)
    for into in (world / "new", world / "segments" / "new", link / "new", world):
        with pytest.raises(InvalidArgument, match="is within"):
            repair_directory(world, into)
    assert sorted(world.rglob("*")) == before


def test_a_disk_that_is_too_small_is_told_and_left_empty(world: Path, tmp_path: Path) -> None:
    """At whatever step it is full."""
    outcomes: set[bool] = set()
    for kibibytes in range(300, 2_400, 300):
        disk = tmp_path / f"disk{kibibytes}"
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k", "none", str(disk)]
        if subprocess.run(mount, check=False, capture_output=True).returncode:
            pytest.skip("no file system can be mounted here")
        try:
            assert repair_directory(world, disk / "new").ok
            outcomes.add(True)
        except (Unavailable, ResourceExhausted):
            outcomes.add(False)
            assert not list(disk.iterdir())
        finally:
            subprocess.run(["umount", "-l", str(disk)], check=True)
    assert outcomes == {True, False}
