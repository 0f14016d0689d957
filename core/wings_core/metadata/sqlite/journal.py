"""The journal: commits of one small page, each a row, which the tables are told of later.

    commit ─▶ a row of the journal, synced ─▶ acknowledged
    before the next look at the tables, or change of them ─▶ all its rows are applied at once

To write a page that comes alone into the tables changes a dozen pages of the database's file, in
six tables and as many indexes, all of which its COMMIT would have to write and sync. Followers are
told by memory (`CommitCache.tail`), and the drain looks at the tables after a moment, so most rows
of the journal are applied many at a time.

The transaction that applies them waits for no sync: until it is on the disk the journal's rows are
there, and after a crash a start applies them. So the tables with the journal are as they would be
without it, at every moment. A backup copies both. What only reads the file sees the tables alone:
`wings check` reads the journal beside them, and a repair brings its sound rows into them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wings_core.errors import StorageCorrupt
from wings_core.metadata.judge import Judge
from wings_core.metadata.results import RESULTS_KEPT_MAX
from wings_core.model import CommitBatch, InlineFolio, PageFormat

if TYPE_CHECKING:
    from wings_core.metadata.sqlite.database import Connection

ROWS_MAX = 4_096
"""After so many rows they are applied by the next commit."""

BYTES_MAX = 16 * 1024
"""Of a page; a larger one would be written twice at more than what it spares."""

MANY = 2
"""Rows that are worth to be applied: one by itself takes more than to do without the journal."""

WITHOUT = 16
"""Commits that do without it after fewer than `MANY` were applied: who looks after each does so."""

_STRAY = """
SELECT journal.partition_id FROM journal
LEFT JOIN partitions ON partitions.id = journal.partition_id
GROUP BY journal.partition_id
HAVING partitions.next_offset IS NOT min(start_offset)
    OR max(end_offset) - min(start_offset) + 1 <> sum(end_offset - start_offset + 1)
LIMIT 1
"""
"""A partition that the journal's rows do not continue."""

_APPLY = (
    "INSERT INTO folios (name, pages) SELECT folio, 1 FROM journal ORDER BY id",
    """
    INSERT INTO inline_folios (folio_id, data)
    SELECT folios.id, data FROM journal JOIN folios ON folios.name = folio ORDER BY journal.id
    """,
    f"""
    INSERT INTO pages (
        partition_id, end_offset, start_offset, timestamp, folio_id, position, length, format,
        schema_version
    )
    SELECT partition_id, end_offset, start_offset, timestamp, folios.id, 0, length(data),
        {int(PageFormat.INLINE)}, schema_version
    FROM journal JOIN folios ON folios.name = folio ORDER BY journal.id
    """,
    """
    UPDATE partitions SET
        next_offset = came.next_offset, bytes = bytes + came.size,
        last_timestamp = came.last_timestamp, pages = pages + came.count
    FROM (
        SELECT partition_id, max(end_offset) + 1 AS next_offset, sum(length) AS size,
            max(timestamp) AS last_timestamp, count(*) AS count
        -- With a limit, so that not the pages are sorted but their lengths.
        FROM (
            SELECT partition_id, end_offset, timestamp, length(data) AS length FROM journal LIMIT -1
        ) GROUP BY partition_id
    ) AS came
    WHERE id = came.partition_id
    """,
    """
    INSERT INTO producers (topic_id, producer_id, next_sequence)
    SELECT topic_id, producer_id, max(sequence) + 1
    FROM journal JOIN partitions ON partitions.id = partition_id
    WHERE producer_id IS NOT NULL GROUP BY topic_id, producer_id
    ON CONFLICT DO UPDATE SET next_sequence = excluded.next_sequence
    """,
    f"""
    INSERT OR REPLACE INTO producer_results
        (topic_id, producer_id, slot, sequence, committed, committed_at)
    SELECT topic_id, producer_id, sequence % {RESULTS_KEPT_MAX}, sequence, committed, committed_at
    FROM journal JOIN partitions ON partitions.id = partition_id
    WHERE producer_id IS NOT NULL ORDER BY journal.id
    """,
    "DELETE FROM journal",
)


def takes(connection: "Connection", batches: Sequence[CommitBatch], inline: InlineFolio) -> bool:
    """Tell whether a commit can be a row of the journal.

    That is one of a page alone, for whose topic, partition and producer the cache tells where they
    stand. Of what else it is judged by the tables tell: all that the journal has is in the cache
    too, which begins anew with a commit that applies it.
    """
    cache = connection.cache
    size = len(inline.data)
    if len(batches) != 1 or size > BYTES_MAX or len(cache.journal) >= ROWS_MAX:
        return False
    (batch,) = batches
    topic_id = cache.topic_ids.get(batch.topic_uuid)
    if topic_id is None or batch.stage is not None or len(batch.pages) != 1:
        return False
    (page,) = batch.pages
    if (page.first_row, page.slice_bytes, page.address) != (None, None, (inline.name, 0, size)):
        return False
    known = cache.partition(topic_id, page.partition)
    if known is None or known.partition_id is None:  # None: never written to.
        return False
    sequence = batch.sequence
    if sequence is not None:
        key = (topic_id, sequence.producer_id)
        if cache.producers.get(key) != sequence.sequence:
            return False
    if cache.without_journal > 0:
        cache.without_journal -= 1
        return False
    # A name that is there already could not be applied.
    return (
        inline.name not in cache.journal
        and not connection.raw.execute(
            "SELECT 1 FROM folios WHERE name = ?", (inline.name,)
        ).fetchall()
    )


def add(connection: "Connection", judge: Judge, inline: InlineFolio, now: int) -> None:
    """Write an accepted commit as a row of the journal; within a transaction."""
    (page,) = judge.pages
    page.partition.last_page = None  # Drafts are remembered, and this is not to be.
    producer_id = sequence = committed = None
    if judge.producers:
        (((_, producer_id), producer),) = judge.producers.items()
        (series,) = producer.series
        sequence, committed = series.sequence, series.to_json()
    got = page.got
    connection.cache.journal.add(inline.name)
    connection.raw.execute(
        "INSERT INTO journal (partition_id, start_offset, end_offset, timestamp, schema_version, "
        "committed_at, producer_id, sequence, committed, folio, data) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            page.partition.partition_id,
            got.start_offset,
            got.end_offset,
            got.timestamp,
            page.stored.schema_version,
            now,
            producer_id,
            sequence,
            committed,
            inline.name,
            inline.data,
        ),
    )


def apply(connection: "Connection") -> None:
    """Write the journal's rows into the tables, and delete them; within a transaction.

    Raises:
        StorageCorrupt: They do not continue what the tables have.
    """
    raw, cache = connection.raw, connection.cache
    stray = raw.execute(_STRAY).fetchone()
    if stray is not None:
        raise StorageCorrupt(f"the journal of metadata does not continue partition {stray[0]}")
    for statement in _APPLY:
        raw.execute(statement)
    if len(cache.journal) < MANY:
        cache.without_journal = WITHOUT
    cache.journal_applied = True
