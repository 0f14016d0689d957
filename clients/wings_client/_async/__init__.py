"""The async client: the engines of the sync client, awaited on an event loop.

pyarrow blocks, so blocking calls run on a bounded number of threads. Streams, consumers and gathers
have threads that read ahead; awaiting what those deliver takes no other thread.
"""

from wings_client._async._client import AsyncClient, connect_async
from wings_client._async._consumer import AsyncConsumer
from wings_client._async._producer import AsyncProducer
from wings_client._async._share_consumer import AsyncShareConsumer
from wings_client._async._stage import AsyncStage
from wings_client._async._streams import (
    AsyncChunks,
    AsyncFollow,
    AsyncManyFollow,
    AsyncScan,
    AsyncSnapshot,
    AsyncSql,
)
from wings_client._async._worker import AsyncWorker

__all__ = [
    "AsyncChunks",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncFollow",
    "AsyncManyFollow",
    "AsyncProducer",
    "AsyncScan",
    "AsyncShareConsumer",
    "AsyncSnapshot",
    "AsyncSql",
    "AsyncStage",
    "AsyncWorker",
    "connect_async",
]
