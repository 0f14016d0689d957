"""Purging in small steps: rows of deleted topics and stages, and results out of date."""

from collections import Counter
from collections.abc import Sequence

from wings_core.metadata.sqlite.database import Connection
from wings_core.metadata.sqlite.stages import count_off, purge_deleted, purge_of_topic
from wings_core.metadata.store.purge import (
    next_deleted_topic,
    purge_out_of_date,
    purge_rest_of_topic,
)


def purge(connection: Connection, rows_max: int, now: int) -> bool:
    """Delete up to `rows_max` rows of deleted topics and stages, then of results out of date.

    Args:
        connection: In a transaction.
        rows_max: Bounds the time that the transaction takes.
        now: Microseconds since the epoch.

    Returns:
        True while there may be more.
    """
    left = rows_max
    while left > 0:
        topic_id = next_deleted_topic(connection)
        if topic_id is None:
            break
        left -= _purge_partitions(connection, topic_id, left)
        left -= purge_of_topic(connection, topic_id, left)
        left -= purge_rest_of_topic(connection, topic_id, left, now)
    left -= purge_deleted(connection, left)
    left -= purge_out_of_date(connection, left, now)
    return left <= 0


def _purge_partitions(connection: Connection, topic_id: int, rows_max: int) -> int:
    """Delete up to so many pages and partitions of a deleted topic; return how many."""
    left = rows_max
    while left > 0:
        row: tuple[int] | None = connection.execute(
            "SELECT id FROM partitions WHERE topic_id = ? LIMIT 1", (topic_id,)
        ).fetchone()
        if row is None:
            break
        left -= _purge_pages(connection, row[0], left)
        if left > 0:
            connection.execute("DELETE FROM partitions WHERE id = ?", row)
            left -= 1
    return rows_max - left


def _purge_pages(connection: Connection, partition_id: int, pages_max: int) -> int:
    """Delete a partition's first pages and count them off their folios; return how many."""
    pages = connection.execute(
        "SELECT partition_id, end_offset, folio_id FROM pages "
        "WHERE partition_id = ? ORDER BY end_offset LIMIT ?",
        (partition_id, pages_max),
    ).fetchall()
    if pages:
        connection.execute(
            "DELETE FROM pages WHERE partition_id = ? AND end_offset <= ?",
            (partition_id, pages[-1][1]),
        )
    count_off(connection, Counter(folio_id for _, _, folio_id in pages))
    return len(pages)


def retire(connection: Connection, folios: Sequence[str], now: int) -> list[str]:
    """Fence folios without pages; see `OffsetRegistry.retire`."""
    connection.raw.executemany(
        "INSERT INTO folios (name, pages, retired_at) VALUES (?, 0, ?) ON CONFLICT DO NOTHING",
        [(folio, now) for folio in folios],
    )
    return [
        folio
        for folio in folios
        if connection.execute(
            "SELECT 1 FROM folios WHERE name = ? AND retired_at IS NOT NULL", (folio,)
        ).fetchone()
    ]
