"""The HTTP listener: uvicorn in a thread of its own, on a socket bound beforehand."""

import asyncio
import socket
import threading
from contextlib import suppress

import uvicorn
from starlette.types import ASGIApp

from wings_core.errors import Unavailable
from wings_server.descriptors import HTTP_SHARE, OPEN_MAX, connections_max
from wings_server.http import protocol
from wings_server.http.connections import ListeningSocket
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
        self._socket = ListeningSocket(
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
            h11_max_incomplete_event_size=protocol.HEAD_BYTES_MAX - 1,
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


class _Server(uvicorn.Server):
    """A uvicorn server with an event for the end of its start, and an event to stop it.

    uvicorn's own main loop polls its stop flag ten times a second.
    """

    def __init__(self, config: uvicorn.Config, connections: ListeningSocket) -> None:
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
            lambda: protocol.Protocol(self.config, self.server_state, {}, self._connections),
            sock=self._connections,
            ssl=tls,
            backlog=BACKLOG,
            ssl_handshake_timeout=None if tls is None else protocol.HEAD_SECONDS,
        )
        self.servers = [serving]
        self.started = True
        self.start_ended.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # Also updates the date header.
            self._connections.look()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), TICK_SECONDS)
