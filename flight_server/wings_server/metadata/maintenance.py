"""What each RPC of maintenance does; see `handlers`."""

from dataclasses import replace

from wings_core.errors import InvalidArgument
from wings_core.metadata.interfaces import Metadata
from wings_core.metadata.maintenance import Finished, Lease
from wings_core.metadata.remote.paging import BY_PARTITION
from wings_core.partitions import canonical_partition
from wings_core.protocol import messages
from wings_core.protocol.v1 import maintenance_pb2 as pb
from wings_server.metadata.paging import page, step

LEASE_SECONDS_MAX = 3_600.0
"""The longest lease: no other holder can take it before it ends."""


class MaintenanceHandlers:
    """The RPCs of `wings.v1.MaintenanceService`.

    Args:
        metadata: What is served.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._maintenance = metadata.maintenance

    def acquire_lease(self, request: pb.AcquireLeaseRequest) -> pb.AcquireLeaseResponse:
        """Grant a lease that is free, or prolong the holder's own."""
        if not 0 < request.seconds <= LEASE_SECONDS_MAX:
            raise InvalidArgument(
                f"a lease of {request.seconds:g} s: expected more than 0 and at most "
                f"{LEASE_SECONDS_MAX:g}"
            )
        token = self._maintenance.acquire_lease(request.name, request.holder, request.seconds)
        return pb.AcquireLeaseResponse(token=token)

    def release_lease(self, request: pb.ReleaseLeaseRequest) -> pb.ReleaseLeaseResponse:
        """Release a lease."""
        self._maintenance.release_lease(request.name, request.holder)
        return pb.ReleaseLeaseResponse()

    def expire_pages(self, request: pb.ExpirePagesRequest) -> pb.ExpirePagesResponse:
        """Drop the oldest pages of a partition."""
        expired = self._maintenance.expire(
            request.topic_uuid,
            canonical_partition(request.partition),
            age_us=request.age_us if request.HasField("age_us") else None,
            bytes_kept=request.bytes_kept if request.HasField("bytes_kept") else None,
            finished=(
                Finished(request.finished_before, frozenset(request.group_uuids))
                if request.HasField("finished_before")
                else None
            ),
            outside_tables=request.outside_tables,
            pages_max=step("pages_max", request.pages_max),
        )
        return messages.EXPIRED.encode(expired)

    def replace_pages(self, request: pb.ReplacePagesRequest) -> pb.ReplacePagesResponse:
        """Put merged pages into the place of others."""
        replaced = self._maintenance.replace(
            request.topic_uuid,
            canonical_partition(request.partition),
            [messages.LOCATION.decode(location) for location in request.old],
            [messages.LOCATION.decode(location) for location in request.new],
            Lease(request.lease, request.holder, request.token),
        )
        return pb.ReplacePagesResponse(replaced=replaced)

    def replace_all_pages(self, request: pb.ReplaceAllPagesRequest) -> pb.ReplaceAllPagesResponse:
        """Put pages into the place of others, in many partitions."""
        replaced = self._maintenance.replace_all(
            [
                replace(
                    messages.REPLACEMENT.decode(each),
                    partition=canonical_partition(each.partition),
                )
                for each in request.replacements
            ],
            Lease(request.lease, request.holder, request.token),
        )
        return pb.ReplaceAllPagesResponse(replaced=replaced)

    def get_inline_backlog(self, request: pb.GetInlineBacklogRequest) -> pb.InlineBacklog:
        """Answer what is inline."""
        pages_max = step("pages_max", request.pages_max)
        return messages.INLINE_BACKLOG.encode(self._maintenance.inline_backlog(pages_max))

    def list_tier_states(self, request: pb.ListTierStatesRequest) -> pb.ListTierStatesResponse:
        """Answer a page of what a topic's partitions have in each tier."""
        found, token = page(
            request,
            BY_PARTITION,
            lambda after, most: self._maintenance.tier_states(
                request.topic_uuid, after=after, partitions_max=most
            ),
            lambda state: state.partition,
        )
        return pb.ListTierStatesResponse(
            tier_states=map(messages.TIER_STATE.fields, found), next_page_token=token
        )

    def get_topic_state(self, request: pb.GetTopicStateRequest) -> pb.TopicState:
        """Answer the sums over a topic's partitions."""
        return messages.TOPIC_STATE.encode(self._maintenance.topic_state(request.topic_uuid))

    def get_largest_topics(self, request: pb.GetLargestTopicsRequest) -> pb.LargestTopics:
        """Answer the topics with most bytes."""
        topics_max = step("topics_max", request.topics_max)
        grouped_max = step("grouped_max", request.grouped_max)
        return messages.LARGEST_TOPICS.encode(
            self._maintenance.largest_topics(topics_max, grouped_max)
        )
