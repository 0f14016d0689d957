"""The commit of a flush to SQLite: judge all batches, then write what the accepted ones changed."""

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence

from pydantic import TypeAdapter

from wings_core.metadata.judge import RESULTS_KEPT_MAX, Judge, PartitionDraft
from wings_core.metadata.sqlite.topics import find_topic_id
from wings_core.model import CommitBatch, CommitResult, CommittedRange
from wings_core.partitions import Partition

_RANGES = TypeAdapter(tuple[CommittedRange, ...])
"""The form in which a producer's results are stored."""


def commit_batches(
    connection: sqlite3.Connection, batches: Sequence[CommitBatch], now: int
) -> tuple[list[CommitResult], dict[tuple[str, Partition], int]]:
    """Judge the batches and write the accepted ones, within the transaction of `connection`.

    Returns:
        The results, in order, and the next offset of each partition that was written to, by topic
        UUID and partition, for the waiters.
    """
    stored = _SqliteState(connection)
    judge = Judge(stored, now)
    results = [judge.judge(batch) for batch in batches]
    changed = [draft for draft in judge.partitions.values() if draft.changed]
    _write_partitions(connection, changed)
    _write_pages(connection, judge)
    _write_producers(connection, judge, now)
    ends = {
        (stored.topic_uuids[draft.topic_id], draft.partition): draft.next_offset
        for draft in changed
    }
    return results, ends


class _SqliteState:
    """What is stored, for the judge; see `judge.StoredState`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.topic_uuids: dict[int, str] = {}

    def topic_id(self, topic_uuid: str) -> int | None:
        topic_id = find_topic_id(self._connection, topic_uuid)
        if topic_id is not None:
            self.topic_uuids[topic_id] = topic_uuid
        return topic_id

    def partition(self, topic_id: int, partition: Partition) -> PartitionDraft:
        row: tuple[int, int, int, int] | None = self._connection.execute(
            "SELECT id, next_offset, bytes, last_timestamp FROM partitions "
            "WHERE topic_id = ? AND value = ?",
            (topic_id, partition),
        ).fetchone()
        if row is None:
            return PartitionDraft(topic_id, partition)
        partition_id, next_offset, size, last_timestamp = row
        return PartitionDraft(
            topic_id, partition, partition_id, next_offset, size, last_timestamp, next_offset
        )

    def next_sequence(self, topic_id: int, producer_id: str) -> int:
        row: tuple[int] | None = self._connection.execute(
            "SELECT next_sequence FROM producers WHERE topic_id = ? AND producer_id = ?",
            (topic_id, producer_id),
        ).fetchone()
        return 0 if row is None else row[0]

    def result(
        self, topic_id: int, producer_id: str, sequence: int, committed_after: int
    ) -> tuple[CommittedRange, ...] | None:
        row: tuple[str] | None = self._connection.execute(
            "SELECT committed FROM producer_results "
            "WHERE topic_id = ? AND producer_id = ? AND slot = ? AND sequence = ? "
            "AND committed_at > ?",
            (topic_id, producer_id, sequence % RESULTS_KEPT_MAX, sequence, committed_after),
        ).fetchone()
        return None if row is None else _RANGES.validate_json(row[0])


def _write_partitions(connection: sqlite3.Connection, changed: Iterable[PartitionDraft]) -> None:
    """Write partitions back, giving ids to new ones."""
    known = [draft for draft in changed if draft.partition_id is not None]
    new = [draft for draft in changed if draft.partition_id is None]
    connection.executemany(
        "UPDATE partitions SET next_offset = ?, bytes = ?, last_timestamp = ? WHERE id = ?",
        [
            (draft.next_offset, draft.bytes, draft.last_timestamp, draft.partition_id)
            for draft in known
        ],
    )
    if not new:
        return
    ((last_id,),) = connection.execute("SELECT coalesce(max(id), 0) FROM partitions")
    for partition_id, draft in enumerate(new, last_id + 1):
        draft.partition_id = partition_id
    connection.executemany(
        "INSERT INTO partitions VALUES (?, ?, ?, 0, ?, ?, ?)",
        [
            (
                draft.partition_id,
                draft.topic_id,
                draft.partition,
                draft.next_offset,
                draft.bytes,
                draft.last_timestamp,
            )
            for draft in new
        ],
    )


def _write_pages(connection: sqlite3.Connection, judge: Judge) -> None:
    folio_ids: dict[str, int] = {}
    for folio, pages in Counter(page.address.folio for page in judge.pages).items():
        ((folio_ids[folio],),) = connection.execute(
            "INSERT INTO folios (name, pages) VALUES (?, ?) "
            "ON CONFLICT (name) DO UPDATE SET pages = pages + excluded.pages RETURNING id",
            (folio, pages),
        ).fetchall()
    connection.executemany(
        "INSERT INTO pages VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (
                page.partition.partition_id,
                page.end_offset,
                page.start_offset,
                page.timestamp,
                folio_ids[page.address.folio],
                page.address.position,
                page.address.length,
            )
            for page in judge.pages
        ],
    )


def _write_producers(connection: sqlite3.Connection, judge: Judge, now: int) -> None:
    """Write the producers that used a sequence, and their results, the last over the oldest."""
    changed = {key: draft for key, draft in judge.producers.items() if draft.results}
    connection.executemany(
        "INSERT INTO producers VALUES (?, ?, ?) "
        "ON CONFLICT DO UPDATE SET next_sequence = excluded.next_sequence",
        [(*key, draft.next_sequence) for key, draft in changed.items()],
    )
    connection.executemany(
        "INSERT OR REPLACE INTO producer_results VALUES (?, ?, ?, ?, ?, ?)",
        [
            (
                *key,
                sequence % RESULTS_KEPT_MAX,
                sequence,
                _RANGES.dump_json(committed).decode(),
                now,
            )
            for key, draft in changed.items()
            for sequence, committed in draft.results.items()
        ],
    )
