"""`wings tail`: shows the messages of all partitions of a topic as they come."""

from collections.abc import Generator, Sequence
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
from wings_core.partitions import JsonScalar


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
        fixed = _fixed(described, partition)
        reads = ConsumerReads(
            transport,
            described,
            fixed,
            _starts(client, described, fixed, offset),
            {
                "columns": chosen_columns(columns, described.schema),
                "filter": predicate,
                "system_columns": True,
            },
        )
        say(f"following {short_name(described.name)} from {start}; Ctrl-C ends it")
        display.run(_batches(reads, None if timeout is None else timeout / 1000), done=lambda: "")


def _fixed(topic: Topic, given: str | None) -> list[JsonScalar] | None:
    """Return the one partition to read, or None for all."""
    if given is None and topic.partition_key is not None:
        return None
    return [parse_partition(given, topic)]


def _starts(
    client: Client, topic: Topic, fixed: Sequence[JsonScalar] | None, offset: Offset
) -> dict[JsonScalar, int]:
    """Return the offset to begin at in each partition where that is not the log's start."""
    if offset == "earliest":
        return {}
    if fixed is not None:
        return {value: client.resolve_offset(topic, offset, value) for value in fixed}
    states = {state.partition: state for state in client.partitions(topic)}
    if isinstance(offset, int):
        return {value: max(offset, state.log_start_offset) for value, state in states.items()}
    return client.resolve_offsets(topic, offset)


def _batches(reads: ConsumerReads, idle_seconds: float | None) -> Generator[pa.RecordBatch]:
    """Yield the batches read; ends after `idle_seconds` without one."""
    try:
        reads.start()
        while True:
            taken = reads.handover.take(idle_seconds)
            if taken is not None:
                yield taken.batch
            elif reads.handover.ended or not reads.lags():
                return
    finally:
        reads.close()
