"""Parts of metadata at a service whose calls are declared by `rpc`.

Stages and shards, transactions, consumer groups, maintenance and the files of tables.
"""

from collections.abc import Mapping
from typing import Any

from wings_core.contracts.shards import SHARDS_MAX
from wings_core.errors import InvalidArgument
from wings_core.metadata.interfaces import ConsumerGroups, Shards, Stages, Transactions
from wings_core.metadata.maintenance import Maintenance, TableStates
from wings_core.metadata.remote.rpc import (
    BY_PARTITION,
    BY_TEXT,
    Calls,
    Field,
    Fields,
    Paged,
    RemotePart,
    StepSize,
    rpc,
)
from wings_core.model import (
    GroupChange,
    GroupMember,
    StoredGroup,
    StoredPage,
    TierState,
    Topic,
)
from wings_core.partitions import Partition, canonical_partition, partition_sort_key
from wings_core.protocol import messages
from wings_core.protocol.codec import Convert
from wings_core.protocol.v1 import consumer_groups_pb2 as groups_pb
from wings_core.protocol.v1 import offset_registry_pb2 as stages_pb
from wings_core.protocol.v1 import tables_pb2 as tables_pb
from wings_core.protocol.v1 import transactions_pb2 as transactions_pb

PUBLISH_SECONDS = 120.0
"""Longest time of a publish, which moves up to half a million pages."""

_STAGE_SERVICE = stages_pb.DESCRIPTOR.services_by_name["StageService"]


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
        "StageService.ListStages",
        Stages.of_topic,
        Calls.LOOK,
        paged=Paged(BY_TEXT, lambda stage: stage.stage),
    )
    topics = rpc("StageService.ListTopicsOfStages", Stages.topics, Calls.LOOK)

    def pages(self, stage: str, first: int, pages_max: int) -> list[StoredPage]:
        """Return some of the pages of a stage; see `Stages.pages`."""
        method = self._channel.unary(_STAGE_SERVICE.methods_by_name["ListStagePages"])
        found: list[StoredPage] = []
        token = str(first)
        while len(found) < pages_max and token:
            request = stages_pb.ListStagePagesRequest(
                stage=messages.text("the stage", stage),
                page_size=pages_max - len(found),
                page_token=token,
            )
            page = self._channel.look(method, request)
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


def _entry(given: tuple[Topic, Partition]) -> transactions_pb.AddTransactionPartitionsRequest.Entry:
    topic, partition = given
    return transactions_pb.AddTransactionPartitionsRequest.Entry(
        topic=str(topic.name), topic_uuid=topic.uuid, partition=partition
    )


def _partition_of(entry: Any) -> tuple[Topic, Partition]:
    topic = messages.named_topic(entry.topic, entry.topic_uuid)
    return topic, canonical_partition(entry.partition)


_PARTITIONS = Field(None, _entry, _partition_of)
_OFFSETS = Field(None, messages.consumer_commit_message, messages.consumer_commit_of)


class RemoteTransactions(RemotePart, Transactions):
    """See `Transactions`. Changes are repeated where their response is lost."""

    join = rpc("TransactionService.JoinTransactions", Transactions.join, Calls.REPEAT)
    add_partitions = rpc(
        "TransactionService.AddTransactionPartitions",
        Transactions.add_partitions,
        Calls.REPEAT,
        partitions=_PARTITIONS,
    )
    add_offsets = rpc(
        "TransactionService.AddTransactionOffsets",
        Transactions.add_offsets,
        Calls.REPEAT,
        offsets=_OFFSETS,
    )
    end = rpc(
        "TransactionService.EndTransaction",
        Transactions.end,
        Calls.REPEAT,
        call_seconds=PUBLISH_SECONDS,
    )
    expire = rpc(
        "TransactionService.ExpireTransactions",
        Transactions.expire,
        Calls.ONCE,
        transactions_max=StepSize(),
    )
    find = rpc("TransactionService.GetTransaction", Transactions.find, Calls.LOOK)
    pending = rpc("TransactionService.ListPendingOffsets", Transactions.pending, Calls.LOOK)


def _group_message(group: StoredGroup) -> groups_pb.ConsumerGroup:
    members = [member.to_json() for member in group.members]
    return groups_pb.ConsumerGroup(epoch=group.epoch, members=members)


def _group_of(message: groups_pb.ConsumerGroup) -> StoredGroup:
    return StoredGroup(message.epoch, tuple(map(GroupMember.from_json, message.members)))


def _change_fields(change: GroupChange) -> Mapping[str, Any]:
    return {
        "epoch": change.epoch,
        "changed": [member.to_json() for member in change.changed],
        "removed": change.removed,
    }


def _change_of(request: groups_pb.SaveConsumerGroupRequest) -> GroupChange:
    changed = tuple(map(GroupMember.from_json, request.changed))
    return GroupChange(request.epoch, changed, tuple(request.removed))


class RemoteConsumerGroups(RemotePart, ConsumerGroups):
    """See `ConsumerGroups`.

    A change whose response is lost is stored again, which its lease allows: nobody else changes
    the group.
    """

    load = rpc(
        "ConsumerGroupService.LoadConsumerGroup",
        ConsumerGroups.load,
        Calls.LOOK,
        answer=Convert(_group_message, _group_of),
    )
    save = rpc(
        "ConsumerGroupService.SaveConsumerGroup",
        ConsumerGroups.save,
        Calls.REPEAT,
        change=Fields(("epoch", "changed", "removed"), _change_fields, _change_of),
    )
    names = rpc(
        "ConsumerGroupService.ListConsumerGroups",
        ConsumerGroups.names,
        Calls.LOOK,
        paged=Paged(BY_TEXT, str),
    )


_NEAREST = Field(encode=messages.int64)


LEASE_SECONDS_MAX = 3_600.0
"""The longest lease: no other holder can take it before it ends."""


def _lease_seconds(seconds: float) -> float:
    if not 0 < seconds <= LEASE_SECONDS_MAX:
        raise InvalidArgument(
            f"a lease of {seconds:g} s: expected more than 0 and at most {LEASE_SECONDS_MAX:g}"
        )
    return seconds


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
        paged=Paged(BY_PARTITION, lambda state: state.partition, arrange=_in_order),
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
