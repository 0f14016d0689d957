"""The log's index in SQLite: each method is one transaction, done by the module of its verb."""

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from wings_core.metadata.folios import check_retired
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.metadata.sqlite import commit, consumers, locate, purge
from wings_core.metadata.sqlite.connections import Connections
from wings_core.metadata.waiters import Waiters, wait_for_any
from wings_core.model import (
    CommitBatch,
    CommitResult,
    ConsumerOffset,
    FlushId,
    Located,
    PartitionState,
    Position,
    Topic,
)
from wings_core.names import TopicName
from wings_core.partitions import Partition
from wings_core.times import Deadline


class SqliteRegistry(OffsetRegistry):
    """See `OffsetRegistry`.

    Args:
        connections: To the database.
        waiters: Woken by commits.
        clock: Microseconds since the epoch.
    """

    def __init__(
        self, connections: Connections, waiters: Waiters, clock: Callable[[], int]
    ) -> None:
        self._connections = connections
        self._waiters = waiters
        self._clock = clock

    def commit(
        self, batches: Sequence[CommitBatch], flush_id: FlushId | None = None
    ) -> list[CommitResult]:
        """Assign offsets to the batches of a flush; see `OffsetRegistry.commit`."""
        with self._connections.exclusive(committing=True) as writer:
            cache = self._connections.commit_cache
            try:
                with writer.transaction() as connection:
                    now = self._clock()
                    if flush_id is None:
                        committed = commit.commit_batches(connection, batches, now, cache)
                    else:
                        committed = commit.commit_flush(connection, batches, now, cache, flush_id)
            except BaseException:
                cache.forget()
                raise
            cache.learn(committed.topic_ids, committed.folio_ids, committed.partitions)
        self._waiters.notify(committed.ends)
        return committed.results

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
        with self._connections.reading() as connection:
            return locate.locate(connection, topic_uuid, partition, offset, messages_max)

    def wait(
        self, positions: Sequence[Position], deadline: Deadline, wake: threading.Event
    ) -> None:
        """Block until a position has data; see `OffsetRegistry.wait`."""
        wait_for_any(self, positions, deadline, wake)

    @contextmanager
    def watch(self, positions: Sequence[Position], callback: Callable[[], None]) -> Generator[None]:
        """Call back when a position has data; see `OffsetRegistry.watch`."""
        with self._waiters.registered(positions, callback):
            # Looked at after registering: a commit in between is seen, one later calls back.
            with self._connections.reading() as connection:
                has_data = locate.any_has_data(connection, positions)
            if has_data:
                callback()
            yield

    def partition_states(
        self,
        topic_uuid: str,
        *,
        after: Partition | None = None,
        items_max: int | None = None,
    ) -> list[PartitionState]:
        """Return where a topic's partitions stand; see `OffsetRegistry.partition_states`."""
        with self._connections.reading() as connection:
            return locate.partition_states(connection, topic_uuid, after, items_max)

    def partition_state(self, topic_uuid: str, partition: Partition) -> PartitionState:
        """Return where a partition stands; see `OffsetRegistry.partition_state`."""
        with self._connections.reading() as connection:
            return locate.partition_state(connection, topic_uuid, partition)

    def offset_for_timestamp(self, topic_uuid: str, partition: Partition, timestamp: int) -> int:
        """Return the first offset at or after a time; see `OffsetRegistry`."""
        with self._connections.reading(snapshot=True) as connection:
            return locate.offset_for_timestamp(connection, topic_uuid, partition, timestamp)

    def commit_offsets(
        self, consumer: str, offsets: Sequence[tuple[Topic, Partition, int]]
    ) -> list[ConsumerOffset]:
        """Remember where a consumer reads on; see `OffsetRegistry.commit_offsets`."""
        with self._connections.writing() as connection:
            return consumers.commit_offsets(connection, consumer, offsets, self._clock())

    def get_offsets(
        self,
        consumer: str,
        topic_uuid: str | None = None,
        *,
        after: tuple[TopicName, Partition] | None = None,
        items_max: int | None = None,
    ) -> list[ConsumerOffset]:
        """Return where a consumer reads on; see `OffsetRegistry.get_offsets`."""
        with self._connections.reading() as connection:
            return consumers.get_offsets(connection, consumer, topic_uuid, after, items_max)

    def list_consumers(self, consumers_max: int, *, after: str | None = None) -> list[str]:
        """Return the named consumers; see `OffsetRegistry.list_consumers`."""
        with self._connections.reading() as connection:
            return consumers.list_consumers(connection, consumers_max, after)

    def purge(self, pages_max: int) -> bool:
        """Forget deleted topics step by step; see `OffsetRegistry.purge`."""
        with self._connections.writing() as connection:
            return purge.purge(connection, pages_max, self._clock())

    def live_folios(self, *, after: str | None = None, items_max: int | None = None) -> set[str]:
        """Return the folios that a page refers to; see `OffsetRegistry.live_folios`."""
        with self._connections.reading() as connection:
            return purge.live_folios(connection, after, items_max)

    def retire(self, folios: Sequence[str]) -> list[str]:
        """Let nothing refer to folios ever again; see `OffsetRegistry.retire`."""
        check_retired(folios)
        with self._connections.writing() as connection:
            return purge.retire(connection, folios, self._clock())
