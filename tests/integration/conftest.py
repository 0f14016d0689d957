"""Topics, nodes and certificates of tests of the wire."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow.flight as flight
import pytest
from fix_postgres import PostgresServer
from flight_calls import create_topic
from stateless_nodes import Nodes
from typer.testing import CliRunner

from wings_server import certificates


@pytest.fixture
def topic(client: flight.FlightClient, new_topic_id: str) -> str:
    """A topic of one column, `n`."""
    create_topic(client, new_topic_id, ["n: int64"])
    return new_topic_id


@pytest.fixture
def keyed(client: flight.FlightClient, new_topic_id: str) -> str:
    """A topic of two columns, `n` and the partition key `key`."""
    create_topic(client, new_topic_id, ["n: int64", "key: string"], "key")
    return new_topic_id


@pytest.fixture
def nodes(postgres: PostgresServer, tmp_path: Path) -> Iterator[Nodes]:
    """Nodes of one log without a data directory, started by the test."""
    with ExitStack() as stack:
        yield Nodes(postgres.new_database(), tmp_path / "objects", stack)


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with certificates of a server and of a client."""
    directory = tmp_path_factory.mktemp("certs")
    result = CliRunner().invoke(certificates.app, ["dev", "--out", str(directory)])
    assert result.exit_code == 0, result.output
    return directory
