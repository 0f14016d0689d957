"""Shards: how far something was read into the log once, and by whom."""

from dataclasses import dataclass
from enum import StrEnum


class ShardState(StrEnum):
    """What is to come of a shard."""

    OPEN = "open"
    """There may be more of it."""
    FINISHED = "finished"
    """All of it is in the log."""
    DEAD = "dead"
    """It is not retried any more; its last error says why."""


@dataclass(frozen=True, slots=True)
class Shard:
    """How far something that is read into the log once, such as a file, was read, and by whom."""

    source: str
    """Whose shard it is: shards of two sources have nothing to do with each other."""
    shard: str
    """Its id, such as a file's URI."""
    token: str
    """Of its owner, the only one who may publish it; empty: it has none."""
    position: int
    """How much of it was published; its source says in which unit."""
    state: ShardState
    failures: int
    """Tries that failed since the last progress."""
    error: str | None
    """Of the last failure."""
    opened_at: int
    """Microseconds since the epoch."""
    updated_at: int
    """When its owner was last heard of, in microseconds since the epoch; 0: never."""


@dataclass(frozen=True, slots=True)
class ShardProgress:
    """What a publish does to a shard, in its own transaction."""

    source: str
    shard: str
    token: str
    """Has to be the owner's."""
    position: int
    """Has to be where the shard stands."""
    next_position: int
    """Where it stands then."""
    state: ShardState = ShardState.OPEN
    """What it is then."""
    error: str | None = None
    """Why a try failed; counts as one failure. None: it did not."""


@dataclass(frozen=True, slots=True)
class ShardClaim:
    """Asks for a shard that another one owns."""

    shard: str
    token: str
    """Of the owner that is to be replaced, or one's own, to stay its owner."""


@dataclass(frozen=True, slots=True)
class ShardCounts:
    """How many shards a source has."""

    open: int
    finished: int
    dead: int
    position: int
    """The sum of all positions, told as 2^63 - 1 where it is more."""


@dataclass(frozen=True, slots=True)
class ShardsPruned:
    """What a pruning did."""

    shards: int
    """How many were forgotten."""
    debounced: bool
    """Whether nothing was looked at, as another pruning was not long ago."""
