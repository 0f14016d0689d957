"""The sources of a gather: their streams, read by a bounded number of threads.

A thread reads one stream to its end and takes the next. It begins with one thread, so that the
first reply comes as soon as of a single read. Whoever paces them soon adds some, as many as keep a
few cores busy; more only make replies that are there already slower. But streams that wait for
messages must not keep others from being sent: where nothing moves any more there are twice as many
threads, again and again, so long polls soon all wait at once.

Where there are more sources than threads, a server waits for a source no longer than a slice at a
time, so that each gets its turn.
"""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow.flight as flight

from wings_client._errors import CALL_ERRORS, client_closed, typed_error
from wings_client._stream import Reading, StreamCancelled
from wings_client._threads import start_thread
from wings_client._transport import Transport
from wings_client.gather._request import Reply, Request
from wings_client.gather._tickets import Tickets
from wings_core.contracts.messages import to_bytes
from wings_core.errors import WingsError
from wings_core.times import Deadline

THREADS_MAX = 64
"""Streams read at once, each by a thread."""

PACE_SECONDS = 0.002
"""Between two looks at whether there are too few threads."""

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


@dataclass(slots=True)
class Source:
    """One source; the gather's lock guards it."""

    index: int
    """Among the requests, from 0."""
    request: Request
    deadline: Deadline
    """Of what the server may wait."""
    next_offset: int | None
    """After what was handed on."""
    arrived: int = 0
    """Replies."""
    replies: int = 0
    """Handed on."""
    rows: int = 0
    """Handed on."""
    stream_end: object = None
    """What the server said that its last stream ended with."""
    read_offset: int | None = None
    """After what arrived."""
    ended: bool = False
    error: WingsError | None = None


class Sources:
    """Reads all sources.

    Args:
        transports: By endpoint; None is the client's own.
        requests: What to read.
        tickets: Has checked the requests.
        seconds: How long the gather may last.
        left: Tells how many seconds of that are left: the caller's do not count.
        put: Takes a reply; blocks while there is no room; False where the gather has ended.
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
        put: Callable[[Source, Reply], bool],
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
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        """Nothing is left to be sent."""
        self._sent: list[Source] = []
        """In the order of the requests: a source is made when its request is sent."""
        self._unsent = len(requests)
        self._again: deque[Source] = deque()
        """Were sent, and are to be sent again."""
        self._readings: set[Reading] = set()
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
        with self._lock:
            return list(self._sent)

    def start(self) -> None:
        """Send the first request, and the others as soon as may be."""
        paced = self._unsent > 1
        self._running = paced  # Before there is another thread.
        self._start_readers(1)
        if paced:
            start_thread(self._pace, "wings-gather-pace")

    def cancel(self) -> None:
        """End all streams, here and on the servers."""
        with self._lock:
            self._cancelled = True
            self._unsent = 0
            self._again.clear()
            self._ended.notify()
            readings = list(self._readings)
        for reading in readings:
            reading.cancel()

    def _start_readers(self, count: int) -> None:
        for _ in range(count):
            with self._lock:
                number = self._started
                self._started += 1
                self._running += 1
                self._begun[number] = time.monotonic()
            start_thread(partial(self._run, number), f"wings-gather-{number}")

    def _pace(self) -> None:
        """Start threads while there are sources to send and too few threads to send them soon."""
        while (count := self._threads_wanted()) is not None:
            self._start_readers(count)
        # There is none to be started any more, and this one has nothing else to do.
        self._run(THREADS_MAX)

    def _threads_wanted(self) -> int | None:
        """Wait a while; return how many more threads there should be, None where no more ever."""
        with self._lock:
            self._ended.wait_for(lambda: not self._waiting, PACE_SECONDS)
            room = min(THREADS_MAX - 1 - self._started, self._waiting)
            if room == 0:
                return None
            busy_since = time.monotonic() - BUSY_SECONDS
            busy = sum(begun > busy_since for begun in self._begun.values())
            moved = self._moves != self._moves_seen
            self._moves_seen = self._moves
            return min(room, max(BUSY_READS - busy, 0 if moved else self._started))

    @property
    def _waiting(self) -> int:
        """How many sources are to be sent."""
        return self._unsent + len(self._again)

    def _run(self, number: int) -> None:
        try:
            while (source := self._next(number)) is not None:
                if self._read(source):
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

    def _next(self, number: int) -> Source | None:
        with self._lock:
            if not self._waiting:
                self._begun.pop(number, None)
                self._ended.notify()
                return None
            self._begun[number] = time.monotonic()
            self._moves += 1
            if not self._unsent:
                return self._again.popleft()
            self._unsent -= 1
            source = self._made(len(self._sent))
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

    def _read(self, source: Source) -> bool:
        """Read a source's stream to its end; return whether it is to be read again later."""
        request = source.request
        transport = self._transports[request.endpoint]
        reading: Reading | None = None
        try:
            ticket = self._tickets.make(request, self._wait(source), source.read_offset)
            reading = Reading(transport)
            with self._lock:
                self._readings.add(reading)
                if self._cancelled:
                    return False
            stream = reading.open(ticket, self._seconds + BACKSTOP_SECONDS)
            self._opened(source)
            if not self._read_replies(source, stream.reader, transport.endpoint):
                return False
        except StreamCancelled:
            self._fail(source, client_closed(transport.endpoint))
            return False
        except WingsError as error:
            by_client = reading is not None and reading.cancelled.is_set()
            self._fail(source, client_closed(transport.endpoint) if by_client else error)
            return False
        except BaseException as error:  # noqa: BLE001 - it would end the thread in silence.
            self._end(source, typed_error(_as_exception(error), transport.endpoint))
            return False
        finally:
            if reading is not None:
                with self._lock:
                    self._readings.discard(reading)
                reading.done()
        if request.waits and not self._is_over(source):
            return True
        self._end(source, None)
        return False

    def _fail(self, source: Source, error: WingsError) -> None:
        """Say what a source failed with, unless it is the gather that ended it."""
        if not self._cancelled:
            self._end(source, error)

    def _wait(self, source: Source) -> float:
        remaining = source.deadline.remaining()
        assert remaining is not None
        return min(SLICE_SECONDS, remaining) if self._sliced else remaining

    def _is_over(self, source: Source) -> bool:
        """Tell whether a source was read as long as it may, or has answered its fetch."""
        if source.stream_end != "deadline":
            return True
        if source.request.kind == "fetch" and source.arrived > 0:
            return True
        if not source.deadline.passed:
            return False
        left = self._left() if source.request.timeout is None else 0.0
        if left > 0:  # The time that passed was the caller's.
            source.deadline = Deadline.after(left + GRACE_SECONDS)
        return left <= 0

    def _read_replies(
        self, source: Source, reader: flight.FlightStreamReader, endpoint: str
    ) -> bool:
        """Hand over the replies of a stream; return False where the gather has ended."""
        while True:
            try:
                batch, metadata = reader.read_chunk()
            except StopIteration:
                return True
            except CALL_ERRORS as error:
                raise typed_error(error, endpoint) from error
            told = _told(metadata)
            if "end" in told:
                source.stream_end = told["end"]
                source.read_offset = told.get("next_offset", source.read_offset)
                continue
            if batch is None:  # pyright: ignore[reportUnnecessaryComparison] - metadata alone.
                continue
            start_offset, end_offset = told.get("start_offset"), told.get("end_offset")
            if end_offset is not None:
                source.read_offset = end_offset + 1
            if source.arrived == 0:
                self._moves += 1
            source.arrived += 1
            if not self._put(source, Reply(batch, source.request, start_offset, end_offset)):
                return False


def _told(metadata: Any) -> dict[str, Any]:
    """Return the JSON object that comes with a chunk; another server may send anything."""
    try:
        found = json.loads(to_bytes(metadata) or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(repr(error))
