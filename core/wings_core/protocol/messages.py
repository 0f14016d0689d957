"""The table of dataclasses and their messages; see `codec`.

A message with the same fields as its dataclass needs one line here; the few that differ have
functions below the table.
"""

import json
from collections.abc import Iterable, Sequence
from itertools import zip_longest

import pyarrow as pa

from wings_core import model
from wings_core.errors import InvalidArgument, WingsError, error_from_json
from wings_core.metadata.maintenance import TableSegment
from wings_core.metadata.stages import cut_error
from wings_core.names import NamespaceName, TopicName
from wings_core.partitions import Partition, canonical_partition
from wings_core.protocol.codec import Codec, Convert, convert, text_of
from wings_core.protocol.v1 import admin_pb2 as admin
from wings_core.protocol.v1 import groups_pb2 as groups
from wings_core.protocol.v1 import maintenance_pb2 as maintenance
from wings_core.protocol.v1 import offset_registry_pb2 as registry
from wings_core.protocol.v1 import shards_pb2 as shards
from wings_core.protocol.v1 import tables_pb2 as tables
from wings_core.protocol.v1 import tokens_pb2 as tokens
from wings_core.protocol.v1 import transactions_pb2 as transactions
from wings_core.schema_changes import SchemaChange
from wings_core.security.quotas import Quotas
from wings_core.security.rights import Grant
from wings_core.security.tokens import Token

_INT64_MAX = (1 << 63) - 1


def int64(number: int) -> int:
    """Clamp a number to 64 bits; no log has offsets beyond."""
    return max(-_INT64_MAX - 1, min(number, _INT64_MAX))


def text(what: str, value: str) -> str:
    """Return a text after checking that a message can hold it.

    Raises:
        InvalidArgument: The text is invalid Unicode (JSON can contain half a surrogate pair).
    """
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} {value[:80]!a} is not valid Unicode") from None
    return value


def schema_bytes(schema: pa.Schema) -> bytes:
    """Encode an Arrow schema as its IPC message."""
    return schema.serialize().to_pybytes()


def schema_of(data: bytes) -> pa.Schema:
    """Decode an Arrow schema from its IPC message.

    Raises:
        InvalidArgument: `data` is not a schema message.
    """
    try:
        return pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError) as error:
        raise InvalidArgument(f"the schema is not an Arrow IPC message: {error}") from None


def config_of(data: str) -> model.TopicConfig:
    """Decode a topic's configuration from JSON; empty for the default.

    Unknown keys are ignored, as everywhere on gRPC.

    Raises:
        InvalidArgument: `data` is not the JSON of a configuration.
    """
    if not data:
        return model.TopicConfig()
    try:
        return model.TopicConfig.from_json(data)
    except ValueError as error:
        raise InvalidArgument(f"not the configuration of a topic: {error}") from None


def shard_state_of(name: str) -> model.ShardState:
    """Return the state of a shard by its name.

    Raises:
        InvalidArgument: No state has this name.
    """
    try:
        return model.ShardState(name)
    except ValueError:
        raise InvalidArgument(f"{name[:80]!r} is not the state of a shard") from None


def _producer_bytes(producer_id: str) -> bytes:
    """Encode a producer id as bytes, so that invalid Unicode only rejects its batch."""
    return producer_id.encode("utf-8", "surrogatepass")


def _producer_of(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise InvalidArgument("a producer_id is not UTF-8") from None


def _format_of(message: registry.Location) -> model.PageFormat:
    """Return the format of a page.

    Raises:
        Internal: This version does not know the format.
    """
    if message.format:
        return model.PageFormat(message.format)
    # Earlier versions send no format.
    return (
        model.PageFormat.SEGMENT
        if message.HasField("first_timestamp_us")
        else model.PageFormat.PLAIN
    )


_VERSION = Convert(
    lambda version: 0 if version == 1 else version,  # As sent by versions before schema changes.
    lambda version: version or 1,
)

convert(NamespaceName, str, NamespaceName.parse)
convert(TopicName, str, TopicName.parse)
convert(pa.Schema, schema_bytes, schema_of)
convert(model.TopicConfig, model.TopicConfig.model_dump_json, config_of)
convert(model.ShardState, str, shard_state_of)
convert(Grant, str, Grant.parse)

_NEAREST = Convert(int64)
_PRODUCER = Convert(_producer_bytes, _producer_of)

NAMESPACE = Codec(model.NamespaceState, admin.Namespace)
NODE = Codec(model.Node, admin.Node)
TOPIC = Codec(model.Topic, admin.Topic, omit=["later_schemas"])
SCHEMA_CHANGE = Codec(SchemaChange, admin.SchemaChange)

PAGE_ADDRESS = Codec(model.PageAddress, registry.PageAddress)
STORED_PAGE = Codec(model.StoredPage, registry.StoredPage, schema_version=_VERSION)
PARTITION_SEQUENCE = Codec(
    model.PartitionSequence,
    registry.PartitionSequence,
    producer_id=_PRODUCER,
    epoch=_NEAREST,
    first=_NEAREST,
)
SEQUENCE = Codec(model.Sequence, registry.Sequence, producer_id=_PRODUCER, sequence=_NEAREST)
EXPECTED_OFFSET = Codec(model.ExpectedOffset, registry.ExpectedOffset, offset=_NEAREST)
STAGE_ENTRY = Codec(model.StageEntry, registry.StageEntry)
COMMIT_BATCH = Codec(model.CommitBatch, registry.CommitBatch, omit=["series"], timestamp=_NEAREST)
FLUSH_ID = Codec(model.FlushId, registry.FlushId)
INLINE_FOLIO = Codec(model.InlineFolio, registry.InlineFolio)
COMMITTED_RANGE = Codec(model.AssignedRange, registry.CommittedRange)
ACCEPTED = Codec(model.Accepted, registry.Accepted)
STAGED = Codec(model.StagedBatch, registry.Staged)
LOCATION = Codec(
    model.Location,
    registry.Location,
    format=Convert(decode_message=_format_of),
    schema_version=_VERSION,
)
LOCATED = Codec(model.Located, registry.OffsetLocationResponse, omit=["asked_at"])
PARTITION_STATE = Codec(model.PartitionState, registry.PartitionState)
LOCATED_PARTITION = Codec(model.LocatedPartition, registry.LocatedPartition)
CONSUMER_OFFSET = Codec(model.CommittedOffset, registry.ConsumerOffset)

STAGE = Codec(model.UnpublishedStage, registry.Stage)
PUBLISHED_RANGE = Codec(model.PublishedTopicRange, registry.PublishedRange)
PUBLISHED = Codec(model.PublishResult, registry.PublishStagesResponse)
ABORTED = Codec(model.AbortResult, registry.AbortStagesResponse)

PRODUCER_EPOCH = Codec(
    model.ProducerEpoch, transactions.ProducerEpoch, producer_id=_NEAREST, epoch=_NEAREST
)
TRANSACTION = Codec(model.Transaction, transactions.Transaction)

SHARD = Codec(model.Shard, shards.Shard)
SHARD_PROGRESS = Codec(
    model.ShardProgress,
    shards.ShardProgress,
    error=Convert(lambda error: cut_error(error).encode(), text_of),
)
SHARD_CLAIM = Codec(model.ShardClaim, shards.AcquireShardsRequest.Claim)
SHARD_COUNTS = Codec(model.ShardCounts, shards.CountShardsResponse)
SHARDS_PRUNED = Codec(model.ShardsPruned, shards.PruneShardsResponse)

EXPIRED = Codec(model.Expired, maintenance.ExpirePagesResponse)
REPLACEMENT = Codec(model.Replacement, maintenance.Replacement)
INLINE_PAGE = Codec(model.InlinePage, maintenance.InlinePage)
INLINE_BACKLOG = Codec(model.InlineBacklog, maintenance.InlineBacklog)
TIER_STATE = Codec(model.TierState, maintenance.TierState)
PARTITION_SUMS = Codec(model.PartitionSums, maintenance.PartitionSums)
TOPIC_STATE = Codec(model.TopicState, maintenance.TopicState)
TOPIC_SUMS = Codec(model.TopicSums, maintenance.TopicSums)
LARGEST_TOPICS = Codec(model.LargestTopics, maintenance.LargestTopics)
TABLE_SEGMENT = Codec(TableSegment, tables.TableSegment)

QUOTAS = Codec(Quotas, tokens.Quotas)
MEMBER_EPOCH = Codec(model.MemberEpoch, registry.MemberEpoch)
TOKEN = Codec(Token, tokens.Token, digest=Convert())


def _check_slice(first_row: int | None, slice_bytes: int | None, page_bytes: int) -> None:
    """Check that a range is a whole page or a valid slice of it.

    Raises:
        InvalidArgument: The slice is invalid.
    """
    if first_row is None and slice_bytes is None:
        return
    if first_row is None or slice_bytes is None:
        raise InvalidArgument("a slice of a page has both a first row and bytes")
    if first_row < 0 or not 0 <= slice_bytes <= page_bytes:
        raise InvalidArgument("a slice must be within its page")


def batch_of(message: registry.CommitBatch) -> model.CommitBatch:
    """Decode a batch to commit.

    Raises:
        InvalidArgument: A page has no rows, bytes or partition, the producer id is not text, or a
            staged batch has conditions.
    """
    batch = COMMIT_BATCH.decode(message)
    for page in batch.pages:
        canonical_partition(page.partition)
    if batch.expected is not None:
        canonical_partition(batch.expected.partition)
    if any(page.rows < 1 or page.address.length < 1 for page in batch.pages):
        raise InvalidArgument("a page has at least one row and one byte")
    for page in batch.pages:
        _check_slice(page.first_row, page.slice_bytes, page.address.length)
    if any(page.schema_version < 1 for page in batch.pages):
        raise InvalidArgument("versions of a schema count from 1")
    if batch.stage and (batch.sequence or batch.expected):
        raise InvalidArgument("a staged batch has neither a sequence nor an expected offset")
    return batch


def result_message(result: model.CommitResult) -> registry.CommitResult:
    """Encode the result of a batch."""
    match result:
        case model.Accepted():
            return registry.CommitResult(accepted=ACCEPTED.fields(result))
        case model.StagedBatch():
            return registry.CommitResult(staged=STAGED.fields(result))
        case model.Rejected(error):
            # Escaped, so that half a surrogate pair in a name can be sent.
            return registry.CommitResult(error=json.dumps(error.to_json()))
        case model.SeriesResults():
            raise AssertionError("the batches of a series are sent each by itself")


def results_of(
    messages: Sequence[registry.CommitResult], batches: Sequence[model.CommitBatch]
) -> list[model.CommitResult]:
    """Decode the results of the batches of a flush."""
    errors: dict[str, WingsError] = {}
    results: list[model.CommitResult] = []
    # A repeated flush gets the results of the first, whatever batches it has.
    for message, batch in zip_longest(messages, batches[: len(messages)]):
        assert message is not None
        if message.HasField("accepted"):
            results.append(ACCEPTED.decode(message.accepted))
        elif message.HasField("staged"):
            results.append(STAGED.decode(message.staged))
        else:
            # The batches after a rejected one are rejected with the same error.
            error = errors.get(message.error)
            if error is None:
                error = errors[message.error] = error_from_json(json.loads(message.error))
                if batch and batch.sequence is not None and "sequence" in error.facts:
                    # The original number: it may have been clamped to 64 bits.
                    error.facts["sequence"] = batch.sequence.sequence
            results.append(model.Rejected(error))
    return results


def named_topic(name: str, uuid: str) -> model.Topic:
    """Return a topic by name and UUID, as far as what belongs to it is stored by."""
    return model.named_topic(TopicName.parse(name), uuid)


def consumer_commit_message(commit: model.ConsumerCommit) -> registry.CommitOffsetsRequest:
    """Encode the offsets that a consumer commits.

    Raises:
        ValueError: An offset has more than 64 bits, or a name is invalid Unicode.
    """
    return registry.CommitOffsetsRequest(
        consumer=commit.consumer,
        offsets=consumer_entries(commit.offsets),
        member=None if commit.member is None else MEMBER_EPOCH.fields(commit.member),
        notes=commit.notes,
    )


def consumer_commit_of(message: registry.CommitOffsetsRequest) -> model.ConsumerCommit:
    """Decode the offsets that a consumer commits."""
    member = MEMBER_EPOCH.decode(message.member) if message.HasField("member") else None
    offsets = tuple(consumer_offsets(message))
    return model.ConsumerCommit(message.consumer, offsets, member, tuple(message.notes))


def consumer_entries(
    offsets: Iterable[tuple[model.Topic, Partition, int]],
) -> list[registry.CommitOffsetsRequest.Entry]:
    """Encode offsets of partitions; raises as `consumer_commit_message`."""
    entry = registry.CommitOffsetsRequest.Entry
    return [
        entry(topic=str(topic.name), topic_uuid=topic.uuid, partition=partition, offset=offset)
        for topic, partition, offset in offsets
    ]


def consumer_offsets(
    message: registry.CommitOffsetsRequest,
) -> list[tuple[model.Topic, Partition, int]]:
    """Decode the offsets of a commit."""
    topics = {
        key: named_topic(*key)
        for key in dict.fromkeys((entry.topic, entry.topic_uuid) for entry in message.offsets)
    }
    return [
        (
            topics[entry.topic, entry.topic_uuid],
            canonical_partition(entry.partition),
            entry.offset,
        )
        for entry in message.offsets
    ]


def group_message(group: model.ShareGroup) -> groups.Group:
    """Encode a share group, without its topic."""
    return groups.Group(name=group.name, uuid=group.uuid, config=group.config.model_dump_json())


def group_of(topic: model.Topic, message: groups.Group) -> model.ShareGroup:
    """Decode a share group of a topic.

    Raises:
        InvalidArgument: The configuration is invalid.
    """
    config = model.ShareConfig.from_json(message.config)
    return model.ShareGroup(message.name, message.uuid, topic, config)
