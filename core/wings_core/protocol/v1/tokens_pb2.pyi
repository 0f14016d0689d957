from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Token(_message.Message):
    __slots__ = ("id", "name", "digest", "grants", "created_at_us", "expires_at_us", "quotas")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_US_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_US_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    digest: bytes
    grants: _containers.RepeatedScalarFieldContainer[str]
    created_at_us: int
    expires_at_us: int
    quotas: Quotas
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., digest: _Optional[bytes] = ..., grants: _Optional[_Iterable[str]] = ..., created_at_us: _Optional[int] = ..., expires_at_us: _Optional[int] = ..., quotas: _Optional[_Union[Quotas, _Mapping]] = ...) -> None: ...

class Quotas(_message.Message):
    __slots__ = ("calls", "bytes", "topics", "partitions")
    CALLS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    calls: int
    bytes: int
    topics: int
    partitions: int
    def __init__(self, calls: _Optional[int] = ..., bytes: _Optional[int] = ..., topics: _Optional[int] = ..., partitions: _Optional[int] = ...) -> None: ...

class AlterTokenRequest(_message.Message):
    __slots__ = ("name", "id", "quotas")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    name: str
    id: str
    quotas: Quotas
    def __init__(self, name: _Optional[str] = ..., id: _Optional[str] = ..., quotas: _Optional[_Union[Quotas, _Mapping]] = ...) -> None: ...

class DeleteTokenRequest(_message.Message):
    __slots__ = ("name", "id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    id: str
    def __init__(self, name: _Optional[str] = ..., id: _Optional[str] = ...) -> None: ...

class ListTokensRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListTokensResponse(_message.Message):
    __slots__ = ("tokens", "next_page_token")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    next_page_token: str
    def __init__(self, tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class CountTokenChangesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CountTokenChangesResponse(_message.Message):
    __slots__ = ("changes",)
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    changes: int
    def __init__(self, changes: _Optional[int] = ...) -> None: ...
