"""Stages and shards at a metadata service: each method is a call."""

from collections.abc import Sequence
from dataclasses import replace

from wings_core.errors import InvalidArgument
from wings_core.metadata.interfaces import Shards, Stages
from wings_core.metadata.remote.channel import ServiceChannel
from wings_core.metadata.remote.paging import BY_TEXT, listed
from wings_core.metadata.remote.registry import offsets_request
from wings_core.metadata.shards import (
    SHARDS_MAX,
    check_claims,
    check_progress,
    check_seconds,
    check_shards,
    cut_error,
)
from wings_core.model import (
    Aborted,
    ConsumerCommit,
    Published,
    Shard,
    ShardClaim,
    ShardCounts,
    ShardProgress,
    ShardsPruned,
    ShardState,
    Stage,
    StoredPage,
)
from wings_core.names import TopicName
from wings_core.protocol import messages
from wings_core.protocol.v1 import offset_registry_pb2 as offset_registry_pb
from wings_core.protocol.v1 import shards_pb2 as shards_pb
from wings_core.protocol.v1.stubs import ShardServiceStub, StageServiceStub

PUBLISH_SECONDS = 120.0
"""How long a publish may take: it moves up to half a million pages."""


class RemoteStages(Stages):
    """See `Stages`.

    Args:
        channel: To the service.
    """

    def __init__(self, channel: ServiceChannel) -> None:
        self._channel = channel
        self._stub = StageServiceStub(channel.channel)

    def publish(
        self,
        writer: str,
        batch: int,
        stages: Sequence[str],
        shards: Sequence[ShardProgress] = (),
        *,
        epoch: int | None = None,
        offsets: ConsumerCommit | None = None,
    ) -> Published:
        """Make stages visible; see `Stages.publish`.

        Where the answer is lost, `Unavailable` is raised with the fact `in_doubt`; the same batch
        published again is answered with the first result.
        """
        _check_batch(batch)
        check_progress(shards)
        request = offset_registry_pb.PublishStagesRequest(
            writer=messages.text("the writer", writer),
            batch=batch,
            stages=[messages.text("the stage", stage) for stage in stages],
            shards=[messages.SHARD_PROGRESS.fields(_sendable(progress)) for progress in shards],
            epoch=None if epoch is None else messages.int64(epoch),
            offsets=None if offsets is None else offsets_request(offsets.consumer, offsets.offsets),
        )
        response = self._channel.call(self._stub.PublishStages, request, PUBLISH_SECONDS)
        return messages.PUBLISHED.decode(response)

    def begin(self, writer: str) -> int:
        """Begin the next epoch of a writer; see `Stages.begin`.

        Where the answer is lost, the call is repeated, and begins one more.
        """
        request = offset_registry_pb.BeginEpochRequest(writer=messages.text("the writer", writer))
        return self._channel.call(self._stub.BeginEpoch, request).epoch

    def abort(
        self,
        writer: str,
        stages: Sequence[str],
        batch: int | None = None,
        prefix: str | None = None,
    ) -> Aborted:
        """Delete stages; see `Stages.abort`."""
        if batch is not None:
            _check_batch(batch)
        request = offset_registry_pb.AbortStagesRequest(
            writer=messages.text("the writer", writer),
            stages=[messages.text("the stage", stage) for stage in stages],
            batch=batch,
            prefix=None if prefix is None else messages.text("the prefix", prefix),
        )
        response = self._channel.call(self._stub.AbortStages, request)
        return messages.ABORTED.decode(response)

    def sweep(self, seconds: float, stages_max: int) -> int:
        """Delete stages that were left alone; see `Stages.sweep`."""
        request = offset_registry_pb.SweepStagesRequest(seconds=seconds, stages_max=stages_max)
        return self._channel.call(self._stub.SweepStages, request).swept

    def of_topic(
        self, topic_uuid: str, *, after: str | None = None, items_max: int | None = None
    ) -> list[Stage]:
        """Return a topic's stages; see `Stages.of_topic`."""
        return listed(
            self._channel,
            self._stub.ListStages,
            offset_registry_pb.ListStagesRequest(topic_uuid=topic_uuid),
            lambda page: map(messages.STAGE.decode, page.stages),
            BY_TEXT,
            after,
            items_max,
        )

    def topics(self, stages: Sequence[str], prefix: str | None = None) -> set[TopicName]:
        """Return the topics of stages; see `Stages.topics`."""
        request = offset_registry_pb.ListTopicsOfStagesRequest(
            stages=[messages.text("the stage", stage) for stage in stages],
            prefix=None if prefix is None else messages.text("the prefix", prefix),
        )
        response = self._channel.look(self._stub.ListTopicsOfStages, request)
        return {TopicName.parse(name) for name in response.topics}

    def pages(self, stage: str, first: int, pages_max: int) -> list[StoredPage]:
        """Return some of the pages of a stage; see `Stages.pages`."""
        found: list[StoredPage] = []
        token = str(first)
        while len(found) < pages_max and token:
            request = offset_registry_pb.ListStagePagesRequest(
                stage=messages.text("the stage", stage),
                page_size=pages_max - len(found),
                page_token=token,
            )
            page = self._channel.look(self._stub.ListStagePages, request)
            found += map(messages.STORED_PAGE.decode, page.pages)
            token = page.next_page_token
        return found


def _check_batch(batch: int) -> None:
    if batch != messages.int64(batch):
        raise InvalidArgument(f"the batch {batch} has more than 64 bits")


def _sendable(progress: ShardProgress) -> ShardProgress:
    """Return what a publish does to a shard, its error cut to what stores keep."""
    return replace(progress, error=None if progress.error is None else cut_error(progress.error))


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
        request = shards_pb.OpenShardsRequest(
            source=source.encode(), token=token.encode(), shards=_bytes(shards)
        )
        return _shards(self._channel.call(self._stub.OpenShards, request))

    def acquire(
        self, source: str, token: str, claims: Sequence[ShardClaim], stale_seconds: float
    ) -> list[Shard]:
        """Take over shards from stale owners; see `Shards.acquire`."""
        check_claims(source, token, claims)
        check_seconds("stale_seconds", stale_seconds)
        request = shards_pb.AcquireShardsRequest(
            source=source.encode(),
            token=token.encode(),
            claims=[messages.SHARD_CLAIM.fields(claim) for claim in claims],
            stale_seconds=stale_seconds,
        )
        return _shards(self._channel.call(self._stub.AcquireShards, request))

    def reset(self, source: str, shards: Sequence[str]) -> list[Shard]:
        """Open dead shards again; see `Shards.reset`."""
        check_shards(source, None, shards)
        request = shards_pb.ResetShardsRequest(source=source.encode(), shards=_bytes(shards))
        return _shards(self._channel.call(self._stub.ResetShards, request))

    def get(self, source: str, shards: Sequence[str]) -> list[Shard]:
        """Return shards by their ids; see `Shards.get`."""
        check_shards(source, None, shards)
        request = shards_pb.GetShardsRequest(source=source.encode(), shards=_bytes(shards))
        return _shards(self._channel.look(self._stub.GetShards, request))

    def of_source(
        self, source: str, state: ShardState | None, after: str, shards_max: int
    ) -> list[Shard]:
        """Return shards of a source, by id; see `Shards.of_source`."""
        check_shards(source, None, ())
        request = shards_pb.ListShardsRequest(
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
            shards_pb.ListSourcesRequest(),
            lambda page: page.sources,
            BY_TEXT,
            after,
            sources_max,
        )

    def count(self, source: str) -> ShardCounts:
        """Count the shards of a source; see `Shards.count`."""
        check_shards(source, None, ())
        request = shards_pb.CountShardsRequest(source=source.encode())
        counts = self._channel.look(self._stub.CountShards, request)
        return messages.SHARD_COUNTS.decode(counts)

    def prune(
        self, source: str, age_seconds: float, count_max: int | None, interval_seconds: float
    ) -> ShardsPruned:
        """Delete shards that ended long ago; see `Shards.prune`."""
        check_shards(source, None, ())
        check_seconds("age_seconds", age_seconds)
        check_seconds("interval_seconds", interval_seconds)
        request = shards_pb.PruneShardsRequest(
            source=source.encode(),
            age_seconds=age_seconds,
            count_max=None if count_max is None else max(0, min(count_max, 1 << 62)),
            interval_seconds=interval_seconds,
        )
        response = self._channel.call(self._stub.PruneShards, request)
        return messages.SHARDS_PRUNED.decode(response)


def _shards(response: shards_pb.ShardsResponse) -> list[Shard]:
    return [messages.SHARD.decode(shard) for shard in response.shards]


def _bytes(texts: Sequence[str]) -> list[bytes]:
    return [text.encode() for text in texts]
