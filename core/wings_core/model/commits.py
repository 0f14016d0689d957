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
    """The batch is committed; of a repeat, the ranges of its first commit."""

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


CommitResult = Accepted | Staged | Rejected
