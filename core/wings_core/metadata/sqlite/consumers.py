"""Where named consumers read on."""

import sqlite3
from collections.abc import Sequence

from wings_core.errors import InvalidArgument
from wings_core.metadata.interfaces import OFFSET_MAX
from wings_core.metadata.judge import check_id
from wings_core.metadata.sqlite.connections import limit_of
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
    connection: sqlite3.Connection,
    consumer: str,
    topic_uuid: str | None,
    after: tuple[TopicName, Partition] | None,
    items_max: int | None,
) -> list[ConsumerOffset]:
    """Return a consumer's offsets, by topic and partition; see `OffsetRegistry.get_offsets`."""
    least = ("", "", "", "")
    if after is not None:
        name, partition = after
        least = (name.namespace.tenant, name.namespace.namespace, name.topic, partition)
    # A deleted topic has no namespace, so it falls out of the join.
    rows = connection.execute(
        "SELECT namespaces.tenant, namespaces.name, topics.name, consumer_offsets.partition, "
        "consumer_offsets.offset, consumer_offsets.committed_at "
        "FROM consumer_offsets "
        "JOIN topics ON topics.id = consumer_offsets.topic_id "
        "JOIN namespaces ON namespaces.id = topics.namespace_id "
        "WHERE consumer_offsets.consumer = ?1 AND (?2 IS NULL OR topics.uuid = ?2) "
        "AND (namespaces.tenant, namespaces.name, topics.name, consumer_offsets.partition) "
        "> (?3, ?4, ?5, ?6) ORDER BY 1, 2, 3, 4 LIMIT ?7",
        (consumer, topic_uuid, *least, limit_of(items_max)),
    )
    offsets = [
        ConsumerOffset(
            TopicName(NamespaceName(tenant, namespace), topic), partition, offset, committed_at
        )
        for tenant, namespace, topic, partition, offset, committed_at in rows
    ]
    return sorted(offsets, key=lambda entry: (entry.topic, partition_sort_key(entry.partition)))


def list_consumers(
    connection: sqlite3.Connection, consumers_max: int, after: str | None
) -> list[str]:
    """Return the named consumers, by name; see `OffsetRegistry.list_consumers`."""
    rows = connection.execute(
        "SELECT DISTINCT consumer_offsets.consumer FROM consumer_offsets "
        "JOIN topics ON topics.id = consumer_offsets.topic_id "
        "WHERE topics.namespace_id IS NOT NULL "
        f"{'' if after is None else 'AND consumer_offsets.consumer > ? '}"
        "ORDER BY consumer_offsets.consumer LIMIT ?",
        (*([] if after is None else [after]), consumers_max),
    )
    return [consumer for (consumer,) in rows]
