"""DoAction on shards: entries of the bodies, the JSON of the answers, and shards in a publish.

The metadata store checks ids and transitions of shards.
"""

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import Field

from wings_core.contracts.messages import Identifier, Message, OffsetNumber
from wings_core.model import Shard, ShardClaim, ShardCounts, ShardProgress, ShardsPruned, ShardState
from wings_core.times import format_timestamp

SHARDS_MAX = 10_000
"""The most shards of one call."""

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
    """The position before the change; the publish is refused where the shard has another."""
    next_position: OffsetNumber
    """The position after the change."""
    state: State = ShardState.OPEN
    """The state after the change."""
    error: str | None = None
    """The error of a failed attempt; None: it did not fail."""

    @classmethod
    def of(cls, progress: ShardProgress) -> "ShardEntry":
        """Return the entry of a progress."""
        return cls(
            source=progress.source,
            shard=progress.shard,
            token=progress.token,
            position=progress.position,
            next_position=progress.next_position,
            state=progress.state,
            error=progress.error,
        )

    def progress(self) -> ShardProgress:
        """Return the progress of the entry."""
        return ShardProgress(
            self.source,
            self.shard,
            self.token,
            self.position,
            self.next_position,
            self.state,
            self.error,
        )


class ClaimEntry(Message):
    """A request for a shard that another owner has."""

    shard: ShardId
    token: Annotated[str, Field(max_length=255)]
    """The token of the owner to be replaced; empty where there is none."""

    def claim(self) -> ShardClaim:
        """Return the claim of the entry."""
        return ShardClaim(self.shard, self.token)


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
    """Return the answer of the actions that return shards, in the order given."""
    return {"shards": [describe_shard(shard) for shard in shards]}


def describe_counts(counts: ShardCounts) -> dict[str, Any]:
    """Return the answer to `shard-count`."""
    return {
        "open": counts.open,
        "finished": counts.finished,
        "dead": counts.dead,
        "position": counts.position,
    }


def describe_pruned(pruned: ShardsPruned) -> dict[str, Any]:
    """Return the answer to `shard-prune`."""
    return {"pruned": pruned.shards, "debounced": pruned.debounced}
