"""How every store of `Nodes` keeps leases."""

import pytest
from fix_metadata import SECOND, MetadataUnderTest
from tables import each

from wings_core.errors import InvalidArgument, ResourceExhausted
from wings_core.metadata.interfaces import NODE_LEASE_SECONDS_MAX, NODES_MAX, SILENT_SECONDS
from wings_core.model import Node

ONE = Node("1", "10.0.0.1:7777", "http://10.0.0.1:7780", 5, "10.0.0.1:9092")
OTHER = Node("2", "10.0.0.2:7777")


def test_nodes_are_live_by_address_until_their_leases_run_out(metadata: MetadataUnderTest) -> None:
    nodes = metadata.opened.nodes
    assert nodes.live() == []
    assert nodes.renew(OTHER, 10) == [OTHER]
    metadata.clock.time += 9 * SECOND
    assert nodes.renew(ONE, 10) == [ONE, OTHER]
    assert nodes.live() == [ONE, OTHER]
    metadata.clock.time += 1 * SECOND
    assert nodes.live() == [ONE]
    assert nodes.renew(OTHER, 0.5) == [ONE, OTHER]
    metadata.clock.time += SECOND
    assert nodes.renew(ONE, 10) == [ONE]


def test_nodes_survive_a_restart_of_the_store(metadata: MetadataUnderTest) -> None:
    metadata.opened.nodes.renew(ONE, 10)
    metadata.reopen()
    assert metadata.opened.nodes.live() == [ONE]


def test_a_node_that_leaves_is_gone_at_once(metadata: MetadataUnderTest) -> None:
    nodes = metadata.opened.nodes
    nodes.renew(ONE, 10)
    nodes.renew(OTHER, 10)
    for _ in range(2):
        nodes.leave(ONE.id)
        assert nodes.live() == [OTHER]


def test_a_node_started_again_takes_the_address_of_the_one_before_it(
    metadata: MetadataUnderTest,
) -> None:
    nodes = metadata.opened.nodes
    nodes.renew(ONE, 10)
    again = Node("again", ONE.address)
    assert nodes.renew(again, 10) == [again]
    nodes.leave(ONE.id)
    moved = Node("again", OTHER.address)
    assert nodes.renew(moved, 10) == [moved]


def test_a_node_that_stopped_without_leaving_is_remembered_for_a_day(
    metadata: MetadataUnderTest,
) -> None:
    nodes = metadata.opened.nodes
    nodes.renew(ONE, 10)
    nodes.renew(OTHER, 60)
    assert nodes.silent() == []
    metadata.clock.time += 10 * SECOND
    assert nodes.silent() == [ONE]
    assert nodes.renew(OTHER, 60) == [OTHER]
    assert nodes.silent() == [ONE]
    nodes.renew(Node("again", ONE.address), 10)
    assert nodes.silent() == []
    nodes.leave("again")
    assert nodes.silent() == []
    metadata.clock.time += 60 * SECOND
    assert nodes.silent() == [OTHER]
    metadata.clock.time += int(SILENT_SECONDS) * SECOND
    assert nodes.silent() == []


def test_a_lost_node_is_listed_for_the_longest_lease_where_the_clock_was_set_back(
    metadata: MetadataUnderTest,
) -> None:
    nodes, longest = metadata.opened.nodes, int(NODE_LEASE_SECONDS_MAX)
    nodes.renew(ONE, 60)
    nodes.renew(OTHER, longest)
    metadata.clock.time -= 24 * 3_600 * SECOND
    assert nodes.renew(OTHER, longest) == [ONE, OTHER]
    metadata.clock.time += (longest - 1) * SECOND
    assert nodes.renew(OTHER, longest) == [ONE, OTHER]
    metadata.clock.time += SECOND
    assert nodes.renew(OTHER, longest) == [OTHER]
    assert nodes.silent() == [ONE]


def test_a_renewal_keeps_what_commits_remember_right(metadata: MetadataUnderTest) -> None:
    topic = metadata.create_topic()
    assert metadata.push(topic).start_offset == 0
    metadata.opened.nodes.renew(ONE, 10)
    assert metadata.push(topic).start_offset == 1


@each(
    ("node", "seconds"),
    [
        (Node("", "a:1"), 1),
        (Node("1", ""), 1),
        (Node("1", "x" * 300), 1),
        (Node("1", "a:1"), 0),
        (Node("1", "a:1"), NODE_LEASE_SECONDS_MAX + 1),
        (Node("1", "a:1"), float("nan")),
    ],
)
def test_a_node_that_cannot_be_is_refused(
    metadata: MetadataUnderTest, node: Node, seconds: float
) -> None:
    with pytest.raises(InvalidArgument, match="node"):
        metadata.opened.nodes.renew(node, seconds)


def test_the_number_of_nodes_is_bounded(
    metadata: MetadataUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert NODES_MAX == 1_000
    monkeypatch.setattr("wings_core.metadata.store.metadata.NODES_MAX", 1)
    metadata.opened.nodes.renew(ONE, 10)
    with pytest.raises(ResourceExhausted, match="1 nodes"):
        metadata.opened.nodes.renew(OTHER, 10)
    assert metadata.opened.nodes.live() == [ONE]
