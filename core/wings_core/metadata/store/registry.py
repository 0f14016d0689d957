"""The log's index in a database: each method is one transaction."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby
from operator import itemgetter
from typing import LiteralString

from wings_core.errors import InvalidArgument, OffsetOutOfRange
from wings_core.metadata.checks import (
    check_id,
    check_inline,
    check_partition,
    check_retired,
    check_text,
)
from wings_core.metadata.interfaces import MANY_LOCATIONS_MAX, OFFSET_MAX, OffsetRegistry
from wings_core.metadata.located import ManyLocated
from wings_core.metadata.store.database import Commits, Connection, Database, Looks
from wings_core.metadata.store.locks import Lock
from wings_core.metadata.store.maintenance import keep_folios
from wings_core.metadata.store.pages import partition_state, partition_states
from wings_core.metadata.store.purge import purge
from wings_core.metadata.store.topics import require_topic_ids
from wings_core.metadata.waiting import Waiters
from wings_core.model import (
    INLINE_FOLIOS_MAX,
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
from wings_core.names import NamespaceName, TopicName
from wings_core.partitions import Partition, partition_sort_key, partition_value


class DatabaseRegistry(OffsetRegistry):
    """See `OffsetRegistry`.

    Args:
        database: Where it is.
        looks: Its looks into the index.
        commits: Commits its flushes.
        waiters: Woken by commits, of all processes that the database tells of.
    """

    def __init__(
        self, database: Database, looks: Looks, commits: Commits, waiters: Waiters
    ) -> None:
        self._database = database
        self._looks = looks
        self._commits = commits
        self._waiters = waiters

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
            lambda connection: self._looks.locate(
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
            lambda connection: self._looks.locate_many(
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
            lambda connection: self._looks.locate_slices(
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
        return self._database.read(lambda connection: _any_has_data(connection, positions))

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
            lambda connection: partition_states(connection, topic_uuid, after, items_max)
        )

    def partition_state(self, topic_uuid: str, partition: Partition) -> PartitionState:
        """Return where a partition stands; see `OffsetRegistry.partition_state`."""
        return self._database.read(
            lambda connection: partition_state(connection, topic_uuid, partition)
        )

    def offsets_for_timestamps(
        self, topic_uuid: str, positions: Sequence[tuple[Partition, int]]
    ) -> list[int]:
        """Return the first offsets at or after times; see `OffsetRegistry`."""
        return self._database.read(
            lambda connection: self._looks.offsets_for_timestamps(connection, topic_uuid, positions)
        )

    def commit_offsets(
        self, consumer: str, offsets: Sequence[tuple[Topic, Partition, int]]
    ) -> None:
        """Store a consumer's offsets; see `OffsetRegistry.commit_offsets`."""
        _check_offsets(consumer, offsets, self._looks.PARTITION_BYTES_MAX)
        self._database.write(
            lambda connection: _commit_offsets(connection, consumer, offsets, self._database.now())
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
            lambda connection: _get_offsets(connection, consumer, topic_uuid, after, items_max)
        )

    def list_consumers(self, consumers_max: int, *, after: str | None = None) -> list[str]:
        """Return the named consumers; see `OffsetRegistry.list_consumers`."""
        check_text("after", after or "")
        return self._database.read(
            lambda connection: _list_consumers(connection, consumers_max, after)
        )

    def purge(self, pages_max: int) -> bool:
        """Purge deleted topics step by step; see `OffsetRegistry.purge`."""
        return self._database.write(
            lambda connection: purge(connection, pages_max, self._database.lease_now(connection))
        )

    def read_inline(self, folios: Sequence[str]) -> dict[str, bytes]:
        """Return the bytes of inline folios; see `OffsetRegistry.read_inline`."""
        return self._database.read(lambda connection: _read_inline(connection, folios))

    def live_folios(self, *, after: str | None = None, items_max: int | None = None) -> set[str]:
        """Return the folios that pages refer to; see `OffsetRegistry.live_folios`."""
        check_text("after", after or "")
        return self._database.read(lambda connection: _live_folios(connection, after, items_max))

    def retire(self, folios: Sequence[str]) -> list[str]:
        """Fence folios, so that they can be deleted; see `OffsetRegistry.retire`."""
        check_retired(folios)

        def work(connection: Connection) -> list[str]:
            now = self._database.lease_now(connection)
            retired = _retire(connection, folios, now)
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


def _any_has_data(connection: Connection, positions: Sequence[Position]) -> bool:
    """Tell whether a position has a message at or after its offset, or its topic is gone."""
    found = connection.execute_rows(
        "SELECT 1 FROM {given} LEFT JOIN topics "
        "ON topics.uuid = given.topic AND topics.deleted_at IS NULL WHERE topics.id IS NULL "
        # A look for each, whatever is counted of the tables.
        "OR (SELECT next_offset FROM partitions WHERE topic_id = topics.id "
        'AND value = given.partition) > given."offset" LIMIT 1',
        {
            "topic text": [position.topic_uuid for position in positions],
            "partition text": [position.partition for position in positions],
            "offset bigint": [max(-1, min(position.offset, OFFSET_MAX)) for position in positions],
        },
    )
    return found.fetchone() is not None


def _retire(connection: Connection, folios: Sequence[str], now: int) -> list[str]:
    """Fence folios without pages; see `OffsetRegistry.retire`.

    In PostgreSQL the unique index makes it wait for a commit to one of them that is under way, and
    that for it.
    """
    connection.execute_rows(
        "INSERT INTO folios (name, pages, retired_at) SELECT given.name, 0, %(now)s::bigint "
        "FROM {given} WHERE true ON CONFLICT (name) DO NOTHING",
        {"name text": sorted(set(folios))},
        {"now": now},
    )
    rows = connection.execute_rows(
        "SELECT folios.name FROM {given} JOIN folios ON folios.name = given.name "
        "WHERE folios.retired_at IS NOT NULL",
        {"name text": list(folios)},
    ).fetchall()
    retired = {name for (name,) in rows}
    return [folio for folio in folios if folio in retired]


def _check_offsets(
    consumer: str, offsets: Sequence[tuple[Topic, Partition, int]], partition_bytes_max: int
) -> None:
    """Check that offsets can be stored.

    Raises:
        InvalidArgument: They cannot.
    """
    check_id("the consumer's name", consumer)
    for _, partition, offset in offsets:
        if len(partition) * 4 > partition_bytes_max:  # Else it is shorter, whatever is in it.
            check_partition(partition, partition_bytes_max)
        if not 0 <= offset <= OFFSET_MAX:
            raise InvalidArgument(f"{offset} is not an offset: expected 0 to {OFFSET_MAX}")


def _commit_offsets(
    connection: Connection,
    consumer: str,
    offsets: Sequence[tuple[Topic, Partition, int]],
    now: int,
) -> None:
    """Store a consumer's offsets; see `OffsetRegistry.commit_offsets`."""
    last: dict[str, dict[Partition, int]] = {}
    for uuid, entries in groupby(offsets, lambda entry: entry[0].uuid):
        # The last one counts where a partition is named twice.
        last.setdefault(uuid, {}).update(map(itemgetter(1, 2), entries))
    topics = sorted(last)
    connection.share_lock(Lock.TOPICS, topics)
    topic_ids = require_topic_ids(connection, topics)
    # In order, which excludes deadlocks.
    entries = [
        (topic_ids[uuid], partition, last[uuid][partition])
        for uuid in sorted(topics, key=topic_ids.__getitem__)
        for partition in sorted(last[uuid])
    ]
    columns = {
        "topic_id bigint": [topic_id for topic_id, _, _ in entries],
        "partition text": [partition for _, partition, _ in entries],
        "offset bigint": [offset for _, _, offset in entries],
    }
    past_end = connection.execute_rows(
        'SELECT given.topic_id, given.partition, given."offset", coalesce(log_start_offset, 0), '
        "coalesce(next_offset, 0) FROM {given} LEFT JOIN partitions "
        "ON partitions.topic_id = given.topic_id AND partitions.value = given.partition "
        'WHERE given."offset" > coalesce(next_offset, 0) LIMIT 1',
        columns,
    )
    connection.execute_rows(
        'INSERT INTO consumer_offsets (consumer, topic_id, partition, "offset", committed_at) '
        'SELECT %(consumer)s, given.topic_id, given.partition, given."offset", %(now)s::bigint '
        "FROM {given} WHERE true ON CONFLICT (consumer, topic_id, partition) DO UPDATE "
        'SET "offset" = excluded."offset", committed_at = excluded.committed_at',
        columns,
        {"consumer": consumer, "now": now},
    )
    row = past_end.fetchone()
    if row is not None:
        topic_id, partition, offset, log_start_offset, log_end_offset = row
        name = next(topic.name for topic, *_ in offsets if topic_ids[topic.uuid] == topic_id)
        raise OffsetOutOfRange(
            f"offset {offset} is past the end of partition {partition:.80} of {name}, "
            f"{log_end_offset}",
            topic=str(name),
            partition=partition_value(partition),
            log_start_offset=log_start_offset,
            log_end_offset=log_end_offset,
        )


def _get_offsets(
    connection: Connection,
    consumer: str,
    topic_uuid: str | None,
    after: tuple[TopicName, Partition] | None,
    items_max: int | None,
) -> list[ConsumerOffset]:
    """Return a consumer's offsets, by topic and partition; see `OffsetRegistry.get_offsets`."""
    least = ("", "", "", "")
    if after is not None:
        name, partition = after
        least = (name.namespace.tenant, name.namespace.namespace, name.topic, partition)
    # A deleted topic has no namespace, so it falls out of the join.
    rows = connection.execute(
        "SELECT namespaces.tenant, namespaces.name, topics.name, consumer_offsets.partition, "
        'consumer_offsets."offset", consumer_offsets.committed_at '
        "FROM consumer_offsets "
        "JOIN topics ON topics.id = consumer_offsets.topic_id "
        "JOIN namespaces ON namespaces.id = topics.namespace_id "
        "WHERE consumer_offsets.consumer = %s AND (%s::text IS NULL OR topics.uuid = %s::text) "
        "AND (namespaces.tenant, namespaces.name, topics.name, consumer_offsets.partition) "
        "> (%s::text, %s::text, %s::text, %s::text) ORDER BY 1, 2, 3, 4 LIMIT %s::bigint",
        (consumer, topic_uuid, topic_uuid, *least, items_max),
    ).fetchall()
    offsets = [
        ConsumerOffset(
            TopicName(NamespaceName(tenant, namespace), topic), partition, offset, committed_at
        )
        for tenant, namespace, topic, partition, offset, committed_at in rows
    ]
    return sorted(offsets, key=lambda entry: (entry.topic, partition_sort_key(entry.partition)))


def _list_consumers(connection: Connection, consumers_max: int, after: str | None) -> list[str]:
    """Return the named consumers, by name; see `OffsetRegistry.list_consumers`."""
    greater: LiteralString = "" if after is None else "AND consumer_offsets.consumer > %s::text "
    rows = connection.execute(
        "SELECT DISTINCT consumer_offsets.consumer FROM consumer_offsets "
        "JOIN topics ON topics.id = consumer_offsets.topic_id "
        f"WHERE topics.namespace_id IS NOT NULL {greater}"
        "ORDER BY consumer_offsets.consumer LIMIT %s::bigint",
        (*([] if after is None else [after]), max(0, consumers_max)),
    ).fetchall()
    return [consumer for (consumer,) in rows]


def _read_inline(connection: Connection, folios: Sequence[str]) -> dict[str, bytes]:
    """Return the bytes of inline folios; see `OffsetRegistry.read_inline`."""
    if len(folios) > INLINE_FOLIOS_MAX:
        raise InvalidArgument(f"at most {INLINE_FOLIOS_MAX} folios are read at once")
    rows = connection.execute_rows(
        "SELECT folios.name, inline_folios.data FROM {given} "
        "JOIN folios ON folios.name = given.name "
        "JOIN inline_folios ON inline_folios.folio_id = folios.id",
        {"name text": list(folios)},
    ).fetchall()
    return {name: bytes(data) for name, data in rows}


def _live_folios(connection: Connection, after: str | None, items_max: int | None) -> set[str]:
    """Return the folios that pages and tables refer to; see `OffsetRegistry.live_folios`."""
    # A name is never empty.
    rows = connection.execute(
        "SELECT name FROM folios WHERE retired_at IS NULL AND name > %(after)s::text "
        "UNION SELECT folio FROM table_segments WHERE folio > %(after)s::text "
        "ORDER BY name LIMIT %(most)s::bigint",
        {"after": after or "", "most": items_max},
    ).fetchall()
    return {name for (name,) in rows}
