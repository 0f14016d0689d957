"""The async consumer: the engine of a `Consumer`, its batches awaited."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Self

from wings_client._async._pool import WorkerPool
from wings_client._async._streams import Taker
from wings_client._consumer import Consumer
from wings_client._forks import finalize
from wings_client._model import Consumed


class AsyncConsumer(AsyncIterator[Consumed]):
    """Reads under a name; made by `AsyncClient.consumer`. One task iterates.

    Iterating yields `(batch, ranges)`, of a single partition `(batch, partition, start_offset,
    end_offset)`, and waits while there is nothing new; see `Consumer` for what it guarantees. Its
    streams on the server end with `close`, with the `async with` block, when the task that waits
    for a batch is cancelled, and when the consumer is garbage-collected.

    Leaving an `async with` block without an error commits everything delivered (unless
    `auto_commit` is False); leaving it with an error, or a cancelled task, does not.

    Attributes:
        name: The name under which the server keeps its offsets.
        topics: The topics it reads.
        topic: The first of them.
        engine: The part that `Consumer` shares.
    """

    def __init__(self, pool: WorkerPool, consumer: Consumer) -> None:
        self.name = consumer.name
        self.topics = consumer.topics
        self.topic = consumer.topic
        self._pool = pool
        self._consumer = consumer  # A reference: the client holds its consumers weakly.
        engine = self.engine = consumer.engine
        self._taker = Taker(engine.reads.handover)
        self._cancel = finalize(self, engine.transport, engine.reads.cancel)

    @property
    def positions(self) -> dict[Any, int]:
        """The next offset to read, after all that was delivered; see `Consumer.positions`."""
        return self.engine.positions

    async def __anext__(self) -> Consumed:
        """Return the next batch; waits until there is one.

        Raises:
            StopAsyncIteration: Nothing came for as long as the timeout, or it was closed.
            WingsError: A read or a commit was refused; `Unavailable` where the server could not be
                reached again.
        """
        engine = self.engine
        try:
            if engine.ask():
                await self._pool.run(engine.commit_processed)
            seconds = engine.timeout
            while True:
                taken = await self._taker.take(seconds)
                if taken is None:
                    if await self._pool.run(engine.is_over):
                        raise StopAsyncIteration
                    seconds = engine.patience
                elif (accepted := engine.reads.accept(taken)) is not None:
                    return accepted
        except asyncio.CancelledError:
            self._cancel()
            raise

    async def commit(self) -> None:
        """Commit everything that was delivered, the last batch included.

        Raises:
            WingsError: The server's refusal; `Unavailable` where it could not be reached again.
        """
        await self._pool.run(self.engine.commit)

    async def rewind(self) -> None:
        """Deliver again what was delivered and not committed, such as by an aborted transaction.

        Raises:
            WingsError: The server's refusal; `Unavailable` where it could not be reached again.
        """
        await self._pool.run(self.engine.rewind)

    async def close(self) -> None:
        """Stop reading; commit what was processed, unless `auto_commit` is False.

        The last batch delivered counts as processed if another one was asked for after it.

        Raises:
            WingsError: The commit failed. The consumer is closed all the same.
        """
        self._cancel()
        await self._pool.run(self.engine.close)

    async def __aenter__(self) -> Self:
        """Return the consumer itself."""
        return self

    async def __aexit__(self, error_type: object, error: BaseException | None, *_: object) -> None:
        """Close the consumer; unless the block raised, commit all that was delivered."""
        self._cancel()
        await self._pool.run(partial(self.engine.leave, failing=error is not None))
