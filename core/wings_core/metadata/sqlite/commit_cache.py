"""Cache of the rows that the last commits read and wrote; the next one need not read them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wings_core.metadata.judge import PageDraft, PartitionDraft, ProducerDraft
from wings_core.partitions import Partition

PARTITIONS_CACHED_MAX = 65_536
"""Partitions remembered; beyond it the cache starts anew."""

FOLIOS_CACHED_MAX = 64

PRODUCERS_CACHED_MAX = 65_536
"""Producers remembered; beyond it the cache starts anew."""

TAIL_PAGES_MAX = 64
"""Most pages kept as the log's tail; a larger commit leaves none."""


class CommitCache:
    """Ids of topics and folios, and where partitions and producers stand, as of the last commit.

    Right because one process at a time writes to a database, and every transaction of it that is
    not a commit makes the cache forget. Touched only while its thread holds the writer, but for
    `tail`.
    """

    def __init__(self) -> None:
        self.topic_ids: dict[str, int] = {}
        self.folio_ids: dict[str, int] = {}
        self.producers: dict[tuple[int, str], int] = {}
        """The sequence that each uses next, by topic id and producer id."""
        self.tail: tuple[Mapping[str, int], Sequence[PageDraft]] = ({}, ())
        """Pages that the last commit appended, and its topics' ids by UUID. Replaced and never
        changed, so any thread may look: it sees the log as it was after that commit."""
        self.sink: Callable[[Sequence[tuple[str, Sequence[Any]]]], None] | None = None
        """Is given what was noted of a transaction once that is durable; see `notes`."""
        self._noted: list[tuple[str, Sequence[Any]]] = []
        self._partitions: dict[tuple[int, Partition], PartitionDraft] = {}
        self._learnt: (
            tuple[
                Mapping[str, int],
                Mapping[str, int],
                Mapping[tuple[int, Partition], PartitionDraft],
                Mapping[tuple[int, str], ProducerDraft],
                Sequence[PageDraft],
            ]
            | None
        ) = None

    def has_partition(self, topic_id: int, partition: Partition) -> bool:
        """Tell whether it is known where a partition stands."""
        return (topic_id, partition) in self._partitions

    def partition(self, topic_id: int, partition: Partition) -> PartitionDraft | None:
        """Return a draft of a partition as it stands, which the caller may change."""
        known = self._partitions.get((topic_id, partition))
        return None if known is None else known.copy()

    def note(self, table: str, rows: Sequence[Any]) -> None:
        """Note rows that a transaction wrote, which must not change."""
        if self.sink is not None and rows:
            self._noted.append((table, rows))

    def learn(
        self,
        topic_ids: Mapping[str, int],
        folio_ids: Mapping[str, int],
        partitions: Mapping[tuple[int, Partition], PartitionDraft],
        producers: Mapping[tuple[int, str], ProducerDraft],
        pages: Sequence[PageDraft],
    ) -> None:
        """Say what a transaction read and wrote, to be kept by `confirm`."""
        self._learnt = (topic_ids, folio_ids, partitions, producers, pages)

    def confirm(self) -> None:
        """Keep what was learnt; call it once the transaction is durable."""
        if self._noted and self.sink is not None:
            self.sink(self._noted)
            self._noted = []
        if self._learnt is None:
            return
        topic_ids, folio_ids, partitions, producers, pages = self._learnt
        self._learnt = None
        self.tail = (topic_ids, pages if len(pages) <= TAIL_PAGES_MAX else ())
        self.topic_ids.update(topic_ids)
        self.folio_ids.update(folio_ids)
        self._partitions.update(partitions)
        for key, producer in producers.items():
            self.producers[key] = producer.next_sequence
        if (
            len(self._partitions) > PARTITIONS_CACHED_MAX
            or len(self.folio_ids) > FOLIOS_CACHED_MAX
            or len(self.producers) > PRODUCERS_CACHED_MAX
        ):
            self.forget()

    def hide_tail(self) -> None:
        """Have who looks for the log's tail ask the database; call it before each COMMIT.

        Between that and `confirm` the database shows more: who saw it there must not find less.
        """
        self.tail = ({}, ())

    def forget(self) -> None:
        """Start anew: after a transaction that failed, and before one that is not a commit."""
        self._noted = []
        self._learnt = None
        self.tail = ({}, ())
        self.topic_ids.clear()
        self.folio_ids.clear()
        self.producers.clear()
        self._partitions.clear()
