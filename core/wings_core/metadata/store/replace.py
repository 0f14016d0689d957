"""Pages take the place of those whose messages they hold."""

from collections import Counter
from collections.abc import Sequence

from wings_core.metadata.store.database import C, Connection, Dialect
from wings_core.metadata.store.locks import Lock
from wings_core.metadata.store.rows import location_of
from wings_core.metadata.store.topics import find_topic_ids
from wings_core.metadata.tiers import PageCounts
from wings_core.model import Location, Replacement


def replace_all(
    dialect: Dialect[C], connection: C, replacements: Sequence[Replacement]
) -> list[bool]:
    """Replace pages within the transaction of `connection`; see `Maintenance.replace_all`."""
    uuids = sorted({each.topic_uuid for each in replacements})
    connection.share_lock(Lock.TOPICS, uuids)
    topic_ids = find_topic_ids(connection, uuids)
    replaced = [False] * len(replacements)
    partition_ids: dict[int, int] = {}
    folios: Counter[int] = Counter()
    # All partitions are locked before the first folio is, in the order of `locks`.
    for index in sorted(
        (index for index, each in enumerate(replacements) if each.topic_uuid in topic_ids),
        key=lambda index: (
            topic_ids[replacements[index].topic_uuid],
            replacements[index].partition,
        ),
    ):
        each = replacements[index]
        partition_id = _lock(connection, topic_ids[each.topic_uuid], each)
        if partition_id is not None:
            found = _still_there(connection, partition_id, each.old)
            if found is not None:
                replaced[index] = True
                partition_ids[index] = partition_id
                folios += found
    for index, partition_id in partition_ids.items():
        each = replacements[index]
        connection.execute(
            "DELETE FROM pages WHERE partition_id = %s AND end_offset BETWEEN %s AND %s",
            (partition_id, each.old[0].end_offset, each.old[-1].end_offset),
        )
        _count(connection, partition_id, each)
    if partition_ids:
        added = [
            (id_, page) for index, id_ in partition_ids.items() for page in replacements[index].new
        ]
        dialect.add_pages(connection, added)
    dialect.count_off(connection, folios)
    return replaced


def _lock(connection: Connection, topic_id: int, replacement: Replacement) -> int | None:
    """Lock a partition, and return its id, None where it was never written to."""
    row = connection.execute(
        "SELECT id FROM partitions WHERE topic_id = %s AND value = %s FOR UPDATE",
        (topic_id, replacement.partition),
    ).fetchone()
    return None if row is None else row[0]


def _still_there(
    connection: Connection, partition_id: int, old: Sequence[Location]
) -> Counter[int] | None:
    """Return how many of the pages each folio has, by its id, None where they are not as said."""
    rows = connection.execute(
        "SELECT start_offset, end_offset, timestamp, "
        "(SELECT name FROM folios WHERE id = folio_id), position, length, "
        "first_timestamp, format, first_row, slice_bytes, schema_version, folio_id FROM pages "
        "WHERE partition_id = %s AND end_offset BETWEEN %s AND %s ORDER BY end_offset",
        (partition_id, old[0].end_offset, old[-1].end_offset),
    ).fetchall()
    found = [location_of(*page) for *page, _ in rows]
    return Counter(folio_id for *_, folio_id in rows) if found == list(old) else None


def _count(connection: Connection, partition_id: int, replacement: Replacement) -> None:
    came = PageCounts.of_locations(replacement.new)
    went = PageCounts.of_locations(replacement.old)
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
