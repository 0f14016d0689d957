"""Maintenance and the files of tables at a metadata service."""

from wings_core.errors import InvalidArgument
from wings_core.metadata.maintenance import Maintenance, TableStates
from wings_core.metadata.remote.paging import BY_PARTITION
from wings_core.metadata.remote.rpc import Calls, Field, Paged, RemotePart, StepSize, rpc
from wings_core.model import TierState
from wings_core.partitions import Partition, partition_sort_key
from wings_core.protocol import messages
from wings_core.protocol.codec import Convert
from wings_core.protocol.v1 import tables_pb2 as tables_pb

_NEAREST = Field(encode=messages.int64)


LEASE_SECONDS_MAX = 3_600.0
"""The longest lease: no other holder can take it before it ends."""


def _lease_seconds(seconds: float) -> float:
    if not 0 < seconds <= LEASE_SECONDS_MAX:
        raise InvalidArgument(
            f"a lease of {seconds:g} s: expected more than 0 and at most {LEASE_SECONDS_MAX:g}"
        )
    return seconds


def _partition(state: TierState) -> Partition:
    return state.partition


def _in_order(states: list[TierState]) -> list[TierState]:
    return sorted(states, key=lambda state: (partition_sort_key(state.partition), state.remote))


class RemoteMaintenance(RemotePart, Maintenance):
    """See `Maintenance`.

    A replacement whose response is lost raises `Unavailable` with the fact `in_doubt`.
    """

    acquire_lease = rpc(
        "MaintenanceService.AcquireLease",
        Maintenance.acquire_lease,
        Calls.ONCE,
        seconds=Field(decode=_lease_seconds),
    )
    release_lease = rpc("MaintenanceService.ReleaseLease", Maintenance.release_lease, Calls.ONCE)
    lease_holder = rpc("MaintenanceService.GetLeaseHolder", Maintenance.lease_holder, Calls.LOOK)
    expire = rpc(
        "MaintenanceService.ExpirePages",
        Maintenance.expire,
        Calls.ONCE,
        age_us=_NEAREST,
        bytes_kept=_NEAREST,
        pages_max=StepSize(),
    )
    replace = rpc("MaintenanceService.ReplacePages", Maintenance.replace, Calls.ONCE)
    replace_all = rpc("MaintenanceService.ReplaceAllPages", Maintenance.replace_all, Calls.ONCE)
    inline_backlog = rpc(
        "MaintenanceService.GetInlineBacklog",
        Maintenance.inline_backlog,
        Calls.LOOK,
        pages_max=StepSize(),
    )
    tier_states = rpc(
        "MaintenanceService.ListTierStates",
        Maintenance.tier_states,
        Calls.LOOK,
        paged=Paged(BY_PARTITION, _partition, arrange=_in_order),
    )
    topic_state = rpc("MaintenanceService.GetTopicState", Maintenance.topic_state, Calls.LOOK)
    largest_topics = rpc(
        "MaintenanceService.GetLargestTopics",
        Maintenance.largest_topics,
        Calls.LOOK,
        topics_max=StepSize(),
        grouped_max=StepSize(),
    )


class RemoteTables(RemotePart, TableStates):
    """See `TableStates`.

    A call whose response is lost raises `Unavailable` with the fact `in_doubt`; the next look at
    the segments shows whether it took effect. All files of a table are one message, so they are at
    most some 500,000.
    """

    tables = rpc(
        "TableService.ListTables",
        TableStates.tables,
        Calls.LOOK,
        answer=Convert(
            lambda found: tables_pb.ListTablesResponse(identifiers=found),
            lambda response: dict(response.identifiers),
        ),
    )
    begin = rpc("TableService.BeginTable", TableStates.begin, Calls.ONCE)
    segments = rpc("TableService.GetTableSegments", TableStates.segments, Calls.LOOK)
    plan = rpc("TableService.PlanTableCommit", TableStates.plan, Calls.ONCE)
    confirm = rpc("TableService.ConfirmTableCommit", TableStates.confirm, Calls.ONCE)
    adopt = rpc("TableService.AdoptTable", TableStates.adopt, Calls.ONCE)
    forget = rpc("TableService.ForgetTable", TableStates.forget, Calls.ONCE)
