"""A client that knows one address finds the other processes of the log, and uses them."""

from pathlib import Path

import pytest
from pydantic import SecretStr
from server_processes import until
from stateless_nodes import Nodes

import wings_client
from wings_client import _transport
from wings_core.model import Node
from wings_server.testing import running_server

LEASE_SECONDS = 10.0
"""So that a busy machine renews it in time."""

TOKEN = "an operator of this log, and of no other"


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a node take its time to answer: the machine may be busy."""
    for name in ("PROOF_SECONDS_MAX", "DISCOVERY_SECONDS_MAX"):
        monkeypatch.setattr(_transport, name, 30.0)


def test_clients_of_one_address_spread_over_all_and_outlive_that_one(nodes: Nodes) -> None:
    one, other = (nodes.start(node_lease_seconds=LEASE_SECONDS) for _ in range(2))
    used: set[str] = set()
    with wings_client.connect(one.flight) as client:
        client.create_topic("t", {"n": "int64"})

    def are_used() -> bool:
        with wings_client.connect(one.flight) as client, client.producer("t") as producer:
            producer.send({"n": [len(used)]}).result()
            used.add(client.endpoint)
        return used == {one.flight, other.flight}

    until(are_used)
    with wings_client.connect(one.flight) as client:
        client.push("t", {"n": [-1]})
        one.stop()
        client.push("t", {"n": [-2]})
        assert -2 in client.scan("t").read_all()["n"].to_pylist()


def test_a_client_may_keep_to_the_address_that_it_was_given(nodes: Nodes) -> None:
    one, _ = nodes.start(), nodes.start()
    with wings_client.connect(one.flight) as client:
        client.create_topic("t", {"n": "int64"})
    for _ in range(8):
        with wings_client.connect(one.flight, discover=False) as client:
            client.push("t", {"n": [1]})
            assert client.endpoint == one.flight


def test_a_node_that_cannot_be_reached_by_its_address_is_not_used(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        nodes = server.server.log.nodes
        server.server.log.alone = None  # As if others had joined.
        here = server.flight.removeprefix("grpc://")
        nodes.renew(Node("here", here, server.http), 60.0)
        nodes.renew(Node("gone", "127.0.0.1:1", "http://127.0.0.1:2"), 60.0)
        for _ in range(4):
            with wings_client.connect(server.flight) as client:
                client.create_topic("t", {"n": "int64"}, if_not_exists=True)
                client.push("t", {"n": [1]})
                assert client.endpoint == server.flight


def test_with_a_token_a_scan_finds_them(nodes: Nodes) -> None:
    settings = {"root_token": SecretStr(TOKEN), "node_lease_seconds": LEASE_SECONDS}
    one, other = (nodes.start(**settings) for _ in range(2))
    used: set[str] = set()
    with wings_client.connect(one.flight, token=TOKEN) as client:
        client.create_topic("t", {"n": "int64"})
        client.push("t", {"n": [1]})
        assert client.endpoint == one.flight

    def are_used() -> bool:
        with wings_client.connect(one.flight, token=TOKEN) as client:
            assert client.scan("t").read_all().num_rows == 1
            used.add(client.endpoint)
        return used == {one.flight, other.flight}

    until(are_used)
