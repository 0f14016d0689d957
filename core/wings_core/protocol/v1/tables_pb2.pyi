from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TableSegment(_message.Message):
    __slots__ = ("folio", "partition", "end_offset", "rows", "added", "removed")
    FOLIO_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    folio: str
    partition: str
    end_offset: int
    rows: int
    added: int
    removed: int
    def __init__(self, folio: _Optional[str] = ..., partition: _Optional[str] = ..., end_offset: _Optional[int] = ..., rows: _Optional[int] = ..., added: _Optional[int] = ..., removed: _Optional[int] = ...) -> None: ...

class ListTablesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTablesResponse(_message.Message):
    __slots__ = ("identifiers",)
    class IdentifiersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    IDENTIFIERS_FIELD_NUMBER: _ClassVar[int]
    identifiers: _containers.ScalarMap[str, str]
    def __init__(self, identifiers: _Optional[_Mapping[str, str]] = ...) -> None: ...

class BeginTableRequest(_message.Message):
    __slots__ = ("topic_uuid", "identifier")
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    IDENTIFIER_FIELD_NUMBER: _ClassVar[int]
    topic_uuid: str
    identifier: str
    def __init__(self, topic_uuid: _Optional[str] = ..., identifier: _Optional[str] = ...) -> None: ...

class BeginTableResponse(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class GetTableSegmentsRequest(_message.Message):
    __slots__ = ("topic_uuid",)
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    topic_uuid: str
    def __init__(self, topic_uuid: _Optional[str] = ...) -> None: ...

class GetTableSegmentsResponse(_message.Message):
    __slots__ = ("segments",)
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    segments: _containers.RepeatedCompositeFieldContainer[TableSegment]
    def __init__(self, segments: _Optional[_Iterable[_Union[TableSegment, _Mapping]]] = ...) -> None: ...

class PlanTableCommitRequest(_message.Message):
    __slots__ = ("topic_uuid", "number", "add", "remove", "lease", "holder", "token")
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ADD_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    topic_uuid: str
    number: int
    add: _containers.RepeatedCompositeFieldContainer[TableSegment]
    remove: _containers.RepeatedScalarFieldContainer[str]
    lease: str
    holder: str
    token: int
    def __init__(self, topic_uuid: _Optional[str] = ..., number: _Optional[int] = ..., add: _Optional[_Iterable[_Union[TableSegment, _Mapping]]] = ..., remove: _Optional[_Iterable[str]] = ..., lease: _Optional[str] = ..., holder: _Optional[str] = ..., token: _Optional[int] = ...) -> None: ...

class PlanTableCommitResponse(_message.Message):
    __slots__ = ("planned",)
    PLANNED_FIELD_NUMBER: _ClassVar[int]
    planned: bool
    def __init__(self, planned: _Optional[bool] = ...) -> None: ...

class ConfirmTableCommitRequest(_message.Message):
    __slots__ = ("topic_uuid", "number")
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    topic_uuid: str
    number: int
    def __init__(self, topic_uuid: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class ConfirmTableCommitResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AdoptTableRequest(_message.Message):
    __slots__ = ("topic_uuid", "number", "segments", "lease", "holder", "token")
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    topic_uuid: str
    number: int
    segments: _containers.RepeatedCompositeFieldContainer[TableSegment]
    lease: str
    holder: str
    token: int
    def __init__(self, topic_uuid: _Optional[str] = ..., number: _Optional[int] = ..., segments: _Optional[_Iterable[_Union[TableSegment, _Mapping]]] = ..., lease: _Optional[str] = ..., holder: _Optional[str] = ..., token: _Optional[int] = ...) -> None: ...

class AdoptTableResponse(_message.Message):
    __slots__ = ("adopted",)
    ADOPTED_FIELD_NUMBER: _ClassVar[int]
    adopted: bool
    def __init__(self, adopted: _Optional[bool] = ...) -> None: ...

class ForgetTableRequest(_message.Message):
    __slots__ = ("topic_uuid",)
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    topic_uuid: str
    def __init__(self, topic_uuid: _Optional[str] = ...) -> None: ...

class ForgetTableResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
