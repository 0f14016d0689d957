"""Flight nodes at a metadata service: each method is a call."""

from collections.abc import Iterable

from wings_core.metadata.interfaces import Nodes
from wings_core.metadata.nodes import check_node
from wings_core.metadata.remote.channel import ServiceChannel
from wings_core.model import Node
from wings_core.protocol import messages
from wings_core.protocol.v1 import admin_pb2 as pb
from wings_core.protocol.v1.stubs import NodeServiceStub

RENEW_SECONDS_MAX = 5.0
"""How long the renewal of a lease may take: one that comes late is of no use."""


class RemoteNodes(Nodes):
    """See `Nodes`.

    Args:
        channel: To the service.
    """

    def __init__(self, channel: ServiceChannel) -> None:
        self._channel = channel
        self._stub = NodeServiceStub(channel.channel)
        self.refusal: str | None = None
        """Why the service wants no pushes, as of the last renewal; None: it takes them."""

    def renew(self, node: Node, seconds: float) -> list[Node]:
        """Register a node, or renew its lease; see `Nodes.renew`."""
        check_node(node, seconds)
        request = pb.RenewNodeRequest(node=messages.NODE.fields(node), seconds=seconds)
        answer = self._channel.call(self._stub.RenewNode, request, RENEW_SECONDS_MAX)
        self.refusal = f"at the metadata service: {answer.refusal}" if answer.refusal else None
        return _nodes(answer.nodes)

    def leave(self, node_id: str) -> None:
        """Take a node out; see `Nodes.leave`."""
        request = pb.DeleteNodeRequest(id=messages.text("the node's id", node_id))
        self._channel.call(self._stub.DeleteNode, request, RENEW_SECONDS_MAX)

    def live(self) -> list[Node]:
        """Return the nodes that are there; see `Nodes.live`."""
        return _nodes(self._channel.look(self._stub.ListNodes, pb.ListNodesRequest()).nodes)


def _nodes(found: Iterable[pb.Node]) -> list[Node]:
    return [messages.NODE.decode(node) for node in found]
