"""The gRPC server of the metadata service and of replicas of holds, on an event loop of its own.

Calls that wait are coroutines and hold no thread; the others run on a few threads. grpcio's
asynchronous server has one poller for a process, so all services of a process share one loop.

Interceptors check the token of the cluster, and make spans of traced calls.
"""

import asyncio
import functools
import hmac
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, TypeVar, cast

import grpc
import grpc.aio
import structlog
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer  # pyright: ignore[reportMissingTypeStubs]

from wings_core import tracing
from wings_core.errors import Internal, Unauthenticated, Unavailable, WingsError
from wings_core.metadata.interfaces import Metadata
from wings_core.metadata.remote.channel import (
    ERROR_KEY,
    MESSAGE_BYTES_MAX,
    error_body,
    error_message,
    status_of,
)
from wings_core.protocol.v1 import offset_registry_pb2
from wings_core.security.tokens import digest_of
from wings_core.share.replica.replica import Replica
from wings_server.holds.handlers import Sessions, hold_service
from wings_server.http.listener import bind
from wings_server.metadata.handlers import services
from wings_server.metadata.locations import Locations
from wings_server.metadata.requests import check_request, snake_case
from wings_server.resources import RPC_SHARE, connections_max
from wings_server.settings import Address
from wings_server.tls import PeerSecurity

CALLS_RUNNING_MAX = 16_384
"""Calls at once, those that wait included; further ones are refused with RESOURCE_EXHAUSTED."""

CONNECTIONS_MAX = 4_096
"""Connections at once, at most half of the files that the process may open; further ones end."""

CALLS_WAITING_MAX = 8_192
"""Calls of `OffsetLocation` that wait at once."""

THREADS_MAX = 16
"""Calls that use the store at once: it has one writer and a few readers."""

PING_SECONDS_MIN = 5
"""Clients may ask so often whether the connection is still there."""

STOP_SECONDS_MAX = 10.0
"""How long calls that were cancelled at the end of a drain may take to end."""

_logger = structlog.get_logger("wings.metadata")

T = TypeVar("T")

Services = Sequence[tuple[ServiceDescriptor, object]]
"""Services, and what handles their methods: a method of the same name in snake case for each."""

_HEALTH = "/grpc.health.v1.Health/"
"""Open, as probes of health are over HTTP."""

_REFUSAL = Unauthenticated("the token of the cluster is needed: see WINGS_CLUSTER_TOKEN")

_access_logger = structlog.get_logger("wings.access")


def _interceptors(security: PeerSecurity) -> list[grpc.aio.ServerInterceptor]:
    found: list[grpc.aio.ServerInterceptor] = []
    if security.token is not None:
        found.append(_ClusterToken(security.token))
    if tracing.is_on():
        found.append(_CallSpans())
    return found


class GrpcService:
    """Serves over gRPC, with the standard health service: `start`, then `stop`, once each.

    Attributes:
        address: Where it is served, with the real port, from `start` on.

    Args:
        served: Services and their handlers.
        address: Where to listen.
        security: How it is kept to the nodes of its cluster.
    """

    address: Address

    def __init__(
        self, served: Services, address: Address, security: PeerSecurity | None = None
    ) -> None:
        self._security = security or PeerSecurity()
        self._served = served
        self._listen = address
        self._executor = ThreadPoolExecutor(THREADS_MAX, "wings-grpc")
        self._locations: Locations | None = None
        self._sessions: list[Sessions] = []
        self._server: grpc.aio.Server | None = None
        self._health: HealthServicer | None = None

    def start(self) -> None:
        """Listen; returns when calls are taken.

        Raises:
            Unavailable: The port is in use, or cannot be used.
        """
        # gRPC does not tell why a start fails, so the address is tried beforehand.
        bind(self._listen).close()
        _run(self._start())

    def stop(self, drain_seconds: float) -> None:
        """Refuse new calls, end those that wait with UNAVAILABLE, and wait for the others.

        Args:
            drain_seconds: Longest wait for calls under way.
        """
        _run(self._stop(drain_seconds))
        self._executor.shutdown()

    async def _start(self) -> None:
        security = self._security
        server = grpc.aio.server(
            interceptors=_interceptors(security),
            options=[
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
                ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
                ("grpc.http2.min_ping_interval_without_data_ms", PING_SECONDS_MIN * 1_000),
                ("grpc.so_reuseport", 0),
                (
                    "grpc.max_allowed_incoming_connections",
                    connections_max(CONNECTIONS_MAX, RPC_SHARE),
                ),
            ],
            maximum_concurrent_rpcs=CALLS_RUNNING_MAX,
        )
        locations = self._open_locations()
        health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(health, server)
        names = [""]
        for descriptor, handlers in self._served:
            server.add_generic_rpc_handlers((self._handler(descriptor, handlers, locations),))
            names.append(descriptor.full_name)
        try:
            if security.tls is None:
                port = server.add_insecure_port(str(self._listen))
            else:
                credentials = security.tls.grpc_credentials()
                port = server.add_secure_port(str(self._listen), credentials)
        except RuntimeError as error:
            raise Unavailable(f"cannot serve gRPC on {self._listen}: {error}") from error
        await server.start()
        for name in names:
            await health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self._locations, self._server, self._health = locations, server, health
        self.address = Address(self._listen.host, port)

    async def _stop(self, drain_seconds: float) -> None:
        assert self._server is not None
        assert self._health is not None
        await self._health.enter_graceful_shutdown()
        if self._locations is not None:
            self._locations.stop()
        for sessions in self._sessions:
            sessions.stop()
        await self._server.stop(drain_seconds)

    def _open_locations(self) -> Locations | None:
        """Return what waits for `OffsetLocation`, of a service that has it."""
        return None

    def _handler(
        self, descriptor: ServiceDescriptor, handlers: object, locations: Locations | None
    ) -> grpc.GenericRpcHandler:
        """Return gRPC's table of a service's methods."""
        methods: dict[str, Any] = {}
        for method in descriptor.methods:
            request = GetMessageClass(method.input_type)
            if method.client_streaming:
                sessions: Sessions = getattr(handlers, snake_case(method.name))
                self._sessions.append(sessions)
                methods[method.name] = grpc.stream_stream_rpc_method_handler(
                    cast("Any", functools.partial(_session, sessions))
                )
                continue
            if method.server_streaming:
                assert locations is not None
                methods[method.name] = grpc.unary_stream_rpc_method_handler(
                    cast("Any", functools.partial(_changes, locations)),
                    request_deserializer=request.FromString,
                    response_serializer=_serialize,
                )
                continue
            if method.name == "OffsetLocation":
                assert locations is not None
                behaviour = functools.partial(_long_poll, locations)
            else:
                function = getattr(handlers, snake_case(method.name))
                behaviour = functools.partial(self._in_thread, method.full_name, function)
            methods[method.name] = grpc.unary_unary_rpc_method_handler(
                cast("Any", behaviour),
                request_deserializer=request.FromString,
                response_serializer=_serialize,
            )
        return grpc.method_handlers_generic_handler(descriptor.full_name, methods)

    async def _in_thread(
        self,
        call: str,
        function: Callable[[Message], Message],
        request: Message,
        context: "grpc.aio.ServicerContext[Message, Message]",
    ) -> Message:
        async def answer() -> Message:
            loop = asyncio.get_running_loop()
            # The caller's deadline may pass while the call waits for a thread: it must not take
            # effect long after.
            deadline = _time_remaining(context)
            until = None if deadline is None else loop.time() + deadline

            def run() -> Message:
                if until is not None and loop.time() > until:
                    raise Unavailable("the call's deadline passed before it was begun")
                check_request(request)
                return function(request)

            return await loop.run_in_executor(self._executor, run)

        return await _answered(call, answer(), context)


class MetadataService(GrpcService):
    """Serves metadata.

    Args:
        metadata: Metadata served; closed by the caller, after `stop`.
        store_id: Id of this metadata.
        address: Where to listen.
        waiting_max: How many long polls may wait at once.
        holds: A replica of share groups' holds to serve as well; closed by the caller too.
        security: How it is kept to the nodes of its cluster.
        refusal: Tells why nodes refuse pushes for now; None: they take them.
    """

    def __init__(
        self,
        metadata: Metadata,
        store_id: str,
        address: Address,
        waiting_max: int = CALLS_WAITING_MAX,
        holds: Replica | None = None,
        security: PeerSecurity | None = None,
        refusal: Callable[[], str | None] = lambda: None,
    ) -> None:
        served = services(metadata, store_id, refusal)
        if holds is not None:
            served.append(hold_service(holds))
        super().__init__(served, address, security)
        self._metadata = metadata
        self._waiting_max = waiting_max

    @property
    def waiting(self) -> int:
        """How many long polls wait now."""
        return 0 if self._locations is None else self._locations.waiting

    @property
    def waits_begun(self) -> int:
        """How many long polls have begun to wait so far."""
        return 0 if self._locations is None else self._locations.begun

    def _open_locations(self) -> Locations:
        return Locations(self._metadata.registry, self._executor, self._waiting_max)


async def _session(
    sessions: Sessions, messages: object, context: "grpc.aio.ServicerContext[bytes, bytes]"
) -> None:
    await _answered("Session", sessions.serve(messages, context), context)


async def _long_poll(
    locations: Locations,
    request: offset_registry_pb2.OffsetLocationRequest,
    context: "grpc.aio.ServicerContext[Message, Message]",
) -> Message:
    async def answer() -> Message:
        check_request(request)
        return await locations.offset_location(request, _time_remaining(context))

    return await _answered("OffsetLocation", answer(), context)


async def _changes(
    locations: Locations,
    request: offset_registry_pb2.WatchTopicRequest,
    context: "grpc.aio.ServicerContext[Message, Message]",
) -> AsyncIterator[Message]:
    try:
        async for change in locations.watch_topic(request):
            yield change
    except WingsError as error:
        await _abort(context, error)


def _time_remaining(context: "grpc.aio.ServicerContext[Message, Message]") -> float | None:
    return cast("float | None", context.time_remaining())  # The stubs do not know of None.


async def _answered(
    call: str, answer: Awaitable[T], context: "grpc.aio.ServicerContext[Any, Any]"
) -> T:
    """Await an answer; errors leave as a status with the error's JSON beside it."""
    try:
        return await answer
    except WingsError as error:
        if isinstance(error, Internal):
            _logger.error("call failed", call=call, **error.to_json())
        failure = error
    except Exception as error:
        _logger.exception("call failed by a fault of the service", call=call)
        failure = Internal(f"internal error in {call}: {type(error).__name__}")
    await _abort(context, failure)
    raise AssertionError("abort raises")


async def _abort(context: "grpc.aio.ServicerContext[Any, Any]", failure: WingsError) -> None:
    await context.abort(
        status_of(failure), error_message(failure), ((ERROR_KEY, error_body(failure)),)
    )


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


_loop_lock = threading.Lock()


_loop: asyncio.AbstractEventLoop | None = None


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the loop of this process's services, and return what it does."""
    global _loop
    with _loop_lock:
        if _loop is None:
            loop = asyncio.new_event_loop()
            threading.Thread(
                target=loop.run_forever, name="wings-metadata-loop", daemon=True
            ).start()
            _loop = loop  # Once there is a thread that runs it.
        loop = _loop
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result()


class _ClusterToken(grpc.aio.ServerInterceptor):
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
        _access_logger.warning("refused", principal=None, action=method, reason=_REFUSAL.message)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(_refuse_stream)
        return grpc.unary_unary_rpc_method_handler(_refuse)


async def _abort_refused(context: Any) -> NoReturn:
    metadata = ((ERROR_KEY, error_body(_REFUSAL)),)
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, error_message(_REFUSAL), metadata)
    raise AssertionError("abort raises")


async def _refuse(_: Any, context: Any) -> bytes:
    await _abort_refused(context)


async def _refuse_stream(_: Any, context: Any) -> AsyncIterator[bytes]:
    await _abort_refused(context)
    yield b""


class _CallSpans(grpc.aio.ServerInterceptor):
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
