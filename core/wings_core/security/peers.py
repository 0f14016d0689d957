"""Peers: how nodes, metadata services and replicas of holds know each other over gRPC."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

Options = list[tuple[str, Any]]


@dataclass(frozen=True, slots=True, repr=False)
class PeerAccess:
    """What a node presents to a service of its cluster; its `repr` shows nothing of it.

    Attributes:
        token: The token of the cluster; None: none.
        tls_ca: The authorities in PEM that services are checked against; None: without TLS.
        tls_cert: This node's certificate chain in PEM, for mutual TLS.
        tls_key: Its private key.
    """

    token: str | None = None
    tls_ca: bytes | None = None
    tls_cert: bytes | None = None
    tls_key: bytes | None = None

    def channel(self, target: str, options: Options) -> grpc.Channel:
        """Return a channel to a service, which connects when it is first used."""
        if self.tls_ca is None:
            channel = grpc.insecure_channel(target, options)
        else:
            credentials = grpc.ssl_channel_credentials(self.tls_ca, self.tls_key, self.tls_cert)
            channel = grpc.secure_channel(target, credentials, options)
        if self.token is None:
            return channel
        return grpc.intercept_channel(channel, _Presenting(self.token))


@dataclass(frozen=True)
class _CallDetails(grpc.ClientCallDetails):
    """The details of a call, with the token among its metadata."""

    method: Any
    timeout: Any
    metadata: Any
    credentials: Any
    wait_for_ready: Any
    compression: Any


class _Presenting(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Sends the token with every call."""

    def __init__(self, token: str) -> None:
        self._metadata = (("authorization", f"Bearer {token}"),)

    def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        return continuation(self._with_token(client_call_details), request)

    def intercept_unary_stream(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        return continuation(self._with_token(client_call_details), request)

    def _with_token(self, details: Any) -> _CallDetails:
        return _CallDetails(
            details.method,
            details.timeout,
            (*(details.metadata or ()), *self._metadata),
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )
