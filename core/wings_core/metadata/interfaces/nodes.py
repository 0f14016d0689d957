"""The registered Flight nodes."""

from typing import Protocol

from wings_core.model import Node

NODES_MAX = 1_000
"""The most Flight nodes at once."""

NODE_LEASE_SECONDS_MAX = 3_600.0
"""The longest lease of a node, in seconds."""


class Nodes(Protocol):
    """The Flight nodes that are registered, each by a lease that it renews while it runs."""

    def renew(self, node: Node, seconds: float) -> list[Node]:
        """Register a node, or renew its lease.

        Args:
            node: Its id and address; an earlier node of the same address is deregistered.
            seconds: How long the lease lasts from now on, by the store's clock, to
                `NODE_LEASE_SECONDS_MAX`.

        Returns:
            The nodes whose leases have not expired, this one among them, by address; at most
            `NODES_MAX`.

        Raises:
            InvalidArgument: An id or address that is empty, too long or not text, or a lease out of
                range.
            ResourceExhausted: There are `NODES_MAX` nodes already.
        """
        ...

    def leave(self, node_id: str) -> None:
        """Deregister a node, if it is registered.

        Raises:
            InvalidArgument: An id that is not text.
        """
        ...

    def live(self) -> list[Node]:
        """Return the nodes whose leases have not expired, by address."""
        ...
