"""The actions on consumer groups."""

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import islice
from typing import Any, TypeVar

from pydantic import StrictBool, StrictInt, StrictStr, TypeAdapter

from wings_core.consumer_groups.coordinator import RunElsewhere
from wings_core.consumer_groups.group import Heartbeat
from wings_core.contracts.actions import OFFSETS_MAX, ActionBody
from wings_core.contracts.consumer_groups import (
    DESCRIBED_MAX,
    DescribeGroup,
    GroupHeartbeat,
    ListConsumerGroups,
    ResetGroup,
    describe_committed,
    describe_heartbeat,
    describe_member,
)
from wings_core.contracts.reads import TimestampOffset
from wings_core.errors import (
    FencedMember,
    GroupNotFound,
    InvalidArgument,
    TopicNotFound,
    Unavailable,
    WingsError,
)
from wings_core.log import Log
from wings_core.model import GroupMember, MemberEpoch, Topic
from wings_core.names import TopicName
from wings_core.partitions import (
    Partition,
    mask_of,
    partition_of_value,
    partition_sort_key,
    partition_value,
    partitions_of,
    slots_in,
)
from wings_core.security.principal import CALLER, Principal, authorize
from wings_core.security.rights import Right
from wings_server.action import Actions, Answer, Json
from wings_server.group_node import GroupNode
from wings_server.served_log import ServedLog
from wings_server.totals_actions import names_asked_for

GROUP_ACTIONS = Actions()

Body = TypeVar("Body", bound=ActionBody)


def _passed_on(
    name: str, body: type[Body]
) -> Callable[[Callable[[ServedLog, Body], Json]], Callable[[ServedLog, Body], Answer]]:
    """Return a decorator that adds an action, run by the node that runs the group."""

    def added(run: Callable[[ServedLog, Body], Json]) -> Callable[[ServedLog, Body], Answer]:
        def at_holder(log: ServedLog, body: Body) -> Answer:
            try:
                return run(log, body)
            except RunElsewhere as elsewhere:
                return group_node(log).pass_on(elsewhere, name, body)

        at_holder.__doc__ = run.__doc__
        return GROUP_ACTIONS.add(name, body)(at_holder)

    return added


@_passed_on("group-heartbeat", GroupHeartbeat)
def heartbeat(log: ServedLog, body: GroupHeartbeat) -> Json:
    """Join a consumer group, stay in it or leave it; returns the slots that the member may read."""
    node = group_node(log)
    topic_of = cache(node.topic_of)
    topics = None if body.topics is None else frozenset(topic_of(each).uuid for each in body.topics)
    authorize_member(node, CALLER.get(), body.consumer, body.member, body.instance)
    owned: dict[str, int] | None = None
    if body.owned is not None:
        owned = {}
        for each in body.owned:
            try:
                topic = topic_of(each.topic)
            except TopicNotFound:
                continue  # Deleted: there is nothing to give up.
            if each.slots and max(each.slots) >= topic.slots:
                raise InvalidArgument(
                    f"key 'owned': {each.topic:.80} has the slots 0 to {topic.slots - 1}"
                )
            owned[topic.uuid] = mask_of(each.slots)
    answer = node.coordinator.heartbeat(
        body.consumer,
        Heartbeat(body.member, body.member_epoch, topics, body.instance, body.session_ms, owned),
    )
    assignment = answer.beat.assignment
    if assignment is not None:
        names = node.names_of(assignment)
        assignment = {names[uuid]: mask for uuid, mask in assignment.items() if uuid in names}
    return describe_heartbeat(answer.beat.epoch, answer.heartbeat_ms, assignment)


@_passed_on("group-describe", DescribeGroup)
def describe_group(log: ServedLog, body: DescribeGroup) -> Json:
    """Return a consumer group's members, and offsets and lag of its partitions, page by page."""
    node = group_node(log)
    members = node.coordinator.members(body.consumer)
    names = node.names_of({uuid for member in members for uuid in member.topics})
    offsets = {
        (each.topic, each.partition): each.offset
        for each in log.registry.get_offsets(body.consumer)
    }
    readable = _readable(body.consumer, names.values(), (topic for topic, _ in offsets))
    named = {uuid: name for uuid, name in names.items() if TopicName.parse(name) in readable}
    lines = list(islice(_lines(log, body, readable, members, offsets), DESCRIBED_MAX + 1))
    last = lines[DESCRIBED_MAX - 1] if len(lines) > DESCRIBED_MAX else None
    return {
        "consumer": body.consumer,
        "members": [describe_member(member, named) for member in members],
        "partitions": lines[:DESCRIBED_MAX],
        "next": None if last is None else json.dumps([last["topic"], last["partition"]]),
    }


def _readable(
    consumer: str, subscribed: Iterable[str], committed: Iterable[TopicName]
) -> list[TopicName]:
    """Return the topics of a group that the caller may read, by name.

    Raises:
        GroupNotFound: There is none: of a group that exists too, as far as the caller may know.
    """
    caller = CALLER.get()
    topics = {*map(TopicName.parse, subscribed), *committed}
    readable = [name for name in sorted(topics) if caller.may(Right.READ, str(name))]
    if not readable:
        raise GroupNotFound(f"there is no consumer group {consumer!r}")
    return readable


def _lines(
    log: Log,
    body: DescribeGroup,
    topics: Sequence[TopicName],
    members: Sequence[GroupMember],
    offsets: Mapping[tuple[TopicName, Partition], int],
) -> Iterator[dict[str, Any]]:
    """Yield the lines of a description by topic and partition, those after the mark."""
    after = _mark(body.after)
    for name in topics:
        if after is not None and str(name) < after[0]:
            continue
        try:
            topic = log.admin.get_topic(name)
            states = log.registry.partition_states(topic.uuid)
        except TopicNotFound:
            continue
        owners = {
            slot: member.member
            for member in members
            for slot in slots_in(member.assigned.get(topic.uuid, 0))
        }
        for state in sorted(states, key=lambda state: partition_sort_key(state.partition)):
            key = (str(name), partition_sort_key(state.partition))
            if after is not None and key <= after:
                continue
            offset = offsets.get((name, state.partition))
            start = state.log_start_offset if offset is None else offset
            yield {
                "topic": str(name),
                "partition": partition_value(state.partition),
                "member": owners.get(topic.slot_of(state.partition)),
                "offset": offset,
                "log_end_offset": state.next_offset,
                "lag": max(0, state.next_offset - max(start, state.log_start_offset)),
            }


def _mark(after: str | None) -> tuple[str, tuple[bool, int | str | bytes]] | None:
    """Return the place after which a page begins, as it is sorted.

    Raises:
        InvalidArgument: It is not the `next` of a description.
    """
    if after is None:
        return None
    try:
        topic, value = _MARK.validate_json(after)
    except ValueError:
        raise InvalidArgument(
            f"key 'after': {after[:80]!r} is not the `next` of a description"
        ) from None
    return topic, partition_sort_key(partition_of_value(value))


_MARK = TypeAdapter(tuple[str, StrictBool | StrictInt | StrictStr | None])


@GROUP_ACTIONS.add("group-list", ListConsumerGroups)
def list_consumer_groups(log: ServedLog, body: ListConsumerGroups) -> Json:
    """Return the consumer groups by name, each with the number of its members and its topics."""
    node, caller = group_node(log), CALLER.get()
    found: list[dict[str, Any]] = []
    for consumer in names_asked_for(body, log.metadata.consumer_groups.names):
        members = log.metadata.consumer_groups.load(consumer).members
        uuids = {uuid for member in members for uuid in member.topics}
        shown = set(node.names_of(uuids).values())
        if not members:
            shown = {str(each.topic) for each in log.registry.get_offsets(consumer)}
        readable = sorted(name for name in shown if caller.may(Right.READ, name))
        if readable:
            found.append({"consumer": consumer, "members": len(members), "topics": readable})
        if len(found) == body.limit:
            break
    return found


@_passed_on("group-reset", ResetGroup)
def reset_group(log: ServedLog, body: ResetGroup) -> Json:
    """Set the offsets of a consumer group without members; returns them."""
    topic = log.admin.get_topic(TopicName.parse(body.topic))

    def reset(members: Sequence[GroupMember]) -> Json:
        if members:
            raise FencedMember(
                f"the group {body.consumer!r} has {len(members)} members: stop them to reset it"
            )
        offsets = list(_reset_offsets(log, topic, body))
        for first in range(0, len(offsets), OFFSETS_MAX):
            some = offsets[first : first + OFFSETS_MAX]
            entries = [(topic, partition, offset) for partition, offset in some]
            log.registry.commit_offsets(body.consumer, entries)
        return describe_committed(body.consumer, str(topic.name), offsets)

    node = group_node(log)
    members = node.coordinator.members(body.consumer)
    names = node.names_of({uuid for member in members for uuid in member.topics})
    committed = {each.topic for each in log.registry.get_offsets(body.consumer)}
    if not members and not committed and log.metadata.consumer_groups.load(body.consumer).epoch:
        committed = {topic.name}  # Its members have left and committed nothing.
    _readable(body.consumer, names.values(), committed)
    return node.coordinator.run_alone(body.consumer, reset)


def _reset_offsets(log: Log, topic: Topic, body: ResetGroup) -> Iterator[tuple[Partition, int]]:
    if isinstance(body.to, tuple):
        partitions = partitions_of([each.partition for each in body.to], topic.key_type)
        yield from zip(partitions, [each.offset for each in body.to], strict=True)
        return
    states = log.registry.partition_states(topic.uuid)
    at: dict[Partition, int] = {}
    if isinstance(body.to, TimestampOffset):
        time = body.to.timestamp_us
        positions = [(state.partition, time) for state in states]
        at = log.fetcher.offsets_for_timestamps(topic, positions) if positions else {}
    for state in states:
        begin = state.log_start_offset if body.to == "earliest" else state.next_offset
        yield state.partition, at.get(state.partition, begin)


@contextmanager
def looking_at_members(
    log: ServedLog, consumer: str, member: MemberEpoch | None
) -> Generator[None]:
    """Have members removed whose session ended, where a commit without a member was refused.

    No node may run the group, and so none may have noticed: the next commit finds it empty then.
    """
    try:
        yield
    except FencedMember:
        if member is None:
            with suppress(WingsError):
                describe_group(log, DescribeGroup(consumer=consumer))
        raise


def authorize_member(
    node: GroupNode, caller: Principal, consumer: str, member: str, instance: str | None
) -> None:
    """Check that a caller may read what a member, or that of its instance, has subscribed to.

    Raises:
        PermissionDenied: It may not.
        RunElsewhere: Another node runs the group.
    """
    if caller.is_operator:
        return
    for each in node.coordinator.members(consumer):
        is_instance = instance is not None and each.instance == instance
        if each.member == member or is_instance:
            for name in node.names_of(each.topics).values():
                authorize(caller, Right.READ, name)


def group_node(log: ServedLog) -> GroupNode:
    """Return the consumer groups of this node.

    Raises:
        Unavailable: The server is starting.
    """
    if log.consumer_groups is None:
        raise Unavailable("the server is starting")
    return log.consumer_groups
