"""Waiting without a thread: coroutines resume on commits, disconnects and the server's stop.

commit ─▶ (its thread) WaitingCall.notify ─▶ _Notifier ─▶ (event loop) the waiting coroutine resumes
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from starlette.types import Receive

from wings_core.errors import WingsError
from wings_core.fetch.state import Waits
from wings_core.security.principal import ANYONE, Principal
from wings_core.times import Deadline
from wings_server.flight.boundary import ClientGone

CHECK_SECONDS = 0.5
"""Interval of checking the tokens of waiting calls."""


class WaitingCall:
    """Ends the waits of one call. `notify` is thread-safe, the rest is for the event loop."""

    __slots__ = ("_error", "_future", "_notified", "_notifier")

    def __init__(self, notifier: "_Notifier") -> None:
        self._notifier = notifier
        self._notified = False
        self._error: WingsError | None = None
        self._future: asyncio.Future[None] | None = None

    def notify(self) -> None:
        """Schedule `set` on the event loop; never blocks, never raises."""
        self._notifier.notify(self)

    def set(self, error: WingsError | None = None) -> None:
        """End the current or the next wait; with an error, all later ones too."""
        self._notified = True
        self._error = self._error or error
        self._end()

    async def wait(self, deadline: Deadline) -> bool:
        """Wait until notified, also if since the last wait, or until the deadline.

        Returns:
            True if it was notified.

        Raises:
            WingsError: The error that `set` was called with.
        """
        remaining = deadline.remaining()
        if not self._notified and remaining != 0:
            loop = asyncio.get_running_loop()
            self._future = loop.create_future()
            timer = None if remaining is None else loop.call_later(remaining, self._end)
            try:
                await self._future
            finally:
                self._future = None
                if timer is not None:
                    timer.cancel()
        # Cleared before the caller reads, so that a later commit is not missed.
        notified, self._notified = self._notified, False
        if self._error is not None:
            raise self._error
        return notified

    def _end(self) -> None:
        """End the current wait."""
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


class Waiting:
    """The waiting calls of one event loop.

    Args:
        waits: Counts and bounds waiting calls, together with those of Flight.
    """

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._notifier: _Notifier | None = None
        self._wakes: dict[WaitingCall, Principal] = {}
        self._checking: asyncio.TimerHandle | None = None
        """Timer of the next check of principals, while any call waits."""
        self._stopped: WingsError | None = None

    def call(self) -> WaitingCall:
        """Return a call that may come to wait, in a block of `one`."""
        if self._notifier is None:
            self._notifier = _Notifier(asyncio.get_running_loop())
        return WaitingCall(self._notifier)

    @contextmanager
    def one(
        self,
        receive: Receive | None,
        principal: Principal = ANYONE,
        wake: WaitingCall | None = None,
    ) -> Generator[WaitingCall]:
        """Register one call for the block; ended with `ClientGone` if its client disconnects.

        Args:
            receive: The call's ASGI channel, whose body was received; None if the block's coroutine
                is cancelled when its client disconnects.
            principal: The caller; the call ends soon after its `check` raises, with that error.
            wake: The call; None: a new one.

        Raises:
            ResourceExhausted: Too many calls are waiting.
            WingsError: The error that `stop` was called with.
        """
        if self._stopped is not None:
            raise self._stopped
        wake = wake or self.call()
        with self._waits.one():
            self._wakes[wake] = principal
            if self._checking is None:
                self._check_principals()
            watcher = None
            if receive is not None:
                watcher = asyncio.ensure_future(_watch_client(receive, wake))
            try:
                yield wake
            finally:
                if watcher is not None:
                    watcher.cancel()
                del self._wakes[wake]

    def stop(self, error: WingsError) -> None:
        """End all current and later waits with an error. Thread-safe."""
        self._stopped = error
        if self._notifier is not None:
            self._notifier.call(self._end_all)

    def _check_principals(self) -> None:
        """End the calls of principals that are no longer valid; repeats every `CHECK_SECONDS`."""
        for wake, principal in self._wakes.items():
            error = principal.ended()
            if error is not None:
                wake.set(error)
        self._checking = None
        if self._wakes:
            loop = asyncio.get_running_loop()
            self._checking = loop.call_later(CHECK_SECONDS, self._check_principals)

    def _end_all(self) -> None:
        for wake in self._wakes:
            wake.set(self._stopped)


class _Notifier:
    """Passes notifications to the event loop in batches.

    A commit notifies all its waiters with a single wake-up of the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._notified: deque[WaitingCall] = deque()
        self._called = False

    def notify(self, wake: WaitingCall) -> None:
        # Appended before the check, while the loop clears the flag before emptying the deque, so
        # that no wake is lost.
        self._notified.append(wake)
        if not self._called:
            self._called = True
            self.call(self._set_all)

    def call(self, callback: Any) -> None:
        with contextlib.suppress(RuntimeError):  # The loop is closed: no call is waiting.
            self._loop.call_soon_threadsafe(callback)

    def _set_all(self) -> None:
        self._called = False
        while self._notified:
            self._notified.popleft().set()


async def _watch_client(receive: Receive, wake: WaitingCall) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    wake.set(ClientGone("the client has gone away"))
