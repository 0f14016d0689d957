"""Forgetting in small steps what nobody can ask for any more."""

from collections import Counter
from collections.abc import Sequence

from wings_core.metadata.creation import DELETED_KEPT_US
from wings_core.metadata.flushes import FLUSHES_KEPT_US
from wings_core.metadata.folios import RETIRED_KEPT_US
from wings_core.metadata.judge import RESULTS_KEPT_US
from wings_core.metadata.postgres import groups, locks
from wings_core.metadata.postgres.connections import Connection
from wings_core.metadata.postgres.database import OUTCOMES_KEPT_SECONDS
from wings_core.metadata.postgres.leases import purge_leases
from wings_core.metadata.postgres.locks import Lock
from wings_core.metadata.postgres.publish import purge_results
from wings_core.metadata.postgres.stages import purge_deleted, purge_of_topic

_OF_TOPIC = (
    """
    DELETE FROM producer_results WHERE (topic_id, producer_id, slot) IN (
        SELECT topic_id, producer_id, slot FROM producer_results
        WHERE topic_id = %s LIMIT %s::bigint
    ) RETURNING topic_id
    """,
    """
    DELETE FROM producers WHERE (topic_id, producer_id) IN (
        SELECT topic_id, producer_id FROM producers WHERE topic_id = %s LIMIT %s::bigint
    ) RETURNING topic_id
    """,
    """
    DELETE FROM consumer_offsets WHERE (consumer, topic_id, partition) IN (
        SELECT consumer, topic_id, partition FROM consumer_offsets
        WHERE topic_id = %s LIMIT %s::bigint
    ) RETURNING topic_id
    """,
)


def purge(connection: Connection, rows_max: int, now: int) -> bool:
    """Delete up to `rows_max` rows of deleted topics and stages, then of results out of date.

    Args:
        connection: In a transaction; nobody else purges until its end.
        rows_max: Bounds the time that the transaction takes.
        now: Microseconds since the epoch, by the lease clock.

    Returns:
        True while there may be more.
    """
    locks.take(connection, Lock.PURGE)
    folios: Counter[int] = Counter()
    left = rows_max
    staged = 0
    # Stages are locked by name, which they are within a topic: those of others go another time.
    while left > 0 and not staged:
        row = connection.execute(
            "SELECT id FROM topics WHERE deleted_at IS NOT NULL AND purged_at IS NULL "
            "ORDER BY deleted_at LIMIT 1"
        ).fetchone()
        if row is None:
            break
        left, staged = _purge_topic(connection, row[0], left, folios, now)
    left -= len(
        connection.execute(
            "DELETE FROM topics WHERE id IN (SELECT id FROM topics "
            "WHERE purged_at <= %s::bigint LIMIT %s::bigint) RETURNING id",
            (now - DELETED_KEPT_US, max(0, left)),
        ).fetchall()
    )
    left -= purge_deleted(connection, left, folios)
    left -= purge_results(connection, left, now)
    left -= purge_leases(connection, left, now)
    left -= len(
        connection.execute(
            "WITH old AS MATERIALIZED (SELECT topic_id, producer_id, slot FROM producer_results "
            "WHERE committed_at <= %s::bigint LIMIT %s::bigint FOR UPDATE SKIP LOCKED) "
            "DELETE FROM producer_results WHERE (topic_id, producer_id, slot) IN "
            "(SELECT topic_id, producer_id, slot FROM old) RETURNING slot",
            (now - RESULTS_KEPT_US, max(0, left)),
        ).fetchall()
    )
    left -= len(
        connection.execute(
            "WITH old AS MATERIALIZED (SELECT writer FROM flushes "
            "WHERE committed_at <= %s::bigint LIMIT %s::bigint FOR UPDATE SKIP LOCKED) "
            "DELETE FROM flushes WHERE writer IN (SELECT writer FROM old) RETURNING number",
            (now - FLUSHES_KEPT_US, max(0, left)),
        ).fetchall()
    )
    left -= len(
        connection.execute(
            "DELETE FROM outcomes WHERE id IN (SELECT id FROM outcomes "
            "WHERE decided_at < now() - make_interval(secs => %s) LIMIT %s::bigint) RETURNING id",
            (OUTCOMES_KEPT_SECONDS, max(0, left)),
        ).fetchall()
    )
    left -= len(
        connection.execute(
            "WITH old AS MATERIALIZED (SELECT id FROM folios "
            "WHERE retired_at <= %s::bigint LIMIT %s::bigint FOR UPDATE SKIP LOCKED) "
            "DELETE FROM folios WHERE id IN (SELECT id FROM old) RETURNING id",
            (now - RETIRED_KEPT_US, max(0, left)),
        ).fetchall()
    )
    count_off(connection, folios)
    return left <= 0 or staged > 0


def _purge_topic(
    connection: Connection, topic_id: int, left: int, folios: Counter[int], now: int
) -> tuple[int, int]:
    """Delete what belongs to a deleted topic.

    Returns:
        How many more rows may be deleted, and how many of stages were.
    """
    while left > 0:
        row = connection.execute(
            "SELECT id FROM partitions WHERE topic_id = %s LIMIT 1", (topic_id,)
        ).fetchone()
        if row is None:
            break
        pages = connection.execute(
            "DELETE FROM pages WHERE partition_id = %s AND end_offset IN (SELECT end_offset "
            "FROM pages WHERE partition_id = %s ORDER BY end_offset LIMIT %s::bigint) "
            "RETURNING folio_id",
            (*row, *row, left),
        ).fetchall()
        folios.update(folio_id for (folio_id,) in pages)
        left -= len(pages)
        if left > 0:
            connection.execute("DELETE FROM partitions WHERE id = %s", row)
            left -= 1
    staged = purge_of_topic(connection, topic_id, left, folios)
    left -= staged
    left -= groups.purge_of_topic(connection, topic_id, left)
    for statement in _OF_TOPIC:
        left -= len(connection.execute(statement, (topic_id, max(0, left))).fetchall())
    if left > 0:
        connection.execute("UPDATE topics SET purged_at = %s WHERE id = %s", (now, topic_id))
        left -= 1
    return left, staged


def count_off(connection: Connection, folios: Counter[int]) -> None:
    """Count pages that were deleted off their folios, and forget folios without pages."""
    if not folios:
        return
    ids = list(folios)
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


def live_folios(connection: Connection, after: str | None, items_max: int | None) -> set[str]:
    """Return the folios that pages refer to; see `OffsetRegistry.live_folios`."""
    # A name is never empty.
    rows = connection.execute(
        "SELECT name FROM folios WHERE retired_at IS NULL AND name > %s::text "
        "ORDER BY name LIMIT %s::bigint",
        (after or "", items_max),
    ).fetchall()
    return {str(name) for (name,) in rows}


def retire(connection: Connection, folios: Sequence[str], now: int) -> list[str]:
    """Keep folios without pages from being referred to; see `OffsetRegistry.retire`.

    The unique index makes it wait for a commit to one of them that is under way, and that for it.
    """
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
