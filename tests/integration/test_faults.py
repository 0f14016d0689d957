"""Faults of the disk under a running server: refused with a reason, and the server goes on."""

import contextlib
import errno
from collections.abc import Generator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from fix_storage import FaultyFiles
from flight_calls import Stream, act, code_of, create_topic, error_of, get, numbers, push

from wings_core.storage.segments import SegmentStore
from wings_server.testing import RunningServer, running_server


@contextlib.contextmanager
def faulty_server(path: Path) -> Generator[tuple[RunningServer, flight.FlightClient, FaultyFiles]]:
    """Run a server whose disk fails as told."""
    with running_server(path) as server:
        store = server.server.log.store
        assert isinstance(store, SegmentStore)
        files = FaultyFiles()
        store._files = files  # pyright: ignore[reportPrivateUsage] - where faults are injected
        yield server, server.client(), files


def assert_refused(client: flight.FlightClient, topic: str, code: str) -> None:
    stream = Stream(client, numbers().schema, topic)
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
        stream = Stream(client, numbers().schema, "t", producer_id="p", sequence=1)
        assert stream.push(numbers(2))["error"]["code"] == "INTERNAL"
        with pytest.raises(flight.FlightError):
            stream.close()
        push(client, "t", numbers(2), producer_id="p", sequence=1)
        assert get(client, topic="t", offset=0).column("n") == [1, 2]


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
    data = bytearray(segments[1].read_bytes())
    at = data.index(b"row 10")
    data[at] ^= 1
    segments[1].write_bytes(data)
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


def test_the_space_of_a_deleted_topic_is_given_back(tmp_path: Path) -> None:
    path, segments = damaged(tmp_path)
    with running_server(path) as server:
        act(server.client(), "delete-topic", topic="t")
    with running_server(path) as server:  # What a stop interrupted, a start finishes.
        server.server.log.close()
        assert not [segment for segment in segments if segment.exists()]
