"""Streams as async iterators: a thread reads ahead, a little, and the event loop takes."""

import asyncio
import weakref
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

import pyarrow as pa

from wings_client._async._turns import Turns
from wings_client._follow import Follow
from wings_client._handover import Handover, HandoverClosed
from wings_client._model import Chunk
from wings_client._scan import ParallelScan, Part
from wings_client._stream import Chunks
from wings_client._transport import Transport
from wings_client._wakeup import Wakeup
from wings_core.contracts.tickets import ScanTicket

T = TypeVar("T")

CHUNKS_WAITING_MAX = 2
"""Chunks that a follow has read and not yet handed on."""


class Taker(Generic[T]):
    """Takes from a hand-over on an event loop; one task at a time."""

    def __init__(self, handover: Handover[T]) -> None:
        self._handover = handover
        self._wakeup = Wakeup()
        handover.listen(self._wakeup.notify)

    async def take(self, timeout: float | None = None) -> T | None:
        """Wait for the next item; None at the end, or after so many seconds."""
        left = timeout
        while True:
            self._wakeup.clear()
            ended = self._handover.ended  # Before the look: what it finds is the last.
            item = self._handover.take(0.0)
            if item is not None or ended or (left is not None and left <= 0):
                return item
            took = await self._wakeup.wait(left)
            if left is not None:
                left -= took


class Readers(Protocol[T]):
    """What reads a stream ahead, on threads."""

    handover: Handover[T]

    def read(self) -> None:
        """Read until the end; runs on each of its threads."""
        ...

    def cancel(self) -> None:
        """End it; does not block."""
        ...


class AsyncStream(AsyncIterator[T]):
    """Items of a stream, as they come. One task iterates.

    The stream on the server ends with `close`, with the `async with` block, where the task is
    cancelled that waits for an item, and where the iterator itself is let go of.
    """

    def __init__(self, turns: Turns, name: str) -> None:
        self._turns = turns
        self._name = name
        self._taker: Taker[T] | None = None
        self._cancel: Callable[[], object] | None = None
        self._closed = False

    @abstractmethod
    async def _open(self) -> Readers[T] | None:
        """Return what reads, its turns taken; None where there is nothing to read."""

    def _readers(self) -> int:
        """Return how many threads read."""
        return 1

    async def __anext__(self) -> T:
        """Return the next item; waits until there is one.

        Raises:
            StopAsyncIteration: There is no more, or it was closed.
            WingsError: The server's refusal; `Unavailable` where it could not be reached again.
        """
        try:
            item = await self._next()
        except asyncio.CancelledError:
            self._end()
            raise
        if item is None:
            raise StopAsyncIteration
        return item

    async def close(self) -> None:
        """End the stream, also for a task that waits in it."""
        self._end()

    async def __aenter__(self) -> Self:
        """Return the stream itself."""
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        self._end()

    async def _next(self) -> T | None:
        if self._closed:
            return None
        if self._taker is None:
            readers = await self._open()
            if readers is None:
                self._closed = True
                return None
            # The threads hold the readers, and never this: letting go of it ends them.
            self._cancel = weakref.finalize(self, readers.cancel)
            self._taker = Taker(readers.handover)
            for index in range(self._readers()):
                self._turns.start(readers.read, f"{self._name}-{index}")
            if self._closed:  # While its turn was waited for.
                self._end()
        return await self._taker.take()

    def _end(self) -> None:
        self._closed = True
        if self._cancel is not None:
            self._cancel()


class _ChunkReader:
    """Reads chunks ahead.

    Args:
        chunks: Blocks while there is none.
        end: Ends them, from any thread.
    """

    def __init__(self, chunks: Iterable[Chunk], end: Callable[[], None]) -> None:
        self.handover: Handover[Chunk] = Handover(CHUNKS_WAITING_MAX, givers=1)
        self._chunks = chunks
        self._end = end

    def read(self) -> None:
        try:
            for chunk in self._chunks:
                self.handover.put(chunk)
        except HandoverClosed:
            return
        except BaseException as error:  # noqa: BLE001 - raised where the stream is iterated.
            self.handover.fail(error)
        finally:
            self.handover.done()
            self._end()

    def cancel(self) -> None:
        self.handover.close()
        self._end()


class AsyncFollow(AsyncStream[Chunk]):
    """An endless read, or one up to a deadline; made by `AsyncClient.follow`.

    Iterating yields `(batch, start_offset, end_offset)` and waits while there is nothing new. A
    lost connection is opened again at the next offset, so every row comes once, in order. See
    `AsyncStream` for how it ends.
    """

    def __init__(self, turns: Turns, follow: Follow) -> None:
        super().__init__(turns, "wings-follow")
        self._follow = follow
        self._next_offset = follow.next_offset

    @property
    def next_offset(self) -> int:
        """Where the follow goes on: one past the last row handed on."""
        return self._next_offset

    async def __anext__(self) -> Chunk:
        """Return the next rows; waits until there are some.

        Raises:
            StopAsyncIteration: The deadline has passed, or the follow was closed.
            WingsError: The server's refusal; `Unavailable` where it could not be reached again.
        """
        chunk = await super().__anext__()
        self._next_offset = chunk.end_offset + 1
        return chunk

    async def _open(self) -> Readers[Chunk]:
        await self._turns.take()
        return _ChunkReader(self._follow, self._follow.close)


class AsyncChunks(AsyncStream[Chunk]):
    """The chunks of one range; made by `AsyncClient.read_ticket`.

    Iterating yields `(batch, start_offset, end_offset)`, in order of offset; a lost connection is
    resumed. See `AsyncStream` for how it ends.
    """

    def __init__(self, turns: Turns, transport: Transport, ticket: ScanTicket) -> None:
        super().__init__(turns, "wings-range")
        self._transport = transport
        self._ticket = ticket

    async def _open(self) -> Readers[Chunk]:
        await self._turns.take()
        chunks = Chunks(self._transport, self._ticket)
        return _ChunkReader(chunks, chunks.cancel)


class AsyncScan(AsyncStream[pa.RecordBatch]):
    """The batches of a range that was fixed by the call; made by `AsyncClient.scan`.

    Attributes:
        schema: Of the batches.
    """

    def __init__(
        self,
        turns: Turns,
        transport: Transport,
        schema: pa.Schema,
        parts: list[Part],
        parallel: int,
    ) -> None:
        super().__init__(turns, "wings-scan")
        self.schema = schema
        self._transport = transport
        self._parts = parts
        self._parallel = min(parallel, len(parts))

    async def read_all(self) -> pa.Table:
        """Return all batches that were not handed on yet, as one table, without a copy."""
        batches = [batch async for batch in self]
        return pa.Table.from_batches(batches, self.schema)

    def _readers(self) -> int:
        return self._parallel

    async def _open(self) -> Readers[pa.RecordBatch] | None:
        if not self._parts:
            return None
        await self._turns.take()
        self._parallel = 1 + await self._turns.take_more(self._parallel - 1)
        return ParallelScan(self._transport, self._parts, self._parallel)
