from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Group(_message.Message):
    __slots__ = ("name", "uuid", "config")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    name: str
    uuid: str
    config: str
    def __init__(self, name: _Optional[str] = ..., uuid: _Optional[str] = ..., config: _Optional[str] = ...) -> None: ...

class CreateGroupRequest(_message.Message):
    __slots__ = ("topic", "topic_uuid", "group", "if_not_exists")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    IF_NOT_EXISTS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_uuid: str
    group: Group
    if_not_exists: bool
    def __init__(self, topic: _Optional[str] = ..., topic_uuid: _Optional[str] = ..., group: _Optional[_Union[Group, _Mapping]] = ..., if_not_exists: _Optional[bool] = ...) -> None: ...

class GetGroupRequest(_message.Message):
    __slots__ = ("topic", "topic_uuid", "name")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_uuid: str
    name: str
    def __init__(self, topic: _Optional[str] = ..., topic_uuid: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ("topic", "topic_uuid", "page_size", "page_token")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_uuid: str
    page_size: int
    page_token: str
    def __init__(self, topic: _Optional[str] = ..., topic_uuid: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups", "next_page_token")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    next_page_token: str
    def __init__(self, groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class UpdateGroupRequest(_message.Message):
    __slots__ = ("topic", "topic_uuid", "name", "config")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_uuid: str
    name: str
    config: str
    def __init__(self, topic: _Optional[str] = ..., topic_uuid: _Optional[str] = ..., name: _Optional[str] = ..., config: _Optional[str] = ...) -> None: ...

class RestartGroupRequest(_message.Message):
    __slots__ = ("topic", "topic_uuid", "name", "uuid", "new_uuid")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    NEW_UUID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_uuid: str
    name: str
    uuid: str
    new_uuid: str
    def __init__(self, topic: _Optional[str] = ..., topic_uuid: _Optional[str] = ..., name: _Optional[str] = ..., uuid: _Optional[str] = ..., new_uuid: _Optional[str] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("topic", "topic_uuid", "name", "uuid")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_uuid: str
    name: str
    uuid: str
    def __init__(self, topic: _Optional[str] = ..., topic_uuid: _Optional[str] = ..., name: _Optional[str] = ..., uuid: _Optional[str] = ...) -> None: ...
