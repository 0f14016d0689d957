"""Stages and shards at a metadata service."""

from wings_core.metadata.interfaces import Shards, Stages
from wings_core.metadata.remote.paging import BY_TEXT
from wings_core.metadata.remote.rpc import Calls, Field, Paged, RemotePart, StepSize, rpc
from wings_core.metadata.shards import SHARDS_MAX
from wings_core.model import StoredPage, UnpublishedStage
from wings_core.protocol import messages
from wings_core.protocol.v1 import offset_registry_pb2 as pb

PUBLISH_SECONDS = 120.0
"""Longest time of a publish, which moves up to half a million pages."""

STAGE_PAGES = pb.DESCRIPTOR.services_by_name["StageService"].methods_by_name["ListStagePages"]


def _stage_name(stage: UnpublishedStage) -> str:
    return stage.stage


class RemoteStages(RemotePart, Stages):
    """See `Stages`.

    A publish whose response is lost raises `Unavailable` with the fact `in_doubt`; the same batch
    published again is answered with the first result.
    """

    publish = rpc(
        "StageService.PublishStages",
        Stages.publish,
        Calls.ONCE,
        call_seconds=PUBLISH_SECONDS,
        epoch=Field(encode=messages.int64),
        offsets=Field(None, messages.consumer_commit_message, messages.consumer_commit_of),
    )
    begin = rpc("StageService.BeginEpoch", Stages.begin, Calls.ONCE)
    abort = rpc("StageService.AbortStages", Stages.abort, Calls.ONCE)
    sweep = rpc("StageService.SweepStages", Stages.sweep, Calls.ONCE, stages_max=StepSize())
    of_topic = rpc(
        "StageService.ListStages", Stages.of_topic, Calls.LOOK, paged=Paged(BY_TEXT, _stage_name)
    )
    topics = rpc("StageService.ListTopicsOfStages", Stages.topics, Calls.LOOK)

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
            page = self._channel.look(self._channel.unary(STAGE_PAGES), request)
            found += map(messages.STORED_PAGE.decode, page.pages)
            token = page.next_page_token
        return found


def _clamped(most: int) -> Field:
    return Field(encode=lambda number: max(0, min(number, most)))


class RemoteShards(RemotePart, Shards):
    """See `Shards`. All calls may be retried where a response is lost."""

    open = rpc("ShardService.OpenShards", Shards.open, Calls.ONCE)
    acquire = rpc("ShardService.AcquireShards", Shards.acquire, Calls.ONCE)
    reset = rpc("ShardService.ResetShards", Shards.reset, Calls.ONCE)
    get = rpc("ShardService.GetShards", Shards.get, Calls.LOOK)
    of_source = rpc(
        "ShardService.ListShards", Shards.of_source, Calls.LOOK, shards_max=_clamped(SHARDS_MAX)
    )
    sources = rpc("ShardService.ListSources", Shards.sources, Calls.LOOK, paged=Paged(BY_TEXT, str))
    count = rpc("ShardService.CountShards", Shards.count, Calls.LOOK)
    prune = rpc("ShardService.PruneShards", Shards.prune, Calls.ONCE, count_max=_clamped(1 << 62))
