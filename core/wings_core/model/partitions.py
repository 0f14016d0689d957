"""Partitions: their states, located pages, and totals."""

from dataclasses import dataclass, field
from typing import NamedTuple

from wings_core.model.pages import Location
from wings_core.names import TopicName
from wings_core.partitions import Partition


class PartitionState(NamedTuple):
    """State of a partition."""

    partition: Partition
    log_start_offset: int
    next_offset: int
    bytes: int
    """Stored bytes of all pages."""
    last_timestamp: int | None
    """Timestamp of the last message in microseconds since the epoch; None before the first one."""


@dataclass(frozen=True, slots=True)
class Located:
    """Result of `OffsetRegistry.locate`, consistent at one moment."""

    locations: tuple[Location, ...]
    """Consecutive locations; the first contains the offset asked for. Empty at the log's end."""
    log_start_offset: int
    log_end_offset: int
    asked_at: float | None = field(default=None, compare=False)
    """Monotonic time of the look-up's start if it may precede the call, so that it may lack later
    commits. None if it started after the call; minus infinity for a cached result while metadata
    cannot be reached."""


class LocatedPartition(NamedTuple):
    """Result of `OffsetRegistry.locate_many` for one partition."""

    state: PartitionState
    locations: tuple[Location, ...]
    """Locations as in `Located`; for an offset below the log's start, from the start on."""


@dataclass(frozen=True, slots=True)
class Position:
    """An offset in a partition that a reader waits at."""

    topic_uuid: str
    partition: Partition
    offset: int


@dataclass(frozen=True, slots=True)
class Expired:
    """Result of one retention step in a partition."""

    log_start_offset: int
    """New start offset of the log."""
    pages: int
    rows: int
    bytes: int


class TierState(NamedTuple):
    """Totals of a partition in one tier."""

    partition: Partition
    remote: bool
    """Whether this is the tier of merged pages, in the remote store."""
    pages: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PartitionSums:
    """Totals over partitions."""

    partitions: int = 0
    """Partitions that were written to."""
    messages: int = 0
    """Sum of their next offsets."""
    pages: int = 0
    rows: int = 0
    bytes: int = 0
    merged_pages: int = 0
    merged_rows: int = 0
    merged_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TopicSums:
    """A topic, and the totals over its partitions."""

    topic: TopicName
    topic_uuid: str
    sums: PartitionSums


@dataclass(frozen=True, slots=True)
class TopicState:
    """Result of `Maintenance.topic_state`, consistent at one moment."""

    sums: PartitionSums
    last_timestamp: int | None
    """Timestamp of the last message in microseconds since the epoch; None before the first one."""


@dataclass(frozen=True, slots=True)
class LargestTopics:
    """Result of `Maintenance.largest_topics`, consistent at one moment."""

    topics: tuple[TopicSums, ...]
    """Topics with the most stored bytes, in descending order of bytes."""
    others: int
    """Number of other topics."""
    of_others: PartitionSums
    grouped: tuple[TopicName, ...]
    """Topics with share groups, those with the most bytes."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A named consumer's position in a partition; `offset` is the next one to read."""

    topic: TopicName
    partition: Partition
    offset: int
    committed_at: int
    """Time of the commit in microseconds since the epoch."""
    note: str = ""
    """Text that was committed with it."""
