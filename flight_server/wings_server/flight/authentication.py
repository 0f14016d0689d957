"""Authentication of Flight calls, and reservation of memory for the streams they send.

The header `authorization` of each call, or a basic handshake, identifies the caller:

    authorization: Bearer TOKEN        with each call
    Handshake, Basic USER:TOKEN        answered with that header, as drivers of ADBC and JDBC expect

The middleware runs on the call's thread before its handler; an error it raises is the response.
pyarrow also reads the first message of a DoPut or DoExchange before the handler, so room for it is
taken here. There is one middleware: each costs a call 20 to 60 microseconds of CPU (measured).
"""

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, cast

import pyarrow.flight as flight

from wings_core import tracing
from wings_core.contracts.put import TOPIC_HEADER
from wings_core.memory import MemoryBudget, ReadRoom
from wings_core.security.principal import Principal
from wings_core.security.tokens import is_presentable
from wings_server.flight.boundary import flight_errors
from wings_server.gate import Gate

MIDDLEWARE = "wings"

_HEADER = "authorization"

_SERVICE = "arrow.flight.protocol.FlightService"

_SENDS_STREAM = (flight.FlightMethod.DO_PUT, flight.FlightMethod.DO_EXCHANGE)

_NAMES = {
    method: (method.name.lower(), method.name.title().replace("_", ""))
    for method in flight.FlightMethod
}
"""Name of each method in the log of rejections, by its name in pyarrow."""

SCHEMA_HEADER = "schema"
"""Header with the default schema of tables named without one."""


class Caller(flight.ServerMiddleware):
    """Principal of one call, and room for the stream it sends."""

    def __init__(
        self,
        principal: Principal,
        answered: str | None,
        schema_name: str | None = None,
        topic_uuid: str | None = None,
        call: str = "",
        received: Mapping[str, str] | None = None,
        room: ReadRoom | None = None,
        secret: str | None = None,
    ) -> None:
        self.principal = principal
        self.secret = secret
        """The secret that the call presents, if any."""
        self.room = room
        """Room for the stream, or None without one."""
        self.call = call
        """Name of Flight's method, such as `DoGet`."""
        self.received = received
        """Headers with the call's trace; None if traces are off."""
        self.schema_name = schema_name
        """Default schema of the connection, for SQL."""
        self.topic_uuid = topic_uuid
        """UUID of the topic that a DoPut must write to; None for any topic of the name."""
        self._answered = answered

    def sending_headers(self) -> dict[str, str]:  # pyright: ignore[reportIncompatibleMethodOverride] - the stubs want lists
        """Answer a handshake with the header that later calls must send."""
        return {} if self._answered is None else {_HEADER: f"Bearer {self._answered}"}

    def call_completed(self, exception: BaseException | None) -> None:
        """Release the room."""
        del exception
        if self.room is not None:
            self.room.close()


class Authentication(flight.ServerMiddlewareFactory):
    """Factory of the middleware, which finds the principal of each call.

    Args:
        gate: Gate that checks tokens.
        memory: Memory budget of streams.
        failed: Function called with the code of each rejection.
    """

    def __init__(self, gate: Gate, memory: MemoryBudget, failed: Callable[[str], None]) -> None:
        self._gate = gate
        self._memory = memory
        self._failed = failed

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Sequence[Any]]) -> Caller:  # pyright: ignore[reportIncompatibleMethodOverride] - the stubs want a dict
        """Return the call's principal; waits for room if the call sends a stream.

        Raises:
            FlightUnauthenticatedError: The call has no valid token.
            FlightUnavailableError: The room is exhausted; `RESOURCE_EXHAUSTED`.
        """
        method = info.method
        called, call = _NAMES[method]
        secret = secret_of(headers.get(_HEADER, ()))
        named, meant = headers.get(SCHEMA_HEADER), headers.get(TOPIC_HEADER)
        answered = secret if method is flight.FlightMethod.HANDSHAKE else None
        received = _trace_headers(headers) if tracing.is_on() else None
        room = None
        with flight_errors("authentication", self._failed):
            principal = self._gate.principal(secret, called)
            if method in _SENDS_STREAM:
                room = self._memory.room()
                room.begin()
        schema_name = str(named[0]) if named else None
        topic_uuid = str(meant[0]) if meant else None
        return Caller(principal, answered, schema_name, topic_uuid, call, received, room, secret)


class OpenHandshake(flight.ServerAuthHandler):
    """A handler that accepts handshakes, which Flight rejects without one; see `Authentication`."""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        """Do nothing: the middleware has checked the call's header."""

    def is_valid(self, token: str) -> str:  # pyright: ignore[reportIncompatibleMethodOverride] - the stubs say bool
        """Return no identity: the middleware has found the principal."""
        del token
        return ""


def span_of(context: flight.ServerCallContext) -> AbstractContextManager[Any]:
    """Return the span of a call, for its handler to enter; does nothing while traces are off."""
    caller = caller_of(context)
    if caller.received is None:
        return nullcontext()
    about = {"rpc.system": "grpc", "rpc.service": _SERVICE, "rpc.method": caller.call}
    return tracing.server_span(f"{_SERVICE}/{caller.call}", caller.received, about)


def _trace_headers(headers: Mapping[str, Sequence[Any]]) -> dict[str, str]:
    """Return the first value of each header that may name a trace, without credentials."""
    return {
        name: value.decode("latin-1") if isinstance(value, bytes) else str(value)
        for name, values in headers.items()
        if name != _HEADER
        for value in values[:1]
    }


def caller_of(context: flight.ServerCallContext) -> Caller:
    """Return what the middleware found of a call: its principal, and its headers."""
    return cast("Caller", context.get_middleware(MIDDLEWARE))


def room_of(context: flight.ServerCallContext) -> ReadRoom:
    """Return the room for a call's stream."""
    room = caller_of(context).room
    assert room is not None, "the call sends no stream"
    return room


def secret_of(headers: Sequence[Any]) -> str | None:
    """Return the token in the values of the header `authorization`.

    This is the token of `Bearer TOKEN`, or the password of `Basic`, whose user is ignored. None if
    the header is absent or malformed, or if the password cannot be sent in a header, as the
    handshake's response must do.
    """
    if not headers:
        return None
    value = headers[0]
    text: str = value.decode("latin-1") if isinstance(value, bytes) else value
    scheme, _, credentials = text.strip().partition(" ")
    credentials = credentials.strip()
    secret = ""
    if scheme.lower() == "bearer":
        secret = credentials
    elif scheme.lower() == "basic":
        credentials = credentials.rstrip("=")
        padding = "=" * (-len(credentials) % 4)  # Which drivers written in Go leave out.
        with suppress(binascii.Error, ValueError):
            secret = base64.b64decode(credentials + padding, validate=True).decode()
            secret = secret.partition(":")[2]
    return secret if is_presentable(secret) else None
