"""The Python client of Wings, a durable message log of Arrow batches.

    import wings_client

    with wings_client.connect("grpc://127.0.0.1:7777") as client:
        client.create_topic("readings", {"sensor": "string", "celsius": "double"})
        client.push("readings", [{"sensor": "roof", "celsius": 21.5}])
        print(client.fetch("readings", offset=0).table)

Errors are one tree under `WingsError`, whose classes are here too: `wings_client.TopicNotFound`.

    WingsError
    ├── InvalidArgument
    │   ├── InvalidName
    │   ├── InvalidTicket
    │   ├── InvalidSchema
    │   ├── SchemaMismatch
    │   ├── PartitionRequired
    │   ├── PartitionNotAllowed
    │   ├── PartitionTypeMismatch
    │   ├── InvalidFilter
    │   └── InvalidSql
    ├── NotFound
    │   ├── NamespaceNotFound
    │   ├── TopicNotFound
    │   ├── GroupNotFound
    │   ├── StageNotFound
    │   └── TokenNotFound
    ├── Conflict
    │   ├── AlreadyExists
    │   ├── NamespaceNotEmpty
    │   ├── OffsetMismatch
    │   ├── OutOfOrderSequence
    │   ├── PublishFenced
    │   ├── FencedMember
    │   └── InvalidRecordState
    ├── OffsetOutOfRange
    ├── BatchTooLarge
    ├── Unauthenticated
    ├── PermissionDenied
    ├── ResourceExhausted
    ├── Unavailable
    ├── StorageCorrupt
    └── Internal

A `Client` is safe from many threads; `connect_async` returns one for an event loop. A server speaks
plain Arrow Flight, so `pyarrow.flight` alone can do everything that this client does.

Importing this package imports none of its modules but the errors: each name is loaded when it is
first used, and nothing that it does not need (no asyncio for `connect`), but for a module of
Python's own where pandas is installed.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from wings_core.errors import (
    AlreadyExists,
    BatchTooLarge,
    Conflict,
    FencedMember,
    GroupNotFound,
    Internal,
    InvalidArgument,
    InvalidFilter,
    InvalidName,
    InvalidRecordState,
    InvalidSchema,
    InvalidSql,
    InvalidTicket,
    NamespaceNotEmpty,
    NamespaceNotFound,
    NotFound,
    OffsetMismatch,
    OffsetOutOfRange,
    OutOfOrderSequence,
    PartitionNotAllowed,
    PartitionRequired,
    PartitionTypeMismatch,
    PermissionDenied,
    PublishFenced,
    ResourceExhausted,
    SchemaMismatch,
    StageNotFound,
    StorageCorrupt,
    TokenNotFound,
    TopicNotFound,
    Unauthenticated,
    Unavailable,
    WingsError,
    error_from_json,
)

if find_spec("pandas") is not None:
    # Python refuses to load this module once the main thread has ended, and pandas needs it, which
    # pyarrow loads with the first rows that it converts.
    import concurrent.futures.thread as _loaded_early  # noqa: F401 # pyright: ignore[reportUnusedImport]

if TYPE_CHECKING:
    from wings_client import arrow as arrow
    from wings_client import files as files
    from wings_client import gather as gather
    from wings_client._async._client import AsyncClient, connect_async
    from wings_client._async._consumers import AsyncConsumer, AsyncShareConsumer, AsyncWorker
    from wings_client._async._streams import (
        AsyncChunks,
        AsyncFollow,
        AsyncManyFollow,
        AsyncReadResult,
        AsyncScan,
        AsyncSnapshot,
    )
    from wings_client._async._writers import (
        AsyncProducer,
        AsyncStage,
        AsyncTransaction,
        AsyncTransactionProducer,
        AsyncTransactions,
    )
    from wings_client._client import Client, connect
    from wings_client._consumer import Consumer
    from wings_client._consumer_groups import (
        AssignedSlots,
        ConsumerGroupMember,
        ConsumerGroupState,
        ConsumerGroupSummary,
        ConsumerPartition,
        ConsumerState,
        ConsumerTopic,
        GroupPartition,
    )
    from wings_client._errors import Connection
    from wings_client._model import (
        Aborted,
        Appended,
        Chunk,
        Committed,
        CommittedRange,
        ConsumedBatch,
        ConsumerOffset,
        FetchResult,
        Namespace,
        PartitionState,
        Published,
        PublishedRange,
        PushResult,
        RangesBatch,
        Staged,
        Topic,
        TopicBatch,
    )
    from wings_client._producer import Producer
    from wings_client._results import ReadResult, Result
    from wings_client._retry import Retry
    from wings_client._scan import Follow, ManyFollow
    from wings_client._share_consumer import ShareConsumer
    from wings_client._share_model import (
        Delivery,
        OldestMessage,
        Redriven,
        ShareGroup,
        ShareHold,
        ShareMember,
        ShareMembers,
        SharePartition,
    )
    from wings_client._stage import Stage
    from wings_client._transactions import Transaction, TransactionProducer, Transactions
    from wings_client._worker import Worker
    from wings_client._worker_model import Message, Reject, Release, WorkerStats
    from wings_core.contracts.chunks import EndReason, PartitionEnd, PartitionRange
    from wings_core.contracts.share import AcknowledgementEntry
    from wings_core.model import Shard, ShardCounts, ShardProgress, ShardsPruned, ShardState

__all__ = [
    "Aborted",
    "AcknowledgementEntry",
    "AlreadyExists",
    "Appended",
    "AssignedSlots",
    "AsyncChunks",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncFollow",
    "AsyncManyFollow",
    "AsyncProducer",
    "AsyncReadResult",
    "AsyncScan",
    "AsyncShareConsumer",
    "AsyncSnapshot",
    "AsyncStage",
    "AsyncTransaction",
    "AsyncTransactionProducer",
    "AsyncTransactions",
    "AsyncWorker",
    "BatchTooLarge",
    "Chunk",
    "Client",
    "Committed",
    "CommittedRange",
    "Conflict",
    "Connection",
    "ConsumedBatch",
    "Consumer",
    "ConsumerGroupMember",
    "ConsumerGroupState",
    "ConsumerGroupSummary",
    "ConsumerOffset",
    "ConsumerPartition",
    "ConsumerState",
    "ConsumerTopic",
    "Delivery",
    "EndReason",
    "FencedMember",
    "FetchResult",
    "Follow",
    "GroupNotFound",
    "GroupPartition",
    "Internal",
    "InvalidArgument",
    "InvalidFilter",
    "InvalidName",
    "InvalidRecordState",
    "InvalidSchema",
    "InvalidSql",
    "InvalidTicket",
    "ManyFollow",
    "Message",
    "Namespace",
    "NamespaceNotEmpty",
    "NamespaceNotFound",
    "NotFound",
    "OffsetMismatch",
    "OffsetOutOfRange",
    "OldestMessage",
    "OutOfOrderSequence",
    "PartitionEnd",
    "PartitionNotAllowed",
    "PartitionRange",
    "PartitionRequired",
    "PartitionState",
    "PartitionTypeMismatch",
    "PermissionDenied",
    "Producer",
    "PublishFenced",
    "Published",
    "PublishedRange",
    "PushResult",
    "RangesBatch",
    "ReadResult",
    "Redriven",
    "Reject",
    "Release",
    "ResourceExhausted",
    "Result",
    "Retry",
    "SchemaMismatch",
    "Shard",
    "ShardCounts",
    "ShardProgress",
    "ShardState",
    "ShardsPruned",
    "ShareConsumer",
    "ShareGroup",
    "ShareHold",
    "ShareMember",
    "ShareMembers",
    "SharePartition",
    "Stage",
    "StageNotFound",
    "Staged",
    "StorageCorrupt",
    "TokenNotFound",
    "Topic",
    "TopicBatch",
    "TopicNotFound",
    "Transaction",
    "TransactionProducer",
    "Transactions",
    "Unauthenticated",
    "Unavailable",
    "WingsError",
    "Worker",
    "WorkerStats",
    "connect",
    "connect_async",
    "error_from_json",
]

_MODULES = {
    "wings_client._async._client": ("AsyncClient", "connect_async"),
    "wings_client._async._consumers": ("AsyncConsumer", "AsyncShareConsumer", "AsyncWorker"),
    "wings_client._async._streams": (
        "AsyncChunks",
        "AsyncFollow",
        "AsyncManyFollow",
        "AsyncReadResult",
        "AsyncScan",
        "AsyncSnapshot",
    ),
    "wings_client._async._writers": (
        "AsyncProducer",
        "AsyncStage",
        "AsyncTransaction",
        "AsyncTransactionProducer",
        "AsyncTransactions",
    ),
    "wings_client._client": ("Client", "connect"),
    "wings_client._consumer": ("Consumer",),
    "wings_client._consumer_groups": (
        "AssignedSlots",
        "ConsumerGroupMember",
        "ConsumerGroupState",
        "ConsumerGroupSummary",
        "ConsumerPartition",
        "ConsumerState",
        "ConsumerTopic",
        "GroupPartition",
    ),
    "wings_client._errors": ("Connection",),
    "wings_client._scan": ("Follow", "ManyFollow"),
    "wings_client._model": (
        "Aborted",
        "Appended",
        "Chunk",
        "Committed",
        "CommittedRange",
        "ConsumedBatch",
        "ConsumerOffset",
        "FetchResult",
        "Namespace",
        "PartitionState",
        "Published",
        "PublishedRange",
        "PushResult",
        "RangesBatch",
        "Staged",
        "Topic",
        "TopicBatch",
    ),
    "wings_client._producer": ("Producer",),
    "wings_client._results": ("ReadResult", "Result"),
    "wings_client._retry": ("Retry",),
    "wings_client._share_consumer": ("ShareConsumer",),
    "wings_client._share_model": (
        "Delivery",
        "OldestMessage",
        "Redriven",
        "ShareGroup",
        "ShareHold",
        "ShareMember",
        "ShareMembers",
        "SharePartition",
    ),
    "wings_client._stage": ("Stage",),
    "wings_client._transactions": ("Transaction", "TransactionProducer", "Transactions"),
    "wings_client._worker": ("Worker",),
    "wings_client._worker_model": ("Message", "Reject", "Release", "WorkerStats"),
    "wings_core.contracts.chunks": ("EndReason", "PartitionEnd", "PartitionRange"),
    "wings_core.contracts.share": ("AcknowledgementEntry",),
    "wings_core.model": ("Shard", "ShardCounts", "ShardProgress", "ShardsPruned", "ShardState"),
}
"""The names that are loaded when first used, by their modules."""

_SUBMODULES = ("arrow", "files", "gather")

_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # A checker would take every name for one that is there.

    def __getattr__(name: str) -> object:
        """Load a name, once: it is an ordinary attribute from then on (PEP 562)."""
        if name in _SUBMODULES:
            return import_module(f"{__name__}.{name}")
        module = _MODULE_OF.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(module), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    """Return all names, loaded or not."""
    return sorted({*globals(), *__all__})
