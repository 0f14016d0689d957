"""The durable ranges of a replica of holds in PostgreSQL.

**One process at a time.** Two that served the same ranges would grant the same message twice. So a
process owns them by a lease: a row that it renews, and that no other takes before it is over
by the server's clock. Every write makes sure, in its transaction, that the row is still its own.
A process that cannot renew its lease in time answers nothing, not even from memory.

**A write whose answer was lost.** It may have been committed or not. Nothing is written after it
until all is loaded again, after a transaction that waits for the row of the lease, which each
write locks: so the lost write is over by then, whatever its outcome.

**A load of any size.** It reads in chunks, each a call with its own bound, and leaves the row of
the lease alone, so that the lease is renewed meanwhile. All chunks see the same, as none writes
between them: this process does not, as the calls of a store do not overlap and its lost writes are
over; another one does not without a token of its own in the row, which is looked at again at
the end.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from wings_core.metadata.postgres.connections import (
    BOUNDS,
    Connection,
    PostgresBounds,
    PostgresConnections,
)
from wings_core.metadata.postgres.schema import step
from wings_core.metadata.store.database import Versions
from wings_core.partitions import Partition
from wings_core.share.model import ShareKey
from wings_core.share.replica.postgres_lease import (
    CALL_SECONDS_MAX,
    LEASE_SECONDS,
    MARGIN_SECONDS,
    PostgresLease,
    Session,
    told_of_holds,
)
from wings_core.share.replica.store import Mark, PartitionWrite, Row, StoredPartition
from wings_core.times import now_us

SCHEMA = "wings_holds"
"""The schema of a replica that is given no other: each replica has one of its own."""

CHUNK_ROWS = 10_000
"""Rows that are read or deleted in one call, where it may be any number."""

_PARTITIONS = """
SELECT id, group_uuid, topic_uuid, partition, start_offset FROM partitions
WHERE id > %s ORDER BY id LIMIT %s
"""

_RANGES = """
SELECT partition_id, first, last, count FROM {}
WHERE (partition_id, first) > (%s, %s) ORDER BY partition_id, first LIMIT %s
"""

_FORGET = """
WITH gone AS MATERIALIZED (
    SELECT partition_id, first FROM {0}
    WHERE partition_id = ANY(ARRAY(SELECT id FROM partitions WHERE group_uuid = %s)) LIMIT %s
)
DELETE FROM {0} WHERE (partition_id, first) IN (SELECT partition_id, first FROM gone)
"""

_INITIAL: Sequence[LiteralString] = (
    """
    CREATE TABLE owner (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        token UUID, -- Of the process; null: no process's.
        expires_at TIMESTAMPTZ NOT NULL
    )
    """,
    "INSERT INTO owner (id, token, expires_at) VALUES (1, NULL, '-infinity')",
    """
    CREATE TABLE partitions (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        group_uuid TEXT COLLATE "C" NOT NULL,
        topic_uuid TEXT COLLATE "C" NOT NULL,
        partition TEXT COLLATE "C" NOT NULL,
        start_offset BIGINT NOT NULL,
        UNIQUE (group_uuid, topic_uuid, partition)
    ) WITH (fillfactor = 50)
    """,
    """
    CREATE TABLE finished (
        partition_id BIGINT NOT NULL,
        first BIGINT NOT NULL,
        last BIGINT NOT NULL,
        count INTEGER NOT NULL,
        PRIMARY KEY (partition_id, first)
    )
    """,
    """
    CREATE TABLE counts (
        partition_id BIGINT NOT NULL,
        first BIGINT NOT NULL,
        last BIGINT NOT NULL,
        count INTEGER NOT NULL,
        PRIMARY KEY (partition_id, first)
    )
    """,
    """
    CREATE TABLE marks (
        group_uuid TEXT COLLATE "C" PRIMARY KEY,
        boot_id TEXT NOT NULL,
        expires_at DOUBLE PRECISION NOT NULL,
        ttl_seconds DOUBLE PRECISION NOT NULL
    ) WITH (fillfactor = 50)
    """,
)

_ADDRESS: Sequence[LiteralString] = (
    # Where other processes reach the owner, if they do.
    "ALTER TABLE owner ADD COLUMN address TEXT",
)

VERSIONS = Versions((*_INITIAL, *_ADDRESS), 1, (_ADDRESS,))
"""Each brings the schema from the version before it (its index) to the next."""


class PostgresHoldStore:
    """A `HoldStore` in a schema of PostgreSQL, which this process owns until it is closed.

    Args:
        url: `postgresql://…`, or any connection string of libpq; never repeated in an error.
        schema: Created if it is not there; another one for each replica.
        claim_seconds: How long to wait for the lease of another process to be over.
        lease_seconds: How long the lease is.
        address: Where others reach this process, for `OwnerLookup`.
        margin_seconds: How much earlier the lease is over here than at the server.
        call_seconds: How long the server may take for one transaction.
        bounds: How long each thing at the server may take.

    Raises:
        InvalidArgument: The URL cannot be read.
        Unavailable: The server cannot be reached, or another process owns the schema.
        Internal: A newer version of Wings wrote it, or it is something else.
    """

    def __init__(
        self,
        url: str,
        schema: str = SCHEMA,
        *,
        claim_seconds: float = 2 * LEASE_SECONDS,
        lease_seconds: float = LEASE_SECONDS,
        address: str | None = None,
        margin_seconds: float = MARGIN_SECONDS,
        call_seconds: float = CALL_SECONDS_MAX,
        bounds: PostgresBounds = BOUNDS,
    ) -> None:
        self._schema = schema
        self._connections = PostgresConnections(url, schema, bounds=bounds)
        self._session = Session(self._connections, call_seconds)
        self._lease = PostgresLease(
            self._connections,
            lease_seconds,
            address,
            margin_seconds=margin_seconds,
            call_seconds=call_seconds,
        )
        self._ids: dict[ShareKey, int] = {}
        self._stale = False
        self._closed = False
        try:
            with told_of_holds():
                self._migrate()
                self._lease.claim(claim_seconds)
        except BaseException:
            self.abandon()
            raise

    @property
    def is_lost(self) -> bool:
        """Whether another process has taken over; this object is of no use any more."""
        return self._lease.is_lost

    @property
    def is_stale(self) -> bool:
        """Whether a write failed that may have been done."""
        return self._stale

    def check(self) -> None:
        """Make sure that the lease is this process's; never waits.

        Raises:
            Unavailable: It is over, or cannot be renewed at the moment.
        """
        self._lease.check()

    def load(self) -> list[StoredPartition]:
        """Return all partitions; called before anything is written, and when `is_stale`.

        Blocks for as long as it takes to read them, in calls that are bounded each.
        """
        with told_of_holds():
            self._make_sure()  # Nothing that was sent before is on its way any more.
            loaded = read_partitions(self._session.transaction)
            self._make_sure()  # No other process wrote meanwhile.
        self._ids = {stored.key: number for number, stored in loaded.items()}
        self._stale = False
        return list(loaded.values())

    def marks(self) -> dict[str, Mark]:
        """Return the marks of all groups, by UUID."""
        with told_of_holds(), self._owned() as connection:
            rows = connection.execute(
                "SELECT group_uuid, boot_id, expires_at, ttl_seconds FROM marks"
            ).fetchall()
        return {group_uuid: Mark(*mark) for group_uuid, *mark in rows}

    def write(self, writes: Sequence[PartitionWrite], marks: dict[str, Mark | None]) -> None:
        """Make changes and marks durable in one transaction; see `HoldStore.write`."""
        new: dict[ShareKey, int] = {}
        with self._writing() as connection:
            for write in writes:
                number = self._ids.get(write.key)
                if number is None:
                    number = new[write.key] = _create(connection, write)
                else:
                    connection.execute(
                        "UPDATE partitions SET start_offset = %s "
                        "WHERE id = %s AND start_offset != %s",
                        (write.start_offset, number, write.start_offset),
                    )
                _change(
                    connection, "finished", number, write.finished_removed, write.finished_added
                )
                _change(connection, "counts", number, write.counts_removed, write.counts_added)
            _write_marks(connection, marks)
        self._ids.update(new)

    def forget(self, group_uuid: str) -> None:
        """Delete all of a group durably, in calls that are bounded each.

        Where one fails, a part of it may be gone: no request names a deleted group.
        """
        more = True
        while more:
            with self._writing() as connection:
                more = _forget_some(connection, group_uuid)
        for key in [key for key in self._ids if key.group_uuid == group_uuid]:
            del self._ids[key]

    def close(self) -> None:
        """Give the lease back, and close the connections; does nothing the second time."""
        if not self._closed:
            self._lease.release()
            self._disconnect()

    def abandon(self) -> None:
        """Close the connections and leave the lease as it is, as a crash does."""
        self._lease.abandon()
        self._disconnect()

    # Inside.

    @contextmanager
    def _owned(self) -> Generator[Connection]:
        """Run the block in a transaction that keeps others from the lease, and its late writes."""
        with self._session.transaction() as connection:
            self._lease.lock(connection)
            yield connection

    def _make_sure(self) -> None:
        """Make sure that this process has the lease, and wait for writes on their way."""
        with self._owned():
            pass

    @contextmanager
    def _writing(self) -> Generator[Connection]:
        with told_of_holds():
            try:
                with self._owned() as connection:
                    yield connection
            except psycopg.Error:
                self._stale = True
                raise

    def _migrate(self) -> None:
        more = True
        while more:
            with self._session.transaction() as connection:
                more = step(connection, self._schema, now_us(), VERSIONS)

    def _disconnect(self) -> None:
        self._closed = True
        self._session.close()
        self._connections.close()


def read_partitions(
    lent: Callable[[], AbstractContextManager[Connection]],
) -> dict[int, StoredPartition]:
    """Return all partitions, by their numbers.

    Args:
        lent: Lends a connection for one chunk of rows; no chunk may see another state.
    """
    partitions: dict[int, StoredPartition] = {}
    for number, group_uuid, topic_uuid, partition, start_offset in _chunks(
        lent, sql.SQL(_PARTITIONS), (0,)
    ):
        key = ShareKey(group_uuid, topic_uuid, Partition(partition))
        partitions[number] = StoredPartition(key, start_offset)
    for table in ("finished", "counts"):
        statement = sql.SQL(_RANGES).format(sql.Identifier(table))
        for number, *row in _chunks(lent, statement, (0, 0)):  # Ids begin at 1.
            stored = partitions.get(number)
            if stored is not None:  # Else of a group that is being forgotten.
                ranges = stored.finished if table == "finished" else stored.counts
                ranges.append((row[0], row[1], row[2]))
    return partitions


def _chunks(
    lent: Callable[[], AbstractContextManager[Connection]],
    statement: sql.SQL | sql.Composed,
    after: tuple[int, ...],
) -> Iterator[tuple[Any, ...]]:
    """Go through rows by their key, which are the first columns, from after one on."""
    more = True
    while more:
        with lent() as connection:
            rows = connection.execute(statement, (*after, CHUNK_ROWS)).fetchall()
        yield from rows
        more = len(rows) == CHUNK_ROWS
        if more:
            after = rows[-1][: len(after)]


def _forget_some(connection: Connection, group_uuid: str) -> bool:
    """Delete some of a group's ranges, with the last of them the group; tell if there are more."""
    left = CHUNK_ROWS
    for table in ("finished", "counts"):
        left -= connection.execute(
            sql.SQL(_FORGET).format(sql.Identifier(table)), (group_uuid, left)
        ).rowcount
    if left == 0:
        return True
    connection.execute("DELETE FROM partitions WHERE group_uuid = %s", (group_uuid,))
    connection.execute("DELETE FROM marks WHERE group_uuid = %s", (group_uuid,))
    return False


def _create(connection: Connection, write: PartitionWrite) -> int:
    key = write.key
    row = connection.execute(
        "INSERT INTO partitions (group_uuid, topic_uuid, partition, start_offset) "
        "VALUES (%s, %s, %s, %s) RETURNING id",
        (key.group_uuid, key.topic_uuid, key.partition, write.start_offset),
    ).fetchone()
    assert row is not None
    return int(row[0])


def _change(
    connection: Connection,
    table: LiteralString,
    number: int,
    removed: list[int],
    added: list[Row],
) -> None:
    name = sql.Identifier(table)
    if removed:
        connection.execute(
            sql.SQL("DELETE FROM {} WHERE partition_id = %s AND first = ANY(%s)").format(name),
            (number, removed),
        )
    if added:
        firsts, lasts, counts = zip(*added, strict=True)
        connection.execute(
            sql.SQL(
                "INSERT INTO {} SELECT %s, * FROM unnest(%s::bigint[], %s::bigint[], %s::int[])"
            ).format(name),
            (number, list(firsts), list(lasts), list(counts)),
        )


def _write_marks(connection: Connection, marks: Mapping[str, Mark | None]) -> None:
    for group_uuid, mark in marks.items():
        if mark is None:
            connection.execute("DELETE FROM marks WHERE group_uuid = %s", (group_uuid,))
            continue
        connection.execute(
            "INSERT INTO marks VALUES (%s, %s, %s, %s) ON CONFLICT (group_uuid) DO UPDATE SET "
            "boot_id = excluded.boot_id, expires_at = excluded.expires_at, "
            "ttl_seconds = excluded.ttl_seconds",
            (group_uuid, mark.boot_id, mark.expires_at, mark.ttl_seconds),
        )
