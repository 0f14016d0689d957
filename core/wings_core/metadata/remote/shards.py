"""Shards at a metadata service: each method is a call."""

from collections.abc import Sequence

from wings_core.errors import InvalidArgument
from wings_core.metadata.interfaces import Shards
from wings_core.metadata.remote.channel import ServiceChannel
from wings_core.metadata.shards import (
    SHARDS_MAX,
    check_claims,
    check_seconds,
    check_shards,
    cut_error,
)
from wings_core.model import (
    Shard,
    ShardClaim,
    ShardCounts,
    ShardProgress,
    ShardsPruned,
    ShardState,
)
from wings_core.protocol.v1 import shards_pb2 as pb
from wings_core.protocol.v1.shards_pb2_grpc import ShardServiceStub


class RemoteShards(Shards):
    """See `Shards`. All calls may be made again where an answer is lost.

    Args:
        channel: To the service.
    """

    def __init__(self, channel: ServiceChannel) -> None:
        self._channel = channel
        self._stub = ShardServiceStub(channel.channel)

    def open(self, source: str, token: str, shards: Sequence[str]) -> list[Shard]:
        """Create shards that are not there; see `Shards.open`."""
        check_shards(source, token, shards)
        request = pb.OpenShardsRequest(
            source=source.encode(), token=token.encode(), shards=_bytes(shards)
        )
        return shards_of(self._channel.call(self._stub.OpenShards, request))

    def acquire(
        self, source: str, token: str, claims: Sequence[ShardClaim], stale_seconds: float
    ) -> list[Shard]:
        """Take over shards from owners that were not heard of; see `Shards.acquire`."""
        check_claims(source, token, claims)
        check_seconds("stale_seconds", stale_seconds)
        request = pb.AcquireShardsRequest(
            source=source.encode(),
            token=token.encode(),
            claims=[
                pb.AcquireShardsRequest.Claim(
                    shard=claim.shard.encode(), token=claim.token.encode()
                )
                for claim in claims
            ],
            stale_seconds=stale_seconds,
        )
        return shards_of(self._channel.call(self._stub.AcquireShards, request))

    def reset(self, source: str, shards: Sequence[str]) -> list[Shard]:
        """Open dead shards again; see `Shards.reset`."""
        check_shards(source, None, shards)
        request = pb.ResetShardsRequest(source=source.encode(), shards=_bytes(shards))
        return shards_of(self._channel.call(self._stub.ResetShards, request))

    def get(self, source: str, shards: Sequence[str]) -> list[Shard]:
        """Return shards by their ids; see `Shards.get`."""
        check_shards(source, None, shards)
        request = pb.GetShardsRequest(source=source.encode(), shards=_bytes(shards))
        return shards_of(self._channel.look(self._stub.GetShards, request))

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
        return shards_of(self._channel.look(self._stub.ListShards, request))

    def count(self, source: str) -> ShardCounts:
        """Count the shards of a source; see `Shards.count`."""
        check_shards(source, None, ())
        request = pb.CountShardsRequest(source=source.encode())
        counts = self._channel.look(self._stub.CountShards, request)
        return ShardCounts(counts.open, counts.finished, counts.dead, counts.position)

    def prune(
        self, source: str, age_seconds: float, count_max: int | None, interval_seconds: float
    ) -> ShardsPruned:
        """Forget shards that ended long ago; see `Shards.prune`."""
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
        return ShardsPruned(response.shards, response.debounced)


def shards_message(shards: Sequence[Shard]) -> pb.ShardsResponse:
    """Return shards as a message."""
    return pb.ShardsResponse(
        shards=[
            pb.Shard(
                source=shard.source.encode(),
                shard=shard.shard.encode(),
                token=shard.token.encode(),
                position=shard.position,
                state=shard.state.value,
                failures=shard.failures,
                error=None if shard.error is None else shard.error.encode(),
                opened_at_us=shard.opened_at,
                updated_at_us=shard.updated_at,
            )
            for shard in shards
        ]
    )


def shards_of(message: pb.ShardsResponse) -> list[Shard]:
    """Return shards, from a message."""
    return [
        Shard(
            each.source.decode(),
            each.shard.decode(),
            each.token.decode(),
            each.position,
            state_of(each.state),
            each.failures,
            each.error.decode() if each.HasField("error") else None,
            each.opened_at_us,
            each.updated_at_us,
        )
        for each in message.shards
    ]


def progress_message(progress: ShardProgress) -> pb.ShardProgress:
    """Return what a publish does to a shard as a message; it was checked by `check_progress`."""
    return pb.ShardProgress(
        source=progress.source.encode(),
        shard=progress.shard.encode(),
        token=progress.token.encode(),
        position=progress.position,
        next_position=progress.next_position,
        state=progress.state.value,
        error=None if progress.error is None else cut_error(progress.error).encode(),
    )


def progress_of(message: pb.ShardProgress) -> ShardProgress:
    """Return what a publish does to a shard, from a message.

    Raises:
        InvalidArgument: A text of it is not UTF-8, or its state is none.
    """
    return ShardProgress(
        text_of(message.source),
        text_of(message.shard),
        text_of(message.token),
        message.position,
        message.next_position,
        state_of(message.state),
        text_of(message.error) if message.HasField("error") else None,
    )


def text_of(data: bytes) -> str:
    """Return a text, from a message.

    Raises:
        InvalidArgument: It is not UTF-8.
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidArgument(f"{data[:80]!r} is not UTF-8") from None


def state_of(text: str) -> ShardState:
    """Return a state, from a message.

    Raises:
        InvalidArgument: It is none.
    """
    try:
        return ShardState(text)
    except ValueError:
        raise InvalidArgument(f"{text[:80]!r} is not the state of a shard") from None


def _bytes(texts: Sequence[str]) -> list[bytes]:
    return [text.encode() for text in texts]
