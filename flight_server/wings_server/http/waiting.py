"""Waiting without a thread: commits, clients that leave and a server that stops wake coroutines.

commit ─▶ (its thread) Wake.ring ─▶ Bell ─▶ (event loop) the coroutine that waits goes on
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from starlette.types import Receive

from wings_core.errors import WingsError
from wings_core.fetch.waits import Waits
from wings_core.times import Deadline
from wings_server.flight.client_watch import ClientGone


class Wake:
    """Ends the waits of one call; `ring` may be called from any thread, all else on the loop."""

    __slots__ = ("_bell", "_error", "_future", "_rung")

    def __init__(self, bell: "_Bell") -> None:
        self._bell = bell
        self._rung = False
        self._error: WingsError | None = None
        self._future: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Say that it is worth looking again; quick, and never raises."""
        self._bell.ring(self)

    def set(self, error: WingsError | None = None) -> None:
        """End the wait under way, or the next one; with an error, every later one."""
        self._rung = True
        self._error = self._error or error
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, deadline: Deadline) -> None:
        """Wait until rung, or the deadline passes; rings since the last wait count.

        Raises:
            WingsError: What it was ended with.
        """
        remaining = deadline.remaining()
        if not self._rung and remaining != 0:
            loop = asyncio.get_running_loop()
            self._future = loop.create_future()
            timer = None if remaining is None else loop.call_later(remaining, self.set)
            try:
                await self._future
            finally:
                self._future = None
                if timer is not None:
                    timer.cancel()
        # Cleared before the caller looks, so that a commit after its look is not missed.
        self._rung = False
        if self._error is not None:
            raise self._error


class Waiting:
    """The calls that wait, on one event loop.

    Args:
        waits: Counts and bounds them, with all other readers that wait.
    """

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._bell: _Bell | None = None
        self._wakes: set[Wake] = set()
        self._stopped: WingsError | None = None

    @contextmanager
    def one(self, receive: Receive) -> Generator[Wake]:
        """Let a call wait during the block; its client's leaving ends that with `ClientGone`.

        Args:
            receive: Of the call, its body received whole.

        Raises:
            ResourceExhausted: Too many wait already.
            WingsError: What `stop` was called with.
        """
        if self._stopped is not None:
            raise self._stopped
        if self._bell is None:
            self._bell = _Bell(asyncio.get_running_loop())
        with self._waits.one():
            wake = Wake(self._bell)
            self._wakes.add(wake)
            watcher = asyncio.ensure_future(_watch_client(receive, wake))
            try:
                yield wake
            finally:
                watcher.cancel()
                self._wakes.discard(wake)

    def stop(self, error: WingsError) -> None:
        """End every wait, and every later one, with an error; from any thread."""
        self._stopped = error
        if self._bell is not None:
            self._bell.call(self._end_all)

    def _end_all(self) -> None:
        for wake in self._wakes:
            wake.set(self._stopped)


class _Bell:
    """Hands rings to the event loop, all that come before it looks at once.

    A commit that many wait for rings each of them: they cost its thread one wake-up of the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._rung: deque[Wake] = deque()
        self._called = False

    def ring(self, wake: Wake) -> None:
        # Appended before the look, and the loop takes back the mark before it empties the deque:
        # whichever comes first, the wake is seen.
        self._rung.append(wake)
        if not self._called:
            self._called = True
            self.call(self._answer)

    def call(self, callback: Any) -> None:
        with contextlib.suppress(RuntimeError):  # The loop is closed; nobody waits any more.
            self._loop.call_soon_threadsafe(callback)

    def _answer(self) -> None:
        self._called = False
        while self._rung:
            self._rung.popleft().set()


async def _watch_client(receive: Receive, wake: Wake) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    wake.set(ClientGone("the client has gone away"))
