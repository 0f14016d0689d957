from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_OK: _ClassVar[Outcome]
    OUTCOME_NOK: _ClassVar[Outcome]
    OUTCOME_TOMB: _ClassVar[Outcome]
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_OK: Outcome
OUTCOME_NOK: Outcome
OUTCOME_TOMB: Outcome

class ShareKey(_message.Message):
    __slots__ = ("group_uuid", "topic_uuid", "partition")
    GROUP_UUID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    group_uuid: str
    topic_uuid: str
    partition: str
    def __init__(self, group_uuid: _Optional[str] = ..., topic_uuid: _Optional[str] = ..., partition: _Optional[str] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("coordinator", "number", "member_tag")
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MEMBER_TAG_FIELD_NUMBER: _ClassVar[int]
    coordinator: str
    number: int
    member_tag: str
    def __init__(self, coordinator: _Optional[str] = ..., number: _Optional[int] = ..., member_tag: _Optional[str] = ...) -> None: ...

class OffsetRange(_message.Message):
    __slots__ = ("first", "last")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class CountedRange(_message.Message):
    __slots__ = ("first", "last", "count")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    count: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class LeaseEntry(_message.Message):
    __slots__ = ("first", "last", "lease", "count")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    lease: Lease
    count: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ..., lease: _Optional[_Union[Lease, _Mapping]] = ..., count: _Optional[int] = ...) -> None: ...

class ReleaseEntry(_message.Message):
    __slots__ = ("first", "last", "lease", "count", "delay_ms")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    lease: Lease
    count: int
    delay_ms: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ..., lease: _Optional[_Union[Lease, _Mapping]] = ..., count: _Optional[int] = ..., delay_ms: _Optional[int] = ...) -> None: ...

class HoldRequest(_message.Message):
    __slots__ = ("key", "ranges", "lease", "ttl_ms", "in_flight_max", "member", "next_offset")
    KEY_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_MAX_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    key: ShareKey
    ranges: _containers.RepeatedCompositeFieldContainer[OffsetRange]
    lease: Lease
    ttl_ms: int
    in_flight_max: int
    member: str
    next_offset: int
    def __init__(self, key: _Optional[_Union[ShareKey, _Mapping]] = ..., ranges: _Optional[_Iterable[_Union[OffsetRange, _Mapping]]] = ..., lease: _Optional[_Union[Lease, _Mapping]] = ..., ttl_ms: _Optional[int] = ..., in_flight_max: _Optional[int] = ..., member: _Optional[str] = ..., next_offset: _Optional[int] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("key", "entries", "ttl_ms")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    key: ShareKey
    entries: _containers.RepeatedCompositeFieldContainer[LeaseEntry]
    ttl_ms: int
    def __init__(self, key: _Optional[_Union[ShareKey, _Mapping]] = ..., entries: _Optional[_Iterable[_Union[LeaseEntry, _Mapping]]] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("key", "entries")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    key: ShareKey
    entries: _containers.RepeatedCompositeFieldContainer[ReleaseEntry]
    def __init__(self, key: _Optional[_Union[ShareKey, _Mapping]] = ..., entries: _Optional[_Iterable[_Union[ReleaseEntry, _Mapping]]] = ...) -> None: ...

class TombstoneRequest(_message.Message):
    __slots__ = ("key", "entries", "repair")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    REPAIR_FIELD_NUMBER: _ClassVar[int]
    key: ShareKey
    entries: _containers.RepeatedCompositeFieldContainer[LeaseEntry]
    repair: _containers.RepeatedCompositeFieldContainer[OffsetRange]
    def __init__(self, key: _Optional[_Union[ShareKey, _Mapping]] = ..., entries: _Optional[_Iterable[_Union[LeaseEntry, _Mapping]]] = ..., repair: _Optional[_Iterable[_Union[OffsetRange, _Mapping]]] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("first", "last", "outcome", "count", "retry_ms")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    RETRY_MS_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    outcome: Outcome
    count: int
    retry_ms: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., count: _Optional[int] = ..., retry_ms: _Optional[int] = ...) -> None: ...

class HoldResponse(_message.Message):
    __slots__ = ("parts",)
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    def __init__(self, parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("group_uuid", "partitions", "with_holds")
    GROUP_UUID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    WITH_HOLDS_FIELD_NUMBER: _ClassVar[int]
    group_uuid: str
    partitions: _containers.RepeatedScalarFieldContainer[str]
    with_holds: bool
    def __init__(self, group_uuid: _Optional[str] = ..., partitions: _Optional[_Iterable[str]] = ..., with_holds: _Optional[bool] = ...) -> None: ...

class HeldRange(_message.Message):
    __slots__ = ("first", "last", "lease", "member", "count", "held_ms", "left_ms")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    HELD_MS_FIELD_NUMBER: _ClassVar[int]
    LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    lease: Lease
    member: str
    count: int
    held_ms: int
    left_ms: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ..., lease: _Optional[_Union[Lease, _Mapping]] = ..., member: _Optional[str] = ..., count: _Optional[int] = ..., held_ms: _Optional[int] = ..., left_ms: _Optional[int] = ...) -> None: ...

class DelayedRange(_message.Message):
    __slots__ = ("first", "last", "left_ms")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    left_ms: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ..., left_ms: _Optional[int] = ...) -> None: ...

class ReplicaState(_message.Message):
    __slots__ = ("partition", "start_offset", "finished", "counts", "in_flight", "holds", "delays")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    DELAYS_FIELD_NUMBER: _ClassVar[int]
    partition: str
    start_offset: int
    finished: _containers.RepeatedCompositeFieldContainer[OffsetRange]
    counts: _containers.RepeatedCompositeFieldContainer[CountedRange]
    in_flight: int
    holds: _containers.RepeatedCompositeFieldContainer[HeldRange]
    delays: _containers.RepeatedCompositeFieldContainer[DelayedRange]
    def __init__(self, partition: _Optional[str] = ..., start_offset: _Optional[int] = ..., finished: _Optional[_Iterable[_Union[OffsetRange, _Mapping]]] = ..., counts: _Optional[_Iterable[_Union[CountedRange, _Mapping]]] = ..., in_flight: _Optional[int] = ..., holds: _Optional[_Iterable[_Union[HeldRange, _Mapping]]] = ..., delays: _Optional[_Iterable[_Union[DelayedRange, _Mapping]]] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("states",)
    STATES_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedCompositeFieldContainer[ReplicaState]
    def __init__(self, states: _Optional[_Iterable[_Union[ReplicaState, _Mapping]]] = ...) -> None: ...

class ForgetRequest(_message.Message):
    __slots__ = ("group_uuid",)
    GROUP_UUID_FIELD_NUMBER: _ClassVar[int]
    group_uuid: str
    def __init__(self, group_uuid: _Optional[str] = ...) -> None: ...

class ForgetResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ManyRequest(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[OneRequest]
    def __init__(self, requests: _Optional[_Iterable[_Union[OneRequest, _Mapping]]] = ...) -> None: ...

class OneRequest(_message.Message):
    __slots__ = ("hold", "renew", "release", "tombstone", "read")
    HOLD_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    hold: HoldRequest
    renew: RenewRequest
    release: ReleaseRequest
    tombstone: TombstoneRequest
    read: ReadRequest
    def __init__(self, hold: _Optional[_Union[HoldRequest, _Mapping]] = ..., renew: _Optional[_Union[RenewRequest, _Mapping]] = ..., release: _Optional[_Union[ReleaseRequest, _Mapping]] = ..., tombstone: _Optional[_Union[TombstoneRequest, _Mapping]] = ..., read: _Optional[_Union[ReadRequest, _Mapping]] = ...) -> None: ...

class ManyResponse(_message.Message):
    __slots__ = ("responses",)
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    responses: _containers.RepeatedCompositeFieldContainer[OneResponse]
    def __init__(self, responses: _Optional[_Iterable[_Union[OneResponse, _Mapping]]] = ...) -> None: ...

class OneResponse(_message.Message):
    __slots__ = ("hold", "read", "error")
    HOLD_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    hold: HoldResponse
    read: ReadResponse
    error: str
    def __init__(self, hold: _Optional[_Union[HoldResponse, _Mapping]] = ..., read: _Optional[_Union[ReadResponse, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...
