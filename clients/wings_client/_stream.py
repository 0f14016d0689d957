"""One stream: a DoGet of chunks, of one partition or many, or a DoPut of batches.

A DoPut's batches are written on one thread, and its responses read on another.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pyarrow.flight as flight

from wings_client._cancellation import interruptible
from wings_client._errors import call_errors, client_closed, lost, typed_error, typed_errors
from wings_client._model import RangesBatch, Topic
from wings_client._transport import Transport
from wings_client.arrow import Schema
from wings_core.contracts.chunks import (
    ChunkRange,
    ManyEnd,
    PartitionEnd,
    PartitionRange,
    parse_chunk_metadata,
    parse_many_metadata,
)
from wings_core.contracts.put import PutCommand, put_answer
from wings_core.contracts.tickets import TIMEOUT_MS_MAX, FetchTicket, FollowTicket, ScanTicket
from wings_core.errors import WingsError, error_from_json
from wings_core.partitions import JsonScalar

TIMEOUT_MS_MIN = 2
"""The shortest wait that a ticket can ask for."""

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
            ticket: Ticket, as JSON.
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
    end: ManyEnd | None = None
    """Its end chunk, once received."""

    @property
    def schema(self) -> Schema:
        """The schema of its batches."""
        return cast("Schema", self.reader.schema)

    def chunks(
        self, ticket: FetchTicket | ScanTicket | FollowTicket, wait: float
    ) -> Iterator[RangesBatch]:
        """Yield the chunks of rows, and set `end`; blocks while the server waits.

        Args:
            ticket: The ticket that the stream was opened with.
            wait: Seconds that the server may wait.

        Raises:
            StreamCancelled: `Reading.cancel` was called.
            WingsError: The server's refusal, or `Unavailable`.
        """
        if ticket.partitions is not None:
            for batch, metadata in self._received(wait):
                found = parse_many_metadata(metadata)
                if isinstance(found, ManyEnd):
                    self.end = found
                else:
                    yield RangesBatch(batch, found)
            return
        value = cast("JsonScalar", ticket.partition)
        for batch, metadata in self._received(wait):
            one = parse_chunk_metadata(metadata)
            if isinstance(one, ChunkRange):
                yield RangesBatch(batch, (PartitionRange(value, *one, batch.num_rows),))
            else:
                end = PartitionEnd(value, one.next_offset, one.log_end_offset)
                self.end = ManyEnd(one.end, (end,))

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
        return self.reading.transport.addresses.noted(error, self.endpoint)


def milliseconds(seconds: float) -> int:
    """Return a wait in milliseconds, within a ticket's bounds."""
    return round(min(TIMEOUT_MS_MAX, max(TIMEOUT_MS_MIN, seconds * 1000)))


def read_all(
    transport: Transport, ticket: FetchTicket, seconds: float
) -> tuple[Schema, list[RangesBatch], ManyEnd]:
    """Read one stream to its end. Tries once.

    Raises:
        WingsError: The server's refusal, or `Unavailable`.
    """
    try:
        stream = Reading(transport).open(ticket.to_bytes(), seconds)
        chunks = list(stream.chunks(ticket, (ticket.timeout_ms or 0) / 1000))
    except StreamCancelled:
        raise client_closed(transport.endpoint) from None
    assert stream.end is not None
    return stream.schema, chunks, stream.end


class PutStream:
    """An open DoPut. `write` and `finish` belong to one thread, `read` to another.

    Args:
        transport: To the server.
        command: The descriptor.
        topic: The topic that it is meant for.
        seconds: The gRPC deadline: after so many the stream fails.

    Attributes:
        endpoint: The address of the node that serves it.

    Raises:
        WingsError: `Unavailable` where no server was reached.
    """

    def __init__(
        self, transport: Transport, command: PutCommand, topic: Topic, seconds: float
    ) -> None:
        self._transport = transport
        self._writer, self._reader, self.endpoint = transport.put(command, topic, seconds)

    def write(self, batch: pa.RecordBatch, metadata: bytes | None) -> bool:
        """Send a batch; blocks while the server does not read.

        Returns:
            False if the stream has ended; `close` returns why.
        """
        try:
            if metadata is None:
                self._writer.write_batch(batch)
            else:
                self._writer.write_with_metadata(batch, pa.py_buffer(metadata))
        except call_errors():
            return False
        return True

    def read(self) -> dict[str, Any] | None:
        """Return the next answer, with key `committed` or `staged`; blocks until it is there.

        Returns:
            None if the stream has ended; `close` returns why.

        Raises:
            WingsError: What the batch was refused with.
        """
        try:
            raw = self._reader.read()
        except call_errors():
            return None
        if raw is None:
            return None
        answer = put_answer(raw)
        if "error" in answer:
            raise error_from_json(answer["error"])
        return answer

    def finish(self) -> None:
        """Half-close: the server responds to the batches it has and ends the stream."""
        try:
            self._writer.done_writing()
        except call_errors():
            return  # `close` returns it.

    def close(self) -> WingsError | None:
        """Close the stream, once no thread writes or reads.

        Returns:
            The error that ended it; None where it ended cleanly.
        """
        try:
            with typed_errors(self.endpoint):
                self._writer.close()
        except WingsError as error:
            self._transport.addresses.note(error, self.endpoint)
            return error
        return None
