"""The log's index in PostgreSQL: each method is one transaction, done by the module of its verb."""

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from wings_core.metadata.folios import check_retired
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.metadata.postgres import commit, consumers, locate, purge
from wings_core.metadata.postgres.connections import Connection
from wings_core.metadata.postgres.database import Database
from wings_core.metadata.postgres.lease_clock import LeaseClock
from wings_core.metadata.postgres.notices import Notice
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


class PostgresRegistry(OffsetRegistry):
    """See `OffsetRegistry`.

    Args:
        database: Where it is.
        waiters: Woken by commits of all nodes.
        clock: Microseconds since the epoch.
        lease_clock: What is out of date is so by it.
    """

    def __init__(
        self,
        database: Database,
        waiters: Waiters,
        clock: Callable[[], int],
        lease_clock: LeaseClock,
    ) -> None:
        self._database = database
        self._waiters = waiters
        self._clock = clock
        self._lease_clock = lease_clock

    def commit(
        self, batches: Sequence[CommitBatch], flush_id: FlushId | None = None
    ) -> list[CommitResult]:
        """Assign offsets to the batches of a flush; see `OffsetRegistry.commit`."""

        def work(connection: Connection) -> commit.Committed:
            if flush_id is None:
                return commit.commit_batches(connection, batches, self._clock())
            return commit.commit_flush(connection, batches, self._clock(), flush_id)

        return self._database.write(
            work,
            lambda committed: Notice(committed.ends) if committed.ends else None,
        ).results

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
            lambda connection: locate.locate(
                connection, topic_uuid, partition, offset, messages_max
            )
        )

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
            if self._database.read(lambda connection: locate.any_has_data(connection, positions)):
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
        return self._database.read(
            lambda connection: locate.partition_states(connection, topic_uuid, after, items_max)
        )

    def partition_state(self, topic_uuid: str, partition: Partition) -> PartitionState:
        """Return where a partition stands; see `OffsetRegistry.partition_state`."""
        return self._database.read(
            lambda connection: locate.partition_state(connection, topic_uuid, partition)
        )

    def offset_for_timestamp(self, topic_uuid: str, partition: Partition, timestamp: int) -> int:
        """Return the first offset at or after a time; see `OffsetRegistry`."""
        return self._database.read(
            lambda connection: locate.offset_for_timestamp(
                connection, topic_uuid, partition, timestamp
            )
        )

    def commit_offsets(
        self, consumer: str, offsets: Sequence[tuple[Topic, Partition, int]]
    ) -> list[ConsumerOffset]:
        """Remember where a consumer reads on; see `OffsetRegistry.commit_offsets`."""
        consumers.check_offsets(consumer, offsets)
        return self._database.write(
            lambda connection: consumers.commit_offsets(
                connection, consumer, offsets, self._clock()
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
        """Return where a consumer reads on; see `OffsetRegistry.get_offsets`."""
        return self._database.read(
            lambda connection: consumers.get_offsets(
                connection, consumer, topic_uuid, after, items_max
            )
        )

    def list_consumers(self, consumers_max: int, *, after: str | None = None) -> list[str]:
        """Return the named consumers; see `OffsetRegistry.list_consumers`."""
        return self._database.read(
            lambda connection: consumers.list_consumers(connection, consumers_max, after)
        )

    def purge(self, pages_max: int) -> bool:
        """Forget deleted topics step by step; see `OffsetRegistry.purge`."""
        return self._database.write(
            lambda connection: purge.purge(connection, pages_max, self._lease_clock(connection))
        )

    def live_folios(self, *, after: str | None = None, items_max: int | None = None) -> set[str]:
        """Return the folios that a page refers to; see `OffsetRegistry.live_folios`."""
        return self._database.read(
            lambda connection: purge.live_folios(connection, after, items_max)
        )

    def retire(self, folios: Sequence[str]) -> list[str]:
        """Let nothing refer to folios ever again; see `OffsetRegistry.retire`."""
        check_retired(folios)
        return self._database.write(
            lambda connection: purge.retire(connection, folios, self._lease_clock(connection))
        )
