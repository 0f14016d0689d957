"""Rows of partitions, pages and folios in a database: where partitions stand, and the log's index.

Each look is one statement, so that all it reads is seen at one moment.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from wings_core.errors import TopicNotFound
from wings_core.metadata.judge import PartitionDraft
from wings_core.metadata.store.database import Connection, Lock, RunAgain
from wings_core.metadata.store.topics import require_topic_id
from wings_core.model import (
    LargestTopics,
    Location,
    PageAddress,
    PartitionState,
    PartitionSums,
    TierState,
    TopicConfig,
    TopicState,
    TopicSums,
    page_format,
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

_KEY_AND_CONFIG = """
SELECT partition_key, config FROM topics WHERE uuid = %s::text AND deleted_at IS NULL
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
SELECT topics.partition_key, topics.config, sums.last_timestamp, sums.partitions,
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
    topic = connection.execute(_KEY_AND_CONFIG, (topic_uuid,))
    rows = connection.execute(_STATES, (after or "", topic_uuid, items_max)).fetchall()
    found = topic.fetchone()
    if not rows or found is None:
        raise TopicNotFound("the topic was deleted")
    states = [] if rows[0][0] is None else list(map(_state_of, rows))
    always = _always_there(*found)
    if always:
        unborn = set(always).difference(state.partition for state in states)
        states += [_empty(partition) for partition in unborn if partition > (after or "")]
        states = sorted(states)[:items_max]
    return sorted_by_partition(states, [state[0] for state in states])


def _always_there(partition_key: str | None, config: str) -> list[Partition]:
    """Return the partitions that a topic has before their first message."""
    if partition_key is None:
        return [UNPARTITIONED]
    kafka = TopicConfig.from_json(config).kafka
    return [] if kafka is None else [Partition(str(number)) for number in range(kafka.partitions)]


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
    partition_key, config, last_timestamp, *counts = row
    sums = _sums([counts])
    always = len(_always_there(partition_key, config))
    sums = replace(sums, partitions=max(sums.partitions, always))
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


PageRow = tuple[int, int, int, int, int, int, int, int | None, int, int | None, int | None, int]
"""Partition's id, end, start, timestamp, folio's id, position, length; of a merged page its first
timestamp; format; of a slice its first row and bytes; version of the schema."""

_PAGE_COLUMNS = (
    *("partition_id bigint", "end_offset bigint", "start_offset bigint", "timestamp bigint"),
    *("folio_id bigint", "position bigint", "length bigint", "first_timestamp bigint"),
    *("format smallint", "first_row bigint", "slice_bytes bigint", "schema_version integer"),
)


def location_of(
    start_offset: int,
    end_offset: int,
    timestamp: int,
    folio: str,
    position: int,
    length: int,
    first_timestamp: int | None,
    format_: int,
    first_row: int | None,
    slice_bytes: int | None,
    schema_version: int,
) -> Location:
    """Return the location that a row of the table of pages and its folio's name say.

    Raises:
        Internal: The page is of a format that only a later version knows.
    """
    return Location(
        start_offset,
        end_offset,
        timestamp,
        PageAddress(folio, position, length),
        first_timestamp,
        page_format(format_),
        first_row,
        slice_bytes,
        schema_version,
    )


def find_partitions(
    connection: Connection, keys: Sequence[tuple[int, Partition]]
) -> dict[tuple[int, Partition], PartitionDraft]:
    """Return drafts of partitions, by topic id and value; those that are there are locked."""
    drafts = {key: PartitionDraft(*key) for key in keys}
    rows = connection.execute_rows(
        "SELECT partitions.topic_id, partitions.value, partitions.id, partitions.next_offset, "
        "partitions.last_timestamp FROM {given} JOIN partitions "
        "ON partitions.topic_id = given.topic_id AND partitions.value = given.value "
        "ORDER BY partitions.topic_id, partitions.value FOR UPDATE OF partitions",
        {
            "topic_id bigint": [topic_id for topic_id, _ in keys],
            "value text": [value for _, value in keys],
        },
    ).fetchall()
    for topic_id, value, partition_id, next_offset, last_timestamp in rows:
        draft = drafts[topic_id, value]
        draft.partition_id, draft.last_timestamp = partition_id, last_timestamp
        draft.next_offset = draft.stored_next_offset = next_offset
    return drafts


def write_partitions(connection: Connection, drafts: Iterable[PartitionDraft]) -> None:
    """Write partitions that were appended to; their bytes and pages are added to those stored.

    Gives ids to new ones.

    Raises:
        RunAgain: Another transaction has just made one of them.
    """
    known: list[PartitionDraft] = []
    new: list[PartitionDraft] = []
    for draft in drafts:
        (new if draft.partition_id is None else known).append(draft)
    if known:
        connection.execute_rows(
            "UPDATE partitions SET next_offset = given.next_offset, "
            "last_timestamp = given.last_timestamp, bytes = partitions.bytes + given.bytes, "
            "pages = partitions.pages + given.pages FROM {given} WHERE partitions.id = given.id",
            {"id bigint": [draft.partition_id for draft in known], **_stands(known)},
        )
    if not new:
        return
    new.sort(key=lambda draft: (draft.topic_id, draft.partition))  # In the order of `Lock`.
    made = connection.execute_rows(
        "INSERT INTO partitions "
        "(topic_id, value, log_start_offset, next_offset, last_timestamp, bytes, pages) "
        "SELECT given.topic_id, given.value, 0, given.next_offset, given.last_timestamp, "
        "given.bytes, given.pages FROM {given} WHERE true "
        "ON CONFLICT DO NOTHING RETURNING id, topic_id, value",
        {
            "topic_id bigint": [draft.topic_id for draft in new],
            "value text": [draft.partition for draft in new],
            **_stands(new),
        },
    ).fetchall()
    if len(made) < len(new):
        raise RunAgain("a partition was made meanwhile")
    connection.note("partitions", made)
    ids = {(topic_id, value): partition_id for partition_id, topic_id, value in made}
    for draft in new:
        draft.partition_id = ids[draft.topic_id, draft.partition]


def _stands(drafts: Sequence[PartitionDraft]) -> Mapping[str, Sequence[int | None]]:
    return {
        "next_offset bigint": [draft.next_offset for draft in drafts],
        "last_timestamp bigint": [draft.last_timestamp for draft in drafts],
        "bytes bigint": [draft.bytes for draft in drafts],
        "pages bigint": [draft.pages for draft in drafts],
    }


def insert_pages(connection: Connection, rows: Sequence[PageRow]) -> None:
    """Index pages, which their folios count already."""
    connection.execute_rows(
        "INSERT INTO pages (partition_id, end_offset, start_offset, timestamp, folio_id, position, "
        "length, first_timestamp, format, first_row, slice_bytes, schema_version) "
        "SELECT given.partition_id, given.end_offset, given.start_offset, given.timestamp, "
        "given.folio_id, given.position, given.length, given.first_timestamp, given.format, "
        "given.first_row, given.slice_bytes, given.schema_version FROM {given}",
        dict(zip(_PAGE_COLUMNS, zip(*rows, strict=True), strict=True)),
    )
    connection.note("moved pages", rows)


def add_pages(connection: Connection, pages: Sequence[tuple[int, Location]]) -> None:
    """Index pages of partitions, by id, and count them to their folios.

    At once: each count of a folio in one transaction takes a walk past all before it.
    """
    if not pages:
        return
    counts = sorted(Counter(page.address.folio for _, page in pages).items())
    folio_ids = dict(
        connection.execute_rows(
            "INSERT INTO folios (name, pages) SELECT given.name, given.pages FROM {given} "
            "WHERE true ON CONFLICT (name) DO UPDATE SET pages = folios.pages + excluded.pages "
            "RETURNING name, id",
            {
                "name text": [folio for folio, _ in counts],
                "pages bigint": [number for _, number in counts],
            },
        ).fetchall()
    )
    insert_pages(
        connection,
        [
            (
                partition_id,
                page.end_offset,
                page.start_offset,
                page.timestamp,
                folio_ids[page.address.folio],
                page.address.position,
                page.address.length,
                page.first_timestamp,
                int(page.format),
                page.first_row,
                page.slice_bytes,
                page.schema_version,
            )
            for partition_id, page in pages
        ],
    )


def count_off(connection: Connection, folios: Counter[int]) -> None:
    """Count deleted pages off their folios, by id, and delete folios without pages."""
    if not folios:
        return
    ids = {"id bigint": list(folios)}
    connection.execute_rows(
        "SELECT folios.id FROM {given} JOIN folios ON folios.id = given.id "
        "ORDER BY folios.name FOR UPDATE OF folios",
        ids,
    )
    connection.execute_rows(
        "UPDATE folios SET pages = folios.pages - given.pages FROM {given} "
        "WHERE folios.id = given.id",
        {**ids, "pages bigint": list(folios.values())},
    )
    connection.execute_rows(
        "DELETE FROM folios WHERE id IN (SELECT id FROM {given}) AND pages = 0", ids
    )
