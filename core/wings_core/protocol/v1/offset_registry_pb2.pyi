import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from wings_core.protocol.v1 import shards_pb2 as _shards_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PageFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PAGE_FORMAT_UNSPECIFIED: _ClassVar[PageFormat]
    PAGE_FORMAT_PLAIN: _ClassVar[PageFormat]
    PAGE_FORMAT_SEGMENT: _ClassVar[PageFormat]
    PAGE_FORMAT_INLINE: _ClassVar[PageFormat]
    PAGE_FORMAT_DRAINED: _ClassVar[PageFormat]
    PAGE_FORMAT_PARQUET: _ClassVar[PageFormat]
PAGE_FORMAT_UNSPECIFIED: PageFormat
PAGE_FORMAT_PLAIN: PageFormat
PAGE_FORMAT_SEGMENT: PageFormat
PAGE_FORMAT_INLINE: PageFormat
PAGE_FORMAT_DRAINED: PageFormat
PAGE_FORMAT_PARQUET: PageFormat

class PageAddress(_message.Message):
    __slots__ = ("folio", "position", "length")
    FOLIO_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    folio: str
    position: int
    length: int
    def __init__(self, folio: _Optional[str] = ..., position: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class StoredPage(_message.Message):
    __slots__ = ("partition", "rows", "address", "first_row", "slice_bytes", "schema_version")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    SLICE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    partition: str
    rows: int
    address: PageAddress
    first_row: int
    slice_bytes: int
    schema_version: int
    def __init__(self, partition: _Optional[str] = ..., rows: _Optional[int] = ..., address: _Optional[_Union[PageAddress, _Mapping]] = ..., first_row: _Optional[int] = ..., slice_bytes: _Optional[int] = ..., schema_version: _Optional[int] = ...) -> None: ...

class Sequence(_message.Message):
    __slots__ = ("producer_id", "sequence")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    producer_id: bytes
    sequence: int
    def __init__(self, producer_id: _Optional[bytes] = ..., sequence: _Optional[int] = ...) -> None: ...

class PartitionSequence(_message.Message):
    __slots__ = ("producer_id", "epoch", "first")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    producer_id: bytes
    epoch: int
    first: int
    def __init__(self, producer_id: _Optional[bytes] = ..., epoch: _Optional[int] = ..., first: _Optional[int] = ...) -> None: ...

class ExpectedOffset(_message.Message):
    __slots__ = ("partition", "offset")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    partition: str
    offset: int
    def __init__(self, partition: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class StageEntry(_message.Message):
    __slots__ = ("stage", "writing", "first")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    WRITING_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    stage: str
    writing: str
    first: bool
    def __init__(self, stage: _Optional[str] = ..., writing: _Optional[str] = ..., first: _Optional[bool] = ...) -> None: ...

class CommitBatch(_message.Message):
    __slots__ = ("stream", "topic_uuid", "pages", "sequence", "expected", "timestamp_us", "stage", "partition_sequence")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    stream: int
    topic_uuid: str
    pages: _containers.RepeatedCompositeFieldContainer[StoredPage]
    sequence: Sequence
    expected: ExpectedOffset
    timestamp_us: int
    stage: StageEntry
    partition_sequence: PartitionSequence
    def __init__(self, stream: _Optional[int] = ..., topic_uuid: _Optional[str] = ..., pages: _Optional[_Iterable[_Union[StoredPage, _Mapping]]] = ..., sequence: _Optional[_Union[Sequence, _Mapping]] = ..., expected: _Optional[_Union[ExpectedOffset, _Mapping]] = ..., timestamp_us: _Optional[int] = ..., stage: _Optional[_Union[StageEntry, _Mapping]] = ..., partition_sequence: _Optional[_Union[PartitionSequence, _Mapping]] = ...) -> None: ...

class FlushId(_message.Message):
    __slots__ = ("writer", "number")
    WRITER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    writer: str
    number: int
    def __init__(self, writer: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("batches", "flush_id", "inline")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    FLUSH_ID_FIELD_NUMBER: _ClassVar[int]
    INLINE_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[CommitBatch]
    flush_id: FlushId
    inline: InlineFolio
    def __init__(self, batches: _Optional[_Iterable[_Union[CommitBatch, _Mapping]]] = ..., flush_id: _Optional[_Union[FlushId, _Mapping]] = ..., inline: _Optional[_Union[InlineFolio, _Mapping]] = ...) -> None: ...

class InlineFolio(_message.Message):
    __slots__ = ("name", "data")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    data: bytes
    def __init__(self, name: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class ReadInlineFolioRequest(_message.Message):
    __slots__ = ("folio", "others")
    FOLIO_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    folio: str
    others: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, folio: _Optional[str] = ..., others: _Optional[_Iterable[str]] = ...) -> None: ...

class ReadInlineFolioResponse(_message.Message):
    __slots__ = ("data", "others")
    DATA_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    others: _containers.RepeatedCompositeFieldContainer[InlineFolio]
    def __init__(self, data: _Optional[bytes] = ..., others: _Optional[_Iterable[_Union[InlineFolio, _Mapping]]] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[CommitResult]
    def __init__(self, results: _Optional[_Iterable[_Union[CommitResult, _Mapping]]] = ...) -> None: ...

class CommitResult(_message.Message):
    __slots__ = ("accepted", "staged", "error")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    STAGED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    accepted: Accepted
    staged: Staged
    error: str
    def __init__(self, accepted: _Optional[_Union[Accepted, _Mapping]] = ..., staged: _Optional[_Union[Staged, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("committed", "replayed")
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    committed: _containers.RepeatedCompositeFieldContainer[CommittedRange]
    replayed: bool
    def __init__(self, committed: _Optional[_Iterable[_Union[CommittedRange, _Mapping]]] = ..., replayed: _Optional[bool] = ...) -> None: ...

class CommittedRange(_message.Message):
    __slots__ = ("partition", "start_offset", "end_offset", "timestamp_us")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    partition: str
    start_offset: int
    end_offset: int
    timestamp_us: int
    def __init__(self, partition: _Optional[str] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., timestamp_us: _Optional[int] = ...) -> None: ...

class Staged(_message.Message):
    __slots__ = ("stage", "rows", "bytes", "rows_before")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    ROWS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    stage: str
    rows: int
    bytes: int
    rows_before: int
    def __init__(self, stage: _Optional[str] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., rows_before: _Optional[int] = ...) -> None: ...

class OffsetLocationRequest(_message.Message):
    __slots__ = ("topic_uuid", "partition", "offset", "messages_max", "deadline", "sent_at")
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_MAX_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    SENT_AT_FIELD_NUMBER: _ClassVar[int]
    topic_uuid: str
    partition: str
    offset: int
    messages_max: int
    deadline: _timestamp_pb2.Timestamp
    sent_at: _timestamp_pb2.Timestamp
    def __init__(self, topic_uuid: _Optional[str] = ..., partition: _Optional[str] = ..., offset: _Optional[int] = ..., messages_max: _Optional[int] = ..., deadline: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., sent_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class OffsetLocationResponse(_message.Message):
    __slots__ = ("locations", "log_start_offset", "log_end_offset")
    LOCATIONS_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    locations: _containers.RepeatedCompositeFieldContainer[Location]
    log_start_offset: int
    log_end_offset: int
    def __init__(self, locations: _Optional[_Iterable[_Union[Location, _Mapping]]] = ..., log_start_offset: _Optional[int] = ..., log_end_offset: _Optional[int] = ...) -> None: ...

class Location(_message.Message):
    __slots__ = ("start_offset", "end_offset", "timestamp_us", "address", "first_timestamp_us", "format", "first_row", "slice_bytes", "schema_version")
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    SLICE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    start_offset: int
    end_offset: int
    timestamp_us: int
    address: PageAddress
    first_timestamp_us: int
    format: PageFormat
    first_row: int
    slice_bytes: int
    schema_version: int
    def __init__(self, start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., timestamp_us: _Optional[int] = ..., address: _Optional[_Union[PageAddress, _Mapping]] = ..., first_timestamp_us: _Optional[int] = ..., format: _Optional[_Union[PageFormat, str]] = ..., first_row: _Optional[int] = ..., slice_bytes: _Optional[int] = ..., schema_version: _Optional[int] = ...) -> None: ...

class LocateManyRequest(_message.Message):
    __slots__ = ("topic_uuid", "partitions", "offsets", "messages_max", "locations_max")
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_MAX_FIELD_NUMBER: _ClassVar[int]
    LOCATIONS_MAX_FIELD_NUMBER: _ClassVar[int]
    topic_uuid: str
    partitions: _containers.RepeatedScalarFieldContainer[str]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    messages_max: int
    locations_max: int
    def __init__(self, topic_uuid: _Optional[str] = ..., partitions: _Optional[_Iterable[str]] = ..., offsets: _Optional[_Iterable[int]] = ..., messages_max: _Optional[int] = ..., locations_max: _Optional[int] = ...) -> None: ...

class LocateManyResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[LocatedPartition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[LocatedPartition, _Mapping]]] = ...) -> None: ...

class LocatedPartition(_message.Message):
    __slots__ = ("state", "locations")
    STATE_FIELD_NUMBER: _ClassVar[int]
    LOCATIONS_FIELD_NUMBER: _ClassVar[int]
    state: PartitionState
    locations: _containers.RepeatedCompositeFieldContainer[Location]
    def __init__(self, state: _Optional[_Union[PartitionState, _Mapping]] = ..., locations: _Optional[_Iterable[_Union[Location, _Mapping]]] = ...) -> None: ...

class WatchTopicRequest(_message.Message):
    __slots__ = ("topic_uuid",)
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    topic_uuid: str
    def __init__(self, topic_uuid: _Optional[str] = ...) -> None: ...

class TopicChange(_message.Message):
    __slots__ = ("ends",)
    class End(_message.Message):
        __slots__ = ("partition", "next_offset")
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
        partition: str
        next_offset: int
        def __init__(self, partition: _Optional[str] = ..., next_offset: _Optional[int] = ...) -> None: ...
    ENDS_FIELD_NUMBER: _ClassVar[int]
    ends: _containers.RepeatedCompositeFieldContainer[TopicChange.End]
    def __init__(self, ends: _Optional[_Iterable[_Union[TopicChange.End, _Mapping]]] = ...) -> None: ...

class PartitionState(_message.Message):
    __slots__ = ("partition", "log_start_offset", "next_offset", "bytes", "last_timestamp_us")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    LAST_TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    partition: str
    log_start_offset: int
    next_offset: int
    bytes: int
    last_timestamp_us: int
    def __init__(self, partition: _Optional[str] = ..., log_start_offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., bytes: _Optional[int] = ..., last_timestamp_us: _Optional[int] = ...) -> None: ...

class GetPartitionStateRequest(_message.Message):
    __slots__ = ("topic_uuid", "partition")
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic_uuid: str
    partition: str
    def __init__(self, topic_uuid: _Optional[str] = ..., partition: _Optional[str] = ...) -> None: ...

class ListPartitionStatesRequest(_message.Message):
    __slots__ = ("topic_uuid", "page_size", "page_token")
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    topic_uuid: str
    page_size: int
    page_token: str
    def __init__(self, topic_uuid: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListPartitionStatesResponse(_message.Message):
    __slots__ = ("partition_states", "next_page_token")
    PARTITION_STATES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    partition_states: _containers.RepeatedCompositeFieldContainer[PartitionState]
    next_page_token: str
    def __init__(self, partition_states: _Optional[_Iterable[_Union[PartitionState, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class OffsetForTimestampRequest(_message.Message):
    __slots__ = ("topic_uuid", "partition", "timestamp_us")
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    topic_uuid: str
    partition: str
    timestamp_us: int
    def __init__(self, topic_uuid: _Optional[str] = ..., partition: _Optional[str] = ..., timestamp_us: _Optional[int] = ...) -> None: ...

class OffsetForTimestampResponse(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...

class OffsetsForTimestampsRequest(_message.Message):
    __slots__ = ("topic_uuid", "partitions", "timestamps_us")
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMPS_US_FIELD_NUMBER: _ClassVar[int]
    topic_uuid: str
    partitions: _containers.RepeatedScalarFieldContainer[str]
    timestamps_us: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic_uuid: _Optional[str] = ..., partitions: _Optional[_Iterable[str]] = ..., timestamps_us: _Optional[_Iterable[int]] = ...) -> None: ...

class OffsetsForTimestampsResponse(_message.Message):
    __slots__ = ("offsets",)
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class ConsumerOffset(_message.Message):
    __slots__ = ("topic", "partition", "offset", "committed_at_us", "note")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_AT_US_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: str
    offset: int
    committed_at_us: int
    note: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[str] = ..., offset: _Optional[int] = ..., committed_at_us: _Optional[int] = ..., note: _Optional[str] = ...) -> None: ...

class CommitOffsetsRequest(_message.Message):
    __slots__ = ("consumer", "offsets", "member", "notes")
    class Entry(_message.Message):
        __slots__ = ("topic", "topic_uuid", "partition", "offset")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        topic: str
        topic_uuid: str
        partition: str
        offset: int
        def __init__(self, topic: _Optional[str] = ..., topic_uuid: _Optional[str] = ..., partition: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    consumer: str
    offsets: _containers.RepeatedCompositeFieldContainer[CommitOffsetsRequest.Entry]
    member: MemberEpoch
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, consumer: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[CommitOffsetsRequest.Entry, _Mapping]]] = ..., member: _Optional[_Union[MemberEpoch, _Mapping]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class MemberEpoch(_message.Message):
    __slots__ = ("member", "epoch")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    member: str
    epoch: int
    def __init__(self, member: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class CommitOffsetsResponse(_message.Message):
    __slots__ = ("offsets",)
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedCompositeFieldContainer[ConsumerOffset]
    def __init__(self, offsets: _Optional[_Iterable[_Union[ConsumerOffset, _Mapping]]] = ...) -> None: ...

class ListConsumerOffsetsRequest(_message.Message):
    __slots__ = ("consumer", "topic_uuid", "page_size", "page_token")
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    consumer: str
    topic_uuid: str
    page_size: int
    page_token: str
    def __init__(self, consumer: _Optional[str] = ..., topic_uuid: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListConsumerOffsetsResponse(_message.Message):
    __slots__ = ("offsets", "next_page_token")
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedCompositeFieldContainer[ConsumerOffset]
    next_page_token: str
    def __init__(self, offsets: _Optional[_Iterable[_Union[ConsumerOffset, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ForgetOffsetsRequest(_message.Message):
    __slots__ = ("consumer", "topic_uuid", "partitions")
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    consumer: str
    topic_uuid: str
    partitions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, consumer: _Optional[str] = ..., topic_uuid: _Optional[str] = ..., partitions: _Optional[_Iterable[str]] = ...) -> None: ...

class ForgetOffsetsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListConsumersRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListConsumersResponse(_message.Message):
    __slots__ = ("consumers", "next_page_token")
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    consumers: _containers.RepeatedScalarFieldContainer[str]
    next_page_token: str
    def __init__(self, consumers: _Optional[_Iterable[str]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class PurgeRequest(_message.Message):
    __slots__ = ("pages_max",)
    PAGES_MAX_FIELD_NUMBER: _ClassVar[int]
    pages_max: int
    def __init__(self, pages_max: _Optional[int] = ...) -> None: ...

class PurgeResponse(_message.Message):
    __slots__ = ("more",)
    MORE_FIELD_NUMBER: _ClassVar[int]
    more: bool
    def __init__(self, more: _Optional[bool] = ...) -> None: ...

class ListLiveFoliosRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListLiveFoliosResponse(_message.Message):
    __slots__ = ("folios", "next_page_token")
    FOLIOS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    folios: _containers.RepeatedScalarFieldContainer[str]
    next_page_token: str
    def __init__(self, folios: _Optional[_Iterable[str]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class RetireFoliosRequest(_message.Message):
    __slots__ = ("folios",)
    FOLIOS_FIELD_NUMBER: _ClassVar[int]
    folios: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, folios: _Optional[_Iterable[str]] = ...) -> None: ...

class RetireFoliosResponse(_message.Message):
    __slots__ = ("folios",)
    FOLIOS_FIELD_NUMBER: _ClassVar[int]
    folios: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, folios: _Optional[_Iterable[str]] = ...) -> None: ...

class PublishStagesRequest(_message.Message):
    __slots__ = ("writer", "batch", "stages", "shards", "epoch", "offsets")
    WRITER_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    writer: str
    batch: int
    stages: _containers.RepeatedScalarFieldContainer[str]
    shards: _containers.RepeatedCompositeFieldContainer[_shards_pb2.ShardProgress]
    epoch: int
    offsets: CommitOffsetsRequest
    def __init__(self, writer: _Optional[str] = ..., batch: _Optional[int] = ..., stages: _Optional[_Iterable[str]] = ..., shards: _Optional[_Iterable[_Union[_shards_pb2.ShardProgress, _Mapping]]] = ..., epoch: _Optional[int] = ..., offsets: _Optional[_Union[CommitOffsetsRequest, _Mapping]] = ...) -> None: ...

class BeginEpochRequest(_message.Message):
    __slots__ = ("writer",)
    WRITER_FIELD_NUMBER: _ClassVar[int]
    writer: str
    def __init__(self, writer: _Optional[str] = ...) -> None: ...

class BeginEpochResponse(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class PublishStagesResponse(_message.Message):
    __slots__ = ("committed", "replayed")
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    committed: _containers.RepeatedCompositeFieldContainer[PublishedRange]
    replayed: bool
    def __init__(self, committed: _Optional[_Iterable[_Union[PublishedRange, _Mapping]]] = ..., replayed: _Optional[bool] = ...) -> None: ...

class PublishedRange(_message.Message):
    __slots__ = ("topic", "partition", "start_offset", "end_offset", "bytes")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: str
    start_offset: int
    end_offset: int
    bytes: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[str] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class AbortStagesRequest(_message.Message):
    __slots__ = ("writer", "stages", "batch", "prefix")
    WRITER_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    writer: str
    stages: _containers.RepeatedScalarFieldContainer[str]
    batch: int
    prefix: str
    def __init__(self, writer: _Optional[str] = ..., stages: _Optional[_Iterable[str]] = ..., batch: _Optional[int] = ..., prefix: _Optional[str] = ...) -> None: ...

class AbortStagesResponse(_message.Message):
    __slots__ = ("stages", "published")
    STAGES_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    stages: _containers.RepeatedScalarFieldContainer[str]
    published: bool
    def __init__(self, stages: _Optional[_Iterable[str]] = ..., published: _Optional[bool] = ...) -> None: ...

class SweepStagesRequest(_message.Message):
    __slots__ = ("seconds", "stages_max")
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    STAGES_MAX_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    stages_max: int
    def __init__(self, seconds: _Optional[float] = ..., stages_max: _Optional[int] = ...) -> None: ...

class SweepStagesResponse(_message.Message):
    __slots__ = ("swept",)
    SWEPT_FIELD_NUMBER: _ClassVar[int]
    swept: int
    def __init__(self, swept: _Optional[int] = ...) -> None: ...

class Stage(_message.Message):
    __slots__ = ("stage", "topic_uuid", "rows", "bytes", "pages", "changed_at_us")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    CHANGED_AT_US_FIELD_NUMBER: _ClassVar[int]
    stage: str
    topic_uuid: str
    rows: int
    bytes: int
    pages: int
    changed_at_us: int
    def __init__(self, stage: _Optional[str] = ..., topic_uuid: _Optional[str] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., pages: _Optional[int] = ..., changed_at_us: _Optional[int] = ...) -> None: ...

class ListStagesRequest(_message.Message):
    __slots__ = ("topic_uuid", "page_size", "page_token")
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    topic_uuid: str
    page_size: int
    page_token: str
    def __init__(self, topic_uuid: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListStagesResponse(_message.Message):
    __slots__ = ("stages", "next_page_token")
    STAGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    stages: _containers.RepeatedCompositeFieldContainer[Stage]
    next_page_token: str
    def __init__(self, stages: _Optional[_Iterable[_Union[Stage, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListTopicsOfStagesRequest(_message.Message):
    __slots__ = ("stages", "prefix")
    STAGES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    stages: _containers.RepeatedScalarFieldContainer[str]
    prefix: str
    def __init__(self, stages: _Optional[_Iterable[str]] = ..., prefix: _Optional[str] = ...) -> None: ...

class ListTopicsOfStagesResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics: _Optional[_Iterable[str]] = ...) -> None: ...

class ListStagePagesRequest(_message.Message):
    __slots__ = ("stage", "page_size", "page_token")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    stage: str
    page_size: int
    page_token: str
    def __init__(self, stage: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListStagePagesResponse(_message.Message):
    __slots__ = ("pages", "next_page_token")
    PAGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    pages: _containers.RepeatedCompositeFieldContainer[StoredPage]
    next_page_token: str
    def __init__(self, pages: _Optional[_Iterable[_Union[StoredPage, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...
