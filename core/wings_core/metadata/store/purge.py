"""Purging in small steps: rows of deleted topics and stages, and results out of date."""

from collections import Counter
from typing import LiteralString

from wings_core.metadata.checks import DELETED_KEPT_US, RETIRED_KEPT_US
from wings_core.metadata.judge import RESULTS_KEPT_US
from wings_core.metadata.results import FLUSHES_KEPT_US
from wings_core.metadata.stages import PUBLISH_RESULTS_KEPT_US, WRITERS_KEPT_US
from wings_core.metadata.store.database import Connection
from wings_core.metadata.store.groups import purge_of_topic as purge_groups
from wings_core.metadata.store.locks import Lock
from wings_core.metadata.store.maintenance import LEASES_KEPT_US
from wings_core.metadata.store.pages import count_off


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
