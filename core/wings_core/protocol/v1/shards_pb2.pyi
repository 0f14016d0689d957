from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Shard(_message.Message):
    __slots__ = ("source", "shard", "token", "position", "state", "failures", "error", "opened_at_us", "updated_at_us")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OPENED_AT_US_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_US_FIELD_NUMBER: _ClassVar[int]
    source: bytes
    shard: bytes
    token: bytes
    position: int
    state: str
    failures: int
    error: bytes
    opened_at_us: int
    updated_at_us: int
    def __init__(self, source: _Optional[bytes] = ..., shard: _Optional[bytes] = ..., token: _Optional[bytes] = ..., position: _Optional[int] = ..., state: _Optional[str] = ..., failures: _Optional[int] = ..., error: _Optional[bytes] = ..., opened_at_us: _Optional[int] = ..., updated_at_us: _Optional[int] = ...) -> None: ...

class ShardProgress(_message.Message):
    __slots__ = ("source", "shard", "token", "position", "next_position", "state", "error")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    NEXT_POSITION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    source: bytes
    shard: bytes
    token: bytes
    position: int
    next_position: int
    state: str
    error: bytes
    def __init__(self, source: _Optional[bytes] = ..., shard: _Optional[bytes] = ..., token: _Optional[bytes] = ..., position: _Optional[int] = ..., next_position: _Optional[int] = ..., state: _Optional[str] = ..., error: _Optional[bytes] = ...) -> None: ...

class ShardsResponse(_message.Message):
    __slots__ = ("shards",)
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    shards: _containers.RepeatedCompositeFieldContainer[Shard]
    def __init__(self, shards: _Optional[_Iterable[_Union[Shard, _Mapping]]] = ...) -> None: ...

class OpenShardsRequest(_message.Message):
    __slots__ = ("source", "token", "shards")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    source: bytes
    token: bytes
    shards: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, source: _Optional[bytes] = ..., token: _Optional[bytes] = ..., shards: _Optional[_Iterable[bytes]] = ...) -> None: ...

class AcquireShardsRequest(_message.Message):
    __slots__ = ("source", "token", "claims", "stale_seconds")
    class Claim(_message.Message):
        __slots__ = ("shard", "token")
        SHARD_FIELD_NUMBER: _ClassVar[int]
        TOKEN_FIELD_NUMBER: _ClassVar[int]
        shard: bytes
        token: bytes
        def __init__(self, shard: _Optional[bytes] = ..., token: _Optional[bytes] = ...) -> None: ...
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    STALE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    source: bytes
    token: bytes
    claims: _containers.RepeatedCompositeFieldContainer[AcquireShardsRequest.Claim]
    stale_seconds: float
    def __init__(self, source: _Optional[bytes] = ..., token: _Optional[bytes] = ..., claims: _Optional[_Iterable[_Union[AcquireShardsRequest.Claim, _Mapping]]] = ..., stale_seconds: _Optional[float] = ...) -> None: ...

class ResetShardsRequest(_message.Message):
    __slots__ = ("source", "shards")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    source: bytes
    shards: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, source: _Optional[bytes] = ..., shards: _Optional[_Iterable[bytes]] = ...) -> None: ...

class GetShardsRequest(_message.Message):
    __slots__ = ("source", "shards")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    source: bytes
    shards: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, source: _Optional[bytes] = ..., shards: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ListShardsRequest(_message.Message):
    __slots__ = ("source", "state", "after", "shards_max")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    SHARDS_MAX_FIELD_NUMBER: _ClassVar[int]
    source: bytes
    state: str
    after: bytes
    shards_max: int
    def __init__(self, source: _Optional[bytes] = ..., state: _Optional[str] = ..., after: _Optional[bytes] = ..., shards_max: _Optional[int] = ...) -> None: ...

class ListSourcesRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListSourcesResponse(_message.Message):
    __slots__ = ("sources", "next_page_token")
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    sources: _containers.RepeatedScalarFieldContainer[str]
    next_page_token: str
    def __init__(self, sources: _Optional[_Iterable[str]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class CountShardsRequest(_message.Message):
    __slots__ = ("source",)
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    source: bytes
    def __init__(self, source: _Optional[bytes] = ...) -> None: ...

class CountShardsResponse(_message.Message):
    __slots__ = ("open", "finished", "dead", "position")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    open: int
    finished: int
    dead: int
    position: int
    def __init__(self, open: _Optional[int] = ..., finished: _Optional[int] = ..., dead: _Optional[int] = ..., position: _Optional[int] = ...) -> None: ...

class PruneShardsRequest(_message.Message):
    __slots__ = ("source", "age_seconds", "count_max", "interval_seconds")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COUNT_MAX_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    source: bytes
    age_seconds: float
    count_max: int
    interval_seconds: float
    def __init__(self, source: _Optional[bytes] = ..., age_seconds: _Optional[float] = ..., count_max: _Optional[int] = ..., interval_seconds: _Optional[float] = ...) -> None: ...

class PruneShardsResponse(_message.Message):
    __slots__ = ("shards", "debounced")
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    DEBOUNCED_FIELD_NUMBER: _ClassVar[int]
    shards: int
    debounced: bool
    def __init__(self, shards: _Optional[int] = ..., debounced: _Optional[bool] = ...) -> None: ...
