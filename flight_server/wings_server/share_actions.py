"""The actions on share groups."""

from typing import Any

from wings_core.contracts.share import (
    Acknowledge,
    AcknowledgementEntry,
    AlterGroup,
    CreateGroup,
    GroupBody,
    ListGroups,
    Redrive,
    describe_group,
    describe_results,
)
from wings_core.errors import WingsError
from wings_core.log import Log
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName, TopicName
from wings_core.partitions import partition_of
from wings_core.share.model import Acknowledgement, ShareGroup
from wings_server.action import Action, Json


def create_group(log: Log, body: CreateGroup) -> Json:
    """Create a share group and return its description."""
    group = log.shares.create(
        TopicName.parse(body.topic), body.group, body.config, if_not_exists=body.if_not_exists
    )
    return _described(log, group)


def alter_group(log: Log, body: AlterGroup) -> Json:
    """Change a share group's configuration and return its description."""
    group = log.shares.alter(TopicName.parse(body.topic), body.group, body.config)
    return _described(log, group)


def describe_share_group(log: Log, body: GroupBody) -> Json:
    """Return a share group's description."""
    return _described(log, log.shares.find(TopicName.parse(body.topic), body.group))


def delete_group(log: Log, body: GroupBody) -> Json:
    """Delete a share group and return what its description was."""
    topic = TopicName.parse(body.topic)
    described = _described(log, log.shares.find(topic, body.group))
    log.shares.delete(topic, body.group)
    return described


def list_groups(log: Log, body: ListGroups) -> Json:
    """Return the share groups of a topic, or of all topics of a namespace, by topic and name."""
    if body.topic is not None:
        groups = log.shares.of_topic(TopicName.parse(body.topic))
    else:
        namespace = DEFAULT_NAMESPACE
        if body.namespace is not None:
            namespace = NamespaceName.parse(body.namespace)
        groups = log.shares.of_namespace(namespace)
    return [describe_group(group) for group in groups]


def acknowledge(log: Log, body: Acknowledge) -> Json:
    """Settle messages that a member holds, the entries of a partition together."""
    group = log.shares.find(TopicName.parse(body.topic), body.group)
    # An entry whose partition cannot be is answered with its error; those of others are settled.
    results: list[WingsError | None] = []
    entries: list[Acknowledgement] = []
    for entry in body.acks:
        try:
            entries.append(_acknowledgement(group, entry))
            results.append(None)
        except WingsError as error:
            results.append(error)
    settled = iter(log.shares.acknowledge(group, body.member, entries) if entries else ())
    return describe_results(
        body.acks,
        [error if error is not None else next(settled).error for error in results],
    )


def redrive(log: Log, body: Redrive) -> Json:
    """Send dead letters back to where they came from, each once."""
    done = log.shares.redrive(
        TopicName.parse(body.dlq_topic), body.filter, body.offset, body.max_messages
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


def _described(log: Log, group: ShareGroup) -> dict[str, Any]:
    return describe_group(group, log.shares.describe(group))


def _acknowledgement(group: ShareGroup, entry: AcknowledgementEntry) -> Acknowledgement:
    return Acknowledgement(
        partition=partition_of(entry.partition, group.topic.key_type),
        first=entry.first,
        last=entry.last,
        lease=entry.lease,
        type=entry.type,
        delay_ms=entry.delay_ms or 0,
        reason=entry.reason,
    )


SHARE_ACTIONS: dict[str, Action[Any]] = {
    "share-create": Action(CreateGroup, create_group, "Create a share group of a topic."),
    "share-alter": Action(AlterGroup, alter_group, "Change a share group's configuration."),
    "share-describe": Action(
        GroupBody, describe_share_group, "Tell where a share group stands in each partition."
    ),
    "share-delete": Action(GroupBody, delete_group, "Delete a share group."),
    "share-list": Action(
        ListGroups, list_groups, "List the share groups of a topic, or of a namespace."
    ),
    "share-acknowledge": Action(
        Acknowledge, acknowledge, "Accept, release, reject or renew messages that a member holds."
    ),
    "share-redrive": Action(
        Redrive, redrive, "Send dead letters back to where they came from, each once."
    ),
}
