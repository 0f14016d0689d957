"""Retention: a partition's oldest pages are dropped, and its log starts later."""

from collections import Counter

from wings_core.metadata.expiry import expired_pages
from wings_core.metadata.maintenance import Finished
from wings_core.metadata.store.database import C, Dialect
from wings_core.metadata.store.groups import lock_groups
from wings_core.metadata.store.partitions import lock_partition
from wings_core.metadata.tiers import PageCounts
from wings_core.model import Expired, page_format
from wings_core.partitions import Partition


def expire(
    dialect: Dialect[C],
    connection: C,
    topic_uuid: str,
    partition: Partition,
    before: int | None,
    bytes_kept: int | None,
    finished: Finished | None,
    pages_max: int,
) -> Expired:
    """Drop pages within the transaction of `connection`; see `Maintenance.expire`."""
    finished_before = 0
    if finished is not None and lock_groups(connection, topic_uuid) == finished.groups:
        finished_before = finished.before
    locked = lock_partition(connection, topic_uuid, partition)
    if locked is None:
        return Expired(0, 0, 0, 0)
    partition_id, log_start_offset, size = locked
    pages = connection.execute(
        "SELECT end_offset, timestamp, coalesce(slice_bytes, length), folio_id, "
        "end_offset - start_offset + 1, format FROM pages WHERE partition_id = %s "
        "ORDER BY end_offset LIMIT %s::bigint",
        (partition_id, pages_max),
    ).fetchall()
    ages = ((timestamp, end_offset, length) for end_offset, timestamp, length, *_ in pages)
    gone = pages[: expired_pages(ages, size, before, bytes_kept, finished_before)]
    if not gone:
        return Expired(log_start_offset, 0, 0, 0)
    last_offset = int(gone[-1][0])
    dropped = PageCounts.of(
        (rows, length, page_format(format_)) for _, _, length, _, rows, format_ in gone
    )
    connection.execute(
        "UPDATE partitions SET log_start_offset = %s, bytes = bytes - %s, pages = pages - %s, "
        "merged_pages = merged_pages - %s, merged_rows = merged_rows - %s, "
        "merged_bytes = merged_bytes - %s WHERE id = %s",
        (
            last_offset + 1,
            dropped.bytes,
            dropped.pages,
            dropped.merged_pages,
            dropped.merged_rows,
            dropped.merged_bytes,
            partition_id,
        ),
    )
    connection.execute(
        "DELETE FROM pages WHERE partition_id = %s AND end_offset <= %s",
        (partition_id, last_offset),
    )
    dialect.count_off(connection, Counter(folio_id for _, _, _, folio_id, _, _ in gone))
    return Expired(last_offset + 1, len(gone), last_offset + 1 - log_start_offset, dropped.bytes)
