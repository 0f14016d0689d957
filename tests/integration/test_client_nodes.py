"""A client of several nodes: it spreads its reads, and goes on when one of them is gone."""

import re
import threading
import urllib.request
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from breakable_proxy import BreakableProxy, breakable
from fix_client import EAGER, Connect, NewTopic, async_in_soak
from fix_metadata import Clock, RemoteOverSqlite

from wings_client import Client, Topic
from wings_client.gather import GatherReason, Request
from wings_core.errors import Unavailable
from wings_core.times import now_us
from wings_server.process import Server
from wings_server.settings import Address, Settings

NODES = 3
LONG = 100.0
ANY = Address("127.0.0.1", 0)


class Cluster:
    """Nodes in this process, each behind a proxy that a test breaks."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.service = RemoteOverSqlite(directory / "metadata.sqlite", Clock(now_us()))
        stack.callback(self.service.close)
        self.proxies: list[BreakableProxy] = []
        self.servers: list[Server] = []
        for _ in range(NODES):
            proxy = stack.enter_context(breakable("grpc://127.0.0.1:1"))
            server = Server(
                Settings(
                    data_dir=directory / "shared",
                    metadata=self.service.service.address,
                    flight=ANY,
                    http=ANY,
                    advertise=Address.parse(proxy.endpoint.removeprefix("grpc://")),
                    node_lease_seconds=1.0,
                )
            )
            server.start()
            stack.callback(server.stop)
            proxy.retarget(f"grpc://{server.flight}")
            self.proxies.append(proxy)
            self.servers.append(server)

    @property
    def endpoints(self) -> list[str]:
        return [proxy.endpoint for proxy in self.proxies]

    def fetches(self) -> list[int]:
        """Return how many streams each node has served."""
        counts: list[int] = []
        for server in self.servers:
            with urllib.request.urlopen(f"http://{server.http}/metrics", timeout=LONG) as answer:
                found = re.findall(
                    r'wings_fetches_total\{transport="flight"\} ([0-9.]+)', answer.read().decode()
                )
            counts.append(int(float(found[0])) if found else 0)
        return counts

    def wait_until_listed(self, client: Client, topic: Topic, nodes: set[str]) -> None:
        pause = threading.Event()
        for _ in range(int(LONG / 0.02)):
            if set(client.locations(topic)) == nodes:
                return
            pause.wait(0.02)
        pytest.fail(f"{client.locations(topic)} are listed, not {nodes}")

    def proxy_of(self, client: Client) -> BreakableProxy:
        """Return the proxy of the node that a client uses now."""
        return next(proxy for proxy in self.proxies if proxy.endpoint == client.endpoint)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path_factory.mktemp("cluster"), stack)


@pytest.fixture
def wings(cluster: Cluster, connect: Connect) -> Iterator[Client]:
    """A client of all nodes, instead of the one of a single server."""
    with connect(cluster.endpoints, timeout=30.0, retry=EAGER) as client:
        yield client
    for proxy in cluster.proxies:
        if not proxy.listening:
            proxy.listen_again()


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(values, pa.int64())})


def values(batches: Iterable[pa.RecordBatch]) -> list[int]:
    """Return all values of `n`, in order of size."""
    found: list[Any] = pa.Table.from_batches(batches)["n"].to_pylist()
    return sorted(found)


@async_in_soak
def test_calls_go_to_another_node_when_one_is_gone(
    cluster: Cluster, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    seen = set[str]()
    for number in range(NODES):
        wings.push(topic, rows(number))
        assert wings.fetch(topic, offset=number).table["n"].to_pylist() == [number]
        seen.add(wings.endpoint)
        if number < NODES - 1:
            cluster.proxy_of(wings).stop_listening()
    assert seen == set(cluster.endpoints)
    assert wings.scan(topic).read_all()["n"].to_pylist() == [0, 1, 2]


@async_in_soak
def test_it_says_so_when_no_node_is_there(
    cluster: Cluster, wings: Client, connect: Connect, new_topic: NewTopic
) -> None:
    topic = new_topic()
    for proxy in cluster.proxies:
        proxy.stop_listening()
    with (
        connect(",".join(cluster.endpoints), timeout=2.0) as client,
        pytest.raises(Unavailable, match="no server answers"),
    ):
        client.fetch(topic, offset=0, timeout=0)


@async_in_soak
def test_a_parallel_scan_reads_from_all_live_nodes_whichever_was_named(
    cluster: Cluster, connect: Connect, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic("n: int64", partition_key="n")
    wings.push(topic, rows(*range(12)))
    with connect(cluster.endpoints[0], retry=EAGER) as client:
        cluster.wait_until_listed(client, topic, set(cluster.endpoints))
        for parallel in (3, 6):
            before = cluster.fetches()
            assert values(client.scan(topic, parallel=parallel)) == list(range(12))
            after = cluster.fetches()
            streams = [late - early for late, early in zip(after, before, strict=True)]
            assert streams == [parallel // 3] * 3


@async_in_soak
def test_a_scan_goes_on_when_a_node_dies_that_was_to_be_read(
    cluster: Cluster, connect: Connect, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic("n: int64", partition_key="n")
    wings.push(topic, rows(*range(12)))
    with connect(cluster.endpoints[0], retry=EAGER) as client:
        cluster.wait_until_listed(client, topic, set(cluster.endpoints))
        batches = iter(client.scan(topic))
        first = next(batches)
        for proxy in cluster.proxies[1:]:
            proxy.stop_listening()
        found = values([first, *batches])
    assert found == list(range(12))


@async_in_soak
def test_a_producer_goes_on_at_another_node_and_writes_each_row_once(
    cluster: Cluster, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    with wings.producer(topic) as producer:
        for number in range(60):
            producer.send(rows(number))
            if number in {20, 40}:
                producer.flush()
                cluster.proxy_of(wings).stop_listening()
    assert wings.scan(topic).read_all()["n"].to_pylist() == list(range(60))


@async_in_soak
def test_a_long_poll_waits_on_at_another_node(
    cluster: Cluster, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    with ThreadPoolExecutor(1) as threads:
        polled = threads.submit(wings.fetch, topic, offset=0, timeout=LONG)
        served = cluster.servers[cluster.endpoints.index(wings.endpoint)]
        pause = threading.Event()
        while served.service.calls_running == 0:
            pause.wait(0.01)
        cluster.proxy_of(wings).stop_listening()
        wings.push(topic, rows(7))
        assert polled.result(LONG).table["n"].to_pylist() == [7]


@async_in_soak
def test_a_gather_spreads_over_the_nodes_and_reads_on_elsewhere(
    cluster: Cluster, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic("n: int64", partition_key="n")
    wings.push(topic, rows(*range(12)))
    requests = [Request(topic.name, partition, offset=0) for partition in range(12)]
    before = cluster.fetches()
    gather = wings.gather(requests)
    assert values(reply.batch for reply in gather) == list(range(12))
    assert all(late > early for late, early in zip(cluster.fetches(), before, strict=True))
    cluster.proxies[1].stop_listening()
    again = wings.gather(requests)
    assert values(reply.batch for reply in again) == list(range(12))
    assert again.end is not None
    assert again.end.reason == GatherReason.COMPLETE
