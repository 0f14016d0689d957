"""Stages in a database, and their publish: each method is one transaction.

A publish is fenced by writer and batch, and answered again with its first result. Staged pages get
offsets by the rule of a commit, `PartitionDraft.append`, some at a time.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from wings_core.errors import InvalidArgument, TopicNotFound
from wings_core.metadata.checks import check_id, check_publish, check_text
from wings_core.metadata.interfaces import Stages
from wings_core.metadata.judge import PartitionDraft
from wings_core.metadata.stages import (
    ABORTED_MAX,
    PUBLISH_RESULTS_KEPT_MAX,
    PUBLISH_RESULTS_KEPT_US,
    StageDraft,
    after_prefix,
    check_batch,
    check_epoch,
    check_pages,
    check_progress,
    moved,
    no_stage,
)
from wings_core.metadata.store.consumers import check_offsets, commit_offsets
from wings_core.metadata.store.database import (
    Connection,
    Database,
    DatabasePart,
    Lock,
    RunAgain,
    of_ends,
)
from wings_core.metadata.store.pages import PageRow, find_partitions, insert_pages, write_partitions
from wings_core.metadata.store.shards import lock_shards, write_shards
from wings_core.model import (
    AbortResult,
    AssignedRange,
    ConsumerCommit,
    PageAddress,
    PublishedTopicRange,
    PublishResult,
    ShardProgress,
    StoredPage,
    UnpublishedStage,
)
from wings_core.names import NamespaceName, TopicName
from wings_core.partitions import Partition

PAGES_READ = 1_000
"""Pages that are moved at a time, so that memory does not grow with the publish."""

_RANGES: TypeAdapter[list[tuple[str, Partition, int, int]]] = TypeAdapter(
    list[tuple[str, Partition, int, int]], config=ConfigDict(defer_build=True)
)
"""The form in which results are stored: topic's name, partition, first and last offset."""

_STAGED = """
SELECT staged_pages.partition, staged_pages.rows, staged_pages.timestamp, staged_pages.folio_id,
    staged_pages.position, staged_pages.length,
    CASE WHEN inline_folios.folio_id IS NULL THEN 1 ELSE 3 END,
    staged_pages.first_row, staged_pages.slice_bytes, staged_pages.schema_version
FROM staged_pages LEFT JOIN inline_folios ON inline_folios.folio_id = staged_pages.folio_id
WHERE staged_pages.stage_id = %s AND staged_pages.number >= %s::bigint
AND staged_pages.number < %s::bigint ORDER BY staged_pages.number
"""
"""Formats are those of `PageAddress.pushed_format`."""


@dataclass(frozen=True, slots=True)
class PublishOutcome:
    """Outcome of a publish."""

    published: PublishResult
    ends: dict[tuple[str, Partition], int]
    """The next offset of each partition that was written to, by topic UUID and partition."""


def publish(
    database: Database,
    connection: Connection,
    writer: str,
    batch: int,
    stages: Sequence[str],
    shards: Sequence[ShardProgress],
    epoch: int | None,
    offsets: ConsumerCommit | None,
) -> PublishOutcome:
    """Publish within the transaction of `connection`; see `Stages.publish`."""
    now = database.now()
    connection.take_lock(Lock.WRITERS, (writer,))
    first = _find_result(connection, writer, batch, now)
    if first is not None:
        return PublishOutcome(PublishResult(first, replayed=True), {})
    row = connection.execute(
        "SELECT (SELECT epoch FROM writers WHERE writer = %(writer)s), "
        "(SELECT max(batch) FROM publishes WHERE writer = %(writer)s)",
        {"writer": writer},
    ).fetchone()
    assert row is not None
    begun, last_batch = row
    check_epoch(writer, epoch, begun)
    check_batch(writer, batch, last_batch)
    if len(set(stages)) < len(stages):
        raise InvalidArgument("a stage is named twice")
    if shards:
        stored = lock_shards(connection, shards)
        at = database.lease_now(connection)
        after = [moved(stored.get((each.source, each.shard)), each, at) for each in shards]
        write_shards(connection, after)
    consumed = () if offsets is None else tuple(topic.uuid for topic, _, _ in offsets.offsets)
    outcome = move_stages(connection, stages, consumed, now)
    if offsets is not None:
        commit_offsets(connection, offsets, now)
    _remember(connection, writer, batch, outcome.published.committed, now)
    return outcome


def move_stages(
    connection: Connection, stages: Sequence[str], topics: Iterable[str], now: int
) -> PublishOutcome:
    """Give offsets to all pages of stages and delete the stages, within a transaction.

    Args:
        connection: In a transaction.
        stages: The stages, in order.
        topics: UUIDs of topics to lock beside those of the stages.
        now: Microseconds since the epoch.

    Raises:
        StageNotFound, TopicNotFound, BatchTooLarge: As of `Stages.publish`.
    """
    move = _Move(connection, now)
    move.stages(stages, topics)
    return PublishOutcome(PublishResult(move.ranges()), move.ends())


def was_published(connection: Connection, writer: str, batch: int) -> bool | None:
    """Tell whether a batch was published; None for one too old to be remembered.

    Waits for a publish of the writer that is under way.
    """
    connection.take_lock(Lock.WRITERS, (writer,))
    row = connection.execute(
        "SELECT count(*) FILTER (WHERE batch = %s::bigint), max(batch) FROM publishes "
        "WHERE writer = %s",
        (batch, writer),
    ).fetchone()
    assert row is not None
    remembered, last_batch = row
    if remembered:
        return True
    return None if last_batch is not None and batch < last_batch else False


def lock_stages(connection: Connection, stages: Sequence[str]) -> dict[str, StageDraft]:
    """Return the stages that are there, by id, and keep other transactions from them."""
    rows = connection.execute_rows(
        "SELECT stages.name, stages.topic_id, stages.id, stages.writing, stages.rows, "
        "stages.bytes, stages.pages FROM {given} JOIN stages ON stages.name = given.name "
        "ORDER BY stages.name FOR UPDATE OF stages",
        {"name text": list(stages)},
    ).fetchall()
    return {row[0]: StageDraft(*row) for row in rows}


def _begin(connection: Connection, writer: str, now: int) -> int:
    """Begin the next epoch of a writer; waits for a publish of its that is under way."""
    connection.take_lock(Lock.WRITERS, (writer,))
    row = connection.execute(
        "INSERT INTO writers (writer, epoch, begun_at) VALUES (%s, 1, %s::bigint) "
        "ON CONFLICT (writer) DO UPDATE SET epoch = writers.epoch + 1, "
        "begun_at = excluded.begun_at RETURNING epoch",
        (writer, now),
    ).fetchone()
    assert row is not None
    return row[0]


@dataclass(frozen=True, slots=True)
class _Topic:
    name: TopicName
    uuid: str


class _Move:
    """Gives offsets to the pages of stages, and deletes the stages; in one transaction."""

    def __init__(self, connection: Connection, now: int) -> None:
        self._connection = connection
        self._now = now
        self._topics: dict[int, _Topic] = {}
        self._first: dict[tuple[int, Partition], int] = {}
        """The first offset of each partition, in the order of their first pages."""
        self._bytes: Counter[tuple[int, Partition]] = Counter()
        """Stored bytes that each partition gets."""
        self._drafts: dict[tuple[int, Partition], PartitionDraft] = {}

    def stages(self, names: Sequence[str], topics: Iterable[str] = ()) -> None:
        """Move all pages of stages.

        Args:
            names: The stages, in order.
            topics: UUIDs of topics to lock beside those of the stages.

        Raises:
            StageNotFound: One does not exist.
            TopicNotFound: The topic of one was deleted.
            BatchTooLarge: They have too many pages.
        """
        stages = self._lock_all(names, topics)
        connection = self._connection
        ids = {"id bigint": [stage.stage_id for stage in stages]}
        connection.expect_rows(sum(stage.pages for stage in stages))
        keys = connection.execute_rows(
            "SELECT DISTINCT stages.topic_id, staged_pages.partition FROM {given} "
            "JOIN stages ON stages.id = given.id "
            "JOIN staged_pages ON staged_pages.stage_id = given.id ORDER BY 1, 2",
            ids,
        ).fetchall()
        self._drafts = find_partitions(connection, [(topic, value) for topic, value in keys])
        for stage in stages:
            for number in range(0, stage.pages, PAGES_READ):
                numbers = (stage.stage_id, number, number + PAGES_READ)
                self._append(stage.topic_id, connection.execute(_STAGED, numbers).fetchall())
        connection.execute_rows(
            "DELETE FROM staged_pages WHERE stage_id IN (SELECT id FROM {given})", ids
        )
        connection.execute_rows("DELETE FROM stages WHERE id IN (SELECT id FROM {given})", ids)

    def ranges(self) -> tuple[PublishedTopicRange, ...]:
        """Return the offsets of each partition: one range, as no other transaction wrote."""
        return tuple(
            PublishedTopicRange(
                self._topics[topic_id].name,
                partition,
                first,
                self._drafts[topic_id, partition].next_offset - 1,
                self._bytes[topic_id, partition],
            )
            for (topic_id, partition), first in self._first.items()
        )

    def ends(self) -> dict[tuple[str, Partition], int]:
        """Return the next offset of each partition, by topic UUID and partition."""
        return {
            (self._topics[topic_id].uuid, partition): draft.next_offset
            for (topic_id, partition), draft in self._drafts.items()
        }

    def _lock_all(self, names: Sequence[str], topics: Iterable[str]) -> list[StageDraft]:
        """Lock the stages, and their topics before them."""
        connection = self._connection
        rows = connection.execute_rows(
            "SELECT DISTINCT topics.uuid FROM {given} JOIN stages ON stages.name = given.name "
            "JOIN topics ON topics.id = stages.topic_id",
            {"name text": list(names)},
        ).fetchall()
        locked = {str(topic_uuid) for (topic_uuid,) in rows}.union(topics)
        connection.share_lock(Lock.TOPICS, locked)
        found = lock_stages(connection, names)
        stages: list[StageDraft] = []
        pages = 0
        for name in names:
            stage = found.get(name)
            if stage is None:
                raise no_stage(name)
            pages += stage.pages
            check_pages(pages, name)
            stages.append(stage)
        self._find_topics({stage.topic_id for stage in stages})
        for stage in stages:
            if stage.topic_id not in self._topics:
                raise TopicNotFound(
                    f"the topic of stage {stage.stage!r} was deleted", stage=stage.stage
                )
        if not {topic.uuid for topic in self._topics.values()} <= locked:
            raise RunAgain("a stage was begun again, for another topic")
        return stages

    def _find_topics(self, topic_ids: set[int]) -> None:
        # A deleted topic has no namespace, so it falls out of the join.
        rows = self._connection.execute_rows(
            "SELECT topics.id, namespaces.tenant, namespaces.name, topics.name, topics.uuid "
            "FROM {given} JOIN topics ON topics.id = given.id "
            "JOIN namespaces ON namespaces.id = topics.namespace_id",
            {"id bigint": list(topic_ids)},
        ).fetchall()
        self._topics = {
            topic_id: _Topic(TopicName(NamespaceName(tenant, namespace), name), topic_uuid)
            for topic_id, tenant, namespace, name, topic_uuid in rows
        }

    def _append(self, topic_id: int, rows: Sequence[Sequence[Any]]) -> None:
        """Give offsets to some pages; folios keep their counts."""
        changed: dict[Partition, PartitionDraft] = {}
        pages: list[tuple[PartitionDraft, AssignedRange, Sequence[Any]]] = []
        for row in rows:
            partition, count, timestamp, _, _, length, _, _, slice_bytes, _ = row
            key = (topic_id, partition)
            draft = changed[partition] = self._drafts[key]
            self._first.setdefault(key, draft.next_offset)
            size = length if slice_bytes is None else slice_bytes
            self._bytes[key] += size
            got = draft.append(count, size, self._now if timestamp is None else timestamp)
            draft.pages += 1
            pages.append((draft, got, row))
        write_partitions(self._connection, changed.values())  # Which gives ids to new ones.
        for draft in changed.values():
            draft.bytes = draft.pages = 0  # They were added.
        found: list[PageRow] = []
        for draft, got, row in pages:
            assert draft.partition_id is not None
            _, _, _, folio_id, position, length, *rest = row
            format_, first_row, slice_bytes, version = rest
            offsets = (draft.partition_id, got.end_offset, got.start_offset, got.timestamp)
            place = (folio_id, position, length)
            found.append((*offsets, *place, None, format_, first_row, slice_bytes, version))
        insert_pages(self._connection, found)


def _find_result(
    connection: Connection, writer: str, batch: int, now: int
) -> tuple[PublishedTopicRange, ...] | None:
    """Return what a batch got when it was published, None if it was not or is not remembered."""
    row = connection.execute(
        "SELECT committed FROM publishes WHERE writer = %s AND batch = %s::bigint "
        "AND (succeeded_at IS NULL OR succeeded_at > %s::bigint)",
        (writer, batch, now - PUBLISH_RESULTS_KEPT_US),
    ).fetchone()
    if row is None:
        return None
    return tuple(
        PublishedTopicRange(TopicName.parse(topic), partition, start_offset, end_offset)
        for topic, partition, start_offset, end_offset in _RANGES.validate_json(row[0])
    )


def _remember(
    connection: Connection,
    writer: str,
    batch: int,
    committed: tuple[PublishedTopicRange, ...],
    now: int,
) -> None:
    connection.execute(
        "UPDATE publishes SET succeeded_at = %s WHERE writer = %s AND succeeded_at IS NULL",
        (now, writer),
    )
    ranges = [
        (str(found.topic), found.partition, found.start_offset, found.end_offset)
        for found in committed
    ]
    connection.execute(
        "INSERT INTO publishes (writer, batch, committed, published_at) VALUES (%s, %s, %s, %s)",
        (writer, batch, _RANGES.dump_json(ranges).decode(), now),
    )
    connection.execute(
        "DELETE FROM publishes WHERE writer = %s AND batch <= "
        "(SELECT batch FROM publishes WHERE writer = %s ORDER BY batch DESC LIMIT 1 OFFSET %s)",
        (writer, writer, PUBLISH_RESULTS_KEPT_MAX),
    )


class DatabaseStages(DatabasePart, Stages):
    """See `Stages`."""

    def publish(
        self,
        writer: str,
        batch: int,
        stages: Sequence[str],
        shards: Sequence[ShardProgress] = (),
        *,
        epoch: int | None = None,
        offsets: ConsumerCommit | None = None,
    ) -> PublishResult:
        """Make stages visible; see `Stages.publish`."""
        check_publish(writer, batch, stages)
        check_progress(shards)
        if offsets is not None:
            check_offsets(offsets, self._database.partition_bytes_max)
        return self._database.write(
            lambda connection: publish(
                self._database, connection, writer, batch, stages, shards, epoch, offsets
            ),
            lambda outcome: of_ends(outcome.ends),
        ).published

    def begin(self, writer: str) -> int:
        """Begin the next epoch of a writer; see `Stages.begin`."""
        check_id("writer", writer)
        now = self._database.now
        return self._database.write(lambda connection: _begin(connection, writer, now()))

    def abort(
        self,
        writer: str,
        stages: Sequence[str],
        batch: int | None = None,
        prefix: str | None = None,
    ) -> AbortResult:
        """Delete stages; see `Stages.abort`."""
        check_publish(
            writer, 0 if batch is None else batch, (*stages, *(() if prefix is None else (prefix,)))
        )

        def work(connection: Connection) -> AbortResult:
            published = None
            if batch is not None:
                published = was_published(connection, writer, batch)
            begun = [] if prefix is None else stages_of_prefix(connection, prefix)
            return AbortResult(delete_stages(connection, [*stages, *begun]), published)

        return self._database.write(work)

    def sweep(self, seconds: float, stages_max: int) -> int:
        """Delete stages whose last batch is old; see `Stages.sweep`."""
        age_us = round(seconds * 1_000_000)

        def work(connection: Connection) -> int:
            # A stage that another transaction works on right now is not old; one of an open
            # transaction ends with that.
            swept = connection.execute(
                "WITH old AS MATERIALIZED (SELECT id FROM stages "
                "WHERE name IS NOT NULL AND changed_at <= %s::bigint AND NOT EXISTS ("
                "SELECT 1 FROM transactions WHERE transactions.name = stages.writing "
                "AND deadline IS NOT NULL) "
                "ORDER BY changed_at LIMIT %s::bigint FOR UPDATE SKIP LOCKED) "
                "UPDATE stages SET name = NULL WHERE id IN (SELECT id FROM old) RETURNING id",
                (self._database.lease_now(connection) - age_us, stages_max),
            ).fetchall()
            return len(swept)

        return self._database.write(work)

    def of_topic(
        self, topic_uuid: str, *, after: str | None = None, items_max: int | None = None
    ) -> list[UnpublishedStage]:
        """Return a topic's stages; see `Stages.of_topic`."""
        check_text("after", after or "")
        # A name is never empty.
        rows = self._database.read(
            lambda connection: connection.execute(
                "SELECT stages.name, topics.uuid, stages.rows, stages.bytes, stages.pages, "
                "stages.changed_at FROM stages JOIN topics ON topics.id = stages.topic_id "
                "WHERE topics.uuid = %s AND topics.deleted_at IS NULL "
                "AND stages.name IS NOT NULL AND stages.name > %s::text "
                "ORDER BY stages.name LIMIT %s::bigint",
                (topic_uuid, after or "", items_max),
            ).fetchall()
        )
        return [
            UnpublishedStage(name, uuid, count, size, pages, changed_at)
            for name, uuid, count, size, pages, changed_at in rows
        ]

    def topics(self, stages: Sequence[str], prefix: str | None = None) -> set[TopicName]:
        """Return the topics of stages; see `Stages.topics`."""
        for stage in (*stages, prefix or ""):
            check_text("the stage", stage)

        def work(connection: Connection) -> set[TopicName]:
            names = [*stages, *([] if prefix is None else stages_of_prefix(connection, prefix))]
            rows = connection.execute_rows(
                "SELECT DISTINCT namespaces.tenant, namespaces.name, topics.name FROM {given} "
                "JOIN stages ON stages.name = given.name "
                "JOIN topics ON topics.id = stages.topic_id "
                "JOIN namespaces ON namespaces.id = topics.namespace_id",
                {"name text": names},
            ).fetchall()
            return {
                TopicName(NamespaceName(tenant, namespace), topic)
                for tenant, namespace, topic in rows
            }

        return self._database.read(work)

    def pages(self, stage: str, first: int, pages_max: int) -> list[StoredPage]:
        """Return some of the pages of a stage; see `Stages.pages`."""
        check_text("the stage", stage)
        rows = self._database.read(
            lambda connection: connection.execute(
                "SELECT staged_pages.partition, staged_pages.rows, folios.name, "
                "staged_pages.position, staged_pages.length, staged_pages.first_row, "
                "staged_pages.slice_bytes, staged_pages.schema_version FROM stages "
                "JOIN staged_pages ON staged_pages.stage_id = stages.id "
                "LEFT JOIN folios ON folios.id = staged_pages.folio_id "
                "WHERE stages.name = %s AND staged_pages.number >= %s::bigint "
                "ORDER BY staged_pages.number LIMIT %s::bigint",
                (stage, first, pages_max),
            ).fetchall()
        )
        return [
            StoredPage(partition, count, PageAddress(folio, position, length), *rest)
            for partition, count, folio, position, length, *rest in rows
        ]


def delete_stages(connection: Connection, stages: Sequence[str]) -> tuple[str, ...]:
    """Take the names off stages, which makes their pages ready to be purged.

    Returns:
        Stages that were there, in the order given.
    """
    found = lock_stages(connection, stages)
    connection.execute_rows(
        "UPDATE stages SET name = NULL WHERE id IN (SELECT id FROM {given})",
        {"id bigint": [stage.stage_id for stage in found.values()]},
    )
    return tuple(stage for stage in dict.fromkeys(stages) if stage in found)


def stages_of_prefix(
    connection: Connection, prefix: str, stages_max: int = ABORTED_MAX
) -> list[str]:
    """Return the first stages whose ids begin with a prefix, by id."""
    rows = connection.execute(
        "SELECT name FROM stages WHERE name >= %s AND name < %s ORDER BY name LIMIT %s",
        (prefix, after_prefix(prefix), stages_max),
    ).fetchall()
    return [name for (name,) in rows]
