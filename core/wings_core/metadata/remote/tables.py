"""The files of tables at a metadata service: each method is a call."""

from collections.abc import Mapping, Sequence

from wings_core.metadata.maintenance import Lease
from wings_core.metadata.remote.channel import ServiceChannel
from wings_core.metadata.tables import TableSegment, TableStates
from wings_core.protocol import messages
from wings_core.protocol.v1 import tables_pb2 as pb
from wings_core.protocol.v1.stubs import TableServiceStub


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
        found = self._channel.look(self._stub.ListTables, pb.ListTablesRequest())
        return dict(found.identifiers)

    def begin(self, topic_uuid: str, identifier: str) -> int:
        """See `TableStates.begin`."""
        request = pb.BeginTableRequest(topic_uuid=topic_uuid, identifier=identifier)
        return self._channel.call(self._stub.BeginTable, request).number

    def segments(self, topic_uuid: str) -> list[TableSegment]:
        """See `TableStates.segments`."""
        request = pb.GetTableSegmentsRequest(topic_uuid=topic_uuid)
        found = self._channel.look(self._stub.GetTableSegments, request)
        return [messages.TABLE_SEGMENT.decode(each) for each in found.segments]

    def plan(
        self,
        topic_uuid: str,
        number: int,
        add: Sequence[TableSegment],
        remove: Sequence[str],
        lease: Lease,
    ) -> bool:
        """See `TableStates.plan`."""
        request = pb.PlanTableCommitRequest(
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
        request = pb.ConfirmTableCommitRequest(topic_uuid=topic_uuid, number=number)
        self._channel.call(self._stub.ConfirmTableCommit, request)

    def adopt(
        self, topic_uuid: str, number: int, segments: Sequence[TableSegment], lease: Lease
    ) -> bool:
        """See `TableStates.adopt`."""
        request = pb.AdoptTableRequest(
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
        self._channel.call(self._stub.ForgetTable, pb.ForgetTableRequest(topic_uuid=topic_uuid))
