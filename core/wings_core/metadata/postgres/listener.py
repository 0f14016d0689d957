"""Hears what other nodes committed, on a connection and a thread of its own.

Notifications are sent within the transactions that they tell of, so none is missing while this
listens. Where its connection broke, it listens again first and then lets all waiters look again, so
a commit in between is seen. A connection that died in silence is found by asking.
"""

import logging
import selectors
import socket
import threading
from collections.abc import Callable

import psycopg
from psycopg import sql

from wings_core.metadata.postgres.connections import Connection, Connections
from wings_core.metadata.postgres.faults import discard, translated

HEARTBEAT_SECONDS = 5.0
"""How often the connection is asked whether it lives, where nothing is heard."""

ANSWER_SECONDS_MAX = 5.0
"""How long it may take to answer."""

PAUSE_SECONDS_MIN = 0.05
PAUSE_SECONDS_MAX = 1.0
"""The pauses before it connects again, doubled each time."""

_logger = logging.getLogger(__name__)


class Listener:
    """Listens from its making on.

    Args:
        connections: To the database; the channel is named as its schema.
        heard: Called with each payload, on the listener's thread.
        missed: Called where some may have been missed.

    Raises:
        Unavailable: The server cannot be reached.
    """

    def __init__(
        self, connections: Connections, heard: Callable[[str], None], missed: Callable[[], None]
    ) -> None:
        self._connections = connections
        self._heard = heard
        self._missed = missed
        self._closing = threading.Event()
        self._wake, self._woken = socket.socketpair()
        try:
            connection = self._listen()
        except psycopg.Error as error:
            raise translated(error) from error
        self._thread = threading.Thread(
            target=self._run, args=(connection,), name="wings-postgres-listener", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening; waits for a call that is under way. Does nothing the second time."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._wake.send(b"x")
        self._thread.join()
        self._wake.close()
        self._woken.close()

    def _run(self, connection: Connection | None) -> None:
        pause = PAUSE_SECONDS_MIN
        while not self._closing.is_set():
            try:
                if connection is None:
                    connection = self._listen()
                    self._missed()
                pause = PAUSE_SECONDS_MIN
                self._hear(connection)
                continue
            except (psycopg.Error, OSError) as error:
                _logger.warning("other nodes are not heard for now: %s", translated(error))
            except Exception:  # Without the thread, waiters would miss commits unnoticed.
                _logger.exception("other nodes are not heard for now")
            discard(connection)
            connection = None
            self._closing.wait(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)
        discard(connection)

    def _listen(self) -> Connection:
        connection = self._connections.open()
        try:
            # Also those that come with the answer to something else.
            connection.add_notify_handler(lambda notify: self._heard(notify.payload))
            with self._connections.watchdog.guarding(connection, ANSWER_SECONDS_MAX):
                channel = sql.Identifier(self._connections.schema)
                connection.execute(sql.SQL("LISTEN {}").format(channel))
        except BaseException:
            discard(connection)
            raise
        return connection

    def _hear(self, connection: Connection) -> None:
        """Call `heard` with each payload until the connection breaks or the listener closes."""
        # Not `select`, which knows no descriptors beyond 1023.
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while not self._closing.is_set():
                if not selector.select(HEARTBEAT_SECONDS):
                    with self._connections.watchdog.guarding(connection, ANSWER_SECONDS_MAX):
                        connection.execute("SELECT 1")
                    continue
                connection.pgconn.consume_input()
                while notify := connection.pgconn.notifies():
                    self._heard(notify.extra.decode())
