"""The offsets of consumers in PostgreSQL, all in one statement."""

from collections.abc import Mapping
from itertools import chain

from wings_core.metadata.postgres.connections import Connection
from wings_core.metadata.postgres.plans import plan_for
from wings_core.metadata.store.database import PastEnd
from wings_core.partitions import Partition

_PAST_END = """
SELECT wanted.topic_id, wanted.partition, wanted."offset",
    coalesce(log_start_offset, 0), coalesce(next_offset, 0)
FROM unnest(%s::bigint[], %s::text[], %s::bigint[]) AS wanted (topic_id, partition, "offset")
LEFT JOIN partitions
    ON partitions.topic_id = wanted.topic_id AND partitions.value = wanted.partition
WHERE wanted."offset" > coalesce(next_offset, 0) LIMIT 1
"""


def write_offsets(
    connection: Connection,
    consumer: str,
    offsets: Mapping[int, Mapping[Partition, int]],
    now: int,
) -> PastEnd | None:
    """Write a consumer's offsets, by topic id and partition; see `Dialect.write_offsets`."""
    found = offsets.values()
    columns = (
        [topic_id for topic_id, each in offsets.items() for _ in each],
        list(chain.from_iterable(found)),
        list(chain.from_iterable(each.values() for each in found)),
    )
    plan_for(connection, len(columns[0]))
    past = connection.execute(_PAST_END, columns)
    connection.execute(
        'INSERT INTO consumer_offsets (consumer, topic_id, partition, "offset", committed_at) '
        'SELECT %s, topic_id, partition, "offset", %s::bigint '
        "FROM unnest(%s::bigint[], %s::text[], %s::bigint[]) "
        'AS wanted (topic_id, partition, "offset") '
        "ON CONFLICT (consumer, topic_id, partition) DO UPDATE "
        'SET "offset" = excluded."offset", committed_at = excluded.committed_at',
        (consumer, now, *columns),
    )
    row = past.fetchone()
    return None if row is None else PastEnd(*row)
