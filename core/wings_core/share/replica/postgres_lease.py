"""A lease on a schema of PostgreSQL: one process at a time keeps its holds there.

It is a row with a token and a time by the server's clock, which its owner renews, and which no
other process takes before it is over. Here it counts as over a while earlier, so that all an owner
answered has arrived before another one begins.
"""

import logging
import threading
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from typing import LiteralString
from uuid import uuid4

import psycopg
from psycopg import sql

from wings_core.errors import Unavailable, WingsError
from wings_core.metadata.postgres.connections import Connection, PostgresConnections
from wings_core.metadata.postgres.faults import discard, translated
from wings_core.share.quorum.quorum import ANSWERS_SECONDS_MAX

LEASE_SECONDS = 10.0
"""How long a process that is gone keeps others from taking over."""

MARGIN_SECONDS = ANSWERS_SECONDS_MAX + 1.0
"""A lease is over here so much earlier than at the server: an answer on its way arrives before."""

RENEWALS = 5
"""How often a lease is renewed while it is valid."""

CALL_SECONDS_MAX = 5.0
"""How long the server may take for one transaction before its connection is broken off."""

CLAIM_PAUSE_SECONDS = 0.2
"""How often it is asked whether the lease of another process is over."""

_logger = logging.getLogger(__name__)


class Session:
    """One connection, opened when it is first needed and again after it broke.

    Transactions and `close` of several threads run one after the other: a connection in use is
    never closed.

    Args:
        connections: Opens it.
        call_seconds: How long the server may take for one transaction before the connection is
            broken off.
    """

    def __init__(
        self, connections: PostgresConnections, call_seconds: float = CALL_SECONDS_MAX
    ) -> None:
        self._connections = connections
        self._call_seconds = call_seconds
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def transaction(self) -> Generator[Connection]:
        """Run the block in one durable transaction, which is undone if anything raises.

        Raises:
            psycopg.Error: The server failed, or cannot be reached.
            Unavailable: The session is closed.
        """
        with self._lock:
            if self._closed:
                raise Unavailable("the connection to the store of holds is closed")
            if self._connection is None:
                self._connection = self._connections.open()
            try:
                with (
                    self._connections.watchdog.guarding(self._connection, self._call_seconds),
                    self._connection.transaction(),
                ):
                    yield self._connection
            except psycopg.Error:
                self._disconnect()
                raise

    def close(self) -> None:
        """Close the connection, after a transaction that runs; later ones are refused."""
        with self._lock:
            self._closed = True
            self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        discard(connection)


class PostgresLease:
    """The lease of this process, from `claim` to `release` or `abandon`.

    Args:
        connections: To the database; closed by the caller.
        seconds: How long it is.
        address: Where others reach this process; None: nowhere.
        margin_seconds: How much earlier it is over here than at the server.
        call_seconds: How long the server may take for one transaction.

    Attributes:
        is_lost: Whether another process has taken over.
    """

    def __init__(
        self,
        connections: PostgresConnections,
        seconds: float,
        address: str | None = None,
        *,
        margin_seconds: float = MARGIN_SECONDS,
        call_seconds: float = CALL_SECONDS_MAX,
    ) -> None:
        assert seconds > margin_seconds
        self._margin_seconds = margin_seconds
        self._address = address
        self.is_lost = False
        self._schema = connections.schema
        self._seconds = seconds
        self._session = Session(connections, call_seconds)
        self._token = uuid4()
        self._valid_until = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="wings-holds-lease", daemon=True)

    def claim(self, seconds: float) -> None:
        """Take the lease, and renew it from now on; waits so long for that of another process.

        That one lasts no longer than this, from now on.

        Raises:
            psycopg.Error: The server failed, or cannot be reached.
            Unavailable: Another process has it.
        """
        until = time.monotonic() + seconds
        with self._session.transaction() as connection:
            # The clock may have been set back since another process's lease began.
            connection.execute(
                "UPDATE owner SET expires_at = "
                "least(expires_at, clock_timestamp() + make_interval(secs => %s))",
                (self._seconds,),
            )
        while not self._try("expires_at <= clock_timestamp()"):
            if time.monotonic() + CLAIM_PAUSE_SECONDS > until:
                raise Unavailable(
                    f"the holds in the schema {self._schema!r} are those of another process that "
                    "serves them: each replica needs a schema of its own"
                )
            self._stopped.wait(CLAIM_PAUSE_SECONDS)
        self._thread.start()

    def check(self) -> None:
        """Make sure that the lease is this process's; never waits.

        Raises:
            Unavailable: It is over, or cannot be renewed at the moment.
        """
        if self.is_lost:
            raise self._taken_over()
        if time.monotonic() >= self._valid_until:
            raise Unavailable("this replica cannot reach PostgreSQL, where its tombstones are")

    def lock(self, connection: Connection) -> None:
        """Keep all others from the lease, and from writing, until the transaction's end.

        Raises:
            Unavailable: Another process has taken over.
        """
        row = connection.execute(
            "SELECT 1 FROM owner WHERE token = %s FOR UPDATE", (self._token,)
        ).fetchone()
        if row is None:
            self.is_lost = True
            raise self._taken_over()

    def release(self) -> None:
        """Give the lease back, if it is this process's; what fails ends by itself."""
        self._stop()
        try:
            with self._session.transaction() as connection:
                connection.execute(
                    "UPDATE owner SET token = NULL, expires_at = '-infinity' WHERE token = %s",
                    (self._token,),
                )
        except psycopg.Error as error:
            _logger.warning("its lease ends by itself: %s", of_holds(translated(error)).message)
        self._session.close()

    def abandon(self) -> None:
        """Leave the lease as it is, as a crash does."""
        self._stop()
        self._session.close()

    def _stop(self) -> None:
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._valid_until = 0.0

    def _try(self, condition: LiteralString) -> bool:
        """Begin the lease anew if a condition holds; return whether it does."""
        sent = time.monotonic()
        with self._session.transaction() as connection:
            row = connection.execute(
                sql.SQL(
                    "UPDATE owner SET token = %(token)s, address = %(address)s, "
                    "expires_at = clock_timestamp() + make_interval(secs => %(seconds)s) "
                    "WHERE id = 1 AND {} RETURNING 1"
                ).format(sql.SQL(condition)),
                {"token": self._token, "seconds": self._seconds, "address": self._address},
            ).fetchone()
        if row is not None:
            self._valid_until = sent + self._seconds - self._margin_seconds
        return row is not None

    def _renew(self) -> None:
        seconds = (self._seconds - self._margin_seconds) / RENEWALS
        while not self.is_lost and not self._stopped.wait(seconds):
            try:
                self.is_lost = not self._try("token = %(token)s")
            except psycopg.Error as error:
                _logger.warning("its lease is not renewed: %s", of_holds(translated(error)).message)
            except Exception:
                # Whatever it is, too many open files for one: the lease would end for good.
                _logger.exception("its lease is not renewed")
        if self.is_lost:
            _logger.error("%s", self._taken_over().message)

    def _taken_over(self) -> Unavailable:
        return Unavailable(
            f"another process has taken over the holds in the schema {self._schema!r}"
        )


class OwnerLookup:
    """Tells which process has the lease.

    Args:
        connections: To the database; closed by the caller.
    """

    def __init__(self, connections: PostgresConnections) -> None:
        self._session = Session(connections)

    def address(self) -> str | None:
        """Return where the owner is reached; None where there is none, or it did not say.

        Raises:
            Unavailable: The server cannot be reached.
        """
        with told_of_holds():
            try:
                with self._session.transaction() as connection:
                    row = connection.execute(
                        "SELECT address FROM owner WHERE expires_at > clock_timestamp()"
                    ).fetchone()
            except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
                return None  # No process ever had it, or one of an earlier version: none says.
        return None if row is None else row[0]

    def close(self) -> None:
        """Close its connection."""
        self._session.close()


@contextmanager
def keeping_owner(connections: PostgresConnections) -> Generator[None]:
    """Keep the owner from writing, and others from taking over, for a moment.

    Raises:
        Unavailable: The server cannot be reached, or what the owner writes took too long.
    """
    session = Session(connections)
    with told_of_holds(), closing(session), session.transaction() as connection:
        if connection.execute("SELECT to_regclass('owner')").fetchone() != (None,):
            connection.execute("SELECT 1 FROM owner FOR UPDATE")
        yield


@contextmanager
def told_of_holds() -> Generator[None]:
    """Raise the server's errors as ours; what they share with metadata's says whose they are."""
    try:
        yield
    except psycopg.Error as error:
        raise of_holds(translated(error)) from error
    except WingsError as error:
        raise of_holds(error) from error


def of_holds(error: WingsError) -> WingsError:
    """Return an error of the server with words that say what it serves."""
    message = error.message.replace("the metadata", "metadata")
    return type(error)(message.replace("metadata", "the store of holds"), **error.facts)
