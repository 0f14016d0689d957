"""News: threads wake a task of an event loop, without the loop waiting for them."""

import asyncio
import contextlib
import time


class News:
    """An event that any thread sets and one task waits for; made on the loop of that task."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def tell(self) -> None:
        """Say that there is something new; from any thread."""
        # The loop may have ended; then nobody waits any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        """Forget what is old; before a look, so that what comes after the look is not missed."""
        self._event.clear()

    async def wait(self, seconds: float | None) -> float:
        """Wait until there is something new, and no longer than so; return the seconds it took."""
        began = time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        return time.monotonic() - began
