"""Merged pages in PostgreSQL: they take the place of those whose messages they hold."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from wings_core.errors import TopicNotFound
from wings_core.metadata.postgres.connections import Connection
from wings_core.metadata.postgres.expire import lock_partition
from wings_core.metadata.postgres.purge import count_off
from wings_core.metadata.tiers import PageCounts, states_of
from wings_core.model import Location, PageAddress, PageFormat, TierState
from wings_core.partitions import Partition


def replace(
    connection: Connection,
    topic_uuid: str,
    partition: Partition,
    old: Sequence[Location],
    new: Sequence[Location],
) -> bool:
    """Replace pages within the transaction of `connection`; see `Maintenance.replace`."""
    locked = lock_partition(connection, topic_uuid, partition)
    if locked is None:
        return False
    partition_id = locked[0]
    place = (partition_id, old[0].end_offset, old[-1].end_offset)
    found = connection.execute(
        "SELECT start_offset, end_offset, timestamp, folios.name, position, length, "
        "first_timestamp, format, folio_id FROM pages JOIN folios ON folios.id = folio_id "
        "WHERE partition_id = %s AND end_offset BETWEEN %s AND %s ORDER BY end_offset",
        place,
    ).fetchall()
    if [_location(page) for page in found] != list(old):
        return False
    counts = Counter(page.address.folio for page in new)
    connection.execute(
        "INSERT INTO folios (name, pages) "
        "SELECT name, pages FROM unnest(%s::text[], %s::bigint[]) AS added (name, pages) "
        'ORDER BY name COLLATE "C" '
        "ON CONFLICT (name) DO UPDATE SET pages = folios.pages + excluded.pages",
        (list(counts), list(counts.values())),
    )
    connection.execute(
        "DELETE FROM pages WHERE partition_id = %s AND end_offset BETWEEN %s AND %s", place
    )
    count_off(connection, Counter(page[-1] for page in found))
    connection.execute(
        "INSERT INTO pages (partition_id, end_offset, start_offset, timestamp, folio_id, "
        "position, length, first_timestamp, format) "
        "SELECT %s, added.end_offset, added.start_offset, added.timestamp, "
        "folios.id, added.position, added.length, added.first_timestamp, added.format "
        "FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::text[], %s::bigint[], "
        "%s::bigint[], %s::bigint[], %s::smallint[]) AS added "
        "(end_offset, start_offset, timestamp, folio, position, length, first_timestamp, format) "
        "JOIN folios ON folios.name = added.folio",
        (
            partition_id,
            [page.end_offset for page in new],
            [page.start_offset for page in new],
            [page.timestamp for page in new],
            [page.address.folio for page in new],
            [page.address.position for page in new],
            [page.address.length for page in new],
            [page.first_timestamp for page in new],
            [int(page.format) for page in new],
        ),
    )
    came, went = PageCounts.of_locations(new), PageCounts.of_locations(old)
    connection.execute(
        "UPDATE partitions SET bytes = bytes + %s, pages = pages + %s, "
        "merged_pages = merged_pages + %s, merged_rows = merged_rows + %s, "
        "merged_bytes = merged_bytes + %s WHERE id = %s",
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
WITH topic AS (SELECT id FROM topics WHERE uuid = %s AND deleted_at IS NULL)
SELECT wanted.* FROM topic LEFT JOIN (
    SELECT value, pages, next_offset - log_start_offset, bytes,
        merged_pages, merged_rows, merged_bytes
    FROM partitions
    WHERE topic_id = (SELECT id FROM topic) AND value > %s::text AND pages > 0
    ORDER BY value LIMIT %s::bigint
) AS wanted ON true
"""


def tier_states(
    connection: Connection, topic_uuid: str, after: Partition | None, partitions_max: int | None
) -> list[TierState]:
    """Return what the partitions have in each tier; see `Maintenance.tier_states`."""
    rows = connection.execute(_TIER_STATES, (topic_uuid, after or "", partitions_max)).fetchall()
    if not rows:
        raise TopicNotFound("the topic was deleted")
    return states_of((row[0], PageCounts(*row[1:])) for row in rows if row[0] is not None)


def _location(row: tuple[Any, ...]) -> Location:
    start_offset, end_offset, timestamp, folio, position, length, first_timestamp, format_, _ = row
    address = PageAddress(folio, position, length)
    return Location(
        start_offset, end_offset, timestamp, address, first_timestamp, PageFormat(format_)
    )
