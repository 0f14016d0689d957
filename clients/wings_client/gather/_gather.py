"""The interfaces of a gather: iterator, async iterator, callback."""

import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from typing import TYPE_CHECKING, Self

from wings_client._arguments import checked
from wings_client._transport import Transport
from wings_client.gather._end import GatherEnd, GatherReason
from wings_client.gather._engine import Engine
from wings_client.gather._request import Reply, Request, check_requests
from wings_client.gather._rules import Rules
from wings_core.errors import InvalidArgument

if TYPE_CHECKING:
    from wings_client._wakeup import Wakeup

SOURCES_MAX = 100_000
"""Most requests of one gather."""

OnReply = Callable[[Reply], "bool | None"]
"""Takes a reply; False stops the gather."""

OnEnd = Callable[[GatherEnd], None]
"""Takes the end."""


@checked
class Gather:
    """The replies to one request to many, as they arrive; made by `Client.gather`.

    Threads send the requests from the call on, whether or not it is iterated.

    Iterate it, with `for` or `async for`, or have the replies delivered to a function: one of
    these, once. Leaving the loop, `cancel`, and garbage collection of the gather end its streams on
    the servers.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._unread = threading.Lock()
        """Held from the first read on: a gather is read once."""
        # The threads hold the engine and never this object, so its finalizer can end them.
        weakref.finalize(self, engine.finish, GatherReason.STOPPED).atexit = False
        engine.start()

    @property
    def end(self) -> GatherEnd | None:
        """The end; None while the gather runs."""
        return self._engine.end

    def cancel(self) -> None:
        """End it, from any thread; a reader that waits for a reply gets the end."""
        self._engine.finish(GatherReason.CANCELLED)

    def __iter__(self) -> Generator[Reply]:
        """Yield the replies; blocks while there is none. Afterwards `end` says why it ended.

        Raises:
            InvalidArgument: It was iterated or delivered before.
        """
        self._read_once()
        return self._replies()

    def _replies(self) -> Generator[Reply]:
        # References the gather, which a `for` loop over a call would else drop at once.
        try:
            while (reply := self._engine.next()) is not None:
                yield reply
                del reply  # Else its memory would be kept while the next is waited for.
        finally:
            self._engine.finish(GatherReason.STOPPED)

    def __aiter__(self) -> AsyncGenerator[Reply]:
        """Yield the replies without blocking the event loop.

        Raises:
            InvalidArgument: It was iterated or delivered before.
        """
        self._read_once()
        return self._replies_async()

    async def _replies_async(self) -> AsyncGenerator[Reply]:
        from wings_client._wakeup import Wakeup  # Imports asyncio, which few gathers need.

        wakeup = Wakeup()
        self._engine.listen(wakeup.notify)
        try:
            while (reply := await _next_async(self._engine, wakeup)) is not None:
                yield reply
                del reply
        finally:
            self._engine.listen(None)
            self._engine.finish(GatherReason.STOPPED)

    def deliver(self, on_reply: OnReply, on_end: OnEnd) -> None:
        """Call functions with the replies and the end, on a thread, and return at once.

        Args:
            on_reply: Called with each reply, one at a time. Returns False to stop; an error that it
                raises stops the gather too, and is the end's error.
            on_end: Called exactly once, always, after the last reply.

        Raises:
            InvalidArgument: It was iterated or delivered before.
        """
        self._read_once()
        thread = threading.Thread(
            target=self._deliver,
            args=(on_reply, on_end),
            name="wings-gather-deliver",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError:
            self._unread.release()
            raise

    def __enter__(self) -> Self:
        """Return the gather itself."""
        return self

    def __exit__(self, error_type: object, error: BaseException | None, *_: object) -> None:
        """Stop it if it has not ended."""
        self._engine.finish(GatherReason.STOPPED, error)

    async def __aenter__(self) -> Self:
        """Return the gather itself."""
        return self

    async def __aexit__(self, error_type: object, error: BaseException | None, *_: object) -> None:
        """Stop it if it has not ended; does not wait."""
        self._engine.finish(GatherReason.STOPPED, error)

    def _read_once(self) -> None:
        if not self._unread.acquire(blocking=False):
            raise InvalidArgument("a gather is iterated, or delivered to a function, once")

    def _deliver(self, on_reply: OnReply, on_end: OnEnd) -> None:
        try:
            while (reply := self._engine.next()) is not None:
                if on_reply(reply) is False:
                    self._engine.finish(GatherReason.STOPPED)
                del reply
        except BaseException as error:  # noqa: BLE001 - the caller's functions may raise anything.
            self._engine.finish(GatherReason.STOPPED, error)
        on_end(self._engine.finish(GatherReason.STOPPED))


def gather(transport: Transport, requests: Iterable[Request], rules: Rules) -> Gather:
    """Send the requests; see `Client.gather`."""
    wanted = tuple(requests)
    if not 1 <= len(wanted) <= SOURCES_MAX:
        raise InvalidArgument(f"a gather takes 1 to {SOURCES_MAX} requests; got {len(wanted)}")
    check_requests(wanted, rules.timeout)
    endpoints = {request.endpoint for request in wanted if request.endpoint is not None}
    transports: dict[str | None, Transport] = {None: transport}
    for endpoint in endpoints:
        transports[endpoint] = Transport(
            endpoint, transport.timeout, transport.retry, transport.access
        )
    engine = Engine(transports, wanted, rules)
    if endpoints:
        transport.add(engine)
    return Gather(engine)


async def _next_async(engine: Engine, wakeup: "Wakeup") -> Reply | None:
    wait = engine.begin_wait()
    while True:
        wakeup.clear()
        step = engine.next_step(wait)
        if step is not None:
            return step if isinstance(step, Reply) else None
        engine.account(wait, await wakeup.wait(wait.left))
