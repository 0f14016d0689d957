"""The actions on consumer groups and on share groups."""

import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import cache
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

from pydantic import JsonValue, StrictBool, StrictInt, StrictStr, TypeAdapter

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
from wings_core.contracts.share import (
    Acknowledge,
    AcknowledgementEntry,
    AlterGroup,
    CreateGroup,
    GroupBody,
    ListGroups,
    PartitionsOfGroup,
    Redrive,
    SeekGroup,
    describe_members,
    describe_results,
)
from wings_core.contracts.share import describe_group as describe_share
from wings_core.errors import (
    FencedMember,
    GroupNotFound,
    InvalidArgument,
    TopicNotFound,
    Unavailable,
    WingsError,
)
from wings_core.log import Log
from wings_core.model import GroupMember, MemberEpoch, ShareGroup, Topic
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName, TopicName
from wings_core.partitions import (
    UNPARTITIONED,
    Partition,
    mask_of,
    partition_of,
    partition_of_value,
    partition_sort_key,
    partition_value,
    partitions_of,
    slots_in,
)
from wings_core.security.principal import CALLER, Principal, authorize
from wings_core.security.rights import Right
from wings_core.share.coordinator.coordinator import Coordinator
from wings_core.share.model import Acknowledgement, AcquireRequest, Leased
from wings_core.share.progress import GroupCounts, oldest_unfinished
from wings_server.nodes import GroupNode
from wings_server.overview_actions import names_asked_for
from wings_server.served_log import Actions, Answer, Json, ServedLog

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


@GROUP_ACTIONS.add("share-create", CreateGroup)
def create_group(log: Log, body: CreateGroup) -> Json:
    """Create a share group of a topic; returns its description."""
    group = log.shares.create(
        TopicName.parse(body.topic), body.group, body.config, if_not_exists=body.if_not_exists
    )
    return _described(log, group)


@GROUP_ACTIONS.add("share-alter", AlterGroup)
def alter_group(log: Log, body: AlterGroup) -> Json:
    """Change keys of a share group's configuration; returns its description."""
    group = log.shares.alter(TopicName.parse(body.topic), body.group, body.config)
    return _described(log, group)


@GROUP_ACTIONS.add("share-seek", SeekGroup)
def seek_group(log: Log, body: SeekGroup) -> Json:
    """Move a share group to a position; its members begin anew. Returns its description."""
    topic = TopicName.parse(body.topic)
    group = log.shares.find(topic, body.group)
    partition = wanted_partition(group.topic, body)
    if isinstance(body.to, int) and body.to >= 0 and partition is None:
        raise InvalidArgument("an offset is of one partition: name it by key 'partition'")
    return _described(log, log.shares.seek(topic, body.group, body.to, partition))


@GROUP_ACTIONS.add("share-purge", PartitionsOfGroup)
def purge_group(log: Log, body: PartitionsOfGroup) -> Json:
    """Drop all messages that a share group has not finished; returns how many they were."""
    topic = TopicName.parse(body.topic)
    group = log.shares.find(topic, body.group)
    partition = wanted_partition(group.topic, body)
    purged = sum(
        state.lag
        for state in log.shares.coordinator.positions.describe(group)
        if partition is None or state.partition == partition
    )
    log.shares.seek(topic, body.group, "latest", partition)
    return {"purged": purged}


@GROUP_ACTIONS.add("share-describe", GroupBody)
def describe_share_group(log: Log, body: GroupBody) -> Json:
    """Return a share group's description: configuration, and each partition's position."""
    return _described(log, log.shares.find(TopicName.parse(body.topic), body.group))


@GROUP_ACTIONS.add("share-members", GroupBody)
def members_of_group(log: Log, body: GroupBody) -> Json:
    """Return who holds what of a share group, since when, and its oldest unfinished message.

    `counts` are of messages delivered and finished at this process, since its start.
    """
    group = log.shares.find(TopicName.parse(body.topic), body.group)
    states = log.shares.coordinator.positions.describe(group)
    oldest = oldest_unfinished(log.registry, group, states)
    now_us = int(time.time() * 1_000_000)
    held = log.shares.coordinator.held(group)
    counts = log.shares.coordinator.counts.get((str(group.topic.name), group.name), GroupCounts())
    return {**describe_members(group, states, held, oldest, now_us), "counts": asdict(counts)}


@GROUP_ACTIONS.add("share-delete", GroupBody)
def delete_group(log: Log, body: GroupBody) -> Json:
    """Delete a share group; returns its last description."""
    topic = TopicName.parse(body.topic)
    described = _described(log, log.shares.find(topic, body.group))
    log.shares.delete(topic, body.group)
    return described


@GROUP_ACTIONS.add("share-list", ListGroups)
def list_groups(log: Log, body: ListGroups) -> Json:
    """Return the share groups of a topic, or of a namespace, by topic and name."""
    if body.topic is not None:
        groups = log.shares.of_topic(TopicName.parse(body.topic))
    else:
        namespace = DEFAULT_NAMESPACE
        if body.namespace is not None:
            namespace = NamespaceName.parse(body.namespace)
        groups = log.shares.of_namespace(namespace)
    return [describe_share(group) for group in groups]


@GROUP_ACTIONS.add("share-acknowledge", Acknowledge)
def acknowledge(log: Log, body: Acknowledge) -> Json:
    """Accept, release, reject or renew messages of a member, all or none of each partition."""
    group = log.shares.find(TopicName.parse(body.topic), body.group)
    asked = [(body.member, body.acks)]
    (settled,), _ = settle_entries(log.shares.coordinator, group, asked, ())
    return describe_results(body.acks, settled.errors)


class Settled(NamedTuple):
    """The outcome of a request."""

    errors: list[WingsError | None]
    """Error of each entry, or None."""
    done: list[Acknowledgement]
    """Acknowledgements that succeeded."""


def settle_entries(
    coordinator: Coordinator,
    group: ShareGroup,
    requests: Sequence[tuple[str, Sequence[AcknowledgementEntry]]],
    acquires: Sequence[AcquireRequest],
) -> tuple[list[Settled], list[Leased]]:
    """Acknowledge messages of members, and acquire others meanwhile; see `Coordinator.settle`.

    An entry with an impossible partition value is answered with its error, the others are done.
    """
    key_type = group.topic.key_type
    asked: list[tuple[str, list[Acknowledgement]]] = []
    all_errors: list[list[WingsError | None]] = []
    for member, entries in requests:
        possible: list[Acknowledgement] = []
        errors: list[WingsError | None] = []
        for entry in entries:
            try:
                possible.append(_acknowledgement(entry, partition_of(entry.partition, key_type)))
                errors.append(None)
            except WingsError as error:
                errors.append(error)
        asked.append((member, possible))
        all_errors.append(errors)
    results, acquired = coordinator.settle(group, asked, acquires)
    settled: list[Settled] = []
    for (_, possible), errors, found in zip(asked, all_errors, results, strict=True):
        done = [each for each, error in zip(possible, found, strict=True) if error is None]
        left = iter(found)
        settled.append(Settled([error or next(left) for error in errors], done))
    return settled, acquired


@GROUP_ACTIONS.add("share-redrive", Redrive)
def redrive(log: Log, body: Redrive) -> Json:
    """Send dead letters back to the topics they came from, or to another, once to each."""
    caller = CALLER.get()
    done = log.shares.redriver.redrive(
        TopicName.parse(body.dlq_topic),
        body.filter,
        body.offset,
        body.max_messages,
        # A caller who may write to the topic of dead letters chooses what topics they name.
        lambda topic: authorize(caller, Right.WRITE, str(topic)),
        None if body.to is None else TopicName.parse(body.to),
    )
    return {
        "redriven": done.redriven,
        "already_redriven": done.already,
        "without_payload": done.without_payload,
        "failed": done.failed,
        "failures": done.failures,
        "next_offset": done.next_offset,
        "log_end_offset": done.log_end_offset,
    }


class _MayName(Protocol):
    """A message of which a key may name a partition."""

    @property
    def partition(self) -> JsonValue: ...
    @property
    def model_fields_set(self) -> set[str]: ...


def wanted_partition(topic: Topic, message: _MayName) -> Partition | None:
    """Return the partition that a message names; None for any of several.

    Raises:
        PartitionTypeMismatch: And the other errors of a partition value.
    """
    if "partition" in message.model_fields_set:
        return partition_of(message.partition, topic.key_type)
    return UNPARTITIONED if topic.partition_key is None else None


def _described(log: Log, group: ShareGroup) -> dict[str, Any]:
    return describe_share(group, log.shares.coordinator.positions.describe(group))


def _acknowledgement(entry: AcknowledgementEntry, partition: Partition) -> Acknowledgement:
    return Acknowledgement(
        partition,
        entry.first,
        entry.last,
        entry.lease,
        entry.type,
        entry.delay_ms or 0,
        entry.reason,
        entry.counts is not False,
    )
