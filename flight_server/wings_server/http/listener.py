"""The HTTP listener: uvicorn in a thread of its own, on a socket bound beforehand.

The head of a request is bounded in size and time. A client that reads nothing of a response for a
minute is disconnected. Bodies are bounded where they are read: see `wire`.

Sockets are counted, not requests, so that TLS handshakes and unused connections count too. At the
bound, the longest idle connection is closed for a new one; the new one is only rejected if all are
busy.
"""

import asyncio
import json
import socket
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from http import HTTPStatus
from typing import Any, cast

import h11
import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from wings_core.errors import InvalidArgument, ResourceExhausted, Unavailable
from wings_server.resources import HTTP_SHARE, OPEN_MAX, connections_max
from wings_server.settings import Address
from wings_server.tls import Tls

TICK_SECONDS = 1.0
"""Interval of updating the date header."""

BACKLOG = 2048
"""Most connections that the kernel queues until they are accepted."""

KEEP_ALIVE_SECONDS = 75
"""Idle timeout of a connection, longer than that of most clients, so that they close it."""

REQUESTS_SECONDS_MAX = 2
"""Longest wait of a stop for requests in progress before it ends them."""

START_SECONDS_MAX = 30
"""Longest wait of a start for the event loop, for very busy machines."""

STOP_SECONDS_MAX = 5
"""Longest wait of a stop for the thread, whose work has a lower bound."""

HEAD_BYTES_MAX = 64 * 1024
"""Longest head of a request; a pipelined one may be longer, up to the size of a read."""

HEAD_SECONDS = 10.0
"""Timeout of a head, and of a TLS handshake."""

UNREAD_SECONDS_MAX = 60.0
"""Time after which a client that reads nothing of a response is disconnected."""

_ERROR = (
    "HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
    "connection: close\r\n\r\n%s"
)

REFUSED_KEPT_MAX = 64
"""Most rejected connections kept open briefly: closing one at once could reset its response."""

REFUSED_SECONDS = 1.0
"""Time for which a rejected connection stays open."""

AT_ONCE_MAX = 64
"""Most connections rejected or displaced in a row before the event loop gets to close them."""

LOG_SECONDS = 60.0
"""Least interval of log entries about displaced or rejected connections."""

_logger = structlog.get_logger("wings.http")


def bind(address: Address) -> socket.socket:
    """Return a TCP socket bound to an address; port 0 picks a free one.

    Raises:
        Unavailable: The port is in use, or the host is not one of this machine.
    """
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise Unavailable(f"cannot listen on {address}: {error.strerror or error}") from None
    family, kind, protocol, _, where = found[0]
    bound = socket.socket(family, kind, protocol)
    try:
        # So that a restart need not wait for the TIME_WAIT of old connections.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(where)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise Unavailable(f"cannot listen on {address}: {error.strerror or error}") from None
    return bound


class HttpListener:
    """A listener that serves an application from its construction until `stop`.

    Args:
        app: The application.
        address: Address to listen on; port 0 picks a free one.
        tls: The certificate; None for no TLS.
        connections: Most connections, reduced if the process may open few files.
        listening: A socket to accept from, possibly shared with other processes; None for a new
            one.

    Attributes:
        address: Address with the actual port.

    Raises:
        Unavailable: The address cannot be listened on.
    """

    def __init__(
        self,
        app: ASGIApp,
        address: Address,
        tls: Tls | None = None,
        connections: int = OPEN_MAX,
        listening: socket.socket | None = None,
    ) -> None:
        self._socket = _ListeningSocket(
            listening or bind(address),
            connections_max(connections, HTTP_SHARE),
            is_plain=tls is None,
        )
        self.address = Address(address.host, self._socket.getsockname()[1])
        config = uvicorn.Config(
            app,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX - 1,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=REQUESTS_SECONDS_MAX,
        )
        config.load()
        config.ssl = None if tls is None else tls.context
        self._server = _Server(config, self._socket)
        # A daemon, so that a hanging request cannot prevent the process's end.
        self._thread = threading.Thread(target=self._run, name="wings-http", daemon=True)
        self._thread.start()
        self._server.start_ended.wait(START_SECONDS_MAX)
        if not self._server.started:
            self._socket.close()
            raise Unavailable(f"HTTP on {self.address} did not start")

    def stop(self) -> None:
        """Stop listening and end requests in progress; blocks up to `STOP_SECONDS_MAX`."""
        self._server.leave()
        self._thread.join(STOP_SECONDS_MAX)
        self._socket.close()

    def _run(self) -> None:
        # uvicorn only touches signal handlers on the main thread, which this is not.
        try:
            asyncio.run(self._server.serve())
        finally:
            self._server.start_ended.set()


class _ListeningSocket(socket.socket):
    """A listening socket whose accepted connections are bounded.

    Only for the event loop's thread.

    Args:
        listening: The bound and listening socket, of which it takes ownership.
        connections_max: Most open connections.
        is_plain: Whether rejected connections get a response, which is impossible with TLS.
    """

    def __init__(self, listening: socket.socket, connections_max: int, *, is_plain: bool) -> None:
        super().__init__(fileno=listening.detach())
        self._connections_max = connections_max
        body = json.dumps(
            {
                "message": f"{connections_max} connections are busy already",
                "code": ResourceExhausted.code,
            }
        ).encode()
        head = (
            "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self._refusal = head.encode() + body if is_plain else b""
        self._open: dict[int, _HttpConnection] = {}
        """Open connections by descriptor, displaced ones included until they are closed."""
        self._spare: dict[int, _HttpConnection] = {}
        """Idle connections by descriptor, the longest idle first."""
        self._refused: deque[tuple[float, socket.socket]] = deque()
        self._turned_away = 0
        self._logged_at = -LOG_SECONDS

    def accept(self) -> "tuple[_HttpConnection, Any]":
        """Accept a connection; at the bound, displaces an idle one, or rejects it.

        Raises:
            BlockingIOError: There is no connection to accept.
        """
        for _ in range(AT_ONCE_MAX):
            if len(self._open) >= self._connections_max + AT_ONCE_MAX:
                break
            accepted, address = super().accept()
            if len(self._open) < self._connections_max or self._displace():
                connection = _HttpConnection(self, accepted)
                descriptor = connection.fileno()
                self._open[descriptor] = self._spare[descriptor] = connection
                return connection, address
            self._refuse(accepted)
        raise BlockingIOError

    @property
    def open(self) -> int:
        """Number of open connections."""
        return len(self._open)

    def begin(self, descriptor: int) -> None:
        """Mark a connection as busy, so that it is not displaced."""
        self._spare.pop(descriptor, None)

    def end(self, descriptor: int) -> None:
        """Mark a connection as idle."""
        connection = self._open.get(descriptor)
        if connection is not None:
            self._spare[descriptor] = connection

    def look(self) -> None:
        """Close connections rejected a moment ago, and log; called about every second."""
        now = time.monotonic()
        while self._refused and self._refused[0][0] <= now - REFUSED_SECONDS:
            self._refused.popleft()[1].close()
        if self._turned_away and now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            _logger.warning(
                "more connections than may be open",
                turned_away=self._turned_away,
                connections_max=self._connections_max,
            )
            self._turned_away = 0

    def close(self) -> None:
        """Close the listening socket and rejected connections; accepted ones stay open."""
        while self._refused:
            self._refused.popleft()[1].close()
        super().close()

    def closed(self, descriptor: int) -> None:
        """Record that a connection closed; called by the connection."""
        self._open.pop(descriptor, None)
        self._spare.pop(descriptor, None)

    def _displace(self) -> bool:
        """Close the longest idle connection; returns whether there was one."""
        if not self._spare:
            return False
        self._turned_away += 1
        connection = self._spare.pop(next(iter(self._spare)))
        # The transport, or the TLS handshake, sees the end of the stream, and closes it.
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        return True

    def _refuse(self, connection: socket.socket) -> None:
        self._turned_away += 1
        with suppress(OSError):
            connection.setblocking(False)
            if self._refusal:
                connection.send(self._refusal)
            connection.shutdown(socket.SHUT_WR)
        self._refused.append((time.monotonic(), connection))
        if len(self._refused) > REFUSED_KEPT_MAX:
            self._refused.popleft()[1].close()


class _Server(uvicorn.Server):
    """A uvicorn server with an event for the end of its start, and an event to stop it.

    uvicorn's own main loop polls its stop flag ten times a second.
    """

    def __init__(self, config: uvicorn.Config, connections: _ListeningSocket) -> None:
        super().__init__(config)
        self.start_ended = threading.Event()
        self._connections = connections
        self._leaving = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def leave(self) -> None:
        """Stop the server. Thread-safe."""
        self.should_exit = True
        if self._loop is not None:
            with suppress(RuntimeError):  # The loop has ended already.
                self._loop.call_soon_threadsafe(self._leaving.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        del sockets  # uvicorn's own start does not bound TLS handshakes.
        self._loop = asyncio.get_running_loop()
        tls = self.config.ssl
        serving = await self._loop.create_server(
            lambda: Protocol(self.config, self.server_state, {}, self._connections),
            sock=self._connections,
            ssl=tls,
            backlog=BACKLOG,
            ssl_handshake_timeout=None if tls is None else HEAD_SECONDS,
        )
        self.servers = [serving]
        self.started = True
        self.start_ended.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # Also updates the date header.
            self._connections.look()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), TICK_SECONDS)


class Protocol(H11Protocol):
    """One connection.

    Args:
        config: Configuration of the server.
        server_state: State of the server.
        app_state: State passed to each request.
        connections: Notified of requests in progress.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        connections: _ListeningSocket,
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._connections = connections
        self._descriptor = -1
        self._refused = False
        self._head_timer: asyncio.TimerHandle | None = None
        """Timer from the beginning of the connection, or of a head, until the head is complete."""
        self._unread_timer: asyncio.TimerHandle | None = None
        """Timer while a response waits to be read."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - uvicorn's has this type
        """Start the timer of the first request's head."""
        super().connection_made(transport)
        self._descriptor = transport.get_extra_info("socket").fileno()
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        self._head_ended()
        self._unread_ended()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process received data, rejecting a head that is too long."""
        if self._refused:
            return
        while data and self.conn.their_state is h11.IDLE:
            room = HEAD_BYTES_MAX - len(self.conn.trailing_data[0])
            super().data_received(data[:room])
            data = data[room:]
            if self._refused or self.transport.is_closing():
                return
        if data:
            super().data_received(data)
        if not (self._refused or self.transport.is_closing()):
            self._look_at_head()

    def on_response_complete(self) -> None:
        """Continue with the next request, or wait for one."""
        super().on_response_complete()
        self._unread_ended()
        if self.transport.get_write_buffer_size():
            self._await_reader()
        if not self.transport.is_closing():
            self._look_at_head()

    def pause_writing(self) -> None:
        """Start the timer for a client that does not read."""
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        """Stop the timer, as the client has read most of the response."""
        super().resume_writing()
        self._unread_ended()

    def send_400_response(self, msg: str) -> None:
        """Reject invalid HTTP or too long a head with an `ErrorBody`, and close."""
        too_large = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        # uvicorn calls this while handling h11's error.
        if getattr(sys.exception(), "error_status_hint", None) == too_large:
            self._refuse(too_large, f"the request's head is larger than {HEAD_BYTES_MAX} bytes")
        else:
            self._refuse(HTTPStatus.BAD_REQUEST, msg)

    def _unsupported_upgrade_warning(self) -> None:
        # A WebSocket upgrade gets a plain response, without a log entry.
        return

    def _look_at_head(self) -> None:
        """Update the connection's busy state and the head's timer."""
        if self.conn.their_state is not h11.IDLE:
            self._head_ended()
            self._connections.begin(self._descriptor)
        elif self.conn.trailing_data[0]:
            self._await_head()
        elif not self.transport.get_write_buffer_size():
            self._connections.end(self._descriptor)

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._end_head)

    def _head_ended(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_head(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            return
        if self.conn.trailing_data[0]:
            message = f"the head of the request was not complete after {HEAD_SECONDS:g} s"
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, message)
        else:
            self.transport.close()

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        cycle = cast("Any", self.cycle)  # None before the first request.
        if cycle and cycle.response_started and not cycle.response_complete:
            self.transport.close()  # A response would look like a part of the one in progress.
            return
        body = json.dumps({"message": message, "code": InvalidArgument.code})
        answer = _ERROR % (status, status.phrase, len(body), body)
        self.transport.write(answer.encode())
        if (cycle and not cycle.response_complete) or not self.transport.can_write_eof():
            self.transport.close()
            return
        # Later bytes are dropped: closing with unread bytes could lose the response.
        self._refused = True
        self._head_ended()
        self._connections.end(self._descriptor)
        self.transport.write_eof()
        self.loop.call_later(REFUSED_SECONDS, self.transport.close)

    def _await_reader(self) -> None:
        if self._unread_timer is None:
            self._unread_timer = self.loop.call_later(
                UNREAD_SECONDS_MAX, self._end_unread, self.transport.get_write_buffer_size()
            )

    def _unread_ended(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _end_unread(self, unread_bytes: int) -> None:
        """Disconnect the client, unless it has read something."""
        self._unread_timer = None
        left = self.transport.get_write_buffer_size()
        if left >= unread_bytes:
            self.transport.abort()
        elif left:
            self._await_reader()


class _HttpConnection(socket.socket):
    """An accepted connection, which notifies its listener when it closes."""

    def __init__(self, listener: _ListeningSocket, accepted: socket.socket) -> None:
        super().__init__(fileno=accepted.detach())
        self._listener: _ListeningSocket | None = listener

    def close(self) -> None:
        """Close the connection. Idempotent."""
        if self._listener is not None:
            self._listener.closed(self.fileno())
            self._listener = None
        super().close()
