"""The connections of the HTTP listener, counted from their acceptance to their close.

What is counted are sockets, not requests: so TLS handshakes count too, and connections that a
client opens and never uses. At the bound, the connection that has had no request under way for the
longest makes room for a new one; only where all are busy is the new one refused.
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
"""Refused connections that stay open for a moment: one closed at once may reset its own answer."""

REFUSED_SECONDS = 1.0
"""How long that moment is."""

AT_ONCE_MAX = 64
"""Connections refused in a row, or displaced and not closed yet, before the event loop gets to
close them."""

LOG_SECONDS = 60.0
"""How often the log says at most that connections were displaced or refused."""

_logger = structlog.get_logger("wings.http")


class Connections(socket.socket):
    """A listening socket whose accepted connections are bounded.

    Used on the event loop's thread alone.

    Args:
        listening: The socket, bound and listening; it is taken over.
        connections_max: The most that are open at once.
        is_plain: Whether a refused connection can be sent an answer: one that speaks TLS cannot.
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
        self._open: dict[int, Connection] = {}
        """By descriptor, those that were displaced too, until they are closed."""
        self._spare: dict[int, Connection] = {}
        """Of these, those without a request under way, the one for the longest first."""
        self._refused: deque[tuple[float, socket.socket]] = deque()
        self._turned_away = 0
        self._logged_at = -LOG_SECONDS

    def accept(self) -> "tuple[Connection, Any]":
        """Return the next connection and its address; displaces or refuses at the bound.

        Raises:
            BlockingIOError: There is none.
        """
        for _ in range(AT_ONCE_MAX):
            if len(self._open) >= self._connections_max + AT_ONCE_MAX:
                break
            accepted, address = super().accept()
            if len(self._open) < self._connections_max or self._displace():
                connection = Connection(self, accepted)
                descriptor = connection.fileno()
                self._open[descriptor] = self._spare[descriptor] = connection
                return connection, address
            self._refuse(accepted)
        raise BlockingIOError

    @property
    def open(self) -> int:
        """How many connections are open."""
        return len(self._open)

    def begin(self, descriptor: int) -> None:
        """Note that a connection has a request under way: it is not displaced."""
        self._spare.pop(descriptor, None)

    def end(self, descriptor: int) -> None:
        """Note that a connection has none any more."""
        connection = self._open.get(descriptor)
        if connection is not None:
            self._spare[descriptor] = connection

    def look(self) -> None:
        """Close what was refused a moment ago, and log; called every second or so."""
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
        """Close the listening socket, and what was refused; accepted connections stay."""
        while self._refused:
            self._refused.popleft()[1].close()
        super().close()

    def closed(self, descriptor: int) -> None:
        """Count a connection as closed; called by itself."""
        self._open.pop(descriptor, None)
        self._spare.pop(descriptor, None)

    def _displace(self) -> bool:
        """End the connection that is spare for the longest; return whether there was one."""
        if not self._spare:
            return False
        self._turned_away += 1
        connection = self._spare.pop(next(iter(self._spare)))
        # Its transport, or its TLS handshake, finds the end of the stream, and closes it.
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


class Connection(socket.socket):
    """An accepted connection, which tells its listener when it is closed."""

    def __init__(self, listener: Connections, accepted: socket.socket) -> None:
        super().__init__(fileno=accepted.detach())
        self._listener: Connections | None = listener

    def close(self) -> None:
        """Close the connection; may be called again."""
        if self._listener is not None:
            self._listener.closed(self.fileno())
            self._listener = None
        super().close()
