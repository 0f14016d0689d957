"""The actions on share groups."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

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
    describe_group,
    describe_members,
    describe_results,
)
from wings_core.errors import InvalidArgument, WingsError
from wings_core.log import Log
from wings_core.model import ShareGroup
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName, TopicName
from wings_core.partitions import UNPARTITIONED, Partition, partition_of
from wings_core.security.principal import CALLER, authorize
from wings_core.security.rights import Right
from wings_core.share.coordinator.coordinator import Coordinator
from wings_core.share.model import Acknowledgement, AcquireRequest, Leased
from wings_core.share.progress import GroupCounts, oldest_unfinished
from wings_server.action import Actions, Json

SHARE_ACTIONS = Actions()


@SHARE_ACTIONS.add("share-create", CreateGroup)
def create_group(log: Log, body: CreateGroup) -> Json:
    """Create a share group of a topic; returns its description."""
    group = log.shares.create(
        TopicName.parse(body.topic), body.group, body.config, if_not_exists=body.if_not_exists
    )
    return _described(log, group)


@SHARE_ACTIONS.add("share-alter", AlterGroup)
def alter_group(log: Log, body: AlterGroup) -> Json:
    """Change keys of a share group's configuration; returns its description."""
    group = log.shares.alter(TopicName.parse(body.topic), body.group, body.config)
    return _described(log, group)


@SHARE_ACTIONS.add("share-seek", SeekGroup)
def seek_group(log: Log, body: SeekGroup) -> Json:
    """Move a share group to a position; its members begin anew. Returns its description."""
    topic = TopicName.parse(body.topic)
    group = log.shares.find(topic, body.group)
    partition = _partition(group, body)
    if isinstance(body.to, int) and partition is None:
        raise InvalidArgument("an offset is of one partition: name it by key 'partition'")
    return _described(log, log.shares.seek(topic, body.group, body.to, partition))


@SHARE_ACTIONS.add("share-purge", PartitionsOfGroup)
def purge_group(log: Log, body: PartitionsOfGroup) -> Json:
    """Drop all messages that a share group has not finished; returns how many they were."""
    topic = TopicName.parse(body.topic)
    group = log.shares.find(topic, body.group)
    partition = _partition(group, body)
    purged = sum(
        state.lag
        for state in log.shares.coordinator.positions.describe(group)
        if partition is None or state.partition == partition
    )
    log.shares.seek(topic, body.group, "latest", partition)
    return {"purged": purged}


@SHARE_ACTIONS.add("share-describe", GroupBody)
def describe_share_group(log: Log, body: GroupBody) -> Json:
    """Return a share group's description: configuration, and each partition's position."""
    return _described(log, log.shares.find(TopicName.parse(body.topic), body.group))


@SHARE_ACTIONS.add("share-members", GroupBody)
def members_of_group(log: Log, body: GroupBody) -> Json:
    """Return who holds what of a share group, since when, and its oldest unfinished message.

    `counts` are of messages delivered and finished at this process, since its start.
    """
    group = log.shares.find(TopicName.parse(body.topic), body.group)
    states = log.shares.coordinator.positions.describe(group)
    oldest = oldest_unfinished(log.registry, group, states)
    now_us = int(time.time() * 1_000_000)
    held = log.shares.coordinator.held(group)
    counts = log.shares.counts.get((str(group.topic.name), group.name), GroupCounts())
    return {**describe_members(group, states, held, oldest, now_us), "counts": asdict(counts)}


@SHARE_ACTIONS.add("share-delete", GroupBody)
def delete_group(log: Log, body: GroupBody) -> Json:
    """Delete a share group; returns its last description."""
    topic = TopicName.parse(body.topic)
    described = _described(log, log.shares.find(topic, body.group))
    log.shares.delete(topic, body.group)
    return described


@SHARE_ACTIONS.add("share-list", ListGroups)
def list_groups(log: Log, body: ListGroups) -> Json:
    """Return the share groups of a topic, or of a namespace, by topic and name."""
    if body.topic is not None:
        groups = log.shares.of_topic(TopicName.parse(body.topic))
    else:
        namespace = DEFAULT_NAMESPACE
        if body.namespace is not None:
            namespace = NamespaceName.parse(body.namespace)
        groups = log.shares.of_namespace(namespace)
    return [describe_group(group) for group in groups]


@SHARE_ACTIONS.add("share-acknowledge", Acknowledge)
def acknowledge(log: Log, body: Acknowledge) -> Json:
    """Accept, release, reject or renew messages of a member, all or none of each partition."""
    group = log.shares.find(TopicName.parse(body.topic), body.group)
    (errors,) = acknowledge_entries(log.shares.coordinator, group, [(body.member, body.acks)])
    return describe_results(body.acks, errors)


def acknowledge_entries(
    coordinator: Coordinator,
    group: ShareGroup,
    requests: Sequence[tuple[str, Sequence[AcknowledgementEntry]]],
) -> list[list[WingsError | None]]:
    """Acknowledge messages of members; returns the error of each entry of each request, or None.

    An entry with an impossible partition value is answered with its error, the others are done.
    """
    return [settled.errors for settled in settle_entries(coordinator, group, requests, ())[0]]


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
    """Acknowledge messages as by `acknowledge_entries`, and acquire others meanwhile."""
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


@SHARE_ACTIONS.add("share-redrive", Redrive)
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


def _partition(group: ShareGroup, body: PartitionsOfGroup) -> Partition | None:
    """Return the partition that a body names; None where it is all of several."""
    if body.all_partitions:
        return UNPARTITIONED if group.topic.partition_key is None else None
    return partition_of(body.partition, group.topic.key_type)


def _described(log: Log, group: ShareGroup) -> dict[str, Any]:
    return describe_group(group, log.shares.coordinator.positions.describe(group))


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
