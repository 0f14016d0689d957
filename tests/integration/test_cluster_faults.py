"""A cluster over PostgreSQL under load, whose parts are killed: nothing is lost or doubled."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fix_postgres import PASSWORD, PostgresServer, postgres_server
from held_address import held_address

import wings_client
from wings_client import Client, Retry, Topic
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
LAST = -1
"""In the last row, after which no reader reads on."""
NODES = 2


def connected(endpoints: list[str]) -> Client:
    """Return a client that is patient."""
    return wings_client.connect(endpoints, timeout=60.0, retry=PERSISTENT)


class Cluster:
    """The metadata service and its nodes as processes, each of which can be replaced."""

    def __init__(self, url: str, directory: Path, stack: ExitStack) -> None:
        self._url = url
        self._directory = directory
        self._stack = stack
        self._listen = stack.enter_context(held_address())
        self.metadata = self.start_metadata()
        self._addresses = [stack.enter_context(held_address()) for _ in range(NODES)]
        self.nodes = [self.start_node(address) for address in self._addresses]
        self.endpoints = [node.flight for node in self.nodes]
        self.said = ""

    def start_metadata(self) -> MetadataProcess:
        self.metadata = self._stack.enter_context(
            metadata_process(
                self._directory / "metadata",
                listen=self._listen,
                environment={"WINGS_METADATA_URL": self._url},
            )
        )
        return self.metadata

    def start_node(self, flight: str) -> ServerProcess:
        return self._stack.enter_context(
            server_process(
                self._directory / "pages",
                flags=("--metadata", self.metadata.address, "--flight", flight),
            )
        )

    def replace_node(self, index: int) -> None:
        """Kill a node and start another at its address."""
        old = self.nodes[index]
        old.kill()
        self.said += old.stderr
        self.nodes[index] = self.start_node(self._addresses[index])

    def replace_metadata(self) -> None:
        """Kill the metadata service and start another at its address."""
        self.metadata.kill()
        self.start_metadata()


class StatelessCluster:
    """Nodes without a data directory as processes, each of which can be replaced."""

    def __init__(self, url: str, directory: Path, stack: ExitStack) -> None:
        self._url = url
        self._objects = (directory / "objects").as_uri()
        self._stack = stack
        self._addresses = [stack.enter_context(held_address()) for _ in range(NODES)]
        self.nodes = [self.start_node(address) for address in self._addresses]
        self.endpoints = [node.flight for node in self.nodes]
        self.said = ""

    def start_node(self, flight: str) -> ServerProcess:
        return self._stack.enter_context(
            node_process(self._url, self._objects, flags=("--flight", flight))
        )

    def replace_node(self, index: int) -> None:
        """Kill a node and start another at its address."""
        old = self.nodes[index]
        old.kill()
        self.said += old.stderr
        self.nodes[index] = self.start_node(self._addresses[index])

    def replace_metadata(self) -> None:
        """Kill the other node too."""
        self.replace_node(1)


class Load:
    """Producers that count up, each batch at offsets of its own; and a follow that reads along."""

    def __init__(self, endpoints: list[str], topic: Topic, producers: int) -> None:
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
        with client.producer(self._topic) as producer:
            while not self._stop.is_set():
                batch = self.acknowledged[number]
                rows = pa.record_batch(
                    {
                        "producer": pa.array([number] * ROWS, pa.int64()),
                        "n": pa.array(range(batch * ROWS, (batch + 1) * ROWS), pa.int64()),
                    }
                )
                producer.send(rows).result(SECONDS)
                self.acknowledged[number] += 1

    def _follow(self, client: Client, _: int) -> None:
        with client.follow(self._topic) as following:
            for batch, _, _ in following:
                columns: tuple[list[Any], list[Any]]
                columns = batch["producer"].to_pylist(), batch["n"].to_pylist()
                self.followed += zip(*columns, strict=True)
                if self.followed[-1] == (LAST, LAST):
                    return


def run(
    kind: type[Cluster | StatelessCluster], postgres: PostgresServer, directory: Path, rounds: int
) -> None:
    with ExitStack() as stack:
        cluster = kind(postgres.new_database(), directory, stack)
        client = stack.enter_context(connected(cluster.endpoints))
        topic = client.create_topic("load", {"producer": "int64", "n": "int64"})
        load = Load(cluster.endpoints, topic, producers=3)
        load.start()
        try:
            load.go_on()
            for each in range(rounds):
                cluster.replace_node(each % NODES)
                load.go_on()
                postgres.kill()
                postgres.start()
                load.go_on()
                cluster.replace_metadata()
                load.go_on()
        finally:
            load.finish(client)
        check(client, topic, load)
        assert PASSWORD not in cluster.said


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


@pytest.mark.timeout(280)
@pytest.mark.parametrize("kind", [Cluster, StatelessCluster])
def test_nodes_postgres_and_the_service_are_killed_under_load(
    kind: type[Cluster | StatelessCluster], earnest_postgres: PostgresServer, tmp_path: Path
) -> None:
    run(kind, earnest_postgres, tmp_path, rounds=1)


@pytest.mark.timeout(280)
def test_nodes_go_on_at_a_standby_that_was_promoted(tmp_path: Path) -> None:
    with ExitStack() as stack:
        primary = stack.enter_context(postgres_server(sync=True))
        database = primary.new_database()
        standby = stack.enter_context(primary.standby())
        both = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        url = database.replace(f"127.0.0.1:{primary.port}", both)
        cluster = StatelessCluster(f"{url}?target_session_attrs=read-write", tmp_path, stack)
        client = stack.enter_context(connected(cluster.endpoints))
        topic = client.create_topic("load", {"producer": "int64", "n": "int64"})
        load = Load(cluster.endpoints, topic, producers=3)
        load.start()
        try:
            load.go_on()
            primary.kill()
            standby.promote()
            load.go_on()
        finally:
            load.finish(client)
        check(client, topic, load)


@pytest.mark.soak
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("kind", [Cluster, StatelessCluster])
def test_all_parts_are_killed_again_and_again(
    kind: type[Cluster | StatelessCluster], earnest_postgres: PostgresServer, tmp_path: Path
) -> None:
    run(kind, earnest_postgres, tmp_path, rounds=10)
