"""Shards: the calls of those who read files, and their like, into the log once."""

from collections.abc import Iterable, Mapping
from typing import Any

from wings_client._admin import AdminCalls
from wings_client._messages import build
from wings_core.contracts.actions import (
    ShardAcquire,
    ShardCount,
    ShardList,
    ShardNames,
    ShardOpen,
    ShardPrune,
)
from wings_core.contracts.shards import ClaimEntry
from wings_core.errors import InvalidArgument
from wings_core.model import Shard, ShardCounts, ShardsPruned, ShardState
from wings_core.times import parse_timestamp


class ShardCalls(AdminCalls):
    """The part of `Client` that tells who reads which shard, and how far.

    A shard is published by `Client.publish`, in one transaction with its rows. See `docs/ingest.md`
    for what it all means.
    """

    def open_shards(self, source: str, token: str, shards: Iterable[str]) -> list[Shard]:
        """Create shards that are not there, owned by a token, and return all as they are.

        Args:
            source: Whose they are.
            token: Of whoever wants to read them.
            shards: Ids, each once, up to 10,000.

        Returns:
            One for each, in the order given; whose `token` is another one, somebody else owns.

        Raises:
            InvalidArgument: An id is empty, too long, or there twice.
        """
        body = build(
            ShardOpen,
            InvalidArgument,
            "open_shards",
            source=source,
            token=token,
            shards=tuple(shards),
        )
        return _shards(self._act("shard-open", body))

    def acquire_shards(
        self, source: str, token: str, claims: Mapping[str, str], stale_seconds: float
    ) -> list[Shard]:
        """Take over open shards from owners that were not heard of; or say that one is alive.

        Args:
            source: Whose they are.
            token: Of the owner to be.
            claims: By shard, the token of the owner that is to be replaced; one's own, to be heard
                of.
            stale_seconds: How long an owner was not heard of that may be replaced, by the server's
                clock.

        Returns:
            Those that are there, in the order given, as they are now: who has `token` owns them.
        """
        body = build(
            ShardAcquire,
            InvalidArgument,
            "acquire_shards",
            source=source,
            token=token,
            claims=tuple(
                build(ClaimEntry, InvalidArgument, "claim", shard=shard, token=owner)
                for shard, owner in claims.items()
            ),
            stale_seconds=stale_seconds,
        )
        return _shards(self._act("shard-acquire", body))

    def reset_shards(self, source: str, shards: Iterable[str]) -> list[Shard]:
        """Open dead shards again, for whoever reads them next, and return those that were dead."""
        body = build(
            ShardNames, InvalidArgument, "reset_shards", source=source, shards=tuple(shards)
        )
        return _shards(self._act("shard-reset", body, repeatable=False))

    def get_shards(self, source: str, shards: Iterable[str]) -> list[Shard]:
        """Return those of the shards that are there, in the order given."""
        body = build(ShardNames, InvalidArgument, "get_shards", source=source, shards=tuple(shards))
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
            source: Whose they are.
            state: Only those that are `open`, `finished` or `dead`.
            after: The first ones whose id is greater.
            limit: At most so many; 1 to 10,000.
        """
        body = build(
            ShardList,
            InvalidArgument,
            "list_shards",
            source=source,
            state=state,
            after=after,
            limit=limit,
        )
        return _shards(self._act("shard-list", body))

    def count_shards(self, source: str) -> ShardCounts:
        """Count the shards of a source."""
        body = build(ShardCount, InvalidArgument, "count_shards", source=source)
        return ShardCounts(**self._act("shard-count", body))

    def prune_shards(
        self,
        source: str,
        age_seconds: float,
        *,
        count_max: int | None = None,
        interval_seconds: float = 0.0,
    ) -> ShardsPruned:
        """Forget shards that were finished or given up long ago; never an open one.

        Args:
            source: Whose they are.
            age_seconds: Those that have not changed for so long.
            count_max: And those older than the newest so many.
            interval_seconds: Do nothing where another pruning of the source was so shortly ago.
        """
        body = build(
            ShardPrune,
            InvalidArgument,
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
