"""Kafka's protocol: its listener, who may make a connection's requests, and what answers each.

The listener has an event loop in a thread of its own. A connection without a token makes requests
of three APIs: ApiVersions, and those of SASL:

    SaslHandshake: a mechanism ─▶ SaslAuthenticate: one message ─▶ the token's principal
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import NamedTuple

import structlog
from kio.schema.errors import ErrorCode

from wings_core.errors import NotFound, Unauthenticated, Unavailable, WingsError
from wings_core.limits import MIB
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName
from wings_core.security.principal import ANYONE, Principal
from wings_server.http.listener import BACKLOG, START_SECONDS_MAX, STOP_SECONDS_MAX, bind
from wings_server.kafka import (
    consumer_requests,
    group_admin,
    group_requests,
    topic_requests,
    transaction_requests,
)
from wings_server.kafka.fetch import Fetches, delete_records, leader_epochs, list_offsets
from wings_server.kafka.group_requests import keep_forever
from wings_server.kafka.messages import Api, Head, Request, Values, api_versions, head_of, parse
from wings_server.kafka.produce import Producer
from wings_server.kafka.service import Brokers, KafkaService
from wings_server.kafka.transaction_requests import expire_forever
from wings_server.kafka.wire import Connection, with_room
from wings_server.quotas import using
from wings_server.settings import Address
from wings_server.tls import Tls

_logger = structlog.get_logger("wings.kafka")

DRAIN_LOOK_SECONDS = 0.02

HANDSHAKE_SECONDS = 10.0

PARSED_BYTES_MAX = 16 * 1024
"""Largest request that is parsed on the event loop; longer ones are parsed by a reader."""

OTHER_BYTES_MAX = MIB
"""Largest request but those to produce."""

FIRST_BYTES_MAX = 8 * 1024
"""Largest request before a token is presented."""

FIRST_SECONDS_MAX = 10.0
"""Longest time until a token is presented."""

TOKEN_LOOK_SECONDS = 1.0
"""Interval at which the tokens of all connections are looked at, also of those without requests."""

QUOTA_SECONDS_MAX = 30.0
"""Longest time that a request waits at its principal's quotas; then its connection is closed."""

MECHANISMS = ("PLAIN", "OAUTHBEARER")

_BEARER = "auth=bearer "

_PLAIN_TOKEN = Head(Api.SASL_AUTHENTICATE, -1, 0)
"""Stands for the head of a message of SASL without one, as it follows the oldest handshake."""

_GROUPS: Mapping[Api, Callable[..., Awaitable[Values]]] = {
    Api.JOIN_GROUP: group_requests.join,
    Api.HEARTBEAT: group_requests.heartbeat,
    Api.LEAVE_GROUP: group_requests.leave,
    Api.SYNC_GROUP: group_requests.sync,
    Api.DESCRIBE_GROUPS: group_admin.describe_groups,
    Api.LIST_GROUPS: group_admin.list_groups,
    Api.CONSUMER_GROUP_HEARTBEAT: consumer_requests.heartbeat,
}
"""Requests about members, which belong to the event loop."""

_LOOKS: Mapping[Api, Callable[[KafkaService, Principal, Request], Values]] = {
    Api.LIST_OFFSETS: list_offsets,
    Api.OFFSET_FOR_LEADER_EPOCH: leader_epochs,
    Api.OFFSET_FETCH: group_requests.fetch,
    Api.FIND_COORDINATOR: topic_requests.find_coordinator,
    Api.DESCRIBE_CONFIGS: topic_requests.describe_configs,
    Api.DESCRIBE_CLUSTER: topic_requests.describe_cluster,
}

_CHANGES: Mapping[Api, Callable[[KafkaService, Principal, Request], Values]] = {
    Api.METADATA: topic_requests.metadata,
    Api.CREATE_TOPICS: topic_requests.create_topics,
    Api.DELETE_TOPICS: topic_requests.delete_topics,
    Api.DELETE_RECORDS: delete_records,
    Api.CREATE_PARTITIONS: topic_requests.create_partitions,
    Api.INCREMENTAL_ALTER_CONFIGS: topic_requests.alter_configs,
    Api.OFFSET_COMMIT: group_requests.commit,
    Api.OFFSET_DELETE: group_admin.delete_offsets,
    Api.DELETE_GROUPS: group_admin.delete_groups,
    Api.CONSUMER_GROUP_DESCRIBE: consumer_requests.describe,
    Api.INIT_PRODUCER_ID: transaction_requests.init_producer_id,
    Api.ADD_PARTITIONS_TO_TXN: transaction_requests.add_partitions,
    Api.ADD_OFFSETS_TO_TXN: transaction_requests.add_offsets,
    Api.END_TXN: transaction_requests.end,
    Api.TXN_OFFSET_COMMIT: transaction_requests.commit_offsets,
}
"""Requests that are answered on a thread: those that only look, and those that change anything."""


class KafkaListener:
    """A listener that serves from its construction until `stop`.

    Args:
        service: Answers requests; closed by the caller after `stop`.
        address: Address to listen on; port 0 picks a free one.
        advertised: Address for clients; None for that of the listener. Port 0 is the actual one.
        tls: The certificate; None for no TLS.

    Attributes:
        address: Address with the actual port.

    Raises:
        Unavailable: The address cannot be listened on.
    """

    def __init__(
        self,
        service: KafkaService,
        address: Address,
        advertised: Address | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._service = service
        self._tls = tls
        self._socket = bind(address)
        self.address = Address(address.host, self._socket.getsockname()[1])
        given = advertised or address
        own = Address(given.host, given.port or self.address.port)
        service.brokers = Brokers(service.nodes, own)
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server
        self._kept: tuple[asyncio.Task[None], ...]
        self._started = threading.Event()
        # A daemon, so that a hanging request cannot prevent the process's end.
        self._thread = threading.Thread(target=self._run, name="wings-kafka", daemon=True)
        self._thread.start()
        if not self._started.wait(START_SECONDS_MAX):
            raise Unavailable(f"Kafka on {self.address} did not start")

    def drain(self, seconds: float) -> None:
        """Accept no more connections, and wait until what was read is answered."""
        self._call(self._server.close)
        pause = threading.Event()  # Never set.
        looks = int(seconds / DRAIN_LOOK_SECONDS)
        while looks and not self._service.wire.is_idle:
            pause.wait(DRAIN_LOOK_SECONDS)
            looks -= 1

    def stop(self) -> None:
        """Close all connections; blocks up to `STOP_SECONDS_MAX`."""
        self._call(self._leave)
        self._thread.join(STOP_SECONDS_MAX)
        self._socket.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._server = self._loop.run_until_complete(self._serve())
            self._kept = (
                self._loop.create_task(_kept_up(expire_forever, self._service)),
                self._loop.create_task(_kept_up(keep_forever, self._service)),
            )
            self._look()
            self._started.set()
            self._loop.run_forever()
            self._loop.run_until_complete(self._end())
        finally:
            self._loop.close()

    async def _serve(self) -> asyncio.Server:
        context = None if self._tls is None else self._tls.context
        return await self._loop.create_server(
            self._connection,
            sock=self._socket,
            ssl=context,
            backlog=BACKLOG,
            ssl_handshake_timeout=None if context is None else HANDSHAKE_SECONDS,
        )

    def _connection(self) -> Connection:
        service = self._service
        return Connection(service.wire, lambda connection: Session(service, connection))

    def _look(self) -> None:
        """Let all connections look at their tokens; each second, at one time."""
        self._loop.call_later(TOKEN_LOOK_SECONDS, self._look)
        for connection in list(self._service.wire.open):
            connection.look()

    def _leave(self) -> None:
        for connection in list(self._service.wire.open):
            connection.leave()
        self._server.close()
        self._loop.call_soon(self._loop.stop)

    async def _end(self) -> None:
        """End what waits, such as a join for other members."""
        await asyncio.sleep(0)  # Lets the transports that were aborted close their sockets.
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _call(self, call: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # The loop has ended already.
            self._loop.call_soon_threadsafe(call)


async def _kept_up(
    forever: Callable[[KafkaService], Awaitable[None]], service: KafkaService
) -> None:
    """Begin what runs for ever anew after a fault; each begins with a pause."""
    while True:
        try:
            await forever(service)
        except Exception:
            _logger.exception("a loop of Kafka's listener failed by a fault of the server")


class Session:
    """Answers the requests of one connection; for the event loop.

    Args:
        service: The service for the default namespace.
        connection: The connection.
    """

    def __init__(self, service: KafkaService, connection: Connection) -> None:
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._close = connection.close
        self._client = connection.host
        self._principal: Principal | None = None
        self._producer: Producer
        self._fetches: Fetches | None = None
        self._mechanism: str | None = None
        """Mechanism of SASL of the message that comes next."""
        self._takes_plain_token = False
        """Whether that message has no head."""
        reason = "no token was presented in time"
        self._timer = self._loop.call_later(FIRST_SECONDS_MAX, self._close, reason)
        if service.gate.authenticator.is_open:
            self._admit(ANYONE, service)

    def frame_bytes_max(self, api_key: int | None) -> int:
        """Return the size of the largest frame at present; see `wire.Requests`."""
        if self._principal is None:
            return FIRST_BYTES_MAX
        is_small = api_key not in {None, Api.PRODUCE}
        return OTHER_BYTES_MAX if is_small else self._service.wire.frame_bytes_max

    def head_of(self, frame: memoryview) -> Head:
        """Return the beginning of a request; see `messages.head_of`."""
        return _PLAIN_TOKEN if self._takes_plain_token else head_of(frame)

    def produces(self, head: Head) -> bool:
        """Return whether a request is submitted by `submit`."""
        return head.api is Api.PRODUCE

    async def submit(
        self, head: Head, frame: memoryview, answer: Callable[[bytes | None], None]
    ) -> None:
        """Submit a request to produce; calls `answer` on the event loop."""
        call, throttled_ms = await self._admitted(len(frame))

        def answered(response: bytes | None) -> None:
            call.close()
            self._on_loop(answer, response)

        self._producer.submit(head, frame, throttled_ms, answered)

    async def answer(self, head: Head, frame: memoryview) -> bytes:
        """Return the response to another request; see `wire.Requests`."""
        if head.api is Api.API_VERSIONS:
            return api_versions(head)
        if head is _PLAIN_TOKEN:
            await self._authenticate(bytes(frame))
            return bytes(4)  # The length of a message without content.
        if head.api in {Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE}:
            request = parse(head, frame)
            return request.response(await self._answer_sasl(request))
        call, throttled_ms = await self._admitted()
        service = self._service

        async def parsed() -> Request:
            if len(frame) <= PARSED_BYTES_MAX:
                request = parse(head, frame)
            else:
                request = await service.read(lambda: parse(head, frame))
            return replace(request, throttled_ms=throttled_ms) if throttled_ms else request

        with call:
            if head.api is Api.FETCH and self._fetches is not None:
                return await self._fetches.answer(head, frame, parsed)
            return await self._answer(self._checked(), await parsed())

    async def _admitted(self, size: int = 0) -> tuple[ExitStack, int]:
        """Begin a call, which waits while its principal is at its quotas.

        Args:
            size: Bytes that are in flight until it ends.

        Returns:
            The call, which is to be closed, and for how many milliseconds it waited.

        Raises:
            ResourceExhausted: The quotas were exceeded for `QUOTA_SECONDS_MAX`.
            Unauthenticated: A token is to be presented, or presented anew.
            Unavailable: Metadata cannot be reached, so that the token may have been revoked.
        """
        began = time.monotonic()

        def begin() -> tuple[ExitStack, int]:
            waited = time.monotonic() - began
            with ExitStack() as call:
                usage = call.enter_context(using(self._checked()))
                if usage is not None and size:
                    usage.take(size)
                return call.pop_all(), int(1_000 * waited) if usage is not None else 0

        return await with_room(begin, QUOTA_SECONDS_MAX)

    def _checked(self) -> Principal:
        """Return the principal, which may have lost its token since.

        Raises:
            Unauthenticated: A token is to be presented, or presented anew.
            Unavailable: Metadata cannot be reached, so that the token may have been revoked.
        """
        found = self._principal
        is_missing = found is ANYONE and not self._service.gate.authenticator.is_open
        if found is None or is_missing:
            raise Unauthenticated(f"a token is needed, by SASL: {' or '.join(MECHANISMS)}")
        found.check()
        return found

    async def _answer_sasl(self, request: Request) -> Values:
        body = request.body
        if request.head.api is Api.SASL_HANDSHAKE:
            is_known = body.mechanism in MECHANISMS
            self._mechanism = body.mechanism if is_known else None
            self._takes_plain_token = is_known and request.head.version == 0
            error = ErrorCode.none if is_known else ErrorCode.unsupported_sasl_mechanism
            return {"error_code": error, "mechanisms": MECHANISMS}
        if self._mechanism is None:
            return {"error_code": ErrorCode.illegal_sasl_state}
        try:
            await self._authenticate(body.auth_bytes)
        except Unauthenticated as error:
            self._service.failed(error)
            self._principal = None  # No further request is answered.
            self._loop.call_soon(self._close, error.message)  # Once the refusal is sent.
            refused = ErrorCode.sasl_authentication_failed
            return {"error_code": refused, "error_message": error.message}
        return {}

    async def _authenticate(self, message: bytes) -> None:
        """Admit the principal of the token in a message.

        Raises:
            Unauthenticated: The token is not valid, or may see nothing of its namespace, or the
                connection is another principal's or in another namespace.
            Unavailable: Metadata cannot be reached.
        """
        mechanism, self._mechanism, self._takes_plain_token = self._mechanism, None, False
        assert mechanism is not None
        service = self._service
        secret, namespace = _presented(mechanism, message)

        def found() -> Principal:
            principal = service.gate.principal(secret, "kafka", self._client)
            try:
                if principal.may_see_namespace(namespace):
                    service.log.admin.get_namespace(namespace)
                    return principal
            except NotFound:
                pass
            raise Unauthenticated(f"{principal.name} sees nothing of {namespace}")

        principal, earlier = await service.read(found), self._principal
        if earlier is not None and earlier is not ANYONE:
            before = earlier.name, service.topics.namespace
            if before != (principal.name, namespace):
                raise Unauthenticated(f"the connection is that of {earlier.name}")
        self._admit(principal, service.within(namespace))

    def _admit(self, principal: Principal, service: KafkaService) -> None:
        self._timer.cancel()
        self._principal, self._service = principal, service
        self._producer = Producer(service, principal, self._failed)
        if self._fetches is not None:
            self._fetches.close()
        self._fetches = Fetches(service, principal)

    def look(self) -> None:
        """Close the connection if its token is revoked or has expired."""
        if self._fetches is None:
            return  # None was presented yet.
        try:
            self._checked()
        except WingsError as error:
            self._close(error.message)
        else:
            self._fetches.forget()

    async def _answer(self, principal: Principal, request: Request) -> bytes:
        service, api = self._service, request.head.api
        if api in _GROUPS:
            return request.response(await _GROUPS[api](service, principal, request))
        if api in _LOOKS:
            look = _LOOKS[api]
            return await service.read(lambda: request.response(look(service, principal, request)))
        change = _CHANGES[api]
        return await service.write(lambda: request.response(change(service, principal, request)))

    def failed(self, error: Exception) -> None:
        """Count and log a fault of the server."""
        self._service.failed(error)

    def gone(self) -> None:
        """End a wait, as the client has gone."""
        self._timer.cancel()
        self._principal = None  # Nothing that waits at a quota begins.
        if self._fetches is not None:
            self._fetches.close()

    def _failed(self, reason: str) -> None:
        """Close the connection; from any thread."""
        self._on_loop(self._close, reason)

    def _on_loop(self, call: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # The loop is closed, and the connection with it.
            self._loop.call_soon_threadsafe(call, *args)


class _Presented(NamedTuple):
    """The content of a client's message."""

    secret: str
    namespace: NamespaceName


def _presented(mechanism: str, message: bytes) -> _Presented:
    """Return the token and the namespace of a message.

    Args:
        mechanism: `PLAIN` (RFC 4616), where the password is the token; or `OAUTHBEARER` (RFC 7628).
        message: The client's first message. A user, of OAUTHBEARER an authorization identity, of
            the form `TENANT/NAMESPACE` picks a namespace; any other user means the default one.

    Raises:
        Unauthenticated: The message is not one of the mechanism.
    """
    try:
        read = _plain if mechanism == "PLAIN" else _oauth
        user, secret = read(message.decode())
        tenant, slash, namespace = user.partition("/")
        name = DEFAULT_NAMESPACE
        if slash:
            name = NamespaceName.parse(f"tenants/{tenant}/namespaces/{namespace}")
    except (ValueError, WingsError):
        raise Unauthenticated(f"a damaged message of {mechanism}, or a bad namespace") from None
    return _Presented(secret, name)


def _plain(message: str) -> tuple[str, str]:
    identity, user, secret = message.split("\0")
    if identity not in {"", user}:
        raise ValueError(identity)
    return user, secret


def _oauth(message: str) -> tuple[str, str]:
    head, *pairs = message.split("\1")
    _, identity, _ = head.split(",")
    (secret,) = [pair for pair in pairs if pair.lower().startswith(_BEARER)]
    return identity.removeprefix("a="), secret[len(_BEARER) :]
