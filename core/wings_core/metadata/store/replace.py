"""Merged pages take the place of those whose messages they hold."""

from collections import Counter
from collections.abc import Sequence

from wings_core.metadata.store.database import C, Dialect
from wings_core.metadata.store.partitions import lock_partition
from wings_core.metadata.tiers import PageCounts
from wings_core.model import Location, PageAddress, page_format
from wings_core.partitions import Partition


def replace(
    dialect: Dialect[C],
    connection: C,
    topic_uuid: str,
    partition: Partition,
    old: Sequence[Location],
    new: Sequence[Location],
) -> bool:
    """Replace pages within the transaction of `connection`; see `Maintenance.replace`."""
    locked = lock_partition(connection, topic_uuid, partition)
    if locked is None:
        return False
    partition_id, _, _ = locked
    place = (partition_id, old[0].end_offset, old[-1].end_offset)
    rows = connection.execute(
        "SELECT start_offset, end_offset, timestamp, folios.name, position, length, "
        "first_timestamp, format, first_row, slice_bytes, folio_id "
        "FROM pages JOIN folios ON folios.id = folio_id "
        "WHERE partition_id = %s AND end_offset BETWEEN %s AND %s ORDER BY end_offset",
        place,
    ).fetchall()
    found = [
        Location(
            start,
            end,
            timestamp,
            PageAddress(folio, position, length),
            first,
            page_format(format_),
            *part,
        )
        for start, end, timestamp, folio, position, length, first, format_, *part, _ in rows
    ]
    if found != list(old):
        return False
    connection.execute(
        "DELETE FROM pages WHERE partition_id = %s AND end_offset BETWEEN %s AND %s", place
    )
    dialect.add_pages(connection, partition_id, new)
    dialect.count_off(connection, Counter(folio_id for *_, folio_id in rows))
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
