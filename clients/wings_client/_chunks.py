"""Scans and follows: streams that are resumed at the next offset when the connection breaks.

A stream lives no longer than the client's timeout: its gRPC deadline is the only thing that frees
a thread from a silent server. A healthy stream that reaches it, because the server has much to send
or the reader is slow, is resumed by a new ticket at the next offset. So rows are delivered in
order in each partition, each once, across broken connections.
"""

import logging
from collections import deque
from collections.abc import Container, Generator, Iterable, Iterator, Sequence
from typing import Any, Literal, cast

from wings_client._errors import client_closed, is_passing
from wings_client._model import Chunk, RangesBatch
from wings_client._read_options import entries_of, starts
from wings_client._retry import Backoff
from wings_client._stream import OpenStream, Reading, StreamCancelled, milliseconds
from wings_client._transport import Transport
from wings_core.contracts.chunks import reached
from wings_core.contracts.info import InfoCommand
from wings_core.contracts.reads import ALL, PartitionEntry
from wings_core.contracts.tickets import FollowTicket, ScanTicket
from wings_core.errors import OffsetOutOfRange, SchemaMismatch, Unavailable, WingsError
from wings_core.partitions import JsonScalar
from wings_core.times import Deadline

OnDataLoss = Literal["error", "skip"]
"""Outcome of a read whose place retention has passed: it fails, or goes on with what is kept,
and a warning is logged."""

GRACE_SECONDS = 5.0
"""How long after the end of its wait a stream that the server should have ended is cancelled."""

_logger = logging.getLogger("wings_client")


class Chunks(Iterable[RangesBatch]):
    """The chunks of one scan or follow, over as many streams as it takes.

    Args:
        transport: To the server.
        ticket: Ticket of one partition, with a number as `offset`; or with `partitions`: a scan has
            a list, with numbers for each `offset` and `end_offset`, and the offsets of a follow are
            numbers or `"earliest"`, which mean the same whenever the stream is opened again.
        deadline: Deadline of a follow; None: it has none.
        reconnect_seconds: How long to try without any progress; None for as often as one call.
        locations: Nodes that serve the ticket, tried in order; each is dropped when it cannot be
            reached, and at last the node that calls go to is asked.

    Attributes:
        on_data_loss: Outcome where retention has passed its place.
        next_offsets: The first offset not yet delivered of each partition of which anything is
            known, by partition value.
        exact: The partitions to which `on_data_loss` applies; in the others the read goes on with
            what is kept. At first those in `next_offsets`.
        chunks_yielded: The number of chunks, counted before `next_offsets` moves past one.
        chunks_handed_over: How many of them were put into a consumer's queue.
    """

    def __init__(
        self,
        transport: Transport,
        ticket: ScanTicket | FollowTicket,
        deadline: Deadline | None = None,
        reconnect_seconds: float | None = None,
        locations: Sequence[str] = (),
    ) -> None:
        self._transport = transport
        self._ticket = ticket
        self._deadline = deadline or Deadline.never()
        self._is_scan = isinstance(ticket, ScanTicket)
        self._reconnect_seconds = reconnect_seconds
        self._reading = Reading(transport)
        self._locations = deque(locations)
        self._failing = Deadline.never()
        """When a run of failures ends the read."""
        self._grows = not self._is_scan and ticket.schema_version is None
        """Whether the next stream may have a later version of the schema than the last."""
        self.on_data_loss: OnDataLoss = "error"
        self.chunks_yielded = self.chunks_handed_over = 0
        self.next_offsets: dict[JsonScalar, int] = cast("Any", dict(ticket.positions))
        for entry in entries_of(ticket):
            if isinstance(entry.offset, int):
                self.next_offsets[cast("JsonScalar", entry.partition)] = entry.offset
        self.exact: Container[JsonScalar] = frozenset(self.next_offsets)

    def _one_stream(self) -> Iterator[RangesBatch]:
        """Yield the chunks of one stream, which begins where the last one stopped."""
        if self._is_scan and not self._has_left():
            return
        ticket = self._ticket.model_copy(update=self.where())
        stream, wait = self._open(ticket)
        for chunk in stream.chunks(ticket, wait):
            # Advanced before the chunk is yielded: from then on it is delivered.
            self.chunks_yielded += 1
            self.next_offsets.update(reached(chunk.ranges))
            yield chunk
        assert stream.end is not None
        for each in stream.end.partitions:
            self.next_offsets[each.partition] = each.next_offset
        for entry in self._left() if self._is_scan else ():
            if entry.end_offset is None:
                continue
            # Ranges are cut from what is committed: to accept this one would lose messages.
            ends: dict[Any, int] = {each[0]: each.log_end_offset for each in stream.end.partitions}
            raise Unavailable(
                f"{stream.endpoint} read to offset {entry.offset} of a range that ends at "
                f"{entry.end_offset}: its log ends at {ends.get(entry.partition)}; "
                f"partition {entry.partition!r:.80}"
            )

    def where(self) -> dict[str, Any]:
        """Return the keys of a ticket that reads what is not delivered yet; from any thread."""
        if self._ticket.partitions is None:
            ((value, offset),) = self.next_offsets.items()
            return {"partition": value, "offset": offset}
        if self._ticket.partitions == ALL:
            found = {"partitions": ALL, "positions": tuple(dict(self.next_offsets).items())}
            if self._ticket.slots is not None:
                found |= {"slots": self._ticket.slots, "consumer": self._ticket.consumer}
            return found
        return {"partitions": tuple(self._left())}

    def _has_left(self) -> bool:
        """Tell whether a scan has anything left; one of a range without rows asks its server."""
        if self._ticket.partitions == ALL:
            return True
        offsets = list(self.next_offsets.values())
        is_new = self._ticket.partitions is None and offsets == [self._ticket.offset]
        return is_new or any(True for _ in self._left())

    def _left(self) -> Iterator[PartitionEntry]:
        """Yield what is left of the partitions of a ticket that has not all."""
        for entry in entries_of(self._ticket):
            offset = self.next_offsets.get(cast("JsonScalar", entry.partition))
            if offset is None or entry.end_offset is None or offset < entry.end_offset:
                yield entry if offset is None else entry._replace(offset=offset)

    @property
    def is_endless(self) -> bool:
        """Tells a follow without a deadline from other reads."""
        return not self._is_scan and self._deadline.remaining() is None

    def cancel(self) -> None:
        """End the iteration and the stream on the server; from any thread."""
        self._reading.cancel()

    def __iter__(self) -> Generator[RangesBatch]:
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
            text = f"{error.message}: on_data_loss='skip' goes on with the messages that are kept"
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

    def _mends(self, error: WingsError) -> bool:
        """Skip what retention took, where that is no error; returns whether the read moved."""
        if not isinstance(error, OffsetOutOfRange):
            return False
        one = self._ticket.partitions is None
        partition: Any = self._ticket.partition if one else error.facts.get("partition")
        if not self._skips_to(partition, error.log_start_offset):
            return False
        if one:
            return True
        # It will have passed other partitions too, and each would end a stream.
        everywhere = InfoCommand(topic=self._ticket.topic, partitions=ALL)
        for value, kept in starts(self._transport, everywhere).items():
            self._skips_to(value, kept)
        return True

    def _skips_to(self, partition: JsonScalar, start: int) -> bool:
        """Go on at a partition's start; returns whether its place was before that, and may move."""
        reached = self.next_offsets.get(partition)
        if reached is None and self._ticket.consumer is not None:
            # Its committed offset, which the server found, is below the log's start.
            if self.on_data_loss == "error":
                return False
            warn_of_loss(self._ticket.topic, partition, 0, start)
        elif reached is None or start <= reached:
            return False
        if reached is not None and partition in self.exact:
            if self.on_data_loss == "error":
                return False
            warn_of_loss(self._ticket.topic, partition, reached, start)
        self.next_offsets[partition] = start
        return True


def chunk_of(found: RangesBatch) -> Chunk:
    """Return a batch of one partition with its offsets."""
    batch, ((_, start_offset, end_offset, _),) = found
    return Chunk(batch, start_offset, end_offset)


def warn_of_loss(topic: str, partition: object, first: int, end: int) -> None:
    """Log that messages are skipped that retention took, up to an end, exclusive."""
    _logger.warning(
        "%s, partition %.80r: %d messages from offset %d on are gone, and are skipped",
        topic,
        partition,
        end - first,
        first,
    )
