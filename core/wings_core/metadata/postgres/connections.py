"""The connections to one PostgreSQL database, exchanges on them, and the end of calls that hang.

A bounded number of connections is lent in the order of asking. Each is opened at its first use, and
again after it broke, so a server that comes back is used at once. Every wait has a bound: for a
connection, for a lock, for a statement. The server bounds its own work by time-outs. Where it does
not answer at all (it is paused, or the network swallows what is sent), the watchdog ends the call:
it shuts the socket down.

**Each exchange ends with a Sync.** Several statements are sent, and their results are waited for
once. psycopg's pipeline mode asks for results by a Flush. To the server the transaction is then
busy until the next Sync, so that no time-out ends it while a node is paused or gone, and its locks
stay. After a Sync it is idle in a transaction, which the server bounds. A transaction that was
begun by BEGIN goes on over any number of them. While an exchange is being sent no such bound
counts; see `Database._end_silent`.

**A Sync also ends the skipping of statements after an error.** The transaction is aborted then, so
later statements fail by themselves, the row in `outcomes` too. No exchange may end between that row
and COMMIT: alone, COMMIT would undo an aborted transaction without a complaint.
"""

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, LiteralString, Self

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.rows import TupleRow

from wings_core.errors import InvalidArgument
from wings_core.metadata.postgres.faults import discard
from wings_core.metadata.store.database import FairPool, Lock, buckets

ROWS_MANY = 200
"""From so many rows on a plan of its own costs little beside what it is for."""

OUTCOMES_KEPT_SECONDS = 3_600
"""Outcomes older than this are purged: far older than any that are asked for."""

_NOT_PREPARED = b"26000"


class ExchangeConnection(psycopg.Connection[TupleRow]):
    """A connection that knows whether it is in pipeline mode, and takes advisory locks."""

    running: psycopg.Pipeline | None = None
    """Set in pipeline mode."""

    prepared_calls: frozenset[str] = frozenset()
    """The functions whose calls are prepared, so far as is known here."""

    def call(self, function: str, arguments: Sequence[str | int | bytes | None]) -> str | None:
        """Call a function that returns text, as a transaction of its own; blocks until it has.

        By libpq itself, prepared once: what psycopg does for any statement and any value took half
        of the processor time of a small push here.

        Raises:
            psycopg.Error: It failed, or the connection has ended.
        """
        values: list[Any] = []  # The type that psycopg names leaves NULL out.
        formats = [0] * len(arguments)
        for each in arguments:
            if isinstance(each, bytes):
                formats[len(values)] = 1
                values.append(each)
            else:
                values.append(None if each is None else str(each).encode())
        if function not in self.prepared_calls:
            self._prepare_call(function, len(values))
        result = self.pgconn.exec_prepared(function.encode(), values, formats)
        if result.status != ExecStatus.TUPLES_OK:
            if result.error_field(DiagnosticField.SQLSTATE) == _NOT_PREPARED:
                # psycopg deallocates all that is prepared once a transaction was rolled back.
                self._prepare_call(function, len(values))
                result = self.pgconn.exec_prepared(function.encode(), values, formats)
            self._check_result(result, ExecStatus.TUPLES_OK)
        value = result.get_value(0, 0)
        return None if value is None else value.decode()

    def command(self, statement: LiteralString) -> None:
        """Run a statement that returns nothing, outside of pipeline mode; blocks until it has.

        Raises:
            psycopg.Error: It failed, or the connection has ended.
        """
        self._check_result(self.pgconn.exec_(statement.encode()), ExecStatus.COMMAND_OK)

    def _prepare_call(self, function: str, arguments: int) -> None:
        places = ", ".join(f"${place}" for place in range(1, arguments + 1))
        statement = f"SELECT {function}({places})"
        self._check_result(
            self.pgconn.prepare(function.encode(), statement.encode()), ExecStatus.COMMAND_OK
        )
        self.prepared_calls |= {function}

    def _check_result(self, result: PGresult, wanted: ExecStatus) -> None:
        if result.status != wanted:
            if result.error_field(DiagnosticField.SQLSTATE) is None:
                raise psycopg.OperationalError(self.pgconn.get_error_message())
            raise error_from_result(result)

    def execute_rows(
        self,
        query: LiteralString,
        columns: Mapping[str, Sequence[Any]],
        params: Mapping[str, Any] | None = None,
        /,
    ) -> psycopg.Cursor[TupleRow]:
        """Send a statement over rows that are given; see `store.database.Connection`.

        From so many on the transaction is planned for them.
        """
        values = {f"given_{name.split()[0]}": list(each) for name, each in columns.items()}
        self.expect_rows(max(map(len, values.values()), default=0))
        names = ", ".join([f'"{name.split()[0]}"' for name in columns])
        arrays = ", ".join(
            [
                f"%({value})s::{name.split()[1]}[]"
                for value, name in zip(values, columns, strict=True)
            ]
        )
        given = f"unnest({arrays}) WITH ORDINALITY AS given ({names}, place)"
        return self.execute(query.replace("{given}", given).encode(), {**values, **(params or {})})

    def expect_rows(self, rows: int) -> None:
        """Have the rest of the transaction planned for as many rows of a table as it goes over.

        Statements are planned once, for a walk along indexes (see `connections`). Where that was
        done while a table had few rows, the planner may walk through all of them for each that is
        wanted, which costs nothing then and is as much as their square later: until PostgreSQL has
        counted the rows again, a first push to 10,000 partitions would take longer than a statement
        may.
        """
        if rows >= ROWS_MANY:
            self.execute(
                "SELECT set_config('plan_cache_mode', 'force_custom_plan', true), "
                "set_config('enable_hashjoin', 'on', true)"
            )

    def note(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Do nothing: there is no repair of PostgreSQL."""

    def purge_outcomes(self, rows_max: int) -> int:
        """Delete up to so many outcomes that are not asked for any more; return how many."""
        return self.execute(
            "DELETE FROM outcomes WHERE id IN (SELECT id FROM outcomes "
            "WHERE decided_at < now() - make_interval(secs => %s) LIMIT %s::bigint)",
            (OUTCOMES_KEPT_SECONDS, rows_max),
        ).rowcount

    def take_lock(self, lock: Lock, names: Iterable[str] = ("",)) -> None:
        """Keep other transactions from the names until the end of this one."""
        self.execute(
            "SELECT pg_advisory_xact_lock(%s::int, bucket) FROM unnest(%s::int[]) AS bucket",
            (lock.value, buckets(names)),
        )

    def share_lock(self, lock: Lock, names: Iterable[str]) -> None:
        """Keep transactions that `take_lock` the names out until the end of this one."""
        self.execute(
            "SELECT pg_advisory_xact_lock_shared(%s::int, bucket) FROM unnest(%s::int[]) AS bucket",
            (lock.value, buckets(names)),
        )

    @contextmanager
    def pipeline(self) -> Generator[psycopg.Pipeline]:
        """Run the block in pipeline mode; blocks are not nested."""
        assert self.running is None
        with super().pipeline() as pipeline:
            self.running = pipeline
            try:
                yield pipeline
            finally:
                self.running = None


class ExchangeCursor(psycopg.Cursor[TupleRow]):
    """Result of a statement; waiting for it ends the exchange."""

    @property
    def rowcount(self) -> int:
        """How many rows the statement changed or returned."""
        self._end_exchange()
        return super().rowcount

    def fetchone(self) -> TupleRow | None:
        """Return the next row, None after the last."""
        self._end_exchange()
        return super().fetchone()

    def fetchall(self) -> list[TupleRow]:
        """Return all rows that are left."""
        self._end_exchange()
        return super().fetchall()

    def __iter__(self) -> Self:
        """Return an iterator over the rows that are left."""
        self._end_exchange()
        return super().__iter__()

    def _end_exchange(self) -> None:
        # Once it has ended, all cursors of the exchange have their results.
        connection: psycopg.Connection[Any] = self.connection
        assert isinstance(connection, ExchangeConnection)
        if not self.pgresult and connection.running is not None:
            connection.running.sync()


_logger = logging.getLogger(__name__)


class Watchdog:
    """Breaks connections whose use takes too long; one thread.

    Args:
        look_seconds: How often it looks; a call may last this much longer than its bound.
        broken: Called before it breaks some, on its thread, with the lock held.
    """

    def __init__(self, look_seconds: float, broken: Callable[[], None]) -> None:
        self._look_seconds = look_seconds
        self._broken = broken
        self.lock = threading.Lock()
        """Guards the attributes below."""
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
        while not self._closing.wait(self._look_seconds):
            now = time.monotonic()
            with self.lock:
                late = [each for each, until in self.until.items() if until < now]
                if late:
                    # First: whose call ends would open another connection, and wait for that.
                    self._broken()
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


Connection = ExchangeConnection
"""The type of connection that `Loan` lends."""

CONNECTIONS_MAX = 8
"""Connections of one process, beside the one that listens."""

CONNECTION_WAIT_SECONDS_MAX = 30.0
"""How long a call waits for a connection before it is refused with `Unavailable`."""

CONNECT_SECONDS_MAX = 5
"""How long opening a connection may take, for each of the server's addresses."""

HANGS_SECONDS = 0.5
"""A connect that fails after more is one that had no answer."""

SILENCE_SECONDS_MAX = 10
"""How long a connection may go without an acknowledgement before it counts as broken, about."""


@dataclass(frozen=True, slots=True)
class PostgresBounds:
    """How long each thing at the server may take, in seconds."""

    lock: float = 10
    """A statement's wait for a lock."""

    statement: float = 60
    """A statement."""

    idle_in_transaction: float = 10
    """Two statements of a transaction, which keeps locks: its node is paused or gone."""

    use: float = 120.0
    """A transaction in all, before its connection is broken off."""

    outcome: float = 120.0
    """Asking for the outcome of a transaction before it is reported as in doubt."""

    watchdog_look: float = 0.5
    """How often the watchdog looks for connections that are over their time."""

    listener_look: float = 4.0
    """How often the listener looks whether it was told of everything."""


BOUNDS = PostgresBounds()

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
        """Polls the connection's descriptor."""

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
        seconds: How long to wait for it, and then before it is broken off; None: the bound of
            `use`.

    Raises:
        Unavailable: None came free in time, or closed.
        psycopg.OperationalError: The server cannot be reached, or refuses; at once where connects
            hang.
        InvalidArgument: The database is not in UTF-8.
    """

    __slots__ = ("_connections", "_seconds", "_slot")

    def __init__(self, connections: "PostgresConnections", seconds: float | None = None) -> None:
        self._connections = connections
        self._seconds = connections.bounds.use if seconds is None else seconds

    def __enter__(self) -> Connection:
        """Return the connection; blocks until one is free, or is opened."""
        connections = self._connections
        self._slot = slot = connections.slots.acquire(self._seconds)
        try:
            # Found before anything is sent: whether that was carried out is no question then.
            if slot.connection is not None and slot.poller.poll(0):
                slot.check(slot.connection)
            if slot.connection is None:
                slot.connection = connections.open_at_once()
                slot.poller = select.poll()
                slot.poller.register(slot.connection.fileno(), select.POLLIN)
            watchdog = connections.watchdog
            with watchdog.lock:
                watchdog.until[slot.connection] = time.monotonic() + self._seconds
        except BaseException:
            connections.slots.release(slot, is_last=slot.connection is None)
            raise
        return slot.connection

    def __exit__(self, *_: object) -> None:
        """Give it back."""
        slot, connections = self._slot, self._connections
        assert slot.connection is not None
        with connections.watchdog.lock:
            connections.watchdog.until.pop(slot.connection, None)
        is_idle = slot.connection.pgconn.transaction_status == TransactionStatus.IDLE
        if not is_idle:
            slot.discard()
        elif connections.away is not None:
            connections.note_answer()
        connections.slots.release(slot, is_last=not is_idle)


@dataclass(frozen=True, slots=True)
class Away:
    """An outage of the server."""

    since: float
    """When a connection could not be opened first, or hung, by `time.monotonic`; of connects that
    hang beside calls that are answered, the last answer."""
    reason: str
    """Why, at the last try."""
    hangs: bool
    """Whether a connect waits in vain, and is not refused at once; then a thread connects."""


class PostgresConnections:
    """Opens the connections to one database, which `Loan` lends.

    Where the server does not answer, no caller waits for a connect any more, which takes seconds: a
    thread connects, until it can. One that refuses is asked by each caller, so that it is used at
    once when it is back.

    Args:
        url: `postgresql://…`, or any connection string of libpq.
        schema: The schema that holds the tables.
        read_only: Transactions cannot write.
        bounds: How long each thing may take.

    Raises:
        InvalidArgument: The URL cannot be read; the message does not repeat it.

    Attributes:
        away: The present outage, None without one.
    """

    away: Away | None = None

    def __init__(
        self,
        url: str,
        schema: str,
        *,
        read_only: bool = False,
        bounds: PostgresBounds = BOUNDS,
    ) -> None:
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
        self.bounds = bounds
        self._lock = threading.Lock()
        """Guards changes of `away`; a leaf."""
        self._closing = threading.Event()
        self.watchdog = Watchdog(
            bounds.watchdog_look,
            lambda: self._note_away("the server does not answer", hangs=True),
        )
        self.slots = FairPool(
            "a connection to metadata",
            [_Slot() for _ in range(CONNECTIONS_MAX)],
            CONNECTION_WAIT_SECONDS_MAX,
        )

    def open_at_once(self) -> Connection:
        """Open a connection as `open`; while connects hang, fails at once."""
        away = self.away
        if away is not None and away.hangs:
            raise psycopg.OperationalError(away.reason)
        began = time.monotonic()
        try:
            connection = self.open()
        except psycopg.OperationalError as error:
            self._note_away(str(error), hangs=time.monotonic() > began + HANGS_SECONDS)
            raise
        self.note_answer()
        return connection

    def note_answer(self) -> None:
        """End an outage; but where connects hang, one of them has to work first."""
        with self._lock:
            away = self.away
            if away is not None:
                self.away = replace(away, since=time.monotonic()) if away.hangs else None

    def _note_away(self, reason: str, *, hangs: bool) -> None:
        with self._lock:
            away = self.away
            if away is not None and away.hangs:
                return
            since = time.monotonic() if away is None else away.since
            self.away = Away(since, reason, hangs)
        if hangs:
            # Nothing waits for its end: a connect takes seconds.
            waits = threading.Thread(
                target=self._await_return, name="wings-postgres-return", daemon=True
            )
            try:
                waits.start()
            except RuntimeError:  # There are too many: callers connect.
                with self._lock:
                    self.away = Away(since, reason, hangs=False)

    def _await_return(self) -> None:
        """Connect until that works, or is refused."""
        hangs = True
        while hangs and not self._closing.is_set():
            began, reason, hangs = time.monotonic(), None, False
            try:
                with contextlib.suppress(InvalidArgument):  # The next caller is told.
                    discard(self.open())
            except psycopg.OperationalError as error:
                reason, hangs = str(error), time.monotonic() > began + HANGS_SECONDS
            finally:  # Whatever went wrong: or no caller would ever connect.
                with self._lock:
                    assert self.away is not None
                    since = self.away.since
                    self.away = None if reason is None else Away(since, reason, hangs)

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
                        f"{self.bounds.lock}s",
                        f"{self.bounds.statement}s",
                        f"{self.bounds.idle_in_transaction}s",
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
                    connection.execute(_TRANSACTION, (f"{round(self.bounds.use)}s",))
        except BaseException:
            discard(connection)
            raise
        return connection

    def close(self) -> None:
        """Close all connections, waiting for those in use for the usual time."""
        self._closing.set()
        for slot in self.slots.close():
            slot.discard()
        self.watchdog.close()
