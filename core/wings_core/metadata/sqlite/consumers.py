"""The offsets of consumers in SQLite, those of a topic in one statement."""

import json
from collections.abc import Mapping

from wings_core.metadata.sqlite.database import Connection
from wings_core.partitions import Partition


def write_offsets(
    connection: Connection,
    consumer: str,
    offsets: Mapping[int, Mapping[Partition, int]],
    now: int,
) -> None:
    """Write a consumer's offsets, by topic id and partition."""
    for topic_id, found in offsets.items():
        connection.raw.execute(
            "INSERT INTO consumer_offsets (consumer, topic_id, partition, offset, committed_at) "
            "SELECT ?, ?, wanted.key, wanted.value, ? FROM json_each(?) AS wanted WHERE true "
            "ON CONFLICT DO UPDATE "
            "SET offset = excluded.offset, committed_at = excluded.committed_at",
            (consumer, topic_id, now, json.dumps(found, ensure_ascii=False)),
        )
