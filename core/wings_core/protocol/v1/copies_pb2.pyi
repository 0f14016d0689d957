from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class BeginCopyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BeginCopyResponse(_message.Message):
    __slots__ = ("copy_id",)
    COPY_ID_FIELD_NUMBER: _ClassVar[int]
    copy_id: str
    def __init__(self, copy_id: _Optional[str] = ...) -> None: ...

class ReadCopyRequest(_message.Message):
    __slots__ = ("copy_id", "start")
    COPY_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    copy_id: str
    start: int
    def __init__(self, copy_id: _Optional[str] = ..., start: _Optional[int] = ...) -> None: ...

class ReadCopyResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class EndCopyRequest(_message.Message):
    __slots__ = ("copy_id",)
    COPY_ID_FIELD_NUMBER: _ClassVar[int]
    copy_id: str
    def __init__(self, copy_id: _Optional[str] = ...) -> None: ...

class EndCopyResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
