"""Retention in SQLite: a partition's oldest pages go, and its log starts later."""

import sqlite3
from collections import Counter

from wings_core.metadata.expiry import expired_pages
from wings_core.metadata.sqlite.stages import count_off
from wings_core.metadata.sqlite.topics import require_topic_id
from wings_core.metadata.tiers import PageCounts
from wings_core.model import Expired, PageFormat
from wings_core.partitions import Partition


def expire(
    connection: sqlite3.Connection,
    topic_uuid: str,
    partition: Partition,
    before: int | None,
    bytes_kept: int | None,
    pages_max: int,
) -> Expired:
    """Drop pages within the transaction of `connection`; see `Maintenance.expire`."""
    topic_id = require_topic_id(connection, topic_uuid)
    row: tuple[int, int, int] | None = connection.execute(
        "SELECT id, log_start_offset, bytes FROM partitions WHERE topic_id = ? AND value = ?",
        (topic_id, partition),
    ).fetchone()
    if row is None:
        return Expired(0, 0, 0, 0)
    partition_id, log_start_offset, size = row
    pages: list[tuple[int, int, int, int, int, int]] = connection.execute(
        "SELECT end_offset, timestamp, length, folio_id, end_offset - start_offset + 1, "
        "format FROM pages WHERE partition_id = ? "
        "ORDER BY end_offset LIMIT ?",
        (partition_id, pages_max),
    ).fetchall()
    ages = ((timestamp, length) for _, timestamp, length, *_ in pages)
    gone = pages[: expired_pages(ages, size, before, bytes_kept)]
    if not gone:
        return Expired(log_start_offset, 0, 0, 0)
    last_offset = gone[-1][0]
    dropped = PageCounts.of(
        (rows, length, PageFormat(format_)) for _, _, length, _, rows, format_ in gone
    )
    connection.execute(
        "DELETE FROM pages WHERE partition_id = ? AND end_offset <= ?", (partition_id, last_offset)
    )
    count_off(connection, Counter(page[3] for page in gone))
    connection.execute(
        "UPDATE partitions SET log_start_offset = ?, bytes = bytes - ?, pages = pages - ?, "
        "merged_pages = merged_pages - ?, merged_rows = merged_rows - ?, "
        "merged_bytes = merged_bytes - ? WHERE id = ?",
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
    return Expired(last_offset + 1, len(gone), last_offset + 1 - log_start_offset, dropped.bytes)
