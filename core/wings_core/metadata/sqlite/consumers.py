"""Where named consumers read on."""

import sqlite3
from collections.abc import Sequence

from wings_core.errors import InvalidArgument
from wings_core.metadata.interfaces import OFFSET_MAX
from wings_core.metadata.judge import check_id
from wings_core.metadata.sqlite.topics import require_topic_id
from wings_core.model import ConsumerOffset, Topic
from wings_core.names import NamespaceName, TopicName
from wings_core.partitions import Partition, partition_sort_key


def commit_offsets(
    connection: sqlite3.Connection,
    consumer: str,
    offsets: Sequence[tuple[Topic, Partition, int]],
    now: int,
) -> list[ConsumerOffset]:
    """Remember where a consumer reads on; see `OffsetRegistry.commit_offsets`."""
    check_id("the consumer's name", consumer)
    for _, _, offset in offsets:
        if not 0 <= offset <= OFFSET_MAX:
            raise InvalidArgument(f"{offset} is not an offset: expected 0 to {OFFSET_MAX}")
    topic_ids = {
        topic_uuid: require_topic_id(connection, topic_uuid)
        for topic_uuid in {topic.uuid for topic, _, _ in offsets}
    }
    connection.executemany(
        "INSERT INTO consumer_offsets VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE "
        "SET offset = excluded.offset, committed_at = excluded.committed_at",
        [
            (consumer, topic_ids[topic.uuid], partition, offset, now)
            for topic, partition, offset in offsets
        ],
    )
    return [
        ConsumerOffset(topic.name, partition, offset, now) for topic, partition, offset in offsets
    ]


def get_offsets(
    connection: sqlite3.Connection, consumer: str, topic_uuid: str | None
) -> list[ConsumerOffset]:
    """Return a consumer's offsets, by topic and partition; see `OffsetRegistry.get_offsets`."""
    # A deleted topic has no namespace, so it falls out of the join.
    rows = connection.execute(
        "SELECT namespaces.tenant, namespaces.name, topics.name, consumer_offsets.partition, "
        "consumer_offsets.offset, consumer_offsets.committed_at "
        "FROM consumer_offsets "
        "JOIN topics ON topics.id = consumer_offsets.topic_id "
        "JOIN namespaces ON namespaces.id = topics.namespace_id "
        "WHERE consumer_offsets.consumer = ?1 AND (?2 IS NULL OR topics.uuid = ?2)",
        (consumer, topic_uuid),
    )
    offsets = [
        ConsumerOffset(
            TopicName(NamespaceName(tenant, namespace), topic), partition, offset, committed_at
        )
        for tenant, namespace, topic, partition, offset, committed_at in rows
    ]
    return sorted(offsets, key=lambda entry: (entry.topic, partition_sort_key(entry.partition)))


def list_consumers(connection: sqlite3.Connection, consumers_max: int) -> list[str]:
    """Return the named consumers, by name; see `OffsetRegistry.list_consumers`."""
    rows = connection.execute(
        "SELECT DISTINCT consumer_offsets.consumer FROM consumer_offsets "
        "JOIN topics ON topics.id = consumer_offsets.topic_id "
        "WHERE topics.namespace_id IS NOT NULL ORDER BY consumer_offsets.consumer LIMIT ?",
        (consumers_max,),
    )
    return [consumer for (consumer,) in rows]
