"""The listener of Kafka's protocol: an event loop in a thread of its own."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from wings_core.errors import Unavailable
from wings_server.http.listener import BACKLOG, START_SECONDS_MAX, STOP_SECONDS_MAX, bind
from wings_server.kafka.brokers import Brokers
from wings_server.kafka.group_requests import keep_forever
from wings_server.kafka.service import KafkaService
from wings_server.kafka.session import Session
from wings_server.kafka.transaction_requests import expire_forever
from wings_server.kafka.wire import Connection
from wings_server.settings import Address
from wings_server.tls import Tls

DRAIN_LOOK_SECONDS = 0.02
HANDSHAKE_SECONDS = 10.0


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
                self._loop.create_task(expire_forever(self._service)),
                self._loop.create_task(keep_forever(self._service)),
            )
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
