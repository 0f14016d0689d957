"""The publish of stages in SQLite: offsets for all of their pages, in one transaction."""

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from wings_core.errors import InvalidArgument, TopicNotFound
from wings_core.metadata.judge import PartitionDraft, check_publish
from wings_core.metadata.sqlite.commit import find_partition, write_partitions
from wings_core.metadata.sqlite.shards import write_progress
from wings_core.metadata.sqlite.stages import find_stage
from wings_core.metadata.stages import (
    PUBLISH_RESULTS_KEPT_MAX,
    PUBLISH_RESULTS_KEPT_US,
    StageDraft,
    check_batch,
    check_pages,
    no_stage,
)
from wings_core.model import Published, PublishedRange, ShardProgress
from wings_core.names import NamespaceName, TopicName
from wings_core.partitions import Partition

PAGES_READ = 1_000
"""Pages that are moved at a time, so that memory does not grow with the publish."""

_RANGES = TypeAdapter(list[tuple[str, Partition, int, int]])
"""The form in which results are stored: topic's name, partition, first and last offset."""

_PageRow = tuple[Partition, int, int | None, int, int, int]
"""Partition, rows, the producer's timestamp, folio's id, position, length."""


@dataclass(frozen=True, slots=True)
class PublishOutcome:
    """What a publish did, to be made known once it is durable."""

    published: Published
    ends: dict[tuple[str, Partition], int]
    """The next offset of each partition that was written to, by topic UUID and partition."""


def publish(
    connection: sqlite3.Connection,
    writer: str,
    batch: int,
    stages: Sequence[str],
    shards: Sequence[ShardProgress],
    now: int,
) -> PublishOutcome:
    """Publish within the transaction of `connection`; see `Stages.publish`."""
    check_publish(writer, batch, stages)
    first = find_result(connection, writer, batch, now)
    if first is not None:
        return PublishOutcome(Published(first, replayed=True), {})
    last_batch: int | None = connection.execute(
        "SELECT max(batch) FROM publishes WHERE writer = ?", (writer,)
    ).fetchone()[0]
    check_batch(writer, batch, last_batch)
    if len(set(stages)) < len(stages):
        raise InvalidArgument("a stage is named twice")
    write_progress(connection, shards, now)
    move = _Move(connection, now)
    for draft in _drafts(connection, stages):
        move.stage(draft)
    committed = move.ranges()
    _remember(connection, writer, batch, committed, now)
    return PublishOutcome(Published(committed), move.ends())


def find_result(
    connection: sqlite3.Connection, writer: str, batch: int, now: int
) -> tuple[PublishedRange, ...] | None:
    """Return what a batch got when it was published, None if it was not or is not remembered."""
    row: tuple[str] | None = connection.execute(
        "SELECT committed FROM publishes WHERE writer = ? AND batch = ? "
        "AND (succeeded_at IS NULL OR succeeded_at > ?)",
        (writer, batch, now - PUBLISH_RESULTS_KEPT_US),
    ).fetchone()
    if row is None:
        return None
    return tuple(
        PublishedRange(TopicName.parse(topic), partition, start_offset, end_offset)
        for topic, partition, start_offset, end_offset in _RANGES.validate_json(row[0])
    )


def was_published(connection: sqlite3.Connection, writer: str, batch: int) -> bool | None:
    """Tell whether a batch was published; None for one too old to be remembered."""
    remembered, last_batch = connection.execute(
        "SELECT count(*) FILTER (WHERE batch = ?), max(batch) FROM publishes WHERE writer = ?",
        (batch, writer),
    ).fetchone()
    if remembered:
        return True
    return None if last_batch is not None and batch < last_batch else False


def purge_results(connection: sqlite3.Connection, rows_max: int, now: int) -> int:
    """Delete up to so many results that are out of date; return how many."""
    return connection.execute(
        "DELETE FROM publishes WHERE (writer, batch) IN "
        "(SELECT writer, batch FROM publishes WHERE succeeded_at <= ? LIMIT ?)",
        (now - PUBLISH_RESULTS_KEPT_US, max(0, rows_max)),
    ).rowcount


def _drafts(connection: sqlite3.Connection, stages: Sequence[str]) -> list[StageDraft]:
    """Return the stages.

    Raises:
        StageNotFound: One is not there.
        BatchTooLarge: They have too many pages.
    """
    drafts: list[StageDraft] = []
    pages = 0
    for stage in stages:
        draft = find_stage(connection, stage)
        if draft is None:
            raise no_stage(stage)
        pages += draft.pages
        check_pages(pages, stage)
        drafts.append(draft)
    return drafts


def _remember(
    connection: sqlite3.Connection,
    writer: str,
    batch: int,
    committed: tuple[PublishedRange, ...],
    now: int,
) -> None:
    connection.execute(
        "UPDATE publishes SET succeeded_at = ? WHERE writer = ? AND succeeded_at IS NULL",
        (now, writer),
    )
    ranges = [
        (str(found.topic), found.partition, found.start_offset, found.end_offset)
        for found in committed
    ]
    connection.execute(
        "INSERT INTO publishes VALUES (?, ?, ?, NULL)",
        (writer, batch, _RANGES.dump_json(ranges).decode()),
    )
    connection.execute(
        "DELETE FROM publishes WHERE writer = ?1 AND batch <= "
        "(SELECT batch FROM publishes WHERE writer = ?1 ORDER BY batch DESC LIMIT 1 OFFSET ?2)",
        (writer, PUBLISH_RESULTS_KEPT_MAX),
    )


@dataclass(frozen=True, slots=True)
class _Topic:
    name: TopicName
    uuid: str


@dataclass(slots=True)
class _Move:
    """Moves the pages of stages into the log."""

    connection: sqlite3.Connection
    now: int
    topics: dict[int, _Topic] = field(default_factory=dict[int, _Topic])
    partitions: dict[tuple[int, Partition], PartitionDraft] = field(
        default_factory=dict[tuple[int, Partition], PartitionDraft]
    )
    """In the order of their first pages."""

    def stage(self, draft: StageDraft) -> None:
        """Move the pages of a stage, and delete it.

        Raises:
            TopicNotFound: Its topic was deleted.
        """
        if draft.topic_id not in self.topics:
            self.topics[draft.topic_id] = _find_topic(self.connection, draft)
        for rows in self._page_rows(draft):
            self._append(draft.topic_id, rows)
        for statement in (
            "DELETE FROM staged_pages WHERE stage_id = ?",
            "DELETE FROM stages WHERE id = ?",
        ):
            self.connection.execute(statement, (draft.stage_id,))

    def ranges(self) -> tuple[PublishedRange, ...]:
        """Return what each partition got: one range, as nobody else wrote meanwhile."""
        return tuple(
            PublishedRange(
                self.topics[draft.topic_id].name,
                draft.partition,
                draft.stored_next_offset,
                draft.next_offset - 1,
            )
            for draft in self.partitions.values()
        )

    def ends(self) -> dict[tuple[str, Partition], int]:
        """Return the next offset of each partition, by topic UUID and partition."""
        return {
            (self.topics[draft.topic_id].uuid, draft.partition): draft.next_offset
            for draft in self.partitions.values()
        }

    def _page_rows(self, draft: StageDraft) -> Iterator[list[_PageRow]]:
        for first in range(0, draft.pages, PAGES_READ):
            yield self.connection.execute(
                "SELECT partition, rows, timestamp, folio_id, position, length FROM staged_pages "
                "WHERE stage_id = ? AND number >= ? AND number < ? ORDER BY number",
                (draft.stage_id, first, first + PAGES_READ),
            ).fetchall()

    def _append(self, topic_id: int, rows: Sequence[_PageRow]) -> None:
        """Give offsets to some pages; folios keep their counts."""
        changed: dict[Partition, PartitionDraft] = {}
        pages: list[tuple[PartitionDraft, tuple[int, int, int, int, int, int]]] = []
        for partition, count, timestamp, folio_id, position, length in rows:
            draft = changed[partition] = self._partition(topic_id, partition)
            got = draft.append(count, length, self.now if timestamp is None else timestamp)
            place = (got.end_offset, got.start_offset, got.timestamp, folio_id, position, length)
            pages.append((draft, place))
        write_partitions(self.connection, changed.values())
        self.connection.executemany(
            "INSERT INTO pages (partition_id, end_offset, start_offset, timestamp, folio_id, "
            "position, length) VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(draft.partition_id, *place) for draft, place in pages],
        )

    def _partition(self, topic_id: int, partition: Partition) -> PartitionDraft:
        key = (topic_id, partition)
        draft = self.partitions.get(key)
        if draft is None:
            draft = find_partition(self.connection, topic_id, partition)
            self.partitions[key] = draft
        return draft


def _find_topic(connection: sqlite3.Connection, draft: StageDraft) -> _Topic:
    # A deleted topic has no namespace, so it falls out of the join.
    row: tuple[str, str, str, str] | None = connection.execute(
        "SELECT namespaces.tenant, namespaces.name, topics.name, topics.uuid "
        "FROM topics JOIN namespaces ON namespaces.id = topics.namespace_id WHERE topics.id = ?",
        (draft.topic_id,),
    ).fetchone()
    if row is None:
        raise TopicNotFound(f"the topic of stage {draft.stage!r} was deleted", stage=draft.stage)
    tenant, namespace, name, topic_uuid = row
    return _Topic(TopicName(NamespaceName(tenant, namespace), name), topic_uuid)
