"""Fetch: messages from an offset, or a long poll for them."""

from wings_client._model import FetchResult
from wings_client._stream import TIMEOUT_MS_MIN, milliseconds, read_all
from wings_client._transport import Transport
from wings_core import tracing
from wings_core.contracts.tickets import FetchTicket
from wings_core.times import Deadline


def ticket_timeout_ms(seconds: float) -> int:
    """Return the wait of a fetch in milliseconds; a ticket's upper bound is left to its check."""
    return max(TIMEOUT_MS_MIN, round(seconds * 1000))


def fetch(transport: Transport, ticket: FetchTicket, wait: float) -> FetchResult:
    """Read one partition or many; blocks at most `wait` seconds, beside the client's timeout.

    A broken stream is opened again for the time that remains. See `Client.fetch`.
    """
    deadline = Deadline.after(wait)

    def call(seconds: float) -> FetchResult:
        left = milliseconds(deadline.remaining() or 0.0)
        return _read(transport, ticket.model_copy(update={"timeout_ms": left}), seconds)

    with tracing.client_span("fetch", {"messaging.destination.name": ticket.topic}, "consumer"):
        return transport.repeat(call, repeatable=True, timeout=wait + transport.timeout)


def _read(transport: Transport, ticket: FetchTicket, seconds: float) -> FetchResult:
    schema, chunks, end = read_all(transport, ticket, seconds)
    one = ticket.partitions is None
    return FetchResult(
        schema=schema,
        batches=tuple(chunk.batch for chunk in chunks),
        ranges=tuple(chunk.ranges for chunk in chunks),
        partitions=end.partitions,
        end=end.end,
        asked=ticket.offset if one and isinstance(ticket.offset, int) else None,
    )
