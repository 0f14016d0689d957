"""Stages at a metadata service: each method is a call."""

from collections.abc import Sequence

from wings_core.errors import InvalidArgument
from wings_core.metadata.interfaces import Stages
from wings_core.metadata.remote import codec
from wings_core.metadata.remote.channel import ServiceChannel
from wings_core.metadata.remote.paging import listed
from wings_core.metadata.remote.shards import progress_message
from wings_core.metadata.shards import check_progress
from wings_core.model import Aborted, Published, ShardProgress, Stage, StoredPage
from wings_core.protocol.v1 import offset_registry_pb2 as pb
from wings_core.protocol.v1.offset_registry_pb2_grpc import StageServiceStub

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
            writer=codec.text("the writer", writer),
            batch=batch,
            stages=[codec.text("the stage", stage) for stage in stages],
            shards=[progress_message(progress) for progress in shards],
        )
        response = self._channel.call(self._stub.PublishStages, request, PUBLISH_SECONDS)
        return codec.published_of(response)

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
            writer=codec.text("the writer", writer),
            stages=[codec.text("the stage", stage) for stage in stages],
            batch=batch,
            prefix=None if prefix is None else codec.text("the prefix", prefix),
        )
        response = self._channel.call(self._stub.AbortStages, request)
        published = response.published if response.HasField("published") else None
        return Aborted(tuple(response.stages), published)

    def sweep(self, seconds: float, stages_max: int) -> int:
        """Delete stages that were left alone; see `Stages.sweep`."""
        request = pb.SweepStagesRequest(seconds=seconds, stages_max=stages_max)
        return self._channel.call(self._stub.SweepStages, request).swept

    def of_topic(
        self, topic_uuid: str, *, after: str | None = None, items_max: int | None = None
    ) -> list[Stage]:
        """Return a topic's stages; see `Stages.of_topic`."""
        found = listed(
            lambda size, token: self._channel.look(
                self._stub.ListStages,
                pb.ListStagesRequest(topic_uuid=topic_uuid, page_size=size, page_token=token),
            ),
            lambda page: page.stages,
            None if after is None else (after,),
            items_max,
        )
        return [codec.stage_of(each) for each in found]

    def pages(self, stage: str, first: int, pages_max: int) -> list[StoredPage]:
        """Return some of the pages of a stage; see `Stages.pages`."""
        found: list[StoredPage] = []
        token = str(first)
        while len(found) < pages_max and token:
            request = pb.ListStagePagesRequest(
                stage=codec.text("the stage", stage),
                page_size=pages_max - len(found),
                page_token=token,
            )
            page = self._channel.look(self._stub.ListStagePages, request)
            found += [codec.page_of(message) for message in page.pages]
            token = page.next_page_token
        return found


def _check_batch(batch: int) -> None:
    if batch != codec.int64(batch):
        raise InvalidArgument(f"the batch {batch} has more than 64 bits")
