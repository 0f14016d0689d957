"""Clients that are killed in the middle of calls of every kind leave nothing behind."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from flight_calls import act, create_topic, get, numbers, push
from share_calls import ShareStreamCall, create_group
from waiting import until

from wings_server.testing import RunningServer, running_server

CLIENT = Path(__file__).with_name("vanishing_client.py")
SECONDS_MAX = 60.0
LARGE_ROWS = 1_000_000
SHARED_ROWS = 50

SETTLED = 3
"""Rounds after which a process has all the threads and descriptors that it will need."""

SPARE = 8
"""Threads and descriptors that come and go meanwhile."""


def vanish(server: RunningServer) -> None:
    """Run a client until it is in the middle of all its calls, and kill it."""
    command = [sys.executable, str(CLIENT), server.flight, server.http.rpartition("/")[2]]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout is not None
        assert client.stderr is not None
        said = client.stdout.readline()
        # Its waiting calls are under way.
        until(lambda: server.server.log.fetcher.waits.waiting > 0)
        client.kill()
        assert said == "in the middle\n", client.stderr.read()


def nothing_is_left(server: RunningServer) -> None:
    log = server.server.log
    server.wait_for_calls(0)
    until(lambda: log.fetcher.waits.waiting == 0)
    until(lambda: log.group_commit.pending_bytes == 0 and log.memory.held == 0)


def threads_and_descriptors() -> tuple[int, int]:
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))  # noqa: PTH208


@pytest.mark.parametrize(
    "rounds", [1, pytest.param(40, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)])]
)
def test_clients_that_are_killed_within_their_calls_leave_nothing(rounds: int) -> None:
    settled = (0, 0)
    with running_server() as server:
        client = server.client()
        for topic in ("pushed", "silent", "large", "shared"):
            create_topic(client, topic, ["n: int64"])
        push(client, "large", pa.record_batch({"n": pa.array(range(LARGE_ROWS), pa.int64())}))
        push(client, "shared", numbers(*range(SHARED_ROWS)))
        for topic in ("silent", "shared"):
            create_group(client, topic, lock_duration_ms=600_000, delivery_limit=100)
        for number in range(rounds):
            vanish(server)
            nothing_is_left(server)
            # What it held is delivered to another at once.
            call = ShareStreamCall(client, "shared")
            offsets: list[int] = []
            while len(offsets) < SHARED_ROWS:
                offsets += call.delivery().offsets
            assert sorted(offsets) == list(range(SHARED_ROWS))
            call.close()
            if number == SETTLED:
                settled = threads_and_descriptors()
        if rounds > SETTLED:
            until(lambda: _at_most(threads_and_descriptors(), settled))
        (state,) = act(client, "partition-states", topic="pushed")
        assert get(client, kind="scan", topic="pushed").table.num_rows == state["next_offset"]


def _at_most(found: tuple[int, int], settled: tuple[int, int]) -> bool:
    return all(now <= before + SPARE for now, before in zip(found, settled, strict=True))
