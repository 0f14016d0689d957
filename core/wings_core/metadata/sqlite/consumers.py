"""The offsets of consumers in SQLite, those of a topic in one statement."""

import json
from collections.abc import Mapping

from wings_core.metadata.sqlite.database import Connection
from wings_core.metadata.store.database import PastEnd
from wings_core.partitions import Partition

_PAST_END = """
SELECT ?2, wanted.key, wanted.value, coalesce(log_start_offset, 0), coalesce(next_offset, 0)
FROM json_each(?1) AS wanted
LEFT JOIN partitions ON partitions.topic_id = ?2 AND partitions.value = wanted.key
WHERE wanted.value > coalesce(next_offset, 0) LIMIT 1
"""


def write_offsets(
    connection: Connection,
    consumer: str,
    offsets: Mapping[int, Mapping[Partition, int]],
    now: int,
) -> PastEnd | None:
    """Write a consumer's offsets, by topic id and partition; see `Dialect.write_offsets`."""
    past: PastEnd | None = None
    for topic_id, found in offsets.items():
        text = json.dumps(found, ensure_ascii=False)
        if row := connection.raw.execute(_PAST_END, (text, topic_id)).fetchone():
            past = PastEnd(*row)
        connection.raw.execute(
            "INSERT INTO consumer_offsets (consumer, topic_id, partition, offset, committed_at) "
            "SELECT ?, ?, wanted.key, wanted.value, ? FROM json_each(?) AS wanted WHERE true "
            "ON CONFLICT DO UPDATE "
            "SET offset = excluded.offset, committed_at = excluded.committed_at",
            (consumer, topic_id, now, text),
        )
    return past
