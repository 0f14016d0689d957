"""The move of staged pages into the log in PostgreSQL, in a few statements over all of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from wings_core.errors import TopicNotFound
from wings_core.metadata.postgres.connections import Connection
from wings_core.metadata.postgres.pages import update_partitions
from wings_core.metadata.postgres.plans import plan_for
from wings_core.metadata.postgres.stages import lock_stages
from wings_core.metadata.stages import StageDraft, check_pages, no_stage
from wings_core.metadata.store.database import Moved, Retry
from wings_core.metadata.store.locks import Lock
from wings_core.model import PublishedRange
from wings_core.names import NamespaceName, TopicName

_INSERT_PARTITIONS = """
INSERT INTO partitions (topic_id, value)
SELECT DISTINCT stages.topic_id, staged_pages.partition
FROM unnest(%s::bigint[]) AS named (stage_id)
JOIN stages ON stages.id = named.stage_id
JOIN staged_pages ON staged_pages.stage_id = named.stage_id
WHERE NOT EXISTS (
    SELECT FROM partitions AS known
    WHERE known.topic_id = stages.topic_id AND known.value = staged_pages.partition OFFSET 0
)
ORDER BY 1, 2
ON CONFLICT DO NOTHING
"""

_LOCK_PARTITIONS = """
SELECT locked.id FROM (
    SELECT DISTINCT stages.topic_id, staged_pages.partition
    FROM unnest(%s::bigint[]) AS named (stage_id)
    JOIN stages ON stages.id = named.stage_id
    JOIN staged_pages ON staged_pages.stage_id = named.stage_id
    ORDER BY 1, 2
) AS wanted
CROSS JOIN LATERAL (
    SELECT id FROM partitions
    WHERE topic_id = wanted.topic_id AND value = wanted.partition FOR UPDATE
) AS locked
"""
"""Partitions are looked up one by one, by plans that `OFFSET`, `FOR UPDATE` and `LIMIT` leave no
choice: see `plans`."""

_MOVE = """
WITH moved AS (
    SELECT partitions.id, partitions.topic_id, partitions.value, partitions.bytes, partitions.pages,
        staged_pages.rows, staged_pages.length,
        staged_pages.first_row, staged_pages.slice_bytes, staged_pages.schema_version,
        partitions.next_offset + sum(staged_pages.rows) OVER along::bigint AS through,
        greatest(
            partitions.last_timestamp,
            max(coalesce(staged_pages.timestamp, %(now)s::bigint)) OVER along
        ) AS timestamp,
        staged_pages.folio_id, staged_pages.position,
        CASE WHEN inline_folios.folio_id IS NULL THEN 1 ELSE 3 END AS format,
        row_number() OVER (ORDER BY named.place, staged_pages.number) AS place
    FROM unnest(%(stages)s::bigint[]) WITH ORDINALITY AS named (stage_id, place)
    JOIN stages ON stages.id = named.stage_id
    JOIN staged_pages ON staged_pages.stage_id = named.stage_id
    CROSS JOIN LATERAL (
        SELECT * FROM partitions
        WHERE topic_id = stages.topic_id AND value = staged_pages.partition LIMIT 1
    ) AS partitions
    LEFT JOIN inline_folios ON inline_folios.folio_id = staged_pages.folio_id
    WINDOW along AS (
        PARTITION BY partitions.id ORDER BY named.place, staged_pages.number
        ROWS UNBOUNDED PRECEDING
    )
), inserted AS (
    INSERT INTO pages
        (partition_id, end_offset, start_offset, timestamp, folio_id, position, length,
        first_row, slice_bytes, format, schema_version)
    SELECT id, through - 1, through - rows, timestamp, folio_id, position, length,
        first_row, slice_bytes, format, schema_version
    FROM moved
)
SELECT id, topic_id, value, min(place), sum(rows)::bigint, max(through)::bigint,
    (bytes + sum(coalesce(slice_bytes, length)))::bigint, max(timestamp), pages + count(*)
FROM moved GROUP BY id, topic_id, value, bytes, pages
"""
"""The rules of `PartitionDraft.append`, over all pages at once: offsets count up along a partition,
timestamps never decrease. Formats are those of `PageAddress.pushed_format`."""


def move_stages(connection: Connection, stages: Sequence[str], now: int) -> Moved:
    """Give offsets to all pages of stages, and delete the stages; see `Stages.publish`."""
    drafts, topics = _lock_all(connection, stages)
    stage_ids = [draft.stage_id for draft in drafts]
    plan_for(connection, sum(draft.pages for draft in drafts))
    connection.execute(_INSERT_PARTITIONS, (stage_ids,))
    connection.execute(_LOCK_PARTITIONS, (stage_ids,))
    moved = connection.execute(_MOVE, {"stages": stage_ids, "now": now})
    # One range for each partition, since no other transaction wrote meanwhile, by first page.
    rows = sorted(moved.fetchall(), key=lambda row: row[3])
    update_partitions(connection, [(row[0], *row[5:]) for row in rows])
    connection.execute("DELETE FROM staged_pages WHERE stage_id = ANY(%s::bigint[])", (stage_ids,))
    connection.execute("DELETE FROM stages WHERE id = ANY(%s::bigint[])", (stage_ids,))
    ranges = tuple(
        PublishedRange(topics[topic_id].name, partition, end - added, end - 1)
        for _, topic_id, partition, _, added, end, *_ in rows
    )
    ends = {
        (topics[topic_id].uuid, partition): end for _, topic_id, partition, _, _, end, *_ in rows
    }
    return Moved(ranges, ends)


@dataclass(frozen=True, slots=True)
class _Topic:
    name: TopicName
    uuid: str


def _lock_all(
    connection: Connection, stages: Sequence[str]
) -> tuple[list[StageDraft], dict[int, _Topic]]:
    """Lock the stages, and their topics before them, and return both.

    Raises:
        StageNotFound: One does not exist.
        TopicNotFound: The topic of one was deleted.
        BatchTooLarge: They have too many pages.
    """
    plan_for(connection, len(stages))
    rows = connection.execute(
        "SELECT DISTINCT topics.uuid FROM stages JOIN topics ON topics.id = stages.topic_id "
        "WHERE stages.name = ANY(%s::text[])",
        (list(stages),),
    ).fetchall()
    locked = {str(topic_uuid) for (topic_uuid,) in rows}
    connection.share_lock(Lock.TOPICS, locked)
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
