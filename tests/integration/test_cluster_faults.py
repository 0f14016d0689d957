"""A cluster over PostgreSQL under load, whose parts are killed: nothing is lost or doubled."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fix_postgres import PASSWORD, PostgresServer, postgres_server
from flight_calls import act
from held_address import held_address
from server_processes import children
from waiting import until

import wings_client
from wings_client import Client, Committed, Retry, Topic
from wings_server.testing import (
    MetadataProcess,
    ServerProcess,
    metadata_process,
    node_process,
    server_process,
)

PERSISTENT = Retry(attempts=200, delay_max=0.2, reconnect_seconds=120.0)
SECONDS = 120.0
ROWS = 50
IN_FLIGHT = 4
"""Batches of a producer."""
LAST = -1
"""In the last row, after which no reader reads on."""
NODES = 2


def connected(endpoints: Sequence[str]) -> Client:
    """Return a client that is patient."""
    return wings_client.connect(endpoints, timeout=60.0, retry=PERSISTENT)


class Cluster:
    """Processes that clients reach, each of which can be killed and replaced at its address."""

    count = NODES

    def __init__(self, url: str, directory: Path, stack: ExitStack) -> None:
        self.url = url
        self.directory = directory
        self.stack = stack
        self.begin()
        self._addresses = [stack.enter_context(held_address()) for _ in range(self.count)]
        self.nodes = [self.start_node(address) for address in self._addresses]
        self.endpoints = [node.flight for node in self.nodes]
        self.said = ""

    def begin(self) -> None:
        """Start what the nodes need, nothing here."""

    def start_node(self, flight: str) -> ServerProcess:
        raise NotImplementedError

    def replace_node(self, index: int) -> None:
        """Kill a node and start another at its address."""
        old = self.nodes[index]
        old.kill()
        self.said += old.stderr
        self.nodes[index] = self.start_node(self._addresses[index])

    def replace_metadata(self) -> None:
        """Kill what has not been killed: the last node."""
        self.replace_node(-1)


class OneServer(Cluster):
    """A server with a data directory, whose metadata is in PostgreSQL."""

    count = 1

    def start_node(self, flight: str) -> ServerProcess:
        environment = {"WINGS_METADATA_URL": self.url}
        return self.stack.enter_context(
            server_process(self.directory, flags=("--flight", flight), environment=environment)
        )


class NodesOfService(Cluster):
    """Nodes with one directory and a metadata service."""

    metadata: MetadataProcess

    def begin(self) -> None:
        self._listen = self.stack.enter_context(held_address())
        self._start_metadata()

    def _start_metadata(self) -> None:
        self.metadata = self.stack.enter_context(
            metadata_process(
                self.directory / "metadata",
                listen=self._listen,
                environment={"WINGS_METADATA_URL": self.url},
            )
        )

    def start_node(self, flight: str) -> ServerProcess:
        flags = ("--metadata", self.metadata.address, "--flight", flight)
        return self.stack.enter_context(server_process(self.directory / "pages", flags=flags))

    def replace_metadata(self) -> None:
        """Kill the metadata service and start another at its address."""
        self.metadata.kill()
        self._start_metadata()


class StatelessNodes(Cluster):
    """Nodes without a data directory."""

    def start_node(self, flight: str) -> ServerProcess:
        hot = (self.directory / "objects").as_uri()
        return self.stack.enter_context(node_process(self.url, hot, flags=("--flight", flight)))


class Load:
    """Producers that count up, each batch at offsets of its own; and a follow that reads along."""

    def __init__(self, endpoints: Sequence[str], topic: Topic, producers: int) -> None:
        self._endpoints = endpoints
        self._topic = topic
        self._stop = threading.Event()
        self.acknowledged = [0] * producers
        """Batches of each producer."""
        self.followed: list[tuple[int, int]] = []
        self.failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(self._produce, number))
            for number in range(producers)
        ]
        self._follower = threading.Thread(target=self._guarded, args=(self._follow, 0))

    def start(self) -> None:
        for thread in (*self._threads, self._follower):
            thread.start()

    def go_on(self) -> None:
        """Wait until each producer has got some more batches acknowledged."""
        before = list(self.acknowledged)
        pause = threading.Event()
        for _ in range(int(SECONDS / 0.02)):
            if self.failures:
                raise self.failures[0]
            moved = zip(self.acknowledged, before, strict=True)
            if all(now >= then + 5 for now, then in moved):
                return
            pause.wait(0.02)
        pytest.fail(f"the load does not get on: {self.acknowledged} after {before}")

    def finish(self, client: Client) -> None:
        """Stop producing, and wait until all is read."""
        self._stop.set()
        for thread in self._threads:
            thread.join(SECONDS)
            assert not thread.is_alive()
        client.push(self._topic, {"producer": [LAST], "n": [LAST]})
        self._follower.join(SECONDS)
        assert not self._follower.is_alive()
        if self.failures:
            raise self.failures[0]

    def _guarded(self, run: Callable[[Client, int], None], number: int) -> None:
        try:
            with connected(self._endpoints) as client:
                run(client, number)
        except BaseException as error:  # noqa: BLE001 - raised by who waits.
            self.failures.append(error)

    def _produce(self, client: Client, number: int) -> None:
        sent: deque[Future[Committed]] = deque()
        with client.producer(self._topic) as producer:
            while sent or not self._stop.is_set():
                while len(sent) < IN_FLIGHT and not self._stop.is_set():
                    first = (self.acknowledged[number] + len(sent)) * ROWS
                    rows = {"producer": [number] * ROWS, "n": range(first, first + ROWS)}
                    sent.append(producer.send(rows))
                sent.popleft().result(SECONDS)
                self.acknowledged[number] += 1

    def _follow(self, client: Client, _: int) -> None:
        with client.follow(self._topic) as following:
            for batch, _, _ in following:
                columns: tuple[list[Any], list[Any]]
                columns = batch["producer"].to_pylist(), batch["n"].to_pylist()
                self.followed += zip(*columns, strict=True)
                if self.followed[-1] == (LAST, LAST):
                    return


def under_load(endpoints: Sequence[str], faults: Iterable[Callable[[], object]]) -> None:
    """Let faults happen while clients write and read; what was acknowledged is there once."""
    with connected(endpoints) as client:
        topic = client.create_topic("load", {"producer": "int64", "n": "int64"})
        load = Load(endpoints, topic, producers=3)
        load.start()
        try:
            load.go_on()
            for fault in faults:
                fault()
                load.go_on()
        finally:
            load.finish(client)
        check(client, topic, load)


def restart(postgres: PostgresServer) -> None:
    postgres.kill()
    postgres.start()


def kill_parts(
    kind: type[Cluster], postgres: PostgresServer, directory: Path, rounds: int
) -> Cluster:
    """Kill all parts of a cluster in turn, under load."""
    with ExitStack() as stack:
        cluster = kind(postgres.new_database(), directory, stack)
        faults: list[Callable[[], object]] = []
        for each in range(rounds):
            faults.append(partial(cluster.replace_node, each % cluster.count))
            faults += [partial(restart, postgres), cluster.replace_metadata]
        under_load(cluster.endpoints, faults)
        assert PASSWORD not in cluster.said
    return cluster


def check(client: Client, topic: Topic, load: Load) -> None:
    """Make sure that what was acknowledged is there once, and was read as it is."""
    expected = {(LAST, LAST)} | {
        (number, n)
        for number, batches in enumerate(load.acknowledged)
        for n in range(batches * ROWS)
    }
    table = client.scan(topic).read_all()
    columns = table["producer"].to_pylist(), table["n"].to_pylist()
    scanned = list(zip(*columns, strict=True))
    assert len(scanned) == len(expected)
    assert set(scanned) == expected
    assert load.followed == scanned, "in order of offset, each once, from any node"


KINDS = (OneServer, NodesOfService, StatelessNodes)


@pytest.mark.timeout(280)
@pytest.mark.parametrize("kind", KINDS)
def test_nodes_postgres_and_the_service_are_killed_under_load(
    kind: type[Cluster], earnest_postgres: PostgresServer, tmp_path: Path
) -> None:
    cluster = kill_parts(kind, earnest_postgres, tmp_path, rounds=1)
    if kind is OneServer:
        checked = subprocess.run(
            [sys.executable, "-m", "wings_client.cli", "check", str(tmp_path)],
            capture_output=True,
            text=True,
            env={**os.environ, "WINGS_METADATA_URL": cluster.url},
            check=False,
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert PASSWORD not in checked.stdout + checked.stderr


@pytest.mark.parametrize(
    "failovers", [1, pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)])]
)
def test_nodes_go_on_at_a_standby_that_was_promoted(tmp_path: Path, failovers: int) -> None:
    with ExitStack() as stack:
        primary = stack.enter_context(postgres_server(sync=True))
        database = primary.new_database()
        standby = stack.enter_context(primary.standby())
        both = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        url = database.replace(f"127.0.0.1:{primary.port}", both)
        nodes = StatelessNodes(f"{url}?target_session_attrs=read-write", tmp_path, stack)

        pair = [primary, standby]

        def fail_over() -> None:
            old, new = pair
            old.kill()
            new.promote()
            old.follow(new)
            pair.reverse()

        under_load(nodes.endpoints, [fail_over] * failovers)


def kill_one_of_its_processes(server: ServerProcess) -> None:
    """Kill any that it started."""

    def kill() -> bool:
        with suppress(ProcessLookupError):
            os.kill(random.choice(children(server.pid)), signal.SIGKILL)
            return True
        return False

    until(kill)


def kill_processes(server: ServerProcess, kills: int) -> None:
    addresses = [each["flight"] for each in act(server.client(), "list-nodes")]
    under_load(addresses, [partial(kill_one_of_its_processes, server)] * kills)


def test_processes_killed_in_mid_push_lose_and_double_nothing(tmp_path: Path) -> None:
    with server_process(tmp_path, flags=["--processes", "2"]) as server:
        kill_processes(server, 3)


@pytest.mark.soak
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("kind", KINDS)
def test_all_parts_are_killed_again_and_again(
    kind: type[Cluster], earnest_postgres: PostgresServer, tmp_path: Path
) -> None:
    kill_parts(kind, earnest_postgres, tmp_path, rounds=10)


@pytest.mark.soak
@pytest.mark.timeout(1_200)
def test_processes_killed_in_mid_push_again_and_again(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    with server_process(tmp_path / "data", flags=["--processes", "2"]) as server:
        kill_processes(server, 40)
    url, hot = postgres.new_database(), (tmp_path / "objects").as_uri()
    with node_process(url, hot, flags=["--processes", "2"]) as server:
        kill_processes(server, 40)
