"""Merged pages in SQLite: they take the place of those whose messages they hold."""

import sqlite3
from collections import Counter
from collections.abc import Sequence

from wings_core.errors import TopicNotFound
from wings_core.metadata.sqlite.connections import limit_of
from wings_core.metadata.sqlite.stages import count_off
from wings_core.metadata.sqlite.topics import require_topic_id
from wings_core.model import Location, PageAddress, TierState
from wings_core.partitions import Partition, partition_sort_key


def replace(
    connection: sqlite3.Connection,
    topic_uuid: str,
    partition: Partition,
    old: Sequence[Location],
    new: Sequence[Location],
) -> bool:
    """Replace pages within the transaction of `connection`; see `Maintenance.replace`."""
    row: tuple[int] | None = connection.execute(
        "SELECT id FROM partitions WHERE topic_id = ? AND value = ?",
        (require_topic_id(connection, topic_uuid), partition),
    ).fetchone()
    if row is None:
        return False
    (partition_id,) = row
    place = (partition_id, old[0].end_offset, old[-1].end_offset)
    found = connection.execute(
        "SELECT start_offset, end_offset, timestamp, folios.name, position, length, "
        "first_timestamp, folio_id FROM pages JOIN folios ON folios.id = folio_id "
        "WHERE partition_id = ? AND end_offset BETWEEN ? AND ? ORDER BY end_offset",
        place,
    ).fetchall()
    if [_location(page) for page in found] != list(old):
        return False
    folio_ids: dict[str, int] = {}
    for folio, pages in Counter(page.address.folio for page in new).items():
        ((folio_ids[folio],),) = connection.execute(
            "INSERT INTO folios (name, pages) VALUES (?, ?) "
            "ON CONFLICT (name) DO UPDATE SET pages = pages + excluded.pages RETURNING id",
            (folio, pages),
        ).fetchall()
    connection.execute(
        "DELETE FROM pages WHERE partition_id = ? AND end_offset BETWEEN ? AND ?", place
    )
    count_off(connection, Counter(page[-1] for page in found))
    connection.executemany(
        "INSERT INTO pages VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                partition_id,
                page.end_offset,
                page.start_offset,
                page.timestamp,
                folio_ids[page.address.folio],
                page.address.position,
                page.address.length,
                page.first_timestamp,
            )
            for page in new
        ],
    )
    grown = sum(page.address.length for page in new) - sum(page.address.length for page in old)
    connection.execute(
        "UPDATE partitions SET bytes = bytes + ? WHERE id = ?", (grown, partition_id)
    )
    return True


_TIER_STATES = """
WITH topic AS (SELECT id FROM topics WHERE uuid = ? AND deleted_at IS NULL), wanted AS (
    SELECT partitions.id, partitions.value FROM partitions
    WHERE partitions.topic_id = (SELECT id FROM topic) AND partitions.value > ?
    AND EXISTS (SELECT 1 FROM pages WHERE pages.partition_id = partitions.id)
    ORDER BY partitions.value LIMIT ?
)
SELECT wanted.value, pages.first_timestamp IS NOT NULL, count(pages.length),
    sum(end_offset - start_offset + 1), sum(pages.length)
FROM topic
LEFT JOIN wanted ON true
LEFT JOIN pages ON pages.partition_id = wanted.id
GROUP BY 1, 2
"""


def tier_states(
    connection: sqlite3.Connection,
    topic_uuid: str,
    after: Partition | None,
    partitions_max: int | None,
) -> list[TierState]:
    """Return what the partitions have in each tier; see `Maintenance.tier_states`."""
    rows = connection.execute(
        _TIER_STATES, (topic_uuid, after or "", limit_of(partitions_max))
    ).fetchall()
    if not rows:
        raise TopicNotFound("the topic was deleted")
    states = [TierState(row[0], bool(row[1]), *row[2:]) for row in rows if row[2]]
    return sorted(states, key=lambda state: (partition_sort_key(state.partition), state.remote))


def _location(row: tuple[int, int, int, str, int, int, int | None, int]) -> Location:
    start_offset, end_offset, timestamp, folio, position, length, first_timestamp, _ = row
    address = PageAddress(folio, position, length)
    return Location(start_offset, end_offset, timestamp, address, first_timestamp)
