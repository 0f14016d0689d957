"""The engine of a gather: replies in, decisions when to end, one end out.

The iterator, the async iterator and the callback all ask `next_step` for a reply, the end, or how
long to wait; they differ in how they wait. Only time spent waiting counts against the time-outs.

One lock guards all of it, and is held while nothing blocks.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wings_client._errors import Connection
from wings_client._transport import Transport
from wings_client.gather._end import GatherEnd, GatherReason, SourceState
from wings_client.gather._request import Reply, Request
from wings_client.gather._rules import EMPTY, Rules
from wings_client.gather._sources import Source, Sources
from wings_core.errors import Unavailable, WingsError
from wings_core.times import Deadline

REPLIES_WAITING_MAX = 256
"""Replies that arrived and were not yet taken; sources wait beyond it."""

GRACE_SECONDS = 1.0
"""How much longer than the total a server may wait, so that it is the total that ends a gather."""


@dataclass(slots=True)
class Wait:
    """One wait for a reply."""

    left: float
    """Seconds."""
    reason: GatherReason
    """What the gather ends with when they are over."""


class Step(NamedTuple):
    """What a look found."""

    reply: Reply | None
    """To hand on."""
    reason: GatherReason | None
    """What the gather ends with after it."""


class Engine:
    """See the module.

    Args:
        transports: By endpoint; None is the client's own, all others are closed at the end.
        requests: What to send.
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
        self._started_at = time.monotonic()
        self._waited = 0.0
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._listener: Callable[[], None] | None = None
        self._arrived: deque[tuple[Source, Reply]] = deque()
        self._replies = 0
        self._error: WingsError | None = None
        """Of the first source that failed."""
        self._open = len(requests)
        """Sources that have not ended."""
        self._answering = False
        """Whether any server has answered."""
        self._end: GatherEnd | None = None
        whole = Deadline.after(rules.timeout + GRACE_SECONDS)
        self._all = [
            Source(
                request,
                whole if request.timeout is None else Deadline.after(request.timeout),
                request.offset if isinstance(request.offset, int) else None,
            )
            for request in requests
        ]
        self._sources = Sources(
            transports,
            self._all,
            rules.timeout,
            put=self._put,
            end=self._source_ended,
            opened=self._source_opened,
            finished=self._close_transports,
        )

    @property
    def end(self) -> GatherEnd | None:
        """How it ended, once it has."""
        with self._lock:
            return self._end

    def start(self) -> None:
        """Send the requests."""
        self._sources.start()

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Call this, from any thread, when `next_step` may have something else to say."""
        with self._lock:
            self._listener = listener

    def begin_wait(self) -> Wait:
        """Begin to wait for the next reply."""
        with self._lock:
            return self._begun_wait()

    def next_step(self, wait: Wait) -> Reply | GatherEnd | None:
        """Return a reply, the end, or None: wait on, up to `wait.left` seconds."""
        with self._lock:
            step = self._look(wait)
        return step if step is None else self._taken(step)

    def next(self) -> Reply | None:
        """Return the next reply; blocks until it is there. None at the end."""
        with self._lock:
            wait = self._begun_wait()
            while (step := self._look(wait)) is None:
                began = time.monotonic()
                self._news.wait(wait.left)
                self._account(wait, time.monotonic() - began)
        taken = self._taken(step)
        return taken if isinstance(taken, Reply) else None

    def account(self, wait: Wait, seconds: float) -> None:
        """Take the seconds that were waited off what is left."""
        with self._lock:
            self._account(wait, seconds)

    def finish(self, reason: GatherReason, error: BaseException | None = None) -> GatherEnd:
        """End the gather, unless it has ended, and return its end; cancels all streams."""
        with self._lock:
            if self._end is not None:
                return self._end
            end = self._end = self._made_end(reason, error or self._error)
            self._arrived.clear()
            self._room.notify_all()
            self._tell()
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

    def _look(self, wait: Wait) -> Step | None:
        """Return what there is to hand on, and what the gather ends with after it, if anything."""
        if self._end is not None:
            return Step(None, None)
        if self._arrived:
            source, reply = self._arrived.popleft()
            self._room.notify()
            return self._judged(source, reply)
        reason = self._reason()
        if reason is None and wait.left <= 0:
            reason = wait.reason
        return None if reason is None else Step(None, reason)

    def _taken(self, step: Step) -> Reply | GatherEnd | None:
        """Return the reply of a step, or the end."""
        if step.reason is not None:
            self.finish(step.reason)
        return self.end if step.reply is None else step.reply

    def _judged(self, source: Source, reply: Reply) -> Step:
        sentinel = self._rules.sentinel
        if sentinel is EMPTY and reply.batch.num_rows == 0:
            self._note_handed(source, reply)
            return Step(None, GatherReason.SENTINEL)
        self._replies += 1
        source.replies += 1
        source.rows += reply.batch.num_rows
        self._note_handed(source, reply)
        if self._replies == self._rules.max_messages:
            return Step(reply, GatherReason.MAX_MESSAGES)
        return Step(reply, None)

    def _note_handed(self, source: Source, reply: Reply) -> None:
        if reply.end_offset is not None:
            source.next_offset = reply.end_offset + 1

    def _reason(self) -> GatherReason | None:
        """Return what the sources let the gather end with, once all replies are handed on."""
        ended = self._open == 0
        if self._error is not None and not self._answering and ended:
            return GatherReason.NO_RESPONDERS
        if self._error is not None and self._rules.ends_on_error:
            if isinstance(self._error, Unavailable) and "connection" in self._error.facts:
                unreachable = self._error.connection == Connection.UNREACHABLE
                # Who else is there is not known before somebody answers, or nobody does.
                if self._answering or not unreachable:
                    return GatherReason.DISCONNECTED
                return None
            return GatherReason.SERVER_ERROR
        return GatherReason.COMPLETE if ended else None

    def _tell(self) -> None:
        self._news.notify_all()
        if self._listener is not None:
            self._listener()

    def _made_end(self, reason: GatherReason, error: BaseException | None) -> GatherEnd:
        waiting = {id(source) for source, _ in self._arrived}
        for source in self._all:
            if id(source) not in waiting and source.read_offset is not None:
                source.next_offset = source.read_offset
        return GatherEnd(
            reason=reason,
            error=error,
            replies=self._replies,
            rows=sum(source.rows for source in self._all),
            elapsed=time.monotonic() - self._started_at,
            sources=tuple(
                SourceState(
                    source.request,
                    source.replies,
                    source.rows,
                    source.next_offset,
                    source.ended,
                    source.error,
                )
                for source in self._all
            ),
        )

    # The threads of the sources.

    def _put(self, source: Source, reply: Reply) -> bool:
        with self._lock:
            while len(self._arrived) >= REPLIES_WAITING_MAX and self._end is None:
                self._room.wait()
            if self._end is not None:
                return False
            self._answering = True
            self._arrived.append((source, reply))
            self._tell()
            return True

    def _source_opened(self, source: Source) -> None:
        with self._lock:
            if not self._answering:
                self._answering = True
                self._tell()

    def _source_ended(self, source: Source, error: WingsError | None) -> None:
        with self._lock:
            source.ended = True
            source.error = error
            self._open -= 1
            if error is None or error.facts.get("connection") != Connection.UNREACHABLE:
                self._answering = True
            self._error = self._error or error
            self._tell()

    def _close_transports(self) -> None:
        for endpoint, transport in self._transports.items():
            if endpoint is not None:
                transport.close()
