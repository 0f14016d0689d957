"""Stages and their publishing, transactions of named producers, and shards of sources."""

from dataclasses import dataclass, field
from enum import StrEnum

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


class TransactionState(StrEnum):
    """State of a name's last transaction."""

    NONE = "none"
    """There was none since the producer joined."""
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class ProducerEpoch:
    """One life of a transactional producer; its next life has a higher epoch, or another id."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """Last transaction of a name."""

    name: str
    producer_id: int
    """The id of the producer that joined last."""
    epoch: int
    """Its epoch."""
    state: str
    """A `TransactionState`."""
    timeout_ms: int
    """Longest time that a transaction stays open."""
    deadline: int | None
    """When the open transaction is aborted, in microseconds since the epoch; None: none is open."""


class ShardState(StrEnum):
    """State of a shard."""

    OPEN = "open"
    """More may be published."""
    FINISHED = "finished"
    """Everything is in the log."""
    DEAD = "dead"
    """Retries have ended; its last error says why."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Progress and owner of something ingested exactly once, such as a file."""

    source: str
    """Name of the source; shards of different sources are independent."""
    shard: str
    """Id of the shard, such as a file's URI."""
    token: str
    """Token of the owner, which alone may publish; empty without an owner."""
    position: int
    """Published amount, in a unit of the source's choice."""
    state: ShardState
    failures: int
    """Failed attempts since the last progress."""
    error: str | None
    """Error of the last failure."""
    opened_at: int
    """Creation time in microseconds since the epoch."""
    updated_at: int
    """Time of the owner's last request, in microseconds since the epoch; 0 for never."""


@dataclass(frozen=True, slots=True)
class ShardProgress:
    """Change of a shard in the transaction of a publish."""

    source: str
    shard: str
    token: str
    """Token, which must be the owner's."""
    position: int
    """Expected position of the shard."""
    next_position: int
    """New position."""
    state: ShardState = ShardState.OPEN
    """New state."""
    error: str | None = None
    """Error of a failed attempt, counted as one failure; None for progress."""


@dataclass(frozen=True, slots=True)
class ShardClaim:
    """Request to take over a shard from its owner."""

    shard: str
    token: str
    """Token of the owner to replace, or one's own to keep ownership."""


@dataclass(frozen=True, slots=True)
class ShardCounts:
    """Counts of a source's shards."""

    open: int
    finished: int
    dead: int
    position: int
    """Sum of all positions, at most 2^63 - 1."""


@dataclass(frozen=True, slots=True)
class ShardsPruned:
    """Result of a pruning."""

    shards: int
    """Number of shards removed."""
    debounced: bool
    """Whether nothing was done, because another pruning was recent."""
