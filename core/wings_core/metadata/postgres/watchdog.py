"""Ends calls to PostgreSQL that hang.

The server bounds its own work by time-outs. Where it does not answer at all (it is paused, or the
network swallows what is sent), only the client can end the call: by shutting its socket down.
"""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

import psycopg

LOOK_SECONDS = 0.5
"""How often it looks; a call may last this much longer than its bound."""

_logger = logging.getLogger(__name__)


class Watchdog:
    """Breaks connections whose use takes too long; one thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Of what follows."""
        self.until: dict[psycopg.Connection, float] = {}
        """When each connection in use is broken off, by `time.monotonic`; its call then fails as if
        cut off. Who uses one puts it in, and takes it out if it is still there."""
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="wings-postgres-watchdog", daemon=True
        )
        self._thread.start()

    @contextmanager
    def guarding(self, connection: psycopg.Connection, seconds: float) -> Generator[None]:
        """Break the connection where the block takes longer."""
        with self.lock:
            self.until[connection] = time.monotonic() + seconds
        try:
            yield
        finally:
            with self.lock:
                self.until.pop(connection, None)

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(LOOK_SECONDS):
            now = time.monotonic()
            with self.lock:
                late = [each for each, until in self.until.items() if until < now]
                for connection in late:
                    # Within the lock, so that the connection is still the one that hangs.
                    del self.until[connection]
                    _sever(connection)
            for _ in late:
                _logger.warning("a call to metadata took too long: its connection is broken off")


def _sever(connection: psycopg.Connection) -> None:
    # The descriptor stays with libpq, which learns of the end by reading.
    with (
        contextlib.suppress(psycopg.Error, OSError),
        socket.socket(fileno=os.dup(connection.fileno())) as shared,
    ):
        shared.shutdown(socket.SHUT_RDWR)
