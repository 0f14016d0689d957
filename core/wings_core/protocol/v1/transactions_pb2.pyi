from wings_core.protocol.v1 import offset_registry_pb2 as _offset_registry_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ProducerEpoch(_message.Message):
    __slots__ = ("producer_id", "epoch")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    epoch: int
    def __init__(self, producer_id: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class JoinTransactionsRequest(_message.Message):
    __slots__ = ("name", "timeout_ms", "held")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    name: str
    timeout_ms: int
    held: ProducerEpoch
    def __init__(self, name: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., held: _Optional[_Union[ProducerEpoch, _Mapping]] = ...) -> None: ...

class AddTransactionPartitionsRequest(_message.Message):
    __slots__ = ("name", "producer", "partitions")
    class Entry(_message.Message):
        __slots__ = ("topic", "topic_uuid", "partition")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        topic: str
        topic_uuid: str
        partition: str
        def __init__(self, topic: _Optional[str] = ..., topic_uuid: _Optional[str] = ..., partition: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    producer: ProducerEpoch
    partitions: _containers.RepeatedCompositeFieldContainer[AddTransactionPartitionsRequest.Entry]
    def __init__(self, name: _Optional[str] = ..., producer: _Optional[_Union[ProducerEpoch, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[AddTransactionPartitionsRequest.Entry, _Mapping]]] = ...) -> None: ...

class AddTransactionPartitionsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AddTransactionOffsetsRequest(_message.Message):
    __slots__ = ("name", "producer", "offsets")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    name: str
    producer: ProducerEpoch
    offsets: _offset_registry_pb2.CommitOffsetsRequest
    def __init__(self, name: _Optional[str] = ..., producer: _Optional[_Union[ProducerEpoch, _Mapping]] = ..., offsets: _Optional[_Union[_offset_registry_pb2.CommitOffsetsRequest, _Mapping]] = ...) -> None: ...

class AddTransactionOffsetsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EndTransactionRequest(_message.Message):
    __slots__ = ("name", "producer", "commit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    producer: ProducerEpoch
    commit: bool
    def __init__(self, name: _Optional[str] = ..., producer: _Optional[_Union[ProducerEpoch, _Mapping]] = ..., commit: _Optional[bool] = ...) -> None: ...

class ExpireTransactionsRequest(_message.Message):
    __slots__ = ("transactions_max",)
    TRANSACTIONS_MAX_FIELD_NUMBER: _ClassVar[int]
    transactions_max: int
    def __init__(self, transactions_max: _Optional[int] = ...) -> None: ...

class ExpireTransactionsResponse(_message.Message):
    __slots__ = ("transactions",)
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    transactions: int
    def __init__(self, transactions: _Optional[int] = ...) -> None: ...

class GetTransactionRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetTransactionResponse(_message.Message):
    __slots__ = ("transaction",)
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    transaction: Transaction
    def __init__(self, transaction: _Optional[_Union[Transaction, _Mapping]] = ...) -> None: ...

class Transaction(_message.Message):
    __slots__ = ("name", "producer_id", "epoch", "state", "timeout_ms", "deadline_us")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_US_FIELD_NUMBER: _ClassVar[int]
    name: str
    producer_id: int
    epoch: int
    state: str
    timeout_ms: int
    deadline_us: int
    def __init__(self, name: _Optional[str] = ..., producer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., state: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., deadline_us: _Optional[int] = ...) -> None: ...

class ListPendingOffsetsRequest(_message.Message):
    __slots__ = ("consumer",)
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    consumer: str
    def __init__(self, consumer: _Optional[str] = ...) -> None: ...

class ListPendingOffsetsResponse(_message.Message):
    __slots__ = ("offsets",)
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedCompositeFieldContainer[_offset_registry_pb2.ConsumerOffset]
    def __init__(self, offsets: _Optional[_Iterable[_Union[_offset_registry_pb2.ConsumerOffset, _Mapping]]] = ...) -> None: ...
