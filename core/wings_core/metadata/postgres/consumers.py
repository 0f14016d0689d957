"""The offsets of consumers in PostgreSQL, all in one statement."""

from collections.abc import Mapping
from itertools import chain

from wings_core.metadata.postgres.connections import Connection
from wings_core.partitions import Partition


def write_offsets(
    connection: Connection,
    consumer: str,
    offsets: Mapping[int, Mapping[Partition, int]],
    now: int,
) -> None:
    """Write a consumer's offsets, by topic id and partition."""
    found = offsets.values()
    connection.execute(
        'INSERT INTO consumer_offsets (consumer, topic_id, partition, "offset", committed_at) '
        'SELECT %s, topic_id, partition, "offset", %s::bigint '
        "FROM unnest(%s::bigint[], %s::text[], %s::bigint[]) "
        'AS wanted (topic_id, partition, "offset") '
        "ON CONFLICT (consumer, topic_id, partition) DO UPDATE "
        'SET "offset" = excluded."offset", committed_at = excluded.committed_at',
        (
            consumer,
            now,
            [topic_id for topic_id, each in offsets.items() for _ in each],
            list(chain.from_iterable(found)),
            list(chain.from_iterable(each.values() for each in found)),
        ),
    )
