"""The database under a store of metadata: its connections, transactions, locks and versions.

A new database gets the tables of one text. Those of the last release, and of commits after it,
become these by migrations; older ones are refused. From release to release formats are frozen.

Connections are lent in the order in which callers came. The queues and locks of the standard
library let a running thread take the item just released, so under load a waiting thread can starve
(measured: seconds, with 8 busy threads on 4 connections).
"""

import math
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Any, Generic, LiteralString, Protocol, TypeVar

from wings_core.errors import Internal, Unavailable
from wings_core.metadata.interfaces.offset_registry import ManyLocated
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

BUCKETS = 256
"""Advisory locks of a kind: names whose hashes agree wait for each other."""

BUCKETS_KEPT_MAX = 1_024
"""Names whose bucket is remembered."""


class Lock(IntEnum):
    """Advisory locks, and the order in which the transactions of all nodes take locks.

        1. the writer of a publish, abort or flush      advisory, by a hash of its name
        2. shards                                       rows, by source and id
        3. topics: deletion exclusive, all else shared  advisory, by a hash of the UUID
           then the topic changed or given a group      rows, one
           then its groups                              rows, by id
        4. ids of stages that a commit may begin        advisory, by a hash of the id
        5. stages                                       rows, by name
        6. producers, numbers of rows, then partitions: first those that are new are inserted, then
           all are locked                               rows, by topic and name or value
        7. folios                                       rows, by name
        8. a consumer group: changes exclusive, commits of offsets shared
                                                        rows, by name; then its members
        9. leases                                       rows, by name

    Purges, and changes of the tables of nodes and of tokens, keep others of their kind out by an
    advisory lock, and take it first. Within each, a transaction takes what it needs in ascending
    order. So no two transactions wait for each other, but by way of an insert that PostgreSQL makes
    wait for reasons of its own; such a deadlock is broken after a second, and the transaction tried
    again.

    Advisory locks come in a bounded number of buckets, since the server's table of them is bounded,
    and they are served in the order of asking: the deletion of a topic is not starved by its
    commits. Their numbers are far from what others would choose.

    SQLite has one writer at a time, and takes none of them.
    """

    MIGRATIONS = 0x57_49_4E_01
    WRITERS = 0x57_49_4E_02
    TOPICS = 0x57_49_4E_03
    STAGES = 0x57_49_4E_04
    PURGE = 0x57_49_4E_05
    NODES = 0x57_49_4E_06
    TOKENS = 0x57_49_4E_07


@lru_cache(BUCKETS_KEPT_MAX)
def bucket(name: str) -> int:
    """Return the bucket of a name."""
    return zlib.crc32(name.encode()) % BUCKETS


def buckets(names: Iterable[str]) -> list[int]:
    """Return the buckets of names, each once, in ascending order."""
    return sorted(set(map(bucket, names)))


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
        """Lock names exclusively until the end of the transaction; see `Lock`."""
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


OLDEST_RELEASE = "0.1.0"
"""The release that brings all earlier versions to the oldest ones that are migrated here."""


@dataclass(frozen=True, slots=True)
class Versions:
    """The tables of a database, and the versions of them that become these.

    Attributes:
        schema: The statements that make the tables; the time is bound in those that name it.
        oldest: The oldest version that is migrated: that of `OLDEST_RELEASE`.
        migrations: The statements that bring each version, from the oldest on, to the next.
    """

    schema: Sequence[str]
    oldest: int
    migrations: Sequence[Sequence[str]] = ()

    @property
    def newest(self) -> int:
        """The version of the schema."""
        return self.oldest + len(self.migrations)

    def step(self, version: int) -> tuple[Sequence[str], int]:
        """Return the statements that lead on from a version (0: none), and where they lead."""
        if version == 0:
            return self.schema, self.newest
        return self.migrations[version - self.oldest], version + 1

    def check(self, version: int, *, read_only: bool = False) -> None:
        """Check the version of tables.

        Args:
            version: Theirs.
            read_only: Whether they cannot be migrated.

        Raises:
            Internal: It is newer than this code, or too old.
        """
        if version > self.newest:
            raise Internal(
                f"the metadata is of version {version}, newer than {self.newest}, which this code "
                "knows: it was written by a later Wings and needs one to be read"
            )
        if version < self.oldest:
            raise Internal(
                f"the metadata is of version {version}, older than {self.oldest}, that of "
                f"{OLDEST_RELEASE}: bring it over with that (`pip install "
                f"'wings-flight[server]=={OLDEST_RELEASE}'`, and start the server on it once)"
            )
        if read_only and version < self.newest:
            raise Internal(
                f"the metadata is of version {version}, this code reads {self.newest}: "
                "start the server once, which brings it up to date"
            )


class _Turn(Generic[T]):
    """One caller in the queue."""

    __slots__ = ("item", "served")

    def __init__(self) -> None:
        self.item: T | None = None
        self.served = threading.Lock()
        self.served.acquire()


class FairPool(Generic[T]):
    """Items, each acquired by one caller at a time, in the order of asking.

    The item released last is acquired first: its caches are warm.

    Args:
        what: The item's name in error messages.
        items: All of them.
        seconds_max: How long a caller waits at most.
    """

    def __init__(self, what: str, items: Iterable[T], seconds_max: float) -> None:
        self._what = what
        self._free = list(items)
        self._size = len(self._free)
        self._seconds_max = seconds_max
        self._waiting: deque[_Turn[T]] = deque()
        self._lock = threading.Lock()
        self._released = threading.Condition(self._lock)
        self._closed = False

    @property
    def waiting(self) -> int:
        """How many callers wait now."""
        return len(self._waiting)

    def acquire(self, seconds: float = math.inf) -> T:
        """Return an item, which the caller must `release`.

        Blocks for at most `seconds`, and never for more than `seconds_max`.

        Raises:
            Unavailable: None came free in time, or the pool is closed.
        """
        waiter: _Turn[T] | None = None
        try:
            with self._lock:
                if self._closed:
                    raise Unavailable("metadata is closed")
                if self._free:
                    return self._free.pop()
                waiter = _Turn()
                self._waiting.append(waiter)
            seconds = max(0.0, min(seconds, self._seconds_max))
            waiter.served.acquire(timeout=seconds)
        except BaseException:  # A signal handler may raise as soon as it waits.
            if waiter is not None:
                self._abandon(waiter)
            raise
        # Served at the last moment counts, so whether it was is asked under the lock.
        with self._lock:
            if waiter.item is not None:
                return waiter.item
            if self._closed:
                raise Unavailable("metadata is closed")
            self._waiting.remove(waiter)
        raise Unavailable(f"{self._what} did not come free in {seconds:.3g} s")

    def release(self, item: T, *, is_last: bool = False) -> None:
        """Pass an item to the caller that has waited longest; never blocks.

        Where none waits, an item that `is_last` is acquired after all that are free.
        """
        with self._lock:
            if self._waiting:
                waiter = self._waiting.popleft()
                waiter.item = item
                waiter.served.release()
            else:
                self._free.insert(0 if is_last else len(self._free), item)
                if self._closed:
                    self._released.notify()

    def close(self) -> list[T]:
        """Refuse callers from now on, and return the items once they are released.

        Blocks for at most `seconds_max`; an item that is kept longer is left out.
        """
        with self._lock:
            self._closed = True
            for waiter in self._waiting:
                waiter.served.release()
            self._waiting.clear()
            self._released.wait_for(lambda: len(self._free) == self._size, self._seconds_max)
            self._size -= len(self._free)
            free, self._free = self._free, []
            return free

    def _abandon(self, waiter: _Turn[T]) -> None:
        with self._lock:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
        if waiter.item is not None:
            self.release(waiter.item)
