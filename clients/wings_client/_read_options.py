"""Options of reads: partitions, starts, columns and rows, in the form of calls and of the wire."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict, cast

from wings_client._arguments import OffsetValue, build, wire_offset, wire_partition
from wings_client._model import PartitionValue
from wings_client._transport import Transport
from wings_core.contracts.info import InfoCommand
from wings_core.contracts.reads import ALL, Offset, PartitionEntry
from wings_core.contracts.tickets import FollowTicket, ScanTicket, parse_ticket
from wings_core.errors import InvalidTicket, PartitionRequired
from wings_core.partitions import JsonScalar

PartitionsValue = Sequence[PartitionValue] | Literal["all"]
"""Many partitions: all, those born later too, or the values of some."""

OffsetsValue = OffsetValue | Mapping[Any, int]
"""Starts in many partitions: the same in all, or offsets by partition value, such as `next_offsets`
of an earlier read; partitions without one start at the beginning of their log."""


class SelectKeywords(TypedDict, total=False):
    """Keyword arguments of every read: the columns and rows to return."""

    columns: Sequence[str] | None
    """Names of the columns, in order; None for all."""
    filter: str | None
    """SQL predicate over the topic's columns."""
    system_columns: bool
    """Append `__offset` and `__timestamp`; of many partitions, before them `__partition`, the
    value's JSON text."""


class ReadKeywords(SelectKeywords, total=False):
    """Keyword arguments of reads that also take a version of the schema."""

    schema_version: int | None
    """Return the columns as in an earlier version of the schema; None for the latest."""


def place(
    partition: PartitionValue, partitions: PartitionsValue | None, offset: OffsetsValue
) -> dict[str, Any]:
    """Return the keys of a ticket that name its partitions and starts.

    Args:
        partition: The partition of a read of one.
        partitions: The partitions of a read of many; None for a read of one.
        offset: The start.

    Raises:
        InvalidTicket: `offset` is a mapping, and the read is of one partition.
    """
    if not isinstance(offset, Mapping):
        keys: dict[str, Any] = {"offset": wire_offset(offset)}
        if partitions is None:
            return keys | {"partition": wire_partition(partition)}
        return keys | {"partitions": wire_partitions(partitions)}
    if partitions is None:
        raise InvalidTicket("offsets by partition are of many partitions")
    if partitions == ALL:
        positions = tuple(wire_positions(offset).items())
        return {"partitions": ALL, "positions": positions, "offset": "earliest"}
    return {"partitions": wire_partitions(partitions, offset), "offset": "earliest"}


def starts(transport: Transport, command: InfoCommand) -> dict[JsonScalar, int]:
    """Return the present offset of a read's start, by partition value, of the existing partitions.

    A list of partitions has an entry for each. Blocks for one call.

    Args:
        transport: To the server.
        command: The topic, the partitions and the start.

    Raises:
        PartitionRequired: The read is of one partition, and the topic is partitioned.
    """
    found: dict[JsonScalar, int] = {}
    for endpoint in transport.info(command).endpoints:
        ticket = parse_ticket(endpoint.ticket.ticket)
        assert isinstance(ticket, ScanTicket)
        for value, offset, _ in entries_of(ticket):
            assert isinstance(offset, int)
            found[cast("JsonScalar", value)] = offset
    # Without a partition, a topic with a key responds with all its partitions.
    if command.partitions is None and list(found) != [command.partition]:
        raise PartitionRequired("the topic is partitioned: give a partition value")
    return found


def command_of(ticket: FollowTicket, offset: Offset, **selection: Any) -> InfoCommand:
    """Return the command that plans a read of a ticket's partitions, all from `offset`."""
    partitions = ticket.partitions
    if partitions is not None and partitions != ALL:
        partitions = tuple(PartitionEntry(entry.partition) for entry in partitions)
    return build(
        InfoCommand,
        "follow",
        error=InvalidTicket,
        topic=ticket.topic,
        partition=ticket.partition,
        partitions=partitions,
        offset=offset,
        **selection,
    )


def entries_of(ticket: ScanTicket | FollowTicket) -> Sequence[PartitionEntry]:
    """Return the partitions of a ticket, with their ranges; empty for all."""
    if ticket.partitions is None:
        end_offset = ticket.end_offset if isinstance(ticket, ScanTicket) else None
        return (PartitionEntry(ticket.partition, ticket.offset, end_offset),)
    return () if ticket.partitions == ALL else ticket.partitions


def wire_partitions(
    partitions: PartitionsValue, offsets: Mapping[Any, int] | None = None
) -> Literal["all"] | tuple[PartitionEntry, ...]:
    """Return partitions in their wire form.

    Args:
        partitions: Values, or all.
        offsets: Starts by partition value, for a list.
    """
    if partitions == ALL:
        return ALL
    given = wire_positions(offsets or {})
    values = [wire_partition(value) for value in partitions]
    return tuple(PartitionEntry(value, given.get(value)) for value in values)


def wire_positions(offsets: Mapping[Any, int]) -> dict[JsonScalar, int]:
    """Return offsets by partition value in their wire form."""
    return {wire_partition(value): offset for value, offset in offsets.items()}
