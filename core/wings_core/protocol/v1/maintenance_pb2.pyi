from wings_core.protocol.v1 import offset_registry_pb2 as _offset_registry_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AcquireLeaseRequest(_message.Message):
    __slots__ = ("name", "holder", "seconds")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    holder: str
    seconds: float
    def __init__(self, name: _Optional[str] = ..., holder: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class AcquireLeaseResponse(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: int
    def __init__(self, token: _Optional[int] = ...) -> None: ...

class ReleaseLeaseRequest(_message.Message):
    __slots__ = ("name", "holder")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    name: str
    holder: str
    def __init__(self, name: _Optional[str] = ..., holder: _Optional[str] = ...) -> None: ...

class ReleaseLeaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetLeaseHolderRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetLeaseHolderResponse(_message.Message):
    __slots__ = ("holder",)
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    holder: str
    def __init__(self, holder: _Optional[str] = ...) -> None: ...

class ExpirePagesRequest(_message.Message):
    __slots__ = ("topic_uuid", "partition", "age_us", "bytes_kept", "pages_max", "finished_before", "group_uuids", "outside_tables", "before_offset")
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    AGE_US_FIELD_NUMBER: _ClassVar[int]
    BYTES_KEPT_FIELD_NUMBER: _ClassVar[int]
    PAGES_MAX_FIELD_NUMBER: _ClassVar[int]
    FINISHED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    GROUP_UUIDS_FIELD_NUMBER: _ClassVar[int]
    OUTSIDE_TABLES_FIELD_NUMBER: _ClassVar[int]
    BEFORE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic_uuid: str
    partition: str
    age_us: int
    bytes_kept: int
    pages_max: int
    finished_before: int
    group_uuids: _containers.RepeatedScalarFieldContainer[str]
    outside_tables: bool
    before_offset: int
    def __init__(self, topic_uuid: _Optional[str] = ..., partition: _Optional[str] = ..., age_us: _Optional[int] = ..., bytes_kept: _Optional[int] = ..., pages_max: _Optional[int] = ..., finished_before: _Optional[int] = ..., group_uuids: _Optional[_Iterable[str]] = ..., outside_tables: _Optional[bool] = ..., before_offset: _Optional[int] = ...) -> None: ...

class ExpirePagesResponse(_message.Message):
    __slots__ = ("log_start_offset", "pages", "rows", "bytes")
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    log_start_offset: int
    pages: int
    rows: int
    bytes: int
    def __init__(self, log_start_offset: _Optional[int] = ..., pages: _Optional[int] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class ReplacePagesRequest(_message.Message):
    __slots__ = ("topic_uuid", "partition", "old", "new", "lease", "holder", "token")
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OLD_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    topic_uuid: str
    partition: str
    old: _containers.RepeatedCompositeFieldContainer[_offset_registry_pb2.Location]
    new: _containers.RepeatedCompositeFieldContainer[_offset_registry_pb2.Location]
    lease: str
    holder: str
    token: int
    def __init__(self, topic_uuid: _Optional[str] = ..., partition: _Optional[str] = ..., old: _Optional[_Iterable[_Union[_offset_registry_pb2.Location, _Mapping]]] = ..., new: _Optional[_Iterable[_Union[_offset_registry_pb2.Location, _Mapping]]] = ..., lease: _Optional[str] = ..., holder: _Optional[str] = ..., token: _Optional[int] = ...) -> None: ...

class ReplacePagesResponse(_message.Message):
    __slots__ = ("replaced",)
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    replaced: bool
    def __init__(self, replaced: _Optional[bool] = ...) -> None: ...

class Replacement(_message.Message):
    __slots__ = ("topic_uuid", "partition", "old", "new")
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OLD_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    topic_uuid: str
    partition: str
    old: _containers.RepeatedCompositeFieldContainer[_offset_registry_pb2.Location]
    new: _containers.RepeatedCompositeFieldContainer[_offset_registry_pb2.Location]
    def __init__(self, topic_uuid: _Optional[str] = ..., partition: _Optional[str] = ..., old: _Optional[_Iterable[_Union[_offset_registry_pb2.Location, _Mapping]]] = ..., new: _Optional[_Iterable[_Union[_offset_registry_pb2.Location, _Mapping]]] = ...) -> None: ...

class ReplaceAllPagesRequest(_message.Message):
    __slots__ = ("replacements", "lease", "holder", "token")
    REPLACEMENTS_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    replacements: _containers.RepeatedCompositeFieldContainer[Replacement]
    lease: str
    holder: str
    token: int
    def __init__(self, replacements: _Optional[_Iterable[_Union[Replacement, _Mapping]]] = ..., lease: _Optional[str] = ..., holder: _Optional[str] = ..., token: _Optional[int] = ...) -> None: ...

class ReplaceAllPagesResponse(_message.Message):
    __slots__ = ("replaced",)
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    replaced: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, replaced: _Optional[_Iterable[bool]] = ...) -> None: ...

class GetInlineBacklogRequest(_message.Message):
    __slots__ = ("pages_max",)
    PAGES_MAX_FIELD_NUMBER: _ClassVar[int]
    pages_max: int
    def __init__(self, pages_max: _Optional[int] = ...) -> None: ...

class InlineBacklog(_message.Message):
    __slots__ = ("pages", "bytes")
    PAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    pages: _containers.RepeatedCompositeFieldContainer[InlinePage]
    bytes: int
    def __init__(self, pages: _Optional[_Iterable[_Union[InlinePage, _Mapping]]] = ..., bytes: _Optional[int] = ...) -> None: ...

class InlinePage(_message.Message):
    __slots__ = ("topic", "topic_uuid", "partition", "location")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_uuid: str
    partition: str
    location: _offset_registry_pb2.Location
    def __init__(self, topic: _Optional[str] = ..., topic_uuid: _Optional[str] = ..., partition: _Optional[str] = ..., location: _Optional[_Union[_offset_registry_pb2.Location, _Mapping]] = ...) -> None: ...

class ListTierStatesRequest(_message.Message):
    __slots__ = ("topic_uuid", "page_size", "page_token")
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    topic_uuid: str
    page_size: int
    page_token: str
    def __init__(self, topic_uuid: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListTierStatesResponse(_message.Message):
    __slots__ = ("tier_states", "next_page_token")
    TIER_STATES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    tier_states: _containers.RepeatedCompositeFieldContainer[TierState]
    next_page_token: str
    def __init__(self, tier_states: _Optional[_Iterable[_Union[TierState, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class TierState(_message.Message):
    __slots__ = ("partition", "remote", "pages", "rows", "bytes")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REMOTE_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    partition: str
    remote: bool
    pages: int
    rows: int
    bytes: int
    def __init__(self, partition: _Optional[str] = ..., remote: _Optional[bool] = ..., pages: _Optional[int] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class GetTopicStateRequest(_message.Message):
    __slots__ = ("topic_uuid",)
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    topic_uuid: str
    def __init__(self, topic_uuid: _Optional[str] = ...) -> None: ...

class TopicState(_message.Message):
    __slots__ = ("sums", "last_timestamp_us")
    SUMS_FIELD_NUMBER: _ClassVar[int]
    LAST_TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    sums: PartitionSums
    last_timestamp_us: int
    def __init__(self, sums: _Optional[_Union[PartitionSums, _Mapping]] = ..., last_timestamp_us: _Optional[int] = ...) -> None: ...

class GetLargestTopicsRequest(_message.Message):
    __slots__ = ("topics_max", "grouped_max")
    TOPICS_MAX_FIELD_NUMBER: _ClassVar[int]
    GROUPED_MAX_FIELD_NUMBER: _ClassVar[int]
    topics_max: int
    grouped_max: int
    def __init__(self, topics_max: _Optional[int] = ..., grouped_max: _Optional[int] = ...) -> None: ...

class LargestTopics(_message.Message):
    __slots__ = ("topics", "others", "of_others", "grouped")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    OF_OTHERS_FIELD_NUMBER: _ClassVar[int]
    GROUPED_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicSums]
    others: int
    of_others: PartitionSums
    grouped: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicSums, _Mapping]]] = ..., others: _Optional[int] = ..., of_others: _Optional[_Union[PartitionSums, _Mapping]] = ..., grouped: _Optional[_Iterable[str]] = ...) -> None: ...

class TopicSums(_message.Message):
    __slots__ = ("topic", "topic_uuid", "sums")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_uuid: str
    sums: PartitionSums
    def __init__(self, topic: _Optional[str] = ..., topic_uuid: _Optional[str] = ..., sums: _Optional[_Union[PartitionSums, _Mapping]] = ...) -> None: ...

class PartitionSums(_message.Message):
    __slots__ = ("partitions", "messages", "pages", "rows", "bytes", "merged_pages", "merged_rows", "merged_bytes")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MERGED_PAGES_FIELD_NUMBER: _ClassVar[int]
    MERGED_ROWS_FIELD_NUMBER: _ClassVar[int]
    MERGED_BYTES_FIELD_NUMBER: _ClassVar[int]
    partitions: int
    messages: int
    pages: int
    rows: int
    bytes: int
    merged_pages: int
    merged_rows: int
    merged_bytes: int
    def __init__(self, partitions: _Optional[int] = ..., messages: _Optional[int] = ..., pages: _Optional[int] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., merged_pages: _Optional[int] = ..., merged_rows: _Optional[int] = ..., merged_bytes: _Optional[int] = ...) -> None: ...
