"""Merged pages in SQLite: they take the place of those whose messages they hold."""

import sqlite3
from collections import Counter
from collections.abc import Sequence

from wings_core.errors import TopicNotFound
from wings_core.metadata.sqlite.connections import limit_of
from wings_core.metadata.sqlite.stages import count_off
from wings_core.metadata.sqlite.topics import require_topic_id
from wings_core.metadata.tiers import PageCounts, states_of
from wings_core.model import Location, PageAddress, PageFormat, TierState
from wings_core.partitions import Partition


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
        "first_timestamp, format, folio_id FROM pages JOIN folios ON folios.id = folio_id "
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
        "INSERT INTO pages (partition_id, end_offset, start_offset, timestamp, folio_id, "
        "position, length, first_timestamp, format) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
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
                page.format,
            )
            for page in new
        ],
    )
    came, went = PageCounts.of_locations(new), PageCounts.of_locations(old)
    connection.execute(
        "UPDATE partitions SET bytes = bytes + ?, pages = pages + ?, "
        "merged_pages = merged_pages + ?, merged_rows = merged_rows + ?, "
        "merged_bytes = merged_bytes + ? WHERE id = ?",
        (
            came.bytes - went.bytes,
            came.pages - went.pages,
            came.merged_pages - went.merged_pages,
            came.merged_rows - went.merged_rows,
            came.merged_bytes - went.merged_bytes,
            partition_id,
        ),
    )
    return True


_TIER_STATES = """
WITH topic AS (SELECT id FROM topics WHERE uuid = ? AND deleted_at IS NULL)
SELECT wanted.* FROM topic LEFT JOIN (
    SELECT value, pages, next_offset - log_start_offset, bytes,
        merged_pages, merged_rows, merged_bytes
    FROM partitions
    WHERE topic_id = (SELECT id FROM topic) AND value > ? AND pages > 0
    ORDER BY value LIMIT ?
) AS wanted ON true
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
    return states_of((row[0], PageCounts(*row[1:])) for row in rows if row[0] is not None)


def _location(row: tuple[int, int, int, str, int, int, int | None, int, int]) -> Location:
    start_offset, end_offset, timestamp, folio, position, length, first_timestamp, format_, _ = row
    address = PageAddress(folio, position, length)
    return Location(
        start_offset, end_offset, timestamp, address, first_timestamp, PageFormat(format_)
    )
