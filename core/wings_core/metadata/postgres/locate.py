"""Looks into the log's index: pages by offset, offsets by time.

Each is one statement, so that all it reads is seen at one moment.
"""

from collections.abc import Sequence
from itertools import groupby

from wings_core.errors import OffsetOutOfRange, TopicNotFound
from wings_core.metadata.interfaces import LOCATIONS_MAX, OFFSET_MAX
from wings_core.metadata.interfaces.offset_registry import ManyLocated, many_located
from wings_core.metadata.postgres.connections import Connection
from wings_core.metadata.store.pages import location_of
from wings_core.model import Located, LocatedPartition, PartitionState
from wings_core.partitions import Partition

LOCATE = """
SELECT partitions.log_start_offset, partitions.next_offset,
    page.start_offset, page.end_offset, page.timestamp,
    page.folio, page.position, page.length, page.first_timestamp, page.format,
    page.first_row, page.slice_bytes, page.schema_version
FROM topics
LEFT JOIN partitions ON partitions.topic_id = topics.id AND partitions.value = %(partition)s::text
LEFT JOIN LATERAL (
    SELECT pages.start_offset, pages.end_offset, pages.timestamp,
        folios.name AS folio, pages.position, pages.length, pages.first_timestamp,
        pages.format, pages.first_row, pages.slice_bytes, pages.schema_version
    FROM pages LEFT JOIN folios ON folios.id = pages.folio_id
    WHERE pages.partition_id = partitions.id AND pages.end_offset >= %(offset)s::bigint
    AND pages.end_offset <= coalesce(
        (
            SELECT last.end_offset FROM pages AS last
            WHERE last.partition_id = partitions.id AND last.end_offset >= %(last)s::bigint
            ORDER BY last.end_offset LIMIT 1
        ),
        partitions.next_offset
    )
    ORDER BY pages.end_offset LIMIT %(locations)s::bigint
) AS page ON true
WHERE topics.uuid = %(topic)s::text AND topics.deleted_at IS NULL
ORDER BY page.end_offset
"""
"""Ends at the page with the last message wanted: no more are read than are returned."""

LOCATE_MANY = """
SELECT wanted.place, partitions.log_start_offset, partitions.next_offset,
    partitions.bytes, partitions.last_timestamp,
    page.start_offset, page.end_offset, page.timestamp,
    page.folio, page.position, page.length, page.first_timestamp, page.format,
    page.first_row, page.slice_bytes, page.schema_version
FROM topics
CROSS JOIN unnest(%(partitions)s::text[], %(offsets)s::bigint[])
    WITH ORDINALITY AS wanted (value, "offset", place)
LEFT JOIN LATERAL (
    SELECT * FROM partitions WHERE topic_id = topics.id AND value = wanted.value LIMIT 1
) AS partitions ON true
LEFT JOIN LATERAL (
    SELECT pages.start_offset, pages.end_offset, pages.timestamp,
        folios.name AS folio, pages.position, pages.length, pages.first_timestamp,
        pages.format, pages.first_row, pages.slice_bytes, pages.schema_version
    FROM pages LEFT JOIN folios ON folios.id = pages.folio_id
    WHERE %(messages)s::bigint > 0 AND pages.partition_id = partitions.id
    AND pages.end_offset >= wanted."offset"
    AND pages.start_offset
        < greatest(wanted."offset", partitions.log_start_offset)::numeric + %(messages)s::bigint
    ORDER BY pages.end_offset LIMIT %(each)s::bigint
) AS page ON true
WHERE topics.uuid = %(topic)s::text AND topics.deleted_at IS NULL
ORDER BY wanted.place, page.end_offset
LIMIT %(locations)s::bigint
"""
"""Reads as many pages of each partition as make `locations` twice over, so that few are sorted.

Each partition is looked up by itself, as the limit leaves no other plan: where few were there when
the statement was planned, a join would walk through all of them for each that is wanted.
"""

_OFFSETS_FOR_TIMESTAMPS = """
WITH RECURSIVE found (place, timestamp, partition_id, low, high) AS (
    SELECT wanted.place, wanted.timestamp, partitions.id,
        CASE WHEN partitions.last_timestamp < wanted.timestamp
            THEN partitions.next_offset ELSE coalesce(partitions.log_start_offset, 0) END,
        coalesce(partitions.next_offset, 0)
    FROM topics
    CROSS JOIN unnest(%(partitions)s::text[], %(timestamps)s::numeric[])
        WITH ORDINALITY AS wanted (partition, timestamp, place)
    LEFT JOIN LATERAL (
        SELECT * FROM partitions WHERE topic_id = topics.id AND value = wanted.partition LIMIT 1
    ) AS partitions ON true
    WHERE topics.uuid = %(topic)s::text AND topics.deleted_at IS NULL
    UNION ALL
    SELECT found.place, found.timestamp, found.partition_id,
        CASE WHEN page.timestamp < found.timestamp THEN page.end_offset + 1 ELSE found.low END,
        CASE WHEN page.timestamp < found.timestamp THEN found.high ELSE page.start_offset END
    FROM found
    CROSS JOIN LATERAL (
        SELECT pages.start_offset, pages.end_offset, pages.timestamp FROM pages
        WHERE pages.partition_id = found.partition_id
        AND pages.end_offset >= found.low + (found.high - found.low) / 2
        ORDER BY pages.end_offset LIMIT 1
    ) AS page
    WHERE found.low < found.high
)
SELECT DISTINCT ON (place) low FROM found ORDER BY place, high - low
"""
"""Timestamps never decrease along a partition, so the first page that is late enough is found by
halving the range of offsets, on the server: messages before `low` are too early, those from `high`
on are late enough. At most 64 look-ups of each, and no index by time to keep."""


def locate(
    connection: Connection,
    topic_uuid: str,
    partition: Partition,
    offset: int,
    messages_max: int,
) -> Located:
    """Find the pages that hold the messages from `offset` on; see `OffsetRegistry.locate`."""
    rows = connection.execute(
        LOCATE,
        {
            "topic": topic_uuid,
            "partition": partition,
            # Below the log's start is one place, whatever its distance.
            "offset": max(-1, min(offset, OFFSET_MAX)),
            "last": max(-1, min(offset + max(1, messages_max) - 1, OFFSET_MAX)),
            "locations": LOCATIONS_MAX,
        },
    ).fetchall()
    if not rows:
        raise TopicNotFound("the topic was deleted")
    log_start_offset: int = rows[0][0] or 0
    log_end_offset: int = rows[0][1] or 0
    if offset < log_start_offset:
        raise OffsetOutOfRange(
            f"offset {offset} is below the log's start, {log_start_offset}",
            log_start_offset=log_start_offset,
        )
    locations = tuple(location_of(*row[2:]) for row in rows if row[2] is not None)
    return Located(locations, log_start_offset, log_end_offset)


def locate_many(
    connection: Connection,
    topic_uuid: str,
    positions: Sequence[tuple[Partition, int]],
    messages_max: int,
    locations_max: int,
) -> list[LocatedPartition]:
    """Find pages of many partitions; see `OffsetRegistry.locate_many`."""
    rows = connection.execute(
        LOCATE_MANY,
        {
            "topic": topic_uuid,
            "partitions": [partition for partition, _ in positions],
            "offsets": [max(-1, min(offset, OFFSET_MAX)) for _, offset in positions],
            "messages": max(0, min(messages_max, OFFSET_MAX)),
            "each": max(1, 2 * locations_max // max(1, len(positions))),
            # A partition without a page is a row too.
            "locations": locations_max if messages_max > 0 else len(positions),
        },
    ).fetchall()
    if not rows and positions:
        raise TopicNotFound("the topic was deleted")
    found: list[LocatedPartition] = []
    for place, group in groupby(rows, lambda row: row[0]):
        pages = list(group)
        _, start, end, size, last_timestamp, *_ = pages[0]
        partition, _ = positions[place - 1]
        state = PartitionState(partition, start or 0, end or 0, size or 0, last_timestamp)
        locations = [location_of(*page[5:]) for page in pages if page[5] is not None]
        found.append(LocatedPartition(state, tuple(locations)))
    return found


def locate_slices(
    connection: Connection,
    topic_uuid: str,
    positions: Sequence[tuple[Partition, int]],
    messages_max: int,
    locations_max: int,
) -> ManyLocated:
    """Find pages of many partitions, as columns; see `OffsetRegistry.locate_slices`."""
    found = locate_many(connection, topic_uuid, positions, messages_max, locations_max)
    return many_located(found)


def offsets_for_timestamps(
    connection: Connection, topic_uuid: str, positions: Sequence[tuple[Partition, int]]
) -> list[int]:
    """Return the first offsets at or after times; see `OffsetRegistry.offsets_for_timestamps`."""
    rows = connection.execute(
        _OFFSETS_FOR_TIMESTAMPS,
        {
            "topic": topic_uuid,
            "partitions": [partition for partition, _ in positions],
            "timestamps": [timestamp for _, timestamp in positions],
        },
    ).fetchall()
    if not rows and positions:
        raise TopicNotFound("the topic was deleted")
    return [int(offset) for (offset,) in rows]
