"""Flight nodes on one shared directory, with one metadata service, all real processes."""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import act, code_of, create_topic, get, numbers, push, ticket_of
from held_address import held_address
from waiting import until as until_holds

import wings_client
from wings_client import Retry
from wings_core.contracts.tickets import ScanTicket
from wings_core.errors import Unavailable
from wings_core.metadata.remote import RemoteMetadata
from wings_core.model import Node
from wings_core.type_names import parse_type
from wings_server.testing import (
    MetadataProcess,
    ServerProcess,
    metadata_process,
    server_process,
)

LONG_MS = 100_000
SECONDS = 100.0

LEASE_SECONDS = 1.5


class Cluster:
    """A metadata service and two nodes; the service can be killed and started again."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self._listen = stack.enter_context(held_address())
        self.metadata = self.start_metadata()
        self.nodes = [self.start_node(stack) for _ in range(2)]
        self.clients = [node.client() for node in self.nodes]

    def start_metadata(self) -> MetadataProcess:
        self.metadata = self._stack.enter_context(
            metadata_process(self._directory / "metadata", listen=self._listen)
        )
        return self.metadata

    def start_node(self, stack: ExitStack, *flags: str) -> ServerProcess:
        flags = ("--metadata", self.metadata.address, *flags)
        return stack.enter_context(
            server_process(
                self._directory / "shared",
                flags=flags,
                environment={"WINGS_NODE_LEASE_SECONDS": str(LEASE_SECONDS)},
            )
        )

    def wait_for_nodes(self) -> None:
        """Wait until every node has found the service again, each in its own time."""
        for client in self.clients:
            until(partial(act, client, "list-namespaces"))

    def live(self) -> list[Node]:
        """Return the nodes that the metadata service knows to be there."""
        with RemoteMetadata(self.metadata.address) as metadata:
            return metadata.nodes.live()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path_factory.mktemp("cluster"), stack)


def until(call: Callable[[], object]) -> None:
    """Make a call until the node has found the service again."""
    waited = threading.Event()
    for _ in range(600):
        try:
            call()
        except flight.FlightUnavailableError:
            waited.wait(0.1)
        else:
            return
    pytest.fail("the node did not recover")


def test_health_knows_the_other_nodes_and_those_that_stopped_answering(cluster: Cluster) -> None:
    client = cluster.clients[0]
    states = {each["flight"]: each for each in act(client, "node-states")}
    assert {node.flight for node in cluster.nodes} <= states.keys()
    for node in cluster.nodes:
        found = states[node.flight]
        assert found["version"] == version("wings-flight")
        assert found["memory_bytes"] > 10_000_000
        assert found["disk"]["free_bytes"] > 0
    with ExitStack() as stack:
        third = cluster.start_node(stack)
        third.kill()
        silent = [each["message"] for each in _needs(client, third.flight)]
        assert silent == [f"the node {third.flight} has stopped answering"]


def _needs(client: flight.FlightClient, node: str) -> list[dict[str, str]]:
    """Return what is said of a node in `health`, once something is."""
    waited = threading.Event()
    for _ in range(600):
        needs = act(client, "health")["needs"]
        found = [each for each in needs if node in each["message"]]
        if found:
            return found
        waited.wait(0.1)
    pytest.fail("the dead node is not told of")


def test_a_push_on_one_node_wakes_a_long_poll_on_another(
    cluster: Cluster, new_topic_id: str
) -> None:
    producer, consumer = cluster.clients
    create_topic(producer, new_topic_id, ["n: int64"])
    with ThreadPoolExecutor(1) as threads:
        for number in range(5):
            polled = threads.submit(
                get, consumer, topic=new_topic_id, offset=number, timeout_ms=LONG_MS
            )
            push(producer, new_topic_id, numbers(number))
            answer = polled.result(SECONDS)
            assert answer.column("n") == [number]
            assert answer.end == "min_messages"


def test_pushes_on_both_nodes_share_one_log_without_gaps(
    cluster: Cluster, new_topic_id: str
) -> None:
    create_topic(cluster.clients[0], new_topic_id, ["n: int64"])
    with ThreadPoolExecutor(2) as threads:
        batches = [numbers(number) for number in range(50)]
        pushed = [
            threads.submit(push, client, new_topic_id, *batches) for client in cluster.clients
        ]
        starts = [
            answer["committed"][0]["start_offset"]
            for future in pushed
            for answer in future.result(SECONDS)
        ]
    assert sorted(starts) == list(range(100))
    answers = [get(client, kind="scan", topic=new_topic_id) for client in cluster.clients]
    assert answers[0].column("n") == answers[1].column("n")
    assert sorted(answers[0].column("n")) == sorted([*range(50), *range(50)])


def test_without_metadata_reads_go_on_pushes_are_refused_and_both_recover(
    cluster: Cluster, new_topic_id: str
) -> None:
    first, second = cluster.clients
    create_topic(first, new_topic_id, ["n: int64"])
    push(first, new_topic_id, numbers(0, 1))
    assert get(second, topic=new_topic_id, offset=0, timeout_ms=LONG_MS).column("n") == [0, 1]
    cluster.metadata.kill()
    assert get(second, topic=new_topic_id, offset=0).column("n") == [0, 1]
    with pytest.raises(flight.FlightUnavailableError) as caught:
        push(first, new_topic_id, numbers(2))
    assert code_of(caught.value) == "UNAVAILABLE"
    with ThreadPoolExecutor(1) as threads:
        # Before the service is back: the poll outlasts its absence.
        polled = threads.submit(get, second, topic=new_topic_id, offset=2, timeout_ms=LONG_MS)
        cluster.start_metadata()
        until(lambda: push(first, new_topic_id, numbers(3)))
        assert polled.result(SECONDS).column("n") == [3]
    cluster.wait_for_nodes()


def test_a_range_is_never_cut_short_by_a_node_that_does_not_know_of_its_end(
    cluster: Cluster, new_topic_id: str
) -> None:
    planner, reader = cluster.clients
    create_topic(planner, new_topic_id, ["n: int64"])
    push(planner, new_topic_id, numbers(0, 1))
    assert get(reader, kind="scan", topic=new_topic_id).column("n") == [0, 1]
    push(planner, new_topic_id, numbers(2, 3))
    planned = {"kind": "scan", "topic": new_topic_id, "offset": 0, "end_offset": 4}
    cluster.metadata.kill()
    # Both read on what they have heard of.
    assert get(reader, kind="scan", topic=new_topic_id).column("n") == [0, 1]
    assert get(reader, **{**planned, "end_offset": 2}).column("n") == [0, 1]
    with pytest.raises(flight.FlightUnavailableError, match="has reached 4"):
        get(reader, **planned)
    cluster.start_metadata()
    cluster.wait_for_nodes()
    until(lambda: get(reader, **planned))
    assert get(reader, **planned).column("n") == [0, 1, 2, 3]
    # A range past the log's end is one of a log that was longer: the client does not take it so.
    past = ScanTicket(topic=new_topic_id, offset=0, end_offset=9)
    assert get(reader, **{**planned, "end_offset": 9}).column("n") == [0, 1, 2, 3]
    with (
        wings_client.connect(cluster.nodes[1].flight, retry=Retry(attempts=1)) as wings,
        pytest.raises(Unavailable, match="of a range that ends at 9: its log ends at 4"),
    ):
        list(wings.read_ticket(past))


def test_a_node_that_was_paused_goes_on(cluster: Cluster, new_topic_id: str) -> None:
    first, second = cluster.clients
    create_topic(first, new_topic_id, ["n: int64"])
    paused = cluster.nodes[1].pid
    with ThreadPoolExecutor(2) as threads:
        polled = threads.submit(get, second, topic=new_topic_id, offset=0, timeout_ms=LONG_MS)
        pushed = threads.submit(push, second, new_topic_id, *[numbers(7)] * 20)
        os.kill(paused, signal.SIGSTOP)
        try:
            push(first, new_topic_id, numbers(8))
        finally:
            os.kill(paused, signal.SIGCONT)
        assert polled.result(SECONDS).column("n")
        pushed.result(SECONDS)
    answers = [get(client, kind="scan", topic=new_topic_id) for client in cluster.clients]
    assert answers[0].column("n") == answers[1].column("n")
    assert sorted(answers[0].column("n")) == [7] * 20 + [8]


def locations(client: flight.FlightClient, topic: str, **keys: Any) -> list[list[str]]:
    """Return the locations of each endpoint that reads a topic."""
    command = json.dumps({"topic": topic, **keys})
    info = client.get_flight_info(flight.FlightDescriptor.for_command(command))
    return [[location.uri.decode() for location in found.locations] for found in info.endpoints]


def comes_to(look: Callable[[], object], expected: object) -> None:
    """Wait until something is as expected: of nodes, also once one that was held up is back."""
    waited = threading.Event()
    found: object = None
    for _ in range(600):
        found = look()
        if found == expected:
            return
        waited.wait(0.1)
    pytest.fail(f"it is {found}, not {expected}")


def lists(client: flight.FlightClient, topic: str, nodes: set[str]) -> None:
    """Wait until an endpoint lists exactly these nodes."""
    comes_to(lambda: set(locations(client, topic)[0]), nodes)


def test_endpoints_list_all_live_nodes_and_begin_with_another_each_time(
    cluster: Cluster, new_topic_id: str
) -> None:
    nodes = [node.flight for node in cluster.nodes]
    create_topic(cluster.clients[0], new_topic_id, ["n: int64"])
    push(cluster.clients[0], new_topic_id, numbers(*range(4)))
    for client, own, other in ((cluster.clients[0], *nodes), (cluster.clients[1], *nodes[::-1])):
        expected = [[own, other], [other, own]] * 2
        for keys in ({}, {"partitions": "all"}):
            comes_to(partial(locations, client, new_topic_id, splits=4, **keys), expected)
    flights = cluster.clients[0].list_flights
    comes_to(lambda: len(next(iter(flights())).endpoints[0].locations), 2)


def test_a_node_that_is_killed_or_paused_for_longer_than_its_lease_is_listed_no_more(
    cluster: Cluster, new_topic_id: str
) -> None:
    first = cluster.clients[0]
    create_topic(first, new_topic_id, ["n: int64"])
    nodes = {node.flight for node in cluster.nodes}
    with ExitStack() as stack:
        third = cluster.start_node(stack)
        lists(first, new_topic_id, nodes | {third.flight})
        os.kill(third.pid, signal.SIGSTOP)
        lists(first, new_topic_id, nodes)
        os.kill(third.pid, signal.SIGCONT)
        lists(first, new_topic_id, nodes | {third.flight})
        third.kill()
        lists(first, new_topic_id, nodes)
        fourth = cluster.start_node(stack)
        lists(first, new_topic_id, nodes | {fourth.flight})
        assert fourth.terminate() == 0
        # It deregisters itself, before its lease expires.
        assert fourth.flight not in {node.address for node in cluster.live()}


def test_a_node_says_which_address_clients_reach_it_by(cluster: Cluster, new_topic_id: str) -> None:
    first = cluster.clients[0]
    create_topic(first, new_topic_id, ["n: int64"])
    with ExitStack() as stack:
        node = cluster.start_node(
            stack, "--flight", "0.0.0.0:0", "--advertise", "localhost:0", "--insecure"
        )
        port = node.flight.rpartition(":")[2]
        lists(first, new_topic_id, {f"grpc://localhost:{port}", *(n.flight for n in cluster.nodes)})


def test_a_service_with_other_metadata_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    shared = cluster.nodes[0].data_dir
    with (
        metadata_process(tmp_path / "other") as other,
        pytest.raises(RuntimeError, match="belong to metadata"),
        server_process(shared, flags=("--metadata", other.address)),
    ):
        pass


def test_a_metadata_service_drains_and_ends_with_status_0(tmp_path: Path) -> None:
    with (
        metadata_process(tmp_path / "metadata") as metadata,
        server_process(tmp_path / "pages", flags=("--metadata", metadata.address)) as node,
        node.client() as client,
        ThreadPoolExecutor(1) as threads,
    ):
        create_topic(client, "topic", ["n: int64"])
        get(client, topic="topic", offset=0, timeout_ms=2)  # The node knows the log's end now.
        polled = threads.submit(get, client, topic="topic", offset=0, timeout_ms=2_000)
        assert metadata.terminate() == 0
        assert polled.result(SECONDS).table.num_rows == 0
        assert node.terminate() == 0


def test_a_node_that_cannot_reach_metadata_is_not_ready_until_it_can(cluster: Cluster) -> None:
    short = {"WINGS_NODE_LEASE_SECONDS": "0.5"}
    flags = ("--metadata", cluster.metadata.address)
    with server_process(cluster.nodes[0].data_dir, flags=flags, environment=short) as node:

        def ready() -> httpx.Response:
            return httpx.get(f"{node.http}/readyz")

        assert ready().status_code == 200
        cluster.metadata.kill()
        until_holds(lambda: ready().status_code == 503)
        assert "this node is not listed: " in ready().json()["message"]
        cluster.start_metadata()
        until_holds(lambda: ready().status_code == 200)
    for client in cluster.clients:
        until(partial(act, client, "list-namespaces"))


def test_a_node_that_knows_an_earlier_schema_looks_again(
    cluster: Cluster, new_topic_id: str
) -> None:
    one, other = cluster.clients
    create_topic(one, new_topic_id, ["a: int32", "r: int32 not null"])
    early = pa.schema([("a", pa.int32()), ("r", pa.int32())])
    push(other, new_topic_id, pa.RecordBatch.from_pylist([{"a": 1, "r": 1}], early))
    follower = other.do_get(ticket_of(kind="follow", topic=new_topic_id))
    assert follower.read_chunk().data is not None
    for number, (change, row) in enumerate(
        (
            ({"add": [{"name": "b", "type": "string"}]}, {"a": 2, "r": 2, "b": "x"}),
            ({"widen": [{"name": "a", "type": "int64"}]}, {"a": 1 << 40, "r": 3, "b": "y"}),
            ({"nullable": ["r"]}, {"a": 4, "r": None, "b": "z"}),
        ),
        1,
    ):
        act(other, "describe-topic", topic=new_topic_id)  # It is remembered for a moment.
        altered = act(one, "alter-topic", topic=new_topic_id, schema=change)
        assert altered["schema_version"] == number + 1
        fields = [
            pa.field(field["name"], parse_type(field["type"]), field["nullable"])
            for field in altered["schema"]["fields"]
        ]
        push(other, new_topic_id, pa.RecordBatch.from_pylist([row], pa.schema(fields)))
        answer = get(
            other, kind="scan", topic=new_topic_id, filter="b IS NOT NULL", columns=["b", "a", "r"]
        )
        assert answer.table.to_pylist()[-1] == row
        pinned = get(other, kind="scan", topic=new_topic_id, schema_version=number + 1)
        assert pinned.table.schema == pa.schema(fields)
    # A page of a version that came after the follower did.
    chunk = follower.read_chunk().data
    assert chunk is not None
    assert chunk.to_pylist() == [{"a": 2, "r": 2}]
    follower.cancel()
    push(other, new_topic_id, pa.RecordBatch.from_pylist([{"a": 5, "r": 5}], early))
    assert get(one, kind="scan", topic=new_topic_id).table.num_rows == 5
