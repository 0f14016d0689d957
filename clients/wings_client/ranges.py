"""Ranges of many partitions in one stream, for engines that read with many processes."""

from collections.abc import Generator, Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.flight as flight
from pydantic import JsonValue

from wings_client._client import Client
from wings_client._errors import CALL_ERRORS, client_closed, is_passing, lost, typed_error
from wings_client._retry import Backoff
from wings_client._stream import OpenStream, Reading, StreamCancelled
from wings_core.contracts.chunks import ManyEnd, PartitionRange, parse_many_metadata
from wings_core.contracts.many import ALL, PartitionEntry
from wings_core.contracts.tickets import ScanTicket
from wings_core.errors import Unavailable, WingsError


class RangesBatch(NamedTuple):
    """Rows of many partitions, and the ranges of their logs that they come from."""

    batch: pa.RecordBatch
    ranges: list[PartitionRange]
    """In the order of the rows: each says how many of them are its."""


def read_ranges(client: Client, ticket: ScanTicket) -> Generator[RangesBatch]:
    """Yield the batches of a ticket's ranges, of each partition in order of offset.

    Between partitions there is no order. A lost connection is resumed; leaving the loop ends the
    stream on the server too.

    Args:
        client: To the server, which stays open meanwhile.
        ticket: With a list of `partitions`, each with numbers for `offset` and `end_offset`.

    Raises:
        OffsetOutOfRange: A range is below its log's start by now; facts `partition` and
            `log_start_offset`. What was yielded stays valid.
        Unavailable: No server can be reached, or none knows of a log up to its range's end.
        WingsError: Whatever else the server refuses it with.
    """
    assert ticket.partitions is not None
    assert ticket.partitions != ALL
    transport = client._transport  # pyright: ignore[reportPrivateUsage] - of this package.
    left = {entry.partition: entry for entry in ticket.partitions}
    reading, backoff = Reading(transport), Backoff(transport.retry)
    try:
        while True:
            try:
                for found in _one_stream(reading, ticket, left):
                    backoff.reset()
                    yield found
                return
            except WingsError as error:
                if not is_passing(error, repeatable=True):
                    raise
                if backoff.failures + 1 >= transport.retry.attempts:
                    raise
                reading.pause(backoff.next_delay())
    except StreamCancelled:  # Which would look like the end.
        raise client_closed(transport.endpoint) from None
    finally:
        reading.done()


def _one_stream(
    reading: Reading, ticket: ScanTicket, left: dict[JsonValue, PartitionEntry]
) -> Iterator[RangesBatch]:
    """Read what is left by one stream, and strike off what was read."""
    if not left:
        return
    ticket = ticket.model_copy(update={"partitions": tuple(left.values())})
    stream = reading.open(ticket.to_bytes(), reading.transport.timeout)
    end: ManyEnd | None = None
    for batch, metadata in _received(stream):
        found = parse_many_metadata(metadata)
        if isinstance(found, ManyEnd):
            end = found
            continue
        for each in found:
            _advance(left, each.partition, each.end_offset + 1)
        yield RangesBatch(batch, found)
    if end is None:
        raise stream.failed(lost("a stream ended before its end chunk", stream.endpoint))
    for each in end.partitions:
        _advance(left, each.partition, each.next_offset)
    for entry in left.values():
        # Ranges are cut from what is committed: to accept this one would lose messages.
        raise Unavailable(
            f"{stream.endpoint} read to offset {entry.offset} of a range that ends at "
            f"{entry.end_offset}, of partition {entry.partition!r:.80}"
        )


def _received(stream: OpenStream) -> Iterator[flight.FlightStreamChunk]:
    while True:
        try:
            received = stream.reader.read_chunk()
        except StopIteration:
            return
        except CALL_ERRORS as error:
            if stream.reading.is_cancelled:
                raise StreamCancelled from None
            raise stream.failed(typed_error(error, stream.endpoint)) from error
        yield received


def _advance(left: dict[JsonValue, PartitionEntry], partition: JsonValue, offset: int) -> None:
    entry = left.get(partition)
    if entry is None:
        return
    assert entry.end_offset is not None
    if offset < entry.end_offset:
        left[partition] = entry._replace(offset=offset)
    else:
        del left[partition]
