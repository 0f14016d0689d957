"""The Python client of Wings, a durable message log of Arrow batches.

    import wings_client

    with wings_client.connect("grpc://127.0.0.1:7777") as client:
        client.create_topic("readings", {"sensor": "string", "celsius": "double"})
        client.push("readings", [{"sensor": "roof", "celsius": 21.5}])
        print(client.fetch("readings", offset=0).table)

A `Client` is safe from many threads; `connect_async` returns one for an event loop. A server speaks
plain Arrow Flight, so `pyarrow.flight` alone can do everything that this client does.
"""

from wings_client._async import (
    AsyncChunks,
    AsyncClient,
    AsyncConsumer,
    AsyncFollow,
    AsyncProducer,
    AsyncScan,
    AsyncShareConsumer,
    AsyncStage,
    connect_async,
)
from wings_client._client import Client, connect
from wings_client._consumer import Consumer
from wings_client._errors import Connection
from wings_client._follow import Follow
from wings_client._model import (
    Aborted,
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
    Staged,
    Topic,
)
from wings_client._producer import Producer
from wings_client._retry import Retry
from wings_client._share_consumer import ShareConsumer
from wings_client._share_model import Delivery, Redriven, ShareGroup, SharePartition
from wings_client._stage import Stage
from wings_core.contracts.chunks import EndReason
from wings_core.errors import WingsError, error_from_json
from wings_core.model import Shard, ShardCounts, ShardProgress, ShardsPruned, ShardState

__all__ = [
    "Aborted",
    "AsyncChunks",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncFollow",
    "AsyncProducer",
    "AsyncScan",
    "AsyncShareConsumer",
    "AsyncStage",
    "Chunk",
    "Client",
    "Committed",
    "CommittedRange",
    "Connection",
    "ConsumedBatch",
    "Consumer",
    "ConsumerOffset",
    "Delivery",
    "EndReason",
    "FetchResult",
    "Follow",
    "Namespace",
    "PartitionState",
    "Producer",
    "Published",
    "PublishedRange",
    "PushResult",
    "Redriven",
    "Retry",
    "Shard",
    "ShardCounts",
    "ShardProgress",
    "ShardState",
    "ShardsPruned",
    "ShareConsumer",
    "ShareGroup",
    "SharePartition",
    "Stage",
    "Staged",
    "Topic",
    "WingsError",
    "connect",
    "connect_async",
    "error_from_json",
]
