"""Flushes committed to PostgreSQL: judged on what this process knows, compared and set by one call.

The Judge decides before any statement is sent, on `KnownState`: what the last commits of this
process left. `commit_flush`, a function of the schema, compares that with the tables and writes the
Judge's changes, in one statement that is its own transaction; see `commit_function`. Where other
processes wrote meanwhile it returns the stored rows instead. Then the Judge decides again on those,
and the same function is called within a transaction, which has kept the locks.
"""

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from wings_core.errors import InvalidArgument
from wings_core.metadata.checks import ID_BYTES_MAX, check_text
from wings_core.metadata.judge import Judge, PartitionDraft
from wings_core.metadata.postgres.connections import Connection
from wings_core.metadata.postgres.database import PARTITION_BYTES_MAX, PostgresDatabase
from wings_core.metadata.repeats import (
    RESULTS_KEPT_MAX,
    SequenceDraft,
    Series,
    dump_results,
    is_repeat,
    load_results,
)
from wings_core.metadata.stages import StageDraft
from wings_core.metadata.store.database import bucket, buckets, of_ends
from wings_core.model import AssignedRange, CommitBatch, CommitResult, FlushId, InlineFolio
from wings_core.partitions import Partition, is_longer

KNOWN_MAX = 65_536
"""Partitions, producers, topics and stages of which it is known what was stored, each."""

_Row = Sequence[int | str | None]
_Stage = tuple[int | None, str | None, int | None, int | None, int | None]
"""Topic id, stream, rows, bytes and pages of a stage, None where there is none."""

_ABSENT: _Stage = (None, None, None, None, None)


class KnownState:
    """Stored state as the last commits of this process left it; other processes may go on.

    May be used from several threads: whatever it says is compared with what is stored.
    """

    def __init__(self) -> None:
        self.topics: dict[str, int] = {}
        """The ids of topics, by UUID."""
        self.producers: dict[tuple[int, str], int] = {}
        """The next sequences of producers, by topic id."""
        self.partitions: dict[tuple[int, Partition], tuple[int, int | None]] = {}
        """The next offsets and last timestamps of partitions, by topic id."""
        self.sequences: dict[tuple[int, Partition, str], tuple[str, int] | None] = {}
        """States and times of the numbers of rows, by topic id, partition and producer id."""
        self.stages: dict[str, _Stage] = {}

    def bound(self) -> None:
        """Begin anew what has become too large."""
        tables = (self.topics, self.producers, self.partitions, self.sequences, self.stages)
        for kept in tables:
            if len(kept) > KNOWN_MAX:
                kept.clear()


class PostgresCommits:
    """Commits the flushes of one process.

    Args:
        database: Where they are committed.
    """

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._known = KnownState()

    def commit(
        self,
        batches: Sequence[CommitBatch],
        flush_id: FlushId | None = None,
        inline: InlineFolio | None = None,
    ) -> list[CommitResult]:
        """Assign offsets to the batches of a flush; see `OffsetRegistry.commit`."""
        flush = _Flush(self._known, batches, flush_id, inline)
        database = self._database

        def send(connection: Connection, transaction: str) -> bool:
            return flush.send(connection, transaction, database.node, database.now())

        database.call(send, lambda: of_ends(flush.ends))
        flush.learn()
        return flush.results


class _Flush:
    """One flush: the rows that it touches, as they are known to be stored.

    To the judge, the id of a topic is its place in the flush, as is that of a partition; see
    `judge.StoredState`.

    Attributes:
        results: Results of its batches, once it was sent.
        ends: The next offsets of partitions that it wrote to, by topic UUID and partition.

    Args:
        known: The stored state; learns from this flush.
        batches: Batches to commit; see `OffsetRegistry.commit` for them and the others.
        flush_id: Names the flush.
        inline: Its folio.
    """

    def __init__(
        self,
        known: KnownState,
        batches: Sequence[CommitBatch],
        flush_id: FlushId | None,
        inline: InlineFolio | None,
    ) -> None:
        self.results: list[CommitResult] = []
        self.ends: dict[tuple[str, Partition], int] = {}
        self._known = known
        self._batches = batches
        self._flush_id = flush_id
        self._inline = inline
        self._connection: Connection | None = None
        self._judged: Judge | None = None
        self._now = 0
        # By id, as all transactions lock what belongs to topics in that order.
        self._topics = sorted(
            {batch.topic_uuid for batch in batches}, key=lambda uuid: known.topics.get(uuid, 0)
        )
        self._places = {uuid: place for place, uuid in enumerate(self._topics, 1)}
        partitions = set[tuple[int, Partition]]()
        producers = set[tuple[int, str]]()
        sequences = set[tuple[int, Partition, str]]()
        stages = set[str]()
        for batch in batches:
            place = self._places[batch.topic_uuid]
            numbers = batch.partition_sequence
            if numbers is not None:
                sequences.update(
                    [(place, page.partition, numbers.producer_id) for page in batch.pages]
                )
            if batch.stage is not None:
                stages.add(batch.stage.stage)
                continue
            partitions.update([(place, page.partition) for page in batch.pages])
            if batch.expected is not None:
                partitions.add((place, batch.expected.partition))
            if batch.sequence is not None:
                producers.add((place, batch.sequence.producer_id))
        # The judge asks for none of the names that cannot be stored: it rejects their batches.
        self._partitions = sorted(
            [each for each in partitions if not is_longer(each[1], PARTITION_BYTES_MAX)]
        )
        self._producers = sorted(
            [each for each in producers if _is_storable(each[1], ID_BYTES_MAX)]
        )
        self._sequences = sorted(
            [
                each
                for each in sequences
                if not is_longer(each[1], PARTITION_BYTES_MAX)
                and _is_storable(each[2], ID_BYTES_MAX)
            ]
        )
        self._stages = sorted([each for each in stages if _is_storable(each)])
        self._look()

    def _look(self) -> None:
        """Take what is known to be stored."""
        known = self._known
        ids = self._ids = [known.topics.get(uuid) for uuid in self._topics]
        self._seen_partitions = [
            known.partitions.get((ids[place - 1] or 0, partition), (0, None))
            for place, partition in self._partitions
        ]
        self._seen_producers = [
            known.producers.get((ids[place - 1] or 0, producer), 0)
            for place, producer in self._producers
        ]
        self._seen_sequences = [
            known.sequences.get((ids[place - 1] or 0, partition, producer))
            for place, partition, producer in self._sequences
        ]
        self._seen_stages = [known.stages.get(stage, _ABSENT) for stage in self._stages]

    def send(self, connection: Connection, transaction: str, node: str, now: int) -> bool:
        """Judge the flush and call the function; blocks until it has answered.

        Returns:
            Whether the flush is over. If not, nothing was written, and what is stored was learnt.
        """
        self._connection, self._now = connection, now
        judge = Judge(self, now, PARTITION_BYTES_MAX)
        self.results = [judge.judge(batch) for batch in self._batches]
        self.ends = {
            (self._topics[topic - 1], partition): draft.next_offset
            for (topic, partition), draft in judge.partitions.items()
            if draft.changed
        }
        self._judged = judge
        arguments = (transaction, node, now, *self._arguments(judge))
        answer = connection.call("commit_flush", arguments)
        if answer is None:
            return True
        stored: dict[str, Any] = json.loads(answer)
        if self._flush_id is not None and "number" in stored:
            is_repeat(self._flush_id, stored["number"])
            self.results, self.ends = load_results(stored["results"]), {}
            self._judged = None
            return True
        self._learn_stored(stored)
        return False

    # What is stored, for the judge.

    def topic_id(self, topic_uuid: str) -> int | None:
        place = self._places[topic_uuid]
        return None if self._ids[place - 1] is None else place

    def partition(self, topic_id: int, partition: Partition) -> PartitionDraft:
        index = bisect_left(self._partitions, (topic_id, partition))
        end, timestamp = self._seen_partitions[index]
        return PartitionDraft(topic_id, partition, index + 1, end, 0, timestamp, end)

    def next_sequence(self, topic_id: int, producer_id: str) -> int:
        return self._seen_producers[bisect_left(self._producers, (topic_id, producer_id))]

    def sequences(
        self, topic_id: int, partition: Partition, producer_id: str, committed_after: int
    ) -> SequenceDraft:
        key = (topic_id, partition, producer_id)
        seen = self._seen_sequences[bisect_left(self._sequences, key)]
        if seen is None or seen[1] <= committed_after:
            return SequenceDraft()
        return SequenceDraft.from_json(seen[0])

    def stage(self, stage: str) -> StageDraft | None:
        seen = self._seen_stages[bisect_left(self._stages, stage)]
        topic_id, writing, rows, size, pages = seen
        if topic_id is None:
            return None
        return StageDraft(stage, topic_id, None, writing or "", rows or 0, size or 0, pages or 0)

    def result(
        self, topic_id: int, producer_id: str, sequence: int, committed_after: int
    ) -> tuple[AssignedRange, ...] | None:
        assert self._connection is not None
        row = self._connection.execute(
            _RESULT, (self._ids[topic_id - 1], producer_id, sequence, committed_after)
        ).fetchone()
        return None if row is None else Series.from_json(*row).result(sequence)

    def _arguments(self, judge: Judge) -> Sequence[str | bytes | None]:
        """Return the arguments of `commit_flush` that follow the time."""
        folios: dict[str, int] = {}
        inline = self._inline
        if inline is not None:
            folios[inline.name] = 0  # The first one.
        for page in judge.pages:
            folio = page.stored.address.folio
            folios[folio] = folios.get(folio, 0) + 1
        for stage in judge.stages.values():
            for stored, _ in stage.added:
                folios[stored.address.folio] = folios.get(stored.address.folio, 0) + 1
        if inline is not None and not folios[inline.name]:
            del folios[inline.name]  # All batches that have pages in it were rejected.
            inline = None
        folio_places = {folio: place for place, folio in enumerate(folios, 1)}
        uuids = self._topics
        return (
            self._writer_argument(),
            f"{{{','.join(map(str, buckets(uuids)))}}}",
            _rows([(uuid, self._ids[place]) for place, uuid in enumerate(uuids)]),
            _rows(self._stage_rows(judge)),
            _rows(self._producer_rows(judge)),
            _rows(self._partition_rows(judge)),
            _rows(list(folios.items())),
            _rows(_page_rows(judge, folio_places)),
            _rows(self._staged_rows(judge, folio_places)),
            _rows(self._result_rows(judge)),
            _rows(self._sequence_rows(judge)),
            None if inline is None else inline.data,
        )

    def _writer_argument(self) -> str | None:
        flush = self._flush_id
        if flush is None:
            return None
        return _row((flush.writer, bucket(flush.writer), flush.number, dump_results(self.results)))

    def _stage_rows(self, judge: Judge) -> list[_Row]:
        rows: list[_Row] = []
        for name, seen in zip(self._stages, self._seen_stages, strict=True):
            draft = judge.stages.get(name)
            topic, after = None, _ABSENT[1:]
            if draft is not None:
                after = (draft.writing, draft.rows, draft.bytes, draft.pages)
                topic = draft.topic_id  # Of use where the stage is new.
            rows.append((name, topic, *seen, *after))
        return rows

    def _producer_rows(self, judge: Judge) -> list[_Row]:
        rows: list[_Row] = []
        for key, seen in zip(self._producers, self._seen_producers, strict=True):
            draft = judge.producers.get(key)
            rows.append((*key, seen, seen if draft is None else draft.next_sequence))
        return rows

    def _partition_rows(self, judge: Judge) -> list[_Row]:
        rows: list[_Row] = []
        for key, (seen, timestamp) in zip(self._partitions, self._seen_partitions, strict=True):
            draft = judge.partitions.get(key)
            after = (seen, timestamp, 0, 0)
            if draft is not None:
                after = (draft.next_offset, draft.last_timestamp, draft.bytes, draft.pages)
            rows.append((*key, seen, *after))
        return rows

    def _sequence_rows(self, judge: Judge) -> list[_Row]:
        rows: list[_Row] = []
        for key, seen in zip(self._sequences, self._seen_sequences, strict=True):
            draft = judge.sequences.get(key)
            state = draft.to_json() if draft is not None and draft.changed else None
            rows.append((*key, None if seen is None else seen[0], state))
        return rows

    def _staged_rows(self, judge: Judge, folios: Mapping[str, int]) -> list[_Row]:
        rows: list[_Row] = []
        for place, name in enumerate(self._stages, 1):
            draft = judge.stages.get(name)
            added = [] if draft is None else draft.added
            first = 0 if draft is None else draft.pages - len(added)
            for number, (page, timestamp) in enumerate(added, first):
                folio, position, length = page.address
                rows.append(
                    (
                        place,
                        number,
                        page.partition,
                        page.rows,
                        timestamp,
                        folios[folio],
                        position,
                        length,
                        page.first_row,
                        page.slice_bytes,
                        page.schema_version,
                    )
                )
        return rows

    def _result_rows(self, judge: Judge) -> list[_Row]:
        # A series over several partitions would be a long row, and stay in the ring for long.
        return [
            (place, sequence, text)
            for place, key in enumerate(self._producers, 1)
            if key in judge.producers
            # A flush may go around the ring, and all but the last round would be written over.
            for series in judge.producers[key].series[-RESULTS_KEPT_MAX:]
            for sequence, text in series.rows_of_batches()
        ]

    def learn(self) -> None:
        """Learn what the commit has left, once it is known to be over."""
        judge, known, ids = self._judged, self._known, self._ids
        if judge is None:
            return
        for (place, partition), draft in judge.partitions.items():
            known.partitions[ids[place - 1] or 0, partition] = (
                draft.next_offset,
                draft.last_timestamp,
            )
        for (place, name), producer in judge.producers.items():
            known.producers[ids[place - 1] or 0, name] = producer.next_sequence
        for (place, partition, name), numbers in judge.sequences.items():
            if numbers.changed:
                key = (ids[place - 1] or 0, partition, name)
                known.sequences[key] = (numbers.to_json(), self._now)
        for name, (topic_id, *_) in zip(self._stages, self._seen_stages, strict=True):
            stage = judge.stages.get(name)
            if stage is not None:
                topic_id = ids[stage.topic_id - 1] if topic_id is None else topic_id
                seen = (topic_id, stage.writing, stage.rows, stage.bytes, stage.pages)
                known.stages[name] = seen
        known.bound()

    def _learn_stored(self, stored: dict[str, Any]) -> None:
        """Learn what the function found, and take it for the next call."""
        known = self._known
        ids: list[int | None] = stored["topics"]
        for uuid, topic_id in zip(self._topics, ids, strict=True):
            if topic_id is None:
                known.topics.pop(uuid, None)
            else:
                known.topics[uuid] = topic_id
        for (place, name), sequence in zip(self._producers, stored["producers"], strict=True):
            known.producers[ids[place - 1] or 0, name] = sequence
        for key, found in zip(self._sequences, stored["sequences"], strict=True):
            place, partition, name = key
            known.sequences[ids[place - 1] or 0, partition, name] = found and tuple(found)
        for (place, partition), found in zip(self._partitions, stored["partitions"], strict=True):
            end, timestamp = found or (0, None)
            known.partitions[ids[place - 1] or 0, partition] = (end, timestamp)
        for name, found in zip(self._stages, stored["stages"], strict=True):
            known.stages[name] = _ABSENT if found is None else tuple(found)
        self._look()


_RESULT = """
SELECT sequence, committed FROM producer_results
WHERE topic_id = %s AND producer_id = %s AND sequence >= %s::bigint AND committed_at > %s::bigint
ORDER BY sequence LIMIT 1
"""
"""Result of the series that a batch was in, or of a later one, where that is forgotten."""


def _page_rows(judge: Judge, folios: Mapping[str, int]) -> list[_Row]:
    rows: list[_Row] = []
    for page in judge.pages:
        stored, got = page.stored, page.got
        address = stored.address
        rows.append(
            (
                page.partition.partition_id,
                got.start_offset,
                got.end_offset,
                got.timestamp,
                folios[address.folio],
                address.position,
                address.length,
                stored.first_row,
                stored.slice_bytes,
                address.pushed_format.value,
                stored.schema_version,
            )
        )
    return rows


def _is_storable(name: str, bytes_max: int | None = None) -> bool:
    try:
        check_text("the name", name, bytes_max)
    except InvalidArgument:
        return False
    return True


def _rows(rows: Sequence[_Row]) -> str:
    """Return rows as PostgreSQL reads an array of a composite type.

    psycopg takes far longer for each of their values.
    """
    return f"{{{','.join([_quoted(_row(row)) for row in rows])}}}" if rows else "{}"


def _row(row: _Row) -> str:
    fields = [
        "" if value is None else _quoted(value) if isinstance(value, str) else str(value)
        for value in row
    ]
    return f"({','.join(fields)})"


def _quoted(text: str) -> str:
    if '"' in text or "\\" in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
