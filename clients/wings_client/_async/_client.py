"""The async client: every call of `Client`, awaited; of calls that open something, also entered.

asyncpg's cursors, aiohttp's requests and httpx's streams each support one of these ways; an
`Opening` supports all three.
"""

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Generator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, cast, overload

from wings_client._access import Access, Pem
from wings_client._admin import TopicRef
from wings_client._arguments import OffsetValue, checked, checked_with, instance_of
from wings_client._async._consumers import AsyncConsumer, AsyncShareConsumer, AsyncWorker
from wings_client._async._pool import WorkerPool
from wings_client._async._streams import AsyncChunks, AsyncFollow, AsyncManyFollow, AsyncReadResult
from wings_client._async._writers import AsyncProducer, AsyncStage, AsyncTransactions
from wings_client._chunks import OnDataLoss
from wings_client._client import Client
from wings_client._model import PartitionValue
from wings_client._read_options import OffsetsValue, PartitionsValue, ReadKeywords
from wings_client._results import ReadResult
from wings_client._retry import Retry
from wings_client._scan import Follow, ManyFollow
from wings_client._transport import TIMEOUT_SECONDS, AsyncClosing, Transport
from wings_core.contracts.tickets import ScanTicket

P = ParamSpec("P")

R = TypeVar("R")

M = TypeVar("M")

READS_MAX = 64
"""Fetches, follows and scans that run at once, each with a thread, by default."""

CALLS_MAX = 32
"""Other calls that run at once, each with a thread. Their pool is apart from that of reads, so they
never queue behind reads that wait for messages."""

T = TypeVar("T")

M_co = TypeVar("M_co", covariant=True)


@checked_with(retry=instance_of("a Retry", Retry))
def connect_async(
    endpoint: str | Sequence[str],
    *,
    timeout: float = TIMEOUT_SECONDS,
    retry: Retry | None = None,
    reads_max: int = READS_MAX,
    token: str | None = None,
    tls_ca: Pem | None = None,
    tls_cert: Pem | None = None,
    tls_key: Pem | None = None,
    discover: bool = True,
) -> "AsyncClient":
    """Return an async client of a Wings server; the connection is made by the first call.

    Args:
        endpoint: Address like `grpc://host:7777`, or several nodes of a cluster; see `connect`.
        timeout: Seconds that a call may take, its retries included (a long poll may wait beside
            it), that a stream may stand still, and that a call waits for a worker.
        retry: Rules of what is tried again, and how long.
        reads_max: How many fetches, follows and scans run at once, each with a thread; further
            ones wait, and fail with `ResourceExhausted` where none ends in time.
        token: Token as for `connect`, and so are the files of TLS.
        tls_ca: The authorities that servers are checked against.
        tls_cert: This client's certificate.
        tls_key: Its private key.
        discover: Discovery, as for `connect`.

    Raises:
        InvalidArgument: The timeout is not positive, or `reads_max` less than 1; there is no
            address, or an empty one; a file cannot be read, or a certificate is without its key.
    """
    access = Access.of(token, tls_ca, tls_cert, tls_key)
    return AsyncClient(
        Transport(endpoint, timeout, retry or Retry(), access, discover=discover), reads_max
    )


def _awaited(
    method: Callable[Concatenate[Client, P], R], *, reads: bool = False
) -> Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, R]]:
    """Return the async form of a call of `Client`.

    Args:
        method: The call.
        reads: Whether the call may wait for messages.
    """
    return _made(method, lambda _, found: found, reads=reads)


def _made(
    method: Callable[Concatenate[Client, P], R],
    make: Callable[["AsyncClient", R], M],
    *,
    reads: bool = False,
) -> Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, M]]:
    """Return the async form of a call of `Client`, which returns `make` of its result."""

    @wraps(method)
    async def call(client: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> M:
        found = await client.run(partial(method, client.sync, *args, **kwargs), reads=reads)
        return make(client, found)

    return call


class Opening(Coroutine[Any, Any, M_co]):
    """The coroutine of a call that opens something.

        follow = await client.follow("readings")
        async with client.follow("readings") as follow: ...
        async for batch, start_offset, end_offset in client.follow("readings"): ...

    It is used once, in one of these ways. The last two close what they opened; a loop that is left
    early closes it as soon as the event loop runs again.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, M_co]) -> None:
        self._coroutine = coroutine
        self._opened: M_co | None = None

    def __await__(self) -> Generator[Any, Any, M_co]:
        """Open it, and return it."""
        return self._coroutine.__await__()

    async def __aenter__(self) -> M_co:
        """Open it, and return it."""
        self._opened = await self._coroutine
        return await _context(self._opened).__aenter__()

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Close it."""
        return await _context(self._opened).__aexit__(error_type, error, traceback)

    async def __aiter__(self: "Opening[AsyncIterable[T]]") -> AsyncGenerator[T]:
        """Open it, and yield its items; closes it at the end."""
        async with self as opened:
            async for item in opened:
                yield item

    def send(self, value: Any) -> Any:
        """Go on, as any coroutine."""
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error where it waits, as any coroutine."""
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """Close it unstarted or where it waits, as any coroutine."""
        self._coroutine.close()


def opening(call: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Opening[T]]:
    """Decorate a coroutine function so that it returns an `Opening`."""

    @wraps(call)
    def opened(*args: P.args, **kwargs: P.kwargs) -> Opening[T]:
        return Opening(call(*args, **kwargs))

    return opened


class AsyncClient(AsyncClosing):
    """A client of one server, made by `connect_async`; belongs to one event loop.

    Each call takes what its namesake of `Client` takes, and raises the same errors; no call blocks
    the event loop. Calls that open something can be awaited, entered or iterated at once:

        async with wings_client.connect_async("grpc://127.0.0.1:7777") as client:
            await client.push("readings", [{"sensor": "roof", "celsius": 21.5}])
            async with client.follow("readings") as follow:
                async for batch, start_offset, end_offset in follow:
                    ...

    A task that is cancelled in a read ends it on the server. One that is cancelled in a write sends
    nothing more, but what was sent may have been committed.

    Data that is pushed is read and cast on a thread; a reader or an iterable is iterated there.

    Attributes:
        sync: The underlying `Client`; its calls block.
    """

    def __init__(self, transport: Transport, reads_max: int = READS_MAX) -> None:
        self.sync = Client(transport)
        self._transport = transport
        self._reads = WorkerPool(transport, reads_max, "reads")
        self._calls = WorkerPool(transport, CALLS_MAX, "calls")
        self._closing = WorkerPool(transport, 1, "closes")

    @property
    def endpoint(self) -> str:
        """The address of the server; of several nodes, the one in use now."""
        return self._transport.endpoint

    async def run(self, call: Callable[[], R], *, reads: bool = False) -> R:
        """Make a blocking call on the next free worker thread, and return its result.

        Args:
            call: Makes calls of `sync`; ended where the task is cancelled.
            reads: Whether the call may wait for messages; such calls have a pool of their own.

        Raises:
            ResourceExhausted: No worker was free for as long as a call may take.
            RuntimeError: The call raised `StopIteration`.
        """
        return await (self._reads if reads else self._calls).run(call)

    async def close(self) -> None:
        """Close all that this client opened: producers flush, consumers commit, reads end.

        Raises:
            WingsError: A producer's remaining batches were refused or could not be sent.
        """
        await self._closing.run(self.sync.close)

    # Topics, namespaces and offsets.

    create_topic = _awaited(Client.create_topic)
    topic = _awaited(Client.topic)
    topics = _awaited(Client.topics)
    alter_topic = _awaited(Client.alter_topic)
    alter_schema = _awaited(Client.alter_schema)
    delete_topic = _awaited(Client.delete_topic)
    create_namespace = _awaited(Client.create_namespace)
    namespaces = _awaited(Client.namespaces)
    delete_namespace = _awaited(Client.delete_namespace)
    partitions = _awaited(Client.partitions)
    offset_for_timestamp = _awaited(Client.offset_for_timestamp)
    commit_offsets = _awaited(Client.commit_offsets)
    committed_offsets = _awaited(Client.committed_offsets)
    delete_offsets = _awaited(Client.delete_offsets)
    resolve_offset = _awaited(Client.resolve_offset)
    resolve_offsets = _awaited(Client.resolve_offsets)

    # Share groups.

    create_share_group = _awaited(Client.create_share_group)
    alter_share_group = _awaited(Client.alter_share_group)
    seek_share_group = _awaited(Client.seek_share_group)
    purge_share_group = _awaited(Client.purge_share_group)
    share_group = _awaited(Client.share_group)
    share_members = _awaited(Client.share_members)
    share_groups = _awaited(Client.share_groups)
    dead_letters = opening(_made(Client.dead_letters, lambda client, found: client._rows_of(found)))
    delete_share_group = _awaited(Client.delete_share_group)
    acquire_messages = _awaited(Client.acquire_messages, reads=True)
    acknowledge_messages = _awaited(Client.acknowledge_messages)
    redrive = _awaited(Client.redrive)

    # Writing.

    push = _awaited(Client.push)
    producer = opening(
        _made(Client.producer, lambda client, producer: AsyncProducer(client._calls, producer))
    )

    stage = opening(_made(Client.stage, lambda client, stage: AsyncStage(client._calls, stage)))
    publish = _awaited(Client.publish)
    consumers = _awaited(Client.consumers)
    consumer_lag = _awaited(Client.consumer_lag)
    consumer_groups = _awaited(Client.consumer_groups)
    consumer_group = _awaited(Client.consumer_group)
    reset_consumer_group = _awaited(Client.reset_consumer_group)
    transactions = _made(
        Client.transactions,
        lambda client, transactions: AsyncTransactions(client._calls, transactions),
    )
    abort = _awaited(Client.abort)

    # Shards.

    open_shards = _awaited(Client.open_shards)
    acquire_shards = _awaited(Client.acquire_shards)
    reset_shards = _awaited(Client.reset_shards)
    get_shards = _awaited(Client.get_shards)
    list_shards = _awaited(Client.list_shards)
    count_shards = _awaited(Client.count_shards)
    prune_shards = _awaited(Client.prune_shards)

    # Reading.

    fetch = _awaited(Client.fetch, reads=True)

    def _rows_of(self, result: ReadResult) -> AsyncReadResult:
        return AsyncReadResult(self._reads, result)

    scan = opening(_made(Client.scan, _rows_of))
    read = opening(_made(Client.read, _rows_of))
    dataset = _awaited(Client.dataset)
    lazy = _awaited(Client.lazy)
    sql = opening(_made(Client.sql, _rows_of))
    snapshot = opening(_made(Client.snapshot, _rows_of))
    table = _awaited(Client.table)
    scan_tickets = _awaited(Client.scan_tickets)
    locations = _awaited(Client.locations)

    @opening
    @checked
    async def read_ticket(self, ticket: ScanTicket) -> AsyncChunks:
        """Read one range, chunk by chunk, in order of offset; see `Client.read_ticket`."""
        return AsyncChunks(self._reads, self._transport, ticket)

    @overload
    def follow(
        self,
        topic: TopicRef,
        partition: PartitionValue = None,
        *,
        offset: OffsetValue = "earliest",
        timeout: float | None = None,
        on_data_loss: OnDataLoss = "error",
        **options: Unpack[ReadKeywords],
    ) -> Opening[AsyncFollow]: ...

    @overload
    def follow(
        self,
        topic: TopicRef,
        *,
        offset: OffsetsValue = "earliest",
        timeout: float | None = None,
        partitions: PartitionsValue,
        on_data_loss: OnDataLoss = "error",
        **options: Unpack[ReadKeywords],
    ) -> Opening[AsyncManyFollow]: ...

    @wraps(Client.follow)
    def follow(self, topic: TopicRef, *args: Any, **keys: Any) -> Opening[Any]:
        return Opening(self._follow(partial(self.sync.follow, topic, *args, **keys)))

    async def _follow(
        self, call: Callable[[], Follow | ManyFollow]
    ) -> AsyncFollow | AsyncManyFollow:
        follow = await self._calls.run(call)
        if isinstance(follow, Follow):
            return AsyncFollow(self._reads, follow)
        return AsyncManyFollow(self._reads, follow)

    consumer = opening(
        _made(Client.consumer, lambda client, consumer: AsyncConsumer(client._calls, consumer))
    )
    share_consumer = opening(
        _made(
            Client.share_consumer,
            lambda client, consumer: AsyncShareConsumer(client._reads, client._calls, consumer),
        )
    )
    worker = opening(_made(Client.worker, lambda _, worker: AsyncWorker(worker)))
    gather = opening(_awaited(Client.gather))


def _context(opened: object) -> AbstractAsyncContextManager[Any]:
    return cast("AbstractAsyncContextManager[Any]", opened)
