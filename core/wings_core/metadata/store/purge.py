"""Purging in small steps: the tables whose rows both databases delete alike."""

from typing import LiteralString

from wings_core.metadata.creation import DELETED_KEPT_US
from wings_core.metadata.folios import RETIRED_KEPT_US
from wings_core.metadata.judge import RESULTS_KEPT_US
from wings_core.metadata.store.database import Connection
from wings_core.metadata.store.flushes import purge_flushes
from wings_core.metadata.store.groups import purge_of_topic as purge_groups
from wings_core.metadata.store.leases import purge_leases
from wings_core.metadata.store.publish import purge_results

_OF_TOPIC = (
    """
    DELETE FROM producer_results WHERE (topic_id, producer_id, slot) IN (
        SELECT topic_id, producer_id, slot FROM producer_results
        WHERE topic_id = %s LIMIT %s::bigint
    )
    """,
    """
    DELETE FROM producers WHERE (topic_id, producer_id) IN (
        SELECT topic_id, producer_id FROM producers WHERE topic_id = %s LIMIT %s::bigint
    )
    """,
    """
    DELETE FROM consumer_offsets WHERE (consumer, topic_id, partition) IN (
        SELECT consumer, topic_id, partition FROM consumer_offsets
        WHERE topic_id = %s LIMIT %s::bigint
    )
    """,
)

_PURGED_TOPICS = """
DELETE FROM topics WHERE id IN (
    SELECT id FROM topics WHERE purged_at <= %s::bigint LIMIT %s::bigint
) RETURNING id
"""

_OLD_RESULTS = """
WITH old AS MATERIALIZED (
    SELECT topic_id, producer_id, slot FROM producer_results
    WHERE committed_at <= %s::bigint LIMIT %s::bigint FOR UPDATE SKIP LOCKED
)
DELETE FROM producer_results WHERE (topic_id, producer_id, slot) IN (
    SELECT topic_id, producer_id, slot FROM old
) RETURNING slot
"""

_RETIRED_FOLIOS = """
WITH old AS MATERIALIZED (
    SELECT id FROM folios
    WHERE retired_at <= %s::bigint LIMIT %s::bigint FOR UPDATE SKIP LOCKED
)
DELETE FROM folios WHERE id IN (SELECT id FROM old) RETURNING id
"""


def next_deleted_topic(connection: Connection) -> int | None:
    """Return the id of the topic that was deleted first of those not purged yet."""
    row = connection.execute(
        "SELECT id FROM topics WHERE deleted_at IS NOT NULL AND purged_at IS NULL "
        "ORDER BY deleted_at LIMIT 1"
    ).fetchone()
    return None if row is None else row[0]


def purge_rest_of_topic(connection: Connection, topic_id: int, rows_max: int, now: int) -> int:
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


def purge_out_of_date(connection: Connection, rows_max: int, now: int) -> int:
    """Delete up to so many rows that were kept for as long as they are asked for.

    Returns:
        How many.
    """
    left = rows_max
    old: tuple[tuple[LiteralString, int], ...] = (
        (_PURGED_TOPICS, DELETED_KEPT_US),
        (_OLD_RESULTS, RESULTS_KEPT_US),
        (_RETIRED_FOLIOS, RETIRED_KEPT_US),
    )
    for statement, kept_us in old:
        left -= len(connection.execute(statement, (now - kept_us, max(0, left))).fetchall())
    for purge in (purge_results, purge_leases, purge_flushes):
        left -= purge(connection, left, now)
    return rows_max - left
