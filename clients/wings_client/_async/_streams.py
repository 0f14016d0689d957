"""Streams as async iterators: threads read a bounded number of items ahead."""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, Self, TypeVar

from wings_client._async._pool import WorkerPool
from wings_client._chunks import Chunks, chunk_of
from wings_client._follow import Following
from wings_client._handover import Handover, ReadAhead
from wings_client._model import Chunk, RangesBatch
from wings_client._scan import ParallelScan, ScanPart
from wings_client._sql import RowsRead
from wings_client._transport import Transport
from wings_client._wakeup import Wakeup
from wings_client.arrow import RecordBatch, Schema, Table
from wings_core.contracts.chunks import reached
from wings_core.contracts.tickets import ScanTicket
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
                self._closed = True
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


class _AsyncFollowing(AsyncStream[T]):
    """A follow, whose batches are read ahead; yields them in the form of its kind."""

    def __init__(self, pool: WorkerPool, follow: Following[T]) -> None:
        super().__init__(pool, "wings-follow")
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


class _AsyncRows(AsyncStream[RecordBatch]):
    """Batches of one schema."""

    def __init__(self, pool: WorkerPool, name: str, schema: Schema) -> None:
        super().__init__(pool, name)
        self.schema = schema

    async def read_all(self) -> Table:
        """Return all batches not yet delivered as one table, without a copy."""
        return Table.from_batches([batch async for batch in self], self.schema)


class AsyncSql(_AsyncRows):
    """The rows of a statement; made by `AsyncClient.sql`.

    Attributes:
        schema: The schema of the batches.
    """

    def __init__(self, pool: WorkerPool, read: RowsRead) -> None:
        super().__init__(pool, "wings-sql", read.schema)
        self._read = read

    async def _open(self) -> ReadAhead[RecordBatch] | None:
        await self._pool.acquire()
        return ReadAhead([self._read.batches()], self._read.cancel, ITEMS_WAITING_MAX)

    def _end(self) -> None:
        super()._end()
        self._read.cancel()


class AsyncSnapshot(AsyncSql):
    """The rows of a topic at one moment; made by `AsyncClient.snapshot`.

    Attributes:
        schema: The schema of the batches.
    """


class AsyncScan(_AsyncRows):
    """The batches of a range that was fixed by the call; made by `AsyncClient.scan`.

    Attributes:
        schema: The schema of the batches.
    """

    def __init__(
        self,
        pool: WorkerPool,
        transport: Transport,
        schema: Schema,
        parts: list[ScanPart],
        parallel: int,
    ) -> None:
        super().__init__(pool, "wings-scan", schema)
        self._transport = transport
        self._parts = parts
        self._parallel = min(parallel, len(parts))

    def _readers(self) -> int:
        return self._parallel

    async def _open(self) -> ReadAhead[RecordBatch] | None:
        if not self._parts:
            return None
        await self._pool.acquire()
        self._parallel = 1 + await self._pool.acquire_more(self._parallel - 1)
        return ParallelScan(self._transport, self._parts, self._parallel)
