"""The offsets of consumers in SQLite."""

from collections.abc import Mapping

from wings_core.metadata.sqlite.database import Connection
from wings_core.partitions import Partition


def write_offsets(
    connection: Connection, consumer: str, offsets: Mapping[tuple[int, Partition], int], now: int
) -> None:
    """Write a consumer's offsets, by topic id and partition."""
    connection.raw.executemany(
        "INSERT INTO consumer_offsets (consumer, topic_id, partition, offset, committed_at) "
        "VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE "
        "SET offset = excluded.offset, committed_at = excluded.committed_at",
        [
            (consumer, topic_id, partition, offset, now)
            for (topic_id, partition), offset in offsets.items()
        ],
    )
