"""Share groups over two nodes that name no replicas of holds.

Their metadata service holds for them, or one of them for all, where they have none.
"""

from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import act, code_of, create_topic, numbers, push
from http_calls import error, good
from pydantic import SecretStr
from share_calls import Member, ShareStreamCall, create_group, offsets_of

from wings_server.metadata.process import MetadataServer
from wings_server.process import Server
from wings_server.settings import Address, MetadataSettings, Settings
from wings_server.testing import RunningServer

ANY_PORT = Address("127.0.0.1", 0)
LONG_MS = 40_000
"""How long a wait would last that nothing ends."""

SECONDS = 60.0


COMMON: dict[str, Any] = {"flight": ANY_PORT, "http": ANY_PORT, "drain_seconds": 0}


def of_service(directory: Path, metadata_url: str | None, stack: ExitStack) -> Settings:
    """Return the settings of the nodes of a metadata service, in this process."""
    url = None if metadata_url is None else SecretStr(metadata_url)
    metadata = MetadataServer(
        MetadataSettings(data_dir=directory / "metadata", metadata_url=url, listen=ANY_PORT)
    )
    metadata.start()
    stack.callback(metadata.stop)
    return Settings(data_dir=directory / "pages", metadata=metadata.address, **COMMON)


class Nodes:
    """Two nodes, in this process."""

    def __init__(self, settings: Settings, stack: ExitStack) -> None:
        self.servers: list[RunningServer] = []
        for _ in range(2):
            server = Server(settings)
            server.start()
            stack.callback(server.stop)
            running = RunningServer(server)
            stack.callback(running.close_clients)
            self.servers.append(running)

    @property
    def clients(self) -> tuple[flight.FlightClient, flight.FlightClient]:
        one, other = self.servers
        return one.client(), other.client()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.soak), "stateless"])
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Nodes]:
    """Nodes of a service over each store of metadata, and nodes without a directory."""
    url = None
    if request.param != "sqlite":
        url = request.getfixturevalue("postgres").new_database()
    with ExitStack() as stack:
        if request.param == "stateless":
            objects = (tmp_path / "objects").as_uri()
            settings = Settings(metadata_url=SecretStr(str(url)), hot=objects, **COMMON)
        else:
            settings = of_service(tmp_path, url, stack)
        yield Nodes(settings, stack)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as opened:
        yield opened


def test_nodes_hold_together_wherever_their_metadata_is(nodes: Nodes) -> None:
    one, other = nodes.clients
    create_topic(one, "jobs", ["n: int64"])
    push(one, "jobs", numbers(*range(6)))
    create_group(one, "jobs")
    mine, theirs = Member(one, "jobs"), Member(other, "jobs", name="two")
    (leased,) = mine.acquire(max_messages=4)
    (rest,) = theirs.acquire(timeout_ms=LONG_MS)
    assert (leased.offsets, rest.offsets) == ([0, 1, 2, 3], [4, 5])
    assert theirs.acknowledge(leased.ack("accept")) == ["INVALID_RECORD_STATE"]
    assert Member(other, "jobs").acknowledge(leased.ack("accept")) == [None]
    assert theirs.acknowledge(rest.ack("accept")) == [None]
    (state,) = mine.describe()["partitions"]
    assert (state["start_offset"], state["lag"]) == (6, 0)


def test_a_node_that_knows_an_earlier_schema_delivers_by_that_of_now_at_the_next_acquire(
    nodes: Nodes,
) -> None:
    one, other = nodes.clients
    create_topic(one, "jobs", ["n: int32"])
    create_group(one, "jobs")
    member = Member(other, "jobs")
    assert member.acquire(timeout_ms=2) == []  # The topic is remembered for a moment.
    act(one, "alter-topic", topic="jobs", schema={"widen": [{"name": "n", "type": "int64"}]})
    push(one, "jobs", pa.record_batch({"n": [1 << 40]}))
    (leased,) = member.acquire(timeout_ms=LONG_MS) or member.acquire(timeout_ms=LONG_MS)
    assert (leased.column("n"), leased.about["delivery_count"]) == ([1 << 40], 1)


def test_any_node_drops_what_all_groups_have_finished_by_acknowledgements_to_another(
    nodes: Nodes,
) -> None:
    one, other = nodes.clients
    create_topic(one, "jobs", ["n: int64"])
    act(one, "alter-topic", topic="jobs", config={"retention_on_acceptance": True})
    for first in (0, 2, 4):
        push(one, "jobs", numbers(first, first + 1))
        act(one, "maintain", topic="jobs")  # Each goes to a page of its own.
    for group in ("a", "b"):
        create_group(one, "jobs", group)
    accepted = {"a": 5, "b": 3}
    for group, messages in accepted.items():
        member = Member(one, "jobs", group)
        (leased,) = member.acquire(max_messages=messages)
        assert member.acknowledge(leased.ack("accept")) == [None]
    report = act(other, "maintain", topic="jobs")
    assert (report["rows_expired"], report["failures"]) == (2, 0)
    act(one, "share-seek", group="a", topic="jobs", to="earliest")
    member = Member(other, "jobs", "b")
    (leased,) = member.acquire()
    assert leased.offsets == [3, 4, 5]
    assert member.acknowledge(leased.ack("accept")) == [None]
    assert act(other, "maintain", topic="jobs")["rows_expired"] == 0
    act(one, "share-purge", group="a", topic="jobs")
    assert act(other, "maintain", topic="jobs")["rows_expired"] == 4


def test_waits_on_one_node_hear_of_what_another_does_to_their_group(
    nodes: Nodes, threads: ThreadPoolExecutor
) -> None:
    one, other = nodes.clients
    create_topic(one, "jobs", ["n: int64"])
    push(one, "jobs", numbers(0, 1, 2))
    # The lock outlasts the waits on a busy machine too.
    create_group(one, "jobs", in_flight_max=1, lock_duration_ms=600_000)
    (held,) = Member(one, "jobs").acquire()
    assert held.offsets == [0]
    theirs = Member(other, "jobs", name="two")
    body = {"group": "billing", "topic": "jobs", "member": "three", "timeout_ms": LONG_MS}

    def acquire_over_http() -> httpx.Response:
        url = f"{nodes.servers[1].http}/v1/share/acquire"
        return httpx.post(url, json={**body, "max_messages": 1}, timeout=SECONDS)

    # The window is full: nothing but a change of it ends these waits early.
    waiting: Future[Any] = threads.submit(theirs.acquire, max_messages=1, timeout_ms=LONG_MS)
    over_http = threads.submit(acquire_over_http)
    act(one, "share-alter", group="billing", topic="jobs", config={"in_flight_max": 3})
    got = offsets_of(waiting.result(SECONDS))
    deliveries = good(over_http.result(SECONDS))["deliveries"]
    got += [row["n"] for each in deliveries for row in each["messages"]]
    assert sorted(got) == [1, 2]

    waiting = threads.submit(theirs.acquire, timeout_ms=LONG_MS)
    over_http = threads.submit(acquire_over_http)
    act(one, "share-delete", group="billing", topic="jobs")
    with pytest.raises(flight.FlightServerError) as ended:
        waiting.result(SECONDS)
    assert code_of(ended.value) == "GROUP_NOT_FOUND"
    assert error(over_http.result(SECONDS)) == (404, "GROUP_NOT_FOUND")


def test_a_stream_on_one_node_ends_as_another_deletes_its_group(nodes: Nodes) -> None:
    one, other = nodes.clients
    create_topic(one, "jobs", ["n: int64"])
    push(one, "jobs", numbers(0))
    create_group(one, "jobs", lock_duration_ms=600_000)
    stream = ShareStreamCall(other, "jobs", credit=1)
    assert stream.delivery().offsets == [0], "so nothing of it is looked for any more"
    act(one, "share-delete", group="billing", topic="jobs")
    assert stream.ended()["end"] == "GROUP_NOT_FOUND"
