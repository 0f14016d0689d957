"""Tells other nodes what this one committed, and hears what they did, on one connection.

**After the commit, not in it.** PostgreSQL lets one transaction at a time commit that notifies,
from before its log is written until it is synced. So the listener's thread sends notifications once
what they tell of is durable, those of some milliseconds at once.

**A node may die in between.** Each transaction that others are to know of names its
node in `outcomes`. Every node looks every few seconds which transactions of the last ones it was
not told of, and lets all waiters look again if there is one. So it does where its connection
broke, once it listens again. A connection that died in silence is found by that look.
"""

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable

import psycopg
from psycopg import sql

from wings_core.metadata.postgres.connections import Connection, Connections
from wings_core.metadata.postgres.faults import discard, translated
from wings_core.metadata.postgres.notifications import (
    Outbox,
    decode_notification,
    encode_notification,
    is_of,
)
from wings_core.metadata.store.database import Notification

LOOK_SECONDS = 4.0
"""How often the listener looks whether it was told of everything."""

LOOK_BACK_SECONDS = 10
"""How far back it looks: longer than between looks, as a commit may be slow."""

SETTLED_SECONDS = 1
"""How old a transaction is before it counts as not told of."""

HEARD_MAX = 65_536
"""Transactions remembered that were told of; beyond it, waiters look more often than they need."""

SEND_SECONDS = 0.02
"""From one notification of this node to the next, at least; what comes meanwhile goes into that."""

ANSWER_SECONDS_MAX = 5.0
"""How long the server may take to answer."""

PAUSE_SECONDS_MIN = 0.05
PAUSE_SECONDS_MAX = 1.0
"""The pauses before it connects again, doubled each time."""

_LOOK = """
SELECT id FROM outcomes
WHERE decided_at > now() - make_interval(secs => %s)
AND decided_at < now() - make_interval(secs => %s) AND committed AND node IS NOT NULL
"""

_logger = logging.getLogger(__name__)


class Listener:
    """Listens from its making on, on a thread of its own.

    Args:
        connections: To the database; the channel is named as its schema.
        node: What this node is called in notifications, so that it knows its own.
        heard: Called with what other nodes committed, on the listener's thread.

    Raises:
        Unavailable: The server cannot be reached.
    """

    def __init__(
        self, connections: Connections, node: str, heard: Callable[[Notification], None]
    ) -> None:
        self._connections = connections
        self._node = node
        self._heard = heard
        self.outbox = Outbox()
        """Of what transactions of this node changed."""
        self._known: dict[str, None] = {}
        """The transactions that were told of, the latest last."""
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

    def wake(self) -> None:
        """Have the others told of what is in the outbox, as it awaits that; does not wait."""
        # Closed: other nodes find that they were not told.
        with contextlib.suppress(OSError):
            self._wake.send(b"x")

    def close(self) -> None:
        """Stop listening, with a last notification; waits for a call that is under way."""
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
                    self._heard(Notification(everything=True))
                pause = PAUSE_SECONDS_MIN
                self._talk(connection)
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
            connection.add_notify_handler(lambda notify: self._hear(notify.payload))
            with self._connections.watchdog.guarding(connection, ANSWER_SECONDS_MAX):
                # What is told is durable already, so telling waits for no sync.
                connection.execute("SET synchronous_commit TO off")
                channel = sql.Identifier(self._connections.schema)
                connection.execute(sql.SQL("LISTEN {}").format(channel))
        except BaseException:
            discard(connection)
            raise
        return connection

    def _talk(self, connection: Connection) -> None:
        """Send, hear and look until the connection breaks or the listener closes."""
        look_at = time.monotonic() + LOOK_SECONDS
        send_at = 0.0
        # Not `select`, which knows no descriptors beyond 1023.
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while not self._closing.is_set():
                now = time.monotonic()
                # Until the next may be sent, commits need wake nothing.
                waits = now >= send_at and self.outbox.await_next()
                until = look_at if waits else min(look_at, send_at)
                for key, _ in selector.select(max(0.0, until - now)):
                    if key.fileobj is self._woken:
                        self._woken.recv(64)
                connection.pgconn.consume_input()
                self._hear_all(connection)
                now = time.monotonic()
                if not self.outbox.is_empty and now >= send_at:
                    self._send(connection)
                    self._hear_all(connection)  # Those that came with the answer.
                    send_at = now + SEND_SECONDS
                if now >= look_at:
                    self._look(connection)
                    look_at = now + LOOK_SECONDS
        if not self.outbox.is_empty:
            self._send(connection)

    def _send(self, connection: Connection) -> None:
        # Where this fails, other nodes find that they were not told.
        notification, transactions = self.outbox.take()
        self._remember(transactions)
        with self._connections.watchdog.guarding(connection, ANSWER_SECONDS_MAX):
            for payload in encode_notification(notification, self._node, transactions):
                connection.call("pg_notify", (self._connections.schema, payload))

    def _hear_all(self, connection: Connection) -> None:
        while notify := connection.pgconn.notifies():
            self._hear(notify.extra.decode())

    def _hear(self, payload: str) -> None:
        if not is_of(payload, self._node):
            _, transactions, notification = decode_notification(payload)
            self._remember(transactions)
            self._heard(notification)

    def _look(self, connection: Connection) -> None:
        """Let all waiters look again where there are transactions that were not told of."""
        with self._connections.watchdog.guarding(connection, ANSWER_SECONDS_MAX):
            found = connection.execute(_LOOK, (LOOK_BACK_SECONDS, SETTLED_SECONDS)).fetchall()
        missed = [each.hex for (each,) in found if each.hex not in self._known]
        if missed:
            self._remember(missed)
            self._heard(Notification(everything=True))

    def _remember(self, transactions: list[str]) -> None:
        self._known.update(dict.fromkeys(transactions))
        while len(self._known) > HEARD_MAX:
            del self._known[next(iter(self._known))]
