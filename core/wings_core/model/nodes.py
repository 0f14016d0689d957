"""Nodes, and their addresses for clients."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """A Flight node of a deployment, and its addresses for clients."""

    id: str
    """Unique id of one run of the process."""
    address: str
    """Flight address `HOST:PORT`, with an IPv6 host in brackets."""
    http: str = ""
    """HTTP URL; empty if an earlier version registered the node."""
    since: int = 0
    """Start time in microseconds since the epoch by its clock; 0 from an earlier version."""

    @property
    def flight(self) -> str:
        """Flight URL; uses TLS if HTTP does, as a server configures both alike."""
        return f"{'grpc+tls' if self.http.startswith('https:') else 'grpc'}://{self.address}"
