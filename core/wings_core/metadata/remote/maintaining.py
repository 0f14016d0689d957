"""Maintenance at a metadata service: each method is a call."""

from collections.abc import Sequence

from wings_core.metadata.maintenance import (
    Finished,
    Lease,
    Maintenance,
    check_replacements,
)
from wings_core.metadata.remote.channel import ServiceChannel
from wings_core.metadata.remote.paging import BY_PARTITION, listed
from wings_core.model import (
    Expired,
    InlineBacklog,
    LargestTopics,
    Replacement,
    TierState,
    TopicState,
)
from wings_core.partitions import Partition, partition_sort_key
from wings_core.protocol import messages
from wings_core.protocol.v1 import maintenance_pb2 as pb
from wings_core.protocol.v1.stubs import MaintenanceServiceStub


class RemoteMaintenance(Maintenance):
    """See `Maintenance`.

    Args:
        channel: To the service.
    """

    def __init__(self, channel: ServiceChannel) -> None:
        self._channel = channel
        self._stub = MaintenanceServiceStub(channel.channel)

    def acquire_lease(self, name: str, holder: str, seconds: float) -> int | None:
        """Take or prolong a lease; see `Maintenance.acquire_lease`."""
        request = pb.AcquireLeaseRequest(
            name=messages.text("the lease", name),
            holder=messages.text("the holder", holder),
            seconds=seconds,
        )
        response = self._channel.call(self._stub.AcquireLease, request)
        return response.token if response.HasField("token") else None

    def release_lease(self, name: str, holder: str) -> None:
        """Release a lease; see `Maintenance.release_lease`."""
        request = pb.ReleaseLeaseRequest(
            name=messages.text("the lease", name), holder=messages.text("the holder", holder)
        )
        self._channel.call(self._stub.ReleaseLease, request)

    def expire(
        self,
        topic_uuid: str,
        partition: Partition,
        *,
        age_us: int | None,
        bytes_kept: int | None,
        finished: Finished | None = None,
        outside_tables: bool = False,
        pages_max: int,
    ) -> Expired:
        """Drop the oldest pages of a partition; see `Maintenance.expire`."""
        request = pb.ExpirePagesRequest(
            topic_uuid=topic_uuid,
            partition=partition,
            age_us=None if age_us is None else messages.int64(age_us),
            bytes_kept=None if bytes_kept is None else messages.int64(bytes_kept),
            pages_max=pages_max,
            finished_before=None if finished is None else messages.int64(finished.before),
            group_uuids=() if finished is None else sorted(finished.groups),
            outside_tables=outside_tables,
        )
        response = self._channel.call(self._stub.ExpirePages, request)
        return messages.EXPIRED.decode(response)

    def replace_all(self, replacements: Sequence[Replacement], lease: Lease) -> list[bool]:
        """Put pages into the place of others; see `Maintenance.replace_all`.

        Where the answer is lost, `Unavailable` is raised with the fact `in_doubt`.
        """
        check_replacements(replacements)
        request = pb.ReplaceAllPagesRequest(
            replacements=[messages.REPLACEMENT.fields(each) for each in replacements],
            lease=lease.name,
            holder=lease.holder,
            token=lease.token,
        )
        return list(self._channel.call(self._stub.ReplaceAllPages, request).replaced)

    def inline_backlog(self, pages_max: int) -> InlineBacklog:
        """Return what metadata keeps inline; see `Maintenance.inline_backlog`."""
        request = pb.GetInlineBacklogRequest(pages_max=pages_max)
        return messages.INLINE_BACKLOG.decode(
            self._channel.look(self._stub.GetInlineBacklog, request)
        )

    def tier_states(
        self,
        topic_uuid: str,
        *,
        after: Partition | None = None,
        partitions_max: int | None = None,
    ) -> list[TierState]:
        """Return what the partitions have in each tier; see `Maintenance.tier_states`."""
        states = listed(
            self._channel,
            self._stub.ListTierStates,
            pb.ListTierStatesRequest(topic_uuid=topic_uuid),
            lambda page: map(messages.TIER_STATE.decode, page.tier_states),
            BY_PARTITION,
            after,
            partitions_max,
            lambda states: len({state.partition for state in states}),
        )
        return sorted(states, key=lambda state: (partition_sort_key(state.partition), state.remote))

    def topic_state(self, topic_uuid: str) -> TopicState:
        """Return the sums over a topic's partitions; see `Maintenance.topic_state`."""
        request = pb.GetTopicStateRequest(topic_uuid=topic_uuid)
        return messages.TOPIC_STATE.decode(self._channel.look(self._stub.GetTopicState, request))

    def largest_topics(self, topics_max: int, grouped_max: int) -> LargestTopics:
        """Return the topics with most bytes; see `Maintenance.largest_topics`."""
        request = pb.GetLargestTopicsRequest(topics_max=topics_max, grouped_max=grouped_max)
        return messages.LARGEST_TOPICS.decode(
            self._channel.look(self._stub.GetLargestTopics, request)
        )
