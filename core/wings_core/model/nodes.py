"""Nodes, and where their clients reach them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """A Flight node of several, and where its clients reach it."""

    id: str
    """Unique for the process, from its start to its end."""
    address: str
    """Of Flight: `HOST:PORT`, an IPv6 host in brackets."""
    http: str = ""
    """URL of HTTP; empty where an earlier version registered it."""
    since: int = 0
    """When it started, in microseconds since the epoch by its clock; 0 as above."""

    @property
    def flight(self) -> str:
        """URL of Flight: with TLS where HTTP has it, as both listeners of a server do."""
        return f"{'grpc+tls' if self.http.startswith('https:') else 'grpc'}://{self.address}"
