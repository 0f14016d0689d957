"""Shards at a metadata service: each method is a call."""

from collections.abc import Sequence

from wings_core.metadata.interfaces import Shards
from wings_core.metadata.remote.channel import ServiceChannel
from wings_core.metadata.remote.paging import BY_TEXT, listed
from wings_core.metadata.shards import (
    SHARDS_MAX,
    check_claims,
    check_seconds,
    check_shards,
)
from wings_core.model import (
    Shard,
    ShardClaim,
    ShardCounts,
    ShardsPruned,
    ShardState,
)
from wings_core.protocol import messages
from wings_core.protocol.v1 import shards_pb2 as pb
from wings_core.protocol.v1.stubs import ShardServiceStub


class RemoteShards(Shards):
    """See `Shards`. All calls may be retried where a response is lost.

    Args:
        channel: To the service.
    """

    def __init__(self, channel: ServiceChannel) -> None:
        self._channel = channel
        self._stub = ShardServiceStub(channel.channel)

    def open(self, source: str, token: str, shards: Sequence[str]) -> list[Shard]:
        """Create missing shards; see `Shards.open`."""
        check_shards(source, token, shards)
        request = pb.OpenShardsRequest(
            source=source.encode(), token=token.encode(), shards=_bytes(shards)
        )
        return _shards(self._channel.call(self._stub.OpenShards, request))

    def acquire(
        self, source: str, token: str, claims: Sequence[ShardClaim], stale_seconds: float
    ) -> list[Shard]:
        """Take over shards from stale owners; see `Shards.acquire`."""
        check_claims(source, token, claims)
        check_seconds("stale_seconds", stale_seconds)
        request = pb.AcquireShardsRequest(
            source=source.encode(),
            token=token.encode(),
            claims=[messages.SHARD_CLAIM.fields(claim) for claim in claims],
            stale_seconds=stale_seconds,
        )
        return _shards(self._channel.call(self._stub.AcquireShards, request))

    def reset(self, source: str, shards: Sequence[str]) -> list[Shard]:
        """Open dead shards again; see `Shards.reset`."""
        check_shards(source, None, shards)
        request = pb.ResetShardsRequest(source=source.encode(), shards=_bytes(shards))
        return _shards(self._channel.call(self._stub.ResetShards, request))

    def get(self, source: str, shards: Sequence[str]) -> list[Shard]:
        """Return shards by their ids; see `Shards.get`."""
        check_shards(source, None, shards)
        request = pb.GetShardsRequest(source=source.encode(), shards=_bytes(shards))
        return _shards(self._channel.look(self._stub.GetShards, request))

    def of_source(
        self, source: str, state: ShardState | None, after: str, shards_max: int
    ) -> list[Shard]:
        """Return shards of a source, by id; see `Shards.of_source`."""
        check_shards(source, None, ())
        request = pb.ListShardsRequest(
            source=source.encode(),
            state=None if state is None else state.value,
            after=after.encode("utf-8", "replace"),
            shards_max=max(0, min(shards_max, SHARDS_MAX)),
        )
        return _shards(self._channel.look(self._stub.ListShards, request))

    def sources(self, sources_max: int, *, after: str | None = None) -> list[str]:
        """Return the sources that have shards; see `Shards.sources`."""
        return listed(
            self._channel,
            self._stub.ListSources,
            pb.ListSourcesRequest(),
            lambda page: page.sources,
            BY_TEXT,
            after,
            sources_max,
        )

    def count(self, source: str) -> ShardCounts:
        """Count the shards of a source; see `Shards.count`."""
        check_shards(source, None, ())
        request = pb.CountShardsRequest(source=source.encode())
        counts = self._channel.look(self._stub.CountShards, request)
        return messages.SHARD_COUNTS.decode(counts)

    def prune(
        self, source: str, age_seconds: float, count_max: int | None, interval_seconds: float
    ) -> ShardsPruned:
        """Delete shards that ended long ago; see `Shards.prune`."""
        check_shards(source, None, ())
        check_seconds("age_seconds", age_seconds)
        check_seconds("interval_seconds", interval_seconds)
        request = pb.PruneShardsRequest(
            source=source.encode(),
            age_seconds=age_seconds,
            count_max=None if count_max is None else max(0, min(count_max, 1 << 62)),
            interval_seconds=interval_seconds,
        )
        response = self._channel.call(self._stub.PruneShards, request)
        return messages.SHARDS_PRUNED.decode(response)


def _shards(response: pb.ShardsResponse) -> list[Shard]:
    return [messages.SHARD.decode(shard) for shard in response.shards]


def _bytes(texts: Sequence[str]) -> list[bytes]:
    return [text.encode() for text in texts]
