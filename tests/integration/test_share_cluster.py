"""Share groups over several nodes and three replicas of holds, all real processes."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow.flight as flight
import pytest
from flight_calls import act, code_of, create_topic, numbers, push
from held_address import held_address
from share_calls import Member, create_group

from wings_server.testing import (
    MetadataProcess,
    ServerProcess,
    hold_process,
    metadata_process,
    server_process,
)

LOCK_MS = 5_000
SECONDS = 30.0


class Cluster:
    """A metadata service, three replicas of holds, and nodes."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self.metadata = stack.enter_context(metadata_process(directory / "metadata"))
        self._listen = [stack.enter_context(held_address()) for _ in range(3)]
        self.replicas = [self._start_replica(number) for number in range(3)]

    def start_node(self) -> ServerProcess:
        replicas = ",".join(replica.address for replica in self.replicas)
        flags = ("--metadata", self.metadata.address, "--hold-replicas", replicas)
        return self._stack.enter_context(server_process(self._directory / "pages", flags=flags))

    def restart(self, number: int) -> MetadataProcess:
        self.replicas[number] = self._start_replica(number)
        return self.replicas[number]

    def _start_replica(self, number: int) -> MetadataProcess:
        return self._stack.enter_context(
            hold_process(self._directory / f"holds-{number}", listen=self._listen[number])
        )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path, stack)


def acquire(member: Member) -> list[tuple[int, int, int]]:
    """Wait for messages; return first, last and delivery count of each range."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            found = member.acquire(timeout_ms=1_000)
        except flight.FlightUnavailableError:
            continue  # A majority is not back yet.
        if found:
            return [
                (leased.offsets[0], leased.offsets[-1], leased.about["delivery_count"])
                for leased in found
            ]
    raise AssertionError("nothing was delivered")


def test_nodes_share_a_group_while_a_minority_of_the_replicas_is_down(cluster: Cluster) -> None:
    one, other = cluster.start_node(), cluster.start_node()
    create_topic(one.client(), "jobs", ["n: int64"])
    push(one.client(), "jobs", numbers(*range(10)))
    create_group(one.client(), "jobs", lock_duration_ms=LOCK_MS)
    mine, theirs = Member(one.client(), "jobs"), Member(other.client(), "jobs", name="two")

    (leased,) = mine.acquire(max_messages=4)
    (others,) = theirs.acquire(timeout_ms=10_000)
    assert (leased.offsets, others.offsets) == ([0, 1, 2, 3], [4, 5, 6, 7, 8, 9])
    assert theirs.acknowledge(leased.ack("accept")) == ["INVALID_RECORD_STATE"]
    # Any node settles what any other handed out, to its member alone.
    through_other = Member(other.client(), "jobs")
    assert through_other.acknowledge(leased.ack("accept")) == [None]

    cluster.replicas[0].kill()
    assert theirs.acknowledge(others.ack("accept")) == [None]
    push(one.client(), "jobs", numbers(10, 11))
    assert acquire(mine) == [(10, 11, 1)]
    one.kill()  # With the quorum's grant in hand: redelivered when the lock is over.
    assert acquire(theirs) == [(10, 11, 2)]

    cluster.replicas[1].kill()
    push(other.client(), "jobs", numbers(12))
    with pytest.raises(flight.FlightUnavailableError) as refused:
        theirs.acquire(timeout_ms=10)
    assert code_of(refused.value) == "UNAVAILABLE"
    with pytest.raises(flight.FlightUnavailableError):
        act(other.client(), "share-describe", group=theirs.group, topic="jobs")

    cluster.restart(0)
    got: list[tuple[int, int, int]] = []
    while not {(10, 11, 3), (12, 12, 1)} <= set(got):
        got += acquire(theirs)
