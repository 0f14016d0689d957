"""Requests of administrators about groups: those with members, and those with offsets alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from wings_core.errors import FencedMember
from wings_core.security.principal import Principal
from wings_core.security.rights import Right
from wings_server.group_actions import group_node
from wings_server.kafka.consumer_requests import members_of, state_of
from wings_server.kafka.errors import FAILURES, KafkaError
from wings_server.kafka.group_requests import (
    CONSUMER_PROTOCOL,
    admit,
    check_read,
    coordinator_of,
    group_code,
)
from wings_server.kafka.groups import Group, State
from wings_server.kafka.messages import Request, Values
from wings_server.kafka.service import KafkaService
from wings_server.kafka.topics import partition_at

LISTED_AT_ONCE = 1_000
"""Groups with offsets that one look into metadata returns."""

CLASSIC, CONSUMER = "classic", "consumer"
"""Types of groups: those whose members assign, and those of KIP-848."""

DEAD = "Dead"
"""State of a group that does not exist."""


async def list_groups(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `ListGroups`: the groups that have members, or an offset in a topic that exists.

    Of several nodes, each lists those that it coordinates.

    A caller that is no operator is told of those with a topic that it may read: one that they have
    an offset in, or that a member subscribes to.
    """
    body = request.body
    states = {each.lower() for each in getattr(body, "states_filter", ())}
    types = {each.lower() for each in getattr(body, "types_filter", ())}
    live = {group.id: _listed(group) for group in service.groups if group.members}
    try:
        admit(principal)
        found = await service.read(lambda: _all(service, principal, live))
    except FAILURES as error:
        return {"error_code": group_code(error)}
    return {
        "groups": [
            each
            for each in found
            if (not states or each["group_state"].lower() in states)
            and (not types or each["group_type"] in types)
        ]
    }


def _listed(group: Group) -> Values:
    return {
        "group_id": group.id,
        "protocol_type": group.protocol_type or "",
        "group_state": group.state.value,
        "group_type": CLASSIC,
    }


def _all(
    service: KafkaService, principal: Principal, live: Mapping[str, Values]
) -> Sequence[Values]:
    stored = service.log.metadata.consumer_groups
    groups = {
        each: _entry(each, CLASSIC)
        for each in _group_ids(service, service.log.registry.list_consumers)
    }
    for group_id in _group_ids(service, stored.names):
        members = stored.load(service.consumer_of(group_id)).members
        if members:
            groups[group_id] = _entry(group_id, CONSUMER, state_of(members))
    own = service.brokers.own_id()
    return [
        group
        for group_id, group in {**groups, **live}.items()
        if group_id in live or coordinator_of(service, group_id) == own
        if principal.is_operator or _topics_of(service, group_id, principal)
    ]


def _entry(group_id: str, kind: str, state: str = State.EMPTY.value) -> Values:
    return {
        "group_id": group_id,
        "protocol_type": CONSUMER_PROTOCOL,
        "group_state": state,
        "group_type": kind,
    }


def _group_ids(service: KafkaService, names: Callable[..., Sequence[str]]) -> Iterator[str]:
    """Yield the ids of groups among the names of consumers, which are given page by page."""
    after = prefix = service.consumer_of("")
    while page := names(LISTED_AT_ONCE, after=after):
        for name in page:
            if not name.startswith(prefix):
                return
            yield name.removeprefix(prefix)
        after = page[-1]


def _topics_of(service: KafkaService, group_id: str, principal: Principal) -> set[str]:
    """Return the topics of a group, by offsets and members, that a principal may read."""
    consumer = service.consumer_of(group_id)
    names = {str(each.topic) for each in service.log.registry.get_offsets(consumer)}
    members = service.log.metadata.consumer_groups.load(consumer).members
    if members:
        subscribed = {topic for member in members for topic in member.topics}
        names.update(group_node(service.log).names_of(subscribed).values())
    classic = service.groups.get(group_id)
    if classic is not None:
        names.update(classic.topics)
    return {name for name in names if principal.may(Right.READ, name)}


def _is_known(service: KafkaService, group_id: str, principal: Principal) -> bool:
    """Return whether a group without classic members has a topic that a principal may read.

    Raises:
        KafkaError: Another node coordinates the group.
    """
    if coordinator_of(service, group_id) != service.brokers.own_id():
        raise KafkaError(ErrorCode.not_coordinator)
    return bool(_topics_of(service, group_id, principal))


async def describe_groups(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `DescribeGroups`: the members of classic groups, with what they assigned.

    The caller needs the right to read each topic that they subscribe to.
    """
    described: list[Values] = []
    for group_id in request.body.groups:
        try:
            admit(principal)
            if not group_id:
                raise KafkaError(ErrorCode.invalid_group_id)
            group = service.groups.get(group_id)
            if group is not None:
                check_read(principal, group.topics)
                described.append(_described(group))
                continue
            is_known = await service.read(
                lambda group_id=group_id: _is_known(service, group_id, principal)
            )
            state = State.EMPTY.value if is_known else DEAD
            described.append(
                {
                    "group_id": group_id,
                    "group_state": state,
                    "protocol_type": CONSUMER_PROTOCOL if is_known else "",
                }
            )
        except FAILURES as error:
            described.append({"group_id": group_id, "error_code": group_code(error)})
    return {"groups": described}


def _described(group: Group) -> Values:
    """Return a description; what was agreed upon only while it is stable, as at Kafka."""
    is_stable = group.state is State.STABLE
    assignor = group.protocol if is_stable else None
    members: list[dict[str, Any]] = [
        {
            "member_id": each.id,
            "group_instance_id": each.instance,
            "client_id": each.client,
            "member_metadata": b"" if assignor is None else each.protocols[assignor],
            "member_assignment": each.assignment if is_stable else b"",
        }
        for each in group.members.values()
    ]
    return {
        "group_id": group.id,
        "group_state": group.state.value,
        "protocol_type": group.protocol_type or "",
        "protocol_data": assignor or "",
        "members": members,
    }


def delete_groups(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `DeleteGroups`: groups without members lose their offsets, and so are gone.

    The caller needs the right to read each topic that the group has an offset in.
    """
    results: list[Values] = []
    for group_id in request.body.groups_names:
        code = ErrorCode.none
        try:
            _check_empty(service, principal, group_id)
            _delete(service, principal, group_id)
        except FencedMember:
            code = ErrorCode.non_empty_group
        except FAILURES as error:
            code = group_code(error)
        results.append({"group_id": group_id, "error_code": code})
    return {"results": results}


def _check_empty(service: KafkaService, principal: Principal, group_id: str) -> None:
    """Check that a group of this process has no members."""
    admit(principal)
    if not group_id:
        raise KafkaError(ErrorCode.invalid_group_id)
    if service.groups.get(group_id) is not None:
        raise KafkaError(ErrorCode.non_empty_group)


def _delete(service: KafkaService, principal: Principal, group_id: str) -> None:
    if members_of(service, group_id):  # Which also ends sessions that are over.
        raise KafkaError(ErrorCode.non_empty_group)
    registry, consumer = service.log.registry, service.consumer_of(group_id)
    names = {str(each.topic) for each in registry.get_offsets(consumer)}
    readable = {name for name in names if principal.may(Right.READ, name)}
    if not readable:
        raise KafkaError(ErrorCode.group_id_not_found)
    if readable != names:
        raise KafkaError(ErrorCode.group_authorization_failed)
    registry.forget_offsets(consumer)


def delete_offsets(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `OffsetDelete`, of a group without members."""
    body = request.body
    group_id = body.group_id
    try:
        _check_empty(service, principal, group_id)
        members_of(service, group_id)  # Ends sessions that are over.
        if not _topics_of(service, group_id, principal):
            raise KafkaError(ErrorCode.group_id_not_found)
    except FAILURES as error:
        return {"error_code": group_code(error)}
    return {
        "topics": [
            {"name": each.name, "partitions": _forgotten(service, principal, group_id, each)}
            for each in body.topics
        ]
    }


def _forgotten(
    service: KafkaService, principal: Principal, group_id: str, asked: Any
) -> Sequence[Values]:
    """Delete offsets of one topic; returns the outcome for each partition."""
    numbers = [each.partition_index for each in asked.partitions]
    code = ErrorCode.none
    try:
        topic = service.topics.readable(service.gate, principal, asked.name)
        partitions = [partition_at(topic, number) for number in numbers]
        if partitions:
            consumer = service.consumer_of(group_id)
            service.log.registry.forget_offsets(consumer, topic.uuid, partitions)
    except FencedMember:
        code = ErrorCode.group_subscribed_to_topic
    except FAILURES as error:
        code = group_code(error)
    return [{"partition_index": number, "error_code": code} for number in numbers]
