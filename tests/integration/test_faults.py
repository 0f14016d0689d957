"""Faults of the disk under a running server: refused with a reason, and the server goes on."""

import contextlib
import errno
import functools
import itertools
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from fix_storage import FaultyFiles
from flight_calls import (
    Stream,
    act,
    chunks,
    code_of,
    create_topic,
    error_of,
    get,
    numbers,
    push,
    read_answer,
    ticket_of,
)

from wings_core.limits import Limits
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.storage import segments
from wings_server.testing import RunningServer, running_server

pytestmark = pytest.mark.usefixtures("pushes_to_storage")


@contextlib.contextmanager
def faulty_server(path: Path) -> Generator[tuple[RunningServer, flight.FlightClient, FaultyFiles]]:
    """Run a server whose disk fails as told."""
    files = FaultyFiles()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SystemFiles", lambda: files)
        with running_server(path) as server:
            yield server, server.client(), files


def assert_refused(client: flight.FlightClient, topic: str, code: str, **keys: Any) -> None:
    stream = Stream(client, numbers().schema, topic, **keys)
    answer = stream.push(numbers(99))
    assert answer["error"]["code"] == code
    with pytest.raises(flight.FlightError) as caught:
        stream.close()
    assert code_of(caught.value) == code


@pytest.mark.parametrize(
    ("operation", "error", "code"),
    [
        ("write", errno.ENOSPC, "RESOURCE_EXHAUSTED"),
        ("write", errno.EIO, "INTERNAL"),
        ("sync", errno.EIO, "INTERNAL"),
        ("sync", errno.ENOSPC, "RESOURCE_EXHAUSTED"),
    ],
)
def test_a_push_that_the_disk_fails_is_refused_and_never_visible(
    tmp_path: Path, operation: str, error: int, code: str
) -> None:
    with faulty_server(tmp_path / "data") as (_, client, files):
        create_topic(client, "t", ["n: int64"])
        push(client, "t", numbers(1))
        files.fail(operation, error)
        assert_refused(client, "t", code)
        assert get(client, kind="scan", topic="t").column("n") == [1]
        push(client, "t", numbers(2))
    with running_server(tmp_path / "data") as server:
        assert get(server.client(), kind="scan", topic="t").column("n") == [1, 2]


def test_a_disk_that_stays_full_refuses_every_push_until_there_is_room(tmp_path: Path) -> None:
    with faulty_server(tmp_path / "data") as (_, client, files):
        create_topic(client, "t", ["n: int64"])
        push(client, "t", numbers(1))
        files.fail("write", errno.ENOSPC, times=3)
        for _ in range(3):
            assert_refused(client, "t", "RESOURCE_EXHAUSTED")
            assert get(client, topic="t", offset=0).column("n") == [1]
        push(client, "t", numbers(2))
        assert get(client, topic="t", offset=0).column("n") == [1, 2]


def test_a_failed_flush_does_not_use_up_a_sequence(tmp_path: Path) -> None:
    with faulty_server(tmp_path / "data") as (_, client, files):
        create_topic(client, "t", ["n: int64"])
        push(client, "t", numbers(1), producer_id="p", sequence=0)
        files.fail("sync", errno.EIO)
        assert_refused(client, "t", "INTERNAL", producer_id="p", sequence=1)
        push(client, "t", numbers(2), producer_id="p", sequence=1)
        assert get(client, topic="t", offset=0).column("n") == [1, 2]


class FaultyConnection(sqlite3.Connection):
    """A connection to metadata on which one kind of statement fails when told to, of a call."""

    failing: str | None = None
    error = sqlite3.SQLITE_IOERR

    @classmethod
    def fail(cls, statement: str, error: int) -> None:
        cls.failing, cls.error = statement, error

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        self._check(sql)
        return super().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
        self._check(sql)
        return super().executemany(sql, parameters)

    def _check(self, sql: str) -> None:
        cls = FaultyConnection
        # The reclaimer writes as a server starts, which it may do late.
        is_call = threading.current_thread().name != "wings-reclaimer"
        if is_call and cls.failing is not None and sql.startswith(cls.failing):
            cls.failing = None
            error = sqlite3.OperationalError("told to fail")
            error.sqlite_errorcode = cls.error
            raise error


@pytest.fixture
def metadata_faults(monkeypatch: pytest.MonkeyPatch) -> Generator[type[FaultyConnection]]:
    """Has servers of the test open their metadata by connections that fail when told to."""
    faulty = functools.partial(SqliteMetadata, connection_type=FaultyConnection)
    monkeypatch.setattr("wings_core.metadata.open.SqliteMetadata", faulty)
    yield FaultyConnection
    assert FaultyConnection.failing is None, "no such statement was executed"


METADATA_FAULTS = [
    ("COMMIT", sqlite3.SQLITE_IOERR, "INTERNAL"),
    ("COMMIT", sqlite3.SQLITE_FULL, "RESOURCE_EXHAUSTED"),
    ("BEGIN", sqlite3.SQLITE_BUSY, "UNAVAILABLE"),
]


@pytest.mark.parametrize(
    ("statement", "error", "code"),
    [
        *METADATA_FAULTS,
        ("INSERT INTO pages", sqlite3.SQLITE_IOERR, "INTERNAL"),
        ("INSERT INTO producers", sqlite3.SQLITE_CORRUPT, "INTERNAL"),
    ],
)
def test_a_push_whose_metadata_fails_is_refused_and_never_visible(
    tmp_path: Path,
    metadata_faults: type[FaultyConnection],
    statement: str,
    error: int,
    code: str,
) -> None:
    producer = {"producer_id": "p"}
    with running_server(tmp_path / "data") as server:
        client = server.client()
        create_topic(client, "t", ["n: int64"])
        push(client, "t", numbers(1), sequence=0, **producer)
        poll = client.do_get(ticket_of(topic="t", offset=1, timeout_ms=300_000))
        metadata_faults.fail(statement, error)
        assert_refused(client, "t", code, sequence=1, **producer)
        assert get(client, kind="scan", topic="t").column("n") == [1]
        # Neither its offset nor its sequence is used up, and a waiting reader gets the next.
        (answer,) = push(client, "t", numbers(2), sequence=1, **producer)
        assert answer["committed"][0]["start_offset"] == 1
        assert read_answer(poll).column("n") == [2]
    with running_server(tmp_path / "data") as server:
        assert get(server.client(), kind="scan", topic="t").column("n") == [1, 2]


def publish(client: flight.FlightClient, batch: int, *stages: str) -> dict[str, Any]:
    return act(client, "stage-publish", writer="w", batch=batch, stages=list(stages))


def assert_not_there(client: flight.FlightClient, stage: str) -> None:
    with pytest.raises(flight.FlightServerError) as caught:
        publish(client, 1_000, stage)
    assert code_of(caught.value) == "STAGE_NOT_FOUND"


@pytest.mark.parametrize(("operation", "error"), [("write", errno.ENOSPC), ("sync", errno.EIO)])
def test_a_staged_batch_that_the_disk_fails_is_refused_and_not_in_its_stage(
    tmp_path: Path, operation: str, error: int
) -> None:
    with faulty_server(tmp_path / "data") as (_, client, files):
        create_topic(client, "t", ["n: int64"])
        stream = Stream(client, numbers().schema, "t", stage="begun")
        assert "staged" in stream.push(numbers(1))
        files.fail(operation, error)
        assert "error" in stream.push(numbers(66))
        files.fail(operation, error)
        assert "error" in Stream(client, numbers().schema, "t", stage="never").push(numbers(66))
        assert_not_there(client, "never")
    with running_server(tmp_path / "data") as server:
        client = server.client()
        assert_not_there(client, "never")
        publish(client, 0, "begun")
        assert get(client, kind="scan", topic="t").column("n") == [1]


@pytest.mark.parametrize(
    ("statement", "error", "code"),
    [
        *METADATA_FAULTS,
        ("INSERT INTO stages", sqlite3.SQLITE_IOERR, "INTERNAL"),
        ("INSERT INTO staged_pages", sqlite3.SQLITE_FULL, "RESOURCE_EXHAUSTED"),
    ],
)
def test_a_staged_batch_whose_metadata_fails_is_refused_and_begins_no_stage(
    tmp_path: Path,
    metadata_faults: type[FaultyConnection],
    statement: str,
    error: int,
    code: str,
) -> None:
    with running_server(tmp_path / "data") as server:
        client = server.client()
        create_topic(client, "t", ["n: int64"])
        metadata_faults.fail(statement, error)
        assert_refused(client, "t", code, stage="s")
        assert_not_there(client, "s")
        push(client, "t", numbers(1), stage="s")
    with running_server(tmp_path / "data") as server:
        publish(server.client(), 0, "s")
        assert get(server.client(), kind="scan", topic="t").column("n") == [1]


@pytest.mark.parametrize(
    ("statement", "error", "code"),
    [
        *METADATA_FAULTS,
        ("INSERT INTO partitions", sqlite3.SQLITE_IOERR, "INTERNAL"),
        ("INSERT INTO pages", sqlite3.SQLITE_IOERR, "INTERNAL"),
        ("DELETE FROM staged_pages", sqlite3.SQLITE_IOERR, "INTERNAL"),
        ("DELETE FROM stages", sqlite3.SQLITE_CORRUPT, "INTERNAL"),
        ("INSERT INTO publishes", sqlite3.SQLITE_FULL, "RESOURCE_EXHAUSTED"),
    ],
)
def test_a_publish_whose_metadata_fails_publishes_nothing_and_can_be_repeated(
    tmp_path: Path,
    metadata_faults: type[FaultyConnection],
    statement: str,
    error: int,
    code: str,
) -> None:
    with running_server(tmp_path / "data") as server:
        client = server.client()
        for topic in ("t", "u"):
            create_topic(client, topic, ["n: int64"])
            push(client, topic, numbers(1), numbers(2), stage=topic)
        poll = client.do_get(ticket_of(topic="t", offset=0, timeout_ms=300_000))
        metadata_faults.fail(statement, error)
        with pytest.raises(flight.FlightError) as caught:
            publish(client, 0, "t", "u")
        assert code_of(caught.value) == code
        for topic in ("t", "u"):
            assert get(client, kind="scan", topic=topic).column("n") == []
        assert not publish(client, 0, "t", "u")["replayed"]
        assert read_answer(poll).column("n") == [1, 2]
    with running_server(tmp_path / "data") as server:
        assert publish(server.client(), 0)["replayed"]
        for topic in ("t", "u"):
            assert get(server.client(), kind="scan", topic=topic).column("n") == [1, 2]


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    """A file system of its own of 4 MiB."""
    path = tmp_path / "small-disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(path)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("mounting is not allowed here")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_disk_that_is_really_full_refuses_pushes_until_there_is_room(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1 << 20))
    acknowledged: list[int] = []

    def push_number(client: flight.FlightClient, value: int) -> str | None:
        """Push 64 KiB of a number; return the code of a refusal."""
        stream = Stream(client, numbers().schema, "t")
        answer = stream.push(numbers(*([value] * 8_192)))
        if "error" not in answer:
            stream.close()
            acknowledged.append(value)
            return None
        with pytest.raises(flight.FlightError):
            stream.close()
        return answer["error"]["code"]

    def everything(client: flight.FlightClient) -> list[int]:
        rows = get(client, kind="scan", topic="t").column("n")
        assert rows == [value for value in rows[::8_192] for _ in range(8_192)]
        return rows[::8_192]

    with running_server(small_disk / "data", limits=Limits(disk_free_bytes_min=0)) as server:
        client = server.client()
        create_topic(client, "t", ["n: int64"])
        value = 0
        while push_number(client, value) is None:
            value += 1
        assert value > 10
        # Full for large batches and for small ones, and again and again.
        refusals = {push_number(client, -number) for number in range(1, 4)}
        assert refusals == {"RESOURCE_EXHAUSTED"}
        assert everything(client) == acknowledged
        ballast.unlink()
        assert [push_number(client, value + number) for number in range(5)] == [None] * 5
        assert everything(client) == acknowledged
    with running_server(small_disk / "data", limits=Limits(disk_free_bytes_min=0)) as server:
        assert everything(server.client()) == acknowledged
    assert check(small_disk / "data")[0] == 0


def check(data_dir: Path) -> tuple[int, str]:
    """Run `wings check`; return its exit status and what it says."""
    command = [sys.executable, "-m", "wings_client.cli", "check", str(data_dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert not done.stderr
    return done.returncode, done.stdout


def damaged(tmp_path: Path) -> tuple[Path, list[Path]]:
    """Fill a directory: topic t of two columns in three segments of one page each."""
    path = tmp_path / "data"
    for start in (0, 10, 20):
        with running_server(path) as server:  # Each start begins a segment.
            client = server.client()
            if start == 0:
                create_topic(client, "t", ["n: int64", "s: string"])
            values = list(range(start, start + 10))
            rows = {"n": pa.array(values, pa.int64()), "s": pa.array([f"row {v}" for v in values])}
            push(client, "t", pa.record_batch(rows))
    segments = sorted((path / "segments").iterdir())
    assert len(segments) == 3
    return path, segments


def assert_only_the_middle_is_lost(client: flight.FlightClient, file: Path) -> None:
    with pytest.raises(flight.FlightInternalError) as caught:
        get(client, topic="t", offset=10, max_messages=1)
    error = error_of(caught.value)
    assert error["code"] == "STORAGE_CORRUPT"
    assert error["folio"] == file.name
    assert error["position"] == 0
    assert get(client, topic="t", offset=0, max_messages=10).column("n") == list(range(10))
    assert get(client, topic="t", offset=20).column("n") == list(range(20, 30))
    with pytest.raises(flight.FlightInternalError):
        get(client, kind="scan", topic="t")


def test_a_flipped_byte_is_told_and_its_neighbours_stay_readable(tmp_path: Path) -> None:
    path, segments = damaged(tmp_path)
    flip(segments[1])
    with running_server(path) as server:
        client = server.client()
        assert_only_the_middle_is_lost(client, segments[1])
        whole = get(client, kind="scan", topic="t", columns=["n"])
        assert whole.column("n") == list(range(30))
        push(client, "t", pa.record_batch({"n": pa.array([30]), "s": pa.array(["row 30"])}))
        assert get(client, topic="t", offset=30).column("n") == [30]


@pytest.mark.parametrize("length", [0, 5, 70, -1])
def test_a_truncated_segment_is_told_and_its_neighbours_stay_readable(
    tmp_path: Path, length: int
) -> None:
    path, segments = damaged(tmp_path)
    data = segments[1].read_bytes()
    segments[1].write_bytes(data[:length])
    with running_server(path) as server:
        assert_only_the_middle_is_lost(server.client(), segments[1])


def test_a_segment_truncated_while_it_is_mapped_does_not_end_the_server(tmp_path: Path) -> None:
    path, segments = damaged(tmp_path)
    with running_server(path) as server:
        client = server.client()
        assert get(client, kind="scan", topic="t").table.num_rows == 30
        with segments[1].open("r+b") as file:
            file.truncate(64)
        assert_only_the_middle_is_lost(client, segments[1])


def test_a_missing_segment_is_told(tmp_path: Path) -> None:
    path, segments = damaged(tmp_path)
    segments[1].unlink()
    with running_server(path) as server:
        assert_only_the_middle_is_lost(server.client(), segments[1])


def flip(segment: Path, text: bytes = b"row 10") -> None:
    data = bytearray(segment.read_bytes())
    # The last place: what pads the page before it may be the same bytes.
    data[data.rindex(text)] ^= 1
    segment.write_bytes(data)


def cut(segment: Path) -> None:
    segment.write_bytes(segment.read_bytes()[:-1])


def empty(segment: Path) -> None:
    segment.write_bytes(b"")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (flip, "the checksum of column 's' does not match"),
        (cut, "its file has"),
        (empty, "its segment is empty"),
        (Path.unlink, "its segment is missing"),
    ],
)
def test_check_tells_what_is_damaged_and_where(
    tmp_path: Path, damage: Callable[[Path], object], says: str
) -> None:
    path, segments = damaged(tmp_path)
    damage(segments[1])
    status, report = check(path)
    assert status == 1
    (problem,) = (line for line in report.splitlines() if line.startswith("problem: "))
    assert segments[1].name in problem
    assert "offsets 10 to 19" in problem
    assert says in problem


def test_damage_to_a_page_spares_its_neighbours_in_the_segment(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with running_server(path) as server:
        client = server.client()
        create_topic(client, "t", ["key: string", "n: int64", "text: string"], "key")
        # One push for each page: the rows of a small batch share one, also of several partitions.
        for first, key in itertools.product(range(0, 40, 10), "ab"):
            values = range(first + (key == "b"), first + 10, 2)
            columns = {"key": [key] * 5, "n": values, "text": [f"row {v}" for v in values]}
            push(client, "t", pa.record_batch({k: pa.array(v) for k, v in columns.items()}))
        (segment,) = (path / "segments").iterdir()
        flip(segment, b"row 21")

        def scan(key: str, **keys: Any) -> list[Any]:
            return get(client, kind="scan", topic="t", partition=key, **keys).column("n")

        even, odd = list(range(0, 40, 2)), list(range(1, 40, 2))
        assert scan("a") == even
        with pytest.raises(flight.FlightInternalError) as caught:
            scan("b")
        error = error_of(caught.value)
        assert error["code"] == "STORAGE_CORRUPT"
        assert (error["folio"], error["position"] > 0) == (segment.name, True)
        assert "'text'" in error["message"]
        assert scan("b", columns=["n"]) == odd
        assert scan("b", columns=["n", "key"], filter="n > 20") == odd[10:]
        assert scan("b", end_offset=10) == odd[:10]
        assert scan("b", offset=15) == odd[15:]
        # What stands before the damage is delivered before the error.
        begun = chunks(client.do_get(ticket_of(kind="scan", topic="t", partition="b")))
        first_chunk = next(begun).data
        assert first_chunk is not None
        assert first_chunk["n"].to_pylist() == odd[:10]
        with pytest.raises(flight.FlightInternalError):
            next(begun)


def test_the_space_of_a_deleted_topic_is_reclaimed(tmp_path: Path) -> None:
    path, segments = damaged(tmp_path)
    with running_server(path) as server:
        act(server.client(), "delete-topic", topic="t")
    with running_server(path) as server:  # What a stop interrupted, a start finishes.
        server.server.log.close()
        assert not [segment for segment in segments if segment.exists()]
