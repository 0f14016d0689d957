"""The worker pool of the async client, and the wake-up of its tasks by other threads.

Blocking calls run on threads, at most so many at once. A call waits on the event loop for a free
worker, as long as a call may take. Cancelling the task ends the call on its thread; the worker is
free again when that thread returns.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, TypeVar

from wings_client._cancellation import Cancellation
from wings_client._forks import finalize
from wings_client._threads import start_thread
from wings_client._transport import Transport
from wings_core.errors import InvalidArgument, ResourceExhausted

T = TypeVar("T")


class WorkerPool:
    """Runs blocking calls on threads, within a concurrency limit.

    Args:
        transport: Transport of the calls; closing it cancels them.
        workers_max: The concurrency limit: calls that run at once, each on a thread.
        what: Names the calls in the error of one that finds no worker in time.

    Raises:
        InvalidArgument: `workers_max` is less than 1.
    """

    def __init__(self, transport: Transport, workers_max: int, what: str) -> None:
        if workers_max < 1:
            raise InvalidArgument(f"{what}_max must be at least 1; got {workers_max}")
        self._transport = transport
        self._workers_max = workers_max
        self._what = what
        self._free = asyncio.Semaphore(workers_max)

    def check_process(self) -> None:
        """Refuse a call in a forked child, which has none of its parent's threads."""
        self._transport.check_process()

    def finalize(self, owned: object, call: Callable[[], object]) -> Callable[[], object]:
        """See `wings_client._forks.finalize`."""
        return finalize(owned, self._transport, call)

    async def acquire(self) -> None:
        """Wait for a free worker and reserve it; `start` frees it when its call returns.

        Raises:
            ResourceExhausted: No worker was free for as long as a call may take.
            InvalidArgument: This is a forked child, and the client its parent's.
        """
        self._transport.check_process()
        timeout = self._transport.timeout
        try:
            async with asyncio.timeout(timeout):
                await self._free.acquire()
        except TimeoutError:
            raise ResourceExhausted(
                f"{self._workers_max} {self._what} run already, and none of them ended within "
                f"{timeout:g} s: end some, or give connect_async a larger {self._what}_max"
            ) from None

    async def acquire_more(self, workers: int) -> int:
        """Reserve up to `workers` more of those that are free now; returns how many."""
        acquired = 0
        while acquired < workers and not self._free.locked():
            await self._free.acquire()
            acquired += 1
        return acquired

    def start(self, call: Callable[[], None], name: str) -> None:
        """Run a call that does not raise on a worker that was acquired; returns at once.

        Raises:
            RuntimeError: No thread can be started; the worker is free again.
        """
        loop = asyncio.get_running_loop()

        def run() -> None:
            try:
                call()
            finally:
                _call_soon(loop, self._free.release)

        self._start_thread(run, name)

    async def run(self, call: Callable[[], T]) -> T:
        """Make a blocking call on the next free worker; returns and raises what the call does.

        Raises:
            ResourceExhausted: No worker was free for as long as a call may take.
            RuntimeError: No thread can be started, or the call raised `StopIteration`.
        """
        await self.acquire()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        cancellation = Cancellation()
        context = copy_context()

        def resolve(set_outcome: Callable[[Any], None], outcome: object) -> None:
            self._free.release()
            if not future.done():  # The task may have been cancelled.
                set_outcome(outcome)

        def run() -> None:
            try:
                found = context.run(cancellation.run, call)
            except StopIteration as error:  # A future does not accept it.
                stopped = RuntimeError("the call raised StopIteration")
                stopped.__cause__ = error
                _call_soon(loop, resolve, future.set_exception, stopped)
            except BaseException as error:  # noqa: BLE001 - raised where it is awaited.
                _call_soon(loop, resolve, future.set_exception, error)
            else:
                _call_soon(loop, resolve, future.set_result, found)

        self._start_thread(run, "wings-async")
        try:
            return await future
        except asyncio.CancelledError:
            cancellation.cancel()
            if future.done() and not future.cancelled():
                # It opened something in the moment before; the frames of this error would keep it.
                del future
            raise

    def _start_thread(self, run: Callable[[], None], name: str) -> None:
        try:
            start_thread(run, name)
        except RuntimeError:
            self._free.release()
            raise


def _call_soon(
    loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *args: object
) -> None:
    # The loop may have ended; then no task waits any more.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *args)


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
