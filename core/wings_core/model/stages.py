"""Stages, and what a publish or an abort did to them."""

from dataclasses import dataclass

from wings_core.names import TopicName
from wings_core.partitions import Partition


@dataclass(frozen=True, slots=True)
class StageEntry:
    """Says that a batch is to be staged: durable, and invisible until its stage is published."""

    stage: str
    """The stage's id."""
    writing: str
    """Unique for the stream that writes the stage; no other stream adds to it."""
    first: bool
    """Whether it is the stream's first batch, which begins the stage."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What was staged under one id and is not published yet."""

    stage: str
    topic_uuid: str
    rows: int
    bytes: int
    pages: int
    changed_at: int
    """When its last batch came, in microseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class PublishedRange:
    """Offsets `[start_offset, end_offset]` that a publish got in one partition of a topic."""

    topic: TopicName
    partition: Partition
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Published:
    """What a publish made visible; of a repeat, what the first one did."""

    committed: tuple[PublishedRange, ...]
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Aborted:
    """What an abort deleted."""

    stages: tuple[str, ...]
    """Those that were there, in the order asked."""
    published: bool | None
    """Whether the batch that was named had been published before; None where none was named, or it
    is too old to be remembered."""
