"""Partitions and offsets of reads: as calls take them, and in their wire form."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from wings_client._messages import OffsetValue, build, wire_offset, wire_partition
from wings_client._model import PartitionValue
from wings_client._transport import Transport
from wings_core.contracts.info import InfoCommand
from wings_core.contracts.reads import ALL, PartitionEntry
from wings_core.contracts.tickets import ScanTicket, parse_ticket
from wings_core.errors import InvalidArgument
from wings_core.partitions import JsonScalar

PartitionsValue = Sequence[PartitionValue] | Literal["all"]
"""Many partitions, as calls take them: all, those born later too, or the values of some."""

OffsetsValue = OffsetValue | Mapping[Any, int]
"""Where to begin in each of many partitions: the same in all, or offsets by partition value, such
as `next_offsets` of an earlier read; in others than those, at the start of the log."""


def starts(
    transport: Transport,
    topic: str,
    partitions: PartitionsValue,
    offset: OffsetValue = "earliest",
) -> dict[JsonScalar, int]:
    """Return the number that an offset stands for now, by partition value, of those that exist.

    Of a list: of each partition in it.
    """
    command = build(
        InfoCommand,
        InvalidArgument,
        "offsets",
        topic=topic,
        partitions=wire_partitions(partitions),
        offset=wire_offset(offset),
    )
    found: dict[JsonScalar, int] = {}
    for endpoint in transport.info(command).endpoints:
        ticket = parse_ticket(endpoint.ticket.ticket)
        assert isinstance(ticket, ScanTicket)
        for entry in ticket.partitions or ():
            assert isinstance(entry, PartitionEntry)
            assert isinstance(entry.offset, int)
            found[cast("JsonScalar", entry.partition)] = entry.offset
    return found


def wire_partitions(
    partitions: PartitionsValue, offsets: Mapping[Any, int] | None = None
) -> Literal["all"] | tuple[PartitionEntry, ...]:
    """Return partitions in their wire form.

    Args:
        partitions: Values, or all.
        offsets: Where to begin in those of a list that are in it.
    """
    if partitions == ALL:
        return ALL
    given = wire_positions(offsets or {})
    values = [wire_partition(value) for value in partitions]
    return tuple(PartitionEntry(value, given.get(value)) for value in values)


def wire_positions(offsets: Mapping[Any, int]) -> dict[JsonScalar, int]:
    """Return offsets by partition value in their wire form."""
    return {wire_partition(value): offset for value, offset in offsets.items()}


def where(partitions: PartitionsValue, offset: OffsetsValue) -> dict[str, Any]:
    """Return the keys of a ticket that say which partitions are read, and from where.

    Args:
        partitions: Which.
        offset: Where to begin.
    """
    if not isinstance(offset, Mapping):
        return {"partitions": wire_partitions(partitions), "offset": wire_offset(offset)}
    if partitions == ALL:
        return {
            "partitions": ALL,
            "positions": tuple(wire_positions(offset).items()),
            "offset": "earliest",
        }
    return {"partitions": wire_partitions(partitions, offset), "offset": "earliest"}
