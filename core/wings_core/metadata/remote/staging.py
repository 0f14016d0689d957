"""Stages at a metadata service: each method is a call."""

from collections.abc import Sequence
from dataclasses import replace

from wings_core.errors import InvalidArgument
from wings_core.metadata.interfaces import Stages
from wings_core.metadata.remote.channel import ServiceChannel
from wings_core.metadata.remote.paging import BY_TEXT, listed
from wings_core.metadata.shards import check_progress, cut_error
from wings_core.model import Aborted, Published, ShardProgress, Stage, StoredPage
from wings_core.names import TopicName
from wings_core.protocol import messages
from wings_core.protocol.v1 import offset_registry_pb2 as pb
from wings_core.protocol.v1.stubs import StageServiceStub

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
    ) -> Published:
        """Make stages visible; see `Stages.publish`.

        Where the answer is lost, `Unavailable` is raised with the fact `in_doubt`; the same batch
        published again is answered with the first result.
        """
        _check_batch(batch)
        check_progress(shards)
        request = pb.PublishStagesRequest(
            writer=messages.text("the writer", writer),
            batch=batch,
            stages=[messages.text("the stage", stage) for stage in stages],
            shards=[messages.SHARD_PROGRESS.fields(_sendable(progress)) for progress in shards],
        )
        response = self._channel.call(self._stub.PublishStages, request, PUBLISH_SECONDS)
        return messages.PUBLISHED.decode(response)

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
        request = pb.AbortStagesRequest(
            writer=messages.text("the writer", writer),
            stages=[messages.text("the stage", stage) for stage in stages],
            batch=batch,
            prefix=None if prefix is None else messages.text("the prefix", prefix),
        )
        response = self._channel.call(self._stub.AbortStages, request)
        return messages.ABORTED.decode(response)

    def sweep(self, seconds: float, stages_max: int) -> int:
        """Delete stages that were left alone; see `Stages.sweep`."""
        request = pb.SweepStagesRequest(seconds=seconds, stages_max=stages_max)
        return self._channel.call(self._stub.SweepStages, request).swept

    def of_topic(
        self, topic_uuid: str, *, after: str | None = None, items_max: int | None = None
    ) -> list[Stage]:
        """Return a topic's stages; see `Stages.of_topic`."""
        return listed(
            self._channel,
            self._stub.ListStages,
            pb.ListStagesRequest(topic_uuid=topic_uuid),
            lambda page: map(messages.STAGE.decode, page.stages),
            BY_TEXT,
            after,
            items_max,
        )

    def topics(self, stages: Sequence[str], prefix: str | None = None) -> set[TopicName]:
        """Return the topics of stages; see `Stages.topics`."""
        request = pb.ListTopicsOfStagesRequest(
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
            request = pb.ListStagePagesRequest(
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
