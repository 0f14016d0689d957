"""Wakes a task of an event loop from other threads, which never wait for the loop."""

import asyncio
import contextlib
import time


class Wakeup:
    """An event that any thread sets and one task waits for; made on the loop of that task."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake the task, now or when it waits next; from any thread."""
        # The loop may have ended; then no task waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        """Drop earlier notifications; called before checking the awaited state."""
        self._event.clear()

    async def wait(self, seconds: float | None) -> float:
        """Wait for a notification, at most so long (None: for ever); return the seconds it took."""
        began = time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        return time.monotonic() - began
