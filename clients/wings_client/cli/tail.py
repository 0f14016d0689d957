"""`wings tail`: shows the messages of all partitions of a topic as they come."""

from collections.abc import Generator
from typing import Annotated

import pyarrow as pa
import typer

from wings_client import Client, Topic
from wings_client._consumer_reads import ConsumerReads
from wings_client.cli.endpoint import DEFAULT, EndpointOption, connected_transport, short_name
from wings_client.cli.following import (
    RETRY,
    ColumnsOption,
    Display,
    FilterOption,
    FormatOption,
    IdleOption,
    SystemColumnsOption,
    say,
)
from wings_client.cli.output import Format, check_output
from wings_client.cli.values import Offset, chosen_columns, parse_offset, parse_partition
from wings_core.partitions import Partition, partition_of_value, partition_value


def tail(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="Full name, or id in the default namespace.")
    ],
    *,
    partition: Annotated[
        str | None,
        typer.Option(
            metavar="V",
            help="One partition, read by the key's type. Default: all, new ones included.",
        ),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="earliest, latest, an offset, or a time like 2026-11-20T12:00:00Z. Partitions "
            "born later are shown from their start.",
        ),
    ] = "latest",
    columns: ColumnsOption = None,
    predicate: FilterOption = None,
    system_columns: SystemColumnsOption = False,
    wanted_format: FormatOption = Format.TABLE,
    timeout: IdleOption = None,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Show the messages of a topic as they come, of all its partitions.

    As a table for people, or as data for another program:

        $ wings tail flights --filter 'delay > 60' --columns origin,destination,delay

        $ wings tail flights --partition JFK --from earliest --format json | jq .delay

    Within a partition messages come in order, each once, also where the server is restarted
    meanwhile. Ctrl-C ends it, with exit status 130.
    """
    check_output(wanted_format)
    offset = parse_offset(start)
    display = Display(wanted_format, system_columns=system_columns)
    with connected_transport(endpoint, topic, RETRY) as (client, transport):
        described = client.topic(topic)
        reads = ConsumerReads(
            transport,
            lambda: client.partitions(described),
            described,
            _fixed(described, partition),
            _starts(client, described, partition, offset),
            {
                "columns": chosen_columns(columns, described.schema),
                "filter": predicate,
                "system_columns": True,
            },
        )
        say(f"following {short_name(described.name)} from {start}; Ctrl-C ends it")
        display.run(_batches(reads, None if timeout is None else timeout / 1000), done=lambda: "")


def _fixed(topic: Topic, given: str | None) -> list[Partition] | None:
    """Return the one partition to read, or None for all."""
    if given is None and topic.partition_key is not None:
        return None
    return [partition_of_value(parse_partition(given, topic))]


def _starts(
    client: Client, topic: Topic, given: str | None, offset: Offset
) -> dict[Partition, int]:
    """Return the offset to begin at in each partition that exists now."""
    fixed = _fixed(topic, given)
    if fixed is not None:
        value = partition_value(fixed[0])
        return {fixed[0]: client.resolve_offset(topic, offset, value)}
    states = client.partitions(topic)
    found: dict[Partition, int] = {}
    for state in states:
        if isinstance(offset, int):
            start = max(offset, state.log_start_offset)
        elif offset == "earliest":
            start = state.log_start_offset
        elif offset == "latest":
            start = state.next_offset
        else:
            start = client.offset_for_timestamp(topic, offset, state.partition)
        found[partition_of_value(state.partition)] = start
    return found


def _batches(reads: ConsumerReads, idle_seconds: float | None) -> Generator[pa.RecordBatch]:
    """Yield the batches read; ends after `idle_seconds` without one."""
    try:
        reads.start()
        while (taken := reads.handover.take(idle_seconds)) is not None:
            yield taken.batch
    finally:
        reads.close()
