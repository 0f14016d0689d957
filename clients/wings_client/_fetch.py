"""Fetch: messages from an offset, or a long poll for them."""

from typing import Any

from wings_client._messages import OffsetValue, build, wire_offset, wire_partition
from wings_client._model import FetchResult, PartitionValue
from wings_client._stream import TIMEOUT_MS_MIN, milliseconds, read_all
from wings_client._transport import Transport
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
    wait = FETCH_TIMEOUT_SECONDS if timeout is None else timeout
    ticket = build(
        FetchTicket,
        InvalidTicket,
        "fetch",
        topic=topic,
        partition=wire_partition(partition),
        offset=wire_offset(offset),
        timeout_ms=max(TIMEOUT_MS_MIN, round(wait * 1000)),
        **keys,
    )
    deadline = Deadline.after(wait)

    def call(seconds: float) -> FetchResult:
        # After a broken attempt, the next one waits for the remaining time.
        left = milliseconds(deadline.remaining() or 0.0)
        return _read(transport, ticket.model_copy(update={"timeout_ms": left}), seconds)

    return transport.repeat(call, repeatable=True, timeout=wait + transport.timeout)


def _read(transport: Transport, ticket: FetchTicket, seconds: float) -> FetchResult:
    schema, chunks, end = read_all(transport, ticket, seconds)
    asked = ticket.offset if isinstance(ticket.offset, int) else end.next_offset
    return FetchResult(
        schema=schema,
        batches=tuple(chunk.batch for chunk in chunks),
        start_offset=chunks[0].start_offset if chunks else asked,
        end_offset=chunks[-1].end_offset if chunks else None,
        next_offset=end.next_offset,
        log_end_offset=end.log_end_offset,
        end=end.end,
    )
