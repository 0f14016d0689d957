"""The rules of registered Flight nodes, the same in every store."""

from wings_core.errors import InvalidArgument, ResourceExhausted
from wings_core.metadata.interfaces import NODE_LEASE_SECONDS_MAX, NODES_MAX
from wings_core.metadata.judge import check_id
from wings_core.model import Node


def check_node(node: Node, seconds: float) -> None:
    """Check a node to be registered.

    Raises:
        InvalidArgument: Its id or address is empty, too long or not text, or the lease is out of
            range.
    """
    check_id("a node's id", node.id)
    check_id("a node's address", node.address)
    check_id("a node's HTTP address", node.http)
    if not node.id or not node.address:
        raise InvalidArgument("a node has an id and an address")
    if not 0 < seconds <= NODE_LEASE_SECONDS_MAX:
        raise InvalidArgument(
            f"a node's lease of {seconds:g} s is out of range: at most "
            f"{NODE_LEASE_SECONDS_MAX:g} s are allowed"
        )


def check_room(nodes: int) -> None:
    """Check the number of registered nodes.

    Raises:
        ResourceExhausted: There are more than `NODES_MAX`.
    """
    if nodes > NODES_MAX:
        raise ResourceExhausted(f"there are {NODES_MAX} nodes already")
