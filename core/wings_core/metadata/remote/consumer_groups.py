"""Consumer groups at a metadata service."""

from collections.abc import Mapping
from typing import Any

from wings_core.metadata.interfaces import ConsumerGroups
from wings_core.metadata.remote.paging import BY_TEXT
from wings_core.metadata.remote.rpc import Calls, Fields, Paged, RemotePart, rpc
from wings_core.model import GroupChange, GroupMember, StoredGroup
from wings_core.protocol.codec import Convert
from wings_core.protocol.v1 import consumer_groups_pb2 as pb


def _group_message(group: StoredGroup) -> pb.ConsumerGroup:
    members = [member.to_json() for member in group.members]
    return pb.ConsumerGroup(epoch=group.epoch, members=members)


def _group_of(message: pb.ConsumerGroup) -> StoredGroup:
    return StoredGroup(message.epoch, tuple(map(GroupMember.from_json, message.members)))


def _change_fields(change: GroupChange) -> Mapping[str, Any]:
    return {
        "epoch": change.epoch,
        "changed": [member.to_json() for member in change.changed],
        "removed": change.removed,
    }


def _change_of(request: pb.SaveConsumerGroupRequest) -> GroupChange:
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
