"""The log's index in a database: each method is one transaction.

A purge goes in small steps over rows of deleted topics and stages, and results out of date.
"""

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import LiteralString

from wings_core.errors import InvalidArgument
from wings_core.metadata.checks import (
    DELETED_KEPT_US,
    RETIRED_KEPT_US,
    check_id,
    check_inline,
    check_retired,
    check_text,
)
from wings_core.metadata.interfaces import MANY_LOCATIONS_MAX, OFFSET_MAX, OffsetRegistry
from wings_core.metadata.interfaces.offset_registry import ManyLocated
from wings_core.metadata.judge import RESULTS_KEPT_US
from wings_core.metadata.repeats import FLUSHES_KEPT_US
from wings_core.metadata.stages import PUBLISH_RESULTS_KEPT_US, WRITERS_KEPT_US
from wings_core.metadata.store import consumers
from wings_core.metadata.store.database import Commits, Connection, Database, Lock, Looks
from wings_core.metadata.store.groups import purge_of_topic as purge_groups
from wings_core.metadata.store.maintenance import LEASES_KEPT_US, keep_folios
from wings_core.metadata.store.pages import count_off, partition_state, partition_states
from wings_core.metadata.waiting import Waiters
from wings_core.model import (
    INLINE_FOLIOS_MAX,
    CommitBatch,
    CommitResult,
    CommittedOffset,
    ConsumerCommit,
    FlushId,
    InlineFolio,
    Located,
    LocatedPartition,
    MemberEpoch,
    PartitionState,
    Position,
    Topic,
)
from wings_core.names import TopicName
from wings_core.partitions import Partition


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
        self,
        consumer: str,
        offsets: Sequence[tuple[Topic, Partition, int]],
        member: MemberEpoch | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        """Store a consumer's offsets; see `OffsetRegistry.commit_offsets`."""
        commit = ConsumerCommit(consumer, tuple(offsets), member, tuple(notes))
        consumers.check_offsets(commit, self._database.partition_bytes_max)
        self._database.write(
            lambda connection: consumers.commit_offsets(connection, commit, self._database.now())
        )

    def get_offsets(
        self,
        consumer: str,
        topic_uuid: str | None = None,
        *,
        after: tuple[TopicName, Partition] | None = None,
        items_max: int | None = None,
    ) -> list[CommittedOffset]:
        """Return a consumer's offsets; see `OffsetRegistry.get_offsets`."""
        check_text("the consumer's name", consumer)
        return self._database.read(
            lambda connection: consumers.get_offsets(
                connection, consumer, topic_uuid, after, items_max
            )
        )

    def forget_offsets(
        self,
        consumer: str,
        topic_uuid: str | None = None,
        partitions: Sequence[Partition] = (),
    ) -> None:
        """Delete a consumer's offsets; see `OffsetRegistry.forget_offsets`."""
        check_text("the consumer's name", consumer)
        self._database.write(
            lambda connection: consumers.forget_offsets(
                connection, consumer, topic_uuid, partitions
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


def _old(table: LiteralString, key: LiteralString, time: LiteralString) -> LiteralString:
    """Return a statement that deletes old rows, without those that another transaction locked."""
    return (
        f"WITH old AS MATERIALIZED (SELECT {key} FROM {table} WHERE {time} <= %s::bigint "
        "LIMIT %s::bigint FOR UPDATE SKIP LOCKED) "
        f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM old) RETURNING 1"
    )


_OUT_OF_DATE: tuple[tuple[LiteralString, int], ...] = (
    (_old("topics", "id", "purged_at"), DELETED_KEPT_US),
    (_old("producer_results", "topic_id, producer_id, slot", "committed_at"), RESULTS_KEPT_US),
    (
        _old("partition_sequences", "topic_id, partition, producer_id", "committed_at"),
        RESULTS_KEPT_US,
    ),
    (_old("folios", "id", "retired_at"), RETIRED_KEPT_US),
    (_old("flushes", "writer", "committed_at"), FLUSHES_KEPT_US),
    (_old("publishes", "writer, batch", "succeeded_at"), PUBLISH_RESULTS_KEPT_US),
    # The last of a writer goes after those before it: they are older.
    (
        _old("publishes", "writer, batch", "succeeded_at IS NULL AND published_at"),
        WRITERS_KEPT_US,
    ),
    (
        _old(
            "writers",
            "writer",
            "NOT EXISTS (SELECT 1 FROM publishes WHERE publishes.writer = writers.writer) "
            "AND begun_at",
        ),
        WRITERS_KEPT_US,
    ),
    (_old("transactions", "name", "deadline IS NULL AND changed_at"), WRITERS_KEPT_US),
    (_old("leases", "name", "expires_at"), LEASES_KEPT_US),
)
"""Statements, and for how long their rows are kept after their time."""


def _of_topic(table: LiteralString, key: LiteralString) -> LiteralString:
    """Return a statement that deletes rows of a topic."""
    return (
        f"DELETE FROM {table} WHERE ({key}) IN "
        f"(SELECT {key} FROM {table} WHERE topic_id = %s LIMIT %s::bigint)"
    )


_OF_TOPIC: tuple[LiteralString, ...] = (
    _of_topic("producer_results", "topic_id, producer_id, slot"),
    _of_topic("producers", "topic_id, producer_id"),
    _of_topic("partition_sequences", "topic_id, partition, producer_id"),
    _of_topic("consumer_offsets", "consumer, topic_id, partition"),
)

_STAGES_OF_TOPIC = """
SELECT id FROM stages WHERE topic_id = %s AND pages > 0 ORDER BY name LIMIT 1 FOR UPDATE
"""

_PAGES = """
DELETE FROM pages WHERE partition_id = %s AND end_offset <= (
    SELECT max(end_offset) FROM (
        SELECT end_offset FROM pages WHERE partition_id = %s
        ORDER BY end_offset LIMIT %s::bigint
    ) AS first
) RETURNING folio_id
"""

_STAGED_PAGES = """
DELETE FROM staged_pages WHERE stage_id = %s AND number <= (
    SELECT max(number) FROM (
        SELECT number FROM staged_pages WHERE stage_id = %s ORDER BY number LIMIT %s::bigint
    ) AS first
) RETURNING folio_id
"""


def purge(connection: Connection, rows_max: int, now: int) -> bool:
    """Delete up to `rows_max` rows of deleted topics and stages, then of results out of date.

    Args:
        connection: In a transaction; no other transaction purges until its end.
        rows_max: Bounds the time that the transaction takes.
        now: Microseconds since the epoch, by the lease clock.

    Returns:
        True while there may be more.
    """
    connection.take_lock(Lock.PURGE)
    folios: Counter[int] = Counter()
    left = rows_max
    staged = 0
    # Stages are locked by name, which they are within a topic: those of others go another time.
    while left > 0 and not staged:
        topic_id = _next_deleted_topic(connection)
        if topic_id is None:
            break
        left -= _purge_pages(connection, topic_id, left, folios)
        staged = _purge_staged(connection, topic_id, left, folios)
        left -= staged
        connection.expect_rows(left)
        left -= _purge_rest_of_topic(connection, topic_id, left, now)
    left -= _purge_stages(connection, left, folios)
    connection.expect_rows(left)
    left -= _purge_out_of_date(connection, left, now)
    left -= connection.purge_outcomes(max(0, left))
    count_off(connection, folios)
    return left <= 0 or staged > 0


def _next_deleted_topic(connection: Connection) -> int | None:
    """Return the id of the topic that was deleted first of those not purged yet."""
    row = connection.execute(
        "SELECT id FROM topics WHERE deleted_at IS NOT NULL AND purged_at IS NULL "
        "ORDER BY deleted_at LIMIT 1"
    ).fetchone()
    return None if row is None else row[0]


def _purge_pages(connection: Connection, topic_id: int, rows_max: int, folios: Counter[int]) -> int:
    """Delete up to so many pages and partitions of a deleted topic; return how many.

    Args:
        connection: In a transaction.
        topic_id: The topic.
        rows_max: At most so many.
        folios: Counts the pages deleted, by folio.
    """
    return _purge(
        connection,
        rows_max,
        folios,
        ("SELECT id FROM partitions WHERE topic_id = %s LIMIT 1", (topic_id,)),
        _PAGES,
        "DELETE FROM partitions WHERE id = %s",
    )


def _purge_staged(
    connection: Connection, topic_id: int, rows_max: int, folios: Counter[int]
) -> int:
    """Delete up to so many pages staged for a deleted topic, as `_purge_pages`; return how many.

    The stages themselves stay until they are swept.
    """
    return _purge(
        connection,
        rows_max,
        folios,
        (_STAGES_OF_TOPIC, (topic_id,)),
        _STAGED_PAGES,
        "UPDATE stages SET rows = 0, bytes = 0, pages = 0 WHERE id = %s",
    )


def _purge_stages(connection: Connection, rows_max: int, folios: Counter[int]) -> int:
    """Delete up to so many rows of stages that were aborted or swept; return how many."""
    return _purge(
        connection,
        rows_max,
        folios,
        ("SELECT id FROM stages WHERE name IS NULL LIMIT 1", ()),
        _STAGED_PAGES,
        "DELETE FROM stages WHERE id = %s",
    )


def _purge(
    connection: Connection,
    rows_max: int,
    folios: Counter[int],
    owner: tuple[LiteralString, tuple[int, ...]],
    pages: LiteralString,
    emptied: LiteralString,
) -> int:
    """Delete the pages of one owner after another, and then what there is of the owner itself.

    Args:
        connection: In a transaction.
        rows_max: At most so many rows.
        folios: Counts the pages deleted, by folio.
        owner: Finds the next partition or stage.
        pages: Deletes its first pages, and returns their folios.
        emptied: Deletes it, or the count of its pages.
    """
    left = rows_max
    while left > 0:
        row = connection.execute(*owner).fetchone()
        if row is None:
            break
        deleted = connection.execute(pages, (*row, *row, left)).fetchall()
        folios.update(folio_id for (folio_id,) in deleted)
        left -= len(deleted)
        if left > 0:
            connection.execute(emptied, row)
            left -= 1
    return rows_max - left


def _purge_rest_of_topic(connection: Connection, topic_id: int, rows_max: int, now: int) -> int:
    """Delete up to so many groups, producers and offsets of a deleted topic without pages.

    Returns:
        How many; less than `rows_max` where nothing of the topic is left, which is noted.
    """
    left = rows_max - purge_groups(connection, topic_id, rows_max)
    for statement in _OF_TOPIC:
        left -= connection.execute(statement, (topic_id, max(0, left))).rowcount
    if left > 0:
        connection.execute("UPDATE topics SET purged_at = %s WHERE id = %s", (now, topic_id))
        left -= 1
    return rows_max - left


def _purge_out_of_date(connection: Connection, rows_max: int, now: int) -> int:
    """Delete up to so many rows that were kept for as long as they are asked for.

    Returns:
        How many.
    """
    left = rows_max
    for statement, kept_us in _OUT_OF_DATE:
        left -= len(connection.execute(statement, (now - kept_us, max(0, left))).fetchall())
    return rows_max - left
