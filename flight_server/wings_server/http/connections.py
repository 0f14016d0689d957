"""The connections of the HTTP listener, counted from their acceptance to their close.

Sockets are counted, not requests, so that TLS handshakes and unused connections count too. At the
bound, the longest idle connection is closed for a new one; the new one is only rejected if all are
busy.
"""

import json
import socket
import time
from collections import deque
from contextlib import suppress
from typing import Any

import structlog

from wings_core.errors import ResourceExhausted

REFUSED_KEPT_MAX = 64
"""Most rejected connections kept open briefly: closing one at once could reset its response."""

REFUSED_SECONDS = 1.0
"""Time for which a rejected connection stays open."""

AT_ONCE_MAX = 64
"""Most connections rejected or displaced in a row before the event loop gets to close them."""

LOG_SECONDS = 60.0
"""Least interval of log entries about displaced or rejected connections."""

_logger = structlog.get_logger("wings.http")


class ListeningSocket(socket.socket):
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
        self._open: dict[int, HttpConnection] = {}
        """Open connections by descriptor, displaced ones included until they are closed."""
        self._spare: dict[int, HttpConnection] = {}
        """Idle connections by descriptor, the longest idle first."""
        self._refused: deque[tuple[float, socket.socket]] = deque()
        self._turned_away = 0
        self._logged_at = -LOG_SECONDS

    def accept(self) -> "tuple[HttpConnection, Any]":
        """Accept a connection; at the bound, displaces an idle one, or rejects it.

        Raises:
            BlockingIOError: There is no connection to accept.
        """
        for _ in range(AT_ONCE_MAX):
            if len(self._open) >= self._connections_max + AT_ONCE_MAX:
                break
            accepted, address = super().accept()
            if len(self._open) < self._connections_max or self._displace():
                connection = HttpConnection(self, accepted)
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


class HttpConnection(socket.socket):
    """An accepted connection, which notifies its listener when it closes."""

    def __init__(self, listener: ListeningSocket, accepted: socket.socket) -> None:
        super().__init__(fileno=accepted.detach())
        self._listener: ListeningSocket | None = listener

    def close(self) -> None:
        """Close the connection. Idempotent."""
        if self._listener is not None:
            self._listener.closed(self.fileno())
            self._listener = None
        super().close()
