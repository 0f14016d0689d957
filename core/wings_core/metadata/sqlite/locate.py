"""Looks into the log's index: pages by offset, offsets by time."""

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any, cast

import pyarrow as pa
from pyarrow import csv

from wings_core.arrow_compute import pc
from wings_core.errors import OffsetOutOfRange, TopicNotFound
from wings_core.metadata.interfaces import LOCATIONS_MAX, OFFSET_MAX
from wings_core.metadata.interfaces.offset_registry import (
    SLICES,
    ManyLocated,
    integers,
    many_located,
    numbered,
    run_starts,
)
from wings_core.metadata.judge import PartitionDraft
from wings_core.metadata.sqlite.database import SqliteConnection
from wings_core.metadata.store.pages import location_of
from wings_core.metadata.store.topics import require_topic_id
from wings_core.model import Located, LocatedPartition, Location, PartitionState
from wings_core.partitions import Partition

_LOCATE = """
SELECT partitions.log_start_offset, partitions.next_offset,
    pages.start_offset, pages.end_offset, pages.timestamp,
    folios.name, pages.position, pages.length, pages.first_timestamp, pages.format,
    pages.first_row, pages.slice_bytes, pages.schema_version
FROM topics
LEFT JOIN partitions ON partitions.topic_id = topics.id AND partitions.value = ?
LEFT JOIN pages ON pages.partition_id = partitions.id AND pages.end_offset >= ?
LEFT JOIN folios ON folios.id = pages.folio_id
WHERE topics.uuid = ? AND topics.deleted_at IS NULL
ORDER BY pages.end_offset
LIMIT ?
"""
"""One statement, so that topic, partition and pages are seen at one moment."""

_PARTITION = """
SELECT id, log_start_offset, next_offset, bytes, last_timestamp
FROM partitions WHERE topic_id = ? AND value = ?
"""

_PAGES = """
SELECT start_offset, end_offset, timestamp, folio_id, position, length, first_timestamp, format,
    first_row, slice_bytes, schema_version
FROM pages WHERE partition_id = ? AND end_offset >= ? ORDER BY end_offset LIMIT ?
"""
"""Without the names of folios: many pages have the same."""


def locate(
    connection: SqliteConnection,
    topic_uuid: str,
    partition: Partition,
    offset: int,
    messages_max: int,
) -> Located:
    """Find the pages that hold the messages from `offset` on; see `OffsetRegistry.locate`."""
    stop_offset = offset + max(1, messages_max)
    located = _in_tail(connection, topic_uuid, partition, offset, stop_offset)
    if located is not None:
        return located
    # Below the log's start is one place, whatever its distance.
    stored_offset = max(-1, min(offset, OFFSET_MAX))
    arguments = (partition, stored_offset, topic_uuid, LOCATIONS_MAX)
    # Closed before its end: an open cursor would keep its connection at this moment's state.
    with closing(connection.raw.execute(_LOCATE, arguments)) as rows:
        row = next(rows, None)
        if row is None:
            raise TopicNotFound("the topic was deleted")
        log_start_offset: int = row[0] or 0
        log_end_offset: int = row[1] or 0
        if offset < log_start_offset:
            raise OffsetOutOfRange(
                f"offset {offset} is below the log's start, {log_start_offset}",
                log_start_offset=log_start_offset,
            )
        locations: list[Location] = []
        while row is not None and row[2] is not None:
            locations.append(location_of(*row[2:]))
            if locations[-1].end_offset + 1 >= stop_offset:
                break
            row = next(rows, None)
    return Located(tuple(locations), log_start_offset, log_end_offset)


def _in_tail(
    connection: SqliteConnection,
    topic_uuid: str,
    partition: Partition,
    offset: int,
    stop_offset: int,
) -> Located | None:
    """Find in memory what the last commit appended, as most who are woken by it look for that.

    Returns:
        None where the offset does not lie there.
    """
    topic_ids, pages = connection.cache.tail
    topic_id = topic_ids.get(topic_uuid)
    draft: PartitionDraft | None = None
    locations: list[Location] = []
    for page in pages:
        if page.partition.topic_id != topic_id or page.partition.partition != partition:
            continue
        draft, stored, got = page.partition, page.stored, page.got
        if not locations and not got.start_offset <= offset <= got.end_offset:
            continue
        locations.append(
            Location(
                got.start_offset,
                got.end_offset,
                got.timestamp,
                stored.address,
                format=stored.address.pushed_format,
                first_row=stored.first_row,
                slice_bytes=stored.slice_bytes,
                schema_version=stored.schema_version,
            )
        )
        if got.end_offset + 1 >= stop_offset:
            break
    if draft is None or not locations:
        return None
    return Located(tuple(locations), draft.log_start_offset, draft.next_offset)


def locate_many(
    connection: SqliteConnection,
    topic_uuid: str,
    positions: Sequence[tuple[Partition, int]],
    messages_max: int,
    locations_max: int,
) -> list[LocatedPartition]:
    """Find pages of many partitions; see `OffsetRegistry.locate_many`.

    Statements for each partition: one for all, over a list in JSON, takes longer (measured).
    """
    if messages_max <= 0:
        return _states(connection, topic_uuid, positions)
    found: list[LocatedPartition] = []
    locations_left = locations_max
    connection.execute("BEGIN")  # All look-ups see the same log.
    topic_id = require_topic_id(connection, topic_uuid)
    folios = _FolioNames(connection)
    # Each statement ends the one before it. Closed before its end: see `locate`.
    with closing(connection.raw.cursor()) as cursor:
        for partition, offset in positions:
            row = cursor.execute(_PARTITION, (topic_id, partition)).fetchone()
            if row is None:
                found.append(LocatedPartition(PartitionState(partition, 0, 0, 0, None), ()))
                continue
            partition_id, start, end, size, last_timestamp = row
            locations: list[Location] = []
            if offset < end:
                if locations_left == 0:
                    break
                first = max(offset, start)
                stop = first + messages_max - 1
                for page in cursor.execute(_PAGES, (partition_id, first, locations_left)):
                    first_offset, last_offset, timestamp, folio_id, *rest = page
                    locations.append(
                        location_of(first_offset, last_offset, timestamp, folios[folio_id], *rest)
                    )
                    if last_offset >= stop:
                        break
                locations_left -= len(locations)
            state = PartitionState(partition, start, end, size, last_timestamp)
            found.append(LocatedPartition(state, tuple(locations)))
    connection.execute("COMMIT")
    return found


_STATES = """
SELECT wanted.key, ifnull(partitions.log_start_offset, 0), ifnull(partitions.next_offset, 0),
    ifnull(partitions.bytes, 0), partitions.last_timestamp
FROM json_each(?) AS wanted
LEFT JOIN partitions ON partitions.topic_id = ? AND partitions.value = wanted.key
"""


def _states(
    connection: SqliteConnection, topic_uuid: str, positions: Sequence[tuple[Partition, int]]
) -> list[LocatedPartition]:
    """Return where partitions stand, in the order of their positions."""
    connection.execute("BEGIN")  # All look-ups see the same log.
    topic_id = require_topic_id(connection, topic_uuid)
    wanted = json.dumps(dict(positions), ensure_ascii=False)
    rows = connection.raw.execute(_STATES, (wanted, topic_id)).fetchall()
    connection.execute("COMMIT")
    return [LocatedPartition(PartitionState(*row), ()) for row in rows]


_SLICES = """
SELECT group_concat(line, '') FROM (
    SELECT json_array(wanted.id,
        ifnull(partitions.log_start_offset, 0), ifnull(partitions.next_offset, 0),
        pages.start_offset, pages.end_offset, pages.timestamp, pages.folio_id, pages.position,
        pages.length, pages.first_timestamp, pages.format, pages.first_row, pages.slice_bytes,
        pages.schema_version
    ) AS line
    FROM json_each(:positions) AS wanted
    LEFT JOIN partitions ON partitions.topic_id = :topic AND partitions.value = wanted.key
    LEFT JOIN pages ON pages.partition_id = partitions.id
        AND pages.end_offset >= max(wanted.value, partitions.log_start_offset)
        AND pages.end_offset <= CASE
            WHEN max(wanted.value, partitions.log_start_offset) + :messages
                >= partitions.next_offset
            THEN partitions.next_offset
            ELSE (
                SELECT min(enough.end_offset) FROM pages AS enough
                WHERE enough.partition_id = partitions.id AND enough.end_offset
                    >= max(wanted.value, partitions.log_start_offset) + :messages - 1
            ) END
    LIMIT :locations
)
"""
"""The result is one text, which SQLite writes in half the time that a Python object for each value
takes, and without the interpreter's lock; as arrays, in three quarters of what `printf` takes. A
left join is carried out in the order in which it is written, and so are the arrays. One without a
folio is of a partition without pages: its other columns are null too."""

_LINES = bytes.maketrans(b"]", b"\n")
"""Makes lines of arrays, once their opening brackets are left out."""

_INT = pa.int64()
_PARSED = ["id", "log_start_offset", "log_end_offset", *SLICES.names[1:]]


def locate_slices(
    connection: SqliteConnection,
    topic_uuid: str,
    positions: Sequence[tuple[Partition, int]],
    messages_max: int,
    locations_max: int,
) -> ManyLocated:
    """Find pages of many partitions, as columns; see `OffsetRegistry.locate_slices`."""
    if not positions:
        return many_located([])
    wanted = dict(positions)
    if min(wanted.values()) < 0 or max(wanted.values()) > OFFSET_MAX:
        wanted = {partition: max(0, min(offset, OFFSET_MAX)) for partition, offset in positions}
    connection.execute("BEGIN")  # All look-ups see the same log.
    arguments = {
        "positions": json.dumps(wanted, ensure_ascii=False),
        "topic": require_topic_id(connection, topic_uuid),
        "messages": max(1, min(messages_max, OFFSET_MAX)),
        "locations": locations_max,
    }
    (text,) = connection.raw.execute(_SLICES, arguments).fetchone()
    rows = _parsed(text)
    starts = run_starts(rows.column(0))
    looked_at = rows.select(_PARSED[1:3]).filter(starts)
    columns = [numbered(starts), *rows.columns[3:]]
    found = pa.RecordBatch.from_arrays(columns, names=SLICES.names)
    if found.column("folio").null_count:
        found = found.filter(found.column("folio").is_valid())
    ids = found.column("folio").unique().sort()
    known = _FolioNames(connection)
    folios = [known[each] for each in integers(ids)]
    connection.execute("COMMIT")
    columns = found.columns
    columns[SLICES.get_field_index("folio")] = pc.index_in(columns[4], value_set=ids).cast(_INT)
    return ManyLocated(
        integers(looked_at.column(0)),
        integers(looked_at.column(1)),
        pa.RecordBatch.from_arrays(columns, schema=SLICES),
        folios,
    )


def _parsed(text: str) -> pa.RecordBatch:
    """Return the arrays of `_SLICES` as columns of integers."""
    table = csv.read_csv(
        cast("Any", pa.BufferReader(text.encode("ascii").translate(_LINES, b"["))),
        csv.ReadOptions(use_threads=False, column_names=_PARSED, block_size=len(text) + 1),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(_PARSED, _INT), null_values=["null"]
        ),
    )
    return table.combine_chunks().to_batches()[0]


class _FolioNames(dict[int, str]):
    """The names of folios by id, looked up once each."""

    def __init__(self, connection: SqliteConnection) -> None:
        self._connection = connection

    def __missing__(self, folio_id: int) -> str:
        row = self._connection.execute(
            "SELECT name FROM folios WHERE id = %s", (folio_id,)
        ).fetchone()
        self[folio_id] = name = "" if row is None else row[0]  # In damaged metadata alone.
        return name


_TIMES = """
SELECT id, log_start_offset, next_offset, last_timestamp
FROM partitions WHERE topic_id = ? AND value = ?
"""

_TIME_OF_PAGE = """
SELECT start_offset, end_offset, timestamp
FROM pages WHERE partition_id = ? AND end_offset >= ? ORDER BY end_offset LIMIT 1
"""


def offsets_for_timestamps(
    connection: SqliteConnection, topic_uuid: str, positions: Sequence[tuple[Partition, int]]
) -> list[int]:
    """Return the first offsets at or after times; see `OffsetRegistry.offsets_for_timestamps`.

    Timestamps never decrease along a partition, so the first page that is late enough is found by
    halving the range of offsets: at most 64 look-ups of each, and no index by time to keep.
    """
    connection.execute("BEGIN")  # All look-ups see the same log.
    topic_id = require_topic_id(connection, topic_uuid)
    with closing(connection.raw.cursor()) as cursor:
        offsets = [_halve(cursor, topic_id, *position) for position in positions]
    connection.execute("COMMIT")
    return offsets


def _halve(cursor: sqlite3.Cursor, topic_id: int, partition: Partition, timestamp: int) -> int:
    row: tuple[int, int, int, int] | None = cursor.execute(_TIMES, (topic_id, partition)).fetchone()
    if row is None:
        return 0
    partition_id, low, high, last_timestamp = row
    if timestamp > last_timestamp:
        return high
    # Messages before `low` are too early, those from `high` on are late enough.
    while low < high:
        start_offset, end_offset, page_timestamp = cursor.execute(
            _TIME_OF_PAGE, (partition_id, (low + high) // 2)
        ).fetchone()
        if page_timestamp < timestamp:
            low = end_offset + 1
        else:
            high = start_offset
    return low
