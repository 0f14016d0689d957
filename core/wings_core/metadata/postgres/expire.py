"""Retention in PostgreSQL: a partition's oldest pages go, and its log starts later."""

from collections import Counter

from wings_core.errors import TopicNotFound
from wings_core.metadata.expiry import expired_pages
from wings_core.metadata.postgres import locks
from wings_core.metadata.postgres.connections import Connection
from wings_core.metadata.postgres.locks import Lock
from wings_core.metadata.postgres.purge import count_off
from wings_core.metadata.postgres.topics import find_topic_ids
from wings_core.metadata.tiers import PageCounts
from wings_core.model import Expired, PageFormat
from wings_core.partitions import Partition


def expire(
    connection: Connection,
    topic_uuid: str,
    partition: Partition,
    before: int | None,
    bytes_kept: int | None,
    pages_max: int,
) -> Expired:
    """Drop pages within the transaction of `connection`; see `Maintenance.expire`."""
    locked = lock_partition(connection, topic_uuid, partition)
    if locked is None:
        return Expired(0, 0, 0, 0)
    partition_id, log_start_offset, size = locked
    pages = connection.execute(
        "SELECT end_offset, timestamp, length, folio_id, end_offset - start_offset + 1, "
        "format FROM pages WHERE partition_id = %s "
        "ORDER BY end_offset LIMIT %s::bigint",
        (partition_id, pages_max),
    ).fetchall()
    ages = ((timestamp, length) for _, timestamp, length, *_ in pages)
    gone = pages[: expired_pages(ages, size, before, bytes_kept)]
    if not gone:
        return Expired(log_start_offset, 0, 0, 0)
    last_offset = int(gone[-1][0])
    dropped = PageCounts.of(
        (rows, length, PageFormat(format_)) for _, _, length, _, rows, format_ in gone
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
    count_off(connection, Counter(page[3] for page in gone))
    return Expired(last_offset + 1, len(gone), last_offset + 1 - log_start_offset, dropped.bytes)


def lock_partition(
    connection: Connection, topic_uuid: str, partition: Partition
) -> tuple[int, int, int] | None:
    """Keep all others from writing to a partition until the end of the transaction.

    Returns:
        Its id, where its log starts, and the bytes of its pages; None where it was never written
        to.

    Raises:
        TopicNotFound: The topic was deleted.
    """
    locks.share(connection, Lock.TOPICS, (topic_uuid,))
    topic_id = find_topic_ids(connection, [topic_uuid]).get(topic_uuid)
    if topic_id is None:
        raise TopicNotFound("the topic was deleted")
    row = connection.execute(
        "SELECT id, log_start_offset, bytes FROM partitions "
        "WHERE topic_id = %s AND value = %s FOR UPDATE",
        (topic_id, partition),
    ).fetchone()
    return None if row is None else (int(row[0]), int(row[1]), int(row[2]))
