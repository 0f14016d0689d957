"""Topics that are Iceberg tables, of nodes over PostgreSQL and an object store alone."""

import tempfile
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from fix_postgres import PostgresServer
from flight_calls import act, numbers, push, ticket_of
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from stateless_nodes import Nodes

import wings_client
from wings_core.errors import Unavailable
from wings_core.limits import Limits
from wings_core.metadata.store.tables import DatabaseTables
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.tables import open_catalog
from wings_core.tables.catalog import Catalog
from wings_server.testing import node_process

pytest.importorskip("pyiceberg")
from pyiceberg.catalog import load_catalog

TABLE = {"tier_after_ms": 0, "table": "iceberg", "segment_bytes": 1}
FIELDS = [{"name": "n", "type": "int64"}]
LIMITS = Limits(maintenance_seconds=100_000)
LONG = 60.0


def clients_of(nodes: Nodes, count: int) -> list[flight.FlightClient]:
    return [nodes.start(limits=LIMITS).client() for _ in range(count)]


def create(client: flight.FlightClient, config: Any = TABLE) -> None:
    act(client, "create-topic", topic="t", schema={"fields": FIELDS}, config=config)


@contextmanager
def catalog_of(nodes: Nodes) -> Generator[Any]:
    """Open the catalog as another program does."""
    uri = nodes.url.replace("postgresql://", "postgresql+psycopg://")
    with closing(load_catalog("wings", type="sql", uri=uri)) as catalog:
        yield catalog


def table_of(nodes: Nodes) -> Any:
    with catalog_of(nodes) as catalog:
        return catalog.load_table(("default", "t"))


def assert_same(nodes: Nodes, client: flight.FlightClient) -> None:
    """All rows of Wings are in the table, once, with their offsets and times."""
    wings = client.do_get(ticket_of(kind="scan", topic="t", system_columns=True)).read_all()
    table = table_of(nodes).scan().to_arrow().sort_by("__offset")
    assert cast("pa.Table", table).to_pylist() == wings.to_pylist()


def test_a_table_has_the_rows_that_came_through_any_node(nodes: Nodes) -> None:
    first, second = clients_of(nodes, 2)
    create(first)
    for number in range(3):
        push(first, "t", numbers(2 * number))
        push(second, "t", numbers(2 * number + 1))
        act((first, second)[number % 2], "maintain", topic="t")
        assert_same(nodes, first)
    for client in (first, second):
        told = act(client, "describe-topic", topic="t")["table"]
        assert (told["identifier"], told["rows"], told["lag_rows"]) == ("default.t", 6, 0)
    act(first, "alter-topic", topic="t", schema={"add": [{"name": "more", "type": "string"}]})
    push(second, "t", numbers(6))
    assert act(second, "maintain", topic="t")["failures"] == 0
    assert_same(nodes, first)
    act(first, "delete-topic", topic="t")
    act(second, "maintain")
    with catalog_of(nodes) as catalog:
        assert catalog.list_tables("default") == []


STEPS = [
    (DatabaseTables, "plan", True),
    (Catalog, "commit", True),
    (DatabaseTables, "confirm", False),
]
# With one node, `test_tables` has all of them.
OTHERS = [
    pytest.param(owner, name, not after, marks=pytest.mark.soak) for owner, name, after in STEPS
]


@pytest.mark.parametrize(("owner", "name", "after"), [*STEPS, *OTHERS])
def test_where_a_node_ends_at_any_step_the_other_goes_on(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, after: bool
) -> None:
    """A call that fails after it was done is also a commit whose answer was lost."""
    first, second = clients_of(nodes, 2)
    create(first)
    push(first, "t", numbers(1, 2))
    act(first, "maintain", topic="t")
    push(second, "t", numbers(3))
    whole = getattr(owner, name)

    def crash(*args: Any, **kwargs: Any) -> None:
        if after:
            whole(*args, **kwargs)
        raise Unavailable("it crashed")

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, crash)
        assert act(first, "maintain", topic="t")["failures"] == 1
    push(second, "t", numbers(4))
    act(second, "maintain", topic="t")
    assert_same(nodes, second)
    act(first, "maintain", topic="t")
    assert_same(nodes, second)


def test_nodes_that_maintain_a_table_at_once_put_each_row_into_it_once(nodes: Nodes) -> None:
    clients = clients_of(nodes, 3)
    create(clients[0], {**TABLE, "retention_bytes": 1_000_000})
    begin = threading.Barrier(len(clients))

    def work(number: int) -> None:
        for turn in range(3):
            push(clients[number], "t", numbers(10 * turn + number))
            begin.wait(LONG)
            act(clients[number], "maintain", topic="t")

    with ThreadPoolExecutor(len(clients)) as threads:
        for done in [threads.submit(work, number) for number in range(len(clients))]:
            done.result(LONG)
    act(clients[0], "maintain", topic="t")
    assert_same(nodes, clients[0])


def commit_nothing(*_: object, **__: object) -> bool:
    return True


def test_a_snapshot_of_another_node_counts_for_how_often_there_is_one(nodes: Nodes) -> None:
    servers = [nodes.start(limits=LIMITS) for _ in range(2)]
    first, second = (server.client() for server in servers)
    create(first)
    push(first, "t", numbers(1))
    act(first, "maintain", topic="t")
    push(first, "t", numbers(2))
    tables = servers[1].server.log.tables
    assert tables is not None
    topic = servers[1].server.log.admin.get_topic(DEFAULT_NAMESPACE.topic("t"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(tables), "commit", commit_nothing)
        act(second, "maintain", topic="t")  # Merges what is new, and commits it to no table.
    assert tables.is_due(topic), "this node made no snapshot yet"
    assert tables.commit(topic, at_once=False)
    assert table_of(nodes).scan().count() == 1, "the other's is younger than a minute"
    assert tables.commit(topic)
    assert_same(nodes, second)


def test_a_snapshot_of_table_and_tail_by_the_client(postgres: PostgresServer) -> None:
    with (
        tempfile.TemporaryDirectory() as objects,
        node_process(postgres.new_database(), Path(objects).as_uri()) as node,
        wings_client.connect(node.flight) as client,
    ):
        flight_client = node.client()
        create(flight_client)
        push(flight_client, "t", numbers(1, 2))
        act(flight_client, "maintain", topic="t")
        push(flight_client, "t", numbers(3))
        assert client.table("t").scan().to_arrow()["n"].to_pylist() == [1, 2]
        found = client.snapshot("t", columns=["n"]).read_all()["n"].to_pylist()
        assert set(found) == {1, 2, 3}
        assert len(found) == 3


@pytest.mark.parametrize("form", ["several hosts", "words"])
def test_the_catalog_is_found_by_any_address_of_libpq(postgres: PostgresServer, form: str) -> None:
    found = conninfo_to_dict(postgres.new_database())
    if form == "several hosts":
        host, port, user, password, name = (
            found[key] for key in ("host", "port", "user", "password", "dbname")
        )
        url = f"postgresql://{user}:{password}@{host}:1,{host}:{port}/{name}"
    else:
        url = make_conninfo("", **found)
    with tempfile.TemporaryDirectory() as objects:
        catalog = open_catalog(Path(objects).as_uri(), postgres=url)
        assert catalog is not None
        with closing(catalog):
            assert catalog.catalog.list_namespaces() == []
