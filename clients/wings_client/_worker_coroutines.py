"""Handlers of a worker that are coroutine functions, on an event loop.

Imported where such a handler is used: the sync client does without asyncio.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

from wings_client._share_model import Delivery
from wings_client._threads import start_thread
from wings_client._worker_model import Message, Task


class Coroutines:
    """The coroutines of a worker; all methods from any thread.

    Args:
        handler: Called on the loop.
        finish: Called there with each task, and what its coroutine raised.
        loop: The caller's; None: one of its own, on a thread.

    Raises:
        RuntimeError: No thread can be started.
    """

    def __init__(
        self,
        handler: Callable[[Message | Delivery], object],
        finish: Callable[[Task, BaseException | None], None],
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self._handler = handler
        self._finish = finish
        self._running: set[asyncio.Task[None]] = set()
        self._cancelled = False
        self._owns_loop = loop is None
        self._loop = loop or asyncio.new_event_loop()
        if self._owns_loop:
            start_thread(self._run, "wings-worker-loop")

    def begin(self, task: Task) -> None:
        """Begin a coroutine.

        Raises:
            RuntimeError: The loop is closed.
        """
        self._loop.call_soon_threadsafe(self._spawn, task)

    def cancel(self) -> None:
        """Cancel those that run, and those that begin later."""
        self._soon(self._cancel)

    def end(self) -> None:
        """End a loop of its own, once all have ended."""
        if self._owns_loop:
            self._soon(self._end)

    async def ended(self) -> None:
        """Wait until none runs; on the loop."""
        await asyncio.gather(*self._running, return_exceptions=True)

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def _spawn(self, task: Task) -> None:
        running = self._loop.create_task(self._call(task))
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    async def _call(self, task: Task) -> None:
        # After `cancel`, no handler is called.
        error: BaseException | None = asyncio.CancelledError("the worker was aborted")
        try:
            if not self._cancelled:
                with task.span():
                    await cast("Awaitable[object]", self._handler(task.argument))
                error = None
        except BaseException as raised:  # noqa: BLE001 - its messages are released.
            error = raised
        self._finish(task, error)

    def _cancel(self) -> None:
        self._cancelled = True
        for running in list(self._running):
            running.cancel()

    def _end(self) -> None:
        waiting = self._loop.create_task(self.ended())
        waiting.add_done_callback(lambda _: self._loop.stop())

    def _soon(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # The loop has ended, and its coroutines with it.
            return
