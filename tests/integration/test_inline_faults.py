"""Small pushes in metadata where storage is away, their bytes are damaged, or they are staged."""

import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from faulty_store import faulty_store
from flight_calls import act, code_of, create_topic, error_of, get, numbers, push
from waiting import until

from wings_core.limits import Limits
from wings_server.testing import RunningServer, running_server

SECONDS_MAX = 60.0


def inline_pages(server: RunningServer) -> int:
    """Return how many visible pages are in metadata."""
    return len(server.server.log.maintenance.inline_backlog(1_000).pages)


def values(client: flight.FlightClient, topic: str) -> list[int]:
    return get(client, kind="scan", topic=topic).column("n")


def test_without_the_store_small_pushes_go_on_to_a_bound_and_all_recovers(
    s3_url: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(
        inline_bytes_max=20_000,
        object_flush_seconds=0.01,
        object_attempt_seconds_max=10.0,
        object_retry_seconds_max=0.3,
    )

    def refusal(client: flight.FlightClient, number: int) -> str | None:
        try:
            push(client, "events", numbers(number))
        except flight.FlightUnavailableError as error:
            return code_of(error)
        return None

    with faulty_store(s3_endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with running_server(limits=limits, hot=s3_url) as server:
            client = server.client()
            create_topic(client, "events", ["n: int64"])
            proxy.down = True
            taken = 0
            end = time.monotonic() + SECONDS_MAX
            # Until a drain has failed, what finds no room is tried at the store, which is away.
            while (code := refusal(client, taken)) != "RESOURCE_EXHAUSTED":
                assert code in {None, "UNAVAILABLE"}
                assert time.monotonic() < end
                taken += code is None
            assert taken > 5
            assert values(client, "events") == list(range(taken))
            proxy.down = False
            until(lambda: refusal(client, taken) is None)
            until(lambda: inline_pages(server) == 0)
            assert values(client, "events") == list(range(taken + 1))


def damage(data_dir: Path, text: bytes) -> None:
    """Change a byte of the first folio with a text that metadata keeps inline."""
    with closing(sqlite3.connect(data_dir / "metadata.sqlite")) as database, database:
        rows = database.execute("SELECT folio_id, data FROM inline_folios ORDER BY folio_id")
        folio, data = next((folio, bytearray(data)) for folio, data in rows if text in data)
        data[data.index(text)] ^= 1
        database.execute("UPDATE inline_folios SET data = ? WHERE folio_id = ?", (data, folio))


def check(data_dir: Path) -> list[str]:
    """Return the problems that `wings check` finds."""
    command = [sys.executable, "-m", "wings_client.cli", "check", str(data_dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return [line for line in done.stdout.splitlines() if line.startswith("problem: ")]


def push_rows(client: flight.FlightClient) -> None:
    for topic in ("t", "u"):
        create_topic(client, topic, ["n: int64", "s: string"])
    for start in (0, 10, 20):
        some = range(start, start + 10)
        rows = {"n": pa.array(some, pa.int64()), "s": [f"row {n}" for n in some]}
        for topic in ("t", "u"):
            push(client, topic, pa.record_batch(rows))


def test_a_damaged_page_in_metadata_is_corrupt_for_its_rows_alone(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with running_server(path, limits=Limits(inline_seconds=1e6)) as server:
        push_rows(server.client())
        assert inline_pages(server) == 6
    damage(path, b"row 10")
    (problem,) = check(path)
    assert "offsets 10 to 19" in problem
    assert "the checksum of column 's' does not match" in problem
    with running_server(path) as server:
        client = server.client()
        for _ in range(2):
            with pytest.raises(flight.FlightInternalError) as caught:
                get(client, topic="t", offset=10, max_messages=1)
            error = error_of(caught.value)
            assert error["code"] == "STORAGE_CORRUPT"
            assert error["folio"].endswith(".inline")
            assert get(client, topic="t", offset=0, max_messages=10).column("n") == [*range(10)]
            assert get(client, topic="t", offset=20).column("n") == [*range(20, 30)]
            assert get(client, kind="scan", topic="t", columns=["n"]).column("n") == [*range(30)]
            assert values(client, "u") == list(range(30))
            # All others are drained, and those that come.
            until(lambda: inline_pages(server) == 1)
        push(client, "t", pa.record_batch({"n": [30], "s": ["row 30"]}))
        until(lambda: inline_pages(server) == 1)
        assert get(client, topic="t", offset=20).column("n") == [*range(20, 31)]
        act(client, "delete-topic", topic="t")
        until(lambda: inline_pages(server) == 0)
    assert check(path) == []
