"""Backups of nodes, restored into a directory."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Self, TypeVar

import pytest
from backup_world import back_up, fill, maintain, rows, rows_of, seen
from fix_postgres import PostgresServer
from stateless_nodes import ANY_PORT, Nodes

import wings_client
from wings_client import Client
from wings_core.backup.repository import KeptPart, Repository
from wings_core.backup.restore import restore
from wings_core.check import check_directory
from wings_core.contracts.share import AcknowledgementEntry
from wings_core.limits import Limits
from wings_server.metadata.process import MetadataServer
from wings_server.process import Server
from wings_server.settings import MetadataSettings, Settings
from wings_server.testing import RunningServer, running_server

LIMITS = Limits(
    maintenance_seconds=100_000,
    inline_bytes_max=0,
    object_flush_seconds=0.0,
    segment_bytes_max=20_000,
)
"""Maintenance works when it is asked; each push is an object, or there are many files."""

WAIT_SECONDS = 60.0


class Cluster:
    """Two nodes, and a client of each."""

    def __init__(self, nodes: list[RunningServer], stack: ExitStack) -> None:
        self.nodes = nodes
        self.clients = [stack.enter_context(wings_client.connect(each.flight)) for each in nodes]


@pytest.fixture(params=["postgres", pytest.param("service", marks=pytest.mark.soak)])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """Nodes over PostgreSQL and S3, or, in soak, of a service, which share a directory."""
    with ExitStack() as stack:
        if request.param == "postgres":
            postgres: PostgresServer = request.getfixturevalue("postgres")
            s3_url: str = request.getfixturevalue("s3_url")
            nodes = Nodes(postgres.new_database(), s3_url, stack)
            running = [nodes.start(limits=LIMITS) for _ in range(2)]
        else:
            settings = MetadataSettings(data_dir=tmp_path / "metadata", listen=ANY_PORT)
            metadata = MetadataServer(settings)
            metadata.start()
            stack.callback(metadata.stop)
            running = [start_node(metadata, tmp_path / "shared", stack) for _ in range(2)]
        yield Cluster(running, stack)


def start_node(metadata: MetadataServer, directory: Path, stack: ExitStack) -> RunningServer:
    """Start a node of a metadata service."""
    settings = Settings(
        data_dir=directory,
        metadata=metadata.address,
        flight=ANY_PORT,
        http=ANY_PORT,
        drain_seconds=0,
        limits=LIMITS,
    )
    server = Server(settings)
    server.start()
    stack.callback(server.stop)
    running = RunningServer(server)
    stack.callback(running.close_clients)
    return running


T = TypeVar("T")


def restored(dest: Path, into: Path, look: Callable[[Client], T]) -> T:
    """Restore the newest backup into a directory that is sound, and look at it."""
    repository = Repository.open(str(dest))
    restore(repository, repository.newest(), into)
    report = check_directory(into)
    assert report.ok, report.problems
    with running_server(into, limits=LIMITS) as server, wings_client.connect(server.flight) as made:
        return look(made)


def test_what_nodes_had_is_in_the_restored_directory(cluster: Cluster, tmp_path: Path) -> None:
    one, two = cluster.clients
    fill(one)
    one.create_topic("merged", {"n": "int64"}, config={"tier_after_ms": 0})
    for first in range(0, 30, 10):
        two.push("merged", {"n": list(range(first, first + 10))})
    maintain(one)
    two.push("merged", {"n": [30]})
    two.open_shards("files", "me", ["one", "two"])
    with two.stage("merged", "staged") as stage:
        stage.write({"n": [31]})
    staged = stage.close()
    before = seen(two)
    first = back_up(two, tmp_path / "dest")
    assert len({file.name.rpartition(".")[2] for file in first.folios}) == 2, "two tiers"
    # The other node takes the next one, of what is new.
    again = back_up(one, tmp_path / "dest")
    assert (again.folios, again.log) == (first.folios, first.log)
    two.push("plain", rows(50_000, 10))  # After it.

    def look(found: Client) -> None:
        assert seen(found) == before
        (delivery,) = found.acquire_messages("workers", "plain", "other", max_messages=10)
        assert delivery.offsets == list(range(30, 40))
        assert delivery.delivery_count == 2
        # An idempotent producer's repeat is recognised, and it goes on with its next sequence.
        with found.producer("orders", producer_id="one") as producer:
            producer.send(rows(100, 10))
        assert len(rows_of(found, "orders", "key-0")) == 37
        with found.producer("orders", producer_id="one", sequence=1) as producer:
            producer.send(rows(110, 10))
        assert len(rows_of(found, "orders", "key-0")) == 40
        assert [each.shard for each in found.list_shards("files")] == ["one", "two"]
        assert found.publish("writer", 1, [staged.stage]).committed
        assert found.fetch("merged", offset=31).table["n"].to_pylist() == [31]
        found.create_topic("later", {"n": "int64"})
        found.push("later", {"n": [1]})

    restored(tmp_path / "dest", tmp_path / "restored", look)


class Disturbed(Repository):
    """A repository whose log is disturbed after the snapshot, before any file is copied."""

    disturb: Callable[[], None]

    def kept(self) -> dict[str, dict[int, KeptPart]]:
        self.disturb()
        return super().kept()


def test_no_node_deletes_what_a_backup_at_another_refers_to(
    cluster: Cluster, tmp_path: Path
) -> None:
    one, two = cluster.clients
    fill(one)
    one.create_topic("merged", {"n": "int64"}, config={"tier_after_ms": 0})
    for first in range(0, 30, 10):
        one.push("merged", {"n": list(range(first, first + 10))})
    before = seen(one)
    log = cluster.nodes[1].server.log
    live = log.registry.live_folios()

    def retire() -> int:
        gone = live - log.registry.live_folios()
        assert gone
        return len(log.registry.retire(sorted(gone)))

    def disturb() -> None:
        two.delete_topic("plain")
        maintain(two)
        log.reclaimer.run()
        assert retire() == 0

    Repository.open(str(tmp_path / "dest"), create=True)
    disturbed = Disturbed(Repository.open(str(tmp_path / "dest")).objects)
    disturbed.disturb = disturb
    back_up(one, disturbed)
    assert seen(one) != before
    assert restored(tmp_path / "dest", tmp_path / "restored", seen) == before
    assert retire() > 0, "it has ended"


class Load:
    """Pushes to two partitions at once, and acknowledges one message after another, until it ends.

    Args:
        client: Of the node that it goes to.
    """

    def __init__(self, client: Client) -> None:
        self.pushed = 0
        """So many of each kind."""
        self.finished = 0
        self._client = client
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(2)
        self._running = [self._pool.submit(each) for each in (self._push, self._accept)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for each in self._running:
            each.result(WAIT_SECONDS)
        self._pool.shutdown()

    def _push(self) -> None:
        while not self._stopping.is_set():
            n = self.pushed
            self._client.push("pairs", {"k": ["a", "b"], "n": [n, n]})
            self._client.push("work", {"n": [n]})
            self.pushed += 1

    def _accept(self) -> None:
        while not self._stopping.is_set():
            for each in self._client.acquire_messages(
                "workers", "work", "m", max_messages=1, timeout=0.2
            ):
                entry = AcknowledgementEntry(
                    first=each.start_offset, last=each.end_offset, lease=each.lease, type="accept"
                )
                self._client.acknowledge_messages("workers", "work", "m", [entry])
                self.finished = each.end_offset + 1


def test_a_backup_under_load_is_of_one_moment(cluster: Cluster, tmp_path: Path) -> None:
    one, two = cluster.clients
    one.create_topic("pairs", {"k": "string", "n": "int64"}, partition_key="k")
    one.create_topic("work", {"n": "int64"})
    one.create_share_group("workers", "work", {"start": "earliest"})
    bounds: list[tuple[int, int, int, int]] = []
    with Load(two) as load:
        for number in range(2):
            least = (load.pushed, load.finished)
            back_up(one, tmp_path / f"dest-{number}")
            bounds.append((*least, load.pushed, load.finished))

    def look(found: Client) -> tuple[int, int, int]:
        parts = {key: [row["n"] for row in rows_of(found, "pairs", key)] for key in ("a", "b")}
        assert parts["a"] == parts["b"] == list(range(len(parts["a"])))
        (state,) = found.share_group("workers", "work").partitions
        return len(parts["a"]), len(rows_of(found, "work")), state.start_offset

    for number, (pushed_least, finished_least, pushed_most, finished_most) in enumerate(bounds):
        into = tmp_path / f"restored-{number}"
        pairs, messages, finished = restored(tmp_path / f"dest-{number}", into, look)
        assert pushed_least <= messages <= pairs <= pushed_most + 1
        assert finished_least <= finished <= min(messages, finished_most + 1)
