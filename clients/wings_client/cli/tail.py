"""`wings tail`: shows the messages of all partitions of a topic as they arrive."""

from collections.abc import Generator, Sequence
from typing import Annotated

import pyarrow as pa
import typer

from wings_client import Client, Topic
from wings_client._consumer_reads import ConsumerReads
from wings_client._transport import Transport
from wings_client.cli.endpoint import (
    DEFAULT,
    EndpointOption,
    TopicArgument,
    connected_transport,
    short_name,
)
from wings_client.cli.following import (
    RETRY,
    ColumnsOption,
    Display,
    FilterOption,
    FollowedOption,
    FormatOption,
    IdleOption,
    SystemColumnsOption,
    say,
)
from wings_client.cli.output import Format, check_output
from wings_client.cli.values import Offset, chosen_columns, parse_offset, parse_partition
from wings_core.contracts.sql import LiveBody
from wings_core.partitions import JsonScalar


def tail(
    topic: TopicArgument,
    *,
    partition: FollowedOption = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="earliest, latest, an offset, or a time like 2026-11-20T12:00:00Z. Later "
            "partitions are shown from their start.",
        ),
    ] = "latest",
    columns: ColumnsOption = None,
    predicate: FilterOption = None,
    system_columns: SystemColumnsOption = False,
    wanted_format: FormatOption = Format.TABLE,
    timeout: IdleOption = None,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Show the messages of all partitions of a topic as they arrive.

    As a table for people, or as data for another program:

        $ wings tail flights --filter 'delay > 60' --columns origin,destination,delay

        $ wings tail flights --partition JFK --from earliest --format json | jq .delay

    Within a partition messages are shown in order, each once, even if the server restarts
    meanwhile. Ctrl-C ends it, with exit status 130.
    """
    check_output(wanted_format)
    offset = parse_offset(start)
    display = Display(wanted_format, system_columns=system_columns)
    with connected_transport(endpoint, topic, RETRY) as (client, transport):
        described = client.topic(topic)
        reads = _reads(
            client,
            transport,
            described,
            _fixed(described, partition),
            offset,
            chosen_columns(columns, described.schema),
            predicate,
        )
        say(f"following {short_name(described.name)} from {start}; Ctrl-C ends it")
        display.run(_batches(reads, None if timeout is None else timeout / 1000), done=lambda: "")


def show_live(
    statement: str,
    namespace: str | None,
    start: str,
    idle_seconds: float | None,
    wanted: Format,
    endpoint: str,
) -> None:
    """Show the rows of a statement's live view as they arrive, until Ctrl-C.

    Also ends after `idle_seconds` without a row.
    """
    offset = parse_offset(start)
    with connected_transport(endpoint, retry=RETRY) as (client, transport):
        body = LiveBody(sql=statement, namespace=namespace)
        view = transport.act("sql-live", body, repeatable=True)
        topic = client.topic(view["topic"])
        names: list[str] | None = view["columns"]
        own = [name for name in names or () if name in topic.schema.names]
        reads = _reads(client, transport, topic, _all(topic), offset, own or None, view["filter"])
        say(f"following {short_name(topic.name)} from {start}; Ctrl-C ends it")
        display = Display(wanted, system_columns=True, names=names)
        display.run(_batches(reads, idle_seconds), done=lambda: "")


def _reads(
    client: Client,
    transport: Transport,
    topic: Topic,
    fixed: list[JsonScalar] | None,
    offset: Offset,
    columns: Sequence[str] | None,
    predicate: str | None,
) -> ConsumerReads:
    return ConsumerReads(
        transport,
        topic,
        fixed,
        _starts(client, topic, fixed, offset),
        {"columns": columns, "filter": predicate, "system_columns": True},
        on_data_loss="skip",
    )


def _all(topic: Topic) -> list[JsonScalar] | None:
    """Return the partitions for a read of the whole topic."""
    return None if topic.partition_key is not None else [None]


def _fixed(topic: Topic, given: str | None) -> list[JsonScalar] | None:
    """Return the given partition; None for all."""
    return _all(topic) if given is None else [parse_partition(given, topic)]


def _starts(
    client: Client, topic: Topic, fixed: Sequence[JsonScalar] | None, offset: Offset
) -> dict[JsonScalar, int]:
    """Return the start offset of each partition, where it is not the log's start."""
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
