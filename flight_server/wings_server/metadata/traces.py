"""Traces of gRPC calls: one that names a trace is a span of it; any other is none."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from wings_core import tracing


class Traces(grpc.aio.ServerInterceptor):
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
