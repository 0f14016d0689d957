"""A server on a disk that is full: what must go on does, the rest is refused and says why."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import act, code_of, create_topic, get, numbers, push
from held_address import held_address
from http_calls import push_body
from share_calls import Leased, Member, create_group
from waiting import until

from wings_core.limits import Limits
from wings_core.storage import disk
from wings_server.testing import (
    MetadataProcess,
    RunningServer,
    ServerProcess,
    hold_process,
    metadata_process,
    running_server,
    server_process,
)

MIB = 1024 * 1024
DISK_BYTES = 64 * MIB
LIMITS = Limits(disk_free_bytes_min=8 * MIB, maintenance_seconds=100_000)
SECONDS_MAX = 60.0


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file system of its own."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    monkeypatch.setattr(disk, "RESERVE_BYTES", 8 * MIB)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(path: Path) -> None:
    """Take all that is free, to the last byte; a server may release of its reserve then."""
    with (path / "filler").open("ab", buffering=0) as file:
        for size in (MIB, 4096):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))


def ready(server: RunningServer | ServerProcess) -> int:
    return httpx.get(f"{server.http}/readyz").status_code


def refused(server: RunningServer | ServerProcess, client: flight.FlightClient) -> None:
    """See to it that pushes are refused, and that it says so."""
    with pytest.raises(pa.ArrowException) as caught:
        push(client, "t", numbers(1))
    assert code_of(caught.value) == "RESOURCE_EXHAUSTED"
    assert "disk_free_bytes_min" in str(caught.value)
    body = push_body({"topic": "t", "data": [{"n": 1}]})
    pushed = httpx.post(f"{server.http}/v1/push", json=body)
    assert "RESOURCE_EXHAUSTED" in pushed.text
    answer = httpx.get(f"{server.http}/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "UNAVAILABLE")
    assert "disk_free_bytes_min" in answer.json()["message"]
    assert httpx.get(f"{server.http}/healthz").status_code == 200


def test_what_must_go_on_does_at_zero_bytes_free(small_disk: Path) -> None:
    data = small_disk / "data"
    with running_server(data, limits=LIMITS) as server, flight.connect(server.flight) as client:
        for topic in ("t", "gone"):
            create_topic(client, topic, ["n: int64"])
            push(client, topic, *(numbers(number) for number in range(10)))
            push(client, topic, numbers(*range(500_000)))
        create_group(client, "t", lock_duration_ms=600_000)
        (leased,) = Member(client, "t").acquire(max_messages=10)
        assert ready(server) == 200
        guard = server.server.log.disk
        assert guard is not None
        guard.close()  # It looks no more by itself: what it releases stays free.
        fill(small_disk)
        guard.look()
        assert ready(server) == 503
        refused(server, client)
        assert os.statvfs(small_disk).f_bavail > 0

        assert get(client, topic="t", offset=0, max_messages=10).column("n") == list(range(10))
        assert Member(client, "t").acknowledge(leased.ack("accept")) == [None]
        position = {"topic": "t", "partition": None, "offset": 7}
        act(client, "commit-offsets", consumer="etl", offsets=[position])
        act(client, "alter-topic", topic="t", config={"retention_bytes": 1})
        act(client, "maintain", topic="t")
        (state,) = act(client, "partition-states", topic="t")
        assert (state["log_start_offset"], state["next_offset"]) == (10, 500_010)
        act(client, "delete-topic", topic="gone")

        (small_disk / "filler").unlink()
        guard.look()
        assert ready(server) == 200
        push(client, "t", numbers(11))
        assert (data / "RESERVE").stat().st_size == 8 * MIB


def test_messages_scattered_over_files_are_merged_on_a_full_disk_so_that_it_has_room_again(
    small_disk: Path,
) -> None:
    limits = LIMITS.model_copy(update={"segment_bytes_max": MIB, "inline_bytes_max": 0})
    data = small_disk / "data"
    with running_server(data, limits=limits) as server, flight.connect(server.flight) as client:
        for topic in ("t", "kept"):
            create_topic(client, topic, ["n: int64"])
        for number in range(40):  # Each file of 1 MiB has messages that are kept.
            push(client, "kept", numbers(number))
            push(client, "t", numbers(*range(50_000)))
        guard = server.server.log.disk
        assert guard is not None
        guard.close()
        guard.look()
        with (small_disk / "filler").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, guard.free_bytes - 7 * MIB)
        guard.look()
        refused(server, client)
        act(client, "alter-topic", topic="t", config={"retention_bytes": 1})
        act(client, "maintain")
        server.server.log.reclaimer.run()
        guard.look()
        refused(server, client)
        act(client, "alter-topic", topic="kept", config={"tier_after_ms": 0})
        assert act(client, "maintain")["pages_merged"] > 1
        server.server.log.reclaimer.run()
        guard.look()
        push(client, "t", numbers(1))
        assert get(client, topic="kept", offset=0).column("n") == [*range(40)]


def test_a_server_starts_on_a_full_disk(small_disk: Path) -> None:
    data = small_disk / "data"
    with running_server(data, limits=LIMITS) as server, flight.connect(server.flight) as client:
        create_topic(client, "t", ["n: int64"])
        create_topic(client, "gone", ["n: int64"])
        push(client, "t", *(numbers(number) for number in range(10)))
    for topic in ("gone", "t"):  # The second time with what is left of the reserve.
        fill(small_disk)
        with running_server(data, limits=LIMITS) as server, flight.connect(server.flight) as client:
            refused(server, client)
            assert get(client, topic="t", offset=0, max_messages=10).column("n") == [*range(10)]
            assert httpx.get(f"{server.http}/readyz").status_code == 503
            act(client, "delete-topic", topic=topic)
    (small_disk / "filler").unlink()
    with running_server(data, limits=LIMITS) as server, flight.connect(server.flight) as client:
        assert ready(server) == 200
        create_topic(client, "t", ["n: int64"])
        push(client, "t", numbers(10))


def test_services_of_a_cluster_go_on_at_zero_bytes_free(small_disk: Path, tmp_path: Path) -> None:
    watermark = {"WINGS_LIMITS__DISK_FREE_BYTES_MIN": str(8 * MIB)}
    with ExitStack() as stack:
        listen = stack.enter_context(held_address())

        def serve_metadata() -> MetadataProcess:
            return stack.enter_context(
                metadata_process(small_disk / "metadata", listen=listen, environment=watermark)
            )

        metadata = serve_metadata()
        holds = stack.enter_context(hold_process(small_disk / "holds", environment=watermark))
        node = stack.enter_context(
            server_process(
                tmp_path / "pages",
                flags=["--metadata", metadata.address, "--hold-replicas", holds.address],
                environment={"WINGS_NODE_LEASE_SECONDS": "1"},
            )
        )
        client = node.client()
        for topic in ("t", "gone"):
            create_topic(client, topic, ["n: int64"])
            push(client, topic, numbers(*range(10)))
        create_group(client, "t", lock_duration_ms=600_000)
        first, second = (Member(client, "t").acquire(max_messages=5)[0] for _ in range(2))
        fill(small_disk)
        until(lambda: ready(node) == 503)
        refused(node, client)
        assert "at the metadata service" in httpx.get(f"{node.http}/readyz").json()["message"]

        def goes_on(topic: str, leased: Leased) -> None:
            assert get(client, topic="t", offset=0, max_messages=10).column("n") == [*range(10)]
            assert Member(client, "t").acknowledge(leased.ack("accept")) == [None]
            position = {"topic": "t", "partition": None, "offset": leased.offsets[0]}
            act(client, "commit-offsets", consumer="etl", offsets=[position])
            act(client, "delete-topic", topic=topic)

        goes_on("gone", first)
        metadata.terminate()
        serve_metadata()
        until(lambda: _answers(client))
        until(lambda: ready(node) == 503)  # Once it has asked the service anew.
        refused(node, client)
        assert Member(client, "t").acknowledge(second.ack("accept")) == [None]
        assert act(client, "get-offsets", consumer="etl")["offsets"][0]["offset"] == 0

        (small_disk / "filler").unlink()
        until(lambda: ready(node) == 200)
        push(client, "t", numbers(11))


def _answers(client: flight.FlightClient) -> bool:
    try:
        act(client, "list-namespaces")
    except pa.ArrowException:
        return False
    return True
