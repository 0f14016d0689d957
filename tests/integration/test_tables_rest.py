"""Tables in a REST catalog: that of Nessie, whose runner is named by WINGS_TEST_NESSIE.

It is Maven's org.projectnessie.nessie:nessie-quarkus, classifier `runner`, tried with 0.99.0, and
takes Java 21 in JAVA_HOME. That version refuses pyiceberg's changes of a schema, which leave out a
key that the protocol no longer has.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.flight as flight
import pytest
from flight_calls import act, numbers, push

from wings_server import testing_s3
from wings_server.testing import server_process

pytest.importorskip("pyiceberg")
from pyiceberg.catalog import load_catalog

RUNNER = os.environ.get("WINGS_TEST_NESSIE", "")
pytestmark = pytest.mark.skipif(not RUNNER, reason="WINGS_TEST_NESSIE names no runner of Nessie")

TABLE: dict[str, Any] = {
    "tier_after_ms": 0,
    "table": "iceberg",
    "segment_bytes": 1,
    "table_partition_by": "day(__timestamp)",
}


@pytest.fixture
def catalog_url(s3_url: str, s3_endpoint: str) -> Iterator[str]:
    """A REST catalog whose warehouse is the place in the S3 server."""
    s3 = "nessie.catalog.service.s3.default-options"
    settings = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": "0",
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": "0",
        "nessie.version.store.type": "IN_MEMORY",
        "nessie.catalog.default-warehouse": "wings",
        "nessie.catalog.warehouses.wings.location": f"{s3_url}/",
        f"{s3}.endpoint": s3_endpoint,
        f"{s3}.region": "us-east-1",
        f"{s3}.path-style-access": "true",
        f"{s3}.request-signing-enabled": "false",
        f"{s3}.access-key": "urn:nessie-secret:quarkus:wings-test",
        "wings-test.name": testing_s3.ACCESS_KEY_ID,
        "wings-test.secret": testing_s3.SECRET_ACCESS_KEY,
    }
    java = Path(os.environ.get("JAVA_HOME", "/usr"), "bin", "java")
    with subprocess.Popen(
        [str(java), *(f"-D{key}={value}" for key, value in settings.items()), "-jar", RUNNER],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            said = (re.search(r"Listening on: (http://\S+?)\.?(?:\s|$)", s) for s in process.stdout)
            found = next(filter(None, said), None)
            assert found is not None, "Nessie did not start"
            yield f"{found[1]}/iceberg/"
        finally:
            process.kill()


def test_a_table_lies_in_a_rest_catalog(tmp_path: Path, s3_url: str, catalog_url: str) -> None:
    flags = ["--remote", s3_url, "--iceberg-catalog", catalog_url]
    with (
        server_process(tmp_path, flags=flags) as server,
        flight.FlightClient(server.flight) as client,
    ):
        fields = [{"name": "n", "type": "int64"}]
        act(client, "create-topic", topic="t", schema={"fields": fields}, config=TABLE)
        for number in range(3):
            push(client, "t", numbers(number))
            assert act(client, "maintain", topic="t")["failures"] == 0
        options = {"type": "rest", "uri": catalog_url, "warehouse": f"{s3_url}/"}
        catalog = load_catalog("wings", **options)
        table = catalog.load_table(("default", "t"))
        assert set(table.scan().to_arrow()["n"].to_pylist()) == {0, 1, 2}
        assert [str(field.transform) for field in table.spec().fields] == ["day"]
        act(client, "alter-topic", topic="t", config={**TABLE, "retention_bytes": 1})
        assert act(client, "maintain", topic="t")["failures"] == 0
        assert table.refresh().scan().to_arrow()["n"].to_pylist() == [2]
        act(client, "delete-topic", topic="t")
        assert act(client, "maintain")["failures"] == 0
        assert catalog.list_tables("default") == []
