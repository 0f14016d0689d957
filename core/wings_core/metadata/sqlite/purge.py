"""Purging in small steps: rows of deleted topics and stages, and results out of date."""

from collections import Counter
from collections.abc import Sequence

from wings_core.metadata.sqlite.database import Connection
from wings_core.metadata.store.purge import (
    next_deleted_topic,
    purge_out_of_date,
    purge_pages,
    purge_rest_of_topic,
    purge_staged,
    purge_stages,
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
    folios: Counter[int] = Counter()
    left = rows_max
    while left > 0:
        topic_id = next_deleted_topic(connection)
        if topic_id is None:
            break
        left -= purge_pages(connection, topic_id, left, folios)
        left -= purge_staged(connection, topic_id, left, folios)
        left -= purge_rest_of_topic(connection, topic_id, left, now)
    left -= purge_stages(connection, left, folios)
    left -= purge_out_of_date(connection, left, now)
    count_off(connection, folios)
    return left <= 0


def count_off(connection: Connection, folios: Counter[int]) -> None:
    """Count deleted pages off their folios, by id, and delete folios without pages."""
    connection.raw.executemany(
        "UPDATE folios SET pages = pages - ? WHERE id = ?",
        [(count, folio_id) for folio_id, count in folios.items()],
    )
    connection.raw.executemany(
        "DELETE FROM folios WHERE id = ? AND pages = 0", [(folio_id,) for folio_id in folios]
    )


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
