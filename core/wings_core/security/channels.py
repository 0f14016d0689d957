"""Channels of gRPC to peers, with mutual authentication, and traces."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import grpc

from wings_core import tracing
from wings_core.security.peers import PeerAccess

Options = list[tuple[str, Any]]


def open_channel(access: PeerAccess, target: str, options: Options) -> grpc.Channel:
    """Return a channel to a service, which connects on first use."""
    if access.tls_ca is None:
        channel = grpc.insecure_channel(target, options)
    else:
        credentials = grpc.ssl_channel_credentials(access.tls_ca, access.tls_key, access.tls_cert)
        channel = grpc.secure_channel(target, credentials, options)
    if tracing.is_on():
        channel = grpc.intercept_channel(channel, _Tracing())
    if access.token is None:
        return channel
    return grpc.intercept_channel(channel, _Presenting(access.token))


@dataclass(frozen=True)
class _CallDetails(grpc.ClientCallDetails):
    """Details of a call with additional metadata."""

    method: Any
    timeout: Any
    metadata: Any
    credentials: Any
    wait_for_ready: Any
    compression: Any

    @classmethod
    def adding(cls, details: Any, metadata: Iterable[tuple[str, str]]) -> "_CallDetails":
        """Return the details of a call with metadata added."""
        return cls(
            details.method,
            details.timeout,
            (*(details.metadata or ()), *metadata),
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )


class _Presenting(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Interceptor that sends the token with every call."""

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

    def intercept_stream_stream(
        self, continuation: Callable[..., Any], client_call_details: Any, request_iterator: Any
    ) -> Any:
        return continuation(self._with_token(client_call_details), request_iterator)

    def _with_token(self, details: Any) -> _CallDetails:
        return _CallDetails.adding(details, self._metadata)


class _Tracing(grpc.UnaryUnaryClientInterceptor):
    """Interceptor that makes a call within a trace a span, and propagates the trace."""

    def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        if tracing.present() is None:
            return continuation(client_call_details, request)
        span = tracing.begin(client_call_details.method.removeprefix("/"))
        details = _CallDetails.adding(client_call_details, tracing.headers(span).items())
        call = continuation(details, request)

        def end(_: object) -> None:
            span.end()

        call.add_done_callback(end)
        return call
