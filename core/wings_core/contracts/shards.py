"""DoAction on shards: entries of bodies, the JSON of responses, and shards in a publish.

The metadata store validates ids and transitions of shards.
"""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field

from wings_core.contracts.messages import Identifier, Message, OffsetNumber
from wings_core.model import Shard, ShardClaim, ShardCounts, ShardProgress, ShardsPruned, ShardState
from wings_core.times import format_timestamp

SHARDS_MAX = 10_000
"""Most shards of one call, or of one publish."""

ShardId = Annotated[str, Field(min_length=1, max_length=2_048)]
Seconds = Annotated[float, Field(ge=0, le=100 * 366 * 86_400.0, allow_inf_nan=False)]
State = Annotated[ShardState, Field(strict=False)]
ShardIds = Annotated[tuple[ShardId, ...], Field(strict=False, max_length=SHARDS_MAX)]


class ShardEntry(Message):
    """The change of a shard in the transaction of a publish."""

    source: Identifier
    shard: ShardId
    token: Identifier
    """The owner's token."""
    position: OffsetNumber
    """Position before the change; the publish is rejected if the shard has another."""
    next_position: OffsetNumber
    """Position after the change."""
    state: State = ShardState.OPEN
    """State after the change."""
    error: str | None = None
    """Error of a failed attempt; None for progress."""

    @classmethod
    def of(cls, progress: ShardProgress) -> "ShardEntry":
        """Convert a progress to an entry."""
        return cls(**asdict(progress))

    def progress(self) -> ShardProgress:
        """Convert the entry to a progress."""
        return ShardProgress(**dict(self))


class ClaimEntry(Message):
    """Request to take over a shard from its owner."""

    shard: ShardId
    token: Annotated[str, Field(max_length=255)]
    """Token of the owner to replace; empty without an owner."""

    def claim(self) -> ShardClaim:
        """Convert the entry to a claim."""
        return ShardClaim(**dict(self))


def describe_shard(shard: Shard) -> dict[str, Any]:
    """Return a shard's description."""
    return {
        "source": shard.source,
        "shard": shard.shard,
        "token": shard.token,
        "position": shard.position,
        "state": shard.state.value,
        "failures": shard.failures,
        "error": shard.error,
        "opened_at": format_timestamp(shard.opened_at),
        "updated_at": format_timestamp(shard.updated_at) if shard.updated_at else None,
    }


def describe_shards(shards: Iterable[Shard]) -> dict[str, Any]:
    """Return the response of actions that return shards, in the order given."""
    return {"shards": [describe_shard(shard) for shard in shards]}


def describe_counts(counts: ShardCounts) -> dict[str, Any]:
    """Return the response to `shard-count`."""
    return asdict(counts)


def describe_pruned(pruned: ShardsPruned) -> dict[str, Any]:
    """Return the response to `shard-prune`."""
    return {"pruned": pruned.shards, "debounced": pruned.debounced}
