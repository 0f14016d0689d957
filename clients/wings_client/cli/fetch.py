"""`wings fetch`: shows the messages of one or all partitions from an offset on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import pyarrow as pa
import typer

from wings_client import ConsumedBatch, FetchResult, RangesBatch
from wings_client.cli.endpoint import (
    DEFAULT,
    AnyEndpointOption,
    Endpoint,
    TopicArgument,
    connected,
    explained,
)
from wings_client.cli.http import HttpServer
from wings_client.cli.output import Format, check_output, write_all
from wings_client.cli.values import (
    Offset,
    chosen_columns,
    parse_offset,
    parse_partition,
    partition_text,
    printable,
)
from wings_core.errors import WingsError
from wings_core.names import TopicName
from wings_core.partitions import JsonScalar, partition_of_value, partition_sort_key


@dataclass(frozen=True, slots=True)
class Wanted:
    """The arguments of a fetch."""

    topic: str
    partition: str | None
    offset: Offset
    timeout_ms: int | None
    min_messages: int | None
    max_messages: int | None
    columns: list[str] | None
    filter: str | None
    system_columns: bool


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a fetch from one partition."""

    partition: JsonScalar
    start_offset: int
    end_offset: int | None
    schema: pa.Schema
    batches: Sequence[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class FoundMany:
    """The result of a fetch from all partitions."""

    schema: pa.Schema
    parts: Sequence[Found]
    """Results of the partitions with messages, ordered by value."""


OffsetOption = Annotated[
    str,
    typer.Option(
        metavar="N",
        help="Start: a number; over Flight also earliest, latest, or a time like "
        "2026-11-20T12:00:00Z.",
    ),
]
PartitionOption = Annotated[
    str | None,
    typer.Option(
        metavar="V",
        help="Partition value, by the key's type: 7, JFK, true; base64 for binary. "
        "Default: all, over Flight.",
    ),
]
TimeoutOption = Annotated[
    int | None,
    typer.Option(metavar="MS", min=0, help="Longest wait in milliseconds. Default: 500."),
]
MinMessagesOption = Annotated[
    int | None, typer.Option(metavar="N", help="Messages to wait for. Default: 1.")
]
MaxMessagesOption = Annotated[
    int | None, typer.Option(metavar="N", help="Most messages. Default: 10000.")
]
ColumnsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES", help="Columns to show, comma-separated; repeatable. Flight only."
    ),
]
FilterOption = Annotated[
    str | None,
    typer.Option("--filter", metavar="SQL", help="Show only matching messages. Flight only."),
]
SystemColumnsOption = Annotated[
    bool,
    typer.Option("--system-columns", help="Append __offset and __timestamp. Flight only."),
]
FormatOption = Annotated[
    Format, typer.Option("--format", help="table for people; the others write only data.")
]


def fetch(
    topic: TopicArgument,
    *,
    offset: OffsetOption,
    partition: PartitionOption = None,
    timeout: TimeoutOption = None,
    min_messages: MinMessagesOption = None,
    max_messages: MaxMessagesOption = None,
    columns: ColumnsOption = None,
    predicate: FilterOption = None,
    system_columns: SystemColumnsOption = False,
    wanted_format: FormatOption = Format.TABLE,
    endpoint: AnyEndpointOption = DEFAULT,
) -> None:
    """Fetch messages of one or all partitions, waiting if there are too few.

    Prints the topic as you named it, the partition, the offsets of the first and the last message,
    and the messages:

        $ wings fetch flights --partition JFK --offset 0 --max-messages 2

        Topic: flights, Partition: JFK, Start: 0, End: 1

    The partition of a topic without a key is `null`. Without messages, End is `null` and Start the
    requested offset. Without `--partition`, each partition with messages is shown like this, up to
    `--max-messages` in total. A failure is one line, with exit status 1:

        Topic: flights, Partition: JFK, Error: the reason

    `--format json` (one array), `csv` and `arrow` (an IPC stream) write only data to standard
    output, and failures to standard error:

        $ wings fetch flights --partition JFK --offset 0 --format json | jq '.[0]'
    """
    check_output(wanted_format)
    wanted = Wanted(
        topic=topic,
        partition=partition,
        offset=parse_offset(offset),
        timeout_ms=timeout,
        min_messages=min_messages,
        max_messages=max_messages,
        columns=columns or None,
        filter=predicate,
        system_columns=system_columns,
    )
    server = Endpoint.parse(endpoint)
    try:
        found = _over_http(server, wanted) if server.is_http else _over_flight(endpoint, wanted)
    except WingsError as error:
        typer.echo(_failure(wanted, error), err=wanted_format is not Format.TABLE)
        raise typer.Exit(1) from None
    if isinstance(found, FoundMany):
        _write_many(wanted, found, wanted_format)
        return
    if wanted_format is Format.TABLE:
        typer.echo(f"{_success(wanted, found)}\n")
    write_all(found.batches, found.schema, wanted_format)


def _write_many(wanted: Wanted, found: FoundMany, wanted_format: Format) -> None:
    if wanted_format is not Format.TABLE:
        batches = [batch for part in found.parts for batch in part.batches]
        write_all(batches, found.schema, wanted_format)
        return
    if not found.parts:
        typer.echo(f"Topic: {printable(wanted.topic)}, Partition: all, Start: null, End: null")
    for number, part in enumerate(found.parts):
        between = "\n" if number else ""
        typer.echo(f"{between}{_success(wanted, part)}\n")
        write_all(part.batches, part.schema, wanted_format)


def _success(wanted: Wanted, found: Found) -> str:
    end = "null" if found.end_offset is None else found.end_offset
    return (
        f"Topic: {printable(wanted.topic)}, Partition: {partition_text(found.partition)}, "
        f"Start: {found.start_offset}, End: {end}"
    )


def _failure(wanted: Wanted, error: WingsError) -> str:
    given = "null" if wanted.partition is None else printable(wanted.partition)
    message = " ".join(printable(error.message.replace("\n", " ")).split())
    return f"Topic: {printable(wanted.topic)}, Partition: {given}, Error: {message}"


def _over_flight(endpoint: str, wanted: Wanted) -> Found | FoundMany:
    with connected(endpoint, wanted.topic) as client:
        topic = client.topic(wanted.topic)
        many = wanted.partition is None and topic.partition_key is not None
        partition = None if many else parse_partition(wanted.partition, topic)
        result = client.fetch(
            topic,
            partition,
            offset=wanted.offset,
            timeout=None if wanted.timeout_ms is None else wanted.timeout_ms / 1000,
            min_messages=wanted.min_messages,
            max_messages=wanted.max_messages,
            columns=chosen_columns(wanted.columns, topic.schema),
            filter=wanted.filter,
            system_columns=wanted.system_columns,
        )
    if many:
        return FoundMany(result.schema, _by_partition(result))
    return Found(partition, result.start_offset, result.end_offset, result.schema, result.batches)


def _by_partition(result: FetchResult) -> list[Found]:
    """Return the result of each partition, ordered by value."""
    parts: dict[JsonScalar, list[ConsumedBatch]] = {}
    for batch, ranges in zip(result.batches, result.ranges, strict=True):
        for part in RangesBatch(batch, ranges).parts():
            if part.batch.num_rows:
                parts.setdefault(part.partition, []).append(part)
    return [
        Found(
            value,
            parts[value][0].start_offset,
            parts[value][-1].end_offset,
            result.schema,
            [part.batch for part in parts[value]],
        )
        for value in sorted(parts, key=lambda value: partition_sort_key(partition_of_value(value)))
    ]


def _over_http(endpoint: Endpoint, wanted: Wanted) -> Found:
    if wanted.columns or wanted.filter is not None or wanted.system_columns:
        raise typer.BadParameter(
            "--columns, --filter and --system-columns need Arrow Flight: give grpc://HOST:PORT",
            param_hint="--endpoint",
        )
    if not isinstance(wanted.offset, int):
        raise typer.BadParameter("over HTTP an offset must be a number", param_hint="--offset")
    limits = {
        "timeout_ms": None if wanted.timeout_ms is None else max(2, wanted.timeout_ms),
        "min_messages": wanted.min_messages,
        "max_messages": wanted.max_messages,
    }
    server = HttpServer(endpoint)
    try:
        topic = server.topic(wanted.topic)
        partition = parse_partition(wanted.partition, topic)
        given = {name: value for name, value in limits.items() if value is not None}
        result = server.fetch(topic, partition, wanted.offset, given)
    except WingsError as error:
        namespace = str(TopicName.parse(wanted.topic).namespace)
        raise explained(
            error, endpoint.url, wanted.topic, lambda: server.topic_names(namespace)
        ) from error
    return Found(
        partition,
        result.start_offset,
        result.end_offset,
        result.table.schema,
        result.table.to_batches(),
    )
