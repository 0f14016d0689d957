"""Peers: credentials of nodes for metadata services and replicas."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, repr=False)
class PeerAccess:
    """Credentials of a node for services of its cluster; its `repr` hides them.

    Attributes:
        token: The token of the cluster, or None.
        tls_ca: Certificate authorities of the services, in PEM; None for no TLS.
        tls_cert: This node's certificate chain, in PEM, for mutual TLS.
        tls_key: Private key of the certificate.
    """

    token: str | None = None
    tls_ca: bytes | None = None
    tls_cert: bytes | None = None
    tls_key: bytes | None = None
