"""A node whose wall clock is off by minutes, among others: real processes."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import create_topic, get, numbers, push
from share_calls import Member, create_group

from wings_core.metadata.remote import RemoteMetadata
from wings_server.testing import MetadataProcess, ServerProcess, metadata_process, server_process

SKEWED_CLOCK = Path(__file__).parents[1] / "skewed_clock"
LEASE_SECONDS = 1.0
LOCK_MS = 2_000
LONG_MS = 30_000
SECONDS = 30.0


def off_by(seconds: float) -> dict[str, str]:
    """Return the environment of a process whose wall clock is off."""
    path = os.pathsep.join([str(SKEWED_CLOCK), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path, "TESTS_CLOCK_OFF_SECONDS": str(seconds)}


@dataclass(frozen=True, slots=True)
class Cluster:
    """A node whose clock is right, and one whose clock is not."""

    metadata: MetadataProcess
    right: ServerProcess
    wrong: ServerProcess
    off_seconds: float

    @property
    def clients(self) -> tuple[flight.FlightClient, flight.FlightClient]:
        return self.right.client(), self.wrong.client()


@pytest.fixture(scope="module", params=[-600.0, 600.0])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with ExitStack() as stack:
        metadata = stack.enter_context(metadata_process(directory / "metadata"))
        nodes = [
            stack.enter_context(
                server_process(
                    directory / "pages",
                    flags=("--metadata", metadata.address),
                    environment={"WINGS_NODE_LEASE_SECONDS": str(LEASE_SECONDS), **environment},
                )
            )
            for environment in ({}, off_by(request.param))
        ]
        yield Cluster(metadata, *nodes, off_seconds=request.param)


def test_its_messages_have_the_time_of_the_metadata_and_are_read_everywhere(
    cluster: Cluster, new_topic_id: str
) -> None:
    begun = datetime.now(UTC)
    create_topic(cluster.clients[0], new_topic_id, ["n: int64"])
    for number in range(6):
        push(cluster.clients[number % 2], new_topic_id, numbers(number))
    tables: list[pa.Table] = []
    for client in cluster.clients:
        answer = get(client, kind="scan", topic=new_topic_id, system_columns=True)
        assert answer.column("n") == list(range(6))
        tables.append(answer.table)
    assert tables[0].equals(tables[1])
    times: list[Any] = tables[0]["__timestamp"].to_pylist()
    assert times == sorted(times)
    assert begun <= times[0]
    assert times[-1] <= datetime.now(UTC)
    # It is off, as the names of its segments show.
    made = sorted(int(path.name[:16], 16) for path in segments(cluster))
    assert abs(abs(made[-1] - made[0]) / 1e9 - 600) < 60


def segments(cluster: Cluster) -> list[Path]:
    return list((cluster.right.data_dir / "segments").iterdir())


def test_its_long_polls_wait_as_long_as_any_and_wake_as_any(
    cluster: Cluster, new_topic_id: str
) -> None:
    right, wrong = cluster.clients
    create_topic(right, new_topic_id, ["n: int64"])
    began = time.monotonic()
    answer = get(wrong, topic=new_topic_id, offset=0, timeout_ms=500)
    assert (answer.end, answer.table.num_rows) == ("deadline", 0)
    assert 0.5 <= time.monotonic() - began < SECONDS
    with ThreadPoolExecutor(1) as threads:
        for number, (producer, consumer) in enumerate([(right, wrong), (wrong, right)]):
            polled = threads.submit(
                get, consumer, topic=new_topic_id, offset=number, timeout_ms=LONG_MS
            )
            push(producer, new_topic_id, numbers(number))
            assert polled.result(SECONDS).column("n") == [number]


def test_a_time_that_is_in_the_future_of_the_metadata_alone_is_refused(
    cluster: Cluster, new_topic_id: str
) -> None:
    """Who judges a producer's time is the metadata, whichever node was asked."""
    create_topic(cluster.clients[0], new_topic_id, ["n: int64"])
    now = datetime.now(UTC)
    allowed, too_late = ((now + timedelta(minutes=minutes)).isoformat() for minutes in (55, 65))
    for client in cluster.clients:
        push(client, new_topic_id, numbers(1), timestamp=allowed)
        with pytest.raises(flight.FlightServerError, match="ahead"):
            push(client, new_topic_id, numbers(1), timestamp=too_late)


def test_it_stays_listed_among_the_others(cluster: Cluster) -> None:
    with RemoteMetadata(cluster.metadata.address) as metadata:
        nodes = {node.flight.removeprefix("grpc://") for node in (cluster.right, cluster.wrong)}
        until = time.monotonic() + 2 * LEASE_SECONDS
        while time.monotonic() < until:
            assert {node.address for node in metadata.nodes.live()} == nodes
            time.sleep(0.1)


def test_what_it_holds_is_held_for_as_long_as_by_any(cluster: Cluster, new_topic_id: str) -> None:
    right, wrong = cluster.clients
    create_topic(right, new_topic_id, ["n: int64"])
    create_group(right, new_topic_id, lock_duration_ms=LOCK_MS)
    members = Member(wrong, new_topic_id), Member(right, new_topic_id, name="two")
    for number, (holder, other) in enumerate([members, members[::-1]]):
        push(right, new_topic_id, numbers(number))
        began = time.monotonic()
        (leased,) = holder.acquire(timeout_ms=LONG_MS)
        assert other.acquire(timeout_ms=10) == []
        (again,) = other.acquire(timeout_ms=LONG_MS)
        assert time.monotonic() - began >= LOCK_MS / 1_000
        assert (again.offsets, again.about["delivery_count"]) == ([number], 2)
        assert holder.acknowledge(leased.ack("accept")) == ["INVALID_RECORD_STATE"]
        assert other.acknowledge(again.ack("renew")) == [None]
        assert other.acknowledge(again.ack("accept")) == [None]
