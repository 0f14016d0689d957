"""A flush committed by one call of a function that the database keeps; see `commit_function`.

A flush is judged here, before anything is read, on the presumption that its conditions hold: its
topics are there, each producer's first sequence is its next, each partition ends at the first
offset expected of it. All else depends on where partitions end by a sum alone, so offsets are sent
relative to that. The function locks, compares, and writes with the offsets that it finds. Where a
presumption does not hold it changes nothing, and the flush is judged on what is stored, in
`commit_batches`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from wings_core.errors import InvalidArgument
from wings_core.metadata.judge import (
    TIMESTAMP_AHEAD_US_MAX,
    Judge,
    PartitionDraft,
    check_id,
)
from wings_core.metadata.postgres.commit import PARTITION_BYTES_MAX
from wings_core.metadata.results import RESULTS_KEPT_MAX
from wings_core.metadata.stages import StageDraft
from wings_core.metadata.store.database import Committed
from wings_core.metadata.store.locks import Lock, bucket, buckets
from wings_core.model import (
    Accepted,
    CommitBatch,
    CommitResult,
    CommittedRange,
    InlineFolio,
    PageFormat,
    StoredPage,
)
from wings_core.model import Sequence as ProducerSequence
from wings_core.partitions import Partition, is_longer

_Key = tuple[int, Partition]
"""The place of a topic (1-based), and a partition of it."""

_TOPICS = Lock.TOPICS.value

_PLAIN, _INLINE = PageFormat.PLAIN.value, PageFormat.INLINE.value

_ANY = -1
"""Stands for the offset expected of a partition where none is."""

_PRESUMED_MAX = 1 << 62
"""What a producer says may be any number; beyond this one it holds of nothing that is stored."""


@dataclass(frozen=True, slots=True)
class CommitCall:
    """A flush that was judged, and can be sent any number of times until it took effect."""

    accepted: Sequence[Accepted]
    """What its batches get, where all partitions end as was presumed."""
    presumed: "_Presumed"
    drafts: Sequence[PartitionDraft]
    """Its partitions; the id of each is its place, 1-based."""
    function: str
    arguments: Sequence[str | int | bytes | None]
    """Of the function, after the transaction and the node."""

    def committed(self, result: str) -> Committed:
        """Return what a call did, from its result: where partitions ended, and when."""
        starts, timestamps = result.split(";")
        moved = {
            (draft.topic_id, draft.partition): (
                int(start) - draft.stored_next_offset,
                int(timestamp) if timestamp else None,
            )
            for draft, start, timestamp in zip(
                self.drafts, starts.split(","), timestamps.split(","), strict=True
            )
        }
        places = self.presumed.places
        results: list[CommitResult] = []
        for uuid, accepted in zip(self.presumed.uuids, self.accepted, strict=True):
            topic = places[uuid]
            ranges: list[CommittedRange] = []
            for each in accepted.committed:
                by, last = moved[topic, each.partition]
                ranges.append(
                    CommittedRange(
                        each.partition,
                        each.start_offset + by,
                        each.end_offset + by,
                        each.timestamp if last is None else max(each.timestamp, last),
                    )
                )
            results.append(Accepted(tuple(ranges)))
        topics = self.presumed.topics
        ends = {
            (topics[topic - 1], partition): draft.next_offset + moved[topic, partition][0]
            for draft in self.drafts
            for topic, partition in ((draft.topic_id, draft.partition),)
        }
        return Committed(results, ends)


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class PageCall:
    """As `CommitCall`, of one batch of one page."""

    function: ClassVar = "commit_page"

    topic_uuid: str
    page: StoredPage
    timestamp: int
    arguments: Sequence[str | int | bytes | None]

    def committed(self, result: str) -> Committed:
        """See `CommitCall.committed`."""
        start, _, last = result.partition(";")
        end = int(start) + self.page.rows
        timestamp = max(self.timestamp, int(last)) if last else self.timestamp
        got = CommittedRange(self.page.partition, int(start), end - 1, timestamp)
        return Committed([Accepted((got,))], {(self.topic_uuid, got.partition): end})


def judged_call(
    batches: Sequence[CommitBatch], now: int, inline: InlineFolio | None
) -> "CommitCall | PageCall | None":
    """Judge a flush on presumptions.

    Args:
        batches: Of the flush.
        now: The time of the commit, in microseconds since the epoch.
        inline: The bytes of its folio, where metadata keeps them.

    Returns:
        None where it takes a look at what is stored: a batch is to be staged, rejected or may be a
        repeat, expects what earlier ones of the flush decide, or there is not just one folio.
    """
    if len(batches) == 1:
        (batch,) = batches
        if len(batch.pages) == 1 and batch.stage is None and not batch.series:
            return _page_call(batch, now, inline)
    if any(batch.stage is not None for batch in batches):
        return None
    presumed = _Presumed(batches)
    judge = Judge(presumed, now, PARTITION_BYTES_MAX)
    accepted: list[Accepted] = []
    for batch in batches:
        result = judge.judge(batch)
        if not isinstance(result, Accepted) or result.replayed or not result.committed:
            return None
        accepted.append(result)
    folios = {page.stored.address.folio for page in judge.pages}
    drafts = list(judge.partitions.values())
    if (
        not presumed.hold
        or len(folios) != 1
        or (inline is not None and inline.name not in folios)
        or not all(draft.changed for draft in drafts)
    ):
        return None
    for place, draft in enumerate(drafts, 1):
        draft.partition_id = place
    if len(judge.pages) == 1 and not (judge.producers or presumed.expected):
        # Of several batches, which share it.
        page = judge.pages[0]
        (topic,) = presumed.topics
        arguments = _commit_page(now, topic, page.stored, page.got.timestamp, inline)
        return CommitCall(accepted, presumed, drafts, "commit_page", arguments)
    arguments = (
        now,
        _texts(presumed.topics),
        _TOPICS,
        _numbers(buckets(presumed.topics)),
        *_partition_arguments(drafts, presumed),
        *folios,
        int(judge.pages[0].stored.address.pushed_format),
        None if inline is None else inline.data,
        *_page_arguments(judge),
        *_producer_arguments(judge, presumed),
    )
    return CommitCall(accepted, presumed, drafts, "commit_flush", arguments)


def _page_call(batch: CommitBatch, now: int, inline: InlineFolio | None) -> PageCall | None:
    """Judge a flush of one batch of one page, as most are, by the rules of `Judge`.

    Returns:
        None where it may have to be rejected, or expects something of another partition.
    """
    (page,) = batch.pages
    sequence, expected = batch.sequence, batch.expected
    timestamp = now if batch.timestamp is None else batch.timestamp
    if (
        is_longer(page.partition, PARTITION_BYTES_MAX)
        or timestamp > now + TIMESTAMP_AHEAD_US_MAX
        or (inline is not None and inline.name != page.address.folio)
    ):
        return None
    if sequence is not None:
        if not 0 <= sequence.sequence < _PRESUMED_MAX:
            return None
        try:
            check_id("producer_id", sequence.producer_id)
        except InvalidArgument:
            return None
    end = _ANY
    if expected is not None:
        end = expected.offset
        if expected.partition != page.partition or not 0 <= end < _PRESUMED_MAX:
            return None
    arguments = _commit_page(now, batch.topic_uuid, page, timestamp, inline, end, sequence)
    return PageCall(batch.topic_uuid, page, timestamp, arguments)


def _commit_page(
    now: int,
    topic: str,
    page: StoredPage,
    timestamp: int,
    inline: InlineFolio | None,
    expected: int = _ANY,
    sequence: ProducerSequence | None = None,
) -> Sequence[str | int | bytes | None]:
    """Return the arguments of `commit_page` that follow the node."""
    producer = number = slot = None
    if sequence is not None:
        producer, number = sequence.producer_id, sequence.sequence
        slot = number % RESULTS_KEPT_MAX
    address = page.address
    return (
        now,
        topic,
        _TOPICS,
        bucket(topic),
        page.partition,
        page.rows,
        address.length if page.slice_bytes is None else page.slice_bytes,
        timestamp,
        expected,
        address.folio,
        _PLAIN if inline is None else _INLINE,
        None if inline is None else inline.data,
        address.position,
        address.length,
        page.first_row,
        page.slice_bytes,
        page.schema_version,
        producer,
        number,
        slot,
    )


class _Presumed:
    """What is presumed to be stored, for the judge; see `judge.StoredState`.

    Attributes:
        uuids: The topic of each batch.
        topics: Each topic once.
        places: The places of topics among these, 1-based, by UUID.
        expected: Where partitions end: the first offset that is expected of each.
        hold: Whether it may be so, and none of it depends on earlier batches of the flush.
    """

    def __init__(self, batches: Sequence[CommitBatch]) -> None:
        self.uuids = [batch.topic_uuid for batch in batches]
        self.topics = sorted(set(self.uuids))
        self.places = {uuid: place for place, uuid in enumerate(self.topics, 1)}
        self.expected: dict[_Key, int] = {}
        self.hold = True
        self._sequences: dict[tuple[int, str], int] = {}
        for batch in batches:
            if batch.sequence is not None:
                self.hold &= 0 <= batch.sequence.sequence < _PRESUMED_MAX
                producer = self.places[batch.topic_uuid], batch.sequence.producer_id
                self._sequences.setdefault(producer, batch.sequence.sequence)
        if any(batch.expected is not None for batch in batches):
            self._expect(batches)

    def topic_id(self, topic_uuid: str) -> int | None:
        return self.places[topic_uuid]

    def partition(self, topic_id: int, partition: Partition) -> PartitionDraft:
        end = self.expected.get((topic_id, partition), 0)
        return PartitionDraft(topic_id, partition, next_offset=end, stored_next_offset=end)

    def stage(self, stage: str) -> StageDraft | None:
        raise AssertionError(f"a batch of stage {stage} takes a look at what is stored")

    def next_sequence(self, topic_id: int, producer_id: str) -> int:
        return self._sequences[topic_id, producer_id]

    def result(
        self, topic_id: int, producer_id: str, sequence: int, committed_after: int
    ) -> tuple[CommittedRange, ...] | None:
        del topic_id, producer_id, sequence, committed_after
        return None

    def _expect(self, batches: Sequence[CommitBatch]) -> None:
        written = set[_Key]()
        for batch in batches:
            topic = self.places[batch.topic_uuid]
            if batch.expected is not None:
                self.hold &= 0 <= batch.expected.offset < _PRESUMED_MAX
                key = topic, batch.expected.partition
                if key not in written:
                    self.expected.setdefault(key, batch.expected.offset)
                elif key not in self.expected:
                    self.hold = False
            written.update((topic, page.partition) for page in batch.pages)


def _partition_arguments(
    drafts: Sequence[PartitionDraft], presumed: _Presumed
) -> tuple[str | None, ...]:
    expected = presumed.expected
    return (
        _numbers([draft.topic_id for draft in drafts]),
        _texts([draft.partition for draft in drafts]),
        _numbers([draft.next_offset - draft.stored_next_offset for draft in drafts]),
        _numbers([draft.bytes for draft in drafts]),
        _numbers([draft.pages for draft in drafts]),
        _numbers([draft.last_timestamp for draft in drafts]),
        _numbers([expected.get((draft.topic_id, draft.partition), _ANY) for draft in drafts])
        if expected
        else None,
    )


def _page_arguments(judge: Judge) -> tuple[str, ...]:
    pages = judge.pages
    ends = [page.partition.stored_next_offset for page in pages]
    return (
        _numbers([page.partition.partition_id for page in pages]),
        _numbers([page.got.start_offset - end for page, end in zip(pages, ends, strict=True)]),
        _numbers([page.got.end_offset - end for page, end in zip(pages, ends, strict=True)]),
        _numbers([page.got.timestamp for page in pages]),
        _numbers([page.stored.address.position for page in pages]),
        _numbers([page.stored.address.length for page in pages]),
        _numbers([page.stored.first_row for page in pages]),
        _numbers([page.stored.slice_bytes for page in pages]),
        _numbers([page.stored.schema_version for page in pages]),
    )


def _producer_arguments(judge: Judge, presumed: _Presumed) -> tuple[str | None, ...]:
    producers = judge.producers
    if not producers:
        return (None,) * 12
    # One statement cannot write a place twice, and a flush may go around the ring.
    results = {
        (place, sequence % RESULTS_KEPT_MAX): (topic, sequence, committed)
        for place, ((topic, _), draft) in enumerate(producers.items(), 1)
        for series in draft.series[-RESULTS_KEPT_MAX:]
        for sequence, committed in series.batches()
    }
    ranges = [
        (place, judge.partitions[topic, each.partition], each)
        for place, (topic, _, committed) in enumerate(results.values(), 1)
        for each in committed
    ]
    return (
        _numbers([topic for topic, _ in producers]),
        _texts([name for _, name in producers]),
        _numbers([presumed.next_sequence(*producer) for producer in producers]),
        _numbers([draft.next_sequence for draft in producers.values()]),
        _numbers([place for place, _ in results]),
        _numbers([sequence for _, sequence, _ in results.values()]),
        _numbers([slot for _, slot in results]),
        _numbers([place for place, _, _ in ranges]),
        _numbers([draft.partition_id for _, draft, _ in ranges]),
        _numbers([each.start_offset - draft.stored_next_offset for _, draft, each in ranges]),
        _numbers([each.end_offset - draft.stored_next_offset for _, draft, each in ranges]),
        _numbers([each.timestamp for _, _, each in ranges]),
    )


def _numbers(values: Iterable[int | None]) -> str:
    """Return an array as PostgreSQL reads it: psycopg takes far longer for each of its elements."""
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


def _texts(values: Iterable[str]) -> str:
    escaped = [value.replace("\\", "\\\\").replace('"', '\\"') for value in values]
    return '{"' + '","'.join(escaped) + '"}'
