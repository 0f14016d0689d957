"""A node among others: listed, heard of, forgotten; and which address it may be listed by."""

import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from waiting import until

from wings_core.errors import InvalidArgument, Unavailable
from wings_core.metadata.interfaces import Nodes
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.model import Node
from wings_server.nodes import Membership
from wings_server.process import Server
from wings_server.settings import Address, Settings

LONG = 60.0


class Interrupted(Nodes):
    """A store of nodes that cannot be reached for a while."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.there = True
        self.error: Exception = Unavailable("not there")
        self.asked = threading.Semaphore(0)

    def renew(self, node: Node, seconds: float) -> list[Node]:
        try:
            if not self.there:
                raise self.error
            return self._nodes.renew(node, seconds)
        finally:
            self.asked.release()

    def leave(self, node_id: str) -> None:
        self._nodes.leave(node_id)

    def live(self) -> list[Node]:
        return self._nodes.live()

    def silent(self) -> list[Node]:
        return self._nodes.silent()


def node(host: str) -> Node:
    return Node(uuid.uuid4().hex, f"{host}:1")


def test_nodes_hear_of_each_other_and_outlast_a_store_that_is_gone(tmp_path: Path) -> None:
    with SqliteMetadata(tmp_path / "metadata.db") as metadata:
        nodes = Interrupted(metadata.nodes)
        one, other = Membership(nodes, 60.0), Membership(metadata.nodes, 0.05)
        one.join(node("b"))
        assert one.addresses() == ("b:1",)
        nodes.there = False
        late = Membership(nodes, 0.05)
        late.join(node("a"))
        assert nodes.asked.acquire(timeout=LONG)
        assert late.addresses() == ("a:1",)
        nodes.there = True
        until(lambda: set(late.addresses()) == {"a:1", "b:1"})
        other.join(node("c"))
        until(lambda: list(late.addresses()) == ["a:1", "b:1", "c:1"])
        until(lambda: list(other.addresses()) == ["c:1", "a:1", "b:1"])
        late.leave()
        other.leave()
        assert [node.address for node in metadata.nodes.live()] == ["b:1"]
        one.leave()


def test_a_node_whose_store_stands_still_knows_that_its_lease_ended(tmp_path: Path) -> None:
    answers = threading.Event()
    with SqliteMetadata(tmp_path / "metadata.db") as metadata:

        class Still(Interrupted):
            def renew(self, node: Node, seconds: float) -> list[Node]:
                assert answers.wait(LONG)
                return super().renew(node, seconds)

        answers.set()
        membership = Membership(Still(metadata.nodes), 0.5)
        membership.join(node("a"))
        answers.clear()
        until(lambda: membership.silence is not None)
        assert membership.silence == "metadata does not answer"
        answers.set()
        until(lambda: membership.silence is None)
        membership.leave()


def test_two_nodes_at_one_address_are_warned_of_and_listed_once(tmp_path: Path) -> None:
    with SqliteMetadata(tmp_path / "metadata.db") as metadata:
        one, other = Membership(metadata.nodes, 60.0), Membership(metadata.nodes, 60.0)
        with capture_logs() as logged:
            one.join(node("a"))
        assert logged == []
        with capture_logs() as logged:
            other.join(node("a"))
        assert ["address" in each and each["log_level"] for each in logged] == ["warning"]
        assert [node.address for node in metadata.nodes.live()] == ["a:1"]
        one.leave()
        assert [node.address for node in metadata.nodes.live()] == ["a:1"]
        other.leave()


def test_a_fault_that_nobody_foresaw_ends_no_heartbeat_and_a_lapsed_lease_is_taken_again(
    tmp_path: Path,
) -> None:
    with SqliteMetadata(tmp_path / "metadata.db") as metadata:
        nodes = Interrupted(metadata.nodes)
        nodes.error = RuntimeError("a fault of a library")
        nodes.there = False
        membership = Membership(nodes, 0.05)
        membership.join(node("a"))  # Even at the first renewal.
        for _ in range(3):
            assert nodes.asked.acquire(timeout=LONG)
        assert metadata.nodes.live() == []
        nodes.there = True
        until(lambda: [each.address for each in metadata.nodes.live()] == ["a:1"])
        nodes.there = False
        until(lambda: metadata.nodes.live() == [])
        nodes.there = True
        until(lambda: [each.address for each in metadata.nodes.live()] == ["a:1"])
        membership.leave()
        assert metadata.nodes.live() == []


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            {"flight": Address("0.0.0.0", 0), "metadata": Address("h", 1)},
            "for clients with --advertise",
        ),
        ({"advertise": Address("::", 1), "metadata": Address("h", 1)}, "clients cannot connect to"),
        ({"advertise": Address("h", 1)}, "give --metadata"),
    ],
)
def test_an_address_that_no_client_could_use_is_refused_before_anything_is_opened(
    tmp_path: Path, given: dict[str, Any], reason: str
) -> None:
    server = Server(Settings(data_dir=tmp_path / "data", **given))
    with pytest.raises(InvalidArgument, match=reason):
        server.start()
    assert not (tmp_path / "data").exists()
