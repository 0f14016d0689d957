"""Partitions: where they stand, what was found in them, and sums over them."""

from dataclasses import dataclass, field
from typing import NamedTuple

from wings_core.model.pages import Location
from wings_core.names import TopicName
from wings_core.partitions import Partition


class PartitionState(NamedTuple):
    """Where a partition stands."""

    partition: Partition
    log_start_offset: int
    next_offset: int
    bytes: int
    """Stored bytes of all its pages."""
    last_timestamp: int | None
    """Microseconds since the epoch; None before the first message."""


@dataclass(frozen=True, slots=True)
class Located:
    """What `OffsetRegistry.locate` found at one moment."""

    locations: tuple[Location, ...]
    """In order of offset, without gaps; the first holds the offset asked for. Empty at the end."""
    log_start_offset: int
    log_end_offset: int
    asked_at: float | None = field(default=None, compare=False)
    """When the look began, by the monotonic clock, if that may be before the caller asked: it then
    may have missed what was committed since. None: it began after. Minus infinity: metadata could
    not be asked, and this is what was last heard."""


class LocatedPartition(NamedTuple):
    """What `OffsetRegistry.locate_many` found of one partition."""

    state: PartitionState
    locations: tuple[Location, ...]
    """As of `Located`: of an offset below the log's start, from the first message that is kept."""


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a partition that a reader waits at."""

    topic_uuid: str
    partition: Partition
    offset: int


@dataclass(frozen=True, slots=True)
class Expired:
    """What retention took from a partition at one moment."""

    log_start_offset: int
    """Where the log starts now."""
    pages: int
    rows: int
    bytes: int


class TierState(NamedTuple):
    """What a partition has in one tier."""

    partition: Partition
    remote: bool
    """Merged pages, in the remote store; else as they were written."""
    pages: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PartitionSums:
    """Sums over partitions."""

    partitions: int = 0
    """How many were written to."""
    messages: int = 0
    """Of their next offsets."""
    pages: int = 0
    rows: int = 0
    bytes: int = 0
    merged_pages: int = 0
    merged_rows: int = 0
    merged_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TopicSums:
    """A topic, and the sums over its partitions."""

    topic: TopicName
    topic_uuid: str
    sums: PartitionSums


@dataclass(frozen=True, slots=True)
class TopicState:
    """What `Maintenance.topic_state` found at one moment."""

    sums: PartitionSums
    last_timestamp: int | None
    """Of the last message, in microseconds since the epoch; None where none was ever written."""


@dataclass(frozen=True, slots=True)
class LargestTopics:
    """What `Maintenance.largest_topics` found at one moment."""

    topics: tuple[TopicSums, ...]
    """Those with most stored bytes, by them, the largest first."""
    others: int
    """How many topics there are besides."""
    of_others: PartitionSums
    grouped: tuple[TopicName, ...]
    """Topics that have share groups, those with most bytes."""


@dataclass(frozen=True, slots=True)
class ConsumerOffset:
    """A named consumer's place in a partition: `offset` is the next one to read."""

    topic: TopicName
    partition: Partition
    offset: int
    committed_at: int
    """Microseconds since the epoch."""
