"""The log's index in a database: each method is one transaction, done by the module of its verb."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Generic

from wings_core.metadata.folios import check_inline, check_retired
from wings_core.metadata.interfaces import MANY_LOCATIONS_MAX, OffsetRegistry
from wings_core.metadata.judge import check_id, check_text
from wings_core.metadata.located import ManyLocated
from wings_core.metadata.store import consumers, partitions
from wings_core.metadata.store.database import C, Commits, Database, Dialect
from wings_core.metadata.store.folios import live_folios
from wings_core.metadata.store.inline import read_inline
from wings_core.metadata.store.leases import keep_folios
from wings_core.metadata.waiters import Waiters
from wings_core.model import (
    CommitBatch,
    CommitResult,
    ConsumerOffset,
    FlushId,
    InlineFolio,
    Located,
    LocatedPartition,
    PartitionState,
    Position,
    Topic,
)
from wings_core.names import TopicName
from wings_core.partitions import Partition


class DatabaseRegistry(OffsetRegistry, Generic[C]):
    """See `OffsetRegistry`.

    Args:
        database: Where it is.
        dialect: Its statements.
        waiters: Woken by commits, of all processes that the database tells of.
        commits: Commits flushes.
    """

    def __init__(
        self, database: Database[C], dialect: Dialect[C], waiters: Waiters, commits: Commits
    ) -> None:
        self._database = database
        self._dialect = dialect
        self._waiters = waiters
        self._commits = commits

    def commit(
        self,
        batches: Sequence[CommitBatch],
        flush_id: FlushId | None = None,
        inline: InlineFolio | None = None,
    ) -> list[CommitResult]:
        """Assign offsets to the batches of a flush; see `OffsetRegistry.commit`."""
        if flush_id is not None:
            check_id("the flush's writer", flush_id.writer)
        if inline is not None:
            check_inline(inline)
        return self._commits.commit(batches, flush_id, inline)

    def locate(
        self,
        topic_uuid: str,
        partition: Partition,
        offset: int,
        messages_max: int,
        since: float | None = None,
    ) -> Located:
        """Find the pages from an offset on; see `OffsetRegistry.locate`."""
        del since  # A look is as quick as to remember one.
        return self._database.read(
            lambda connection: self._dialect.locate(
                connection, topic_uuid, partition, offset, messages_max
            )
        )

    def locate_many(
        self,
        topic_uuid: str,
        positions: Sequence[tuple[Partition, int]],
        messages_max: int,
        locations_max: int = MANY_LOCATIONS_MAX,
    ) -> list[LocatedPartition]:
        """Find pages of many partitions; see `OffsetRegistry.locate_many`."""
        return self._database.read(
            lambda connection: self._dialect.locate_many(
                connection, topic_uuid, positions, messages_max, locations_max
            )
        )

    def locate_slices(
        self,
        topic_uuid: str,
        positions: Sequence[tuple[Partition, int]],
        messages_max: int,
        locations_max: int = MANY_LOCATIONS_MAX,
    ) -> ManyLocated:
        """Find pages of many partitions, as columns; see `OffsetRegistry.locate_slices`."""
        return self._database.read(
            lambda connection: self._dialect.locate_slices(
                connection, topic_uuid, positions, messages_max, locations_max
            )
        )

    @contextmanager
    def watch(self, positions: Sequence[Position], callback: Callable[[], None]) -> Generator[None]:
        """Call back when a position has data; see `OffsetRegistry.watch`."""
        with self._waiters.registered(positions, callback):
            # Looked at after registering: a commit in between is seen, one later calls back.
            if self._has_data(positions):
                callback()
            yield

    def _has_data(self, positions: Sequence[Position]) -> bool:
        return self._database.read(
            lambda connection: self._dialect.any_has_data(connection, positions)
        )

    def watch_topic(
        self, topic_uuid: str, callback: Callable[[Mapping[Partition, int] | None], None]
    ) -> AbstractContextManager[None]:
        """Call back with what is committed to a topic; see `OffsetRegistry.watch_topic`."""
        return self._waiters.registered_at(topic_uuid, callback)

    def partition_states(
        self,
        topic_uuid: str,
        *,
        after: Partition | None = None,
        items_max: int | None = None,
    ) -> list[PartitionState]:
        """Return where a topic's partitions stand; see `OffsetRegistry.partition_states`."""
        return self._database.read(
            lambda connection: partitions.partition_states(connection, topic_uuid, after, items_max)
        )

    def partition_state(self, topic_uuid: str, partition: Partition) -> PartitionState:
        """Return where a partition stands; see `OffsetRegistry.partition_state`."""
        return self._database.read(
            lambda connection: partitions.partition_state(connection, topic_uuid, partition)
        )

    def offsets_for_timestamps(
        self, topic_uuid: str, positions: Sequence[tuple[Partition, int]]
    ) -> list[int]:
        """Return the first offsets at or after times; see `OffsetRegistry`."""
        return self._database.read(
            lambda connection: self._dialect.offsets_for_timestamps(
                connection, topic_uuid, positions
            )
        )

    def commit_offsets(
        self, consumer: str, offsets: Sequence[tuple[Topic, Partition, int]]
    ) -> None:
        """Store a consumer's offsets; see `OffsetRegistry.commit_offsets`."""
        consumers.check_offsets(consumer, offsets, self._dialect.partition_bytes_max)
        self._database.write(
            lambda connection: consumers.commit_offsets(
                self._dialect, connection, consumer, offsets, self._database.now()
            )
        )

    def get_offsets(
        self,
        consumer: str,
        topic_uuid: str | None = None,
        *,
        after: tuple[TopicName, Partition] | None = None,
        items_max: int | None = None,
    ) -> list[ConsumerOffset]:
        """Return a consumer's offsets; see `OffsetRegistry.get_offsets`."""
        check_text("the consumer's name", consumer)
        return self._database.read(
            lambda connection: consumers.get_offsets(
                connection, consumer, topic_uuid, after, items_max
            )
        )

    def list_consumers(self, consumers_max: int, *, after: str | None = None) -> list[str]:
        """Return the named consumers; see `OffsetRegistry.list_consumers`."""
        check_text("after", after or "")
        return self._database.read(
            lambda connection: consumers.list_consumers(connection, consumers_max, after)
        )

    def purge(self, pages_max: int) -> bool:
        """Purge deleted topics step by step; see `OffsetRegistry.purge`."""
        return self._database.write(
            lambda connection: self._dialect.purge(
                connection, pages_max, self._database.lease_now(connection)
            )
        )

    def read_inline(self, folios: Sequence[str]) -> dict[str, bytes]:
        """Return the bytes of inline folios; see `OffsetRegistry.read_inline`."""
        return self._database.read(lambda connection: read_inline(connection, folios))

    def live_folios(self, *, after: str | None = None, items_max: int | None = None) -> set[str]:
        """Return the folios that pages refer to; see `OffsetRegistry.live_folios`."""
        check_text("after", after or "")
        return self._database.read(lambda connection: live_folios(connection, after, items_max))

    def retire(self, folios: Sequence[str]) -> list[str]:
        """Fence folios, so that they can be deleted; see `OffsetRegistry.retire`."""
        check_retired(folios)

        def work(connection: C) -> list[str]:
            now = self._database.lease_now(connection)
            retired = self._dialect.retire(connection, folios, now)
            # Last of all: of whom acquires the lease later, nothing refers to these folios.
            if keep_folios(connection, now):
                raise _FoliosKeptError
            return retired

        try:
            return self._database.write(work)
        except _FoliosKeptError:
            return []


class _FoliosKeptError(Exception):
    """Undoes the transaction."""
