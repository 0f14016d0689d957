"""GetFlightInfo, GetSchema and ListFlights: the readable topics, and tickets for them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from wings_core.contracts.info import (
    InfoCommand,
    divide,
    parse_criteria,
)
from wings_core.contracts.put import command_of
from wings_core.contracts.reads import PartitionEntry
from wings_core.contracts.tickets import ScanTicket
from wings_core.errors import InvalidArgument, InvalidTicket
from wings_core.fetch.begins import chosen_of, committed, cursors_of
from wings_core.fetch.selection import Selection
from wings_core.log import Log
from wings_core.model import PartitionState, Topic
from wings_core.names import NamespaceName, TopicName
from wings_core.partitions import Partition, partition_value
from wings_core.security.principal import ANYONE, Principal
from wings_core.security.rights import Right
from wings_server.served_log import with_topic

T = TypeVar("T")

ENDPOINTS_MAX = 100_000
"""Most endpoints of a response."""

LOCATIONS_MAX = 200_000
"""Most locations of a response: beyond them each endpoint lists fewer nodes, at least one."""


def parse_info_descriptor(descriptor: flight.FlightDescriptor) -> InfoCommand:
    """Return the command of a descriptor, a path `[topic]` or JSON.

    Raises:
        InvalidArgument: The descriptor is neither, or has an unknown key or bad value.
    """
    return command_of(InfoCommand, descriptor.path, descriptor.command, "info command")


def get_schema(log: Log, descriptor: flight.FlightDescriptor) -> pa.Schema:
    """Return the schema of the batches that a read of this descriptor returns."""
    command = parse_info_descriptor(descriptor)
    return _with_topic(log, command, lambda topic: _selection(topic, command).schema)


def get_info(
    log: Log, descriptor: flight.FlightDescriptor, addresses: Sequence[str] = ()
) -> flight.FlightInfo:
    """Return endpoints that together cover the command, and its size.

    There is one endpoint for each partition, or with `splits: n` min(n, rows) of near-equal ranges.
    With `partitions`, an endpoint reads many, and `splits` is the number of all endpoints: fewer
    where there are fewer rows, more where there are more than `ENTRIES_MAX` partitions for each.
    Ranges are fixed now, so all endpoints of one answer read one state of the log.

    Args:
        log: The log.
        descriptor: A path `[topic]` or a JSON command.
        addresses: The locations of all nodes, the answering one first. Each endpoint lists all of
            them as locations, and begins with the one after that of the endpoint before it: a
            client that takes the first of each spreads its reads. None: no locations, which in
            Flight means the server that answers.

    Raises:
        TopicNotFound: And the other errors of tickets.
    """
    command = parse_info_descriptor(descriptor)
    return _with_topic(
        log, command, lambda topic: _info(log, topic, command, descriptor, addresses)
    )


def list_flights(
    log: Log,
    raw_criteria: bytes,
    addresses: Sequence[str] = (),
    principal: Principal = ANYONE,
) -> Iterator[flight.FlightInfo]:
    """Yield the topics of one or all namespaces that a principal may see, in order of name.

    Topics that the principal may not read come without endpoints and sizes.

    Raises:
        NamespaceNotFound: The criteria name a namespace that does not exist.
    """
    criteria = parse_criteria(raw_criteria)
    if criteria.namespace is not None:
        names = [NamespaceName.parse(criteria.namespace)]
        if principal.may_see_namespace(names[0]):
            log.admin.get_namespace(names[0])
    else:
        names = [namespace.name for namespace in log.admin.list_namespaces()]
    for name in filter(principal.may_see_namespace, names):
        for topic in log.admin.list_topics(name):
            if not principal.may_see(str(topic.name)):
                continue
            descriptor = flight.FlightDescriptor.for_path(str(topic.name))
            if not principal.may(Right.READ, str(topic.name)):
                # Tickets name the partitions, whose values are data.
                yield flight.FlightInfo(topic.schema, descriptor, [], -1, -1)
                continue
            yield _info(log, topic, InfoCommand(topic=str(topic.name)), descriptor, addresses)


def _with_topic(log: Log, command: InfoCommand, use: Callable[[Topic], T]) -> T:
    try:
        return with_topic(log, TopicName.parse(command.topic), use, command.schema_version)
    except InvalidTicket as error:  # An unknown column or version; here it is of a command.
        raise InvalidArgument(error.message, **error.facts) from None


def _selection(topic: Topic, command: InfoCommand) -> Selection:
    return Selection.of(topic, command, many=command.partitions is not None)


def _info(
    log: Log,
    topic: Topic,
    command: InfoCommand,
    descriptor: flight.FlightDescriptor,
    addresses: Sequence[str],
) -> flight.FlightInfo:
    selection = _selection(topic, command)
    ranges = _ranges(log, topic, command)
    named = {**command.selection, "schema_version": topic.schema_version}
    wanted = ScanTicket(topic=str(topic.name)).model_copy(update=named)
    tickets = _tickets_each if command.partitions is None else _tickets_many
    found = [ticket.to_bytes() for ticket in tickets(wanted, ranges, command.splits)]
    endpoints = [
        flight.FlightEndpoint(ticket, locations)
        for ticket, locations in zip(found, _locations(addresses, len(found)), strict=True)
    ]
    records = sum(each.rows for each in ranges) if selection.row_filter is None else -1
    size = sum(each.bytes for each in ranges)
    return flight.FlightInfo(selection.schema, descriptor, endpoints, records, size)


@dataclass(frozen=True, slots=True)
class _Range:
    """The range of a partition that a command reads."""

    partition: Partition
    start_offset: int
    rows: int
    bytes: int
    """Approximate bytes in storage."""


def _ranges(log: Log, topic: Topic, command: InfoCommand) -> list[_Range]:
    """Return the range of each partition, all as of one moment."""
    found: list[_Range] = []
    states = _states(log, topic, command)
    positions = committed(log.registry, topic, command)
    cursors = cursors_of(log.fetcher, topic, states, command, command.end_offset, positions)
    for state, cursor in zip(states, cursors, strict=True):
        rows = max(0, cursor.stop - cursor.offset)
        kept = state.next_offset - state.log_start_offset
        size = state.bytes * rows // kept if kept else 0
        found.append(_Range(cursor.partition, cursor.offset, rows, size))
    return found


def _states(log: Log, topic: Topic, command: InfoCommand) -> Sequence[PartitionState]:
    if command.partitions is None and "partition" not in command.model_fields_set:
        return log.registry.partition_states(topic.uuid)
    return log.fetcher.states(topic, chosen_of(topic, command))


def _tickets_each(
    wanted: ScanTicket, ranges: Sequence[_Range], splits: int
) -> Iterator[ScanTicket]:
    """Yield the tickets that read one partition each, min(splits, rows) for each partition."""
    _check_endpoints(sum(max(1, min(splits, each.rows)) for each in ranges))
    for each in ranges:
        for (piece,) in divide([each.partition], [each.rows], splits):
            yield wanted.model_copy(
                update={
                    "partition": partition_value(each.partition),
                    "offset": each.start_offset + piece.first,
                    "end_offset": each.start_offset + piece.end,
                }
            )


def _tickets_many(
    wanted: ScanTicket, ranges: Sequence[_Range], splits: int
) -> Iterator[ScanTicket]:
    """Yield the tickets that read many partitions each, `splits` in total."""
    _check_endpoints(min(splits, sum(each.rows for each in ranges)))
    rows = [each.rows for each in ranges]
    for part in divide([each.partition for each in ranges], rows, splits):
        entries = [
            PartitionEntry(
                partition_value(ranges[index].partition),
                ranges[index].start_offset + first,
                ranges[index].start_offset + end,
            )
            for index, first, end in part
        ]
        yield wanted.model_copy(update={"partitions": tuple(entries)})


def _check_endpoints(count: int) -> None:
    if count > ENDPOINTS_MAX:
        raise InvalidArgument(
            f"the splits asked for make more than {ENDPOINTS_MAX} endpoints: ask for fewer, or for "
            "fewer partitions"
        )


def _locations(addresses: Sequence[str], endpoints: int) -> Iterator[list[str | flight.Location]]:
    """Yield the locations of each endpoint, beginning with a different node each time."""
    each = min(len(addresses), max(1, LOCATIONS_MAX // max(1, endpoints)))
    for index in range(endpoints):
        yield [addresses[(index + n) % len(addresses)] for n in range(each)]
