"""The sources of a gather: their streams, read by a bounded number of threads.

A thread reads one stream to its end and takes the next. It begins with one thread, so that the
first reply comes as soon as of a single read. Whoever paces them soon adds some, as many as keep a
few cores busy; more only make replies that are there already slower. But streams that wait for
messages must not keep others from being sent: where nothing moves any more there are twice as many
threads, again and again, so long polls soon all wait at once.

Where there are more sources than threads, a server waits for a source no longer than a slice at a
time, so that each gets its turn.

Two hand-overs between threads cost a third of a small read. So where the connection's last first
reply came promptly, the first stream is left to the caller's own thread for a moment: it asks the
server not to wait, and gives the stream up soon, so that nothing keeps it from others' replies and
from its time-outs. A thread goes on where it stopped.

One lock guards what they share, and is held while nothing blocks. A signal handler or a finalizer
may call `cancel` on a thread that holds it, between any two calls of what it guards.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from wings_client._errors import client_closed, is_passing, is_timeout, typed_error
from wings_client._threads import start_thread
from wings_client._transport import Transport
from wings_client.gather._request import Reply, Request
from wings_client.gather._source import PROMPT_SECONDS, Source, SourceStream
from wings_client.gather._tickets import Tickets
from wings_core.errors import WingsError
from wings_core.times import Deadline

THREADS_MAX = 64
"""Streams read at once, each by a thread."""

PACE_SECONDS = 0.002
"""Between two looks at whether there are too few threads, at first."""

PACE_SECONDS_MAX = 0.008
"""Each look that finds enough of them makes the pause before the next twice as long, up to this:
a look takes time from the threads that read."""

BUSY_READS = 4
"""How many threads read streams that are younger than the next, while there are sources to send."""

BUSY_SECONDS = 0.03
"""A stream that has not ended after so long is taken to wait for messages."""

SLICE_SECONDS = 0.1
"""How long a source keeps a thread without a reply, where there are more sources than threads."""

GRACE_SECONDS = 1.0
"""How much longer than the total a server may wait, so that it is the total that ends a gather."""

BACKSTOP_SECONDS = 300.0
"""A stream's gRPC deadline is so much later than the end of the gather: it would count the time
that the caller spends with a reply."""

CALLER_SECONDS = 0.02
"""How long the caller's own thread reads the first stream, at most."""


class Sources:
    """Reads all sources.

    Args:
        transports: By endpoint; None is the client's own.
        requests: What to read.
        tickets: Has checked the requests.
        seconds: How long the gather may last.
        left: Tells how many seconds of that are left: the caller's do not count.
        put: Takes a reply; blocks while there is no room, unless it is told not to; False where the
            gather has ended.
        end: Takes a source that ended, with what it failed with.
        opened: Takes a source whose server answered.
        finished: Called once no thread reads any more.
    """

    def __init__(
        self,
        transports: Mapping[str | None, Transport],
        requests: Sequence[Request],
        tickets: Tickets,
        seconds: float,
        *,
        left: Callable[[], float],
        put: Callable[[Source, Reply, bool], bool],
        end: Callable[[Source, WingsError | None], None],
        opened: Callable[[Source], None],
        finished: Callable[[], None],
    ) -> None:
        self._transports = transports
        self._requests = requests
        self._tickets = tickets
        self._seconds = seconds
        self._left = left
        self._put = put
        self._end = end
        self._opened = opened
        self._finished = finished
        self._deadline = Deadline.after(seconds + GRACE_SECONDS)
        self._sliced = len(requests) > THREADS_MAX
        self._lock = threading.RLock()
        self._ended = threading.Condition(self._lock)
        """Nothing is left to be sent."""
        self._sent: list[Source] = []
        """In the order of the requests: a source is made when its request is sent."""
        self._unsent = len(requests)
        self._again: deque[Source] = deque()
        """Were sent, and are to be sent again."""
        self._streams: set[SourceStream] = set()
        """Streams that are open, or soon will be."""
        self._is_left_to_caller = False
        """Whether the first stream waits for the caller to read it."""
        self._is_with_caller = False
        """Whether the caller reads it."""
        self._caller_until = 0.0
        """When others are sent, though it does."""
        self._held: tuple[Source, SourceStream] | None = None
        """What the caller has read a part of; a thread goes on with it."""
        self._is_threaded = False
        """Whether there are threads that read."""
        self._begun: dict[int, float] = {}
        """When each thread began to read its present stream, by the thread's number."""
        self._moves = 0
        """Streams begun and first replies; only whether there are new ones matters."""
        self._moves_seen = 0
        self._cancelled = False
        self._started = 0
        """Threads, but for the one that paces."""
        self._running = 0
        """Threads that have not ended, with the one that paces."""

    @property
    def sent(self) -> list[Source]:
        """The sources whose requests were sent, in the order of the requests."""
        return list(self._sent)  # In one step, without the lock: the engine's is held.

    def start(self) -> None:
        """Send the first request, and the others as soon as may be.

        Raises:
            RuntimeError: No thread at all can be started.
        """
        self._is_left_to_caller = self._suits_caller(self._requests[0])
        paced = self._is_left_to_caller or self._unsent > 1
        self._running = paced  # Before there is another thread.
        if not self._is_left_to_caller:
            self.read_by_threads()
        if paced:
            self._start_thread(self._pace, "wings-gather-pace")

    def read_by_threads(self) -> None:
        """Have threads read, unless they do; the caller, who has nothing to do, waits for them.

        Raises:
            RuntimeError: No thread at all can be started.
        """
        if self._is_threaded:
            return
        with self._lock:
            if self._is_threaded:
                return
            self._is_threaded = True
            self._is_left_to_caller = False
        self._start_readers(1)

    def read_by_caller(self, seconds: float) -> bool:
        """Read the first stream until its first reply is put, where it is left to the caller.

        Args:
            seconds: Blocks for no longer than these, and than `CALLER_SECONDS`.

        Returns:
            Whether it was.
        """
        if not self._is_left_to_caller:
            return False
        with self._lock:
            if not self._is_left_to_caller or not self._unsent:
                return False
            source = self._next_unsent()
            self._is_left_to_caller = False
            if source is None:
                return False
            self._is_with_caller = True
            self._caller_until = time.monotonic() + PROMPT_SECONDS
        stream: SourceStream | None = None
        reply: Reply | None = None
        again = False
        try:
            stream = self._new_stream(source, is_short=True)
            stream.open(self._ticket(source, 0.0), min(seconds, CALLER_SECONDS))
            self._opened(source)
            reply = stream.next()
            if reply is None:
                again = self._goes_on(source)
            elif not self._put(source, reply, False):
                reply = None  # It is not handed on, so nothing after it may be.
        except Exception as error:  # noqa: BLE001 - the gather's end tells of it.
            again = self._failed(source, stream, error)
        finally:
            with self._lock:
                self._is_with_caller = False
                if not self._cancelled:
                    if reply is not None and stream is not None:
                        self._held = source, stream
                        stream = None
                    elif again:
                        self._again.append(source)
            self._close(stream)
        return True

    def cancel(self) -> None:
        """End all streams, here and on the servers."""
        with self._lock:
            self._cancelled = True
            self._unsent = 0
            self._again.clear()
            held, self._held = self._held, None
            self._ended.notify()
            streams = list(self._streams)
        for stream in streams:
            stream.reading.cancel()
        if held is not None:
            self._close(held[1])

    def _suits_caller(self, request: Request) -> bool:
        """Tell whether a stream can be given up soon, and gone on with exactly where it stopped."""
        if request.ticket is not None or request.filter is not None:
            return False
        offset = request.offset
        return self._transports[request.endpoint].is_prompt and (
            type(offset) is int or offset == "earliest"
        )

    def _start_readers(self, count: int) -> bool:
        """Start threads that read; return False where there can be no more."""
        for _ in range(count):
            with self._lock:
                number = self._started
                self._started += 1
                self._running += 1
                self._begun[number] = time.monotonic()
            if not self._start_thread(partial(self._run, number), f"wings-gather-{number}"):
                with self._lock:
                    self._begun.pop(number)
                return False
        return True

    def _start_thread(self, run: Callable[[], None], name: str) -> bool:
        """Start a thread that counts as running; return False where there can be no more."""
        try:
            start_thread(run, name)
        except RuntimeError:
            with self._lock:
                self._running -= 1
                self._sliced = True  # Fewer threads than sources; each shall get its turn.
                alone = self._running == 0
            if alone:
                self._finished()
                raise
            return False
        return True

    def _pace(self) -> None:
        """Start threads while there are sources to send and too few threads to send them soon."""
        pause = PACE_SECONDS
        while (count := self._threads_wanted(pause)) is not None:
            if not self._start_readers(count):
                break
            enough = self._is_threaded and count == 0 and not self._is_with_caller
            pause = min(2 * pause, PACE_SECONDS_MAX) if enough else PACE_SECONDS
        # There is none to be started any more, and this thread has nothing else to do.
        self._run(THREADS_MAX)

    def _threads_wanted(self, pause: float) -> int | None:
        """Wait a while; return how many more threads there should be, None where no more ever."""
        with self._lock:
            self._ended.wait_for(lambda: not (self._waiting or self._is_with_caller), pause)
            if self._is_with_caller and time.monotonic() < self._caller_until:
                return 0  # Beside others' replies, that which it is about to get would come later.
            self._is_left_to_caller = False
            self._is_threaded = True
            room = min(THREADS_MAX - 1 - self._started, self._waiting)
            if room == 0:
                return 0 if self._is_with_caller else None
            busy_since = time.monotonic() - BUSY_SECONDS
            busy = sum(begun > busy_since for begun in self._begun.values())
            moved = self._moves != self._moves_seen
            self._moves_seen = self._moves
            return min(room, max(BUSY_READS - busy, 0 if moved else self._started))

    @property
    def _waiting(self) -> int:
        """How many sources are to be sent."""
        return self._unsent + len(self._again) + (self._held is not None)

    def _run(self, number: int) -> None:
        try:
            while (found := self._next(number)) is not None:
                source, stream = found
                if self._read(source, stream):
                    with self._lock:
                        if not self._cancelled:
                            self._again.append(source)
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._running -= 1
            last = self._running == 0
        if last:
            self._finished()

    def _next(self, number: int) -> tuple[Source, SourceStream | None] | None:
        """Return what to read next, with its stream if that is open; None where there is none."""
        with self._lock:
            self._begun[number] = time.monotonic()
            if self._held is not None:
                held, self._held = self._held, None
                self._moves += 1
                return held
            source = self._next_unsent()
            if source is None and self._again:
                source = self._again.popleft()
            if source is not None:
                self._moves += 1
                return source, None
            self._begun.pop(number, None)
            self._ended.notify()
            return None

    def _next_unsent(self) -> Source | None:
        """Return the source of the next request; None where all are sent, or no more shall be."""
        index = len(self._sent)
        if index == len(self._requests):
            return None
        source = self._made(index)
        if not self._unsent:
            return None
        self._unsent -= 1
        self._sent.append(source)
        return source

    def _made(self, index: int) -> Source:
        request = self._requests[index]
        return Source(
            index,
            request,
            self._deadline if request.timeout is None else Deadline.after(request.timeout),
            request.offset if isinstance(request.offset, int) else None,
        )

    def _new_stream(self, source: Source, *, is_short: bool = False) -> SourceStream:
        stream = SourceStream(source, self._transports[source.request.endpoint], is_short=is_short)
        with self._lock:
            self._streams.add(stream)
            if self._cancelled:
                stream.reading.cancel()
        return stream

    def _close(self, stream: SourceStream | None) -> None:
        if stream is not None:
            with self._lock:
                self._streams.discard(stream)
            stream.reading.done()

    def _ticket(self, source: Source, seconds: float) -> bytes:
        return self._tickets.make(source.request, seconds, source.read_offset, source.arrived_rows)

    def _read(self, source: Source, stream: SourceStream | None) -> bool:
        """Read a source's stream to its end; return whether it is to be read again later."""
        try:
            if stream is None:
                stream = self._new_stream(source)
                ticket = self._ticket(source, self._wait(source))
                stream.open(ticket, self._seconds + BACKSTOP_SECONDS)
                self._opened(source)
            while (reply := stream.next()) is not None:
                if source.arrived == 1:
                    self._moves += 1
                if not self._put(source, reply, True):
                    return False
                del reply  # Else it would be held for as long as the next is waited for.
        except BaseException as error:  # noqa: BLE001 - it would end the thread in silence.
            return self._failed(source, stream, error)
        finally:
            self._close(stream)
        return self._goes_on(source)

    def _goes_on(self, source: Source) -> bool:
        """End a source whose stream has ended, unless it is to be read again."""
        if source.request.waits and not self._is_over(source):
            return True
        self._end(source, None)
        return False

    def _failed(self, source: Source, stream: SourceStream | None, error: BaseException) -> bool:
        """End a source whose stream failed; return True if it is to be read again instead."""
        if self._cancelled:  # It is the gather that ended it.
            return False
        if source.is_full:  # Whatever its stream has broken by, it has all that it may have.
            self._end(source, None)
            return False
        if stream is not None and stream.is_short and is_timeout(error):
            return True
        endpoint = self._transports[source.request.endpoint].endpoint
        if stream is not None and stream.reading.is_cancelled:
            self._end(source, client_closed(endpoint))
        elif isinstance(error, WingsError):
            if self._has_another_node(source, error):
                return True
            self._end(source, error)
        else:
            as_error = error if isinstance(error, Exception) else RuntimeError(repr(error))
            self._end(source, typed_error(as_error, endpoint))
        return False

    def _has_another_node(self, source: Source, error: WingsError) -> bool:
        """Tell whether a source that failed is to be read on from another node."""
        source.failures += 1
        nodes = len(self._transports[source.request.endpoint].addresses.all)
        return source.failures < nodes and is_passing(error, repeatable=True)

    def _wait(self, source: Source) -> float:
        """Return how many seconds the server may wait."""
        if source.has_enough:
            return 0.0
        remaining = source.deadline.remaining()
        assert remaining is not None
        return min(SLICE_SECONDS, remaining) if self._sliced else remaining

    def _is_over(self, source: Source) -> bool:
        """Tell whether a source was read as long as it may, or has answered its fetch."""
        if source.stream_end != "deadline" or source.has_enough:
            return True
        if not source.deadline.passed:
            return False
        left = self._left() if source.request.timeout is None else 0.0
        if left > 0:  # The time that passed was the caller's.
            source.deadline = Deadline.after(left + GRACE_SECONDS)
        return left <= 0
