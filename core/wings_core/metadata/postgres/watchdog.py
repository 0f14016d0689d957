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
    """Knows which connections are in use until when at the latest; one thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: dict[psycopg.Connection, float] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="wings-postgres-watchdog", daemon=True
        )
        self._thread.start()

    @contextmanager
    def guarding(self, connection: psycopg.Connection, seconds: float) -> Generator[None]:
        """Break the connection where the block takes longer; its call then fails as if cut off."""
        self.begin(connection, seconds)
        try:
            yield
        finally:
            self.end(connection)

    def begin(self, connection: psycopg.Connection, seconds: float) -> None:
        """Break the connection where `end` does not come in time."""
        with self._lock:
            self._until[connection] = time.monotonic() + seconds

    def end(self, connection: psycopg.Connection) -> None:
        """End what `begin` began; the connection may be broken by then."""
        with self._lock:
            self._until.pop(connection, None)

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(LOOK_SECONDS):
            now = time.monotonic()
            with self._lock:
                late = [each for each, until in self._until.items() if until < now]
                for connection in late:
                    # Within the lock, so that the connection is still the one that hangs.
                    del self._until[connection]
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
