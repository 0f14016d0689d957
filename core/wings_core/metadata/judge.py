"""Judge: accept or reject the batches of one flush, the same in every store.

The judge reads what is stored through `StoredState` and keeps what the flush would change beside
it, so each batch is judged against the batches before it. All conditions of a batch are checked
before the first of its changes is made: a batch is never half accepted. Nothing is written here;
the store applies the changes of all accepted batches in one transaction.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from wings_core.errors import (
    InvalidArgument,
    OffsetMismatch,
    OutOfOrderSequence,
    TopicNotFound,
    WingsError,
)
from wings_core.metadata.checks import check_id, check_partition, check_text
from wings_core.metadata.repeats import (
    RESULTS_KEPT_MAX,
    NumberedBatch,
    SequenceDraft,
    Series,
    check_sequence,
    range_of,
)
from wings_core.metadata.stages import StageDraft, check_entry, check_pages
from wings_core.model import (
    Accepted,
    AssignedRange,
    CommitBatch,
    CommitResult,
    ExpectedOffset,
    PartitionSequence,
    Rejected,
    Sequence,
    SeriesResults,
    StagedBatch,
    StageEntry,
    StoredPage,
)
from wings_core.partitions import VALUE_BYTES_MAX, Partition, partition_value

RESULTS_KEPT_US = 7 * 24 * 3600 * 1_000_000
"""Oldest age of a result that answers a repetition, in microseconds."""

TIMESTAMP_AHEAD_US_MAX = 3600 * 1_000_000
"""A producer's timestamp may be this far ahead of the clock, in microseconds."""


@dataclass(slots=True)
class PartitionDraft:
    """A partition as it will be after the batches judged so far."""

    topic_id: int
    partition: Partition
    partition_id: int | None = None
    """None until the store gives it one."""
    next_offset: int = 0
    bytes: int = 0
    last_timestamp: int | None = None
    stored_next_offset: int = 0
    pages: int = 0
    last_page: "PageDraft | None" = None
    """Last page that this flush appends."""
    log_start_offset: int = 0
    """Kept for who locates what was committed, where the store knows it."""

    @property
    def changed(self) -> bool:
        """Whether the flush wrote to it."""
        return self.next_offset != self.stored_next_offset

    def append(self, rows: int, size: int, timestamp: int) -> AssignedRange:
        """Give offsets to the next rows, of so many bytes; raise an earlier timestamp."""
        assert rows > 0, "a page has at least one row"
        last = self.last_timestamp
        if last is not None and last > timestamp:
            timestamp = last
        start_offset = self.next_offset
        self.next_offset = next_offset = start_offset + rows
        self.bytes += size
        self.last_timestamp = timestamp
        return AssignedRange(self.partition, start_offset, next_offset - 1, timestamp)

    def copy(self) -> "PartitionDraft":
        """Return a draft of the partition for the next flush, once this one is committed."""
        return PartitionDraft(
            self.topic_id,
            self.partition,
            self.partition_id,
            self.next_offset,
            self.bytes,
            self.last_timestamp,
            self.next_offset,
            self.pages,
            log_start_offset=self.log_start_offset,
        )


@dataclass(slots=True)
class ProducerDraft:
    """A producer's sequences in a topic as they will be after the batches judged so far."""

    next_sequence: int = 0
    series: list[Series] = field(default_factory=list[Series])
    """Results of its batches in this flush, in order."""

    def add(self, committed: tuple[AssignedRange, ...], rows: tuple[int, ...]) -> None:
        """Note what its next batch got; or those of a series, of so many rows each."""
        self.next_sequence += len(rows) or 1
        self.series.append(Series.of(self.next_sequence - 1, committed, rows))

    def result(self, sequence: int) -> tuple[AssignedRange, ...] | None:
        """Return what a batch got, None where it was not in this flush."""
        index = bisect_left(self.series, sequence, key=lambda each: each.sequence)
        return self.series[index].result(sequence) if index < len(self.series) else None


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class PageDraft:
    """A page to be indexed, or a slice of one, and what its rows got."""

    partition: PartitionDraft
    stored: StoredPage
    got: AssignedRange

    def join(self, page: StoredPage, got: AssignedRange) -> bool:
        """Take in what is the next slice of the same page, at the same time.

        Returns:
            Whether the page was taken in.
        """
        joined = self.stored.joined(page) if got.timestamp == self.got.timestamp else None
        if joined is None:
            return False
        self.stored = joined
        self.got = AssignedRange(
            got.partition, self.got.start_offset, got.end_offset, got.timestamp
        )
        return True


class StoredState(Protocol):
    """Stored state, read within the transaction that will change it."""

    def topic_id(self, topic_uuid: str) -> int | None:
        """Return the store's id of a topic, None if there is none or it was deleted."""
        ...

    def partition(self, topic_id: int, partition: Partition) -> PartitionDraft:
        """Return a partition as it is, also one never written to."""
        ...

    def next_sequence(self, topic_id: int, producer_id: str) -> int:
        """Return the sequence that a producer uses next, 0 for one that is not known."""
        ...

    def sequences(
        self, topic_id: int, partition: Partition, producer_id: str, committed_after: int
    ) -> SequenceDraft:
        """Return a producer's numbers in a partition, those of an unknown one too.

        A producer is unknown whose last batch there was not committed after a time.
        """
        ...

    def stage(self, stage: str) -> StageDraft | None:
        """Return a stage as it is, None where there is none of this id."""
        ...

    def result(
        self, topic_id: int, producer_id: str, sequence: int, committed_after: int
    ) -> tuple[AssignedRange, ...] | None:
        """Return what a batch got that was committed after a time, None if not remembered."""
        ...


class Judge:
    """Judges the batches of one flush, in order.

    Attributes:
        partitions: Partitions looked at, by topic id and partition.
        producers: Producers looked at, by topic id and producer id.
        sequences: Numbers of rows looked at, by topic id, partition and producer id.
        pages: Pages of the accepted batches that are visible, in order.
        stages: Stages added to, by id.

    Args:
        stored: The stored state.
        now: The time of the commit, in microseconds since the epoch.
        partition_bytes_max: The longest partition value that the store takes, as JSON in UTF-8;
            batches with longer ones are rejected, and not asked for.
    """

    def __init__(
        self, stored: StoredState, now: int, partition_bytes_max: int = VALUE_BYTES_MAX
    ) -> None:
        self.partitions: dict[tuple[int, Partition], PartitionDraft] = {}
        self.producers: dict[tuple[int, str], ProducerDraft] = {}
        self.sequences: dict[tuple[int, Partition, str], SequenceDraft] = {}
        self.pages: list[PageDraft] = []
        self.stages: dict[str, StageDraft] = {}
        self._stored = stored
        self._now = now
        self._partition_bytes_max = partition_bytes_max
        self._topic_ids: dict[str, int | None] = {}
        self._failed_streams: dict[int, WingsError] = {}
        self._run: tuple[CommitBatch, int, ProducerDraft] | None = None
        """The last batch, its topic and its producer, if it was accepted, with a sequence alone."""

    def judge(self, batch: CommitBatch) -> CommitResult:
        """Accept or reject the next batch of the flush.

        A series whose first sequence is the producer's next is judged as one: its batches differ in
        nothing else. Of one that begins with a repeat, each is judged by itself.
        """
        if self._run is not None:
            last, topic_id, producer = self._run
            if self._goes_on(last, producer, batch):
                return self._accept_next(topic_id, batch, producer)
        self._run = None
        error = self._failed_streams.get(batch.stream)
        if error is not None:
            return Rejected(error)
        try:
            return self._accept(batch)
        except WingsError as refusal:
            # Kept for long, and raised by others: not with the frames it was raised from.
            error = refusal.with_traceback(None)
        self._failed_streams[batch.stream] = error
        return Rejected(error)

    def _accept(self, batch: CommitBatch) -> Accepted | StagedBatch | SeriesResults:
        topic_id = self._topic_id(batch.topic_uuid)
        if batch.stage is not None:
            return self._stage(topic_id, batch, batch.stage)
        if batch.partition_sequence is not None:
            return self._accept_numbered(topic_id, batch, batch.partition_sequence)
        if batch.sequence is not None:
            check_id("producer_id", batch.sequence.producer_id)
            first = self._replayed(topic_id, batch.sequence)
            if first is not None and batch.series:
                return SeriesResults(tuple([self.judge(each) for each in batch.each()]))
            if first is not None:
                return Accepted(first, replayed=True)
        self._check_partitions(batch)
        if batch.expected is not None:
            self._check_expected(topic_id, batch.expected)
        self._check_timestamp(batch.timestamp)
        producer = None
        if batch.sequence is not None:
            producer = self._producer(topic_id, batch.sequence.producer_id)
            if batch.expected is None:
                self._run = batch, topic_id, producer
        return self._accept_next(topic_id, batch, producer)

    def _accept_next(
        self, topic_id: int, batch: CommitBatch, producer: ProducerDraft | None
    ) -> Accepted:
        """Do what an accepted batch changes; it is a producer's next, if it has a producer."""
        timestamp = self._now if batch.timestamp is None else batch.timestamp
        committed = self._append(topic_id, batch.pages, timestamp)
        if producer is not None:
            producer.add(committed, batch.series)
        return Accepted(committed)

    def _accept_numbered(
        self, topic_id: int, batch: CommitBatch, sequence: PartitionSequence
    ) -> Accepted:
        """Accept a batch whose rows are numbered by partition."""
        draft, first = self._numbered(topic_id, batch, sequence)
        if first is not None:
            return Accepted((range_of(batch, first),), replayed=True)
        self._check_timestamp(batch.timestamp)
        accepted = self._accept_next(topic_id, batch, None)
        committed = accepted.committed
        rows = committed[-1].end_offset - committed[0].start_offset + 1
        whole = NumberedBatch(
            sequence.first, rows, committed[0].start_offset, committed[-1].timestamp
        )
        draft.add(sequence, whole)
        return Accepted((range_of(batch, whole),))

    def _numbered(
        self, topic_id: int, batch: CommitBatch, sequence: PartitionSequence
    ) -> tuple[SequenceDraft, NumberedBatch | None]:
        """Return a producer's numbers, and the batch that this one repeats, if any."""
        check_sequence(batch, sequence)
        self._check_partitions(batch)
        partition = batch.pages[0].partition
        key = (topic_id, partition, sequence.producer_id)
        draft = self.sequences.get(key)
        if draft is None:
            draft = self.sequences[key] = self._stored.sequences(*key, self._now - RESULTS_KEPT_US)
        return draft, draft.replayed(sequence, sum(page.rows for page in batch.pages))

    @staticmethod
    def _goes_on(last: CommitBatch, producer: ProducerDraft, batch: CommitBatch) -> bool:
        """Tell whether all that the last batch was accepted for holds of the next one too.

        Then nothing is asked again: of batches that were joined many come one after another.
        """
        before, sequence = last.sequence, batch.sequence
        assert before is not None
        return (
            sequence is not None
            and sequence.sequence == producer.next_sequence
            and sequence.producer_id == before.producer_id
            and batch.stream == last.stream
            and batch.topic_uuid == last.topic_uuid
            and batch.timestamp == last.timestamp
            and batch.expected is None
            and batch.partition_sequence is None
            and len(batch.pages) == len(last.pages) == 1
            and batch.pages[0].partition == last.pages[0].partition
        )

    def _stage(self, topic_id: int, batch: CommitBatch, entry: StageEntry) -> StagedBatch:
        """Add a batch to its stage; offsets and times of commit come with the publish."""
        assert batch.sequence is None
        assert batch.expected is None
        check_text("the stage", entry.stage)
        numbers, sequence = None, batch.partition_sequence
        if sequence is not None:
            numbers, first = self._numbered(topic_id, batch, sequence)
            if first is not None:
                return StagedBatch(entry.stage, 0, 0)
        draft = self.stages.get(entry.stage)
        if draft is None:
            draft = self._stored.stage(entry.stage) or StageDraft(entry.stage, topic_id)
        check_entry(draft, entry)
        self._check_partitions(batch)
        self._check_timestamp(batch.timestamp)
        check_pages(draft.pages + len(batch.pages), entry.stage)
        # Nothing can refuse the batch from here on. One that was refused begins no stage: the next
        # may be another topic's.
        self.stages[entry.stage] = draft
        draft.writing = entry.writing
        if numbers is not None and sequence is not None:
            rows = sum(page.rows for page in batch.pages)
            numbers.add(sequence, NumberedBatch(sequence.first, rows, None, self._now))
        return draft.append(batch.pages, batch.timestamp)

    def _check_partitions(self, batch: CommitBatch) -> None:
        characters = max([len(page.partition) for page in batch.pages], default=0)
        if 4 * characters > self._partition_bytes_max:  # A character has at most 4 bytes.
            for page in batch.pages:
                check_partition(page.partition, self._partition_bytes_max)
        if batch.expected is not None:
            check_partition(batch.expected.partition, self._partition_bytes_max)

    def _check_timestamp(self, timestamp: int | None) -> None:
        if timestamp is not None and timestamp > self._now + TIMESTAMP_AHEAD_US_MAX:
            ahead = (timestamp - self._now) // 1_000_000
            raise InvalidArgument(
                f"the timestamp is {ahead} s ahead of the server's clock, at most "
                f"{TIMESTAMP_AHEAD_US_MAX // 1_000_000} s are allowed"
            )

    def _topic_id(self, topic_uuid: str) -> int:
        if topic_uuid not in self._topic_ids:
            self._topic_ids[topic_uuid] = self._stored.topic_id(topic_uuid)
        topic_id = self._topic_ids[topic_uuid]
        if topic_id is None:
            raise TopicNotFound("the topic was deleted")
        return topic_id

    def _replayed(self, topic_id: int, sequence: Sequence) -> tuple[AssignedRange, ...] | None:
        """Return the first result of a repeat, None for the sequence that is next.

        Raises:
            OutOfOrderSequence: A gap, or a repeat of what is no longer remembered.
        """
        producer = self._producer(topic_id, sequence.producer_id)
        number, expected = sequence.sequence, producer.next_sequence
        if number == expected:
            return None
        if 0 <= number < expected and expected - number <= RESULTS_KEPT_MAX:
            first = producer.result(number)
            if first is None:
                first = self._stored.result(
                    topic_id, sequence.producer_id, number, self._now - RESULTS_KEPT_US
                )
            if first is not None:
                return first
        problem = "leaves a gap" if number > expected else "repeats one no longer remembered"
        raise OutOfOrderSequence(
            f"sequence {number} of producer {sequence.producer_id!r:.80} {problem}: "
            f"the next is {expected}",
            expected_sequence=expected,
            sequence=number,
        )

    def _check_expected(self, topic_id: int, expected: ExpectedOffset) -> None:
        actual = self._partition(topic_id, expected.partition).next_offset
        if actual != expected.offset:
            raise OffsetMismatch(
                f"the next offset of partition {expected.partition:.80} is {actual}, "
                f"not {expected.offset}",
                next_offset=actual,
                partition=partition_value(expected.partition),
            )

    def _append(
        self, topic_id: int, pages: Iterable[StoredPage], timestamp: int
    ) -> tuple[AssignedRange, ...]:
        """Give offsets to the pages of a batch: one loop, as they may be thousands."""
        committed: list[AssignedRange] = []
        drafts, stored, added = self.partitions, self._stored, self.pages
        for page in pages:
            partition = page.partition
            key = (topic_id, partition)
            draft = drafts.get(key)
            if draft is None:
                draft = drafts[key] = stored.partition(topic_id, partition)
            got = draft.append(page.rows, page.bytes, timestamp)
            committed.append(got)
            last = draft.last_page
            if last is None or not last.join(page, got):
                draft.pages += 1
                draft.last_page = last = PageDraft(draft, page, got)
                added.append(last)
        return tuple(committed)

    def _partition(self, topic_id: int, partition: Partition) -> PartitionDraft:
        key = (topic_id, partition)
        draft = self.partitions.get(key)
        if draft is None:
            draft = self.partitions[key] = self._stored.partition(topic_id, partition)
        return draft

    def _producer(self, topic_id: int, producer_id: str) -> ProducerDraft:
        key = (topic_id, producer_id)
        draft = self.producers.get(key)
        if draft is None:
            next_sequence = self._stored.next_sequence(topic_id, producer_id)
            draft = self.producers[key] = ProducerDraft(next_sequence)
        return draft
