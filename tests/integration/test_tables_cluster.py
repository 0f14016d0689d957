"""Topics that are Iceberg tables, of nodes with one metadata service and one directory."""

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import act, numbers, push, ticket_of
from waiting import until

import wings_client
from wings_server.testing import metadata_process, server_process

pytest.importorskip("pyiceberg")
from pyiceberg.catalog import load_catalog

TABLE = {"tier_after_ms": 0, "table": "iceberg", "segment_bytes": 1}
FIELDS = [{"name": "n", "type": "int64"}]


def table_rows(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of the table, found by the catalog as another program does."""
    options = {"type": "sql", "uri": f"sqlite:///{directory / 'iceberg.sqlite'}"}
    with closing(load_catalog("wings", **options)) as catalog:
        found = catalog.load_table(("default", "t")).scan().to_arrow()
        return found.sort_by("__offset").to_pylist()


def assert_same(directory: Path, client: flight.FlightClient) -> None:
    """All rows of Wings are in the table, once, with their offsets and times."""
    wings = client.do_get(ticket_of(kind="scan", topic="t", system_columns=True)).read_all()
    rows = table_rows(directory)
    assert rows == [{name: row[name] for name in rows[0]} for row in wings.to_pylist()]


def test_a_topic_of_two_nodes_becomes_a_table_that_outlives_one_of_them(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    with ExitStack() as stack:
        service = stack.enter_context(metadata_process(tmp_path / "metadata"))
        flags = ("--metadata", service.address)
        nodes = [stack.enter_context(server_process(shared, flags=flags)) for _ in range(2)]
        first, second = (node.client() for node in nodes)
        act(first, "create-topic", topic="t", schema={"fields": FIELDS})
        push(first, "t", numbers(0, 1))
        push(second, "t", numbers(2))
        act(second, "alter-topic", topic="t", config=TABLE)
        assert act(first, "maintain", topic="t")["failures"] == 0
        assert_same(shared, second)
        change = {"add": [{"name": "more", "type": "string"}]}
        act(second, "alter-topic", topic="t", schema=change)
        push(first, "t", pa.record_batch({"n": [3], "more": ["new"]}))
        assert act(second, "maintain", topic="t")["failures"] == 0
        assert_same(shared, first)
        told = act(first, "describe-topic", topic="t")["table"]
        assert (told["identifier"], told["rows"], told["lag_rows"]) == ("default.t", 4, 0)
        nodes[0].kill()
        push(second, "t", pa.record_batch({"n": [4], "more": ["last"]}))
        with wings_client.connect(nodes[1].flight) as client:
            assert client.table("t").scan().to_arrow().num_rows == 4
            found = client.snapshot("t", columns=["n"]).read_all().sort_by("n")
        assert found["n"].to_pylist() == [0, 1, 2, 3, 4]
        act(second, "alter-topic", topic="t", config={**TABLE, "retention_bytes": 1})

        def is_maintained() -> bool:
            assert act(second, "maintain", topic="t")["failures"] == 0
            return [row["n"] for row in table_rows(shared)] == [4]

        until(is_maintained)  # Once the lease on small pushes of the killed node has ended.
        act(second, "delete-topic", topic="t")
        act(second, "maintain")
        with closing(
            load_catalog("wings", type="sql", uri=f"sqlite:///{shared / 'iceberg.sqlite'}")
        ) as catalog:
            assert catalog.list_tables("default") == []
