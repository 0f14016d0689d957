"""The log's nouns as messages of the metadata service, and back."""

import json
from collections.abc import Sequence
from itertools import zip_longest

import pyarrow as pa

from wings_core.errors import InvalidArgument, WingsError, error_from_json
from wings_core.model import (
    Accepted,
    CommitBatch,
    CommitResult,
    CommittedRange,
    ConsumerOffset,
    ExpectedOffset,
    Located,
    Location,
    Namespace,
    Node,
    PageAddress,
    PageFormat,
    PartitionState,
    Published,
    PublishedRange,
    Rejected,
    Stage,
    Staged,
    StageEntry,
    StoredPage,
    Topic,
    TopicConfig,
)
from wings_core.model import Sequence as ProducerSequence
from wings_core.names import NamespaceName, TopicName
from wings_core.partitions import Partition
from wings_core.protocol.v1 import admin_pb2 as admin
from wings_core.protocol.v1 import groups_pb2 as groups
from wings_core.protocol.v1 import offset_registry_pb2 as registry
from wings_core.share.model import ShareConfig, ShareGroup

_INT64_MAX = (1 << 63) - 1

NO_SCHEMA = pa.schema([])
"""Of a topic of which only name and UUID are told."""


def int64(number: int) -> int:
    """Return the 64-bit integer nearest to a number: no log has offsets beyond them."""
    return max(-_INT64_MAX - 1, min(number, _INT64_MAX))


def text(what: str, value: str) -> str:
    """Return a text that a message can hold.

    Raises:
        InvalidArgument: It is not Unicode (JSON can carry half a surrogate pair).
    """
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} {value[:80]!a} is not valid Unicode") from None
    return value


def namespace_message(namespace: Namespace) -> admin.Namespace:
    """Return a namespace as a message."""
    return admin.Namespace(
        name=str(namespace.name), uuid=namespace.uuid, created_at_us=namespace.created_at
    )


def namespace_of(message: admin.Namespace) -> Namespace:
    """Return the namespace that a message tells of."""
    return Namespace(NamespaceName.parse(message.name), message.uuid, message.created_at_us)


def node_message(node: Node) -> admin.Node:
    """Return a Flight node as a message."""
    return admin.Node(id=node.id, address=node.address)


def node_of(message: admin.Node) -> Node:
    """Return the Flight node that a message tells of."""
    return Node(message.id, message.address)


def topic_message(topic: Topic) -> admin.Topic:
    """Return a topic as a message."""
    return admin.Topic(
        name=str(topic.name),
        uuid=topic.uuid,
        schema=topic.schema.serialize().to_pybytes(),
        partition_key=topic.partition_key,
        config=topic.config.model_dump_json(),
        created_at_us=topic.created_at,
    )


def topic_of(message: admin.Topic) -> Topic:
    """Return the topic that a message tells of."""
    return Topic(
        name=TopicName.parse(message.name),
        uuid=message.uuid,
        schema=schema_of(message.schema),
        partition_key=message.partition_key if message.HasField("partition_key") else None,
        config=config_of(message.config),
        created_at=message.created_at_us,
    )


def group_message(group: ShareGroup) -> groups.Group:
    """Return a share group as a message."""
    return groups.Group(name=group.name, uuid=group.uuid, config=group.config.model_dump_json())


def group_of(topic: Topic, message: groups.Group) -> ShareGroup:
    """Return the share group of a topic that a message tells of.

    Raises:
        InvalidArgument: Its configuration is none.
    """
    config = ShareConfig.from_json(message.config)
    return ShareGroup(message.name, message.uuid, topic, config)


def schema_of(data: bytes) -> pa.Schema:
    """Return an Arrow schema from its IPC message.

    Raises:
        InvalidArgument: It is none.
    """
    try:
        return pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError) as error:
        raise InvalidArgument(f"the schema is not an Arrow IPC message: {error}") from None


def config_of(data: str) -> TopicConfig:
    """Return a topic's configuration from JSON; empty: the default.

    Keys that this version does not know are ignored, as everywhere on gRPC.

    Raises:
        InvalidArgument: It is no configuration.
    """
    if not data:
        return TopicConfig()
    try:
        given = json.loads(data)
        return TopicConfig(
            **{name: value for name, value in given.items() if name in TopicConfig.model_fields}
        )
    except (ValueError, AttributeError) as error:
        raise InvalidArgument(f"not the configuration of a topic: {error}") from None


def _page_message(page: StoredPage) -> registry.StoredPage:
    return registry.StoredPage(
        partition=page.partition, rows=page.rows, address=_address_message(page.address)
    )


def pages_message(pages: Sequence[StoredPage]) -> list[registry.StoredPage]:
    """Return stored pages as messages."""
    return [_page_message(page) for page in pages]


def page_of(message: registry.StoredPage) -> StoredPage:
    """Return the stored page that a message tells of."""
    return StoredPage(Partition(message.partition), message.rows, _address_of(message.address))


def _address_message(address: PageAddress) -> registry.PageAddress:
    return registry.PageAddress(
        folio=address.folio, position=address.position, length=address.length
    )


def _address_of(message: registry.PageAddress) -> PageAddress:
    return PageAddress(message.folio, message.position, message.length)


def batch_message(batch: CommitBatch) -> registry.CommitBatch:
    """Return a batch to be committed as a message."""
    message = registry.CommitBatch(
        stream=batch.stream,
        topic_uuid=batch.topic_uuid,
        pages=pages_message(batch.pages),
        timestamp_us=None if batch.timestamp is None else int64(batch.timestamp),
    )
    if batch.sequence is not None:
        # As bytes: an id that is not Unicode is refused with its batch, not with the whole flush.
        message.sequence.producer_id = batch.sequence.producer_id.encode("utf-8", "surrogatepass")
        message.sequence.sequence = int64(batch.sequence.sequence)
    if batch.expected is not None:
        message.expected.partition = batch.expected.partition
        message.expected.offset = int64(batch.expected.offset)
    if batch.stage is not None:
        message.stage.stage = batch.stage.stage
        message.stage.writing = batch.stage.writing
        message.stage.first = batch.stage.first
    return message


def batch_of(message: registry.CommitBatch) -> CommitBatch:
    """Return the batch that a message asks to commit.

    Raises:
        InvalidArgument: A page without rows, or a producer id that is not text.
    """
    pages = tuple(page_of(page) for page in message.pages)
    if any(page.rows < 1 or page.address.length < 1 for page in pages):
        raise InvalidArgument("a page has at least one row and one byte")
    sequence = expected = stage = None
    if message.HasField("sequence"):
        try:
            producer_id = message.sequence.producer_id.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise InvalidArgument("a producer_id is not UTF-8") from None
        sequence = ProducerSequence(producer_id, message.sequence.sequence)
    if message.HasField("expected"):
        partition = Partition(message.expected.partition)
        expected = ExpectedOffset(partition, message.expected.offset)
    if message.HasField("stage"):
        stage = StageEntry(message.stage.stage, message.stage.writing, message.stage.first)
        if sequence is not None or expected is not None:
            raise InvalidArgument("a staged batch has neither a sequence nor an expected offset")
    return CommitBatch(
        stream=message.stream,
        topic_uuid=message.topic_uuid,
        pages=pages,
        sequence=sequence,
        expected=expected,
        timestamp=message.timestamp_us if message.HasField("timestamp_us") else None,
        stage=stage,
    )


def result_message(result: CommitResult) -> registry.CommitResult:
    """Return what became of a batch as a message."""
    match result:
        case Accepted(committed, replayed):
            ranges = [
                registry.CommittedRange(
                    partition=part.partition,
                    start_offset=part.start_offset,
                    end_offset=part.end_offset,
                    timestamp_us=part.timestamp,
                )
                for part in committed
            ]
            accepted = registry.Accepted(committed=ranges, replayed=replayed)
            return registry.CommitResult(accepted=accepted)
        case Staged(stage, rows, size):
            return registry.CommitResult(staged=registry.Staged(stage=stage, rows=rows, bytes=size))
        case Rejected(error):
            # Escaped, so that half a surrogate pair in a name travels too.
            return registry.CommitResult(error=json.dumps(error.to_json()))


def results_of(
    messages: Sequence[registry.CommitResult], batches: Sequence[CommitBatch]
) -> list[CommitResult]:
    """Return what became of the batches of a flush, from messages."""
    errors: dict[str, WingsError] = {}
    results: list[CommitResult] = []
    # A repeated flush is answered with its first results, whatever batches came with it.
    for message, batch in zip_longest(messages, batches[: len(messages)]):
        assert message is not None
        if message.HasField("accepted"):
            ranges = tuple(_range_of(part) for part in message.accepted.committed)
            results.append(Accepted(ranges, message.accepted.replayed))
        elif message.HasField("staged"):
            staged = message.staged
            results.append(Staged(staged.stage, staged.rows, staged.bytes))
        else:
            # The batches after a refused one are refused with the same error.
            error = errors.get(message.error)
            if error is None:
                error = errors[message.error] = error_from_json(json.loads(message.error))
                if batch and batch.sequence is not None and "sequence" in error.facts:
                    # As it was given: it may have been cut to 64 bits on the way.
                    error.facts["sequence"] = batch.sequence.sequence
            results.append(Rejected(error))
    return results


def _range_of(message: registry.CommittedRange) -> CommittedRange:
    return CommittedRange(
        Partition(message.partition), message.start_offset, message.end_offset, message.timestamp_us
    )


def location_message(location: Location) -> registry.Location:
    """Return a location as a message."""
    return registry.Location(
        start_offset=location.start_offset,
        end_offset=location.end_offset,
        timestamp_us=location.timestamp,
        address=_address_message(location.address),
        first_timestamp_us=location.first_timestamp,
        format=registry.PageFormat.ValueType(location.format),
    )


def location_of(message: registry.Location) -> Location:
    """Return the location that a message tells of.

    Raises:
        Internal: Its format is not known to this version.
    """
    merged = message.HasField("first_timestamp_us")
    # Earlier versions name no format.
    unnamed = PageFormat.SEGMENT if merged else PageFormat.PLAIN
    return Location(
        message.start_offset,
        message.end_offset,
        message.timestamp_us,
        _address_of(message.address),
        message.first_timestamp_us if merged else None,
        PageFormat(message.format) if message.format else unnamed,
    )


def located_message(located: Located) -> registry.OffsetLocationResponse:
    """Return what was located as a message."""
    return registry.OffsetLocationResponse(
        locations=[location_message(location) for location in located.locations],
        log_start_offset=located.log_start_offset,
        log_end_offset=located.log_end_offset,
    )


def located_of(message: registry.OffsetLocationResponse) -> Located:
    """Return what was located, from a message."""
    return Located(
        tuple(location_of(location) for location in message.locations),
        message.log_start_offset,
        message.log_end_offset,
    )


def state_message(state: PartitionState) -> registry.PartitionState:
    """Return where a partition stands as a message."""
    return registry.PartitionState(
        partition=state.partition,
        log_start_offset=state.log_start_offset,
        next_offset=state.next_offset,
        bytes=state.bytes,
        last_timestamp_us=state.last_timestamp,
    )


def state_of(message: registry.PartitionState) -> PartitionState:
    """Return where a partition stands, from a message."""
    return PartitionState(
        Partition(message.partition),
        message.log_start_offset,
        message.next_offset,
        message.bytes,
        message.last_timestamp_us if message.HasField("last_timestamp_us") else None,
    )


def consumer_offset_message(entry: ConsumerOffset) -> registry.ConsumerOffset:
    """Return a consumer's place as a message."""
    return registry.ConsumerOffset(
        topic=str(entry.topic),
        partition=entry.partition,
        offset=entry.offset,
        committed_at_us=entry.committed_at,
    )


def consumer_offset_of(message: registry.ConsumerOffset) -> ConsumerOffset:
    """Return a consumer's place, from a message."""
    return ConsumerOffset(
        TopicName.parse(message.topic),
        Partition(message.partition),
        message.offset,
        message.committed_at_us,
    )


def published_message(published: Published) -> registry.PublishStagesResponse:
    """Return what a publish made visible as a message."""
    return registry.PublishStagesResponse(
        committed=[
            registry.PublishedRange(
                topic=str(part.topic),
                partition=part.partition,
                start_offset=part.start_offset,
                end_offset=part.end_offset,
            )
            for part in published.committed
        ],
        replayed=published.replayed,
    )


def published_of(message: registry.PublishStagesResponse) -> Published:
    """Return what a publish made visible, from a message."""
    return Published(
        tuple(
            PublishedRange(
                TopicName.parse(part.topic),
                Partition(part.partition),
                part.start_offset,
                part.end_offset,
            )
            for part in message.committed
        ),
        message.replayed,
    )


def stage_message(stage: Stage) -> registry.Stage:
    """Return a stage as a message."""
    return registry.Stage(
        stage=stage.stage,
        topic_uuid=stage.topic_uuid,
        rows=stage.rows,
        bytes=stage.bytes,
        pages=stage.pages,
        changed_at_us=stage.changed_at,
    )


def stage_of(message: registry.Stage) -> Stage:
    """Return a stage, from a message."""
    return Stage(
        message.stage,
        message.topic_uuid,
        message.rows,
        message.bytes,
        message.pages,
        message.changed_at_us,
    )
