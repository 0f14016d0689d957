"""Transactions on PostgreSQL, retried where that may help, with a known outcome.

**A lost response.** Where the connection breaks while COMMIT is under way, the transaction
may have been committed or not. So the last statement of every transaction writes a row of its own
into `outcomes`, under an id that is unique. To find out, another connection inserts the same
id, marked as not committed. The unique index makes it wait until the first transaction has
ended, also where its connection broke. If that was committed, its row is there. If not, the mark
is: should the first transaction still be under way, its own row can no longer be inserted, so it
can never be committed. Only then is the work retried.
"""

import itertools
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar
from uuid import uuid4

import psycopg
from psycopg.pq import TransactionStatus

from wings_core.errors import Internal, Unavailable, WingsError
from wings_core.metadata.deadlines import look_ends, tries_end
from wings_core.metadata.postgres.connections import Connection, Loan, PostgresConnections
from wings_core.metadata.postgres.faults import discard, passing, translated
from wings_core.metadata.store.database import Notification, RunAgain, no_notification
from wings_core.times import now_us

PARTITION_BYTES_MAX = 2_048
"""The longest partition value, as JSON in UTF-8. An entry of an index holds 2,704 bytes at most, on
pages of the usual size: a value, a topic, and for offsets the longest name of a consumer."""

RETRY_SECONDS_MAX = 20.0
"""How long a call is retried before it is refused with `Unavailable`; and how long calls are, from
the moment that the server cannot be reached."""

PAUSE_SECONDS_MIN = 0.02
PAUSE_SECONDS_MAX = 1.0
"""The pauses between tries: doubled each time, and cut at random."""

_END_SILENT = """
SELECT pg_terminate_backend(activity.pid) FROM pg_stat_activity AS activity
WHERE activity.datname = current_database() AND activity.usename = current_user
AND activity.state = 'active' AND activity.wait_event = 'ClientRead'
AND activity.query_start < clock_timestamp() - make_interval(secs => %s)
AND EXISTS (
    SELECT FROM pg_locks JOIN pg_class ON pg_class.oid = pg_locks.relation
    JOIN pg_namespace ON pg_namespace.oid = pg_class.relnamespace
    WHERE pg_locks.pid = activity.pid AND pg_namespace.nspname = current_schema()
)
"""
"""Ends transactions on these tables whose next statement has not come for so many seconds."""

_DECIDE = "INSERT INTO outcomes (id, committed, decided_at) VALUES (%s, %s, now())"

_DECIDE_AND_TELL = (
    "INSERT INTO outcomes (id, committed, decided_at, node) "
    "VALUES (%s, true, clock_timestamp(), %s)"
)

T = TypeVar("T")
A = TypeVar("A", bound="_Attempt[Any] | _StatementCall")

_logger = logging.getLogger(__name__)


class PostgresDatabase:
    """A `Database` in PostgreSQL.

    Args:
        connections: To the database.
        notify: Called with what a transaction changed, and its id, once that is durable, on the
            thread that committed it, without a lock held.
        retry_seconds: How long a call is retried.
        clock: Microseconds since the epoch, for all. None: the server's; but for what counts as a
            lease, as it was when a lease was last looked at, carried on by this machine's.
    """

    partition_bytes_max = PARTITION_BYTES_MAX

    def __init__(
        self,
        connections: PostgresConnections,
        notify: Callable[[Notification, str], None],
        retry_seconds: float = RETRY_SECONDS_MAX,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.node = uuid4().hex[:16]
        """Sent to all nodes with every notification, so that this one knows its own, and stored
        with the outcomes of transactions that others are told of."""
        self._numbers = itertools.count()
        self._connections = connections
        self._notify = notify
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._ahead_us = 0
        """How far the server's clock was ahead of this machine's when it was last looked at."""
        self._closing = threading.Event()

    def read(self, work: Callable[[Connection], T], /) -> T:
        """Run one statement, or several that need not see the same state; see `Database.read`."""
        began, ends, last = time.monotonic(), look_ends(), False
        tries: Iterator[bool] | None = None
        while True:
            seconds = min(self._connections.bounds.use, ends - time.monotonic())
            try:
                with Loan(self._connections, seconds) as connection:
                    return work(connection)
            except psycopg.Error as error:
                if last or time.monotonic() >= ends or not passing(error):
                    raise translated(error) from error
            tries = tries or self._further_tries(self._until(began))
            last = next(tries)

    def write(
        self,
        work: Callable[[Connection], T],
        notification: Callable[[T], Notification | None] = no_notification,
        /,
        *,
        committed: Callable[[T], None] | None = None,
        keeps_cache: bool = False,
        seconds: float | None = None,
    ) -> T:
        """Run a durable transaction; see `Database.write`.

        Args:
            work: Run within the transaction, in pipeline mode: the result of a statement is waited
                for when it is fetched. May raise `RunAgain`.
            notification: Makes the notification of all nodes from the result of `work`.
            committed: Called with the result once it is durable.
            keeps_cache: Ignored here, where other nodes commit too.
            seconds: How long it may take in all; None: the bound of `use`.
        """
        del keeps_cache
        attempt = self._run(lambda: _Attempt(self.new_id(), self.node, work, notification), seconds)
        if committed is not None:
            committed(attempt.result)
        if attempt.notified is not None:
            self._notify(attempt.notified, attempt.id)
        return attempt.result

    def call(
        self,
        send: Callable[[Connection, str], bool],
        notification: Callable[[], Notification | None],
    ) -> None:
        """Run a durable transaction that is one call of a function, and notify all nodes of it.

        Args:
            send: Calls the function, for the transaction of the id given: as a transaction of its
                own, and where it returns false within one, until it returns true. The function
                writes the outcome of the transaction. May be run several times.
            notification: Notification of all nodes, sent once the work is durable.
        """
        attempt = self._run(lambda: _StatementCall(self.new_id(), send), None)
        changed = notification()
        if changed is not None:
            self._notify(changed, attempt.id)

    def _run(self, attempt_of: Callable[[], A], seconds: float | None) -> A:
        """Return the first attempt that took effect."""
        if self._connections.read_only:
            raise Internal("metadata was opened for reading only")
        began, last = time.monotonic(), False
        tries: Iterator[bool] | None = None  # Most need none.
        while True:
            attempt = attempt_of()
            try:
                with Loan(self._connections, seconds) as connection:
                    attempt.run(connection)
                return attempt
            except (psycopg.Error, RunAgain) as error:
                if attempt.in_doubt:
                    _logger.warning("the answer to a commit of metadata was lost: %s", error)
                    if self._took_effect(attempt.id):
                        return attempt
                elif not passing(error):
                    raise translated(error) from error
                if last:
                    raise translated(error) from error
                if not attempt.in_doubt:
                    self._end_silent(error)
            tries = tries or self._further_tries(self._until(began))
            last = next(tries)

    def end_retries(self) -> None:
        """End all retries, those under way too; see `Metadata.end_retries`."""
        self._closing.set()

    @property
    def closing(self) -> threading.Event:
        """Set when retries are to end."""
        return self._closing

    def new_id(self) -> str:
        """Return the id of a transaction, a UUID: its neighbours lie together in the index."""
        return f"{self.node}{next(self._numbers):016x}"

    def _end_silent(self, error: Exception) -> None:
        """End the transactions of nodes that are paused or gone, where a lock was not had in time.

        The server does so by itself, but not while a node sends one write after another.
        """
        if not isinstance(error, psycopg.errors.LockNotAvailable):
            return
        try:
            with Loan(self._connections) as connection:
                ended = connection.execute(
                    _END_SILENT, (self._connections.bounds.idle_in_transaction,)
                ).fetchall()
        except (psycopg.Error, Unavailable) as failure:
            _logger.warning("no transaction of a silent node could be ended: %s", failure)
            return
        if ended:
            _logger.warning("%s transactions of silent nodes were ended", len(ended))

    def now(self) -> int:
        """Return the time, in microseconds since the epoch: much the same in all processes."""
        return now_us() + self._ahead_us if self._clock is None else self._clock()

    def lease_now(self, connection: Connection, /) -> int:
        """Return the server's time, at this moment and not at the transaction's beginning.

        A lease that one process granted must not look expired to another, nor the owner of a shard
        gone, however far their clocks are apart.
        """
        if self._clock is not None:
            return self._clock()
        asked = now_us()
        row = connection.execute(
            "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
        ).fetchone()
        assert row is not None
        now = int(row[0])
        self._ahead_us = now - (asked + now_us()) // 2
        return now

    def _took_effect(self, transaction: str) -> bool:
        """Return whether a transaction was committed, after which it cannot be any more.

        Where that is not found out, and it was, it counts as not told of in a few seconds.

        Raises:
            Unavailable: The outcome could not be determined in time (fact `in_doubt`).
        """

        def ask(connection: Connection) -> bool:
            try:
                connection.execute(f"{_DECIDE} ON CONFLICT DO NOTHING", (transaction, False))
            except psycopg.errors.UndefinedTable:
                # It was to make the table. Should it still come to that, the next try waits for it:
                # by a lock that all of them take.
                return False
            row = connection.execute(
                "SELECT committed FROM outcomes WHERE id = %s", (transaction,)
            ).fetchone()
            assert row is not None, "outcomes are kept for longer than they are asked for"
            return bool(row[0])

        reason: WingsError | None = None
        for _ in self._tries(self._connections.bounds.outcome):
            try:
                with Loan(self._connections) as connection:
                    return ask(connection)
            except psycopg.Error as error:
                reason = translated(error)
            except Unavailable as error:
                reason = error
        raise Unavailable(
            f"it is not known whether this was committed: {reason}", in_doubt=True
        ) from reason

    def _tries(self, seconds: float) -> Iterator[bool]:
        """Yield before each try whether it is the last, with a pause before each but the first."""
        until = time.monotonic() + seconds
        yield False
        yield from self._further_tries(until)

    def _until(self, began: float) -> float:
        """Return until when a call is tried again, once it failed.

        A server that has been away for longer is not waited for by one call after the other.
        """
        away = self._connections.away
        since = began if away is None else min(began, away.since)
        return min(since + self._retry_seconds, tries_end())

    def _further_tries(self, until: float) -> Iterator[bool]:
        """Yield before each try but the first, after a pause, whether it is the last."""
        pause = PAUSE_SECONDS_MIN
        while time.monotonic() + pause < until:
            if self._closing.wait(pause * random.uniform(0.5, 1)):
                break
            yield False
            pause = min(2 * pause, PAUSE_SECONDS_MAX)
        yield True


class _Attempt(Generic[T]):
    """One try at a transaction, which decides its outcome within it."""

    result: T
    notified: Notification | None

    def __init__(
        self,
        transaction: str,
        node: str,
        work: Callable[[Connection], T],
        notification: Callable[[T], Notification | None],
    ) -> None:
        self.id = transaction
        self.in_doubt = False
        """Whether COMMIT was sent, and its outcome is not known."""
        self._node = node
        self._work = work
        self._notification = notification

    def run(self, connection: Connection) -> None:
        """Run and commit it; where this raises, `in_doubt` tells whether it may be committed."""
        try:
            with connection.pipeline():
                connection.execute("BEGIN")
                self.result = self._work(connection)
                self.notified = self._notification(self.result)
                if self.notified is None:
                    connection.execute(_DECIDE, (self.id, True))
                else:
                    connection.execute(_DECIDE_AND_TELL, (self.id, self._node))
                self.in_doubt = True
                connection.execute("COMMIT")
            self.in_doubt = False
        except BaseException as error:
            status = connection.info.transaction_status
            if status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
                # It is still open, so COMMIT was not reached.
                self.in_doubt = False
                if isinstance(error, psycopg.Error):
                    # What was sent behind the statement that failed was skipped, the preparation of
                    # statements too; psycopg takes those for prepared (found by a test).
                    discard(connection)
                else:
                    _roll_back(connection)
            raise


class _StatementCall:
    """One try at a transaction that is a call, or several of which the last one changes anything.

    Args:
        transaction: Its id.
        send: Sends the statement; see `PostgresDatabase.call`.
    """

    def __init__(self, transaction: str, send: Callable[[Connection, str], bool]) -> None:
        self.id = transaction
        self.in_doubt = False
        """True where it was sent and its outcome is not known."""
        self._send = send

    def run(self, connection: Connection) -> None:
        """Send it; where this raises, `in_doubt` tells whether it may be committed."""
        self.in_doubt = True
        try:
            if not self._send(connection, self.id):
                connection.command("BEGIN")
                # The first call there finds what is stored, and keeps it as it is for the second.
                if not any(self._send(connection, self.id) for _ in range(2)):
                    raise RunAgain("what is stored has changed under its locks")
                connection.command("COMMIT")
            self.in_doubt = False
        except BaseException:
            # The server has answered, so it was refused.
            status = connection.info.transaction_status
            self.in_doubt = status in (TransactionStatus.ACTIVE, TransactionStatus.UNKNOWN)
            raise


def _roll_back(connection: Connection) -> None:
    try:
        connection.execute("ROLLBACK")
    except psycopg.Error:
        discard(connection)
