"""The async stage: the writes of a `Stage`, awaited."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Self, TypeVar

from wings_client._async._pool import WorkerPool
from wings_client._batches import Data
from wings_client._cancellation import current_cancellation
from wings_client._model import Staged, Topic
from wings_client._stage import Stage
from wings_core.errors import WingsError

T = TypeVar("T")


class AsyncStage:
    """A stage, written over one stream; made by `AsyncClient.stage`.

    Safe from many tasks; their writes go in one after another. See `Stage` for what it guarantees.
    A task that is cancelled in a call fails the stage: it is written again under another id.

    Attributes:
        id: The stage's id.
        topic: The topic its rows will be published to.
    """

    def __init__(self, pool: WorkerPool, stage: Stage) -> None:
        self.id: str = stage.id
        self.topic: Topic = stage.topic
        self._pool = pool
        self._stage = stage
        # One call at a time, so that no more than one thread waits for room.
        self._calling = asyncio.Lock()

    @property
    def rows(self) -> int:
        """How many rows are durable in the stage so far."""
        return self._stage.rows

    async def write(self, data: Data) -> None:
        """Add data, at once or as soon as there is room for it; see `Stage.write`."""
        await self._run(partial(self._stage.write, data))

    async def close(self) -> Staged:
        """Wait until everything is durable, and end the stage; see `Stage.close`."""
        return await self._run(self._stage.close)

    async def __aenter__(self) -> Self:
        """Return the stage itself."""
        return self

    async def __aexit__(self, error_type: object, error: BaseException | None, *_: object) -> None:
        """Close the stage; where the block raised, delete it, in at most 4 s.

        Where the task was cancelled, the stream only ends; the server deletes the stage later.
        """
        if isinstance(error, asyncio.CancelledError):
            self._stage.cancel()
        elif error is not None:
            await self._delete(error)
        else:
            try:
                await self.close()
            except WingsError as refused:
                await self._delete(refused)
                raise

    async def _delete(self, error: BaseException) -> None:
        await self._pool.run(partial(self._stage.__exit__, type(error), error, None))

    async def _run(self, call: Callable[[], T]) -> T:
        async with self._calling:
            return await self._pool.run(partial(_cancellable, self._stage, call))


def _cancellable(stage: Stage, call: Callable[[], T]) -> T:
    """Make a call; if its task is cancelled, the stage fails, which ends the call."""
    cancellation = current_cancellation()
    if cancellation is not None:
        cancellation.add(stage.cancel)
    return call()
