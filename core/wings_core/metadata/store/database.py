"""The database under a store of metadata: connections, transactions, and what is its own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, LiteralString, Protocol, TypeVar

from wings_core.metadata.located import ManyLocated
from wings_core.metadata.store.locks import Lock
from wings_core.metadata.waiting import Waiters
from wings_core.model import (
    CommitBatch,
    CommitResult,
    FlushId,
    InlineFolio,
    Located,
    LocatedPartition,
)
from wings_core.partitions import Partition

T = TypeVar("T")


class RunAgain(Exception):  # noqa: N818 - not an error: another transaction was faster
    """Raised within a transaction that must be run again, on what is there now."""


class Cursor(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """How many rows the statement changed; not known in SQLite where it begins by WITH."""
        ...

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row, None after the last."""
        ...

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all rows that are left."""
        ...


class Connection(Protocol):
    """A connection lent for one transaction, or for statements that need none."""

    def execute(
        self,
        query: LiteralString,
        params: Sequence[Any] | Mapping[str, Any] | None = None,
        /,
    ) -> Cursor:
        """Send a statement of PostgreSQL's SQL; its result is waited for when it is fetched."""
        ...

    def execute_rows(
        self,
        query: LiteralString,
        columns: Mapping[str, Sequence[Any]],
        params: Mapping[str, Any] | None = None,
        /,
    ) -> Cursor:
        """Send a statement over rows that are given, many at once.

        Args:
            query: Reads them as `{given}`, a table of that name.
            columns: Columns by name and type in PostgreSQL, such as `id bigint`; all of one length.
                Beside them the table has `place`, the number of each row.
            params: Further ones, by name.
        """
        ...

    def expect_rows(self, rows: int) -> None:
        """Say that the rest of the transaction goes over so many rows of a table."""
        ...

    def take_lock(self, lock: Lock, names: Iterable[str] = ("",)) -> None:
        """Lock names exclusively until the end of the transaction; see `locks`."""
        ...

    def share_lock(self, lock: Lock, names: Iterable[str]) -> None:
        """Lock names until the end of the transaction, shared with others that call this."""
        ...

    def note(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Keep rows that were written for a repair, where that needs them; they must not change."""
        ...

    def purge_outcomes(self, rows_max: int) -> int:
        """Delete up to so many outcomes of transactions, where they are kept; return how many."""
        ...


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class Notification:
    """Changes by a transaction, which wake the waiters."""

    ends: Mapping[tuple[str, Partition], int] = field(
        default_factory=dict[tuple[str, Partition], int]
    )
    """The next offset of partitions written to, by topic UUID and partition."""
    topics: tuple[str, ...] = ()
    """UUIDs of topics that were deleted, or of which any partition was written to."""
    everything: bool = False
    """Whether any partition of any topic may have been written to."""

    def wake(self, waiters: Waiters) -> None:
        """Call back the waiters that any of it concerns."""
        if self.everything:
            waiters.notify_all()
        if self.ends:
            waiters.notify(self.ends)
        for topic_uuid in self.topics:
            waiters.notify_deleted(topic_uuid)


def of_ends(ends: Mapping[tuple[str, Partition], int]) -> Notification | None:
    """Return the notification of a commit, None where it wrote nothing."""
    return Notification(ends) if ends else None


def no_notification(_: object) -> Notification | None:
    """Return None: the transaction changed nothing that a call waits for."""
    return None


class Database(Protocol):
    """Runs reads and transactions, and notifies waiters of what was committed."""

    partition_bytes_max: int
    """The longest partition value that the database stores, as JSON in UTF-8."""

    def read(self, work: Callable[[Connection], T], /) -> T:
        """Run one statement, or several that need not see the same state.

        Args:
            work: May be run several times.

        Raises:
            Unavailable: The database could not be reached in time, or is closed.
            Internal: It failed.
        """
        ...

    def write(
        self,
        work: Callable[[Connection], T],
        notification: Callable[[T], Notification | None] = no_notification,
        /,
        *,
        committed: Callable[[T], None] | None = None,
        keeps_cache: bool = False,
    ) -> T:
        """Run a durable transaction, once in effect, which is undone if anything raises.

        Args:
            work: May be run several times, so it changes nothing but the database.
            notification: Makes the notification of waiters from the result of `work`.
            committed: Called with the result once it is durable, and in a database of one process
                before another transaction begins.
            keeps_cache: Whether `work` is a commit, or changes nothing that commits read.

        Raises:
            Unavailable: The database could not be reached in time, and nothing was committed; or
                (the fact `in_doubt`) it is not known whether it was.
            ResourceExhausted: The disk is full.
            Internal: It failed, or was opened for reading only.
        """
        ...

    def now(self) -> int:
        """Return this process's time, in microseconds since the epoch."""
        ...

    def lease_now(self, connection: Any, /) -> int:
        """Return the time that leases count by, one for all processes, in microseconds."""
        ...


class DatabasePart:
    """A part of a store of metadata.

    Args:
        database: Where the part is stored.
    """

    def __init__(self, database: Database) -> None:
        self._database = database


class Commits(Protocol):
    """Commits flushes, in transactions of their own."""

    def commit(
        self,
        batches: Sequence[CommitBatch],
        flush_id: FlushId | None,
        inline: InlineFolio | None,
    ) -> list[CommitResult]:
        """Assign offsets to the batches of a flush, and wake waiters; see `OffsetRegistry`."""
        ...


class Looks(Protocol):
    """A module of looks into the log's index, whose statements and plans are a database's own.

    Each takes a connection of its database, and sees all at one moment.
    """

    def locate(
        self,
        connection: Any,
        topic_uuid: str,
        partition: Partition,
        offset: int,
        messages_max: int,
        /,
    ) -> Located:
        """Find the pages from an offset on; see `OffsetRegistry.locate`."""
        ...

    def locate_many(
        self,
        connection: Any,
        topic_uuid: str,
        positions: Sequence[tuple[Partition, int]],
        messages_max: int,
        locations_max: int,
        /,
    ) -> list[LocatedPartition]:
        """Find pages of many partitions; see `OffsetRegistry.locate_many`."""
        ...

    def locate_slices(
        self,
        connection: Any,
        topic_uuid: str,
        positions: Sequence[tuple[Partition, int]],
        messages_max: int,
        locations_max: int,
        /,
    ) -> ManyLocated:
        """Find pages of many partitions, as columns; see `OffsetRegistry.locate_slices`."""
        ...

    def offsets_for_timestamps(
        self, connection: Any, topic_uuid: str, positions: Sequence[tuple[Partition, int]], /
    ) -> list[int]:
        """Return the first offsets at or after times; see `OffsetRegistry`."""
        ...
