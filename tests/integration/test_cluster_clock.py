"""Nodes whose wall clocks are off by minutes, among others: real processes."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pyarrow.flight as flight
import pytest
from flight_calls import act, create_topic, get, numbers, push
from share_calls import Leased, Member, create_group
from waiting import until

from wings_server.testing import ServerProcess, metadata_process, node_process, server_process

SKEWED_CLOCK = Path(__file__).with_name("skewed_clock")
LEASE_SECONDS = 1.5
LOCK_MS = 2_000
LONG_MS = 120_000
SECONDS = 120.0


def off_by(seconds: float) -> dict[str, str]:
    """Return the environment of a process whose wall clock is off."""
    path = os.pathsep.join([str(SKEWED_CLOCK), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path, "TESTS_CLOCK_OFF_SECONDS": str(seconds)}


OFF_SECONDS = {"right": 0.0, "behind": -600.0, "ahead": 600.0}
"""How far the clock of each node is off."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A node of each kind."""

    nodes: dict[str, ServerProcess]
    shares_directory: bool = True


@pytest.fixture(scope="module", params=["service", "stateless"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    lease = {"WINGS_NODE_LEASE_SECONDS": str(LEASE_SECONDS)}
    with ExitStack() as stack:
        if request.param == "stateless":
            url = request.getfixturevalue("postgres").new_database()
            hot = (directory / "objects").as_uri()
            nodes = {
                name: stack.enter_context(
                    node_process(url, hot, environment={**lease, **off_by(off_seconds)})
                )
                for name, off_seconds in OFF_SECONDS.items()
            }
            yield Cluster(nodes, shares_directory=False)
            return
        lease["WINGS_LIMITS__INLINE_BYTES_MAX"] = "0"  # Each begins a segment of its own.
        metadata = stack.enter_context(metadata_process(directory / "metadata"))
        nodes = {
            name: stack.enter_context(
                server_process(
                    directory / "pages",
                    flags=("--metadata", metadata.address),
                    environment={**lease, **off_by(off_seconds)},
                )
            )
            for name, off_seconds in OFF_SECONDS.items()
        }
        yield Cluster(nodes)


@pytest.fixture
def right(cluster: Cluster) -> flight.FlightClient:
    """A client of the node whose clock is right."""
    return cluster.nodes["right"].client()


@pytest.fixture(params=["behind", "ahead"])
def wrong(request: pytest.FixtureRequest, cluster: Cluster) -> flight.FlightClient:
    """A client of one whose clock is not."""
    return cluster.nodes[request.param].client()


def test_messages_have_the_time_of_the_metadata_whichever_node_took_them(
    cluster: Cluster, new_topic_id: str
) -> None:
    clients = [node.client() for node in cluster.nodes.values()]
    begun = datetime.now(UTC)
    create_topic(clients[0], new_topic_id, ["n: int64"])
    for number in range(6):
        push(clients[number % 3], new_topic_id, numbers(number))
    answers = [
        get(client, kind="scan", topic=new_topic_id, system_columns=True) for client in clients
    ]
    assert answers[0].column("n") == list(range(6))
    assert all(answer.table.equals(answers[0].table) for answer in answers)
    times = answers[0].column("__timestamp")
    assert times == sorted(times)
    assert begun <= times[0]
    assert times[-1] <= datetime.now(UTC)
    if not cluster.shares_directory:
        return
    # That clocks are off, the names of the segments show: they begin with when they were begun.
    segments = cluster.nodes["right"].data_dir / "segments"
    made = sorted(int(path.name[:16], 16) / 1e9 for path in segments.iterdir())
    assert [round((at - time.time()) / 600) for at in made] == [-1, 0, 1]


def test_its_long_polls_wait_as_long_as_any_and_wake_as_any(
    right: flight.FlightClient, wrong: flight.FlightClient, new_topic_id: str
) -> None:
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
    right: flight.FlightClient, wrong: flight.FlightClient, new_topic_id: str
) -> None:
    """Who judges a producer's time is the metadata, whichever node was asked."""
    create_topic(right, new_topic_id, ["n: int64"])
    now = datetime.now(UTC)
    allowed, too_late = ((now + timedelta(minutes=minutes)).isoformat() for minutes in (55, 65))
    for client in (right, wrong):
        push(client, new_topic_id, numbers(1), timestamp=allowed)
        with pytest.raises(flight.FlightServerError, match="ahead"):
            push(client, new_topic_id, numbers(1), timestamp=too_late)


def test_all_stay_listed(cluster: Cluster) -> None:
    nodes = {node.flight for node in cluster.nodes.values()}
    clients = [node.client() for node in cluster.nodes.values()]

    def lists_all(client: flight.FlightClient) -> bool:
        return {each["flight"] for each in act(client, "list-nodes")} == nodes

    end = time.monotonic() + 2 * LEASE_SECONDS
    while time.monotonic() < end:
        for client in clients:
            until(partial(lists_all, client))  # One that was held up is listed again.
        time.sleep(0.1)


def test_what_it_holds_is_held_for_as_long_as_by_any(
    right: flight.FlightClient, wrong: flight.FlightClient, new_topic_id: str
) -> None:
    create_topic(right, new_topic_id, ["n: int64"])
    push(right, new_topic_id, numbers(0))
    cases: list[tuple[Member, Member, Leased, float]] = []
    for group, holder, other in (("one", wrong, right), ("two", right, wrong)):
        create_group(right, new_topic_id, group, lock_duration_ms=LOCK_MS)
        members = [Member(client, new_topic_id, group, str(client)) for client in (holder, other)]
        began = time.monotonic()
        (leased,) = members[0].acquire(timeout_ms=LONG_MS)
        cases.append((members[0], members[1], leased, began))
    for holder, other, leased, began in cases:
        asked = time.monotonic()
        (again,) = other.acquire(timeout_ms=LONG_MS)
        assert time.monotonic() - began >= LOCK_MS / 1_000
        assert again.about["delivery_count"] == 2
        assert holder.acknowledge(leased.ack("accept")) == ["INVALID_RECORD_STATE"]
        results = other.acknowledge(again.ack("accept"))
        # On a busy machine its own lock may have ended too.
        assert results == [None] or time.monotonic() - asked >= LOCK_MS / 1_000
