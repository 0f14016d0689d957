"""The connections to one PostgreSQL database: a bounded number, lent in the order of asking.

Each is opened at its first use, and again after it broke, so a server that comes back is used at
once. Every wait has a bound: for a connection, for a lock, for a statement, for a server
that does not answer.
"""

import select
import time

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import ConnStatus, TransactionStatus

from wings_core.errors import InvalidArgument
from wings_core.metadata.pool import FairPool
from wings_core.metadata.postgres.exchanges import ExchangeConnection, ExchangeCursor
from wings_core.metadata.postgres.faults import discard
from wings_core.metadata.postgres.watchdog import Watchdog

Connection = ExchangeConnection
"""The type of connection that `Loan` lends."""

CONNECTIONS_MAX = 8
"""Connections of one process, beside the one that listens."""

CONNECTION_WAIT_SECONDS_MAX = 30.0
"""How long a call waits for a connection before it is refused with `Unavailable`."""

CONNECT_SECONDS_MAX = 5
"""How long opening a connection may take, for each of the server's addresses."""

LOCK_SECONDS_MAX = 10
"""How long a statement waits for a lock."""

STATEMENT_SECONDS_MAX = 60
"""How long a statement runs."""

IDLE_IN_TRANSACTION_SECONDS_MAX = 10
"""How long a transaction may keep locks between two statements: its node is paused or gone."""

USE_SECONDS_MAX = 120.0
"""How long a transaction may take in all before its connection is broken off."""

SILENCE_SECONDS_MAX = 10
"""How long a connection may go without an acknowledgement before it counts as broken, about."""

ENCODING = "UTF8"
"""In which text goes to the server, and is kept there: in all others some names get lost."""

CONNECTION_DEFAULTS: dict[str, str | int] = {
    "application_name": "wings",
    "connect_timeout": CONNECT_SECONDS_MAX,
    "keepalives_idle": SILENCE_SECONDS_MAX // 2,
    "keepalives_interval": 1,
    "keepalives_count": SILENCE_SECONDS_MAX // 2,
    "tcp_user_timeout": SILENCE_SECONDS_MAX * 1_000,
}
"""Parameters of libpq that the URL may set otherwise."""

_SESSION = """
SELECT pg_backend_pid(),
    set_config('lock_timeout', %s, false),
    set_config('statement_timeout', %s, false),
    set_config('idle_in_transaction_session_timeout', %s, false),
    set_config('tcp_keepalives_idle', %s, false),
    set_config('tcp_keepalives_interval', '1', false),
    set_config('tcp_keepalives_count', %s, false),
    set_config('tcp_user_timeout', %s, false),
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('jit', 'off', false),
    set_config('plan_cache_mode', 'force_generic_plan', false),
    set_config('enable_seqscan', 'off', false),
    set_config('enable_bitmapscan', 'off', false),
    set_config('enable_hashjoin', 'off', false),
    set_config('enable_mergejoin', 'off', false),
    set_config('search_path', %s, false),
    set_config('default_transaction_read_only', %s, false)
"""
"""Every statement is written for one plan, a walk along indexes. Without the other plans a table
that has no statistics yet, or wrong ones, does not lead the planner astray; and what was
planned once is not planned again for other values. For what writes to many partitions, see `plans`.

By the settings of TCP, which do nothing on a Unix socket, the server learns that the machine of a
node is gone as soon as a node learns it of the server's, and ends its transaction.

The settings hold for the session. A pooler that lends a session of the server for each transaction
(PgBouncer's `pool_mode = transaction`) would run some statements without them, and notifications
would go to others: a session whose number is not what the start of the connection said is one."""

_SYNCHRONOUS = """
SELECT set_config('synchronous_commit', 'on', false)
WHERE current_setting('synchronous_commit') IN ('off', 'local')
"""
"""An acknowledgement stands for what is durable; a server's stricter setting stays."""

_TRANSACTION = "SELECT set_config('transaction_timeout', %s, false)"
"""Ends the transaction of a node that is stuck too; servers before 17 do not know it."""

TRANSACTION_TIMEOUT_SINCE = 170_000
"""The version of the server, as `server_version` tells it."""


class _Slot:
    """A connection, or the place for one."""

    __slots__ = ("connection", "poller")

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.poller = select.poll()
        """Of its descriptor."""

    def check(self, connection: Connection) -> None:
        """Let go of the connection if the server has ended it; does not wait."""
        try:
            while self.poller.poll(0):  # A notice, or the end.
                connection.pgconn.consume_input()
                if connection.pgconn.status != ConnStatus.OK:
                    break
            else:
                return
        except psycopg.OperationalError:
            pass
        self.discard()

    def discard(self) -> None:
        """Close the connection, if there is one."""
        discard(self.connection)
        self.connection = None


class Loan:
    """Borrows a connection for a `with`; one left in a transaction is replaced.

    Not a generator, as each push has one.

    Args:
        connections: Lend it.
        seconds: How long before it is broken off; None: `USE_SECONDS_MAX`.

    Raises:
        Unavailable: None came free in time, or closed.
        psycopg.OperationalError: The server cannot be reached, or refuses.
        InvalidArgument: The database is not in UTF-8.
    """

    __slots__ = ("_connections", "_seconds", "_slot")

    def __init__(self, connections: "Connections", seconds: float | None = None) -> None:
        self._connections = connections
        self._seconds = USE_SECONDS_MAX if seconds is None else seconds

    def __enter__(self) -> Connection:
        """Return the connection; blocks until one is free, or is opened."""
        connections = self._connections
        self._slot = slot = connections.slots.acquire()
        try:
            # Found before anything is sent: whether that was carried out is no question then.
            if slot.connection is not None and slot.poller.poll(0):
                slot.check(slot.connection)
            if slot.connection is None:
                slot.connection = connections.open()
                slot.poller = select.poll()
                slot.poller.register(slot.connection.fileno(), select.POLLIN)
            watchdog = connections.watchdog
            with watchdog.lock:
                watchdog.until[slot.connection] = time.monotonic() + self._seconds
        except BaseException:
            connections.slots.release(slot)
            raise
        return slot.connection

    def __exit__(self, *_: object) -> None:
        """Give it back."""
        slot, connections = self._slot, self._connections
        assert slot.connection is not None
        with connections.watchdog.lock:
            connections.watchdog.until.pop(slot.connection, None)
        if slot.connection.pgconn.transaction_status != TransactionStatus.IDLE:
            slot.discard()
        connections.slots.release(slot)


class Connections:
    """Opens the connections to one database, which `Loan` lends.

    Args:
        url: `postgresql://…`, or any connection string of libpq.
        schema: The schema that holds the tables.
        read_only: Transactions cannot write.

    Raises:
        InvalidArgument: The URL cannot be read; the message does not repeat it.
    """

    def __init__(self, url: str, schema: str, *, read_only: bool = False) -> None:
        try:
            self._parameters = {
                **CONNECTION_DEFAULTS,
                **conninfo_to_dict(url),
                "client_encoding": ENCODING,
            }
        except psycopg.Error:
            # libpq's message would quote the URL, and with it the password.
            raise InvalidArgument(
                "the address of PostgreSQL cannot be read: expected "
                "postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
            ) from None
        self.schema = schema
        self.read_only = read_only
        self.watchdog = Watchdog()
        self.slots = FairPool(
            "a connection to metadata",
            [_Slot() for _ in range(CONNECTIONS_MAX)],
            CONNECTION_WAIT_SECONDS_MAX,
        )

    def open(self) -> Connection:
        """Open a connection that the caller closes; each statement is its own transaction.

        Raises:
            psycopg.OperationalError: The server cannot be reached, or refuses.
            InvalidArgument: The database is not in UTF-8, or there is a pooler before it.
        """
        connection = ExchangeConnection.connect(
            autocommit=True,
            cursor_factory=ExchangeCursor,
            **self._parameters,  # pyright: ignore[reportArgumentType] - any parameter may be named
        )
        try:
            encoding = connection.info.parameter_status("server_encoding")
            if encoding != ENCODING:
                raise InvalidArgument(
                    f"the database is encoded in {encoding}, metadata needs one in {ENCODING}: "
                    f"CREATE DATABASE … TEMPLATE template0 ENCODING '{ENCODING}'"
                )
            with self.watchdog.guarding(connection, CONNECT_SECONDS_MAX):
                found = connection.execute(
                    _SESSION,
                    (
                        f"{LOCK_SECONDS_MAX}s",
                        f"{STATEMENT_SECONDS_MAX}s",
                        f"{IDLE_IN_TRANSACTION_SECONDS_MAX}s",
                        f"{SILENCE_SECONDS_MAX // 2}s",
                        f"{SILENCE_SECONDS_MAX // 2}",
                        f"{SILENCE_SECONDS_MAX}s",
                        sql.Identifier(self.schema).as_string(connection),
                        "on" if self.read_only else "off",
                    ),
                ).fetchone()
                if found is None or found[0] != connection.info.backend_pid:
                    raise InvalidArgument(
                        "there is a pooler, such as PgBouncer, between Wings and PostgreSQL: Wings "
                        "needs sessions of its own (for LISTEN, and for its settings): name the "
                        "address of PostgreSQL itself"
                    )
                connection.execute(_SYNCHRONOUS)
                if connection.info.server_version >= TRANSACTION_TIMEOUT_SINCE:
                    connection.execute(_TRANSACTION, (f"{round(USE_SECONDS_MAX)}s",))
        except BaseException:
            discard(connection)
            raise
        return connection

    def close(self) -> None:
        """Close all connections, waiting for those in use for the usual time."""
        for slot in self.slots.close():
            slot.discard()
        self.watchdog.close()
