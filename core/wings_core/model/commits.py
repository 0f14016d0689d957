"""Commits: requests to the registry, and their results."""

from collections.abc import Iterable, Iterator
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
class PartitionSequence:
    """A producer's numbers for the rows of a batch, which make it idempotent in its partition."""

    producer_id: str
    epoch: int
    """Epoch of the producer, which fences its earlier ones."""
    first: int
    """Number of the first row, 0 to 2^31 - 1; the row after the greatest number has 0."""


@dataclass(frozen=True, slots=True)
class ExpectedOffset:
    """Compare-and-append: commit only if this is the partition's next offset."""

    partition: Partition
    offset: int


@dataclass(slots=True)  # Not frozen: construction would take three times as long.
class CommitBatch:
    """A request to commit one pushed batch, whose pages are durable.

    Conditions are checked in this order: sequence, then expected offset.
    """

    stream: int
    """Number of the stream; after a rejected batch all later ones of its stream are rejected."""
    topic_uuid: str
    pages: tuple[StoredPage, ...]
    """Pages, by first row of each partition; empty for an empty batch."""
    sequence: Sequence | None = None
    expected: ExpectedOffset | None = None
    timestamp: int | None = None
    """Producer's timestamp in microseconds since the epoch; None for the time of commit."""
    stage: StageEntry | None = None
    """Stage; None to be visible at once. A staged batch has no sequence and no expected offset."""
    partition_sequence: PartitionSequence | None = None
    """Numbers of the rows of a batch of one partition, staged or not; excludes a sequence
    and an expected offset."""
    series: tuple[int, ...] = ()
    """Rows of each batch of a series, which have consecutive sequences from `sequence` on. They
    share the one page, or have one each. Empty for a single batch."""

    def each(self) -> list["CommitBatch"]:
        """Return the batches of a series, each with its page or its slice of the page."""
        sequence = self.sequence
        assert sequence is not None
        pages = _slices(self.pages[0], self.series) if len(self.pages) == 1 else self.pages
        return [
            CommitBatch(
                self.stream,
                self.topic_uuid,
                (page,),
                Sequence(sequence.producer_id, number),
                None,
                self.timestamp,
            )
            for number, page in enumerate(pages, sequence.sequence)
        ]


def _slices(page: StoredPage, rows: Iterable[int]) -> Iterator[StoredPage]:
    """Yield the slices of a page with so many rows each."""
    first_row, size, total = page.first_row or 0, page.bytes, page.rows
    before = cut = 0
    for count in rows:
        after = before + count
        # From the rounded start and end, so that the slices add up to the page.
        begin, cut = cut, size * after // total
        yield StoredPage(
            page.partition,
            count,
            page.address,
            first_row + before,
            cut - begin,
            page.schema_version,
        )
        before = after


@dataclass(frozen=True, slots=True)
class FlushId:
    """Id of a flush, by which the outcome of a commit can be asked if its response was lost."""

    writer: str
    """Unique id of one run of the flushing process."""
    number: int
    """Increasing number; the writer begins its next flush when it has this one's outcome."""


@dataclass(slots=True)  # Not frozen: construction would take three times as long.
class AssignedRange:
    """Offsets `[start_offset, end_offset]` assigned to a batch in one partition."""

    partition: Partition
    start_offset: int
    end_offset: int
    timestamp: int
    """Timestamp of the rows, in microseconds since the epoch."""


def shares(committed: Iterable[AssignedRange], rows: Iterable[int]) -> Iterator[AssignedRange]:
    """Yield the range of each of several batches of one partition each.

    Args:
        committed: Ranges that the batches share, in their order; each batch lies in one of them.
        rows: Rows of each batch.
    """
    ranges = iter(committed)
    whole, start = next(ranges), -1
    for count in rows:
        if start > whole.end_offset:
            whole, start = next(ranges), -1
        first = whole.start_offset if start < 0 else start
        start = first + count
        yield AssignedRange(whole.partition, first, start - 1, whole.timestamp)


@dataclass(slots=True)  # Not frozen: construction would take three times as long.
class Accepted:
    """Result of a committed batch; for a duplicate, the ranges of its first commit.

    For a series, the ranges that its batches share, in order; see `shares`.
    """

    committed: tuple[AssignedRange, ...]
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """Result of a staged batch: durable, but not visible yet."""

    stage: str
    rows: int
    bytes: int
    """Stored bytes of its pages."""
    rows_before: int = 0
    """Rows of the stage before this batch."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Result of a batch that is not committed and never will be."""

    error: WingsError


@dataclass(frozen=True, slots=True)
class SeriesResults:
    """Result of a series whose batches have different results."""

    each: "tuple[CommitResult, ...]"


CommitResult = Accepted | StagedBatch | Rejected | SeriesResults
