"""Tables in a REST catalog: Iceberg's own, which `make iceberg-rest` brings from Maven Central."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from breakable_proxy import BreakableProxy, breakable
from catalog_servers import iceberg_rest, server_with_catalog
from fix_postgres import PostgresServer
from flight_calls import act, numbers, push, ticket_of

import wings_client
from wings_server.testing import node_process, server_process

pytest.importorskip("pyiceberg")
from pyiceberg.catalog import load_catalog

import wings_core.tables.catalog as opening
from wings_core.storage.objects.open import s3_properties
from wings_core.tables.catalog import Catalog, commit_of

TABLE: dict[str, Any] = {
    "tier_after_ms": 0,
    "table": "iceberg",
    "segment_bytes": 1,
    "table_partition_by": "day(__timestamp)",
}
FIELDS = [{"name": "n", "type": "int32"}]


@pytest.fixture
def catalog_url(tmp_path: Path, s3_url: str, s3_endpoint: str) -> Iterator[str]:
    """A REST catalog whose warehouse is the place in the S3 server."""
    with iceberg_rest(tmp_path / "catalog.sqlite", s3_url, s3_endpoint) as url:
        yield url


def create(client: flight.FlightClient) -> None:
    act(client, "create-topic", topic="t", schema={"fields": FIELDS}, config=TABLE)


def row(n: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array([n], pa.int32())})


def catalog_of(url: str) -> Any:
    """Open the catalog as another program does."""
    options: dict[str, Any] = {"type": "rest", "uri": url, **s3_properties()}
    return load_catalog("wings", **options)


def table_of(url: str) -> Any:
    return catalog_of(url).load_table(("default", "t"))


def assert_same(url: str, client: flight.FlightClient) -> None:
    """All rows of Wings are in the table, once, with their offsets and times."""
    wings = client.do_get(ticket_of(kind="scan", topic="t", system_columns=True)).read_all()
    table: Any = table_of(url).scan().to_arrow().sort_by("__offset")
    names = table.column_names
    assert table.to_pylist() == [{name: row[name] for name in names} for row in wings.to_pylist()]


def test_a_table_lies_in_a_rest_catalog(tmp_path: Path, s3_url: str, catalog_url: str) -> None:
    flags = ["--remote", s3_url, "--iceberg-catalog", catalog_url]
    with (
        server_process(tmp_path / "data", flags=flags) as server,
        flight.FlightClient(server.flight) as client,
    ):
        create(client)
        for number in range(3):
            push(client, "t", row(number))
            assert act(client, "maintain", topic="t")["failures"] == 0
            assert_same(catalog_url, client)
        assert [str(field.transform) for field in table_of(catalog_url).spec().fields] == ["day"]
        change = {
            "widen": [{"name": "n", "type": "int64"}],
            "add": [{"name": "more", "type": "struct<x: int8, tags: list<item: string>>"}],
        }
        act(client, "alter-topic", topic="t", schema=change)
        push(client, "t", numbers(1 << 40).append_column("more", more()))
        assert act(client, "maintain", topic="t")["failures"] == 0
        assert_same(catalog_url, client)
        act(client, "alter-topic", topic="t", config={**TABLE, "retention_bytes": 1})
        assert act(client, "maintain", topic="t")["failures"] == 0
        assert_same(catalog_url, client)
        assert table_of(catalog_url).scan().to_arrow()["n"].to_pylist() == [1 << 40]
        act(client, "delete-topic", topic="t")
        assert act(client, "maintain")["failures"] == 0
        catalog = catalog_of(catalog_url)
        assert catalog.list_tables("default") == []


def more() -> Any:
    kind = pa.struct([("x", pa.int8()), ("tags", pa.list_(pa.string()))])
    return pa.array([{"x": 1, "tags": ["a", None]}], kind)


def test_nodes_without_a_directory_have_tables_in_s3_and_a_rest_catalog(
    postgres: PostgresServer, s3_url: str, catalog_url: str
) -> None:
    url = postgres.new_database()
    with ExitStack() as stack:
        flags = ["--iceberg-catalog", catalog_url]
        nodes = [stack.enter_context(node_process(url, s3_url, flags=flags)) for _ in range(2)]
        first, second = (node.client() for node in nodes)
        create(first)
        for number in range(2):
            push(first, "t", row(2 * number))
            push(second, "t", row(2 * number + 1))
            assert act((first, second)[number], "maintain", topic="t")["failures"] == 0
            assert_same(catalog_url, second)
        nodes[0].kill()
        push(second, "t", row(4))
        with wings_client.connect(nodes[1].flight) as client:
            found = client.snapshot("t", columns=["n"]).read_all().sort_by("n")
            assert found["n"].to_pylist() == [0, 1, 2, 3, 4]
            catalog = catalog_of(catalog_url)
            assert client.table("t", catalog=catalog).scan().to_arrow().num_rows == 4
        assert act(second, "maintain", topic="t")["failures"] == 0
        assert_same(catalog_url, second)


def test_a_commit_whose_answer_was_lost_is_made_once(
    tmp_path: Path, s3_url: str, catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Catalog.commit

    def lose_the_answer(proxy: BreakableProxy) -> Any:
        def committed(*args: Any) -> None:
            proxy.stall_answers()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(opening, "ANSWER_SECONDS_MAX", 10.0)
                try:
                    commit(*args)
                finally:
                    proxy.cut()
                    proxy.go_on()

        return committed

    target = catalog_url.replace("http://", "grpc://")
    with breakable(target) as proxy:
        through = proxy.endpoint.replace("grpc://", "http://")
        with (
            server_with_catalog(tmp_path / "data", through, remote=s3_url) as server,
            server.client() as client,
        ):
            create(client)
            for number in range(2):
                push(client, "t", row(number))
                with monkeypatch.context() as patch:
                    patch.setattr(Catalog, "commit", lose_the_answer(proxy))
                    assert act(client, "maintain", topic="t")["failures"] == 1
                assert_same(catalog_url, client)
                assert commit_of(table_of(catalog_url)) == number + 1, "it was made"
                assert act(client, "maintain", topic="t")["failures"] == 0
                assert_same(catalog_url, client)
                assert len(table_of(catalog_url).history()) == number + 1
