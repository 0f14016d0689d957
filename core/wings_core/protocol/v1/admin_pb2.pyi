from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Node(_message.Message):
    __slots__ = ("id", "address", "http", "since", "kafka")
    ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HTTP_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    KAFKA_FIELD_NUMBER: _ClassVar[int]
    id: str
    address: str
    http: str
    since: int
    kafka: str
    def __init__(self, id: _Optional[str] = ..., address: _Optional[str] = ..., http: _Optional[str] = ..., since: _Optional[int] = ..., kafka: _Optional[str] = ...) -> None: ...

class RenewNodeRequest(_message.Message):
    __slots__ = ("node", "seconds")
    NODE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    node: Node
    seconds: float
    def __init__(self, node: _Optional[_Union[Node, _Mapping]] = ..., seconds: _Optional[float] = ...) -> None: ...

class RenewNodeResponse(_message.Message):
    __slots__ = ("nodes", "refusal")
    NODES_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    refusal: str
    def __init__(self, nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., refusal: _Optional[str] = ...) -> None: ...

class DeleteNodeRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class DeleteNodeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListNodesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListNodesResponse(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    def __init__(self, nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ...) -> None: ...

class ListSilentNodesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSilentNodesResponse(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    def __init__(self, nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ...) -> None: ...

class GetStoreRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Store(_message.Message):
    __slots__ = ("id", "keeps_slices", "keeps_inline", "keeps_tables")
    ID_FIELD_NUMBER: _ClassVar[int]
    KEEPS_SLICES_FIELD_NUMBER: _ClassVar[int]
    KEEPS_INLINE_FIELD_NUMBER: _ClassVar[int]
    KEEPS_TABLES_FIELD_NUMBER: _ClassVar[int]
    id: str
    keeps_slices: bool
    keeps_inline: bool
    keeps_tables: bool
    def __init__(self, id: _Optional[str] = ..., keeps_slices: _Optional[bool] = ..., keeps_inline: _Optional[bool] = ..., keeps_tables: _Optional[bool] = ...) -> None: ...

class Tenant(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class Namespace(_message.Message):
    __slots__ = ("name", "created_at_us", "uuid")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_US_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    name: str
    created_at_us: int
    uuid: str
    def __init__(self, name: _Optional[str] = ..., created_at_us: _Optional[int] = ..., uuid: _Optional[str] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("name", "uuid", "schema", "partition_key", "config", "created_at_us", "earlier_schemas")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    PARTITION_KEY_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_US_FIELD_NUMBER: _ClassVar[int]
    EARLIER_SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    name: str
    uuid: str
    schema: bytes
    partition_key: str
    config: str
    created_at_us: int
    earlier_schemas: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, name: _Optional[str] = ..., uuid: _Optional[str] = ..., schema: _Optional[bytes] = ..., partition_key: _Optional[str] = ..., config: _Optional[str] = ..., created_at_us: _Optional[int] = ..., earlier_schemas: _Optional[_Iterable[bytes]] = ...) -> None: ...

class GetTenantRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class CreateNamespaceRequest(_message.Message):
    __slots__ = ("name", "uuid")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    name: str
    uuid: str
    def __init__(self, name: _Optional[str] = ..., uuid: _Optional[str] = ...) -> None: ...

class GetNamespaceRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteNamespaceRequest(_message.Message):
    __slots__ = ("name", "uuid")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    name: str
    uuid: str
    def __init__(self, name: _Optional[str] = ..., uuid: _Optional[str] = ...) -> None: ...

class ListNamespacesRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListNamespacesResponse(_message.Message):
    __slots__ = ("namespaces", "next_page_token")
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    namespaces: _containers.RepeatedCompositeFieldContainer[Namespace]
    next_page_token: str
    def __init__(self, namespaces: _Optional[_Iterable[_Union[Namespace, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class CreateTopicRequest(_message.Message):
    __slots__ = ("name", "schema", "partition_key", "config", "if_not_exists", "uuid")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    PARTITION_KEY_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    IF_NOT_EXISTS_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    name: str
    schema: bytes
    partition_key: str
    config: str
    if_not_exists: bool
    uuid: str
    def __init__(self, name: _Optional[str] = ..., schema: _Optional[bytes] = ..., partition_key: _Optional[str] = ..., config: _Optional[str] = ..., if_not_exists: _Optional[bool] = ..., uuid: _Optional[str] = ...) -> None: ...

class GetTopicRequest(_message.Message):
    __slots__ = ("name", "fresh")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    name: str
    fresh: bool
    def __init__(self, name: _Optional[str] = ..., fresh: _Optional[bool] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ("parent", "page_size", "page_token")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    parent: str
    page_size: int
    page_token: str
    def __init__(self, parent: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics", "next_page_token")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    next_page_token: str
    def __init__(self, topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class UpdateTopicRequest(_message.Message):
    __slots__ = ("name", "config", "uuid")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    name: str
    config: str
    uuid: str
    def __init__(self, name: _Optional[str] = ..., config: _Optional[str] = ..., uuid: _Optional[str] = ...) -> None: ...

class AlterSchemaRequest(_message.Message):
    __slots__ = ("name", "uuid", "change")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    uuid: str
    change: SchemaChange
    def __init__(self, name: _Optional[str] = ..., uuid: _Optional[str] = ..., change: _Optional[_Union[SchemaChange, _Mapping]] = ...) -> None: ...

class SchemaChange(_message.Message):
    __slots__ = ("add", "widen", "nullable")
    ADD_FIELD_NUMBER: _ClassVar[int]
    WIDEN_FIELD_NUMBER: _ClassVar[int]
    NULLABLE_FIELD_NUMBER: _ClassVar[int]
    add: bytes
    widen: bytes
    nullable: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, add: _Optional[bytes] = ..., widen: _Optional[bytes] = ..., nullable: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("name", "uuid")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    name: str
    uuid: str
    def __init__(self, name: _Optional[str] = ..., uuid: _Optional[str] = ...) -> None: ...
