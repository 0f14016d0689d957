"""Partitions: where they stand, and what they have in each tier.

Each look is one statement, so that all it reads is seen at one moment.
"""

from wings_core.errors import TopicNotFound
from wings_core.metadata.store.database import Connection
from wings_core.metadata.store.locks import Lock
from wings_core.metadata.store.topics import require_topic_id
from wings_core.metadata.tiers import PageCounts, states_of
from wings_core.model import PartitionState, TierState
from wings_core.partitions import UNPARTITIONED, Partition, partition_sort_key

_STATE_COLUMNS = """
SELECT topics.partition_key IS NULL, partitions.value, partitions.log_start_offset,
    partitions.next_offset, partitions.bytes, partitions.last_timestamp
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


def partition_states(
    connection: Connection, topic_uuid: str, after: Partition | None, items_max: int | None
) -> list[PartitionState]:
    """Return the partitions of a topic; see `OffsetRegistry.partition_states`."""
    rows = connection.execute(_STATES, (after or "", topic_uuid, items_max)).fetchall()
    if not rows:
        raise TopicNotFound("the topic was deleted")
    states = [
        PartitionState(value, log_start_offset, log_end_offset, size, last_timestamp)
        for _, value, log_start_offset, log_end_offset, size, last_timestamp in rows
        if value is not None
    ]
    unpartitioned: bool = rows[0][0]
    if not states and unpartitioned and after is None:
        return [_empty(UNPARTITIONED)]
    return sorted(states, key=lambda state: partition_sort_key(state.partition))


def partition_state(
    connection: Connection, topic_uuid: str, partition: Partition
) -> PartitionState:
    """Return where a partition stands; see `OffsetRegistry.partition_state`."""
    row = connection.execute(_STATE, (partition, topic_uuid)).fetchone()
    if row is None:
        raise TopicNotFound("the topic was deleted")
    _, value, log_start_offset, log_end_offset, size, last_timestamp = row
    if value is None:
        return _empty(partition)
    return PartitionState(value, log_start_offset, log_end_offset, size, last_timestamp)


def tier_states(
    connection: Connection, topic_uuid: str, after: Partition | None, partitions_max: int | None
) -> list[TierState]:
    """Return what the partitions have in each tier; see `Maintenance.tier_states`."""
    rows = connection.execute(_TIER_STATES, (topic_uuid, after or "", partitions_max)).fetchall()
    if not rows:
        raise TopicNotFound("the topic was deleted")
    return states_of((value, PageCounts(*counts)) for value, *counts in rows if value is not None)


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
