"""Partitions: where they stand, and what they have in each tier.

Each look is one statement, so that all it reads is seen at one moment.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from wings_core.errors import TopicNotFound
from wings_core.metadata.store.database import Connection
from wings_core.metadata.store.locks import Lock
from wings_core.metadata.store.topics import require_topic_id
from wings_core.model import (
    LargestTopics,
    PartitionState,
    PartitionSums,
    TierState,
    TopicState,
    TopicSums,
)
from wings_core.names import NamespaceName, TopicName
from wings_core.partitions import UNPARTITIONED, Partition, sorted_by_partition

_state_of: Callable[[Iterable[object]], PartitionState] = partial(tuple.__new__, PartitionState)  # pyright: ignore[reportAssignmentType] - as `PartitionState._make`, without a step of Python
_tier_of: Callable[[Iterable[object]], TierState] = partial(tuple.__new__, TierState)  # pyright: ignore[reportAssignmentType] - likewise

_STATE_COLUMNS = """
SELECT partitions.value, partitions.log_start_offset, partitions.next_offset, partitions.bytes,
    partitions.last_timestamp
FROM topics LEFT JOIN partitions ON partitions.topic_id = topics.id
"""

_STATE = f"""
{_STATE_COLUMNS} AND partitions.value = %s::text
WHERE topics.uuid = %s::text AND topics.deleted_at IS NULL
"""

_STATES = f"""
{_STATE_COLUMNS} AND partitions.value > %s::text
WHERE topics.uuid = %s::text AND topics.deleted_at IS NULL
ORDER BY partitions.value LIMIT %s::bigint
"""

_UNPARTITIONED = """
SELECT partition_key IS NULL FROM topics WHERE uuid = %s::text AND deleted_at IS NULL
"""

_TIER_STATES = """
WITH topic AS (SELECT id FROM topics WHERE uuid = %s AND deleted_at IS NULL)
SELECT wanted.value, wanted.pages, wanted.rows, wanted.bytes,
    wanted.merged_pages, wanted.merged_rows, wanted.merged_bytes
FROM topic LEFT JOIN (
    SELECT value, pages, next_offset - log_start_offset AS rows, bytes,
        merged_pages, merged_rows, merged_bytes
    FROM partitions
    WHERE topic_id = (SELECT id FROM topic) AND value > %s::text AND pages > 0
    ORDER BY value LIMIT %s::bigint
) AS wanted ON true
"""

_SUMMED = """
count(*) AS partitions, sum(next_offset) AS messages, sum(pages) AS pages,
    sum(next_offset - log_start_offset) AS rows, sum(bytes) AS bytes,
    sum(merged_pages) AS merged_pages, sum(merged_rows) AS merged_rows,
    sum(merged_bytes) AS merged_bytes
"""

_TOPIC_STATE = f"""
SELECT topics.partition_key IS NULL, sums.last_timestamp, sums.partitions,
    sums.messages, sums.pages, sums.rows, sums.bytes,
    sums.merged_pages, sums.merged_rows, sums.merged_bytes
FROM topics CROSS JOIN (
    SELECT max(last_timestamp) AS last_timestamp, {_SUMMED}
    FROM partitions WHERE topic_id = (SELECT id FROM topics WHERE uuid = %s::text)
) AS sums
WHERE topics.uuid = %s::text AND topics.deleted_at IS NULL
"""

# Deleted topics have no namespace, and so fall out of the join.
_SUMS = f"""
SELECT namespaces.tenant, namespaces.name, topics.name, topics.uuid,
    EXISTS (SELECT 1 FROM share_groups WHERE share_groups.topic_id = topics.id), sums.partitions,
    sums.messages, sums.pages, sums.rows, sums.bytes,
    sums.merged_pages, sums.merged_rows, sums.merged_bytes
FROM topics JOIN namespaces ON namespaces.id = topics.namespace_id LEFT JOIN (
    SELECT topic_id, {_SUMMED} FROM partitions GROUP BY topic_id
) AS sums ON sums.topic_id = topics.id
ORDER BY coalesce(sums.bytes, 0) DESC, topics.id
"""


def partition_states(
    connection: Connection, topic_uuid: str, after: Partition | None, items_max: int | None
) -> list[PartitionState]:
    """Return the partitions of a topic; see `OffsetRegistry.partition_states`."""
    rows = connection.execute(_STATES, (after or "", topic_uuid, items_max)).fetchall()
    if not rows:
        raise TopicNotFound("the topic was deleted")
    if rows[0][0] is None:
        if after is not None:
            return []
        found = connection.execute(_UNPARTITIONED, (topic_uuid,)).fetchone()
        return [_empty(UNPARTITIONED)] if found is not None and found[0] else []
    states = list(map(_state_of, rows))
    return sorted_by_partition(states, [state[0] for state in states])


def partition_state(
    connection: Connection, topic_uuid: str, partition: Partition
) -> PartitionState:
    """Return where a partition stands; see `OffsetRegistry.partition_state`."""
    row = connection.execute(_STATE, (partition, topic_uuid)).fetchone()
    if row is None:
        raise TopicNotFound("the topic was deleted")
    return _empty(partition) if row[0] is None else _state_of(row)


def tier_states(
    connection: Connection, topic_uuid: str, after: Partition | None, partitions_max: int | None
) -> list[TierState]:
    """Return what the partitions have in each tier; see `Maintenance.tier_states`."""
    rows = connection.execute(_TIER_STATES, (topic_uuid, after or "", partitions_max)).fetchall()
    if not rows:
        raise TopicNotFound("the topic was deleted")
    hot = [
        (value, False, pages - merged_pages, count - merged_rows, size - merged_bytes)
        for value, pages, count, size, merged_pages, merged_rows, merged_bytes in rows
        if value is not None and pages > merged_pages
    ]
    remote = [(row[0], True, *row[4:]) for row in rows if row[4]]
    states = list(map(_tier_of, hot + remote))
    # Of a partition the hot tier stays first.
    return sorted_by_partition(states, [state[0] for state in states])


def topic_state(connection: Connection, topic_uuid: str) -> TopicState:
    """Return the sums over a topic's partitions; see `Maintenance.topic_state`."""
    row = connection.execute(_TOPIC_STATE, (topic_uuid, topic_uuid)).fetchone()
    if row is None:
        raise TopicNotFound("the topic was deleted")
    unpartitioned, last_timestamp, *counts = row
    sums = _sums([counts])
    if unpartitioned and not sums.partitions:
        sums = replace(sums, partitions=1)  # It is there before its first message.
    return TopicState(sums, last_timestamp)


def largest_topics(connection: Connection, topics_max: int, grouped_max: int) -> LargestTopics:
    """Return the topics with most bytes; see `Maintenance.largest_topics`."""
    rows = connection.execute(_SUMS).fetchall()
    topics = tuple(TopicSums(_name(row), row[3], _sums([row[5:]])) for row in rows[:topics_max])
    rest = rows[topics_max:]
    grouped = itertools.islice((_name(row) for row in rows if row[4]), grouped_max)
    return LargestTopics(topics, len(rest), _sums(row[5:] for row in rest), tuple(grouped))


def _name(row: Sequence[Any]) -> TopicName:
    tenant, namespace, topic, *_ = row
    return TopicName(NamespaceName(tenant, namespace), topic)


def _sums(counts: Iterable[Sequence[int | None]]) -> PartitionSums:
    return PartitionSums(*(int(sum(filter(None, each))) for each in zip(*counts, strict=True)))


def lock_partition(
    connection: Connection, topic_uuid: str, partition: Partition
) -> tuple[int, int, int] | None:
    """Lock a partition against writes of other transactions until the end of this one.

    Returns:
        Its id, where its log starts, and the bytes of its pages; None where it was never written
        to.

    Raises:
        TopicNotFound: The topic was deleted.
    """
    connection.share_lock(Lock.TOPICS, (topic_uuid,))
    topic_id = require_topic_id(connection, topic_uuid)
    row = connection.execute(
        "SELECT id, log_start_offset, bytes FROM partitions "
        "WHERE topic_id = %s AND value = %s FOR UPDATE",
        (topic_id, partition),
    ).fetchone()
    return None if row is None else (int(row[0]), int(row[1]), int(row[2]))


def _empty(partition: Partition) -> PartitionState:
    return PartitionState(partition, 0, 0, 0, None)
