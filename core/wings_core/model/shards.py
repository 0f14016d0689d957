"""Shards: the progress and ownership of exactly-once ingestion."""

from dataclasses import dataclass
from enum import StrEnum


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
