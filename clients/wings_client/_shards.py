"""Shards: the calls of readers that ingest files, and the like, exactly once."""

from collections.abc import Iterable, Mapping
from typing import Any

from wings_client._admin import AdminCalls
from wings_client._arguments import build, checked
from wings_core.contracts.actions import (
    ShardAcquire,
    ShardCount,
    ShardList,
    ShardNames,
    ShardOpen,
    ShardPrune,
)
from wings_core.contracts.shards import ClaimEntry
from wings_core.model import Shard, ShardCounts, ShardsPruned, ShardState
from wings_core.times import parse_timestamp


@checked
class ShardCalls(AdminCalls):
    """The calls of `Client` on the ownership and progress of shards.

    A shard is published by `Client.publish`, in one transaction with its rows. See `docs/ingest.md`
    for the protocol.
    """

    def open_shards(self, source: str, token: str, shards: Iterable[str]) -> list[Shard]:
        """Create the missing shards, owned by `token`; returns all of them.

        Args:
            source: The source of the shards.
            token: The token of the reader that opens them.
            shards: Distinct ids, up to 10,000.

        Returns:
            One for each, in the order given; one with another `token` belongs to another reader.

        Raises:
            InvalidArgument: An id is empty, too long, or there twice.
        """
        body = build(ShardOpen, "open_shards", source=source, token=token, shards=tuple(shards))
        return _shards(self._act("shard-open", body))

    def acquire_shards(
        self, source: str, token: str, claims: Mapping[str, str], stale_seconds: float
    ) -> list[Shard]:
        """Take over open shards from stale owners, or renew the shards of one's own.

        Args:
            source: The source of the shards.
            token: The token of the new owner.
            claims: Tokens of the owners to replace, by shard; one's own token renews.
            stale_seconds: An owner that has not renewed for this long may be replaced, by the
                server's clock.

        Returns:
            The existing ones, in the order given, after the call; one with `token` was acquired.
        """
        body = build(
            ShardAcquire,
            "acquire_shards",
            source=source,
            token=token,
            claims=tuple(
                build(ClaimEntry, "claim", shard=shard, token=owner)
                for shard, owner in claims.items()
            ),
            stale_seconds=stale_seconds,
        )
        return _shards(self._act("shard-acquire", body))

    def reset_shards(self, source: str, shards: Iterable[str]) -> list[Shard]:
        """Reopen dead shards, for any reader to acquire; returns those that were dead."""
        body = build(ShardNames, "reset_shards", source=source, shards=tuple(shards))
        return _shards(self._act("shard-reset", body, repeatable=False))

    def get_shards(self, source: str, shards: Iterable[str]) -> list[Shard]:
        """Return the existing ones of these shards, in the order given."""
        body = build(ShardNames, "get_shards", source=source, shards=tuple(shards))
        return _shards(self._act("shard-get", body))

    def list_shards(
        self,
        source: str,
        state: ShardState | str | None = None,
        *,
        after: str = "",
        limit: int = 1_000,
    ) -> list[Shard]:
        """Return shards of a source, by id.

        Args:
            source: The source of the shards.
            state: Only those that are `open`, `finished` or `dead`.
            after: The first ones whose id is greater.
            limit: At most so many; 1 to 10,000.
        """
        body = build(ShardList, "list_shards", source=source, state=state, after=after, limit=limit)
        return _shards(self._act("shard-list", body))

    def count_shards(self, source: str) -> ShardCounts:
        """Count the shards of a source."""
        body = build(ShardCount, "count_shards", source=source)
        return ShardCounts(**self._act("shard-count", body))

    def prune_shards(
        self,
        source: str,
        age_seconds: float,
        *,
        count_max: int | None = None,
        interval_seconds: float = 0.0,
    ) -> ShardsPruned:
        """Delete old shards that are finished or dead; never an open one.

        Args:
            source: The source of the shards.
            age_seconds: Delete those unchanged for this long.
            count_max: Delete those beyond the newest `count_max`.
            interval_seconds: Do nothing if the source was pruned less than this long ago.
        """
        body = build(
            ShardPrune,
            "prune_shards",
            source=source,
            age_seconds=age_seconds,
            count_max=count_max,
            interval_seconds=interval_seconds,
        )
        found = self._act("shard-prune", body)
        return ShardsPruned(found["pruned"], found["debounced"])


def _shards(found: Mapping[str, Any]) -> list[Shard]:
    return [
        Shard(
            each["source"],
            each["shard"],
            each["token"],
            each["position"],
            ShardState(each["state"]),
            each["failures"],
            each["error"],
            parse_timestamp(each["opened_at"]),
            0 if each["updated_at"] is None else parse_timestamp(each["updated_at"]),
        )
        for each in found["shards"]
    ]
