"""What the RPCs on tables do; see `handlers`."""

# ruff: noqa: D102 - what an RPC means is said in its `.proto` file.

from collections.abc import Iterable
from dataclasses import replace

from wings_core.metadata.interfaces import Metadata
from wings_core.metadata.maintenance import Lease
from wings_core.metadata.tables import TableSegment
from wings_core.partitions import canonical_partition
from wings_core.protocol import messages
from wings_core.protocol.v1 import tables_pb2 as pb


class TableHandlers:
    """Handles the methods of `wings.v1.TableService`."""

    def __init__(self, metadata: Metadata) -> None:
        self._tables = metadata.tables

    def list_tables(self, _: pb.ListTablesRequest) -> pb.ListTablesResponse:
        return pb.ListTablesResponse(identifiers=self._tables.tables())

    def begin_table(self, request: pb.BeginTableRequest) -> pb.BeginTableResponse:
        number = self._tables.begin(request.topic_uuid, request.identifier)
        return pb.BeginTableResponse(number=number)

    def get_table_segments(
        self, request: pb.GetTableSegmentsRequest
    ) -> pb.GetTableSegmentsResponse:
        segments = self._tables.segments(request.topic_uuid)
        return pb.GetTableSegmentsResponse(segments=map(messages.TABLE_SEGMENT.fields, segments))

    def plan_table_commit(self, request: pb.PlanTableCommitRequest) -> pb.PlanTableCommitResponse:
        planned = self._tables.plan(
            request.topic_uuid,
            request.number,
            _segments(request.add),
            list(request.remove),
            Lease(request.lease, request.holder, request.token),
        )
        return pb.PlanTableCommitResponse(planned=planned)

    def confirm_table_commit(
        self, request: pb.ConfirmTableCommitRequest
    ) -> pb.ConfirmTableCommitResponse:
        self._tables.confirm(request.topic_uuid, request.number)
        return pb.ConfirmTableCommitResponse()

    def adopt_table(self, request: pb.AdoptTableRequest) -> pb.AdoptTableResponse:
        adopted = self._tables.adopt(
            request.topic_uuid,
            request.number,
            _segments(request.segments),
            Lease(request.lease, request.holder, request.token),
        )
        return pb.AdoptTableResponse(adopted=adopted)

    def forget_table(self, request: pb.ForgetTableRequest) -> pb.ForgetTableResponse:
        self._tables.forget(request.topic_uuid)
        return pb.ForgetTableResponse()


def _segments(found: Iterable[pb.TableSegment]) -> list[TableSegment]:
    return [
        replace(messages.TABLE_SEGMENT.decode(each), partition=canonical_partition(each.partition))
        for each in found
    ]
