"""The actions on a log: one table for Flight's DoAction and for the HTTP endpoints.

Each action is a body model and one plain function from the log and a body to a JSON answer.
"""

from dataclasses import asdict
from typing import Any

from wings_core.contracts.actions import (
    AlterTopic,
    CommitOffsets,
    CreateTopic,
    GetOffsets,
    ListNamespaces,
    ListTopics,
    Maintain,
    NamespaceBody,
    OffsetForTimestamp,
    ShardAcquire,
    ShardCount,
    ShardList,
    ShardNames,
    ShardOpen,
    ShardPrune,
    StageAbort,
    StagePublish,
    TopicBody,
    describe_aborted,
    describe_namespace,
    describe_offsets,
    describe_partition_states,
    describe_published,
    describe_tier_states,
    describe_topic,
)
from wings_core.contracts.shards import describe_counts, describe_pruned, describe_shards
from wings_core.log import Log
from wings_core.model import Topic
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName, TopicName
from wings_core.partitions import partition_of
from wings_server.action import Action, Json
from wings_server.share_actions import SHARE_ACTIONS


def create_topic(log: Log, body: CreateTopic) -> Json:
    """Create a topic and return its description."""
    topic = log.admin.create_topic(
        TopicName.parse(body.topic),
        body.arrow_schema(),
        body.partition_key,
        body.config,
        if_not_exists=body.if_not_exists,
    )
    return describe_topic(topic)


def describe(log: Log, body: TopicBody) -> Json:
    """Return a topic's description."""
    return describe_topic(_topic(log, body.topic))


def alter_topic(log: Log, body: AlterTopic) -> Json:
    """Replace a topic's configuration and return its description."""
    return describe_topic(log.admin.alter_topic(TopicName.parse(body.topic), body.config))


def delete_topic(log: Log, body: TopicBody) -> Json:
    """Delete a topic and return what its description was."""
    return describe_topic(log.delete_topic(TopicName.parse(body.topic)))


def list_topics(log: Log, body: ListTopics) -> Json:
    """Return the descriptions of a namespace's topics, by name."""
    namespace = DEFAULT_NAMESPACE
    if body.namespace is not None:
        namespace = NamespaceName.parse(body.namespace)
    return [describe_topic(topic) for topic in log.admin.list_topics(namespace)]


def create_namespace(log: Log, body: NamespaceBody) -> Json:
    """Create a namespace."""
    return describe_namespace(log.admin.create_namespace(NamespaceName.parse(body.namespace)))


def delete_namespace(log: Log, body: NamespaceBody) -> Json:
    """Delete an empty namespace and return what it was."""
    return describe_namespace(log.admin.delete_namespace(NamespaceName.parse(body.namespace)))


def list_namespaces(log: Log, body: ListNamespaces) -> Json:
    """Return all namespaces, by name."""
    del body
    return [describe_namespace(namespace) for namespace in log.admin.list_namespaces()]


def partition_states(log: Log, body: TopicBody) -> Json:
    """Return where each partition of a topic stands, by value."""
    topic = _topic(log, body.topic)
    return describe_partition_states(log.registry.partition_states(topic.uuid))


def offset_for_timestamp(log: Log, body: OffsetForTimestamp) -> Json:
    """Return the offset of the first message at or after a time, else the next offset."""
    topic = _topic(log, body.topic)
    partition = partition_of(body.partition, topic.key_type)
    offset = log.fetcher.offset_for_timestamp(topic, partition, body.timestamp_us)
    return {"offset": offset}


def commit_offsets(log: Log, body: CommitOffsets) -> Json:
    """Remember where a named consumer reads on, all entries or none."""
    offsets = [
        (topic := _topic(log, entry.topic), partition_of(entry.partition, topic.key_type),
         entry.offset)
        for entry in body.offsets
    ]  # fmt: skip
    log.registry.commit_offsets(body.consumer, offsets)
    return body.to_json()


def get_offsets(log: Log, body: GetOffsets) -> Json:
    """Return where a named consumer reads on."""
    uuid = None if body.topic is None else _topic(log, body.topic).uuid
    return describe_offsets(log.registry.get_offsets(body.consumer, uuid))


def publish_stages(log: Log, body: StagePublish) -> Json:
    """Make all that was staged visible at once, once for each batch of a writer."""
    shards = [entry.progress() for entry in body.shards]
    return describe_published(log.stages.publish(body.writer, body.batch, body.stages, shards))


def abort_stages(log: Log, body: StageAbort) -> Json:
    """Delete stages that were not published."""
    return describe_aborted(log.abort_stages(body.writer, body.stages, body.batch, body.prefix))


def open_shards(log: Log, body: ShardOpen) -> Json:
    """Create shards that are not there, and return all as they are."""
    return describe_shards(log.shards.open(body.source, body.token, body.shards))


def acquire_shards(log: Log, body: ShardAcquire) -> Json:
    """Take over shards from owners that were not heard of."""
    claims = [entry.claim() for entry in body.claims]
    return describe_shards(log.shards.acquire(body.source, body.token, claims, body.stale_seconds))


def reset_shards(log: Log, body: ShardNames) -> Json:
    """Open dead shards again."""
    return describe_shards(log.shards.reset(body.source, body.shards))


def get_shards(log: Log, body: ShardNames) -> Json:
    """Return shards by their ids."""
    return describe_shards(log.shards.get(body.source, body.shards))


def list_shards(log: Log, body: ShardList) -> Json:
    """Return shards of a source, by id."""
    found = log.shards.of_source(body.source, body.state, body.after, body.limit)
    return describe_shards(found)


def count_shards(log: Log, body: ShardCount) -> Json:
    """Count the shards of a source."""
    return describe_counts(log.shards.count(body.source))


def prune_shards(log: Log, body: ShardPrune) -> Json:
    """Forget shards that ended long ago, unless somebody did so just now."""
    pruned = log.shards.prune(body.source, body.age_seconds, body.count_max, body.interval_seconds)
    return describe_pruned(pruned)


def tier_states(log: Log, body: TopicBody) -> Json:
    """Return what each partition of a topic has in each tier, by value."""
    topic = _topic(log, body.topic)
    return describe_tier_states(log.maintenance.tier_states(topic.uuid))


def maintain(log: Log, body: Maintain) -> Json:
    """Do at once what maintenance has due, and return what it did."""
    topic = None if body.topic is None else _topic(log, body.topic)
    return asdict(log.maintainer.run(topic))


def _topic(log: Log, name: str) -> Topic:
    return log.admin.get_topic(TopicName.parse(name))


ACTIONS: dict[str, Action[Any]] = {
    "create-topic": Action(CreateTopic, create_topic, "Create a topic with an Arrow schema."),
    "describe-topic": Action(TopicBody, describe, "Describe a topic."),
    "alter-topic": Action(AlterTopic, alter_topic, "Replace a topic's configuration."),
    "delete-topic": Action(TopicBody, delete_topic, "Delete a topic and its messages."),
    "list-topics": Action(
        ListTopics, list_topics, "Describe the topics of a namespace; default/default if absent."
    ),
    "create-namespace": Action(NamespaceBody, create_namespace, "Create a namespace."),
    "delete-namespace": Action(NamespaceBody, delete_namespace, "Delete an empty namespace."),
    "list-namespaces": Action(ListNamespaces, list_namespaces, "List the namespaces."),
    "partition-states": Action(
        TopicBody, partition_states, "Tell where the partitions of a topic begin and end."
    ),
    "offset-for-timestamp": Action(
        OffsetForTimestamp, offset_for_timestamp, "Find the first message at or after a time."
    ),
    "commit-offsets": Action(
        CommitOffsets, commit_offsets, "Remember where a named consumer reads on."
    ),
    "get-offsets": Action(GetOffsets, get_offsets, "Tell where a named consumer reads on."),
    "stage-publish": Action(
        StagePublish, publish_stages, "Make stages visible, once for each batch of a writer."
    ),
    "stage-abort": Action(StageAbort, abort_stages, "Delete stages that were not published."),
    "shard-open": Action(ShardOpen, open_shards, "Open what is to be read into the log once."),
    "shard-acquire": Action(
        ShardAcquire, acquire_shards, "Take over shards whose owner was not heard of."
    ),
    "shard-reset": Action(ShardNames, reset_shards, "Open shards again that were given up."),
    "shard-get": Action(ShardNames, get_shards, "Tell how far shards were read."),
    "shard-list": Action(ShardList, list_shards, "Tell how far the shards of a source were read."),
    "shard-count": Action(ShardCount, count_shards, "Count the shards of a source."),
    "shard-prune": Action(ShardPrune, prune_shards, "Forget shards that ended long ago."),
    "tier-states": Action(
        TopicBody, tier_states, "Tell what the partitions of a topic have in each tier."
    ),
    "maintain": Action(Maintain, maintain, "Do at once what maintenance has due."),
    **SHARE_ACTIONS,
}
