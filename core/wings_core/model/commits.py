"""Commits: what the registry is asked to commit, and what it answers."""

from dataclasses import dataclass

from wings_core.errors import WingsError
from wings_core.model.pages import StoredPage
from wings_core.model.stages import StageEntry
from wings_core.partitions import Partition


@dataclass(frozen=True, slots=True)
class Sequence:
    """A producer's number for a batch, which makes it idempotent within a topic."""

    producer_id: str
    sequence: int


@dataclass(frozen=True, slots=True)
class ExpectedOffset:
    """Compare-and-append: commit only if this is the partition's next offset."""

    partition: Partition
    offset: int


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class CommitBatch:
    """One pushed batch, its pages durable, as the registry is asked to commit it.

    Conditions are checked in this order: sequence, then expected offset.
    """

    stream: int
    """Batches of one stream share it; a refused batch refuses the later ones of its stream."""
    topic_uuid: str
    pages: tuple[StoredPage, ...]
    """By first row of each partition; none for an empty batch."""
    sequence: Sequence | None = None
    expected: ExpectedOffset | None = None
    timestamp: int | None = None
    """Given by the producer, in microseconds since the epoch; None: the time of commit."""
    stage: StageEntry | None = None
    """None: visible at once. A batch with a stage has neither sequence nor expected offset."""
    series: tuple[int, ...] = ()
    """Of a series, the rows of each of its batches: they have one page, and sequences that count up
    from this one. Empty: it is one batch."""

    def each(self) -> list["CommitBatch"]:
        """Return the batches of a series, each with its slice of the page."""
        (page,) = self.pages
        sequence = self.sequence
        assert sequence is not None
        first_row, size, total = page.first_row or 0, page.bytes, page.rows
        batches: list[CommitBatch] = []
        before = cut = 0
        for number, rows in enumerate(self.series, sequence.sequence):
            after = before + rows
            # By where it begins and ends, so that the slices add up to the page.
            begin, cut = cut, size * after // total
            slice_ = StoredPage(
                page.partition,
                rows,
                page.address,
                first_row + before,
                cut - begin,
                page.schema_version,
            )
            numbered = Sequence(sequence.producer_id, number)
            batches.append(
                CommitBatch(self.stream, self.topic_uuid, (slice_,), numbered, None, self.timestamp)
            )
            before = after
        return batches


@dataclass(frozen=True, slots=True)
class FlushId:
    """Names a flush, so that a commit whose answer was lost can be asked for again."""

    writer: str
    """Unique for the process that flushes, from its start to its end."""
    number: int
    """Counts up; the writer's next flush begins only when it will not ask for this one again."""


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class CommittedRange:
    """Offsets `[start_offset, end_offset]` that a batch got in one partition."""

    partition: Partition
    start_offset: int
    end_offset: int
    timestamp: int
    """The timestamp that its rows bear, in microseconds since the epoch."""


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class Accepted:
    """The batch is committed; of a repeat, the ranges of its first commit.

    Of a series, the range that its batches share, in their order.
    """

    committed: tuple[CommittedRange, ...]
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Staged:
    """The batch is durable in a stage, and invisible."""

    stage: str
    rows: int
    bytes: int
    """Of its pages."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The batch is not committed and never will be."""

    error: WingsError


@dataclass(frozen=True, slots=True)
class SeriesResults:
    """The batches of a series have not one outcome but these."""

    each: "tuple[CommitResult, ...]"


CommitResult = Accepted | Staged | Rejected | SeriesResults
