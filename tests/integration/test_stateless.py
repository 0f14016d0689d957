"""Nodes without a data directory: PostgreSQL and an object store hold all that they share."""

import queue
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest
from fix_postgres import PASSWORD, PostgresServer
from flight_calls import act, create_topic, get, numbers, push
from pydantic import SecretStr
from share_calls import Member, create_group
from stateless_nodes import Nodes

import wings_client
from wings_core.data_directory import DataDirectory
from wings_core.errors import InvalidArgument, WingsError
from wings_core.metadata.open import is_bound
from wings_core.metadata.postgres.connections import PostgresConnections
from wings_core.share.remote.link import RemoteLink
from wings_core.share.replica.postgres_lease import OwnerLookup
from wings_core.share.replica.postgres_store import SCHEMA, PostgresHoldStore
from wings_core.share.replica.requests import Answer, ReadRequest
from wings_server.metadata.process import MetadataServer
from wings_server.process import Server
from wings_server.settings import Address, MetadataSettings, load
from wings_server.testing import node_process

ANY_PORT = Address("127.0.0.1", 0)
LONG_MS = 30_000
SECONDS = 30.0


@pytest.fixture
def nodes(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[Nodes]:
    empty = tmp_path / "working-directory"
    empty.mkdir()
    monkeypatch.chdir(empty)
    with ExitStack() as stack:
        yield Nodes(postgres.new_database(), tmp_path / "objects", stack)
    assert not list(empty.iterdir()), "nothing is kept beside PostgreSQL and the object store"


def test_nodes_are_one_log_and_keep_nothing_of_their_own(nodes: Nodes) -> None:
    one, other = nodes.start(), nodes.start()
    here, there = one.client(), other.client()
    create_topic(here, "events", ["n: int64"])
    with ThreadPoolExecutor(1) as threads:
        polled = threads.submit(get, there, topic="events", offset=0, timeout_ms=LONG_MS)
        push(here, "events", numbers(1, 2))
        answer = polled.result(SECONDS)
        assert (answer.column("n"), answer.end) == ([1, 2], "min_messages")
    push(there, "events", numbers(3))
    assert get(here, kind="scan", topic="events").column("n") == [1, 2, 3]
    one.server.log.maintainer.run()  # What was in PostgreSQL is in the object store.
    with psycopg.connect(nodes.url) as connection:
        assert connection.execute("SELECT count(*) FROM wings.inline_folios").fetchone() == (0,)
    one.stop()
    other.stop()
    third = nodes.start().client()
    assert get(third, kind="scan", topic="events").column("n") == [1, 2, 3]


def test_each_node_names_all_that_are_there(nodes: Nodes) -> None:
    one, other = nodes.start(), nodes.start()
    create_topic(one.client(), "events", ["n: int64"])
    both = {str(one.server.flight), str(other.server.flight)}
    for node in (one, other):
        live = {each.address for each in node.server.log.nodes.live()}
        assert live == both
    with wings_client.connect(other.flight) as client:
        client.push("events", {"n": [1]})
        assert client.scan("events").read_all().num_rows == 1
    other.stop()
    assert {each.address for each in one.server.log.nodes.live()} == {str(one.server.flight)}


def test_the_next_node_takes_over_what_workers_hold(nodes: Nodes) -> None:
    one, other = nodes.start(), nodes.start()
    here, there = one.client(), other.client()
    create_topic(here, "jobs", ["n: int64"])
    push(here, "jobs", numbers(*range(6)))
    create_group(here, "jobs", lock_duration_ms=600_000)
    mine, theirs = Member(here, "jobs"), Member(there, "jobs", name="two")
    (first,) = mine.acquire(max_messages=2)
    assert mine.acknowledge(first.ack("accept")) == [None]
    act(there, "share-alter", group="billing", topic="jobs", config={"lock_duration_ms": 1_000})
    (second,) = theirs.acquire(max_messages=2)
    assert (first.offsets, second.offsets) == ([0, 1], [2, 3])
    one.stop()  # It served the holds, as it was asked first.
    # What was held is held until its lock ends: the node that takes over knows no more.
    got: list[int] = []
    for _ in range(60):
        for each in theirs.acquire(timeout_ms=1_000):
            if theirs.acknowledge(each.ack("accept")) == [None]:  # Else it comes once more.
                got += each.offsets
        if len(got) == 4:
            break
    assert sorted(got) == [2, 3, 4, 5]


def test_holds_are_served_to_nodes_of_the_same_metadata_alone(nodes: Nodes) -> None:
    one = nodes.start()
    create_topic(one.client(), "jobs", ["n: int64"])
    create_group(one.client(), "jobs")
    with closing(PostgresConnections(nodes.url, SCHEMA)) as connections:
        lookup = OwnerLookup(connections)
        address = lookup.address()
        lookup.close()
    assert address is not None
    answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
    with closing(RemoteLink(address)) as link:
        asked = [ReadRequest("group", (), False)]
        link.begin_all(asked, SECONDS, lambda _, answer: answers.put(answer))
        answer = answers.get(timeout=SECONDS)
    assert "the token of the cluster is needed" in str(answer)


def test_holds_are_reached_where_they_are_served(nodes: Nodes) -> None:
    one, other = nodes.start(holds=Address("127.0.0.2", 0)), nodes.start()
    create_topic(one.client(), "jobs", ["n: int64"])
    push(one.client(), "jobs", numbers(1))
    create_group(one.client(), "jobs")  # So it serves them.
    (only,) = Member(other.client(), "jobs").acquire()
    assert only.offsets == [0]


def test_holds_of_an_earlier_version_are_brought_up_to_date_by_the_node_that_is_asked(
    nodes: Nodes,
) -> None:
    PostgresHoldStore(nodes.url).close()
    with psycopg.connect(nodes.url) as connection:  # As the first version of the tables was.
        connection.execute("ALTER TABLE wings_holds.owner DROP COLUMN address")
        connection.execute("UPDATE wings_holds.migrations SET version = 1")
    client = nodes.start().client()
    create_topic(client, "jobs", ["n: int64"])
    push(client, "jobs", numbers(1))
    create_group(client, "jobs")
    (only,) = Member(client, "jobs").acquire()
    assert only.offsets == [0]


def test_all_nodes_have_one_object_store(nodes: Nodes, tmp_path: Path) -> None:
    nodes.start(remote=(tmp_path / "old").as_uri())
    with pytest.raises(InvalidArgument, match="have their new messages at"):
        nodes.start(hot=(tmp_path / "elsewhere").as_uri())
    with pytest.raises(InvalidArgument, match="have their old messages at"):
        nodes.start(remote=(tmp_path / "elsewhere").as_uri())
    nodes.start()  # Told of the other by PostgreSQL.


def test_metadata_is_of_one_kind_of_server(nodes: Nodes, tmp_path: Path) -> None:
    nodes.start().stop()
    directory = tmp_path / "data"
    for start in (
        lambda: Server(nodes.settings(data_dir=directory)).start(),
        lambda: MetadataServer(
            MetadataSettings(metadata_url=SecretStr(nodes.url), listen=ANY_PORT)
        ).start(),
    ):
        with pytest.raises(InvalidArgument, match="nodes without a data directory"):
            start()


def test_a_directory_that_was_used_with_postgresql_is_not_left_behind(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = {"metadata_url": postgres.new_database(), "hot": (tmp_path / "objects").as_uri()}
    assert load(None, flags).is_stateless
    assert not load(None, {**flags, "data_dir": "wings-data"}).is_stateless
    assert not load(None, {"metadata_url": flags["metadata_url"]}).is_stateless
    assert not load(None, {"hot": flags["hot"]}).is_stateless
    server = Server(
        load(
            None,
            {**flags, "data_dir": "wings-data", "flight": "127.0.0.1:0", "http": "127.0.0.1:0"},
        )
    )
    server.start()
    server.stop()
    assert not load(None, flags).is_stateless, "it goes on as it was"
    with DataDirectory.open_read_only(tmp_path / "wings-data"):
        pass


def test_a_directory_for_objects_that_is_not_the_one_of_the_others_is_refused(
    nodes: Nodes, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument, match="absolute path"):
        nodes.start(hot="objects")
    nodes.start().stop()
    (tmp_path / "objects").rename(tmp_path / "elsewhere")
    (tmp_path / "objects").mkdir()  # As where a disk is not mounted.
    with pytest.raises(InvalidArgument, match="mounted"):
        nodes.start()


def test_a_start_with_a_directory_by_mistake_leaves_nothing_that_stops_the_next(
    nodes: Nodes, tmp_path: Path
) -> None:
    nodes.start().stop()
    flags = {
        "metadata_url": nodes.url,
        "data_dir": str(tmp_path / "data"),
        "flight": "127.0.0.1:0",
        "http": "127.0.0.1:0",
    }
    with pytest.raises(InvalidArgument, match="with --hot"):
        Server(load(None, flags)).start()
    assert not is_bound(tmp_path / "data")


def test_a_node_that_others_cannot_reach_is_refused(nodes: Nodes) -> None:
    with pytest.raises(InvalidArgument, match="--advertise"):
        nodes.start(flight=Address("0.0.0.0", 0))


def test_a_node_process_says_where_it_serves_and_shows_no_password(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    with node_process(postgres.new_database(), (tmp_path / "objects").as_uri()) as node:
        create_topic(node.client(), "events", ["n: int64"])
        assert node.terminate() == 0
        assert PASSWORD not in node.stderr
        assert "data_dir" not in node.stderr


def test_errors_are_ours(nodes: Nodes) -> None:
    with pytest.raises(WingsError):
        nodes.start(hot="file:///proc/nothing/here")
