"""The commit of a flush to SQLite: the Judge decides on the batches, then rows are written."""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from wings_core.metadata.judge import Judge, PartitionDraft
from wings_core.metadata.repeats import (
    RESULTS_KEPT_MAX,
    SequenceDraft,
    Series,
    dump_results,
    is_repeat,
    load_results,
)
from wings_core.metadata.sqlite.database import SqliteConnection, SqliteDatabase, insert_rows
from wings_core.metadata.sqlite.files import row_checksum
from wings_core.metadata.sqlite.notes import PUSHED
from wings_core.metadata.stages import StageDraft
from wings_core.metadata.store.database import of_ends
from wings_core.model import (
    INLINE_SUFFIX,
    AssignedRange,
    CommitBatch,
    CommitResult,
    FlushId,
    InlineFolio,
    PageAddress,
    PageFormat,
)
from wings_core.partitions import Partition

PageRow = tuple[int | None, int, int, int, int, int, int, int | None, int | None, int, int]
"""Partition's id, end, start, timestamp, folio's id, position, length; of a slice its first row and
bytes; format, version of the schema."""


def count_to_folios(connection: SqliteConnection, counts: Mapping[str, int]) -> dict[str, int]:
    """Count so many pages to each folio, which is made where it is not there.

    Returns:
        The ids of the folios, by name.
    """
    folio_ids: dict[str, int] = {}
    for folio, pages in counts.items():
        known = connection.cache.folio_ids.get(folio)
        if known is not None:
            connection.raw.execute(
                "UPDATE folios SET pages = pages + ? WHERE id = ?", (pages, known)
            )
            folio_ids[folio] = known
            continue
        if folio.endswith(INLINE_SUFFIX):  # Of this flush alone; quicker than to ask for the row.
            inserted = connection.raw.execute(
                "INSERT INTO folios (name, pages) VALUES (?, ?)", (folio, pages)
            )
            assert inserted.lastrowid is not None
            folio_ids[folio] = inserted.lastrowid
            continue
        ((folio_ids[folio],),) = connection.raw.execute(
            "INSERT INTO folios (name, pages) VALUES (?, ?) "
            "ON CONFLICT (name) DO UPDATE SET pages = pages + excluded.pages RETURNING id",
            (folio, pages),
        ).fetchall()
    return folio_ids


def insert_pages(connection: SqliteConnection, pages: Sequence[PageRow]) -> None:
    """Index pages as they were pushed."""
    insert_rows(
        connection.raw,
        "INSERT INTO pages (partition_id, end_offset, start_offset, timestamp, folio_id, "
        "position, length, first_row, slice_bytes, format, schema_version)",
        "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        pages,
    )
    if pages and pages[0][-2] != PageFormat.INLINE:
        connection.cache.note(PUSHED, pages)


def insert_inline(connection: SqliteConnection, folio_id: int, data: bytes) -> None:
    """Keep the bytes of a folio, until its last page is counted off."""
    connection.raw.execute(
        "INSERT INTO inline_folios (folio_id, data) VALUES (?, ?)", (folio_id, data)
    )


def find_stage(connection: SqliteConnection, stage: str) -> StageDraft | None:
    """Return a stage as it is stored, None where there is none of this id."""
    row: tuple[int, int, str, int, int, int] | None = connection.execute(
        "SELECT id, topic_id, writing, rows, bytes, pages FROM stages WHERE name = ?", (stage,)
    ).fetchone()
    if row is None:
        return None
    stage_id, topic_id, writing, rows, size, pages = row
    return StageDraft(stage, topic_id, stage_id, writing, rows, size, pages)


def write_stages(
    connection: SqliteConnection,
    stages: Iterable[StageDraft],
    folio_ids: Mapping[str, int],
    now: int,
) -> None:
    """Write what a flush added to stages, giving ids to new ones."""
    for draft in stages:
        if draft.stage_id is None:
            draft.stage_id = connection.execute(
                "INSERT INTO stages (name, topic_id, writing, rows, bytes, pages, changed_at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    draft.stage,
                    draft.topic_id,
                    draft.writing,
                    draft.rows,
                    draft.bytes,
                    draft.pages,
                    now,
                ),
            ).lastrowid
        else:
            connection.execute(
                "UPDATE stages SET rows = ?, bytes = ?, pages = ?, changed_at = ? WHERE id = ?",
                (draft.rows, draft.bytes, draft.pages, now, draft.stage_id),
            )
        first = draft.pages - len(draft.added)
        connection.raw.executemany(
            "INSERT INTO staged_pages "
            "(stage_id, number, partition, rows, timestamp, folio_id, position, length, "
            "first_row, slice_bytes, schema_version) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    draft.stage_id,
                    number,
                    page.partition,
                    page.rows,
                    timestamp,
                    folio_ids[page.address.folio],
                    page.address.position,
                    page.address.length,
                    page.first_row,
                    page.slice_bytes,
                    page.schema_version,
                )
                for number, (page, timestamp) in enumerate(draft.added, first)
            ],
        )


ASKED_AHEAD_MIN = 16
"""Partitions of a batch that are asked for in one statement, not one by one."""


class SqliteCommits:
    """Commits flushes, each in a transaction.

    Args:
        database: Where they are committed.
    """

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    def commit(
        self,
        batches: Sequence[CommitBatch],
        flush_id: FlushId | None = None,
        inline: InlineFolio | None = None,
    ) -> list[CommitResult]:
        """Assign offsets to the batches of a flush; see `OffsetRegistry.commit`."""

        def work(connection: SqliteConnection) -> _Committed:
            now = self._database.now()
            if flush_id is None:
                return _commit_batches(connection, batches, now, inline)
            return _commit_once(connection, batches, now, flush_id, inline)

        return self._database.write(
            work, lambda committed: of_ends(committed.ends), keeps_cache=True
        ).results


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class _Committed:
    """Outcome of a commit."""

    results: list[CommitResult]
    """Results of the batches, in order."""
    ends: dict[tuple[str, Partition], int]
    """The next offset of each partition that was written to, by topic UUID and partition."""


def _commit_once(
    connection: SqliteConnection,
    batches: Sequence[CommitBatch],
    now: int,
    flush_id: FlushId,
    inline: InlineFolio | None,
) -> _Committed:
    """Commit a flush once: a repetition gets its first results."""
    row = connection.raw.execute(
        "SELECT number, results FROM flushes WHERE writer = ?", (flush_id.writer,)
    ).fetchone()
    if row is not None and is_repeat(flush_id, row[0]):
        return _Committed(load_results(row[1]), {})
    committed = _commit_batches(connection, batches, now, inline)
    connection.raw.execute(
        "INSERT INTO flushes (writer, number, results, committed_at) VALUES (?, ?, ?, ?) "
        "ON CONFLICT DO UPDATE SET number = excluded.number, results = excluded.results, "
        "committed_at = excluded.committed_at",
        (flush_id.writer, flush_id.number, dump_results(committed.results), now),
    )
    return committed


def _commit_batches(
    connection: SqliteConnection,
    batches: Sequence[CommitBatch],
    now: int,
    inline: InlineFolio | None = None,
) -> _Committed:
    """Judge the batches and write the accepted ones, within the transaction of `connection`."""
    stored = _SqliteState(connection)
    stored.find_ahead(batches)
    judge = Judge(stored, now)
    results = [judge.judge(batch) for batch in batches]
    uuids = {topic_id: topic_uuid for topic_uuid, topic_id in stored.topic_ids.items()}
    changed: list[PartitionDraft] = []
    ends: dict[tuple[str, Partition], int] = {}
    for draft in judge.partitions.values():
        if draft.next_offset != draft.stored_next_offset:
            changed.append(draft)
            ends[uuids[draft.topic_id], draft.partition] = draft.next_offset
    write_partitions(connection, changed)
    folio_ids = _write_pages(connection, judge)
    if inline is not None:
        folio_id = folio_ids.get(inline.name)
        if folio_id is not None:  # Else all batches that have pages in it were refused.
            insert_inline(connection, folio_id, inline.data)
    if judge.producers:
        _write_producers(connection, judge, now)
    if judge.sequences:
        _write_sequences(connection, judge, now)
    if judge.stages:
        write_stages(connection, judge.stages.values(), folio_ids, now)
    if inline is not None:
        folio_ids.pop(inline.name, None)  # No other flush will refer to it.
    connection.cache.learn(
        stored.topic_ids, folio_ids, judge.partitions, judge.producers, judge.pages
    )
    return _Committed(results, ends)


class _SqliteState:
    """Stored state, for the judge; see `judge.StoredState`."""

    def __init__(self, connection: SqliteConnection) -> None:
        self._connection = connection
        self._cache = connection.cache
        self.topic_ids: dict[str, int] = {}
        """Requested ids that are there."""
        self._asked: dict[tuple[int, Partition], _PartitionRow | None] = {}
        """Partitions that were asked for ahead; None: never written to."""
        self._empty: set[int] = set()
        """Ids of topics that were never written to."""

    def find_ahead(self, batches: Sequence[CommitBatch]) -> None:
        """Ask for the partitions of batches that touch many, all at once."""
        for batch in batches:
            if len(batch.pages) < ASKED_AHEAD_MIN or batch.stage is not None:
                continue
            topic_id = self.topic_id(batch.topic_uuid)
            if topic_id is None or topic_id in self._empty:
                continue
            if not _has_partitions(self._connection, topic_id):
                self._empty.add(topic_id)
                continue
            values = [
                page.partition
                for page in batch.pages
                if not self._cache.has_partition(topic_id, page.partition)
            ]
            self._asked.update(_find_partitions(self._connection, topic_id, values))

    def topic_id(self, topic_uuid: str) -> int | None:
        topic_id = self._cache.topic_ids.get(topic_uuid)
        if topic_id is None:
            topic_id = _find_topic_id(self._connection, topic_uuid)
        if topic_id is not None:
            self.topic_ids[topic_uuid] = topic_id
        return topic_id

    def partition(self, topic_id: int, partition: Partition) -> PartitionDraft:
        if topic_id in self._empty:
            return PartitionDraft(topic_id, partition)
        key = (topic_id, partition)
        if key in self._asked:
            row = self._asked[key]
            return PartitionDraft(*key) if row is None else _draft_of(topic_id, row)
        known = self._cache.partition(topic_id, partition)
        return known or find_partition(self._connection, topic_id, partition)

    def sequences(
        self, topic_id: int, partition: Partition, producer_id: str, committed_after: int
    ) -> SequenceDraft:
        row: tuple[str] | None = self._connection.raw.execute(
            "SELECT state FROM partition_sequences WHERE topic_id = ? AND partition = ? "
            "AND producer_id = ? AND committed_at > ?",
            (topic_id, partition, producer_id, committed_after),
        ).fetchone()
        return SequenceDraft() if row is None else SequenceDraft.from_json(row[0])

    def stage(self, stage: str) -> StageDraft | None:
        return find_stage(self._connection, stage)

    def next_sequence(self, topic_id: int, producer_id: str) -> int:
        known = self._cache.producers.get((topic_id, producer_id))
        if known is not None:
            return known
        row: tuple[int] | None = self._connection.execute(
            "SELECT next_sequence FROM producers WHERE topic_id = ? AND producer_id = ?",
            (topic_id, producer_id),
        ).fetchone()
        return 0 if row is None else row[0]

    def result(
        self, topic_id: int, producer_id: str, sequence: int, committed_after: int
    ) -> tuple[AssignedRange, ...] | None:
        # Of the series that it was in, or of a later one, where that is forgotten.
        row: tuple[int, str] | None = self._connection.execute(
            "SELECT sequence, committed FROM producer_results "
            "WHERE topic_id = ? AND producer_id = ? AND sequence >= ? AND committed_at > ? "
            "ORDER BY sequence LIMIT 1",
            (topic_id, producer_id, sequence, committed_after),
        ).fetchone()
        return None if row is None else Series.from_json(*row).result(sequence)


def _has_partitions(connection: SqliteConnection, topic_id: int) -> bool:
    row = connection.raw.execute(
        "SELECT 1 FROM partitions WHERE topic_id = ? LIMIT 1", (topic_id,)
    ).fetchone()
    return row is not None


def find_partition(
    connection: SqliteConnection, topic_id: int, partition: Partition
) -> PartitionDraft:
    """Return a partition as it is stored, also one never written to."""
    row: _PartitionRow | None = connection.execute(
        "SELECT value, id, next_offset, bytes, last_timestamp, pages, log_start_offset "
        "FROM partitions WHERE topic_id = ? AND value = ?",
        (topic_id, partition),
    ).fetchone()
    return PartitionDraft(topic_id, partition) if row is None else _draft_of(topic_id, row)


def _find_partitions(
    connection: SqliteConnection, topic_id: int, partitions: Sequence[Partition]
) -> dict[tuple[int, Partition], "_PartitionRow | None"]:
    """Return partitions as they are stored, None for those never written to."""
    found: dict[tuple[int, Partition], _PartitionRow | None]
    found = dict.fromkeys([(topic_id, value) for value in partitions])
    rows: list[_PartitionRow] = connection.raw.execute(
        "SELECT value, id, next_offset, bytes, last_timestamp, pages, log_start_offset "
        "FROM partitions WHERE topic_id = ? AND value IN (SELECT value FROM json_each(?))",
        (topic_id, json.dumps(partitions)),
    ).fetchall()
    for row in rows:
        found[topic_id, row[0]] = row
    return found


_PartitionRow = tuple[Partition, int, int, int, int, int, int]
"""Value, id, next offset, bytes, last timestamp, pages, the log's start."""


def _draft_of(topic_id: int, row: _PartitionRow) -> PartitionDraft:
    partition, partition_id, next_offset, size, last_timestamp, pages, log_start_offset = row
    return PartitionDraft(
        topic_id=topic_id,
        partition=partition,
        partition_id=partition_id,
        next_offset=next_offset,
        bytes=size,
        last_timestamp=last_timestamp,
        stored_next_offset=next_offset,
        pages=pages,
        log_start_offset=log_start_offset,
    )


def write_partitions(connection: SqliteConnection, changed: Iterable[PartitionDraft]) -> None:
    """Write partitions back, giving ids to new ones."""
    known: list[tuple[int | None, ...]] = []
    new: list[PartitionDraft] = []
    for draft in changed:
        number = draft.partition_id
        if number is None:
            new.append(draft)
        else:
            size, pages = draft.bytes, draft.pages
            known.append((draft.next_offset, size, draft.last_timestamp, pages, number))
    connection.raw.executemany(
        "UPDATE partitions SET next_offset = ?, bytes = ?, last_timestamp = ?, pages = ? "
        "WHERE id = ?",
        known,
    )
    if not new:
        return
    ((last_id,),) = connection.execute("SELECT coalesce(max(id), 0) FROM partitions")
    rows: list[tuple[int, int, Partition, int, int, int | None, int]] = []
    for partition_id, draft in enumerate(new, last_id + 1):
        draft.partition_id = partition_id
        rows.append(
            (
                partition_id,
                draft.topic_id,
                draft.partition,
                draft.next_offset,
                draft.bytes,
                draft.last_timestamp,
                draft.pages,
            )
        )
    connection.cache.note("partitions", [row[:3] for row in rows])
    insert_rows(
        connection.raw,
        "INSERT INTO partitions "
        "(id, topic_id, value, log_start_offset, next_offset, bytes, last_timestamp, pages)",
        "(?, ?, ?, 0, ?, ?, ?, ?)",
        rows,
    )


def _write_pages(connection: SqliteConnection, judge: Judge) -> dict[str, int]:
    """Write the visible pages, and count all accepted ones to their folios.

    Returns:
        The ids of the folios, by name.
    """
    counts: dict[str, int] = {}
    for page in judge.pages:
        folio = page.stored.address.folio
        counts[folio] = counts.get(folio, 0) + 1
    for stage in judge.stages.values():
        for stored, _ in stage.added:
            folio = stored.address.folio
            counts[folio] = counts.get(folio, 0) + 1
    folio_ids = count_to_folios(connection, counts)
    rows: list[PageRow] = []
    address: PageAddress | None = None
    folio_id = position = length = page_format = 0
    for page in judge.pages:
        page.partition.last_page = None  # Drafts are remembered, and this is not to be.
        stored, got = page.stored, page.got
        if stored.address is not address:  # Neighbours are often slices of one page.
            address = stored.address
            folio, position, length = address
            folio_id, page_format = folio_ids[folio], int(address.pushed_format)
        rows.append(
            (
                page.partition.partition_id,
                got.end_offset,
                got.start_offset,
                got.timestamp,
                folio_id,
                position,
                length,
                stored.first_row,
                stored.slice_bytes,
                page_format,
                stored.schema_version,
            )
        )
    insert_pages(connection, rows)
    return folio_ids


def _write_producers(connection: SqliteConnection, judge: Judge, now: int) -> None:
    """Write the producers that used a sequence, and their results, the last over the oldest.

    A series is in the place of its last batch. What that takes the place of came
    `RESULTS_KEPT_MAX` before it or earlier, and will not be asked for. Neither will rows before
    that, which are deleted if they may be as long as a series over many partitions.
    """
    changed = {key: draft for key, draft in judge.producers.items() if draft.series}
    connection.raw.executemany(
        "DELETE FROM producer_results WHERE topic_id = ? AND producer_id = ? AND sequence < ?",
        [
            (*key, draft.next_sequence - RESULTS_KEPT_MAX)
            for key, draft in changed.items()
            if any(series.rows and len(series.committed) > 1 for series in draft.series)
        ],
    )
    connection.raw.executemany(
        "INSERT INTO producers (topic_id, producer_id, next_sequence) VALUES (?, ?, ?) "
        "ON CONFLICT DO UPDATE SET next_sequence = excluded.next_sequence",
        [(*key, draft.next_sequence) for key, draft in changed.items()],
    )
    # A flush may go around the ring, and all but the last round would be written over.
    last = (
        (key, one) for key, draft in changed.items() for one in draft.series[-RESULTS_KEPT_MAX:]
    )
    write_results(connection.raw, ((*key, series, now) for key, series in last))


def write_results(
    connection: sqlite3.Connection, results: Iterable[tuple[int, str, Series, int]]
) -> None:
    """Write what producers got: topic's id, producer's id, series, and when it was committed."""
    rows = (
        (topic_id, producer, each.sequence % RESULTS_KEPT_MAX, each.sequence, each.to_json(), time)
        for topic_id, producer, each, time in results
    )
    connection.executemany(
        "INSERT OR REPLACE INTO producer_results "
        "(topic_id, producer_id, slot, sequence, committed, committed_at, checksum) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(*row, row_checksum(*row)) for row in rows],
    )


def _write_sequences(connection: SqliteConnection, judge: Judge, now: int) -> None:
    """Write the numbers of rows that were used."""
    connection.raw.executemany(
        "INSERT INTO partition_sequences (topic_id, partition, producer_id, state, committed_at) "
        "VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
        "state = excluded.state, committed_at = excluded.committed_at",
        [(*key, draft.to_json(), now) for key, draft in judge.sequences.items() if draft.changed],
    )


def _find_topic_id(connection: SqliteConnection, topic_uuid: str) -> int | None:
    """Return the id of a topic, None if there is none or it was deleted."""
    row: tuple[int] | None = connection.execute(
        "SELECT id FROM topics WHERE uuid = ? AND deleted_at IS NULL", (topic_uuid,)
    ).fetchone()
    return None if row is None else row[0]
