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
import json
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql

from wings_core.metadata.postgres.connections import Connection, PostgresConnections
from wings_core.metadata.postgres.faults import discard, translated
from wings_core.metadata.store.database import Notification
from wings_core.partitions import Partition

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
        node: Name of this node in notifications, by which it knows its own.
        heard: Called with what other nodes committed, on the listener's thread.

    Raises:
        Unavailable: The server cannot be reached.
    """

    def __init__(
        self, connections: PostgresConnections, node: str, heard: Callable[[Notification], None]
    ) -> None:
        self._connections = connections
        self._node = node
        self._heard = heard
        self.outbox = Outbox()
        """Changes by transactions of this node."""
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
        connection = self._connections.open_at_once()
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
        look_seconds = self._connections.bounds.listener_look
        look_at = time.monotonic() + look_seconds
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
                    look_at = now + look_seconds
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


PAYLOAD_BYTES_MAX = 7_900
"""PostgreSQL refuses payloads of 8,000 bytes."""

PARTITIONS_MAX = 1_000
"""Partitions that one payload may name: more would not fit."""

TRANSACTIONS_MAX = 64
"""Transactions that one payload names; further ones are named by further payloads."""

PENDING_MAX = 4_096
"""Partitions, and transactions, that wait to be told of. Beyond it, what is told is that anything
may have changed, and transactions are not named, so that other nodes miss them, and look."""


class Outbox:
    """Commits of a node of which the others are not notified yet. Its lock is a leaf."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._transactions: list[str] = []
        self._ends: dict[tuple[str, Partition], int] = {}
        self._topics: dict[str, None] = {}
        self._everything = False
        self._awaited = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not self._transactions

    def add(self, notification: Notification, transaction: str) -> bool:
        """Add what a transaction changed; return whether the taker awaits it; see `await_next`."""
        with self._lock:
            if len(self._transactions) < PENDING_MAX:
                self._transactions.append(transaction)
            for place, next_offset in notification.ends.items():
                self._ends[place] = max(next_offset, self._ends.get(place, 0))
            if notification.topics:
                self._topics.update(dict.fromkeys(notification.topics))
            self._everything |= notification.everything
            if len(self._ends) > PENDING_MAX or len(self._topics) > PENDING_MAX:
                self._everything = True
                self._ends, self._topics = {}, {}
            awaited, self._awaited = self._awaited, False
            return awaited

    def await_next(self) -> bool:
        """Have the next `add` tell that it is awaited, if there is nothing; return whether so."""
        with self._lock:
            self._awaited = self.is_empty
            return self._awaited

    def take(self) -> tuple[Notification, list[str]]:
        """Return all that was changed, by which transactions, and leave nothing."""
        with self._lock:
            taken = Notification(self._ends, tuple(self._topics), everything=self._everything)
            transactions = self._transactions
            self._transactions, self._ends, self._topics = [], {}, {}
            self._everything = False
        return taken, transactions


def encode_notification(
    notification: Notification, node: str, transactions: list[str]
) -> list[str]:
    """Return the payloads for what transactions of a node changed; the first says what."""
    first, *further = [
        {"node": node, "transactions": transactions[start : start + TRANSACTIONS_MAX]}
        for start in range(0, max(len(transactions), 1), TRANSACTIONS_MAX)
    ]
    return [_encode(notification, first), *[json.dumps(each) for each in further]]


def _encode(notification: Notification, origin: dict[str, Any]) -> str:
    if not notification.everything and len(notification.ends) <= PARTITIONS_MAX:
        ends: dict[str, dict[str, int]] = {}
        for (topic_uuid, partition), next_offset in notification.ends.items():
            ends.setdefault(topic_uuid, {})[partition] = next_offset
        payload = json.dumps({**origin, "ends": ends, "topics": notification.topics})
        if len(payload) <= PAYLOAD_BYTES_MAX:  # It is ASCII.
            return payload
    if not notification.everything:
        topics = dict.fromkeys(
            [*notification.topics, *(topic_uuid for topic_uuid, _ in notification.ends)]
        )
        payload = json.dumps({**origin, "topics": list(topics)})
        if len(payload) <= PAYLOAD_BYTES_MAX:
            return payload
    return json.dumps({**origin, "everything": True})


def is_of(payload: str, node: str) -> bool:
    """Tell whether a node sent a payload, as `encode_notification` wrote it."""
    return payload.startswith(f'{{"node": "{node}"')


def decode_notification(payload: str) -> tuple[str, list[str], Notification]:
    """Return node, transactions and notification; an unreadable one concerns all waiters."""
    try:
        told: dict[str, Any] = json.loads(payload)
        ends = {
            (str(topic_uuid), Partition(partition)): int(next_offset)
            for topic_uuid, partitions in told.get("ends", {}).items()
            for partition, next_offset in partitions.items()
        }
        topics = tuple(str(topic_uuid) for topic_uuid in told.get("topics", ()))
        notification = Notification(ends, topics, everything=bool(told.get("everything")))
        # A node of an earlier version names one, under another name, and needs not be looked after.
        transactions = [str(each) for each in told.get("transactions", ())]
        return str(told["node"]), transactions, notification
    except (ValueError, LookupError, TypeError, AttributeError):
        # Of a later version, or another program's: a look that finds nothing does no harm.
        return "", [], Notification(everything=True)
