"""Purging in small steps: rows of deleted topics and stages, and results out of date."""

from collections import Counter
from collections.abc import Sequence

from wings_core.metadata.postgres.connections import Connection
from wings_core.metadata.postgres.database import OUTCOMES_KEPT_SECONDS
from wings_core.metadata.postgres.plans import plan_for
from wings_core.metadata.store.locks import Lock
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
        topic_id = next_deleted_topic(connection)
        if topic_id is None:
            break
        left -= purge_pages(connection, topic_id, left, folios)
        staged = purge_staged(connection, topic_id, left, folios)
        left -= staged
        plan_for(connection, left)
        left -= purge_rest_of_topic(connection, topic_id, left, now)
    left -= purge_stages(connection, left, folios)
    plan_for(connection, left)
    left -= purge_out_of_date(connection, left, now)
    left -= connection.execute(
        "DELETE FROM outcomes WHERE id IN (SELECT id FROM outcomes "
        "WHERE decided_at < now() - make_interval(secs => %s) LIMIT %s::bigint)",
        (OUTCOMES_KEPT_SECONDS, max(0, left)),
    ).rowcount
    count_off(connection, folios)
    return left <= 0 or staged > 0


def count_off(connection: Connection, folios: Counter[int]) -> None:
    """Count deleted pages off their folios, by id, and delete folios without pages."""
    if not folios:
        return
    ids = list(folios)
    plan_for(connection, len(ids))
    connection.execute(
        "SELECT id FROM folios WHERE id = ANY(%s::bigint[]) ORDER BY name FOR UPDATE", (ids,)
    )
    connection.execute(
        "UPDATE folios SET pages = folios.pages - deleted.pages "
        "FROM unnest(%s::bigint[], %s::bigint[]) AS deleted (id, pages) "
        "WHERE folios.id = deleted.id",
        (ids, [folios[folio_id] for folio_id in ids]),
    )
    connection.execute("DELETE FROM folios WHERE id = ANY(%s::bigint[]) AND pages = 0", (ids,))


def retire(connection: Connection, folios: Sequence[str], now: int) -> list[str]:
    """Fence folios without pages; see `OffsetRegistry.retire`.

    The unique index makes it wait for a commit to one of them that is under way, and that for it.
    """
    plan_for(connection, len(folios))
    connection.execute(
        "INSERT INTO folios (name, pages, retired_at) SELECT name, 0, %s::bigint "
        "FROM unnest(%s::text[]) AS unused (name) "
        'ORDER BY name COLLATE "C" ON CONFLICT (name) DO NOTHING',
        (now, list(folios)),
    )
    rows = connection.execute(
        "SELECT name FROM folios WHERE name = ANY(%s::text[]) AND retired_at IS NOT NULL",
        (list(folios),),
    ).fetchall()
    retired = {name for (name,) in rows}
    return [folio for folio in folios if folio in retired]
