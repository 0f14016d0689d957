"""The database under a store of metadata: its transactions, and the statements that are its own."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString, NamedTuple, Protocol, TypeVar

from wings_core.metadata.located import ManyLocated
from wings_core.metadata.store.locks import Lock
from wings_core.metadata.store.notifications import Notification
from wings_core.model import (
    CommitBatch,
    CommitResult,
    FlushId,
    InlineFolio,
    Located,
    LocatedPartition,
    Location,
    Position,
    PublishedRange,
    Shard,
    ShardClaim,
    ShardProgress,
)
from wings_core.partitions import Partition

T = TypeVar("T")


class PastEnd(NamedTuple):
    """An offset that is past the end of its partition's log."""

    topic_id: int
    partition: Partition
    offset: int
    log_start_offset: int
    log_end_offset: int


class Retry(Exception):  # noqa: N818 - not an error: another transaction was faster
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

    def take_lock(self, lock: Lock, names: Iterable[str] = ("",)) -> None:
        """Lock names exclusively until the end of the transaction; see `locks`."""
        ...

    def share_lock(self, lock: Lock, names: Iterable[str]) -> None:
        """Lock names until the end of the transaction, shared with others that call this."""
        ...


C = TypeVar("C", bound=Connection)
C_contra = TypeVar("C_contra", bound=Connection, contravariant=True)


def no_notification(_: object) -> Notification | None:
    """Return None: the transaction changed nothing that a call waits for."""
    return None


class Database(Protocol[C]):
    """Runs reads and transactions, and notifies waiters of what was committed."""

    def read(self, work: Callable[[C], T]) -> T:
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
        work: Callable[[C], T],
        notification: Callable[[T], Notification | None] = no_notification,
        *,
        committed: Callable[[T], None] | None = None,
        keeps_cache: bool = False,
    ) -> T:
        """Run a durable transaction, once in effect, which is undone if anything raises.

        Args:
            work: May be run several times, so it changes nothing but the database.
            notification: What to notify waiters of, from the result of `work`.
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

    def lease_now(self, connection: C, /) -> int:
        """Return the time that leases count by, one for all processes, in microseconds."""
        ...


class Commits(Protocol):
    """Commits flushes to a database, in transactions of its own."""

    def commit(
        self,
        batches: Sequence[CommitBatch],
        flush_id: FlushId | None,
        inline: InlineFolio | None,
    ) -> list[CommitResult]:
        """Assign offsets to the batches of a flush, and wake waiters; see `OffsetRegistry`."""
        ...


@dataclass(frozen=True, slots=True)
class Moved:
    """What a publish moved into the log."""

    ranges: tuple[PublishedRange, ...]
    """One for each topic and partition, in the order of their first pages."""
    ends: dict[tuple[str, Partition], int]
    """The next offset of each partition that was written to, by topic UUID and partition."""


class Dialect(Protocol[C_contra]):
    """The functions whose statements, locks or plans are a database's own.

    Each runs within the transaction of its connection, but for those that look up.
    """

    partition_bytes_max: int
    """The longest partition value that the database takes, as JSON in UTF-8."""

    def locate(
        self,
        connection: C_contra,
        topic_uuid: str,
        partition: Partition,
        offset: int,
        messages_max: int,
    ) -> Located:
        """Find the pages from an offset on; see `OffsetRegistry.locate`."""
        ...

    def locate_many(
        self,
        connection: C_contra,
        topic_uuid: str,
        positions: Sequence[tuple[Partition, int]],
        messages_max: int,
        locations_max: int,
    ) -> list[LocatedPartition]:
        """Find pages of many partitions; see `OffsetRegistry.locate_many`."""
        ...

    def locate_slices(
        self,
        connection: C_contra,
        topic_uuid: str,
        positions: Sequence[tuple[Partition, int]],
        messages_max: int,
        locations_max: int,
    ) -> ManyLocated:
        """Find pages of many partitions, as columns; see `OffsetRegistry.locate_slices`."""
        ...

    def any_has_data(self, connection: C_contra, positions: Sequence[Position]) -> bool:
        """Tell whether a position has a message at or after its offset, or its topic is gone."""
        ...

    def offsets_for_timestamps(
        self, connection: C_contra, topic_uuid: str, positions: Sequence[tuple[Partition, int]]
    ) -> list[int]:
        """Return the first offsets at or after times; see `OffsetRegistry`."""
        ...

    def write_offsets(
        self,
        connection: C_contra,
        consumer: str,
        offsets: Mapping[int, Mapping[Partition, int]],
        now: int,
    ) -> PastEnd | None:
        """Write a consumer's offsets, by topic id and partition.

        Returns:
            One of them that is past the end of its log, for which they must be undone.
        """
        ...

    def purge(self, connection: C_contra, rows_max: int, now: int) -> bool:
        """Delete rows of deleted topics and what is out of date; see `OffsetRegistry.purge`."""
        ...

    def retire(self, connection: C_contra, folios: Sequence[str], now: int) -> list[str]:
        """Fence folios without pages; see `OffsetRegistry.retire`."""
        ...

    def move_stages(self, connection: C_contra, stages: Sequence[str], now: int) -> Moved:
        """Give offsets to all pages of stages, and delete the stages; see `Stages.publish`."""
        ...

    def delete_stages(self, connection: C_contra, stages: Sequence[str]) -> tuple[str, ...]:
        """Take the names off stages, so that their pages are purged; return those there were."""
        ...

    def add_pages(self, connection: C_contra, pages: Sequence[tuple[int, Location]]) -> None:
        """Index merged pages of partitions, by id, and count them to their folios."""
        ...

    def count_off(self, connection: C_contra, folios: Counter[int]) -> None:
        """Count deleted pages off their folios, by id, and delete folios without pages."""
        ...

    def find_shards(self, connection: C_contra, source: str, shards: Sequence[str]) -> list[Shard]:
        """Return those of the shards that are there, in the order given."""
        ...

    def open_shards(
        self, connection: C_contra, source: str, token: str, shards: Sequence[str], now: int
    ) -> None:
        """Create the shards that are not there."""
        ...

    def acquire_shards(
        self,
        connection: C_contra,
        source: str,
        token: str,
        claims: Sequence[ShardClaim],
        now: int,
        stale_before: int,
    ) -> None:
        """Change the owner of the shards whose claims hold; see `Shards.acquire`."""
        ...

    def reset_shards(self, connection: C_contra, source: str, shards: Sequence[str]) -> list[str]:
        """Open dead shards again; return those that were dead, in any order."""
        ...

    def write_progress(
        self, connection: C_contra, shards: Sequence[ShardProgress], clock: Callable[[], int]
    ) -> None:
        """Move shards within a publish, by the lease clock; they were checked before.

        Raises:
            PublishFenced: One of them may not be moved so.
        """
        ...
