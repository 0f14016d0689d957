"""The Flight nodes that are there."""

from typing import Protocol

from wings_core.model import Node

NODES_MAX = 1_000
"""The most Flight nodes at once."""

NODE_LEASE_SECONDS_MAX = 3_600.0
"""The longest that a node counts as live without a word of it."""


class Nodes(Protocol):
    """The Flight nodes that are there: each by a lease that it renews while it lives."""

    def renew(self, node: Node, seconds: float) -> list[Node]:
        """Register a node, or renew its lease.

        Args:
            node: Itself; of an address, the node that registered last counts.
            seconds: How long the lease lasts from now on, by the store's clock, to
                `NODE_LEASE_SECONDS_MAX`.

        Returns:
            The nodes whose leases have not run out, this one among them, by address; at most
            `NODES_MAX`.

        Raises:
            InvalidArgument: An id or address that cannot be, or a lease out of range.
            ResourceExhausted: There are `NODES_MAX` nodes already.
        """
        ...

    def leave(self, node_id: str) -> None:
        """Take a node out, if it is there.

        Raises:
            InvalidArgument: An id that cannot be.
        """
        ...

    def live(self) -> list[Node]:
        """Return the nodes as `renew` does."""
        ...
