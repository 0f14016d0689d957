"""Fetch: messages from an offset, or a long poll for them."""

from typing import Any

from wings_client._many import OffsetsValue, PartitionsValue, where
from wings_client._messages import OffsetValue, build, wire_offset, wire_partition
from wings_client._model import FetchResult, PartitionValue
from wings_client._stream import TIMEOUT_MS_MIN, milliseconds, read_all
from wings_client._transport import Transport
from wings_core import tracing
from wings_core.contracts.tickets import FETCH_TIMEOUT_SECONDS, FetchTicket
from wings_core.errors import InvalidTicket
from wings_core.times import Deadline


def fetch(
    transport: Transport,
    topic: str,
    partition: PartitionValue,
    offset: OffsetValue,
    timeout: float | None,
    **keys: Any,
) -> FetchResult:
    """Read one partition from an offset; see `Client.fetch`."""
    keys |= {"partition": wire_partition(partition), "offset": wire_offset(offset)}
    return _fetch(transport, timeout, topic=topic, **keys)


def fetch_many(
    transport: Transport,
    topic: str,
    partitions: PartitionsValue,
    offset: OffsetsValue,
    timeout: float | None,
    **keys: Any,
) -> FetchResult:
    """Read many partitions, each from an offset; see `Client.fetch`."""
    return _fetch(transport, timeout, topic=topic, **where(partitions, offset), **keys)


def _fetch(transport: Transport, timeout: float | None, **keys: Any) -> FetchResult:
    wait = FETCH_TIMEOUT_SECONDS if timeout is None else timeout
    timeout_ms = max(TIMEOUT_MS_MIN, round(wait * 1000))
    ticket = build(FetchTicket, InvalidTicket, "fetch", timeout_ms=timeout_ms, **keys)
    deadline = Deadline.after(wait)

    def call(seconds: float) -> FetchResult:
        # After a broken attempt, the next one waits for the remaining time.
        left = milliseconds(deadline.remaining() or 0.0)
        again = ticket.model_copy(update={"timeout_ms": left})
        return _read(transport, again, seconds)

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
