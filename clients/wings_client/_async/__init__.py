"""The async face of the client: the same engines, waited for by an event loop.

pyarrow blocks, so blocking calls run on threads, a bounded number of them; what comes from threads
that read ahead anyway (streams, consumers, gathers) is waited for without one.
"""

from wings_client._async._client import AsyncClient, connect_async
from wings_client._async._consumer import AsyncConsumer
from wings_client._async._producer import AsyncProducer
from wings_client._async._share_consumer import AsyncShareConsumer
from wings_client._async._stage import AsyncStage
from wings_client._async._streams import AsyncChunks, AsyncFollow, AsyncScan

__all__ = [
    "AsyncChunks",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncFollow",
    "AsyncProducer",
    "AsyncScan",
    "AsyncShareConsumer",
    "AsyncStage",
    "connect_async",
]
