"""The actions on a log: one table for Flight's DoAction and for the HTTP endpoints.

Each action is a body model and one plain function from the log and a body to a JSON response; the
function's docstring is its description in Flight's ListActions and the OpenAPI document.
"""

import heapq
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict
from itertools import groupby, islice, repeat
from operator import attrgetter, itemgetter
from typing import Any
from uuid import uuid4

import pyarrow as pa

from wings_core.contracts.actions import (
    AlterTopic,
    CreateTopic,
    DeleteOffsets,
    GetOffsets,
    ListNamespaces,
    ListNodes,
    ListTopics,
    Maintain,
    NamespaceBody,
    OffsetForTimestamp,
    PartitionStates,
    ShardAcquire,
    ShardCount,
    ShardList,
    ShardNames,
    ShardOpen,
    ShardPrune,
    StageAbort,
    StagePublish,
    TokenAlter,
    TokenCreate,
    TokenList,
    TokenRevoke,
    TopicBody,
    TransactionBegin,
    describe_aborted,
    describe_namespace,
    describe_node,
    describe_offsets,
    describe_partition_states,
    describe_published,
    describe_tier_states,
    describe_token,
    describe_topic,
)
from wings_core.contracts.commits import CommitOffsets
from wings_core.contracts.shards import describe_counts, describe_pruned, describe_shards
from wings_core.contracts.sql import LiveBody
from wings_core.contracts.tickets import (
    DATA_SCHEMA,
    FILES_SCHEMA,
    BackupBegin,
    BackupEnd,
    BackupFiles,
    BackupRead,
)
from wings_core.errors import InvalidArgument, TopicNotFound
from wings_core.log import Log
from wings_core.model import ConsumerCommit, PartitionState, Topic, TopicConfig
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName, TopicName
from wings_core.partitions import Partition, partition_of, partitions_of
from wings_core.security.principal import CALLER
from wings_core.security.rights import Grant, Right
from wings_core.security.tokens import Token, digest_of, new_secret, parse_expiry
from wings_core.times import now_us
from wings_server.group_actions import GROUP_ACTIONS, looking_at_members
from wings_server.overview_actions import OVERVIEW_ACTIONS
from wings_server.served_log import Actions, Json, ServedLog

ACTIONS = Actions()

_TOPICS_AT_ONCE = 1_000
"""Topics per request to metadata, for a list with a limit."""


@ACTIONS.add("create-topic", CreateTopic)
def create_topic(log: ServedLog, body: CreateTopic) -> Json:
    """Create a topic with an Arrow schema; returns its description."""
    _check_table(log, body.config)
    topic = log.admin.create_topic(
        TopicName.parse(body.topic),
        body.arrow_schema(),
        body.partition_key,
        body.config,
        if_not_exists=body.if_not_exists,
    )
    return describe_topic(topic)


@ACTIONS.add("describe-topic", TopicBody)
def describe(log: ServedLog, body: TopicBody) -> Json:
    """Return a topic's description."""
    topic = _topic(log, body.topic)
    description = describe_topic(topic)
    if topic.config.table is not None and log.tables is not None:
        description["table"] = asdict(log.tables.status(topic))
    return description


@ACTIONS.add("alter-topic", AlterTopic)
def alter_topic(log: ServedLog, body: AlterTopic) -> Json:
    """Change keys of a topic's configuration, its schema, or both; returns its description.

    If `table` is unset, the next pass of maintenance drops the topic's table.
    """
    name = TopicName.parse(body.topic)
    topic: Topic | None = None
    _check_table(log, body.config)  # Before the schema is changed, which is permanent.
    if body.changes is not None:
        topic = log.admin.alter_schema(name, body.changes.change())
    if body.config is not None:
        topic = log.admin.alter_topic(name, body.config, None if topic is None else topic.uuid)
    assert topic is not None
    return describe_topic(topic)


def _check_table(log: ServedLog, config: TopicConfig | None) -> None:
    if config is not None and config.table is not None and log.tables is None:
        raise InvalidArgument(
            "this server cannot have tables: install the extra `iceberg`, and, on nodes of a "
            "metadata service with --hot, give --iceberg-catalog"
        )


@ACTIONS.add("delete-topic", TopicBody)
def delete_topic(log: Log, body: TopicBody) -> Json:
    """Delete a topic and its messages; returns its last description."""
    return describe_topic(log.delete_topic(TopicName.parse(body.topic)))


@ACTIONS.add("list-topics", ListTopics)
def list_topics(log: Log, body: ListTopics) -> Json:
    """Return the descriptions of a namespace's topics, by name; default/default if absent."""
    namespace = DEFAULT_NAMESPACE
    if body.namespace is not None:
        namespace = NamespaceName.parse(body.namespace)
    return [describe_topic(topic) for topic in islice(_listed(log, namespace, body), body.limit)]


def _listed(log: Log, namespace: NamespaceName, body: ListTopics) -> Iterator[Topic]:
    """Yield the topics of a list, all of them without a limit."""
    caller = CALLER.get()
    after, at_once = body.after or None, None if body.limit is None else _TOPICS_AT_ONCE
    while found := log.admin.list_topics(namespace, after=after, items_max=at_once):
        for topic in found:
            # Topics hidden from the caller do not count.
            if body.contains in topic.name.topic and caller.may_see(str(topic.name)):
                yield topic
        if at_once is None or len(found) < at_once:
            return
        after = found[-1].name.topic


@ACTIONS.add("create-namespace", NamespaceBody)
def create_namespace(log: Log, body: NamespaceBody) -> Json:
    """Create a namespace; returns its description."""
    return describe_namespace(log.admin.create_namespace(NamespaceName.parse(body.namespace)))


@ACTIONS.add("delete-namespace", NamespaceBody)
def delete_namespace(log: Log, body: NamespaceBody) -> Json:
    """Delete an empty namespace; returns its last description."""
    return describe_namespace(log.admin.delete_namespace(NamespaceName.parse(body.namespace)))


@ACTIONS.add("list-namespaces", ListNamespaces)
def list_namespaces(log: Log, body: ListNamespaces) -> Json:
    """Return the descriptions of all namespaces, by name."""
    del body
    return [describe_namespace(namespace) for namespace in log.admin.list_namespaces()]


@ACTIONS.add("list-nodes", ListNodes)
def list_nodes(log: Log, body: ListNodes) -> Json:
    """Return the addresses and start times of all live processes that serve this log."""
    del body
    return [describe_node(node) for node in log.live_nodes()]


@ACTIONS.add("partition-states", PartitionStates)
def partition_states(log: Log, body: PartitionStates) -> Json:
    """Return the first and next offsets of all or some of a topic's partitions, by value."""
    topic = _topic(log, body.topic)
    states = log.registry.partition_states(topic.uuid)
    if body.contains:
        states = [state for state in states if body.contains in state.partition]
    end = None if body.limit is None else body.skip + body.limit
    if body.order != "value":
        states = heapq.nlargest(end or len(states), states, key=_ORDERS[body.order])
    return describe_partition_states(states[body.skip : end])


def _rows(state: PartitionState) -> int:
    return state.next_offset - state.log_start_offset


def _last(state: PartitionState) -> int:
    return -1 if state.last_timestamp is None else state.last_timestamp


_ORDERS: Mapping[str, Callable[[PartitionState], int]] = {
    "bytes": attrgetter("bytes"),
    "rows": _rows,
    "last_timestamp": _last,
}


@ACTIONS.add("offset-for-timestamp", OffsetForTimestamp)
def offset_for_timestamp(log: Log, body: OffsetForTimestamp) -> Json:
    """Return the offset of the first message at or after a time, or else the next offset."""
    topic = _topic(log, body.topic)
    partition = partition_of(body.partition, topic.key_type)
    offset = log.fetcher.offset_for_timestamp(topic, partition, body.timestamp_us)
    return {"offset": offset}


@ACTIONS.add("commit-offsets", CommitOffsets)
def commit_offsets(log: ServedLog, body: CommitOffsets) -> bytes:
    """Store a named consumer's next offsets, all entries or none."""
    names, values, numbers, _ = body.offsets
    entries = zip(names, values, numbers, strict=True)
    with looking_at_members(log, body.consumer, body.fence):
        log.registry.commit_offsets(body.consumer, _positions(log, entries), body.fence)
    return body.to_bytes()


def _positions(
    log: Log, entries: Iterable[tuple[str, Any, int]]
) -> list[tuple[Topic, Partition, int]]:
    """Return topics, partitions and next offsets, by the names and values in a body."""
    topics: dict[str, Topic] = {}
    offsets: list[tuple[Topic, Partition, int]] = []
    for name, some in groupby(entries, itemgetter(0)):
        topic = topics.get(name) or topics.setdefault(name, _topic(log, name))
        _, values, numbers = zip(*some, strict=True)  # Usually one topic.
        offsets += zip(repeat(topic), partitions_of(values, topic.key_type), numbers, strict=False)
    return offsets


@ACTIONS.add("get-offsets", GetOffsets)
def get_offsets(log: Log, body: GetOffsets) -> Json:
    """Return a named consumer's next offsets."""
    uuid = None if body.topic is None else _topic(log, body.topic).uuid
    return describe_offsets(log.registry.get_offsets(body.consumer, uuid))


@ACTIONS.add("delete-offsets", DeleteOffsets)
def delete_offsets(log: ServedLog, body: DeleteOffsets) -> Json:
    """Delete a named consumer's next offsets in topics that the caller may read; returns them."""
    uuid = None if body.topic is None else _topic(log, body.topic).uuid
    caller = CALLER.get()
    offsets = log.registry.get_offsets(body.consumer, uuid)
    deleted = [each for each in offsets if caller.may(Right.READ, str(each.topic))]
    with looking_at_members(log, body.consumer, None):
        for name in dict.fromkeys(each.topic for each in deleted):
            with suppress(TopicNotFound):  # Its offsets went with it.
                log.registry.forget_offsets(body.consumer, log.admin.get_topic(name).uuid)
    return describe_offsets(deleted)


@ACTIONS.add("stage-publish", StagePublish)
def publish_stages(log: ServedLog, body: StagePublish) -> Json:
    """Make stages visible in one transaction, once for each batch of a writer."""
    shards = [entry.progress() for entry in body.shards]
    offsets = None
    if body.offsets is not None:
        entries = ((each.topic, each.partition, each.offset) for each in body.offsets.offsets)
        offsets = ConsumerCommit(
            body.offsets.consumer, tuple(_positions(log, entries)), body.offsets.fence
        )
    guard = nullcontext()
    if offsets is not None:
        guard = looking_at_members(log, offsets.consumer, offsets.member)
    with guard:
        published = log.stages.publish(
            body.writer, body.batch, body.stages, shards, epoch=body.epoch, offsets=offsets
        )
    log.on_publish(published)
    return describe_published(published)


@ACTIONS.add("transaction-begin", TransactionBegin)
def begin_transactions(log: Log, body: TransactionBegin) -> Json:
    """Begin the next epoch of a writer, which fences its publishes of earlier ones."""
    return {"epoch": log.stages.begin(body.writer)}


@ACTIONS.add("stage-abort", StageAbort)
def abort_stages(log: Log, body: StageAbort) -> Json:
    """Delete unpublished stages."""
    return describe_aborted(log.abort_stages(body.writer, body.stages, body.batch, body.prefix))


@ACTIONS.add("shard-open", ShardOpen)
def open_shards(log: Log, body: ShardOpen) -> Json:
    """Create missing shards; returns all of the named shards."""
    return describe_shards(log.shards.open(body.source, body.token, body.shards))


@ACTIONS.add("shard-acquire", ShardAcquire)
def acquire_shards(log: Log, body: ShardAcquire) -> Json:
    """Take over shards from owners that were inactive for too long."""
    claims = [entry.claim() for entry in body.claims]
    return describe_shards(log.shards.acquire(body.source, body.token, claims, body.stale_seconds))


@ACTIONS.add("shard-reset", ShardNames)
def reset_shards(log: Log, body: ShardNames) -> Json:
    """Reopen dead shards."""
    return describe_shards(log.shards.reset(body.source, body.shards))


@ACTIONS.add("shard-get", ShardNames)
def get_shards(log: Log, body: ShardNames) -> Json:
    """Return shards by id: owner, position, state and failures."""
    return describe_shards(log.shards.get(body.source, body.shards))


@ACTIONS.add("shard-list", ShardList)
def list_shards(log: Log, body: ShardList) -> Json:
    """Return shards of a source in order of ids, a page at a time."""
    found = log.shards.of_source(body.source, body.state, body.after, body.limit)
    return describe_shards(found)


@ACTIONS.add("shard-count", ShardCount)
def count_shards(log: Log, body: ShardCount) -> Json:
    """Count the shards of a source by state."""
    return describe_counts(log.shards.count(body.source))


@ACTIONS.add("shard-prune", ShardPrune)
def prune_shards(log: Log, body: ShardPrune) -> Json:
    """Delete finished and dead shards beyond an age or a count, at most once per interval."""
    pruned = log.shards.prune(body.source, body.age_seconds, body.count_max, body.interval_seconds)
    return describe_pruned(pruned)


@ACTIONS.add("tier-states", TopicBody)
def tier_states(log: Log, body: TopicBody) -> Json:
    """Return the pages, rows and bytes of a topic's partitions in each tier, by value."""
    topic = _topic(log, body.topic)
    return describe_tier_states(log.maintenance.tier_states(topic.uuid))


@ACTIONS.add("sql-live", LiveBody)
def sql_live(log: ServedLog, body: LiveBody) -> Json:
    """Return the topic, columns and filter of a follow equivalent to a SELECT; nothing is read."""
    namespace = DEFAULT_NAMESPACE if body.namespace is None else NamespaceName.parse(body.namespace)
    view = log.sql.live(body.sql, namespace)
    return {"topic": str(view.topic), "columns": view.columns, "filter": view.filter}


@ACTIONS.add("maintain", Maintain)
def maintain(log: Log, body: Maintain) -> Json:
    """Run due maintenance now, of one topic or of all; returns its counts."""
    topic = None
    if body.topic is not None:  # Read afresh: another node may have changed its configuration.
        topic = log.admin.get_topic(TopicName.parse(body.topic), fresh=True)
    return asdict(log.maintainer.run(topic))


def _topic(log: Log, name: str) -> Topic:
    return log.admin.get_topic(TopicName.parse(name))


TOKEN_ACTIONS = Actions()


@TOKEN_ACTIONS.add("token-create", TokenCreate)
def create_token(log: Log, body: TokenCreate) -> Json:
    """Create a token; returns its description and, only now, its text."""
    now = now_us()
    secret = new_secret()
    token = Token(
        id=str(uuid4()),
        name=body.name,
        digest=digest_of(secret),
        grants=tuple(dict.fromkeys(Grant.parse(text) for text in body.grants)),
        created_at=now,
        expires_at=None if body.expires is None else parse_expiry(body.expires, now),
        quotas=body.quotas.quotas,
    )
    return {**describe_token(log.tokens.create(token)), "token": secret}


@TOKEN_ACTIONS.add("token-alter", TokenAlter)
def alter_token(log: Log, body: TokenAlter) -> Json:
    """Replace a token's quotas; returns its description."""
    return describe_token(log.tokens.alter(body.name, body.quotas.quotas))


@TOKEN_ACTIONS.add("token-list", TokenList)
def list_tokens(log: Log, body: TokenList) -> Json:
    """Return the descriptions of all tokens, expired ones included, by name."""
    del body
    return [describe_token(token) for token in log.tokens.all()]


@TOKEN_ACTIONS.add("token-revoke", TokenRevoke)
def revoke_token(log: Log, body: TokenRevoke) -> Json:
    """Revoke a token; returns its last description."""
    return describe_token(log.tokens.revoke(body.name))


@ACTIONS.add("backup-begin", BackupBegin)
def begin_backup(log: ServedLog, body: BackupBegin) -> Json:
    """Begin a backup of the current state, to be read over Flight; returns its id."""
    del body
    return log.backups.begin()


@ACTIONS.add("backup-end", BackupEnd)
def end_backup(log: ServedLog, body: BackupEnd) -> Json:
    """End a backup; returns whether it was still in progress."""
    return {"ended": log.backups.end(body.backup)}


def open_backup(
    log: ServedLog, ticket: BackupFiles | BackupRead
) -> tuple[pa.Schema, Generator[tuple[pa.RecordBatch, bytes]]]:
    """Return the schema of a ticket's data, and its batches, without metadata."""
    if isinstance(ticket, BackupFiles):
        return FILES_SCHEMA, _without_metadata(log.backups.files(ticket.backup))
    return DATA_SCHEMA, _without_metadata(log.backups.read(ticket))


def _without_metadata(
    batches: Generator[pa.RecordBatch],
) -> Generator[tuple[pa.RecordBatch, bytes]]:
    with closing(batches):
        for batch in batches:
            yield batch, b""


ACTIONS.update(GROUP_ACTIONS)
ACTIONS.update(TOKEN_ACTIONS)
ACTIONS.update(OVERVIEW_ACTIONS)
