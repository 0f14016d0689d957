"""A gather: its engine, and its interfaces: iterator, async iterator, callback.

The engine collects replies and decides when it ends.

The iterator, the async iterator and the callback all ask `next_step` for a reply, the end, or how
long to wait; they differ in how they wait. Only time spent waiting counts against the time-outs.

One lock guards all of it, and is never held across a blocking call. A signal handler or a finalizer
may end the gather on a thread that holds the lock, at any call in a guarded section; so the lock is
reentrant, and steps that must be atomic have no call in between.
"""

import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

from wings_client._arguments import checked
from wings_client._errors import Connection
from wings_client._transport import Transport
from wings_client.gather._request import (
    EMPTY,
    GatherEnd,
    GatherReason,
    ManyReply,
    Reply,
    Request,
    Rules,
    SourceState,
    check_requests,
)
from wings_client.gather._sources import GatherSource, Sources
from wings_core.contracts.chunks import reached
from wings_core.errors import InvalidArgument, Unavailable, WingsError

if TYPE_CHECKING:
    from wings_client._async._pool import Wakeup

SOURCES_MAX = 100_000
"""Most requests of one gather."""

OnReply = Callable[[Reply], "bool | None"]
"""Takes a reply; False stops the gather."""

OnEnd = Callable[[GatherEnd], None]
"""Takes the end."""

REPLIES_WAITING_MAX = 256
"""Replies that arrived and are not yet delivered; sources wait beyond it."""

ROOM_SECONDS = 1.0
"""How long a source waits for room before it checks again: a finalizer that runs inside its own
wait does not wake it."""


@dataclass(slots=True)
class Wait:
    """One wait for a reply."""

    left: float
    """Seconds."""
    reason: GatherReason
    """The reason the gather ends with when they have passed."""


class _Step(NamedTuple):
    """The outcome of one check: a reply, the end, or both."""

    reply: Reply | None
    """To deliver."""
    reason: GatherReason | None
    """The reason that the gather ends with after it, if any."""
    source: GatherSource | None
    """Source of the reply."""


class _Engine:
    """See the module.

    Args:
        transports: Transports by endpoint; None is the client's own, all others are closed at the
            end.
        requests: The requests to send, checked.
        rules: When to end.
    """

    def __init__(
        self,
        transports: Mapping[str | None, Transport],
        requests: Sequence[Request],
        rules: Rules,
    ) -> None:
        self._rules = rules
        self._transports = transports
        self._transport = transports[None]
        self._started_at = time.monotonic()
        self._waited = 0.0
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._wake = threading.Lock()
        """Wakes the one thread that waits for a reply; costs a fraction of a condition."""
        self._wake.acquire()
        self._asleep = False
        """Whether the reader found nothing, and waits to be notified."""
        self._listener: Callable[[], None] | None = None
        self._arrived: deque[tuple[GatherSource, Reply]] = deque()
        self._takes = True
        """Whether replies are accepted: not after the end, nor an error that will end it."""
        sentinel = rules.sentinel
        self._predicate = None if sentinel is None or sentinel is EMPTY else sentinel
        self._replies = 0
        self._rows = 0
        self._error: WingsError | None = None
        """Error of the first source that failed."""
        self._open = len(requests)
        """Sources that have not ended."""
        self._answering = False
        """Whether any server has answered."""
        self._end: GatherEnd | None = None
        self._requests = requests
        self._sources = Sources(
            transports,
            requests,
            rules.timeout,
            left=self._left,
            put=self._put,
            end=self._source_ended,
            opened=self._source_opened,
            finished=self.close,
        )

    @property
    def end(self) -> GatherEnd | None:
        """The end; None while the gather runs."""
        return self._end

    def start(self) -> None:
        """Start the threads that send the requests; does not wait for replies."""
        self._sources.start()

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Register a function to call, from any thread, when `next_step` may have a result."""
        with self._lock:
            self._listener = listener

    def begin_wait(self) -> Wait:
        """Begin to wait for the next reply."""
        self._transport.check_process()
        with self._lock:
            return self._begun_wait()

    def next_step(self, wait: Wait) -> Reply | GatherEnd | None:
        """Return a reply, the end, or None: wait further, up to `wait.left` seconds.

        Raises:
            BaseException: The error that the sentinel's predicate raised; it ended the gather.
        """
        self._transport.check_process()
        with self._lock:
            step = self._look(wait)
        return step if step is None else self._taken(step)

    def next(self) -> Reply | None:
        """Return the next reply; blocks until it is there. None at the end. One thread asks.

        Raises:
            BaseException: The error that the sentinel's predicate raised; it ended the gather.
        """
        self._transport.check_process()
        with self._lock:
            wait = self._begun_wait()
            step = self._look(wait)
        while step is None:
            began = time.monotonic()
            self._wake.acquire(timeout=wait.left)
            waited = time.monotonic() - began
            with self._lock:
                self._account(wait, waited)
                step = self._look(wait)
        taken = self._taken(step)
        return taken if isinstance(taken, Reply) else None

    def close(self) -> None:
        """End the streams on other servers; the client, when it is closed, ends its own."""
        for endpoint, transport in self._transports.items():
            if endpoint is not None:
                transport.close()

    def account(self, wait: Wait, seconds: float) -> None:
        """Subtract the seconds waited from those left."""
        with self._lock:
            self._account(wait, seconds)

    def finish(self, reason: GatherReason, error: BaseException | None = None) -> GatherEnd:
        """End the gather, unless it has ended, and return its end; cancels all streams."""
        if self._transport.is_inherited:  # It goes on in the parent.
            return self._end or self._made_end(reason, error)
        with self._lock:
            if self._end is not None:
                return self._end
            end = self._made_end(reason, error or self._error)
            if (earlier := self.end) is not None:  # A signal handler has ended it since.
                return earlier
            self._end = end
            self._takes = False
            self._arrived = deque()  # Replaced, as another thread may iterate over it.
            self._room.notify_all()
            self._notify()
        self._sources.cancel()
        return end

    def _begun_wait(self) -> Wait:
        left = max(0.0, self._rules.timeout - self._waited)
        stall = self._rules.stall_timeout
        if stall is not None and self._replies > 0 and stall < left:
            return Wait(stall, GatherReason.STALL)
        return Wait(left, GatherReason.TIMEOUT)

    def _account(self, wait: Wait, seconds: float) -> None:
        self._waited += seconds
        wait.left -= seconds

    def _look(self, wait: Wait) -> _Step | None:
        """Return the next reply or the end; None if there is neither."""
        if self._end is not None:
            return _ENDED
        if self._arrived:
            return self._judged(self._arrived)
        reason = self._reason()
        if reason is None and wait.left <= 0:
            reason = wait.reason
        if reason is not None:
            return _Step(None, reason, None)
        self._asleep = True
        return None if self.end is None else _ENDED  # It may have ended before the notification.

    def _taken(self, step: _Step) -> Reply | GatherEnd | None:
        """Return the reply of a step, or the end."""
        if self._predicate is not None and step.reply is not None:
            step = self._asked(step, step.reply, self._predicate)
        if step.reason is not None:
            self.finish(step.reason)
        return self.end if step.reply is None else step.reply

    def _asked(self, step: _Step, reply: Reply, predicate: Callable[[Reply], bool]) -> _Step:
        """Return the step with the predicate's verdict on its reply; calls it outside the lock."""
        try:
            goes_on = predicate(reply)
        except BaseException as error:
            self._uncount(step.source, reply)
            self.finish(GatherReason.STOPPED, error)
            raise
        return step if goes_on or step.reason else step._replace(reason=GatherReason.SENTINEL)

    def _judged(self, arrived: deque[tuple[GatherSource, Reply]]) -> _Step:
        """Remove the oldest reply that arrived."""
        source, reply = arrived[0]
        end_offset = reply.end_offset
        rows = reply.batch.num_rows
        ends = rows == 0 and self._rules.sentinel is EMPTY
        if self._end is not None:
            return _ENDED
        # From here to the call that removes it, nothing can end the gather.
        if not ends:
            self._replies += 1
            source.replies += 1
            source.rows += rows
            self._rows += rows
        if end_offset is not None:
            source.next_offset = end_offset + 1
        if isinstance(reply, ManyReply):
            source.next_offsets.update(reached(reply.ranges))
        arrived.popleft()
        if len(arrived) + 1 >= REPLIES_WAITING_MAX:
            self._room.notify_all()
        if ends:
            return _Step(None, GatherReason.SENTINEL, source)
        is_last = self._replies == self._rules.max_messages
        return _Step(reply, GatherReason.MAX_MESSAGES if is_last else None, source)

    def _uncount(self, source: GatherSource | None, reply: Reply) -> None:
        """Count a reply as not delivered, unless the gather has ended since."""
        assert source is not None
        with self._lock:
            if self._end is not None:
                return
            self._replies -= 1
            source.replies -= 1
            source.rows -= reply.batch.num_rows
            self._rows -= reply.batch.num_rows
            if reply.end_offset is not None:
                source.next_offset = reply.start_offset
            if isinstance(reply, ManyReply):
                source.next_offsets |= {each.partition: each.start_offset for each in reply.ranges}
            self._arrived.appendleft((source, reply))

    def _reason(self) -> GatherReason | None:
        """Return the reason that the sources end the gather with, after the last reply."""
        ended = self._open == 0
        if self._error is not None and not self._answering and ended:
            return GatherReason.NO_RESPONDERS
        if self._error is not None and self._rules.ends_on_error:
            if isinstance(self._error, Unavailable) and "connection" in self._error.facts:
                unreachable = self._error.connection == Connection.UNREACHABLE
                # Until one source opens, or all have failed, the reason is open.
                if self._answering or not unreachable:
                    return GatherReason.DISCONNECTED
                return None
            return GatherReason.SERVER_ERROR
        return GatherReason.COMPLETE if ended else None

    def _notify(self) -> None:
        if not self._asleep:
            return
        self._asleep = False
        if self._wake.locked():
            self._wake.release()
        if self._listener is not None:
            self._listener()

    def _left(self) -> float:
        with self._lock:
            return self._rules.timeout - self._waited

    def _made_end(self, reason: GatherReason, error: BaseException | None) -> GatherEnd:
        waiting = {source.index for source, _ in self._arrived}
        states: list[SourceState] = []
        for source in self._sources.sent:
            all_handed = source.index not in waiting
            idle_offset = source.idle_offset
            # The replies before an end chunk were put before that was read.
            if all_handed and idle_offset is not None:
                source.next_offset = max(source.next_offset or 0, idle_offset)
            if all_handed:
                source.next_offsets |= source.idle_offsets
            states.append(
                SourceState(
                    source.request,
                    source.replies,
                    source.rows,
                    source.next_offset,
                    source.ended and all_handed,
                    source.error,
                    source.next_offsets,
                )
            )
        for request in self._requests[len(states) :]:
            offset = request.offset if isinstance(request.offset, int) else None
            states.append(SourceState(request, 0, 0, offset, ended=False, error=None))
        return GatherEnd(
            reason=reason,
            error=error,
            replies=self._replies,
            rows=self._rows,
            elapsed=time.monotonic() - self._started_at,
            sources=tuple(states),
        )

    # The threads of the sources.

    def _put(self, source: GatherSource, reply: Reply) -> bool:
        with self._lock:
            while self._takes and len(self._arrived) >= REPLIES_WAITING_MAX:
                self._room.wait(ROOM_SECONDS)
            if not self._takes:
                return False
            self._answering = True
            self._arrived.append((source, reply))
            self._notify()
            return True

    def _source_opened(self, source: GatherSource) -> None:
        with self._lock:
            if not self._answering:
                self._answering = True
                if self._error is not None:  # This may make the error the gather's end.
                    self._take_no_more()
                    self._notify()

    def _source_ended(self, source: GatherSource, error: WingsError | None) -> None:
        with self._lock:
            source.ended = True
            source.error = error
            self._open -= 1
            if error is None or error.facts.get("connection") != Connection.UNREACHABLE:
                self._answering = True
            self._error = self._error or error
            if self._error is not None:
                self._take_no_more()
            self._notify()

    def _take_no_more(self) -> None:
        """After an error that ends the gather, deliver only what arrived before it."""
        if self._reason() is not None:
            self._takes = False
            self._room.notify_all()


@checked
class Gather:
    """The replies to one request to many, as they arrive; made by `Client.gather`.

    Threads send the requests from the call on, whether or not it is iterated.

    Iterate it, with `for` or `async for`, or have the replies delivered to a function: one of
    these, once. Leaving the loop, `cancel`, and garbage collection of the gather end its streams on
    the servers.
    """

    def __init__(self, engine: _Engine) -> None:
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
        from wings_client._async._pool import Wakeup  # Imports asyncio, which few gathers need.

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
    engine = _Engine(transports, wanted, rules)
    if endpoints:
        transport.add(engine)
    return Gather(engine)


async def _next_async(engine: _Engine, wakeup: "Wakeup") -> Reply | None:
    wait = engine.begin_wait()
    while True:
        wakeup.clear()
        step = engine.next_step(wait)
        if step is not None:
            return step if isinstance(step, Reply) else None
        engine.account(wait, await wakeup.wait(wait.left))


_ENDED = _Step(None, None, None)
