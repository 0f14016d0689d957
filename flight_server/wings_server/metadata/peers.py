"""Interceptors of a gRPC service: the token of the cluster, and spans of traced calls."""

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio
import structlog

from wings_core import tracing
from wings_core.errors import Unauthenticated
from wings_core.metadata.remote.channel import ERROR_KEY, error_body, error_message
from wings_core.security.tokens import digest_of

_HEALTH = "/grpc.health.v1.Health/"
"""Open, as probes of health are over HTTP."""

_REFUSAL = Unauthenticated("the token of the cluster is needed: see WINGS_CLUSTER_TOKEN")

_logger = structlog.get_logger("wings.access")


class ClusterToken(grpc.aio.ServerInterceptor):
    """Refuses calls that do not present the token of the cluster, health apart."""

    def __init__(self, token: str) -> None:
        self._digest = digest_of(f"Bearer {token}")

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the call's handler, or one that refuses it."""
        handler = await continuation(handler_call_details)
        method: Any = handler_call_details.method
        presented: list[Any] = [
            value
            for key, value in handler_call_details.invocation_metadata or ()
            if key == "authorization"
        ]
        is_known = len(presented) == 1 and hmac.compare_digest(
            digest_of(str(presented[0])), self._digest
        )
        if handler is None or is_known or method.startswith(_HEALTH):
            return handler
        _logger.warning("refused", principal=None, action=method, reason=_REFUSAL.message)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(_refuse_stream)
        return grpc.unary_unary_rpc_method_handler(_refuse)


async def _abort(context: Any) -> NoReturn:
    metadata = ((ERROR_KEY, error_body(_REFUSAL)),)
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, error_message(_REFUSAL), metadata)
    raise AssertionError("abort raises")


async def _refuse(_: Any, context: Any) -> bytes:
    await _abort(context)


async def _refuse_stream(_: Any, context: Any) -> AsyncIterator[bytes]:
    await _abort(context)
    yield b""


class CallSpans(grpc.aio.ServerInterceptor):
    """Makes spans of the calls that nodes make for a traced call of theirs."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the call's handler, within a span where the call names its trace."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.response_streaming or handler.request_streaming:
            return handler
        received = {
            str(key): str(value) for key, value in handler_call_details.invocation_metadata or ()
        }
        if "traceparent" not in received:
            return handler
        name: Any = handler_call_details.method

        async def traced(request: Any, context: Any) -> Any:
            with tracing.server_span(name.removeprefix("/"), received):
                return await handler.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(
            traced, handler.request_deserializer, handler.response_serializer
        )
