"""Streams of chunks: DoGet, resumed at the next offset when the connection breaks.

A stream lives no longer than the client's timeout: its gRPC deadline is the only thing that frees
a thread from a silent server. A healthy stream that reaches it, because the server has much to send
or the reader is slow, is resumed by a new ticket at the next offset. So rows are delivered in
order, each once, across broken connections.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.flight as flight

from wings_client._errors import CALL_ERRORS, client_closed, is_passing, lost, typed_error
from wings_client._interrupt import interruptible
from wings_client._model import Chunk
from wings_client._retry import Backoff
from wings_client._transport import Transport
from wings_core.contracts.chunks import ChunkEnd, ChunkRange, parse_chunk_metadata
from wings_core.contracts.tickets import TIMEOUT_MS_MAX, FetchTicket, FollowTicket, ScanTicket
from wings_core.errors import Unavailable, WingsError
from wings_core.times import Deadline

TIMEOUT_MS_MIN = 2
"""The shortest wait that a ticket can ask for."""

GRACE_SECONDS = 5.0
"""How long after the end of its wait a stream that the server should have ended is cancelled."""


INTERRUPT_SECONDS = 1.0
"""Waits up to this long stay on the main thread, where Ctrl-C does not end them."""


class StreamCancelled(Exception):  # noqa: N818 - not an error: the caller asked for it.
    """The reader of a stream closed it."""


class Reading:
    """One DoGet at a time, which another thread can cancel.

    Without a lock, as a finalizer may cancel it on the thread that reads: either side first sets
    its own flag and then reads the other's.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.is_cancelled = False
        self._reader: flight.FlightStreamReader | None = None
        self._pausing: threading.Lock | None = None
        """Released to end the present pause, if there is one; most streams never need it."""
        transport.add_stream(self)

    def cancel(self) -> None:
        """End the stream, here and on the server, and open no other."""
        self.is_cancelled = True
        reader, pausing = self._reader, self._pausing
        if reader is not None:
            reader.cancel()
        if pausing is not None:
            with suppress(RuntimeError):  # It was released already.
                pausing.release()

    def open(
        self,
        ticket: bytes,
        seconds: float,
        endpoint: str | None = None,
        *,
        is_short: bool = False,
    ) -> "OpenStream":
        """Open a stream; blocks until its schema is there. Tries once.

        Args:
            ticket: As JSON.
            seconds: The gRPC deadline: after so many the stream fails.
            endpoint: The node to ask; None: the one that calls go to now.
            is_short: Whether a healthy node may take longer than that.

        Raises:
            StreamCancelled: `cancel` was called.
            WingsError: The server's refusal, or `Unavailable`.
        """
        if self.is_cancelled:
            raise StreamCancelled
        reader, called = self.transport.get(ticket, seconds, endpoint, is_short=is_short)
        self._reader = reader
        if self.is_cancelled:
            reader.cancel()
            raise StreamCancelled
        return OpenStream(reader, self, called)

    def done(self) -> None:
        """Close the stream; cancels it if it has not ended."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()

    def pause(self, seconds: float) -> None:
        """Wait `seconds`, or until the stream is cancelled."""
        pausing = threading.Lock()
        pausing.acquire()
        self._pausing = pausing
        if self.is_cancelled or pausing.acquire(timeout=seconds):
            raise StreamCancelled


@dataclass(slots=True)
class OpenStream:
    """A DoGet stream that was opened."""

    reader: flight.FlightStreamReader
    reading: Reading
    endpoint: str
    """The address of the node that serves it."""
    end: ChunkEnd | None = None
    """Its end chunk, once received."""

    def chunks(self, wait: float) -> Iterator[Chunk]:
        """Yield the chunks of rows, and set `end`; blocks while the server waits.

        Args:
            wait: Seconds that the server may wait.

        Raises:
            StreamCancelled: `Reading.cancel` was called.
            WingsError: The server's refusal, or `Unavailable`.
        """
        with interruptible(
            self.reader.read_chunk, waits_long=wait > INTERRUPT_SECONDS
        ) as read_chunk:
            yield from self._chunks(read_chunk)

    def _chunks(self, read_chunk: Callable[[], flight.FlightStreamChunk]) -> Iterator[Chunk]:
        try:
            while True:
                try:
                    batch, metadata = read_chunk()
                except StopIteration:
                    if self.end is None:
                        raise self.failed(
                            lost("a stream ended before its end chunk", self.endpoint)
                        ) from None
                    return
                except CALL_ERRORS as error:
                    if self.reading.is_cancelled:
                        raise StreamCancelled from None
                    raise self.failed(typed_error(error, self.endpoint)) from error
                found = parse_chunk_metadata(metadata)
                if isinstance(found, ChunkRange):
                    yield Chunk(batch, found.start_offset, found.end_offset)
                else:
                    self.end = found
        finally:
            self.reading.done()

    def failed(self, error: WingsError) -> WingsError:
        """Send later calls to another node if this one is unreachable; returns the error."""
        self.reading.transport.addresses.note(error, self.endpoint)
        return error


class Chunks:
    """The chunks of one scan or follow, over as many streams as it takes.

    Args:
        transport: To the server.
        ticket: Its offset is a number; its end, where it is a follow, is `deadline`.
        deadline: Of a follow; a scan ends at its `end_offset`.
        reconnect_seconds: How long to try without any progress; None for as often as one call.
        locations: Nodes that serve the ticket, tried in order; each is dropped when it cannot be
            reached, and at last the node that calls go to is asked.

    Attributes:
        next_offset: The first offset not yet delivered.
        log_end_offset: As of the last end chunk; None before the first.
    """

    def __init__(
        self,
        transport: Transport,
        ticket: ScanTicket | FollowTicket,
        deadline: Deadline | None = None,
        reconnect_seconds: float | None = None,
        locations: Sequence[str] = (),
    ) -> None:
        assert isinstance(ticket.offset, int)
        self.next_offset = ticket.offset
        self.log_end_offset: int | None = None
        self._transport = transport
        self._ticket = ticket
        self._deadline = deadline or Deadline.never()
        self._reconnect_seconds = reconnect_seconds
        self._reading = Reading(transport)
        self._locations = deque(locations)

    def cancel(self) -> None:
        """End the iteration and the stream on the server; from any thread."""
        self._reading.cancel()

    def __iter__(self) -> Generator[Chunk]:
        """Yield the chunks until the end; leaving the loop cancels the stream on the server.

        Raises:
            WingsError: The server's refusal; `Unavailable` where it could not be reached again.
        """
        backoff = Backoff(self._transport.retry)
        failing = Deadline.never()
        try:
            while True:
                reached = self.next_offset
                try:
                    yield from self._one_stream()
                    if isinstance(self._ticket, ScanTicket) or self._deadline.passed:
                        return
                    backoff.reset()
                except WingsError as error:
                    if not is_passing(error, repeatable=True):
                        raise
                    if self.next_offset > reached:
                        backoff.reset()
                    if backoff.failures == 0:
                        failing = Deadline.after(self._reconnect_seconds or 0.0)
                    if self._is_exhausted(backoff, failing):
                        raise
                    self._reading.pause(self._pause(backoff))
        except StreamCancelled:
            # Of a scan, this would look like its end.
            if isinstance(self._ticket, ScanTicket) and self._transport.closed.is_set():
                raise client_closed(self._transport.endpoint) from None
        finally:
            self._reading.done()

    def _one_stream(self) -> Iterator[Chunk]:
        ticket, seconds = self._next_ticket()
        location = self._locations[0] if self._locations else None
        stream = self._reading.open(ticket.to_bytes(), seconds, location)
        for chunk in stream.chunks(0.0 if isinstance(ticket, ScanTicket) else seconds):
            # Advanced before the chunk is yielded: from then on it is delivered.
            self.next_offset = chunk.end_offset + 1
            yield chunk
        assert stream.end is not None
        self.next_offset = stream.end.next_offset
        self.log_end_offset = stream.end.log_end_offset
        if isinstance(ticket, ScanTicket) and self.next_offset < (ticket.end_offset or 0):
            # Ranges are cut from what is committed: to accept this one would lose messages.
            raise Unavailable(
                f"{stream.endpoint} read to offset {self.next_offset} of a range that ends at "
                f"{ticket.end_offset}: its log ends at {self.log_end_offset}"
            )

    def _next_ticket(self) -> tuple[ScanTicket | FollowTicket, float]:
        """Return the next ticket, and how many seconds its stream may last."""
        timeout = self._transport.timeout
        if isinstance(self._ticket, ScanTicket):
            return self._ticket.model_copy(update={"offset": self.next_offset}), timeout
        remaining = self._deadline.remaining()
        seconds = timeout if remaining is None else min(timeout, remaining)
        update = {"offset": self.next_offset, "timeout_ms": milliseconds(seconds)}
        return self._ticket.model_copy(update=update), seconds + GRACE_SECONDS

    def _pause(self, backoff: Backoff) -> float:
        """Return how long to wait before the next attempt, which may be at another node."""
        if self._locations:
            self._locations.popleft()
            return 0.0
        return backoff.next_delay()

    def _is_exhausted(self, backoff: Backoff, failing: Deadline) -> bool:
        if self._deadline.passed:
            return True
        if self._locations:
            return False
        if self._reconnect_seconds is None:
            return backoff.failures + 1 >= self._transport.retry.attempts
        return failing.passed


def milliseconds(seconds: float) -> int:
    """Return a wait in milliseconds, within a ticket's bounds."""
    return round(min(TIMEOUT_MS_MAX, max(TIMEOUT_MS_MIN, seconds * 1000)))


def read_all(
    transport: Transport, ticket: FetchTicket, seconds: float
) -> tuple[pa.Schema, list[Chunk], ChunkEnd]:
    """Read one stream to its end. Tries once.

    Raises:
        WingsError: The server's refusal, or `Unavailable`.
    """
    try:
        stream = Reading(transport).open(ticket.to_bytes(), seconds)
        chunks = list(stream.chunks((ticket.timeout_ms or 0) / 1000))
    except StreamCancelled:
        raise client_closed(transport.endpoint) from None
    assert stream.end is not None
    return stream.reader.schema, chunks, stream.end
