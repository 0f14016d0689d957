"""Stages, and the results of publishing or aborting them."""

from dataclasses import dataclass, field

from wings_core.model.consumer_groups import MemberEpoch
from wings_core.model.topics import Topic
from wings_core.names import TopicName
from wings_core.partitions import Partition


@dataclass(frozen=True, slots=True)
class StageEntry:
    """Option to stage a batch: durable, and invisible until its stage is published."""

    stage: str
    """Id of the stage."""
    writing: str
    """Unique id of the stream that writes the stage; no other stream can add to it."""
    first: bool
    """Whether this is the stream's first batch, which begins the stage."""


@dataclass(frozen=True, slots=True)
class UnpublishedStage:
    """An unpublished stage."""

    stage: str
    topic_uuid: str
    rows: int
    bytes: int
    pages: int
    changed_at: int
    """Time of its last batch, in microseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class PublishedTopicRange:
    """Offsets `[start_offset, end_offset]` assigned by a publish in one partition of a topic."""

    topic: TopicName
    partition: Partition
    start_offset: int
    end_offset: int
    bytes: int = field(default=0, compare=False)
    """Stored bytes of its pages; 0 in the result of a repeated publish."""

    @property
    def rows(self) -> int:
        """Number of rows published."""
        return self.end_offset - self.start_offset + 1


@dataclass(frozen=True, slots=True)
class PublishResult:
    """Result of a publish; for a repeated publish, that of the first."""

    committed: tuple[PublishedTopicRange, ...]
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class ConsumerCommit:
    """Next offsets of a named consumer, committed together."""

    consumer: str
    offsets: tuple[tuple[Topic, Partition, int], ...]
    """Each partition's next offset to read; the last counts where one is named twice."""
    member: MemberEpoch | None = None
    """The member of the consumer's group that commits, if any."""
    notes: tuple[str, ...] = ()
    """Texts to keep with the offsets, one for each; empty for none."""


@dataclass(frozen=True, slots=True)
class AbortResult:
    """Result of an abort."""

    stages: tuple[str, ...]
    """Deleted stages, in the order requested."""
    published: bool | None
    """Whether the given publish had taken place before; None if none was given, or it is too old to
    be remembered."""
