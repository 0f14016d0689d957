"""Groups of KIP-848: their members are those of the log's consumer groups, as Wings's own are.

The log assigns partitions and stores epochs; here a subscription becomes topics of the log. By a
pattern, or by names that do not exist yet, a subscription is looked at again now and then; it is
kept in memory, so after a restart such a member reads on what it had, until it subscribes anew.
"""

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from kio.schema.errors import ErrorCode

from wings_core.consumer_groups.coordinator import RunElsewhere
from wings_core.consumer_groups.group import JOIN, LEAVE, Heartbeat
from wings_core.errors import FencedMember
from wings_core.model import GroupMember, Topic
from wings_core.partitions import mask_of, slots_in
from wings_core.security.principal import Principal
from wings_core.security.rights import Right
from wings_server.group_actions import authorize_member, group_node
from wings_server.kafka.errors import FAILURES, KafkaError
from wings_server.kafka.group_requests import admit, group_code
from wings_server.kafka.group_table import Subscription
from wings_server.kafka.messages import Request, Values
from wings_server.kafka.service import KafkaService
from wings_server.kafka.topics import partition_count

LEAVE_FOR_A_WHILE = -2
"""Epoch by which a static member stops: its place is kept for its session."""

LOOK_SECONDS = 5.0
"""Time after which a subscription is looked at again."""

ASSIGNOR = "uniform"
_CONSUMER_MEMBER = 1


async def heartbeat(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `ConsumerGroupHeartbeat`."""
    body = request.body
    member = body.member_id
    if not member and request.head.version == 0 and body.member_epoch == JOIN:
        member = str(uuid.uuid4())
    named = {"member_id": member, "member_epoch": body.member_epoch}
    try:
        admit(principal)
        if not body.group_id or not member or body.member_epoch < LEAVE_FOR_A_WHILE:
            raise KafkaError(ErrorCode.invalid_request, "a group, a member and its epoch")
        if service.groups.get(body.group_id) is not None:
            raise KafkaError(ErrorCode.group_id_not_found, "the group has classic members")
        subscription = _subscription(service, member, body)
        answer = await service.write(lambda: _beat(service, principal, member, body, subscription))
        return {**named, **answer}
    except FAILURES as error:
        code = group_code(error)
        if isinstance(error, FencedMember):
            is_static = error.facts.get("instance") is not None
            code = ErrorCode.fenced_instance_id if is_static else ErrorCode.fenced_member_epoch
        return {**named, "error_code": code, "error_message": error.message}


def _subscription(service: KafkaService, member: str, body: Any) -> Subscription | None:
    """Return what a member subscribes to, changed as it says; None if that is not known."""
    key = body.group_id, member
    known = service.groups.subscription(key)
    if body.member_epoch < JOIN:
        service.groups.subscribe(key, None)
        return None
    names, pattern = body.subscribed_topic_names, getattr(body, "subscribed_topic_regex", None)
    if names is None and pattern is None:
        if body.member_epoch == JOIN:
            raise KafkaError(ErrorCode.invalid_request, "a member joins with topics")
        return known
    before = known or Subscription()
    changed = Subscription(
        before.names if names is None else frozenset(names),
        before.pattern if pattern is None else pattern,
    )
    service.groups.subscribe(key, changed)
    return changed


def _beat(
    service: KafkaService,
    principal: Principal,
    member: str,
    body: Any,
    subscription: Subscription | None,
) -> Values:
    node, consumer = group_node(service.log), service.consumer_of(body.group_id)
    try:
        authorize_member(node, principal, consumer, member, body.instance_id)
        if body.member_epoch == LEAVE_FOR_A_WHILE:
            return {}
        topics = None
        if subscription is not None:
            if subscription.looked_at + LOOK_SECONDS <= time.monotonic():
                _look(service, principal, subscription)
            topics = subscription.topics
        owned = _owned(service, body.topic_partitions)
        answer = node.coordinator.heartbeat(
            consumer, Heartbeat(member, body.member_epoch, topics, body.instance_id, owned=owned)
        )
    except RunElsewhere:
        raise KafkaError(ErrorCode.not_coordinator) from None
    epoch, assignment = answer.beat.epoch, answer.beat.assignment
    values: dict[str, Any] = {"member_epoch": epoch, "heartbeat_interval": answer.heartbeat_ms}
    if assignment is not None and epoch != LEAVE:
        there = node.names_of(assignment)
        values["assignment"] = {
            "topic_partitions": [
                {"topic_id": uuid.UUID(topic), "partitions": slots_in(mask)}
                for topic, mask in assignment.items()
                if topic in there
            ]
        }
    return values


def _look(service: KafkaService, principal: Principal, subscription: Subscription) -> None:
    """Find the topics of a subscription.

    Raises:
        PermissionDenied: One of those named may not be read.
        KafkaError: The pattern is not one of RE2.
    """
    found: set[str] = set()
    for name in subscription.names:
        with suppress(KafkaError):  # It does not exist yet.
            found.add(service.topics.readable(service.gate, principal, name).uuid)
    if subscription.pattern:
        topics = [each for each in service.topics.all() if _may_read(principal, each)]
        names = pa.array([each.kafka_name for each in topics], pa.string())
        try:
            matches = pc.match_substring_regex(names, f"^(?:{subscription.pattern})$").to_pylist()
        except pa.ArrowInvalid as error:
            raise KafkaError(ErrorCode.invalid_regular_expression, str(error)[:400]) from None
        found.update(each.uuid for each, is_match in zip(topics, matches, strict=True) if is_match)
    subscription.topics, subscription.looked_at = frozenset(found), time.monotonic()


def _may_read(principal: Principal, topic: Topic) -> bool:
    return principal.may(Right.READ, str(topic.name))


def _owned(service: KafkaService, given: Iterable[Any] | None) -> Mapping[str, int] | None:
    """Return the partitions that a member says it holds, without those of deleted topics."""
    if given is None:
        return None
    owned: dict[str, int] = {}
    for each in given:
        with suppress(KafkaError):
            topic = service.topics.find_id(each.topic_id)
            owned[topic.uuid] = mask_of(
                n for n in each.partitions if 0 <= n < partition_count(topic)
            )
    return owned


def describe(service: KafkaService, principal: Principal, request: Request) -> Values:
    """Answer `ConsumerGroupDescribe`, of groups with members."""
    found: list[Values] = []
    for group_id in request.body.group_ids:
        try:
            admit(principal)
            found.append(_described(service, principal, group_id))
        except FAILURES as error:
            refused = {"error_code": group_code(error), "error_message": error.message}
            found.append({"group_id": group_id, "assignor_name": "", **refused})
    return {"groups": found}


def _described(service: KafkaService, principal: Principal, group_id: str) -> Values:
    """Return the description of a group, as far as its topics may be read."""
    members = members_of(service, group_id)
    if not members:
        raise KafkaError(ErrorCode.group_id_not_found, "no group of KIP-848 with members")
    topics: dict[str, Topic] = {}
    for topic_uuid in {each for member in members for each in member.topics}:
        with suppress(KafkaError):
            topic = service.topics.find_id(uuid.UUID(topic_uuid))
            if _may_read(principal, topic):
                topics[topic_uuid] = topic
    if not topics and not principal.is_operator:
        raise KafkaError(ErrorCode.group_authorization_failed)

    def listed(assignment: Mapping[str, int]) -> Values:
        return {
            "topic_partitions": [
                {
                    "topic_id": uuid.UUID(topic_uuid),
                    "topic_name": topics[topic_uuid].kafka_name,
                    "partitions": slots_in(mask),
                }
                for topic_uuid, mask in assignment.items()
                if topic_uuid in topics
            ]
        }

    epoch = service.log.metadata.consumer_groups.load(service.consumer_of(group_id)).epoch
    return {
        "group_id": group_id,
        "group_state": state_of(members),
        "group_epoch": epoch,
        "assignment_epoch": epoch,
        "assignor_name": ASSIGNOR,
        "members": [
            {
                "member_id": each.member,
                "instance_id": each.instance,
                "member_epoch": each.epoch,
                "subscribed_topic_names": [
                    topics[topic].kafka_name for topic in each.topics if topic in topics
                ],
                "assignment": listed(each.assigned),
                "target_assignment": listed(each.target),
                "member_type": _CONSUMER_MEMBER,
            }
            for each in members
        ],
    }


def members_of(service: KafkaService, group_id: str) -> Sequence[GroupMember]:
    """Return the live members of a group, but those of a classic one."""
    try:
        return group_node(service.log).coordinator.members(service.consumer_of(group_id))
    except RunElsewhere:
        raise KafkaError(ErrorCode.not_coordinator) from None


def state_of(members: Iterable[GroupMember]) -> str:
    """Return the state of a group with members."""
    is_stable = all(each.target == each.assigned == each.held for each in members)
    return "Stable" if is_stable else "Reconciling"
