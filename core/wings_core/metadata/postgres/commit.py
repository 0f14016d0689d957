"""The commit of a flush to PostgreSQL: lock, judge all batches, write what the accepted changed.

What the judge may ask for is known before: so all of it is locked and read in one exchange with the
server, in the order of `locks`, and all is written in another.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from wings_core.errors import InvalidArgument
from wings_core.metadata.judge import (
    Judge,
    PartitionDraft,
    check_id,
    check_text,
)
from wings_core.metadata.postgres.connections import Connection
from wings_core.metadata.postgres.pages import (
    columns,
    count_to_folios,
    insert_inline,
    insert_pages,
    update_partitions,
)
from wings_core.metadata.postgres.plans import plan_for
from wings_core.metadata.postgres.stages import lock_stages, write_stages
from wings_core.metadata.results import RESULTS_KEPT_MAX, Series, ranges_to_json
from wings_core.metadata.stages import StageDraft
from wings_core.metadata.store.database import Committed
from wings_core.metadata.store.locks import Lock
from wings_core.model import CommitBatch, CommittedRange, InlineFolio
from wings_core.partitions import Partition, is_longer

PARTITION_BYTES_MAX = 2_048
"""The longest partition value, as JSON in UTF-8. An entry of an index holds 2,704 bytes at most, on
pages of the usual size: a value, a topic, and for offsets the longest name of a consumer."""


def commit_batches(
    connection: Connection,
    batches: Sequence[CommitBatch],
    now: int,
    inline: InlineFolio | None = None,
) -> Committed:
    """Judge the batches and write the accepted ones, within the transaction of `connection`."""
    plan_for(connection, max(len(batches), sum(len(batch.pages) for batch in batches)))
    stored = _Stored(connection, batches)
    judge = Judge(stored, now, PARTITION_BYTES_MAX)
    results = [judge.judge(batch) for batch in batches]
    changed = [draft for draft in judge.partitions.values() if draft.changed]
    _write_partitions(connection, changed, stored.new_partitions)
    _write_pages(connection, judge)
    if inline is not None:
        insert_inline(connection, inline)
    _write_producers(connection, judge, stored.new_producers, now)
    write_stages(connection, judge.stages.values(), now)
    uuids = {topic_id: topic_uuid for topic_uuid, topic_id in stored.topic_ids.items()}
    ends = {(uuids[draft.topic_id], draft.partition): draft.next_offset for draft in changed}
    return Committed(results, ends)


class _Stored:
    """What is stored and locked, for the judge; see `judge.StoredState`."""

    def __init__(self, connection: Connection, batches: Sequence[CommitBatch]) -> None:
        self._connection = connection
        topics = sorted({batch.topic_uuid for batch in batches})
        connection.share_lock(Lock.TOPICS, topics)
        self.topic_ids = _find_topic_ids(connection, topics)
        # The judge refuses the others.
        stages = {
            batch.stage.stage
            for batch in batches
            if batch.stage is not None and _accepted_by(check_text, batch.stage.stage)
        }
        self._stages = self._lock_stages(stages) if stages else {}
        self._producers: dict[tuple[int, str], int] = {}
        self.new_producers: set[tuple[int, str]] = set()
        """Those inserted by this transaction, whether or not they come to be used."""
        self._partitions: dict[tuple[int, Partition], PartitionDraft] = {}
        self.new_partitions: set[int] = set()
        """The ids of those inserted by this transaction, whether or not they are written to."""
        visible = [
            (self.topic_ids[batch.topic_uuid], batch)
            for batch in batches
            if batch.stage is None and batch.topic_uuid in self.topic_ids
        ]
        self._lock_rows(
            sorted(
                {
                    (topic_id, batch.sequence.producer_id)
                    for topic_id, batch in visible
                    if batch.sequence is not None
                    and _accepted_by(check_id, batch.sequence.producer_id)
                }
            ),
            sorted(
                {
                    (topic_id, partition)
                    for topic_id, batch in visible
                    for partition in (
                        *(page.partition for page in batch.pages),
                        *(() if batch.expected is None else (batch.expected.partition,)),
                    )
                    # The judge refuses the others.
                    if not is_longer(partition, PARTITION_BYTES_MAX)
                }
            ),
        )

    def topic_id(self, topic_uuid: str) -> int | None:
        return self.topic_ids.get(topic_uuid)

    def partition(self, topic_id: int, partition: Partition) -> PartitionDraft:
        return self._partitions[topic_id, partition]

    def stage(self, stage: str) -> StageDraft | None:
        return self._stages.get(stage)

    def next_sequence(self, topic_id: int, producer_id: str) -> int:
        return self._producers[topic_id, producer_id]

    def result(
        self, topic_id: int, producer_id: str, sequence: int, committed_after: int
    ) -> tuple[CommittedRange, ...] | None:
        row = self._connection.execute(
            "SELECT committed FROM producer_results "
            "WHERE topic_id = %s AND producer_id = %s AND slot = %s AND sequence = %s::bigint "
            "AND committed_at > %s::bigint",
            (
                topic_id,
                producer_id,
                sequence % RESULTS_KEPT_MAX,
                sequence,
                committed_after,
            ),
        ).fetchone()
        return None if row is None else Series.from_json(sequence, row[0]).committed

    def _lock_stages(self, stages: set[str]) -> dict[str, StageDraft]:
        # A row that is not there yet cannot be locked: of two who begin a stage, one is first.
        self._connection.take_lock(Lock.STAGES, stages)
        return lock_stages(self._connection, sorted(stages))

    def _lock_rows(
        self, producers: list[tuple[int, str]], partitions: list[tuple[int, Partition]]
    ) -> None:
        """Lock producers and partitions, inserting those that are not there, in one exchange."""
        producer_columns = columns(producers, 2)
        partition_columns = columns(partitions, 2)
        new_producers = new_partitions = producer_rows = partition_rows = None
        if producers:
            new_producers = self._connection.execute(_INSERT_PRODUCERS, producer_columns)
        if partitions:
            new_partitions = self._connection.execute(_INSERT_PARTITIONS, partition_columns)
        if producers:
            producer_rows = self._connection.execute(_LOCK_PRODUCERS, producer_columns)
        if partitions:
            partition_rows = self._connection.execute(_LOCK_PARTITIONS, partition_columns)
        # Nothing is waited for before all was sent.
        if new_producers is not None and producer_rows is not None:
            self.new_producers = {
                (topic_id, producer_id) for topic_id, producer_id in new_producers
            }
            self._producers = {
                (topic_id, producer_id): next_sequence
                for topic_id, producer_id, next_sequence in producer_rows
            }
        if new_partitions is not None and partition_rows is not None:
            self.new_partitions = {partition_id for (partition_id,) in new_partitions}
            found = partition_rows.fetchall()
            self._partitions = {
                (topic_id, value): PartitionDraft(
                    topic_id=topic_id,
                    partition=value,
                    partition_id=partition_id,
                    next_offset=next_offset,
                    bytes=size,
                    last_timestamp=last_timestamp,
                    stored_next_offset=next_offset,
                    pages=pages,
                )
                for partition_id, topic_id, value, next_offset, size, last_timestamp, pages in found
            }


_INSERT_PRODUCERS = """
INSERT INTO producers (topic_id, producer_id)
SELECT topic_id, producer_id
FROM unnest(%s::bigint[], %s::text[]) AS wanted (topic_id, producer_id)
WHERE NOT EXISTS (
    SELECT FROM producers AS known
    WHERE known.topic_id = wanted.topic_id AND known.producer_id = wanted.producer_id
)
ORDER BY topic_id, producer_id COLLATE "C"
ON CONFLICT DO NOTHING RETURNING topic_id, producer_id
"""

_LOCK_PRODUCERS = """
SELECT topic_id, producer_id, next_sequence
FROM unnest(%s::bigint[], %s::text[]) AS wanted (topic_id, producer_id)
JOIN producers USING (topic_id, producer_id)
ORDER BY producers.topic_id, producers.producer_id
FOR UPDATE OF producers
"""

_INSERT_PARTITIONS = """
INSERT INTO partitions (topic_id, value)
SELECT topic_id, value FROM unnest(%s::bigint[], %s::text[]) AS wanted (topic_id, value)
WHERE NOT EXISTS (
    SELECT FROM partitions AS known
    WHERE known.topic_id = wanted.topic_id AND known.value = wanted.value
)
ORDER BY topic_id, value COLLATE "C"
ON CONFLICT DO NOTHING RETURNING id
"""

_LOCK_PARTITIONS = """
SELECT partitions.id, partitions.topic_id, partitions.value, partitions.next_offset,
    partitions.bytes, partitions.last_timestamp, partitions.pages
FROM unnest(%s::bigint[], %s::text[]) AS wanted (topic_id, value)
JOIN partitions ON partitions.topic_id = wanted.topic_id AND partitions.value = wanted.value
ORDER BY partitions.topic_id, partitions.value
FOR UPDATE OF partitions
"""


def _write_partitions(
    connection: Connection, changed: Sequence[PartitionDraft], new: set[int]
) -> None:
    """Write partitions back; those inserted for batches that were refused go again."""
    if changed:
        update_partitions(
            connection,
            [
                (
                    draft.partition_id,
                    draft.next_offset,
                    draft.bytes,
                    draft.last_timestamp,
                    draft.pages,
                )
                for draft in changed
            ],
        )
    unused = new - {draft.partition_id for draft in changed}
    if unused:
        connection.execute("DELETE FROM partitions WHERE id = ANY(%s::bigint[])", (list(unused),))


def _write_pages(connection: Connection, judge: Judge) -> None:
    """Count all accepted pages to their folios, and write the visible ones."""
    counts = Counter(page.stored.address.folio for page in judge.pages)
    for stage in judge.stages.values():
        counts.update(page.address.folio for page, _ in stage.added)
    count_to_folios(connection, counts)
    insert_pages(
        connection,
        [
            (
                page.partition.partition_id,
                page.got.end_offset,
                page.got.start_offset,
                page.got.timestamp,
                page.stored.address.folio,
                page.stored.address.position,
                page.stored.address.length,
                page.stored.first_row,
                page.stored.slice_bytes,
                int(page.stored.address.pushed_format),
                page.stored.schema_version,
            )
            for page in judge.pages
        ],
    )


def _write_producers(
    connection: Connection, judge: Judge, new: set[tuple[int, str]], now: int
) -> None:
    """Write the producers that used a sequence, and their results, the last over the oldest."""
    changed = {key: draft for key, draft in judge.producers.items() if draft.series}
    unused = list(new - changed.keys())
    if unused:
        connection.execute(
            "DELETE FROM producers USING unnest(%s::bigint[], %s::text[]) "
            "AS unused (topic_id, producer_id) WHERE producers.topic_id = unused.topic_id "
            "AND producers.producer_id = unused.producer_id",
            columns(unused, 2),
        )
    if not changed:
        return
    connection.execute(
        "UPDATE producers SET next_sequence = wanted.next_sequence "
        "FROM unnest(%s::bigint[], %s::text[], %s::bigint[]) "
        "AS wanted (topic_id, producer_id, next_sequence) "
        "WHERE producers.topic_id = wanted.topic_id AND producers.producer_id = wanted.producer_id",
        columns(
            [
                (topic_id, producer_id, draft.next_sequence)
                for (topic_id, producer_id), draft in changed.items()
            ],
            3,
        ),
    )
    # One statement cannot write a place twice, and a flush may go around the ring.
    results = {
        (topic_id, producer_id, sequence % RESULTS_KEPT_MAX): (sequence, committed)
        for (topic_id, producer_id), draft in changed.items()
        for series in draft.series[-RESULTS_KEPT_MAX:]
        for sequence, committed in series.batches()
    }
    connection.execute(
        "INSERT INTO producer_results "
        "(committed_at, topic_id, producer_id, slot, sequence, committed) "
        "SELECT %s::bigint, * FROM unnest(%s::bigint[], %s::text[], "
        "%s::int[], %s::bigint[], %s::text[]) "
        "ON CONFLICT (topic_id, producer_id, slot) DO UPDATE SET sequence = excluded.sequence, "
        "committed = excluded.committed, committed_at = excluded.committed_at",
        (
            now,
            *columns(
                [
                    (*place, sequence, ranges_to_json(committed))
                    for place, (sequence, committed) in results.items()
                ],
                5,
            ),
        ),
    )


def _find_topic_ids(connection: Connection, topic_uuids: list[str]) -> dict[str, int]:
    """Return the ids of those topics that are there, by UUID."""
    rows = connection.execute(
        "SELECT uuid, id FROM topics WHERE uuid = ANY(%s::text[]) AND deleted_at IS NULL",
        (topic_uuids,),
    ).fetchall()
    return dict(rows)


def _accepted_by(check: Callable[[str, str], None], name: str) -> bool:
    """Tell whether a name can be stored; the judge refuses its batch where it cannot."""
    try:
        check("the name", name)
    except InvalidArgument:
        return False
    return True
