"""The sources of a gather: their streams, read by a bounded number of threads.

A thread reads one stream to its end and takes the next. The first starts the others,
each once the streams of those before are open: all at once would delay the replies that are there
already. Where there are more sources than threads, a server waits for a
source for one time slice, after which the next source is read.

One lock guards what they share, and is never held across a blocking call. A signal handler or a
finalizer may call `cancel` on a thread that holds it, at any call in a guarded section.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from wings_client._errors import call_errors, client_closed, is_passing, lost, typed_error
from wings_client._stream import OpenStream, Reading
from wings_client._threads import start_thread
from wings_client._transport import Transport
from wings_client.arrow import RecordBatch
from wings_client.gather._request import FETCH_MESSAGES, ManyReply, Reply, Request
from wings_core.contracts.chunks import ManyEnd, PartitionRanges, parse_many_metadata, reached
from wings_core.contracts.messages import to_bytes
from wings_core.errors import OffsetOutOfRange, WingsError
from wings_core.partitions import JsonScalar
from wings_core.times import Deadline

THREADS_MAX = 64
"""Streams read at once, each by a thread."""

OPEN_SECONDS = 0.02
"""Longest wait for a thread to open its stream before another is started."""

SLICE_SECONDS = 0.1
"""The time slice of a source without a reply, where there are more sources than threads."""

GRACE_SECONDS = 1.0
"""How much longer than the gather a server may wait, so that the gather's own time-out ends it."""

BACKSTOP_SECONDS = 300.0
"""How much later than the gather's time-out a stream's gRPC deadline is: it includes the time that
the caller spends with a reply."""


@dataclass(slots=True)
class GatherSource:
    """One source; the gather's lock guards it."""

    index: int
    """Among the requests, from 0."""
    request: Request
    deadline: Deadline
    """Until when the server may wait."""
    next_offset: int | None
    """The offset after what was delivered."""
    arrived_rows: int = 0
    replies: int = 0
    """Delivered."""
    rows: int = 0
    """Delivered."""
    failures: int = 0
    """Nodes that failed to serve it."""
    stream_end: object = None
    """The reason in the last end chunk; None if there was none."""
    read_offset: int | None = None
    """The offset after what arrived, whether or not it is put yet."""
    idle_offset: int | None = None
    """The next offset by the last end chunk: all replies before it were put."""
    read_offsets: dict[JsonScalar, int] = field(default_factory=dict[JsonScalar, int])
    """Read offsets of many partitions, as `read_offset`."""
    next_offsets: dict[JsonScalar, int] = field(default_factory=dict[JsonScalar, int])
    """Next offsets of many partitions, as `next_offset`."""
    idle_offsets: dict[JsonScalar, int] = field(default_factory=dict[JsonScalar, int])
    """Idle offsets of many partitions, as `idle_offset`."""
    ended: bool = False
    error: WingsError | None = None

    @property
    def has_enough(self) -> bool:
        """Whether this is a fetch that has received `min_messages`."""
        least = self.request.min_messages or 1
        return self.request.kind == "fetch" and self.arrived_rows >= least

    @property
    def is_full(self) -> bool:
        """Whether this is a fetch that has received `max_messages`."""
        most = self.request.max_messages or FETCH_MESSAGES
        return self.request.kind == "fetch" and self.arrived_rows >= most


class SourceStream:
    """One stream of one source, read by one thread at a time.

    Args:
        source: The source.
        transport: To its server.
    """

    def __init__(self, source: GatherSource, transport: Transport) -> None:
        self.source = source
        self.reading = Reading(transport)
        self._transport = transport
        self._stream: OpenStream | None = None

    def open(self, ticket: bytes, seconds: float) -> None:
        """Open the stream; blocks until its schema is there.

        Args:
            ticket: To send.
            seconds: Until its gRPC deadline.

        Raises:
            StreamCancelled: It was cancelled.
            WingsError: The server's refusal, or `Unavailable`.
        """
        self.source.stream_end = None
        # Sources are spread over the nodes of a cluster; after a failure, the next node is read.
        node = self._transport.addresses.for_read(self.source.index + self.source.failures)
        self._stream = self.reading.open(ticket, seconds, node)

    def next(self) -> Reply | None:
        """Return the next reply, None after the last; blocks while the server waits.

        Raises:
            WingsError: The server's refusal, or `Unavailable`.
        """
        assert self._stream is not None
        source = self.source
        while True:
            try:
                batch, metadata = self._stream.reader.read_chunk()
            except StopIteration:
                if source.request.ticket is None and source.stream_end is None:
                    failure = lost("a stream ended before its end chunk", self._stream.endpoint)
                    raise self._stream.failed(failure) from None
                return None
            except call_errors() as error:
                failure = typed_error(error, self._stream.endpoint)
                raise self._stream.failed(failure) from error
            if source.request.partitions is not None:
                reply = self._of_many(batch, parse_many_metadata(metadata))
                if reply is None:
                    continue
                source.arrived_rows += batch.num_rows
                return reply
            said = _json_of(metadata)
            rows = 0 if batch is None else batch.num_rows  # pyright: ignore[reportUnnecessaryComparison] - metadata alone.
            # A server other than Wings may use these keys for anything.
            if "end" in said and rows == 0 and type(said.get("next_offset")) is int:
                source.stream_end = said["end"]
                source.read_offset = source.idle_offset = said["next_offset"]
                continue
            if batch is None:  # pyright: ignore[reportUnnecessaryComparison] - metadata alone.
                continue
            start_offset, end_offset = said.get("start_offset"), said.get("end_offset")
            if type(start_offset) is int and type(end_offset) is int:
                source.read_offset = end_offset + 1
            else:
                start_offset = end_offset = None
            source.arrived_rows += rows
            return Reply(batch, source.request, start_offset, end_offset)

    def _of_many(self, batch: RecordBatch, found: PartitionRanges | ManyEnd) -> ManyReply | None:
        """Return the reply of a chunk of many partitions, None where it is the end chunk."""
        source = self.source
        if isinstance(found, ManyEnd):
            source.stream_end = found.end
            ends = {each.partition: each.next_offset for each in found.partitions}
            source.read_offsets |= ends
            source.idle_offsets = ends
            return None
        source.read_offsets.update(reached(found))
        return ManyReply.of(batch, source.request, found)


class Sources:
    """Reads all sources.

    Args:
        transports: Transports by endpoint; None is the client's own.
        requests: The requests to send.
        seconds: How long the gather may last.
        left: Returns how many seconds of that are left; those of the caller do not count.
        put: Accepts a reply, blocks while there is no room; returns False if the gather has ended.
        end: Called with a source that ended, and its error or None.
        opened: Called with a source whose server responded.
        finished: Called once, when the last thread ends.
    """

    def __init__(
        self,
        transports: Mapping[str | None, Transport],
        requests: Sequence[Request],
        seconds: float,
        *,
        left: Callable[[], float],
        put: Callable[[GatherSource, Reply], bool],
        end: Callable[[GatherSource, WingsError | None], None],
        opened: Callable[[GatherSource], None],
        finished: Callable[[], None],
    ) -> None:
        self._transports = transports
        self._requests = requests
        self._seconds = seconds
        self._left = left
        self._put = put
        self._end = end
        self._opened = opened
        self._finished = finished
        self._deadline = Deadline.after(seconds + GRACE_SECONDS)
        self._sliced = len(requests) > THREADS_MAX
        self._lock = threading.RLock()
        self._moved = threading.Condition(self._lock)
        """Notified when a stream is open, or all were cancelled."""
        self._sent: list[GatherSource] = []
        """In the order of the requests: a source is made when its request is sent."""
        self._unsent = len(requests)
        self._again: deque[GatherSource] = deque()
        """Sources to be sent again."""
        self._streams: set[SourceStream] = set()
        """Streams that are open, or soon will be."""
        self._cancelled = False
        self._running = 0
        """Threads that have not ended."""
        self._reading = 0
        """Threads whose stream is open."""

    @property
    def sent(self) -> list[GatherSource]:
        """The sources whose requests were sent, in the order of the requests."""
        return list(self._sent)  # Atomic without the lock: the engine's is held.

    def start(self) -> None:
        """Start to send the requests.

        Raises:
            RuntimeError: No thread at all can be started.
        """
        self._running = 1  # Before there is another thread.
        try:
            start_thread(self._lead, "wings-gather")
        except RuntimeError:
            self._finished()
            raise

    def cancel(self) -> None:
        """End all streams, here and on the servers."""
        with self._lock:
            self._cancelled = True
            self._unsent = 0
            self._again.clear()
            self._moved.notify_all()
            streams = list(self._streams)
        for stream in streams:
            stream.reading.cancel()

    def _lead(self) -> None:
        """Start threads while more than one source waits to be sent, then read as they do."""
        while self._wants_another():
            try:
                start_thread(self._run, "wings-gather")
            except RuntimeError:
                with self._lock:
                    self._running -= 1
                    self._sliced = True
                break
        self._run()

    def _wants_another(self) -> bool:
        """Count one more thread once there may be another; returns False if none is needed."""

        def may_open() -> bool:
            return self._unsent <= 1 or self._running - 1 <= self._reading

        with self._lock:
            self._moved.wait_for(may_open, OPEN_SECONDS)
            wanted = self._unsent > 1 and self._running < THREADS_MAX
            self._running += wanted
            return wanted

    def _run(self) -> None:
        """Read one source after another, until none is left."""
        try:
            while (source := self._next()) is not None:
                if self._read(source):
                    with self._lock:
                        if not self._cancelled:
                            self._again.append(source)
        finally:
            with self._lock:
                self._running -= 1
                last = self._running == 0
            if last:
                self._finished()

    def _next(self) -> GatherSource | None:
        """Return the next source to read; None if there is none."""
        with self._lock:
            source = self._next_unsent()
            if source is None and self._again:
                source = self._again.popleft()
            return source

    def _next_unsent(self) -> GatherSource | None:
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

    def _made(self, index: int) -> GatherSource:
        request = self._requests[index]
        return GatherSource(
            index,
            request,
            self._deadline if request.timeout is None else Deadline.after(request.timeout),
            request.offset if isinstance(request.offset, int) else None,
        )

    def _read(self, source: GatherSource) -> bool:
        """Read a source's stream to its end; returns whether to read it again later."""
        stream = SourceStream(source, self._transports[source.request.endpoint])
        with self._lock:
            self._streams.add(stream)
            if self._cancelled:
                stream.reading.cancel()
        is_open = False
        try:
            stream.open(self._ticket(source), self._seconds + BACKSTOP_SECONDS)
            self._count(1)
            is_open = True
            self._opened(source)
            while (reply := stream.next()) is not None:
                if not self._put(source, reply):
                    return False
                del reply  # Else its memory would be kept while the next is waited for.
        except BaseException as error:  # noqa: BLE001 - it would end the thread silently.
            return self._failed(source, stream, error)
        finally:
            with self._lock:
                self._streams.discard(stream)
            if is_open:
                self._count(-1)
            stream.reading.done()
        if source.request.waits and not self._is_over(source):
            return True
        self._end(source, None)
        return False

    def _count(self, opened: int) -> None:
        """Count a stream that is open, or no longer is."""
        with self._lock:
            self._reading += opened
            self._moved.notify()

    def _ticket(self, source: GatherSource) -> bytes:
        """Return the ticket of a source's next stream."""
        request = source.request
        offset = source.read_offset if request.partitions is None else source.read_offsets or None
        return request.to_ticket(self._wait(source), offset, source.arrived_rows)

    def _failed(self, source: GatherSource, stream: SourceStream, error: BaseException) -> bool:
        """End a source whose stream failed; returns True if it is to be read again instead."""
        if self._cancelled:  # The gather ended it.
            return False
        if source.is_full:  # It has all messages it asked for, so the failure does not matter.
            self._end(source, None)
            return False
        endpoint = self._transports[source.request.endpoint].endpoint
        if stream.reading.is_cancelled:
            self._end(source, client_closed(endpoint))
        elif isinstance(error, WingsError):
            if _skips(source, error) or self._has_another_node(source, error):
                return True
            self._end(source, error)
        else:
            as_error = error if isinstance(error, Exception) else RuntimeError(repr(error))
            self._end(source, typed_error(as_error, endpoint))
        return False

    def _has_another_node(self, source: GatherSource, error: WingsError) -> bool:
        """Return whether a source that failed is to be resumed at another node."""
        source.failures += 1
        nodes = len(self._transports[source.request.endpoint].addresses.all)
        return source.failures < nodes and is_passing(error, repeatable=True)

    def _wait(self, source: GatherSource) -> float:
        """Return how many seconds the server may wait."""
        if source.has_enough:
            return 0.0
        remaining = source.deadline.remaining()
        assert remaining is not None
        return min(SLICE_SECONDS, remaining) if self._sliced else remaining

    def _is_over(self, source: GatherSource) -> bool:
        """Return whether a source's time is over, or its fetch is complete."""
        if source.stream_end != "deadline" or source.has_enough:
            return True
        if not source.deadline.passed:
            return False
        left = self._left() if source.request.timeout is None else 0.0
        if left > 0:  # The caller spent the time that passed.
            source.deadline = Deadline.after(left + GRACE_SECONDS)
        return left <= 0


def _skips(source: GatherSource, error: WingsError) -> bool:
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


def _json_of(metadata: Any) -> dict[str, Any]:
    """Return a chunk's metadata as a JSON object; empty if it is none."""
    try:
        found = from_json(to_bytes(metadata) or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
