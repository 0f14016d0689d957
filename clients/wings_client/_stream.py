"""Streams of chunks: DoGet, resumed at the next offset when the connection breaks.

A stream lives no longer than the client's timeout: its gRPC deadline is the only thing that frees
a thread from a silent server. A healthy stream that reaches it, because the server has much to send
or the reader is slow, is resumed by a new ticket at the next offset. So rows are delivered in
order, each once, across broken connections.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, cast, get_args

import pyarrow.flight as flight

from wings_client._errors import call_errors, client_closed, is_passing, lost, typed_error
from wings_client._interrupt import interruptible
from wings_client._model import Chunk, RangesBatch
from wings_client._retry import Backoff
from wings_client._transport import Transport
from wings_client.arrow import Schema
from wings_core.contracts.chunks import (
    ChunkEnd,
    ChunkRange,
    ManyEnd,
    parse_chunk_metadata,
    parse_many_metadata,
)
from wings_core.contracts.tickets import TIMEOUT_MS_MAX, FetchTicket, FollowTicket, ScanTicket
from wings_core.errors import (
    InvalidArgument,
    OffsetOutOfRange,
    SchemaMismatch,
    Unavailable,
    WingsError,
)
from wings_core.times import Deadline

T = TypeVar("T")

OnDataLoss = Literal["error", "skip"]
"""What becomes of a read whose place retention has passed: it fails, or goes on with what is kept,
and a warning is logged."""

TIMEOUT_MS_MIN = 2
"""The shortest wait that a ticket can ask for."""

GRACE_SECONDS = 5.0
"""How long after the end of its wait a stream that the server should have ended is cancelled."""


INTERRUPT_SECONDS = 1.0
"""Waits up to this long stay on the main thread, where Ctrl-C does not end them."""


_logger = logging.getLogger("wings_client")


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
        if self.transport.is_inherited:
            return
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
    ) -> "OpenStream":
        """Open a stream; blocks until its schema is there. Tries once.

        Args:
            ticket: As JSON.
            seconds: The gRPC deadline: after so many the stream fails.
            endpoint: The node to ask; None: the one that calls go to now.

        Raises:
            StreamCancelled: `cancel` was called.
            WingsError: The server's refusal, or `Unavailable`.
        """
        if self.is_cancelled:
            raise StreamCancelled
        reader, called = self.transport.get(ticket, seconds, endpoint)
        self._reader = reader
        if self.is_cancelled:
            reader.cancel()
            raise StreamCancelled
        return OpenStream(reader, self, called)

    def done(self) -> None:
        """Close the stream; cancels it if it has not ended."""
        if self.transport.is_inherited:
            return
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
    end: ChunkEnd | ManyEnd | None = None
    """Its end chunk, once received."""

    @property
    def schema(self) -> Schema:
        """The schema of its batches."""
        return cast("Schema", self.reader.schema)

    def chunks(self, wait: float) -> Iterator[Chunk]:
        """Yield the chunks of rows of one partition, and set `end`; blocks while the server waits.

        Args:
            wait: Seconds that the server may wait.

        Raises:
            StreamCancelled: `Reading.cancel` was called.
            WingsError: The server's refusal, or `Unavailable`.
        """
        for batch, metadata in self._received(wait):
            found = parse_chunk_metadata(metadata)
            if isinstance(found, ChunkRange):
                yield Chunk(batch, found.start_offset, found.end_offset)
            else:
                self.end = found

    def many(self, wait: float) -> Iterator[RangesBatch]:
        """Yield the chunks of rows of many partitions; as `chunks`."""
        for batch, metadata in self._received(wait):
            found = parse_many_metadata(metadata)
            if isinstance(found, ManyEnd):
                self.end = found
            else:
                yield RangesBatch(batch, found)

    def _received(self, wait: float) -> Iterator[flight.FlightStreamChunk]:
        with interruptible(self.reader, waits_long=wait > INTERRUPT_SECONDS) as read_chunk:
            try:
                yield from self._read(read_chunk)
            finally:
                self.reading.done()

    def _read(
        self, read_chunk: Callable[[], flight.FlightStreamChunk]
    ) -> Iterator[flight.FlightStreamChunk]:
        while True:
            self.reading.transport.check_process()
            try:
                received = read_chunk()
            except StopIteration:
                if self.end is None:
                    raise self.failed(
                        lost("a stream ended before its end chunk", self.endpoint)
                    ) from None
                return
            except call_errors() as error:
                if self.reading.is_cancelled:
                    raise StreamCancelled from None
                raise self.failed(typed_error(error, self.endpoint)) from error
            yield received

    def failed(self, error: WingsError) -> WingsError:
        """Send later calls to another node if this one is unreachable; returns the error."""
        self.reading.transport.addresses.note(error, self.endpoint)
        return error


class Resumed(ABC, Iterable[T], Generic[T]):
    """What a scan or follow reads, over as many streams as it takes.

    Args:
        transport: To the server.
        deadline: Of a follow; None: it has none.
        is_scan: Whether it ends where its ranges end.
        reconnect_seconds: How long to try without any progress; None for as often as one call.
        locations: Nodes that serve the ticket, tried in order; each is dropped when it cannot be
            reached, and at last the node that calls go to is asked.

    Attributes:
        on_data_loss: What becomes of it where retention has passed its place.
    """

    def __init__(
        self,
        transport: Transport,
        deadline: Deadline | None,
        *,
        is_scan: bool,
        reconnect_seconds: float | None,
        locations: Sequence[str],
    ) -> None:
        self._transport = transport
        self._deadline = deadline or Deadline.never()
        self._is_scan = is_scan
        self._reconnect_seconds = reconnect_seconds
        self._reading = Reading(transport)
        self._locations = deque(locations)
        self._failing = Deadline.never()
        """When a run of failures ends the read."""
        self.on_data_loss: OnDataLoss = "error"
        self.chunks_yielded = 0
        """Counted before the place of the read moves past a chunk."""
        self._grows = False
        """Whether the next stream may have a later version of the schema than the last."""

    @abstractmethod
    def _one_stream(self) -> Iterator[T]:
        """Yield the chunks of one stream, which begins where the last one stopped."""

    def _mends(self, error: WingsError) -> bool:
        """Return whether the next stream can go on in spite of an error, having changed that."""
        del error
        return False

    def cancel(self) -> None:
        """End the iteration and the stream on the server; from any thread."""
        self._reading.cancel()

    def __iter__(self) -> Generator[T]:
        """Yield the chunks until the end; leaving the loop cancels the stream on the server.

        Raises:
            WingsError: The server's refusal; `Unavailable` where it could not be reached again.
        """
        backoff = Backoff(self._transport.retry)
        grown = False
        try:
            while True:
                try:
                    for chunk in self._one_stream():
                        backoff.reset()
                        grown = False
                        yield chunk
                    if self._is_scan or self._deadline.passed:
                        return
                    backoff.reset()
                except WingsError as error:
                    if self._grows and not grown and isinstance(error, SchemaMismatch):
                        grown = True  # A stream keeps its schema; the next has the last version.
                    elif not self._mends(error):
                        self._wait_after(error, backoff)
        except StreamCancelled:
            # Of a scan, this would look like its end.
            if self._is_scan and self._transport.closed.is_set():
                raise client_closed(self._transport.endpoint) from None
        finally:
            self._reading.done()

    def _open(self, ticket: ScanTicket | FollowTicket) -> tuple[OpenStream, float]:
        """Open the next stream.

        Returns:
            The stream, and how many seconds the server may wait in it.
        """
        if isinstance(ticket, ScanTicket):
            wait, seconds = 0.0, self._transport.timeout
        else:
            remaining = self._deadline.remaining()
            wait = self._transport.timeout
            wait = wait if remaining is None else min(wait, remaining)
            ticket = ticket.model_copy(update={"timeout_ms": milliseconds(wait)})
            wait = seconds = wait + GRACE_SECONDS
        location = self._locations[0] if self._locations else None
        return self._reading.open(ticket.to_bytes(), seconds, location), wait

    def _wait_after(self, error: WingsError, backoff: Backoff) -> None:
        """Wait before the next attempt; raises the error where there is none."""
        if isinstance(error, OffsetOutOfRange) and not self._is_scan:
            text = f"{error.message}: on_data_loss='skip' goes on with what is kept"
            raise OffsetOutOfRange(text, **error.facts) from None
        if not is_passing(error, repeatable=True):
            raise error
        if backoff.failures == 0:
            self._failing = Deadline.after(self._reconnect_seconds or 0.0)
        if self._is_exhausted(backoff):
            raise error
        self._reading.pause(self._pause(backoff))

    def _pause(self, backoff: Backoff) -> float:
        """Return how long to wait before the next attempt, which may be at another node."""
        if self._locations:
            self._locations.popleft()
            return 0.0
        return backoff.next_delay()

    def _is_exhausted(self, backoff: Backoff) -> bool:
        if self._deadline.passed:
            return True
        if self._locations:
            return False
        if self._reconnect_seconds is None:
            return backoff.failures + 1 >= self._transport.retry.attempts
        return self._failing.passed


class Chunks(Resumed[Chunk]):
    """The chunks of one scan or follow of a partition, over as many streams as it takes.

    Args:
        transport: To the server.
        ticket: Its offset is a number; its end, where it is a follow, is `deadline`.
        deadline: As of `Resumed`, like the others.
        reconnect_seconds: Likewise.
        locations: Likewise.
        clamps: Whether what retention takes before it is read is skipped, as of reads from
            `"earliest"`; else that is an error.

    Attributes:
        next_offset: The first offset not yet delivered.
        clamps: As given.
    """

    def __init__(
        self,
        transport: Transport,
        ticket: ScanTicket | FollowTicket,
        deadline: Deadline | None = None,
        reconnect_seconds: float | None = None,
        locations: Sequence[str] = (),
        *,
        clamps: bool = False,
    ) -> None:
        super().__init__(
            transport,
            deadline,
            is_scan=isinstance(ticket, ScanTicket),
            reconnect_seconds=reconnect_seconds,
            locations=locations,
        )
        assert isinstance(ticket.offset, int)
        self.next_offset = self._first_offset = ticket.offset
        self.clamps = clamps
        self._ticket = ticket
        self._grows = not self._is_scan and ticket.schema_version is None

    def _one_stream(self) -> Iterator[Chunk]:
        ticket = self._ticket.model_copy(update={"offset": self.next_offset})
        if isinstance(ticket, ScanTicket) and self._has_read_all(ticket):
            return
        stream, wait = self._open(ticket)
        for chunk in stream.chunks(wait):
            # Advanced before the chunk is yielded: from then on it is delivered.
            self.chunks_yielded += 1
            self.next_offset = chunk.end_offset + 1
            yield chunk
        assert isinstance(stream.end, ChunkEnd)
        self.next_offset = stream.end.next_offset
        if isinstance(ticket, ScanTicket) and self.next_offset < (ticket.end_offset or 0):
            # Ranges are cut from what is committed: to accept this one would lose messages.
            raise Unavailable(
                f"{stream.endpoint} read to offset {self.next_offset} of a range that ends at "
                f"{ticket.end_offset}: its log ends at {stream.end.log_end_offset}"
            )

    def _has_read_all(self, ticket: ScanTicket) -> bool:
        """Tell whether nothing is left of a range of which there was something."""
        end_offset = ticket.end_offset
        return end_offset is not None and self.next_offset >= max(
            end_offset, self._first_offset + 1
        )

    def _mends(self, error: WingsError) -> bool:
        """Skip what retention took, where that is no error."""
        if not isinstance(error, OffsetOutOfRange) or error.log_start_offset <= self.next_offset:
            return False
        if not self.clamps:
            if self.on_data_loss == "error":
                return False
            ticket = self._ticket
            warn_of_loss(ticket.topic, ticket.partition, self.next_offset, error.log_start_offset)
        self.next_offset = error.log_start_offset
        return True


def check_on_data_loss(given: OnDataLoss) -> None:
    """Raise `InvalidArgument` unless a word is one of `OnDataLoss`."""
    if given not in get_args(OnDataLoss):
        raise InvalidArgument(f"on_data_loss is 'error' or 'skip', not {given!r:.80}")


def warn_of_loss(topic: str, partition: object, first: int, end: int) -> None:
    """Log that messages are skipped that retention took, up to an end, exclusive."""
    _logger.warning(
        "%s, partition %.80r: %d messages from offset %d on are gone, and are skipped",
        topic,
        partition,
        end - first,
        first,
    )


def milliseconds(seconds: float) -> int:
    """Return a wait in milliseconds, within a ticket's bounds."""
    return round(min(TIMEOUT_MS_MAX, max(TIMEOUT_MS_MIN, seconds * 1000)))


def read_all(
    transport: Transport, ticket: FetchTicket, seconds: float
) -> tuple[Schema, list[Chunk], ChunkEnd]:
    """Read one stream of a partition to its end. Tries once.

    Raises:
        WingsError: The server's refusal, or `Unavailable`.
    """
    stream, chunks = _to_the_end(transport, ticket, seconds, OpenStream.chunks)
    assert isinstance(stream.end, ChunkEnd)
    return stream.schema, chunks, stream.end


def read_all_many(
    transport: Transport, ticket: FetchTicket, seconds: float
) -> tuple[Schema, list[RangesBatch], ManyEnd]:
    """Read one stream of many partitions to its end; as `read_all`."""
    stream, chunks = _to_the_end(transport, ticket, seconds, OpenStream.many)
    assert isinstance(stream.end, ManyEnd)
    return stream.schema, chunks, stream.end


def _to_the_end(
    transport: Transport,
    ticket: FetchTicket,
    seconds: float,
    read: Callable[[OpenStream, float], Iterator[T]],
) -> tuple[OpenStream, list[T]]:
    try:
        stream = Reading(transport).open(ticket.to_bytes(), seconds)
        return stream, list(read(stream, (ticket.timeout_ms or 0) / 1000))
    except StreamCancelled:
        raise client_closed(transport.endpoint) from None
