"""Streams as async iterators: threads read a bounded number of items ahead."""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Generic, Self, TypeVar, cast

from wings_client._async._pool import Wakeup, WorkerPool
from wings_client._chunks import Chunks, chunk_of
from wings_client._model import Chunk, RangesBatch
from wings_client._results import CLOSED, ReadResult, StreamResult
from wings_client._scan import Following
from wings_client._threads import Handover, ReadAhead
from wings_client._transport import Transport
from wings_client.arrow import RecordBatch, Table
from wings_core.contracts.chunks import reached
from wings_core.contracts.tickets import ScanTicket
from wings_core.errors import InvalidArgument
from wings_core.partitions import JsonScalar

T = TypeVar("T")

ITEMS_WAITING_MAX = 2
"""Items of one stream that were read and not yet delivered."""


class Taker(Generic[T]):
    """Awaits the items of a hand-over on an event loop; for one task at a time."""

    def __init__(self, handover: Handover[T]) -> None:
        self._handover = handover
        self._wakeup = Wakeup()
        handover.listen(self._wakeup.notify)

    async def take(self, timeout: float | None = None) -> T | None:
        """Return the next item; None at the end, or after `timeout` seconds."""
        left = timeout
        while True:
            self._wakeup.clear()
            ended = self._handover.ended  # Read first: an item found after the end is the last.
            item = self._handover.take(0.0)
            if item is not None or ended or (left is not None and left <= 0):
                return item
            took = await self._wakeup.wait(left)
            if left is not None:
                left -= took


class AsyncStream(AsyncIterator[T]):
    """Items of a stream, as they come. One task iterates.

    The stream on the server ends with `close`, with the `async with` block, when the task that
    waits for an item is cancelled, and when the iterator is garbage-collected.
    """

    def __init__(self, pool: WorkerPool, name: str) -> None:
        self._pool = pool
        self._name = name
        self._taker: Taker[Any] | None = None
        self._cancel: Callable[[], object] | None = None
        self._closed = False

    @abstractmethod
    async def _open(self) -> ReadAhead[Any] | None:
        """Return the reader, its workers acquired; None where there is nothing to read."""

    def _readers(self) -> int:
        """Return how many threads read."""
        return 1

    async def __anext__(self) -> T:
        """Return the next item; waits until there is one.

        Raises:
            StopAsyncIteration: The stream has ended or was closed.
            WingsError: The server's refusal; `Unavailable` where it could not be reached again.
        """
        try:
            item = await self._next()
        except asyncio.CancelledError:
            self._end()
            raise
        if item is None:
            raise StopAsyncIteration
        return self._item(item)

    def _item(self, taken: Any) -> T:
        """Return what was read in the form that the stream yields."""
        return taken

    async def close(self) -> None:
        """End the stream; a task that waits for an item gets `StopAsyncIteration`."""
        self._end()

    async def __aenter__(self) -> Self:
        """Return the stream itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the stream."""
        self._end()

    async def _next(self) -> Any:
        self._pool.check_process()
        if self._closed:
            return None
        if self._taker is None:
            readers = await self._open()
            if readers is None:
                return None
            # The threads hold the readers and never this object, so its finalizer can end them.
            self._cancel = self._pool.finalize(self, readers.cancel)
            self._taker = Taker(readers.handover)
            for index in range(self._readers()):
                self._pool.start(readers.read, f"{self._name}-{index}")
            if self._closed:  # While this waited for a worker.
                self._end()
        return await self._taker.take()

    def _end(self) -> None:
        self._closed = True
        if self._cancel is not None:
            self._cancel()


class _AsyncResult(AsyncStream[T]):
    """The async face of a result whose rows come as they are asked for; see `StreamResult`."""

    def __init__(self, pool: WorkerPool, name: str, result: StreamResult) -> None:
        super().__init__(pool, name)
        self._result = result
        self._kept: Table | None = None

    async def to_arrow(self) -> Table:
        """Return the rows that were not iterated over as one table, which is kept.

        Raises:
            InvalidArgument: It is a follow without a timeout, or was closed before its end.
            WingsError: As iterating does.
        """
        if self._kept is None:
            self._result.check_bounded()
            batches: list[Any] = [getattr(item, "batch", item) async for item in self]
            if self._closed:
                raise InvalidArgument(CLOSED)
            self._kept = await self._pool.run(partial(self._result.keep, batches))
        return self._kept

    async def to_pandas(self) -> Any:
        """Return these rows as a data frame of pandas.

        Raises:
            ImportError: pandas is not installed.
        """
        await self.to_arrow()
        return await self._pool.run(self._result.to_pandas)

    async def to_polars(self) -> Any:
        """Return these rows as a data frame of Polars.

        Raises:
            ImportError: Polars is not installed.
        """
        await self.to_arrow()
        return await self._pool.run(self._result.to_polars)

    async def to_duckdb(self, connection: Any = None) -> Any:
        """Return these rows as a relation of DuckDB; see `Result.to_duckdb`."""
        await self.to_arrow()
        return self._result.to_duckdb(connection)


class _AsyncFollowing(_AsyncResult[T]):
    """A follow, whose batches are read ahead; yields them in the form of its kind."""

    def __init__(self, pool: WorkerPool, follow: Following[T]) -> None:
        super().__init__(pool, "wings-follow", follow)
        self._follow = follow
        self._reached = dict(follow.chunks.next_offsets)

    def _item(self, taken: RangesBatch) -> T:
        self._reached.update(reached(taken.ranges))
        return self._follow.item(taken)

    async def _open(self) -> ReadAhead[RangesBatch]:
        await self._pool.acquire()
        return ReadAhead([self._follow.chunks], self._follow.close, ITEMS_WAITING_MAX)


class AsyncFollow(_AsyncFollowing[Chunk]):
    """An endless read, or one up to a deadline; made by `AsyncClient.follow`.

    Iterating yields `(batch, start_offset, end_offset)` and waits while there is nothing new. A
    lost connection is opened again at the next offset, so every row comes once, in order. See
    `AsyncStream` for how it ends.
    """

    @property
    def next_offset(self) -> int:
        """The offset at which the follow continues: one past the last row delivered."""
        (offset,) = self._reached.values()
        return offset


class AsyncManyFollow(_AsyncFollowing[RangesBatch]):
    """A follow of many partitions; made by `AsyncClient.follow`.

    Iterating yields `(batch, ranges)` and waits while there is nothing new. A lost connection is
    opened again where the follow stopped, so every row comes once, in order within its partition.
    See `AsyncStream` for how it ends.
    """

    @property
    def next_offsets(self) -> dict[JsonScalar, int]:
        """The offsets at which the follow continues, by partition value."""
        return dict(self._reached)


class AsyncChunks(AsyncStream[Chunk]):
    """The chunks of one range; made by `AsyncClient.read_ticket`.

    Iterating yields `(batch, start_offset, end_offset)`, in order of offset; a lost connection is
    resumed. See `AsyncStream` for how it ends.
    """

    def __init__(self, pool: WorkerPool, transport: Transport, ticket: ScanTicket) -> None:
        super().__init__(pool, "wings-range")
        self._transport = transport
        self._ticket = ticket

    async def _open(self) -> ReadAhead[Chunk]:
        await self._pool.acquire()
        chunks = Chunks(self._transport, self._ticket)
        return ReadAhead([map(chunk_of, chunks)], chunks.cancel, ITEMS_WAITING_MAX)


class AsyncReadResult(_AsyncResult[RecordBatch]):
    """Rows of a scan, a statement or a snapshot, as batches; see `ReadResult`.

    Up to two batches a stream are read ahead. See `AsyncStream` for how it ends.

    Attributes:
        schema: The schema of the batches.
    """

    def __init__(self, pool: WorkerPool, result: ReadResult) -> None:
        self._read = result.read
        super().__init__(pool, f"wings-{self._read.kind}", result)
        self.schema = self._read.schema
        self._streams = self._read.streams

    async def read_all(self) -> Table:
        """Return `to_arrow()`."""
        return await self.to_arrow()

    def __len__(self) -> int:
        """Return how many rows there are; see `ReadResult`."""
        return len(cast("ReadResult", self._result))

    def __bool__(self) -> bool:
        """Return True, also without rows."""
        return True

    def __repr__(self) -> str:
        """Return what there is of it, without the rows."""
        return f"Async{self._result!r}"

    def _repr_html_(self) -> str:
        """Return the columns, and the first rows once they are kept, for a notebook."""
        return self._result.html()

    def _readers(self) -> int:
        return self._streams

    async def _open(self) -> ReadAhead[RecordBatch] | None:
        if not self._streams:
            return None
        await self._pool.acquire()
        self._streams = 1 + await self._pool.acquire_more(self._streams - 1)
        waiting_max = ITEMS_WAITING_MAX * self._streams
        return ReadAhead(self._read.sources(), self._read.cancel, waiting_max, self._streams)

    def _end(self) -> None:
        super()._end()
        self._read.cancel()  # A statement runs from the call on.


AsyncScan = AsyncSnapshot = AsyncReadResult
"""Names from when a scan and a snapshot had results of their own."""
