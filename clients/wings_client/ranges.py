"""Ranges of many partitions in one stream, for engines that read with many processes."""

from collections.abc import Generator

from wings_client._chunks import Chunks
from wings_client._client import Client
from wings_client._model import RangesBatch
from wings_core.contracts.reads import ALL
from wings_core.contracts.tickets import ScanTicket

__all__ = ["RangesBatch", "read_ranges"]


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
        WingsError: Any other refusal of the server.
    """
    assert ticket.partitions is not None
    assert ticket.partitions != ALL
    transport = client._transport  # pyright: ignore[reportPrivateUsage] - of this package.
    yield from Chunks(transport, ticket)
