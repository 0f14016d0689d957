"""Maintenance and the files of tables at a metadata service: each method is a call."""

from collections.abc import Mapping, Sequence

from wings_core.metadata.maintenance import (
    Finished,
    Maintenance,
    MaintenanceLease,
    TableSegment,
    TableStates,
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
from wings_core.protocol.v1 import maintenance_pb2 as maintenance_pb
from wings_core.protocol.v1 import tables_pb2 as tables_pb
from wings_core.protocol.v1.stubs import MaintenanceServiceStub, TableServiceStub


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
        request = maintenance_pb.AcquireLeaseRequest(
            name=messages.text("the lease", name),
            holder=messages.text("the holder", holder),
            seconds=seconds,
        )
        response = self._channel.call(self._stub.AcquireLease, request)
        return response.token if response.HasField("token") else None

    def release_lease(self, name: str, holder: str) -> None:
        """Release a lease; see `Maintenance.release_lease`."""
        request = maintenance_pb.ReleaseLeaseRequest(
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
        request = maintenance_pb.ExpirePagesRequest(
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

    def replace_all(
        self, replacements: Sequence[Replacement], lease: MaintenanceLease
    ) -> list[bool]:
        """Put pages into the place of others; see `Maintenance.replace_all`.

        Where the answer is lost, `Unavailable` is raised with the fact `in_doubt`.
        """
        check_replacements(replacements)
        request = maintenance_pb.ReplaceAllPagesRequest(
            replacements=[messages.REPLACEMENT.fields(each) for each in replacements],
            lease=lease.name,
            holder=lease.holder,
            token=lease.token,
        )
        return list(self._channel.call(self._stub.ReplaceAllPages, request).replaced)

    def inline_backlog(self, pages_max: int) -> InlineBacklog:
        """Return what metadata keeps inline; see `Maintenance.inline_backlog`."""
        request = maintenance_pb.GetInlineBacklogRequest(pages_max=pages_max)
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
            maintenance_pb.ListTierStatesRequest(topic_uuid=topic_uuid),
            lambda page: map(messages.TIER_STATE.decode, page.tier_states),
            BY_PARTITION,
            after,
            partitions_max,
            lambda states: len({state.partition for state in states}),
        )
        return sorted(states, key=lambda state: (partition_sort_key(state.partition), state.remote))

    def topic_state(self, topic_uuid: str) -> TopicState:
        """Return the sums over a topic's partitions; see `Maintenance.topic_state`."""
        request = maintenance_pb.GetTopicStateRequest(topic_uuid=topic_uuid)
        return messages.TOPIC_STATE.decode(self._channel.look(self._stub.GetTopicState, request))

    def largest_topics(self, topics_max: int, grouped_max: int) -> LargestTopics:
        """Return the topics with most bytes; see `Maintenance.largest_topics`."""
        request = maintenance_pb.GetLargestTopicsRequest(
            topics_max=topics_max, grouped_max=grouped_max
        )
        return messages.LARGEST_TOPICS.decode(
            self._channel.look(self._stub.GetLargestTopics, request)
        )


class RemoteTables(TableStates):
    """See `TableStates`.

    Where an answer is lost, `Unavailable` is raised with the fact `in_doubt`; the next look at the
    segments tells whether it was done. All files of a table are one message, so they are at most
    some 500,000.

    Args:
        channel: To the service.
    """

    def __init__(self, channel: ServiceChannel) -> None:
        self._channel = channel
        self._stub = TableServiceStub(channel.channel)

    def tables(self) -> Mapping[str, str]:
        """See `TableStates.tables`."""
        found = self._channel.look(self._stub.ListTables, tables_pb.ListTablesRequest())
        return dict(found.identifiers)

    def begin(self, topic_uuid: str, identifier: str) -> int:
        """See `TableStates.begin`."""
        request = tables_pb.BeginTableRequest(topic_uuid=topic_uuid, identifier=identifier)
        return self._channel.call(self._stub.BeginTable, request).number

    def segments(self, topic_uuid: str) -> list[TableSegment]:
        """See `TableStates.segments`."""
        request = tables_pb.GetTableSegmentsRequest(topic_uuid=topic_uuid)
        found = self._channel.look(self._stub.GetTableSegments, request)
        return [messages.TABLE_SEGMENT.decode(each) for each in found.segments]

    def plan(
        self,
        topic_uuid: str,
        number: int,
        add: Sequence[TableSegment],
        remove: Sequence[str],
        lease: MaintenanceLease,
    ) -> bool:
        """See `TableStates.plan`."""
        request = tables_pb.PlanTableCommitRequest(
            topic_uuid=topic_uuid,
            number=number,
            add=[messages.TABLE_SEGMENT.fields(each) for each in add],
            remove=remove,
            lease=lease.name,
            holder=lease.holder,
            token=lease.token,
        )
        return self._channel.call(self._stub.PlanTableCommit, request).planned

    def confirm(self, topic_uuid: str, number: int) -> None:
        """See `TableStates.confirm`."""
        request = tables_pb.ConfirmTableCommitRequest(topic_uuid=topic_uuid, number=number)
        self._channel.call(self._stub.ConfirmTableCommit, request)

    def adopt(
        self,
        topic_uuid: str,
        number: int,
        segments: Sequence[TableSegment],
        lease: MaintenanceLease,
    ) -> bool:
        """See `TableStates.adopt`."""
        request = tables_pb.AdoptTableRequest(
            topic_uuid=topic_uuid,
            number=number,
            segments=[messages.TABLE_SEGMENT.fields(each) for each in segments],
            lease=lease.name,
            holder=lease.holder,
            token=lease.token,
        )
        return self._channel.call(self._stub.AdoptTable, request).adopted

    def forget(self, topic_uuid: str) -> None:
        """See `TableStates.forget`."""
        self._channel.call(
            self._stub.ForgetTable, tables_pb.ForgetTableRequest(topic_uuid=topic_uuid)
        )
