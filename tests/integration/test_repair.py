"""`wings repair`: what is kept is what was pushed, and all else is told of."""

import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest
import typer
from flight_calls import act, code_of, create_topic, get, numbers, push
from forked_commands import FORKED
from repair_world import Partitions, make_world, read_world
from share_calls import Member
from typer.testing import CliRunner

from wings_core.check import Problem, check_directory
from wings_core.data_directory import DataDirectory
from wings_core.errors import AlreadyExists, InvalidArgument, WingsError
from wings_core.metadata.sqlite import SqliteMetadata, notes
from wings_core.metadata.sqlite.files import CHECKSUMS
from wings_core.metadata.sqlite.notes import read_notes
from wings_core.repair import RepairReport, repair_directory
from wings_server.repair import repair
from wings_server.testing import running_server

Wings = Callable[..., tuple[int, str]]

DAMAGES = 2, 1, 1
"""Changed bytes, empty pages, and places where it is cut off; under `make soak`, more."""

DAMAGES_SOAK = 5, 2, 2


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("world") / "data"
    make_world(path)
    assert check_directory(path).ok
    return path


@pytest.fixture(scope="module")
def expected(world: Path) -> Partitions:
    return read_world(world)


def damages(data: bytes, seed: int, counts: tuple[int, int, int]) -> Iterator[tuple[str, bytes]]:
    """Yield a file with one byte changed, or cut off, in many places."""
    flips, pages, truncations = counts
    chance = random.Random(seed)
    for _ in range(flips):
        at = chance.randrange(len(data))
        damaged = bytearray(data)
        damaged[at] ^= chance.randrange(1, 256)
        yield f"byte {at}", bytes(damaged)
    for page in (chance.randrange(1, len(data) // 4096) for _ in range(pages)):
        yield f"page {page}", data[: page * 4096] + bytes(4096) + data[(page + 1) * 4096 :]
    for _ in range(truncations):
        length = chance.randrange(4096, len(data))
        yield f"length {length}", data[:length]


def tells_of(problem: Problem, topic: str, partition: str, offset: int) -> bool:
    """Tell whether a report says that a message may be lost."""
    if problem.topic is None and problem.partition is None:
        return "may be missing" in problem.message or "of which nothing else" in problem.message
    if problem.partition not in (None, partition):
        return False
    if problem.topic is not None and problem.topic not in (topic, topic.rpartition("/")[2]):
        return False
    first, last = problem.start_offset, problem.end_offset
    if first is None or last is None:
        return "end of its log" in problem.message or problem.partition is None
    return first <= offset <= last


def compare(
    expected: Partitions, report: RepairReport, what: str, *, may_return: bool = False
) -> int:
    """Compare a repaired directory with what it was; return the number of messages lost."""
    found = read_world(report.path)
    doubted = [problem for problem in report.lost if "may be damaged" in problem.message]
    lost = 0
    for place, rows in found.items():
        if place not in expected and may_return and place[0].endswith("/gone"):
            continue
        for offset, row in rows.items():
            if row is not None and not doubted:
                assert row == expected[place].get(offset), (what, place, offset)
    for (topic, partition), rows in expected.items():
        kept = found.get((topic, partition), {})
        for offset in rows:
            if kept.get(offset) is None:
                lost += 1
                assert doubted or any(
                    tells_of(problem, topic, partition, offset) for problem in report.lost
                ), (what, topic, partition, offset, report.lost)
    told = {(each.topic, each.partition, each.start_offset) for each in report.lost}
    for problem in check_directory(report.path).problems:
        assert (problem.topic, problem.partition, problem.start_offset) in told, what
    return lost


def test_a_sound_directory_is_repaired_to_an_equal_one(
    world: Path, expected: Partitions, tmp_path: Path
) -> None:
    report = repair_directory(world, tmp_path / "new")
    assert report.ok
    assert not report.found
    assert not report.rebuilt
    assert read_world(tmp_path / "new") == expected
    assert check_directory(tmp_path / "new").ok


@pytest.mark.parametrize(
    ("seed", "counts"),
    [
        *((seed, DAMAGES) for seed in range(2)),
        *(pytest.param(seed, DAMAGES_SOAK, marks=pytest.mark.soak) for seed in range(22)),
    ],
)
def test_what_is_kept_is_right_and_what_is_lost_is_told(
    world: Path, expected: Partitions, tmp_path: Path, seed: int, counts: tuple[int, int, int]
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(world, damaged)
    if seed % 2:
        (damaged / "NOTES").unlink()  # As in a directory of before.
    data = (world / "metadata.sqlite").read_bytes()
    messages = sum(map(len, expected.values()))
    refused = 0
    kept_of_flips: list[float] = []
    for what, content in damages(data, seed, counts):
        (damaged / "metadata.sqlite").write_bytes(content)
        new = tmp_path / "new"
        try:
            report = repair_directory(damaged, new)
        except WingsError:
            refused += 1
            assert not new.exists()
            assert not new.with_name("new.unfinished").exists()
            continue
        lost = compare(expected, report, what)
        if what.startswith("byte"):
            kept_of_flips.append(1 - lost / messages)
        shutil.rmtree(new)
    assert refused <= counts[2]
    assert min(kept_of_flips) > 0.5, "a byte costs little"


def test_a_row_that_its_checksum_contradicts_is_lost_and_the_identity_is_told_by_store(
    data: Path, tmp_path: Path
) -> None:
    file = data / "metadata.sqlite"
    with SqliteMetadata(file) as metadata:
        identity = metadata.store_id
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("UPDATE producer_results SET committed = replace(committed, '0', '1')")
        connection.commit()
    content = bytearray(file.read_bytes())
    content[content.index(identity.encode())] ^= 1
    file.write_bytes(content)
    report = repair_directory(data, tmp_path / "new")
    result, rows = (problem.message for problem in report.lost)
    assert "a producer's result is lost" in result
    assert "rows of producer_results may be missing" in rows
    with SqliteMetadata(tmp_path / "new" / "metadata.sqlite") as metadata:
        assert metadata.store_id == identity


@pytest.mark.parametrize("length", [0, 1_000, 100_000, None])
def test_without_metadata_notes_tell_where_all_messages_in_files_lie(
    data: Path, expected: Partitions, tmp_path: Path, length: int | None
) -> None:
    file = data / "metadata.sqlite"
    if length is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:length])
    report = repair_directory(data, tmp_path / "new")
    assert report.rebuilt
    compare(expected, report, f"length {length}")
    found = read_world(tmp_path / "new")
    for (topic, partition), rows in expected.items():
        if not topic.endswith(("/inline", "/merged")):  # Whose last messages were in metadata.
            assert found[topic, partition] == rows
    assert not any("gone" in topic for topic, _ in found), "what was deleted stays deleted"


def test_damaged_notes_cost_no_more_than_what_they_say(
    data: Path, expected: Partitions, tmp_path: Path
) -> None:
    (data / "metadata.sqlite").unlink()
    notes = data / "NOTES"
    content = notes.read_bytes()
    chance = random.Random(7)
    for number in range(6):
        damaged = bytearray(content)
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        notes.write_bytes(damaged[: chance.randrange(len(content))] if number % 2 else damaged)
        new = tmp_path / f"new {number}"
        try:
            report = repair_directory(data, new)
        except WingsError:
            assert not new.exists()
        else:
            # The note of the deletion may be among those that are lost.
            compare(expected, report, f"notes {number}", may_return=True)


def test_of_two_topics_of_a_name_the_later_is_kept(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_server(data) as server, flight.connect(server.flight) as client:
        for last in (1, 2):
            create_topic(client, "t", ["n: int64"])
            push(client, "t", numbers(*range(10_000 * last)))
            if last == 1:
                act(client, "delete-topic", topic="t")
    (data / "metadata.sqlite").unlink()
    path = data / "NOTES"
    kept = [
        (table, [row for row in rows if table != "topics" or row[-3] is None])
        for table, rows in read_notes(path)
    ]
    # As if the note of the deletion were damaged.
    path.write_bytes(notes.record_of(kept))
    report = repair_directory(data, tmp_path / "new")
    assert any("an earlier topic of this name" in each.message for each in report.lost)
    ((_, rows),) = read_world(report.path).items()
    assert [row and row[1] for row in rows.values()] == [(n,) for n in range(20_000)]


def files_of(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def lose_pages(path: Path) -> None:
    """Damage the row of a page that lies in a segment, so that its checksum does not match."""
    file = path / "metadata.sqlite"
    with closing(sqlite3.connect(file)) as connection:
        ((partition_id, end),) = connection.execute(
            "SELECT partition_id, end_offset FROM pages WHERE start_offset > 0 AND partition_id IN "
            "(SELECT id FROM partitions WHERE topic_id IN "
            "(SELECT id FROM topics WHERE name = 'plain')) ORDER BY end_offset LIMIT 1"
        ).fetchall()
        connection.execute("PRAGMA writable_schema = ON")
        expression = CHECKSUMS["pages"]
        connection.execute(
            "UPDATE sqlite_schema SET sql = replace(sql, ?, 'DEFAULT 0') WHERE name = 'pages'",
            (f"GENERATED ALWAYS AS ({expression}) STORED",),
        )
        connection.commit()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(
            "UPDATE pages SET position = position + 64 WHERE partition_id = ? AND end_offset = ?",
            (partition_id, end),
        )
        connection.commit()


@pytest.fixture
def wings() -> Wings:
    """Calls the command; returns its status and all that it said."""
    app = typer.Typer()
    app.command()(repair)

    def call(*arguments: object) -> tuple[int, str]:
        result = CliRunner().invoke(app, [str(each) for each in arguments])
        return result.exit_code, result.output

    return call


@pytest.fixture
def data(world: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(world, tmp_path / "data"))


def test_the_command_tells_what_is_lost_and_the_new_directory_is_served(
    data: Path, tmp_path: Path, wings: Wings
) -> None:
    new = tmp_path / "new"
    lose_pages(data)
    status, said = wings(data, "--into", new)
    assert (status, "1 pages by notes, offsets 10000 to 19999" in said) == (0, True)
    assert "nothing is lost" in said
    shutil.rmtree(new)
    (data / "NOTES").unlink()  # As in a directory of before.
    before = files_of(data)
    status, said = wings(data, "--into", new)
    assert status == 1
    assert "plain, partition null, offsets 10000 to 19999: the location of these" in said
    assert files_of(data) == before, "the old directory is only read"
    status, said = wings(data, "--into", new)
    assert (status, "is there already" in said) == (2, True)

    topic = "tenants/acme/namespaces/lab/topics/plain"
    with running_server(new) as server, flight.connect(server.flight) as client:
        first = get(client, topic=topic, offset=0, max_messages=10_000)
        assert first.column("n") == list(range(10_000))
        with pytest.raises(pa.ArrowException) as caught:
            get(client, topic=topic, offset=15_000, max_messages=1)
        assert code_of(caught.value) == "STORAGE_CORRUPT"
        last = get(client, topic=topic, offset=20_000, max_messages=10_000)
        assert last.column("n") == list(range(20_000, 30_000))
        (pushed,) = push(client, topic, numbers(30_000))
        assert [each["start_offset"] for each in pushed["committed"]] == [30_000]
        act(client, "alter-topic", topic=topic, config={"tier_after_ms": 0})
        assert act(client, "maintain")["rows_merged"] >= 20_000, "the rest moves around it"
    shutil.rmtree(data)
    with running_server(new) as server, flight.connect(server.flight) as client:
        assert get(client, topic="orders", partition="a", offset=0, max_messages=9).end


def test_a_copy_shares_no_file_with_the_old_directory(
    data: Path, tmp_path: Path, wings: Wings
) -> None:
    for name, arguments, links in (("linked", (), 2), ("copied", ("--copy",), 1)):
        new = tmp_path / name
        assert wings(data, "--into", new, *arguments)[0] == 0
        (segment, *_) = (new / "segments").iterdir()
        assert segment.stat().st_nlink == links
        segment.unlink()


def test_a_directory_in_use_or_of_another_version_is_refused(
    data: Path, tmp_path: Path, wings: Wings
) -> None:
    with running_server(data):
        status, said = wings(data, "--into", tmp_path / "new")
        assert (status, "stop it first" in said) == (2, True)
    with closing(sqlite3.connect(data / "metadata.sqlite")) as connection:
        connection.execute("UPDATE migrations SET version = version - 1")
        connection.commit()
    status, said = wings(data, "--into", tmp_path / "new")
    assert (status, "brings it up to date" in said) == (2, True)
    assert wings(tmp_path / "nowhere", "--into", tmp_path / "new")[0] == 2
    assert not (tmp_path / "new").exists()


def test_what_is_in_the_write_ahead_log_is_kept(tmp_path: Path) -> None:
    running, copied = tmp_path / "running", tmp_path / "copied"
    with running_server(running) as server, flight.connect(server.flight) as client:
        create_topic(client, "t", ["n: int64"])
        for at in range(0, 30_000, 10_000):
            push(client, "t", numbers(*range(at, at + 10_000)))
        shutil.copytree(running, copied)
    log = copied / "metadata.sqlite-wal"
    assert log.stat().st_size
    before = files_of(copied)
    assert repair_directory(copied, tmp_path / "new").ok
    assert files_of(copied) == before
    assert read_world(tmp_path / "new") == read_world(running)
    data = bytearray(log.read_bytes())
    data[-2_000] ^= 1
    log.write_bytes(data)
    report = repair_directory(copied, tmp_path / "second")
    assert any("write-ahead log" in str(problem) for problem in report.lost)


@pytest.mark.parametrize("moment", ["reading metadata", "files", "checking pages"])
def test_a_killed_repair_leaves_no_new_directory(data: Path, tmp_path: Path, moment: str) -> None:
    new = tmp_path / "new"
    script = (
        f"{FORKED}import os, signal, sys\n"
        "from pathlib import Path\n"
        "from wings_core.repair import repair_directory\n"
        "def progress(what, count):\n"
        f"    if what == {moment!r}: os.kill(os.getpid(), signal.SIGKILL)\n"
        "repair_directory(Path(sys.argv[1]), Path(sys.argv[2]), progress=progress)\n"
    )
    run = subprocess.run([sys.executable, "-c", script, str(data), str(new)], check=False)
    assert run.returncode == -signal.SIGKILL
    assert not new.exists()
    unfinished = new.with_name("new.unfinished")
    assert unfinished.is_dir()
    if moment == "files":
        with pytest.raises(InvalidArgument, match="not a data directory"):
            DataDirectory.open(unfinished)
    with pytest.raises(AlreadyExists, match="delete it"):
        repair_directory(data, new)
    shutil.rmtree(unfinished)
    assert repair_directory(data, new).ok


def test_damaged_pages_stay_and_damaged_holds_are_copied_row_by_row(
    data: Path, expected: Partitions, tmp_path: Path, wings: Wings
) -> None:
    segment = max((data / "segments").iterdir(), key=lambda file: file.stat().st_size)
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 4
    segment.write_bytes(content)
    holds = data / "holds.sqlite"
    holds.write_bytes(holds.read_bytes()[:-4096] + bytes(4096))
    new = tmp_path / "new"
    status, said = wings(data, "--into", new)
    assert status == 1
    assert "does not match" in said
    assert "messages of share groups may be delivered again" in said
    assert not list(new.glob("old*"))
    found = read_world(new)
    assert sum(row is None for rows in found.values() for row in rows.values()) > 0
    for place, rows in found.items():
        assert all(row is None or row == expected[place][offset] for offset, row in rows.items())
    with running_server(new) as server, flight.connect(server.flight) as client:
        assert Member(client, "merged").acquire(max_messages=5, timeout_ms=40_000)
