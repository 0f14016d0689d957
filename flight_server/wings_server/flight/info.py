"""GetFlightInfo, GetSchema and ListFlights: what can be read, and by which tickets."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.flight as flight

from wings_core.contracts.info import InfoCommand, info_path, parse_criteria, parse_info_command
from wings_core.contracts.tickets import ScanTicket
from wings_core.errors import InvalidArgument, InvalidTicket, OffsetOutOfRange
from wings_core.fetch.selection import Selection
from wings_core.log import Log
from wings_core.model import PartitionState, Topic
from wings_core.names import NamespaceName, TopicName
from wings_core.partitions import partition_of, partition_value
from wings_server.flight.do_get import resolve_offset

ENDPOINTS_MAX = 100_000
"""The most endpoints of one answer."""

LOCATIONS_MAX = 200_000
"""The most locations of one answer: beyond it each endpoint lists fewer nodes, at least one."""


def parse_info_descriptor(descriptor: flight.FlightDescriptor) -> InfoCommand:
    """Return the command of a descriptor, a path `[topic]` or JSON.

    Raises:
        InvalidArgument: Neither, or an unknown key or bad value in it.
    """
    if descriptor.command is not None:
        return parse_info_command(descriptor.command)
    if descriptor.path is not None:
        return info_path(descriptor.path)
    raise InvalidArgument("the descriptor is neither a path [topic] nor a JSON command")


def get_schema(log: Log, descriptor: flight.FlightDescriptor) -> pa.Schema:
    """Return the schema of the batches that a read of this descriptor gives."""
    command = parse_info_descriptor(descriptor)
    topic = log.admin.get_topic(TopicName.parse(command.topic))
    return _selection(topic, command).schema


def get_info(
    log: Log, descriptor: flight.FlightDescriptor, addresses: Sequence[str] = ()
) -> flight.FlightInfo:
    """Return the endpoints that together read what the command names, and its size.

    There is one endpoint for each partition, or with `splits: n` min(n, rows) of near-equal ranges.
    Ranges are fixed now, so all endpoints of one answer read one state of the log.

    Args:
        log: The log.
        descriptor: A path `[topic]` or a JSON command.
        addresses: The `HOST:PORT` of all nodes, the answering one first. Each endpoint lists all of
            them as locations, and begins with the one after that of the endpoint before it: a
            client that takes the first of each spreads its reads. None: no locations, which in
            Flight means the server that answers.

    Raises:
        TopicNotFound: And the other errors of tickets.
    """
    command = parse_info_descriptor(descriptor)
    topic = log.admin.get_topic(TopicName.parse(command.topic))
    return _info(log, topic, command, descriptor, addresses)


def list_flights(
    log: Log, raw_criteria: bytes, addresses: Sequence[str] = ()
) -> Iterator[flight.FlightInfo]:
    """Yield the topics of one namespace, or of all, by name.

    Raises:
        NamespaceNotFound: The criteria name one that does not exist.
    """
    criteria = parse_criteria(raw_criteria)
    if criteria.namespace is not None:
        names = [NamespaceName.parse(criteria.namespace)]
        log.admin.get_namespace(names[0])
    else:
        names = [namespace.name for namespace in log.admin.list_namespaces()]
    for name in names:
        for topic in log.admin.list_topics(name):
            descriptor = flight.FlightDescriptor.for_path(str(topic.name))
            yield _info(log, topic, InfoCommand(topic=str(topic.name)), descriptor, addresses)


def _selection(topic: Topic, command: InfoCommand) -> Selection:
    try:
        return Selection.of(
            topic, command.columns, command.filter, system_columns=command.system_columns
        )
    except InvalidTicket as error:  # An unknown column; here it is of a command.
        raise InvalidArgument(error.message, **error.facts) from None


def _info(
    log: Log,
    topic: Topic,
    command: InfoCommand,
    descriptor: flight.FlightDescriptor,
    addresses: Sequence[str],
) -> flight.FlightInfo:
    selection = _selection(topic, command)
    tickets: list[bytes] = []
    records = 0
    size = 0
    for state in _states(log, topic, command):
        start, end = _range(log, topic, command, state)
        rows = end - start
        records += rows
        kept = state.next_offset - state.log_start_offset
        size += state.bytes * rows // kept if kept else 0
        if len(tickets) + min(command.splits, max(1, rows)) > ENDPOINTS_MAX:
            raise InvalidArgument(
                f"{command.splits} splits of each partition make more than {ENDPOINTS_MAX} "
                "endpoints: ask for fewer, or for one partition"
            )
        for first, last in _split(start, end, command.splits):
            ticket = ScanTicket(
                topic=str(topic.name),
                partition=partition_value(state.partition),
                offset=first,
                end_offset=last,
                columns=command.columns,
                filter=command.filter,
                system_columns=command.system_columns,
            )
            tickets.append(ticket.to_bytes())
    endpoints = [
        flight.FlightEndpoint(ticket, locations)
        for ticket, locations in zip(tickets, _locations(addresses, len(tickets)), strict=True)
    ]
    if selection.row_filter is not None:
        records = -1
    return flight.FlightInfo(selection.schema, descriptor, endpoints, records, size)


def _locations(addresses: Sequence[str], endpoints: int) -> Iterator[list[str | flight.Location]]:
    """Yield the locations of each endpoint, each time beginning with another node."""
    each = min(len(addresses), max(1, LOCATIONS_MAX // max(1, endpoints)))
    for index in range(endpoints):
        yield [f"grpc://{addresses[(index + n) % len(addresses)]}" for n in range(each)]


def _states(log: Log, topic: Topic, command: InfoCommand) -> list[PartitionState]:
    if command.partition is None:
        return log.registry.partition_states(topic.uuid)
    partition = partition_of(command.partition, topic.key_type)
    return [log.registry.partition_state(topic.uuid, partition)]


def _range(log: Log, topic: Topic, command: InfoCommand, state: PartitionState) -> tuple[int, int]:
    """Return the range `[start, end)` that the command reads of a partition."""
    start = resolve_offset(log, topic, state.partition, command.offset)
    if start < state.log_start_offset:
        raise OffsetOutOfRange(
            f"offset {start} of partition {state.partition:.80} is below the log's start "
            f"{state.log_start_offset}",
            log_start_offset=state.log_start_offset,
            partition=partition_value(state.partition),
        )
    end = state.next_offset
    if command.end_offset is not None:
        end = min(end, command.end_offset)
    return start, max(start, end)


def _split(start: int, end: int, splits: int) -> Iterator[tuple[int, int]]:
    """Cut a range into min(splits, rows) near-equal ones; an empty range stays one."""
    count = max(1, min(splits, end - start))
    for index in range(count):
        yield start + (end - start) * index // count, start + (end - start) * (index + 1) // count
