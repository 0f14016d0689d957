"""Share groups over several nodes and three replicas of holds, all real processes."""

import random
import shutil
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow.flight as flight
import pytest
from flight_calls import act, code_of, create_topic, numbers, push
from forked_cluster import ForkedCluster, ForkedProcess, forked_cluster
from share_calls import Member, create_group
from waiting import until

from wings_server.metadata.process import MetadataServer
from wings_server.settings import Address, MetadataSettings

LOCK_MS = 4_000
"""Long enough for what a test does under one lease on a busy machine."""

SECONDS = 90.0
BATCH = 7
"""Messages that a worker takes at a time."""


class Node:
    """A node in a process of its own."""

    def __init__(self, process: ForkedProcess, stack: ExitStack) -> None:
        self._process = process
        self._stack = stack

    @property
    def running(self) -> bool:
        return self._process.running

    def client(self) -> flight.FlightClient:
        """Return a new client, which is closed with the cluster."""
        address = f"grpc://{self._process.addresses['flight']}"
        return self._stack.enter_context(flight.FlightClient(address))

    def kill(self) -> None:
        self._process.kill()


class Cluster:
    """A metadata service in this process; three replicas of holds and nodes in their own."""

    def __init__(
        self, processes: ForkedCluster, directory: Path, nodes: int, stack: ExitStack
    ) -> None:
        self._directory = directory
        self._processes = processes
        stack.callback(processes.kill_all)
        metadata = MetadataServer(
            MetadataSettings(data_dir=directory / "metadata", listen=Address("127.0.0.1", 0))
        )
        metadata.start()
        stack.callback(metadata.stop)
        self.replicas = self._processes.start_all(
            "holds", [self._replica(number, "127.0.0.1:0") for number in range(3)]
        )
        node = {
            "data_dir": str(directory / "pages"),
            "metadata": str(metadata.address),
            "hold_replicas": ",".join(replica.addresses["grpc"] for replica in self.replicas),
            "log_level": "error",
        }
        self.nodes = [
            Node(process, stack) for process in self._processes.start_all("node", [node] * nodes)
        ]

    def restart(self, number: int) -> None:
        """Start a replica that was killed again, at the same address."""
        settings = self._replica(number, self.replicas[number].addresses["grpc"])
        self.replicas[number] = self._processes.start("holds", **settings)

    def lose(self, number: int) -> None:
        """Kill a replica, and delete its directory."""
        self.replicas[number].kill()
        shutil.rmtree(self._directory / f"holds-{number}")

    def _replica(self, number: int, listen: str) -> dict[str, str]:
        directory = self._directory / f"holds-{number}"
        return {"data_dir": str(directory), "listen": listen, "log_level": "error"}


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedCluster]:
    with forked_cluster(tmp_path_factory.mktemp("processes")) as forking:
        yield forking


@pytest.fixture
def cluster(
    request: pytest.FixtureRequest, processes: ForkedCluster, tmp_path: Path
) -> Iterator[Cluster]:
    """A cluster of two nodes, or as many as the test says."""
    with ExitStack() as stack:
        yield Cluster(processes, tmp_path, getattr(request, "param", 2), stack)


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


def test_nothing_that_is_finished_goes_while_no_majority_of_the_replicas_tells_of_it(
    cluster: Cluster,
) -> None:
    one, other = (node.client() for node in cluster.nodes)
    create_topic(one, "jobs", ["n: int64"])
    act(one, "alter-topic", topic="jobs", config={"retention_on_acceptance": True})
    push(one, "jobs", numbers(*range(10)))
    create_group(one, "jobs", lock_duration_ms=LOCK_MS)
    member = Member(one, "jobs")
    (leased,) = member.acquire()
    assert member.acknowledge(leased.ack("accept")) == [None]
    for number in (0, 1):
        cluster.replicas[number].kill()
    for client in (one, other):
        report = act(client, "maintain", topic="jobs")
        assert (report["rows_expired"], report["failures"]) == (0, 1)
    cluster.restart(0)
    deadline = time.monotonic() + SECONDS
    while not (report := act(other, "maintain", topic="jobs"))["rows_expired"]:
        assert time.monotonic() < deadline, report
    assert report["rows_expired"] == 10


def test_a_replica_that_lost_its_disk_comes_back_empty_where_nothing_is_held(
    cluster: Cluster,
) -> None:
    """By the steps of the runbook, after acknowledgements that one of the others missed."""
    one, other = (node.client() for node in cluster.nodes)
    create_topic(one, "jobs", ["n: int64"])
    push(one, "jobs", numbers(*range(10)))
    create_group(one, "jobs", lock_duration_ms=600_000)
    cluster.replicas[2].kill()
    mine = Member(one, "jobs")
    (first,), (second,) = (mine.acquire(max_messages=5, timeout_ms=10_000) for _ in range(2))
    assert mine.acknowledge(second.ack("accept"), first.ack("release")) == [None, None]
    cluster.restart(2)
    cluster.lose(0)
    until(lambda: _in_flight(mine) == [0])
    cluster.restart(0)
    theirs = Member(other, "jobs", name="two")  # At a node that knows nothing of it yet.
    ((first_offset, last_offset, _),) = acquire(theirs)  # Only one may know of the delivery before.
    assert (first_offset, last_offset) == (0, 4)
    cluster.replicas[1].kill()
    push(one, "jobs", numbers(10))
    assert acquire(theirs) == [(10, 10, 1)]


def _in_flight(member: Member) -> list[int] | None:
    """Return how many messages of each partition are in flight, as two replicas of three know."""
    try:
        return [each["in_flight"] for each in member.describe()["partitions"]]
    except flight.FlightUnavailableError:
        return None  # A majority is not back yet.


def test_nodes_share_a_group_while_a_minority_of_the_replicas_is_down(cluster: Cluster) -> None:
    one, other = cluster.nodes
    create_topic(one.client(), "jobs", ["n: int64"])
    push(one.client(), "jobs", numbers(*range(10)))
    create_group(one.client(), "jobs", lock_duration_ms=600_000)
    mine, theirs = Member(one.client(), "jobs"), Member(other.client(), "jobs", name="two")

    (leased,) = mine.acquire(max_messages=4)
    (others,) = theirs.acquire(timeout_ms=10_000)
    assert (leased.offsets, others.offsets) == ([0, 1, 2, 3], [4, 5, 6, 7, 8, 9])
    assert theirs.acknowledge(leased.ack("accept")) == ["INVALID_RECORD_STATE"]
    # Any node takes acknowledgements of what another leased, from its member alone.
    through_other = Member(other.client(), "jobs")
    assert through_other.acknowledge(leased.ack("accept")) == [None]

    cluster.replicas[0].kill()
    assert theirs.acknowledge(others.ack("accept")) == [None]
    # A group whose locks end within the test.
    create_group(one.client(), "jobs", "brief", lock_duration_ms=LOCK_MS, start="latest")
    mine, theirs = replace(mine, group="brief"), replace(theirs, group="brief")
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


@dataclass
class Workers:
    """What members see, each at a node of its own, while processes are killed."""

    accepted: set[int] = field(default_factory=set[int])
    """Offsets whose acceptance was confirmed to a member."""
    in_doubt: set[int] = field(default_factory=set[int])
    """Offsets whose acknowledgement may have been done."""
    deliveries: dict[int, int] = field(default_factory=lambda: defaultdict[int, int](int))
    held: set[int] = field(default_factory=set[int])
    """Offsets that a member holds and says nothing of."""
    done: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def work(self, node: Node, name: str) -> None:
        """Take messages and accept them until all is done, or the node is gone."""
        member = Member(node.client(), "jobs", name=name)
        while not self.done.is_set() and node.running:
            try:
                self._take(member)
            except flight.FlightError:
                self.done.wait(0.02)

    def _take(self, member: Member) -> None:
        with self.lock:
            before = set(self.accepted)
        for leased in member.acquire(max_messages=BATCH, timeout_ms=300):
            offsets = set(leased.offsets)
            with self.lock:
                assert not offsets & before, f"{offsets & before} came back after its acceptance"
                for offset in offsets:
                    self.deliveries[offset] += 1
                self.in_doubt |= offsets
            (code,) = member.acknowledge(leased.ack("accept"))
            with self.lock:
                if code is None:
                    self.accepted |= offsets

    def hold(self, node: Node) -> None:
        """Acquire messages, if some are left, and never acknowledge them."""
        try:
            found = Member(node.client(), "jobs", name="doomed").acquire(timeout_ms=300)
        except flight.FlightUnavailableError:
            return  # The node is not connected yet to a majority of the restarted replicas.
        for leased in found:
            self.held |= set(leased.offsets)


def crash_under_load(cluster: Cluster, messages: int, kills: int, seed: int) -> None:
    """Work off a topic at three nodes, as replicas are killed, and then a node that holds."""
    rng = random.Random(seed)
    client = cluster.nodes[0].client()
    create_topic(client, "jobs", ["n: int64"])
    create_group(client, "jobs", lock_duration_ms=LOCK_MS, delivery_limit=100)
    produced = 0

    def produce() -> None:
        nonlocal produced
        push(client, "jobs", numbers(*range(messages // (kills + 1))))
        produced += messages // (kills + 1)

    workers = Workers()
    with ThreadPoolExecutor(3) as threads:
        working = [
            threads.submit(workers.work, node, f"worker-{number}")
            for number, node in enumerate(cluster.nodes)
        ]
        try:
            for _ in range(kills):
                produce()
                victim = rng.randrange(3)
                cluster.replicas[victim].kill()
                produce()
                workers.done.wait(rng.uniform(0, 0.5))
                cluster.restart(victim)
            doomed = cluster.nodes[2]
            while not workers.held:  # The workers may have been quicker.
                produce()
                workers.hold(doomed)
            doomed.kill()
            wait_until_finished(client)
        finally:
            workers.done.set()
        for each in working:
            each.result(SECONDS)
    assert workers.accepted | workers.in_doubt == set(range(produced)), "a message was lost"
    # What the killed node had handed out was delivered again by the others.
    assert all(workers.deliveries[offset] for offset in workers.held)


def wait_until_finished(client: flight.FlightClient) -> None:
    """Wait until the group's lag is 0; fail where it does not shrink for `SECONDS`."""
    deadline = time.monotonic() + SECONDS
    lag, lowest = -1, sys.maxsize
    while time.monotonic() < deadline:
        try:
            described = act(client, "share-describe", group="billing", topic="jobs")
        except flight.FlightUnavailableError:
            continue
        lag = sum(state["lag"] for state in described["partitions"])
        if lag == 0:
            return
        if lag < lowest:
            lowest, deadline = lag, time.monotonic() + SECONDS
        time.sleep(0.05)
    raise AssertionError(f"{lag} messages are not finished")


@pytest.mark.parametrize("cluster", [3], indirect=True)
def test_a_killed_node_and_a_killed_replica_lose_nothing_and_bring_nothing_back(
    cluster: Cluster,
) -> None:
    crash_under_load(cluster, messages=300, kills=1, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("cluster", [3], indirect=True)
def test_replicas_killed_again_and_again_under_load_lose_nothing(cluster: Cluster) -> None:
    crash_under_load(cluster, messages=2_000, kills=12, seed=2)
