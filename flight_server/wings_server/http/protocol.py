"""uvicorn's HTTP/1.1 protocol, with bounds on slow clients.

The head of a request is bounded in size and time. A client that reads nothing of a response for a
minute is disconnected. Bodies are bounded where they are read: see `wire`.
"""

import asyncio
import json
import sys
from http import HTTPStatus
from typing import Any, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from wings_core.errors import InvalidArgument
from wings_server.http.connections import REFUSED_SECONDS, ListeningSocket

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
        connections: ListeningSocket,
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
