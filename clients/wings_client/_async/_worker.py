"""The async worker: the engine of a `Worker`, with handlers on the caller's event loop."""

import asyncio
from typing import Self

from wings_client._arguments import checked
from wings_client._worker import Worker
from wings_client._worker_model import WorkerStats


class AsyncWorker:
    """Calls a handler for the messages of a share group; made by `AsyncClient.worker`.

    Coroutine functions run on the event loop, plain functions on threads. See `Worker` for what it
    guarantees; `stop` and `abort` return at once, and the other calls are awaited.

    Attributes:
        group: The share group's name.
        topic: The topic of the group.
        member: This member's name.
    """

    def __init__(self, worker: Worker) -> None:
        self.group = worker.group
        self.topic = worker.topic
        self.member = worker.member
        self._engine = worker.engine
        self._worker = worker  # A reference: the client holds its workers weakly.

    @property
    def stats(self) -> WorkerStats:
        """Counts of what it has done so far, in messages."""
        return self._engine.stats

    async def run(self) -> WorkerStats:
        """Work until the end; returns what was done. See `Worker.run`.

        A task that is cancelled in it aborts the worker, whose coroutines are cancelled. For an end
        in order by a signal: `loop.add_signal_handler(signal.SIGTERM, worker.stop)`.

        Raises:
            WingsError: The server's refusal; `Unavailable` where it could not be reached again.
        """
        self._engine.start(asyncio.get_running_loop())
        try:
            await self.wait()
        except asyncio.CancelledError:
            self._engine.abort()
            await self._engine.ended()
            raise
        return self.stats

    def stop(self) -> None:
        """Take no more messages, and end once the running handlers have returned."""
        self._engine.stop()

    def abort(self) -> None:
        """End at once: all that is held is released; coroutines are cancelled."""
        self._engine.abort()

    @checked
    async def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end, at most `timeout` seconds; returns False on time-out.

        Raises:
            WingsError: Why it ended.
        """
        if not await self._wait(timeout):
            return False
        if self._engine.error is not None:
            raise self._engine.error
        return True

    async def _wait(self, timeout: float | None = None) -> bool:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def tell() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(done.set)

        self._engine.when_done(tell)
        try:
            async with asyncio.timeout(timeout):
                await done.wait()
        except TimeoutError:
            return False
        await self._engine.ended()
        return True

    async def close(self) -> None:
        """Stop, and wait until the running handlers have returned; `wait` says why it ended."""
        if self._engine.is_inherited:
            return
        self._engine.stop()
        await self._wait()

    async def __aenter__(self) -> Self:
        """Begin to work in the background; returns the worker itself."""
        self._engine.start(asyncio.get_running_loop())
        return self

    async def __aexit__(self, error_type: object, error: BaseException | None, *_: object) -> None:
        """Close the worker; an error raised in the block takes precedence over one of its own."""
        if self._engine.is_inherited:
            return
        self._engine.stop()
        try:
            await self.wait()
        except Exception:
            if error is None:
                raise
