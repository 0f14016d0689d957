"""Offsets of named consumers in a database: stored, read, and whose there are."""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import LiteralString

from wings_core.errors import InvalidArgument, OffsetOutOfRange
from wings_core.metadata.checks import check_id, check_partition
from wings_core.metadata.interfaces import OFFSET_MAX
from wings_core.metadata.store.consumer_groups import check_fence
from wings_core.metadata.store.database import Connection
from wings_core.metadata.store.locks import Lock
from wings_core.metadata.store.topics import require_topic_ids
from wings_core.model import ConsumerOffset, MemberEpoch, Topic
from wings_core.names import NamespaceName, TopicName
from wings_core.partitions import Partition, partition_sort_key, partition_value


def check_offsets(
    consumer: str, offsets: Sequence[tuple[Topic, Partition, int]], partition_bytes_max: int
) -> None:
    """Check that offsets can be stored.

    Args:
        consumer: The consumer's name.
        offsets: Its next offsets, by topic and partition.
        partition_bytes_max: Longest value of a partition that the database stores.

    Raises:
        InvalidArgument: The name, a partition or an offset cannot be stored.
    """
    check_id("the consumer's name", consumer)
    for _, partition, offset in offsets:
        if len(partition) * 4 > partition_bytes_max:  # Else it is shorter, whatever is in it.
            check_partition(partition, partition_bytes_max)
        if not 0 <= offset <= OFFSET_MAX:
            raise InvalidArgument(f"{offset} is not an offset: expected 0 to {OFFSET_MAX}")


def commit_offsets(
    connection: Connection,
    consumer: str,
    offsets: Sequence[tuple[Topic, Partition, int]],
    now: int,
    member: MemberEpoch | None = None,
) -> None:
    """Store a consumer's offsets; see `OffsetRegistry.commit_offsets`.

    Args:
        connection: In a transaction.
        consumer: The consumer's name.
        offsets: Its next offsets, checked by `check_offsets`.
        now: Microseconds since the epoch.
        member: The member of a group that commits, if any.
    """
    last: dict[str, dict[Partition, int]] = {}
    for uuid, entries in groupby(offsets, lambda entry: entry[0].uuid):
        # The last one counts where a partition is named twice.
        last.setdefault(uuid, {}).update(map(itemgetter(1, 2), entries))
    topics = sorted(last)
    connection.share_lock(Lock.TOPICS, topics)
    topic_ids = require_topic_ids(connection, topics)
    check_fence(connection, consumer, member, offsets)
    # In order, which excludes deadlocks.
    entries = [
        (topic_ids[uuid], partition, last[uuid][partition])
        for uuid in sorted(topics, key=topic_ids.__getitem__)
        for partition in sorted(last[uuid])
    ]
    columns = {
        "topic_id bigint": [topic_id for topic_id, _, _ in entries],
        "partition text": [partition for _, partition, _ in entries],
        "offset bigint": [offset for _, _, offset in entries],
    }
    past_end = connection.execute_rows(
        'SELECT given.topic_id, given.partition, given."offset", coalesce(log_start_offset, 0), '
        "coalesce(next_offset, 0) FROM {given} LEFT JOIN partitions "
        "ON partitions.topic_id = given.topic_id AND partitions.value = given.partition "
        'WHERE given."offset" > coalesce(next_offset, 0) LIMIT 1',
        columns,
    )
    connection.execute_rows(
        'INSERT INTO consumer_offsets (consumer, topic_id, partition, "offset", committed_at) '
        'SELECT %(consumer)s, given.topic_id, given.partition, given."offset", %(now)s::bigint '
        "FROM {given} WHERE true ON CONFLICT (consumer, topic_id, partition) DO UPDATE "
        'SET "offset" = excluded."offset", committed_at = excluded.committed_at',
        columns,
        {"consumer": consumer, "now": now},
    )
    row = past_end.fetchone()
    if row is not None:
        topic_id, partition, offset, log_start_offset, log_end_offset = row
        name = next(topic.name for topic, *_ in offsets if topic_ids[topic.uuid] == topic_id)
        raise OffsetOutOfRange(
            f"offset {offset} is past the end of partition {partition:.80} of {name}, "
            f"{log_end_offset}",
            topic=str(name),
            partition=partition_value(partition),
            log_start_offset=log_start_offset,
            log_end_offset=log_end_offset,
        )


def get_offsets(
    connection: Connection,
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
        'consumer_offsets."offset", consumer_offsets.committed_at '
        "FROM consumer_offsets "
        "JOIN topics ON topics.id = consumer_offsets.topic_id "
        "JOIN namespaces ON namespaces.id = topics.namespace_id "
        "WHERE consumer_offsets.consumer = %s AND (%s::text IS NULL OR topics.uuid = %s::text) "
        "AND (namespaces.tenant, namespaces.name, topics.name, consumer_offsets.partition) "
        "> (%s::text, %s::text, %s::text, %s::text) ORDER BY 1, 2, 3, 4 LIMIT %s::bigint",
        (consumer, topic_uuid, topic_uuid, *least, items_max),
    ).fetchall()
    offsets = [
        ConsumerOffset(
            TopicName(NamespaceName(tenant, namespace), topic), partition, offset, committed_at
        )
        for tenant, namespace, topic, partition, offset, committed_at in rows
    ]
    return sorted(offsets, key=lambda entry: (entry.topic, partition_sort_key(entry.partition)))


def list_consumers(connection: Connection, consumers_max: int, after: str | None) -> list[str]:
    """Return the named consumers, by name; see `OffsetRegistry.list_consumers`."""
    greater: LiteralString = "" if after is None else "AND consumer_offsets.consumer > %s::text "
    rows = connection.execute(
        "SELECT DISTINCT consumer_offsets.consumer FROM consumer_offsets "
        "JOIN topics ON topics.id = consumer_offsets.topic_id "
        f"WHERE topics.namespace_id IS NOT NULL {greater}"
        "ORDER BY consumer_offsets.consumer LIMIT %s::bigint",
        (*([] if after is None else [after]), max(0, consumers_max)),
    ).fetchall()
    return [consumer for (consumer,) in rows]
