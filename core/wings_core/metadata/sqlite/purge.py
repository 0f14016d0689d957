"""Forgetting in small steps what nobody can ask for any more."""

import sqlite3
from collections import Counter
from collections.abc import Sequence

from wings_core.metadata.creation import DELETED_KEPT_US
from wings_core.metadata.flushes import FLUSHES_KEPT_US
from wings_core.metadata.folios import RETIRED_KEPT_US
from wings_core.metadata.judge import RESULTS_KEPT_US
from wings_core.metadata.sqlite import groups
from wings_core.metadata.sqlite.connections import limit_of
from wings_core.metadata.sqlite.leases import purge_leases
from wings_core.metadata.sqlite.publish import purge_results
from wings_core.metadata.sqlite.stages import count_off, purge_deleted, purge_of_topic


def purge(connection: sqlite3.Connection, rows_max: int, now: int) -> bool:
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
        row: tuple[int] | None = connection.execute(
            "SELECT id FROM topics WHERE deleted_at IS NOT NULL AND purged_at IS NULL "
            "ORDER BY deleted_at LIMIT 1"
        ).fetchone()
        if row is None:
            break
        left = _purge_topic(connection, row[0], left, now)
    left -= connection.execute(
        "DELETE FROM topics WHERE id IN (SELECT id FROM topics WHERE purged_at <= ? LIMIT ?)",
        (now - DELETED_KEPT_US, max(0, left)),
    ).rowcount
    left -= purge_deleted(connection, left)
    left -= purge_results(connection, left, now)
    left -= purge_leases(connection, left, now)
    left -= connection.execute(
        "DELETE FROM flushes WHERE writer IN "
        "(SELECT writer FROM flushes WHERE committed_at <= ? LIMIT ?)",
        (now - FLUSHES_KEPT_US, max(0, left)),
    ).rowcount
    left -= connection.execute(
        "DELETE FROM producer_results WHERE (topic_id, producer_id, slot) IN "
        "(SELECT topic_id, producer_id, slot FROM producer_results "
        "WHERE committed_at <= ? LIMIT ?)",
        (now - RESULTS_KEPT_US, max(0, left)),
    ).rowcount
    left -= connection.execute(
        "DELETE FROM folios WHERE id IN (SELECT id FROM folios WHERE retired_at <= ? LIMIT ?)",
        (now - RETIRED_KEPT_US, max(0, left)),
    ).rowcount
    return left <= 0


def _purge_topic(connection: sqlite3.Connection, topic_id: int, left: int, now: int) -> int:
    """Delete what belongs to a deleted topic; return how many more rows may be deleted."""
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
    left -= purge_of_topic(connection, topic_id, left)
    left -= groups.purge_of_topic(connection, topic_id, left)
    for table, key in (
        ("producer_results", "topic_id, producer_id, slot"),
        ("producers", "topic_id, producer_id"),
        ("consumer_offsets", "consumer, topic_id, partition"),
    ):
        left -= connection.execute(
            f"DELETE FROM {table} WHERE ({key}) IN "
            f"(SELECT {key} FROM {table} WHERE topic_id = ? LIMIT ?)",
            (topic_id, max(0, left)),
        ).rowcount
    if left > 0:
        connection.execute("UPDATE topics SET purged_at = ? WHERE id = ?", (now, topic_id))
        left -= 1
    return left


def _purge_pages(connection: sqlite3.Connection, partition_id: int, pages_max: int) -> int:
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


def live_folios(
    connection: sqlite3.Connection, after: str | None, items_max: int | None
) -> set[str]:
    """Return the folios that pages refer to; see `OffsetRegistry.live_folios`."""
    # A name is never empty.
    rows = connection.execute(
        "SELECT name FROM folios WHERE retired_at IS NULL AND name > ? ORDER BY name LIMIT ?",
        (after or "", limit_of(items_max)),
    )
    return {name for (name,) in rows}


def retire(connection: sqlite3.Connection, folios: Sequence[str], now: int) -> list[str]:
    """Keep folios without pages from being referred to; see `OffsetRegistry.retire`."""
    connection.executemany(
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
