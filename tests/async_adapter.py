"""The async client behind the face of the sync one, so that one suite shows both.

Every call runs on an event loop in a thread of its own, and is waited for here.
"""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

from wings_client import (
    AsyncChunks,
    AsyncClient,
    AsyncConsumer,
    AsyncFollow,
    AsyncProducer,
    AsyncScan,
    AsyncShareConsumer,
    AsyncStage,
)
from wings_client.gather import Gather

SECONDS = 55.0
"""How long a test waits for one call."""

_OPENED = (
    AsyncChunks,
    AsyncConsumer,
    AsyncFollow,
    AsyncProducer,
    AsyncScan,
    AsyncShareConsumer,
    AsyncStage,
    Gather,
)


class LoopThread:
    """An event loop on a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="test-loop")
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(SECONDS)

    def stop(self) -> None:
        """End the loop."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(SECONDS)
        self.loop.close()


class Adapted:
    """Something of the async client, its coroutines run, its async iterator iterated."""

    def __init__(self, loop: LoopThread, it: Any) -> None:
        self._loop = loop
        self._it = it

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._it, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            result = found(*args, **kwargs)
            if not isinstance(result, Coroutine):
                return result
            return adapted(self._loop, self._loop.run(result))

        return call

    def __iter__(self) -> "Adapted":
        return Adapted(self._loop, aiter(self._it))

    def __next__(self) -> Any:
        async def take() -> Any:
            # A StopIteration cannot leave a coroutine.
            return [item] if (item := await anext(self._it, None)) is not None else []

        if not (taken := self._loop.run(take())):
            raise StopIteration
        return taken[0]

    def __enter__(self) -> "Adapted":
        self._loop.run(self._it.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self._loop.run(self._it.__aexit__(*error))


def adapted(loop: LoopThread, found: Any) -> Any:
    """Return what a call returned, as the sync client would."""
    if isinstance(found, (AsyncClient, *_OPENED)):
        return Adapted(loop, found)
    if not isinstance(found, asyncio.Future):
        return found
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()

    def copy(sent: "asyncio.Future[Any]") -> None:
        error = sent.exception()
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(sent.result())

    loop.loop.call_soon_threadsafe(found.add_done_callback, copy)
    return future
