"""Exchanges with PostgreSQL: several statements are sent, and their results are waited for once.

**Each exchange ends with a Sync.** psycopg's pipeline mode asks for results by a Flush. To the
server the transaction is then busy until the next Sync, so that no time-out ends it while a node is
paused or gone, and its locks stay. After a Sync it is idle in a transaction, which the server
bounds. A transaction that was begun by BEGIN goes on over any number of them. While an exchange is
being sent no such bound counts; see `Database._end_silent`.

**A Sync also ends the skipping of what follows an error.** The transaction is aborted then, so what
comes after fails by itself, the row in `outcomes` too. No exchange may end between that row and
COMMIT: alone, COMMIT would undo an aborted transaction without a complaint.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString, Self

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGresult
from psycopg.rows import TupleRow

from wings_core.metadata.store.locks import Lock, buckets

ROWS_MANY = 200
"""From so many rows on a plan of its own costs little beside what it is for."""

OUTCOMES_KEPT_SECONDS = 3_600
"""Outcomes older than this are purged: far older than any that are asked for."""

_NOT_PREPARED = b"26000"


class ExchangeConnection(psycopg.Connection[TupleRow]):
    """A connection that knows whether it is in pipeline mode, and takes the locks of `locks`."""

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
    """What a statement returns; where that is waited for, the exchange ends."""

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
