"""The publish of stages in PostgreSQL: offsets for all of their pages, in one transaction."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter

from wings_core.errors import InvalidArgument, TopicNotFound
from wings_core.metadata.postgres import locks
from wings_core.metadata.postgres.connections import Connection
from wings_core.metadata.postgres.faults import Retry
from wings_core.metadata.postgres.lease_clock import LeaseClock
from wings_core.metadata.postgres.locks import Lock
from wings_core.metadata.postgres.shards import write_progress
from wings_core.metadata.postgres.stages import lock_stages
from wings_core.metadata.stages import (
    PUBLISH_RESULTS_KEPT_MAX,
    PUBLISH_RESULTS_KEPT_US,
    StageDraft,
    check_batch,
    check_pages,
    no_stage,
)
from wings_core.model import Published, PublishedRange, ShardProgress
from wings_core.names import NamespaceName, TopicName
from wings_core.partitions import Partition

_RANGES = TypeAdapter(list[tuple[str, Partition, int, int]])
"""The form in which results are stored: topic's name, partition, first and last offset."""

_INSERT_PARTITIONS = """
INSERT INTO partitions (topic_id, value)
SELECT DISTINCT stages.topic_id, staged_pages.partition
FROM unnest(%s::bigint[]) AS named (stage_id)
JOIN stages ON stages.id = named.stage_id
JOIN staged_pages ON staged_pages.stage_id = named.stage_id
WHERE NOT EXISTS (
    SELECT FROM partitions AS known
    WHERE known.topic_id = stages.topic_id AND known.value = staged_pages.partition
)
ORDER BY 1, 2
ON CONFLICT DO NOTHING
"""

_LOCK_PARTITIONS = """
SELECT partitions.id FROM partitions
JOIN (
    SELECT DISTINCT stages.topic_id, staged_pages.partition
    FROM unnest(%s::bigint[]) AS named (stage_id)
    JOIN stages ON stages.id = named.stage_id
    JOIN staged_pages ON staged_pages.stage_id = named.stage_id
) AS wanted ON partitions.topic_id = wanted.topic_id AND partitions.value = wanted.partition
ORDER BY partitions.topic_id, partitions.value
FOR UPDATE OF partitions
"""

_MOVE = """
WITH moved AS (
    SELECT partitions.id, staged_pages.rows, staged_pages.length,
        partitions.next_offset + sum(staged_pages.rows) OVER along::bigint AS through,
        greatest(
            partitions.last_timestamp,
            max(coalesce(staged_pages.timestamp, %(now)s::bigint)) OVER along
        ) AS timestamp,
        staged_pages.folio_id, staged_pages.position,
        row_number() OVER (ORDER BY named.place, staged_pages.number) AS place
    FROM unnest(%(stages)s::bigint[]) WITH ORDINALITY AS named (stage_id, place)
    JOIN stages ON stages.id = named.stage_id
    JOIN staged_pages ON staged_pages.stage_id = named.stage_id
    JOIN partitions ON partitions.topic_id = stages.topic_id
    AND partitions.value = staged_pages.partition
    WINDOW along AS (
        PARTITION BY partitions.id ORDER BY named.place, staged_pages.number
        ROWS UNBOUNDED PRECEDING
    )
), inserted AS (
    INSERT INTO pages
        (partition_id, end_offset, start_offset, timestamp, folio_id, position, length)
    SELECT id, through - 1, through - rows, timestamp, folio_id, position, length FROM moved
), total AS (
    SELECT id, min(place) AS place, max(through) AS next_offset, sum(rows) AS rows,
        sum(length) AS bytes, count(*) AS pages, max(timestamp) AS last_timestamp
    FROM moved GROUP BY id
)
UPDATE partitions
SET next_offset = total.next_offset, bytes = partitions.bytes + total.bytes,
    pages = partitions.pages + total.pages, last_timestamp = total.last_timestamp
FROM total WHERE partitions.id = total.id
RETURNING total.place, partitions.topic_id, partitions.value,
    (total.next_offset - total.rows)::bigint, (total.next_offset - 1)::bigint
"""
"""The rules of `PartitionDraft.append`, over all pages at once: offsets count up along a partition,
timestamps never decrease."""


@dataclass(frozen=True, slots=True)
class PublishOutcome:
    """What a publish did, to be made known once it is durable."""

    published: Published
    ends: dict[tuple[str, Partition], int]
    """The next offset of each partition that was written to, by topic UUID and partition."""


def publish(
    connection: Connection,
    writer: str,
    batch: int,
    stages: Sequence[str],
    shards: Sequence[ShardProgress],
    now: int,
    lease_clock: LeaseClock,
) -> PublishOutcome:
    """Publish within the transaction of `connection`; see `Stages.publish`."""
    locks.take(connection, Lock.WRITERS, (writer,))
    first = find_result(connection, writer, batch, now)
    if first is not None:
        return PublishOutcome(Published(first, replayed=True), {})
    row = connection.execute(
        "SELECT max(batch) FROM publishes WHERE writer = %s", (writer.encode(),)
    ).fetchone()
    assert row is not None
    check_batch(writer, batch, row[0])
    if len(set(stages)) < len(stages):
        raise InvalidArgument("a stage is named twice")
    write_progress(connection, shards, lease_clock)
    drafts, topics = _lock_all(connection, stages)
    stage_ids = [draft.stage_id for draft in drafts]
    connection.execute(_INSERT_PARTITIONS, (stage_ids,))
    connection.execute(_LOCK_PARTITIONS, (stage_ids,))
    moved = connection.execute(_MOVE, {"stages": stage_ids, "now": now})
    connection.execute("DELETE FROM staged_pages WHERE stage_id = ANY(%s::bigint[])", (stage_ids,))
    connection.execute("DELETE FROM stages WHERE id = ANY(%s::bigint[])", (stage_ids,))
    # One range for each partition, as nobody else wrote meanwhile, by first page.
    rows = sorted(moved.fetchall())
    committed = tuple(
        PublishedRange(topics[topic_id].name, partition, start_offset, end_offset)
        for _, topic_id, partition, start_offset, end_offset in rows
    )
    ends = {
        (topics[topic_id].uuid, partition): end_offset + 1
        for _, topic_id, partition, _, end_offset in rows
    }
    _remember(connection, writer, batch, committed, now)
    return PublishOutcome(Published(committed), ends)


def find_result(
    connection: Connection, writer: str, batch: int, now: int
) -> tuple[PublishedRange, ...] | None:
    """Return what a batch got when it was published, None if it was not or is not remembered."""
    row = connection.execute(
        "SELECT committed FROM publishes WHERE writer = %s AND batch = %s::bigint "
        "AND (succeeded_at IS NULL OR succeeded_at > %s::bigint)",
        (writer.encode(), batch, now - PUBLISH_RESULTS_KEPT_US),
    ).fetchone()
    if row is None:
        return None
    return tuple(
        PublishedRange(TopicName.parse(topic), partition, start_offset, end_offset)
        for topic, partition, start_offset, end_offset in _RANGES.validate_json(row[0])
    )


def was_published(connection: Connection, writer: str, batch: int) -> bool | None:
    """Tell whether a batch was published; None for one too old to be remembered.

    Waits for a publish of the writer that is under way.
    """
    locks.take(connection, Lock.WRITERS, (writer,))
    row = connection.execute(
        "SELECT count(*) FILTER (WHERE batch = %s::bigint), max(batch) FROM publishes "
        "WHERE writer = %s",
        (batch, writer.encode()),
    ).fetchone()
    assert row is not None
    remembered, last_batch = row
    if remembered:
        return True
    return None if last_batch is not None and batch < last_batch else False


def purge_results(connection: Connection, rows_max: int, now: int) -> int:
    """Delete up to so many results that are out of date; return how many."""
    rows = connection.execute(
        "WITH old AS MATERIALIZED (SELECT writer, batch FROM publishes "
        "WHERE succeeded_at <= %s::bigint LIMIT %s::bigint FOR UPDATE SKIP LOCKED) "
        "DELETE FROM publishes WHERE (writer, batch) IN (SELECT writer, batch FROM old) "
        "RETURNING batch",
        (now - PUBLISH_RESULTS_KEPT_US, max(0, rows_max)),
    ).fetchall()
    return len(rows)


@dataclass(frozen=True, slots=True)
class _Topic:
    name: TopicName
    uuid: str


def _lock_all(
    connection: Connection, stages: Sequence[str]
) -> tuple[list[StageDraft], dict[int, _Topic]]:
    """Lock the stages, and their topics before them, and return both.

    Raises:
        StageNotFound: One is not there.
        TopicNotFound: The topic of one was deleted.
        BatchTooLarge: They have too many pages.
    """
    rows = connection.execute(
        "SELECT DISTINCT topics.uuid FROM stages JOIN topics ON topics.id = stages.topic_id "
        "WHERE stages.name = ANY(%s::text[])",
        (list(stages),),
    ).fetchall()
    locked = {str(topic_uuid) for (topic_uuid,) in rows}
    locks.share(connection, Lock.TOPICS, locked)
    found = lock_stages(connection, stages)
    drafts: list[StageDraft] = []
    pages = 0
    for stage in stages:
        draft = found.get(stage)
        if draft is None:
            raise no_stage(stage)
        pages += draft.pages
        check_pages(pages, stage)
        drafts.append(draft)
    topics = _find_topics(connection, {draft.topic_id for draft in drafts})
    for draft in drafts:
        if draft.topic_id not in topics:
            raise TopicNotFound(
                f"the topic of stage {draft.stage!r} was deleted", stage=draft.stage
            )
    if not {topic.uuid for topic in topics.values()} <= locked:
        raise Retry("a stage was begun again, for another topic")
    return drafts, topics


def _find_topics(connection: Connection, topic_ids: set[int]) -> dict[int, _Topic]:
    # A deleted topic has no namespace, so it falls out of the join.
    rows = connection.execute(
        "SELECT topics.id, namespaces.tenant, namespaces.name, topics.name, topics.uuid "
        "FROM topics JOIN namespaces ON namespaces.id = topics.namespace_id "
        "WHERE topics.id = ANY(%s::bigint[])",
        (list(topic_ids),),
    ).fetchall()
    return {
        topic_id: _Topic(TopicName(NamespaceName(tenant, namespace), name), topic_uuid)
        for topic_id, tenant, namespace, name, topic_uuid in rows
    }


def _remember(
    connection: Connection,
    writer: str,
    batch: int,
    committed: tuple[PublishedRange, ...],
    now: int,
) -> None:
    name = writer.encode()
    connection.execute(
        "UPDATE publishes SET succeeded_at = %s WHERE writer = %s AND succeeded_at IS NULL",
        (now, name),
    )
    ranges = [
        (str(found.topic), found.partition, found.start_offset, found.end_offset)
        for found in committed
    ]
    connection.execute(
        "INSERT INTO publishes VALUES (%s, %s, %s, NULL)",
        (name, batch, _RANGES.dump_json(ranges).decode()),
    )
    connection.execute(
        "DELETE FROM publishes WHERE writer = %s AND batch <= "
        "(SELECT batch FROM publishes WHERE writer = %s ORDER BY batch DESC LIMIT 1 OFFSET %s)",
        (name, name, PUBLISH_RESULTS_KEPT_MAX),
    )
