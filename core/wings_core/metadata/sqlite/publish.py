"""The move of staged pages into the log in SQLite, some pages at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from wings_core.errors import TopicNotFound
from wings_core.metadata.judge import PartitionDraft
from wings_core.metadata.sqlite.commit import find_partition, write_partitions
from wings_core.metadata.sqlite.database import Connection
from wings_core.metadata.sqlite.pages import PageRow, insert_pages
from wings_core.metadata.sqlite.stages import find_stage
from wings_core.metadata.stages import StageDraft, check_pages, no_stage
from wings_core.metadata.store.database import Moved
from wings_core.model import CommittedRange, PageFormat, PublishedRange
from wings_core.names import NamespaceName, TopicName
from wings_core.partitions import Partition

PAGES_READ = 1_000
"""Pages that are moved at a time, so that memory does not grow with the publish."""

_PageRow = tuple[Partition, int, int | None, int, int, int, int | None, int | None, int, int]
"""Partition, rows, the producer's timestamp, folio's id, position, length; of a slice its first row
and bytes; format, version of the schema."""


def move_stages(connection: Connection, stages: Sequence[str], now: int) -> Moved:
    """Give offsets to all pages of stages, and delete the stages; see `Stages.publish`."""
    move = _Move(connection, now)
    for draft in _drafts(connection, stages):
        move.stage(draft)
    return Moved(move.ranges(), move.ends())


def _drafts(connection: Connection, stages: Sequence[str]) -> list[StageDraft]:
    """Return the stages.

    Raises:
        StageNotFound: One does not exist.
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


@dataclass(frozen=True, slots=True)
class _Topic:
    name: TopicName
    uuid: str


@dataclass(slots=True)
class _Move:
    """Moves the pages of stages into the log."""

    connection: Connection
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
        """Return the offsets of each partition: one range, as no other transaction wrote."""
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
                "SELECT partition, rows, timestamp, folio_id, position, length, first_row, "
                "slice_bytes, "
                "CASE WHEN EXISTS (SELECT 1 FROM inline_folios WHERE folio_id = "
                "staged_pages.folio_id) THEN ? ELSE ? END, schema_version FROM staged_pages "
                "WHERE stage_id = ? AND number >= ? AND number < ? ORDER BY number",
                (
                    int(PageFormat.INLINE),
                    int(PageFormat.PLAIN),
                    draft.stage_id,
                    first,
                    first + PAGES_READ,
                ),
            ).fetchall()

    def _append(self, topic_id: int, rows: Sequence[_PageRow]) -> None:
        """Give offsets to some pages; folios keep their counts."""
        changed: dict[Partition, PartitionDraft] = {}
        drafts: list[tuple[PartitionDraft, CommittedRange]] = []
        for partition, count, timestamp, _, _, length, _, slice_bytes, _, _ in rows:
            draft = changed[partition] = self._partition(topic_id, partition)
            size = length if slice_bytes is None else slice_bytes
            got = draft.append(count, size, self.now if timestamp is None else timestamp)
            draft.pages += 1
            drafts.append((draft, got))
        write_partitions(self.connection, changed.values())  # Which gives ids to new ones.
        pages: list[PageRow] = []
        for (draft, got), row in zip(drafts, rows, strict=True):
            offsets = (got.end_offset, got.start_offset)
            pages.append((draft.partition_id, *offsets, got.timestamp, *row[3:]))
        insert_pages(self.connection, pages)

    def _partition(self, topic_id: int, partition: Partition) -> PartitionDraft:
        key = (topic_id, partition)
        draft = self.partitions.get(key)
        if draft is None:
            draft = find_partition(self.connection, topic_id, partition)
            self.partitions[key] = draft
        return draft


def _find_topic(connection: Connection, draft: StageDraft) -> _Topic:
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
