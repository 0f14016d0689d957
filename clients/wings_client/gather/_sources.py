"""The sources of a gather: their streams, read by a bounded number of threads.

A thread reads one stream to its end and takes the next. It begins with one thread, so that the
first reply arrives as soon as that of a single read. The pacing thread soon adds some, enough to
keep a few cores busy; more would only delay replies that are available already. But streams that
wait for messages must not keep others from being sent: while there is no progress the number of
threads is doubled, so that long polls soon all wait at once.

Where there are more sources than threads, a server waits for a source for one time slice, after
which the next source is read.

Two hand-overs between threads cost a third of a small read. So if the first reply of the
connection's last gather was prompt, the first stream is left to the caller's own thread for a
moment: it asks the server not to wait, and cancels the stream soon, so that it is free for other
replies and for its time-outs. A thread resumes the stream.

One lock guards what they share, and is never held across a blocking call. A signal handler or a
finalizer may call `cancel` on a thread that holds it, at any call in a guarded section.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from wings_client._errors import call_errors, client_closed, is_passing, is_timeout, typed_error
from wings_client._stream import StreamCancelled
from wings_client._threads import start_thread
from wings_client._transport import Transport
from wings_client.gather._request import Reply, Request
from wings_client.gather._source import PROMPT_SECONDS, Source, SourceStream
from wings_client.gather._tickets import Tickets
from wings_core.errors import OffsetOutOfRange, WingsError
from wings_core.times import Deadline

THREADS_MAX = 64
"""Streams read at once, each by a thread."""

PACE_SECONDS = 0.002
"""Pause between two checks for too few threads, at first."""

PACE_SECONDS_MAX = 0.008
"""Each check that finds enough of them doubles the pause before the next, up to this: a check takes
time from the threads that read."""

BUSY_READS = 4
"""Threads that read streams younger than `BUSY_SECONDS`, while there are sources to send."""

BUSY_SECONDS = 0.03
"""A stream older than this is assumed to wait for messages."""

SLICE_SECONDS = 0.1
"""The time slice of a source without a reply, where there are more sources than threads."""

GRACE_SECONDS = 1.0
"""How much longer than the gather a server may wait, so that the gather's own time-out ends it."""

BACKSTOP_SECONDS = 300.0
"""How much later than the gather's time-out a stream's gRPC deadline is: it includes the time that
the caller spends with a reply."""

CALLER_SECONDS = 0.02
"""How long the caller's own thread reads the first stream, at most."""


class Sources:
    """Reads all sources.

    Args:
        transports: By endpoint; None is the client's own.
        requests: The requests to send.
        tickets: Has checked the requests.
        seconds: How long the gather may last.
        left: Returns how many seconds of that are left; those of the caller do not count.
        put: Accepts a reply; blocks while there is no room if its last argument is True; returns
            False if the gather has ended.
        end: Called with a source that ended, and its error or None.
        opened: Called with a source whose server responded.
        finished: Called once, when the last thread ends.
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
        """Notified when nothing is left to be sent."""
        self._sent: list[Source] = []
        """In the order of the requests: a source is made when its request is sent."""
        self._unsent = len(requests)
        self._again: deque[Source] = deque()
        """Sources to be sent again."""
        self._streams: set[SourceStream] = set()
        """Streams that are open, or soon will be."""
        self._is_left_to_caller = False
        """Whether the first stream waits for the caller to read it."""
        self._is_with_caller = False
        """Whether the caller reads it."""
        self._caller_until = 0.0
        """When others are sent although it does."""
        self._held: tuple[Source, SourceStream] | None = None
        """The stream that the caller has begun to read; a thread continues it."""
        self._is_threaded = False
        """Whether there are threads that read."""
        self._begun: dict[int, float] = {}
        """When each thread began to read its present stream, by the thread's number."""
        self._moves = 0
        """Count of streams begun and first replies; a change of it is progress."""
        self._moves_seen = 0
        self._cancelled = False
        self._started = 0
        """Threads started, but for the pacing one."""
        self._running = 0
        """Threads that have not ended, including the pacing one."""

    @property
    def sent(self) -> list[Source]:
        """The sources whose requests were sent, in the order of the requests."""
        return list(self._sent)  # Atomic without the lock: the engine's is held.

    def start(self) -> None:
        """Send the first request, and start to send the others.

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
        """Start the threads, unless they are; called when the caller has to wait for them.

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
        """Read the first stream until its first reply is put, if it is left to the caller.

        Args:
            seconds: Blocks at most this long, and at most `CALLER_SECONDS`.

        Returns:
            Whether it was read.
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
                reply = None  # Not delivered, so no later reply may be.
        except (WingsError, StreamCancelled, *call_errors()) as error:  # The gather's end has it.
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
        """Return whether a stream can be cancelled soon, and resumed exactly where it stopped."""
        if request.ticket is not None or request.filter is not None:
            return False
        if request.partitions is not None:
            return False
        offset = request.offset
        return self._transports[request.endpoint].is_prompt and (
            type(offset) is int or offset == "earliest"
        )

    def _start_readers(self, count: int) -> bool:
        """Start reading threads; returns False if no more can be started."""
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
        """Start a thread that counts as running; returns False if it cannot be started."""
        try:
            start_thread(run, name)
        except RuntimeError:
            with self._lock:
                self._running -= 1
                self._sliced = True  # Fewer threads than sources: read them by time slices.
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
        # No more threads are needed, so this one reads too.
        self._run(THREADS_MAX)

    def _threads_wanted(self, pause: float) -> int | None:
        """Wait for `pause`; returns how many threads to start, None to stop pacing."""
        with self._lock:
            self._ended.wait_for(lambda: not (self._waiting or self._is_with_caller), pause)
            if self._is_with_caller and time.monotonic() < self._caller_until:
                return 0  # Other streams would delay the reply that it is about to get.
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
        """How many sources wait to be sent."""
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
        """Return the next source to read, with its stream if open; None if there is none."""
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
        """Return the source of the next request; None if all are sent, or after `cancel`."""
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
        one = source.request.partitions is None
        reached = source.read_offset if one else source.read_offsets
        return self._tickets.make(source.request, seconds, reached, source.arrived_rows)

    def _read(self, source: Source, stream: SourceStream | None) -> bool:
        """Read a source's stream to its end; returns whether to read it again later."""
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
                del reply  # Else its memory would be kept while the next is waited for.
        except BaseException as error:  # noqa: BLE001 - it would end the thread silently.
            return self._failed(source, stream, error)
        finally:
            self._close(stream)
        return self._goes_on(source)

    def _goes_on(self, source: Source) -> bool:
        """End a source whose stream has ended, unless it is to be read again; returns that."""
        if source.request.waits and not self._is_over(source):
            return True
        self._end(source, None)
        return False

    def _failed(self, source: Source, stream: SourceStream | None, error: BaseException) -> bool:
        """End a source whose stream failed; returns True if it is to be read again instead."""
        if self._cancelled:  # The gather ended it.
            return False
        if source.is_full:  # It has all messages it asked for, so the failure does not matter.
            self._end(source, None)
            return False
        if stream is not None and stream.is_short and is_timeout(error):
            return True
        endpoint = self._transports[source.request.endpoint].endpoint
        if stream is not None and stream.reading.is_cancelled:
            self._end(source, client_closed(endpoint))
        elif isinstance(error, WingsError):
            if _skips(source, error) or self._has_another_node(source, error):
                return True
            self._end(source, error)
        else:
            as_error = error if isinstance(error, Exception) else RuntimeError(repr(error))
            self._end(source, typed_error(as_error, endpoint))
        return False

    def _has_another_node(self, source: Source, error: WingsError) -> bool:
        """Return whether a source that failed is to be resumed at another node."""
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
        """Return whether a source's time is over, or its fetch is complete."""
        if source.stream_end != "deadline" or source.has_enough:
            return True
        if not source.deadline.passed:
            return False
        left = self._left() if source.request.timeout is None else 0.0
        if left > 0:  # The caller spent the time that passed.
            source.deadline = Deadline.after(left + GRACE_SECONDS)
        return left <= 0


def _skips(source: Source, error: WingsError) -> bool:
    """Move a source that is read from `"earliest"` behind what retention took; tell if it moved."""
    request = source.request
    if not isinstance(error, OffsetOutOfRange) or request.offset != "earliest":
        return False
    start = error.log_start_offset
    if request.partitions is None:
        if source.read_offset is None or start <= source.read_offset:
            return False
        source.read_offset = start
        return True
    partition = error.facts.get("partition")
    reached = source.read_offsets.get(partition)
    if reached is None or start <= reached:
        return False
    source.read_offsets[partition] = start
    return True
