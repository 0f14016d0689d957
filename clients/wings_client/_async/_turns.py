"""Turns: blocking calls on threads, so many at a time.

Whoever wants a turn waits for it on the event loop, as long as a call may take. A task that is
cancelled ends what its call does on the thread; the turn is given back when the thread is free.
"""

import asyncio
import contextlib
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, TypeVar

from wings_client._cancellation import Cancellation
from wings_client._threads import start_thread
from wings_client._transport import Transport
from wings_core.errors import InvalidArgument, ResourceExhausted

T = TypeVar("T")


class Turns:
    """See the module.

    Args:
        transport: Of the calls; closing it cancels them.
        turns_max: How many calls run at once, each on a thread.
        what: Says what they are, for the error where there is no turn in time.
    """

    def __init__(self, transport: Transport, turns_max: int, what: str) -> None:
        if turns_max < 1:
            raise InvalidArgument(f"{what}_max must be at least 1; got {turns_max}")
        self._transport = transport
        self._turns_max = turns_max
        self._what = what
        self._free = asyncio.Semaphore(turns_max)

    async def take(self) -> None:
        """Wait for a turn and take it; `start` gives it back.

        Raises:
            ResourceExhausted: There was none for as long as a call may take.
        """
        timeout = self._transport.timeout
        try:
            async with asyncio.timeout(timeout):
                await self._free.acquire()
        except TimeoutError:
            raise ResourceExhausted(
                f"{self._turns_max} {self._what} run already, and none of them ended within "
                f"{timeout:g} s: end some, or give connect_async a larger {self._what}_max"
            ) from None

    async def take_more(self, turns: int) -> int:
        """Take up to so many turns as are free now; return how many."""
        taken = 0
        while taken < turns and not self._free.locked():
            await self._free.acquire()
            taken += 1
        return taken

    def start(self, call: Callable[[], None], name: str) -> None:
        """Run a call that does not raise, with a turn that was taken.

        Raises:
            RuntimeError: No thread can be started; the turn is given back.
        """
        loop = asyncio.get_running_loop()

        def run() -> None:
            try:
                call()
            finally:
                _tell(loop, self._free.release)

        self._start_thread(run, name)

    async def run(self, call: Callable[[], T]) -> T:
        """Make a blocking call on a thread, when it is its turn, and return what it returns."""
        await self.take()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        cancellation = Cancellation()
        context = copy_context()

        def settle(settled: Callable[[Any], None], found: object) -> None:
            self._free.release()
            if not future.done():  # The task may have been cancelled.
                settled(found)

        def run() -> None:
            try:
                found = context.run(cancellation.run, call)
            except StopIteration as error:  # Which a future does not take.
                stopped = RuntimeError("the call raised StopIteration")
                stopped.__cause__ = error
                _tell(loop, settle, future.set_exception, stopped)
            except BaseException as error:  # noqa: BLE001 - raised where it is awaited.
                _tell(loop, settle, future.set_exception, error)
            else:
                _tell(loop, settle, future.set_result, found)

        self._start_thread(run, "wings-async")
        try:
            return await future
        except asyncio.CancelledError:
            cancellation.cancel()
            raise

    def _start_thread(self, run: Callable[[], None], name: str) -> None:
        try:
            start_thread(run, name)
        except RuntimeError:
            self._free.release()
            raise


def _tell(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *args: object) -> None:
    # The loop may have ended; then nobody waits any more.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *args)
