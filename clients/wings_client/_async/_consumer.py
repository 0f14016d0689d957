"""The async consumer: the engine of a `Consumer`, its batches awaited."""

import asyncio
import weakref
from collections.abc import AsyncIterator
from functools import partial
from types import TracebackType
from typing import Self

from wings_client._async._streams import Taker
from wings_client._async._turns import Turns
from wings_client._consumer import Consumer
from wings_client._model import ConsumedBatch
from wings_core.partitions import JsonScalar


class AsyncConsumer(AsyncIterator[ConsumedBatch]):
    """Reads under a name; made by `AsyncClient.consumer`. One task iterates.

    Iterating yields `(batch, partition, start_offset, end_offset)` and waits while there is
    nothing new; see `Consumer` for what it guarantees. Its streams on the server end with `close`,
    with the `async with` block, where the task is cancelled that waits for a batch, and where the
    consumer itself is let go of.

    Leaving an `async with` block without an error commits everything handed on (unless
    `auto_commit` is False); leaving it with an error, or a cancelled task, does not.

    Attributes:
        name: Under which the server keeps its offsets.
        topic: What it reads.
    """

    def __init__(self, turns: Turns, consumer: Consumer) -> None:
        self.name = consumer.name
        self.topic = consumer.topic
        self._turns = turns
        self._consumer = consumer  # Kept, as the client closes what is still there.
        engine = self._engine = consumer.engine
        self._taker = Taker(engine.reads.handover)
        self._cancel = weakref.finalize(self, engine.reads.cancel)

    @property
    def positions(self) -> dict[JsonScalar, int]:
        """Where the consumer reads on, by partition value, after what it handed on so far."""
        return self._engine.positions

    async def __anext__(self) -> ConsumedBatch:
        """Return the next batch; waits until there is one.

        Raises:
            StopAsyncIteration: Nothing came for as long as the timeout, or it was closed.
            WingsError: A read or a commit was refused; `Unavailable` where the server could not be
                reached again.
        """
        engine = self._engine
        try:
            if engine.ask():
                await self._turns.run(engine.offsets.commit)
            taken = await self._taker.take(engine.timeout)
        except asyncio.CancelledError:
            self._cancel()
            raise
        if taken is None:
            raise StopAsyncIteration
        engine.offsets.hand_on(taken)
        return taken

    async def commit(self) -> None:
        """Commit everything that was handed on, the last batch included.

        Raises:
            WingsError: The server's refusal; `Unavailable` where it could not be reached again.
        """
        await self._turns.run(self._engine.commit)

    async def close(self) -> None:
        """Stop reading; commit what was processed, unless `auto_commit` is False.

        The batch handed on last counts as processed if another one was asked for after it.

        Raises:
            WingsError: The commit failed. The consumer is closed all the same.
        """
        self._cancel()
        await self._turns.run(self._engine.close)

    async def __aenter__(self) -> Self:
        """Return the consumer itself."""
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it; commit what was handed on, where no error leaves the block."""
        self._cancel()
        await self._turns.run(partial(self._engine.leave, failing=error is not None))
