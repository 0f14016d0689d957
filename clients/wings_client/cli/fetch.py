"""`wings fetch`: shows the messages of one or all partitions from an offset on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import pyarrow as pa
import typer

from wings_client import ConsumedBatch, FetchResult, RangesBatch
from wings_client.cli.endpoint import Endpoint, connected_reader, explained
from wings_client.cli.options import (
    DEFAULT,
    FormatOption,
    PartitionOption,
    ReadingOptions,
    TopicArgument,
    grouped,
)
from wings_client.cli.output import check_output, write_all
from wings_client.cli.values import (
    Offset,
    duration,
    one_line,
    parse_offset,
    parse_partition,
    partition_text,
    printable,
)
from wings_core.errors import WingsError
from wings_core.partitions import JsonScalar, partition_of_value, partition_sort_key


@dataclass(frozen=True, slots=True)
class Found:
    """Messages of one partition."""

    partition: JsonScalar
    start_offset: int
    end_offset: int | None
    batches: Sequence[pa.RecordBatch]


AnyEndpointOption = Annotated[
    str,
    typer.Option(
        "--endpoint",
        envvar="WINGS_ENDPOINT",
        metavar="URL",
        help="Address of the server: grpc://HOST:PORT, or http://HOST:PORT.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions(ReadingOptions):
    """Options of a fetch."""

    offset: Annotated[
        str,
        typer.Option(
            "--from",
            "--offset",
            metavar="WHERE",
            help="Start: an offset; over Flight also earliest, latest, a time like "
            "2026-11-20T12:00:00Z or -1h, or -100 for the last hundred of each partition.",
        ),
    ]
    partition: PartitionOption = None
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="DURATION",
            parser=duration("ms"),
            help="Longest wait, like 30s. Default: 500ms.",
        ),
    ] = None
    min_messages: Annotated[
        int | None, typer.Option(metavar="N", help="Messages to wait for. Default: 1.")
    ] = None
    max_messages: Annotated[
        int | None, typer.Option(metavar="N", help="Most messages. Default: 10000.")
    ] = None


@grouped
def fetch(
    topic: TopicArgument,
    *,
    options: FetchOptions,
    wanted_format: FormatOption = "table",
    endpoint: AnyEndpointOption = DEFAULT,
) -> None:
    """Fetch messages of one or all partitions, waiting if there are too few.

    Prints the topic as you named it, the partition, the offsets of the first and the last message,
    and the messages:

        $ wings fetch flights --partition JFK --from 0 --max-messages 2

        Topic: flights, Partition: JFK, Start: 0, End: 1

    The partition of a topic without a key is `null`. Without messages, End is `null` and Start the
    requested offset. Without `--partition`, each partition with messages is shown like this, up to
    `--max-messages` in total. A failure is one line on standard error, with exit status 1:

        Topic: flights, Partition: JFK, Error: the reason

    `--format json` (one array), `csv` and `arrow` (an IPC stream) write data alone:

        $ wings fetch flights --partition JFK --from -100 --format json | jq '.[0]'

    Over HTTP, it reads all columns and rows of one partition, from an offset that is a number.
    """
    check_output(wanted_format)
    offset = parse_offset(options.offset)
    server = Endpoint.parse(endpoint)
    try:
        read = _over_http if server.is_http else _over_flight
        schema, parts = read(server, topic, offset, options)
    except WingsError as error:
        typer.echo(_failure(topic, options.partition, error), err=True)
        raise typer.Exit(1) from None
    if wanted_format != "table":
        write_all([batch for part in parts for batch in part.batches], schema, wanted_format)
        return
    if not parts:
        typer.echo(f"Topic: {printable(topic)}, Partition: all, Start: null, End: null")
    for number, part in enumerate(parts):
        between = "\n" if number else ""
        typer.echo(f"{between}{_success(topic, part)}\n")
        write_all(part.batches, schema, wanted_format)


def _success(topic: str, found: Found) -> str:
    end = "null" if found.end_offset is None else found.end_offset
    return (
        f"Topic: {printable(topic)}, Partition: {partition_text(found.partition)}, "
        f"Start: {found.start_offset}, End: {end}"
    )


def _failure(topic: str, partition: str | None, error: WingsError) -> str:
    given = "null" if partition is None else printable(partition)
    return f"Topic: {printable(topic)}, Partition: {given}, Error: {one_line(error.message)}"


def _over_flight(
    server: Endpoint, name: str, offset: Offset, options: FetchOptions
) -> tuple[pa.Schema, list[Found]]:
    """Return the schema of the messages, and those of each partition that has some, by value.

    Of one partition that was asked for, they may be none.
    """
    with connected_reader(server.url, name) as client:
        topic = client.topic(name)
        many = options.partition is None and topic.partition_key is not None
        partition = None if many else parse_partition(options.partition, topic)
        result = client.fetch(
            topic,
            partition,
            offset=offset,
            timeout=options.timeout,
            min_messages=options.min_messages,
            max_messages=options.max_messages,
            **options.arguments(topic.schema),
        )
    if many:
        return result.schema, _by_partition(result)
    found = Found(partition, result.start_offset, result.end_offset, result.batches)
    return result.schema, [found]


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
            [part.batch for part in parts[value]],
        )
        for value in sorted(parts, key=lambda value: partition_sort_key(partition_of_value(value)))
    ]


def _over_http(
    endpoint: Endpoint, name: str, offset: Offset, options: FetchOptions
) -> tuple[pa.Schema, list[Found]]:
    if options.columns or options.predicate is not None or options.system_columns:
        raise typer.BadParameter(
            "--columns, --filter and --system-columns need Arrow Flight: give grpc://HOST:PORT",
            param_hint="--endpoint",
        )
    if not isinstance(offset, int) or offset < 0:
        raise typer.BadParameter("over HTTP it must be an offset", param_hint="--from")
    limits = {
        "timeout_ms": None if options.timeout is None else max(2, round(options.timeout * 1000)),
        "min_messages": options.min_messages,
        "max_messages": options.max_messages,
    }
    from wings_client.cli.fetch_http import HttpServer  # Few fetches are over HTTP.

    server = HttpServer(endpoint)
    try:
        topic = server.topic(name)
        partition = parse_partition(options.partition, topic)
        given = {key: value for key, value in limits.items() if value is not None}
        batch, start, end = server.fetch(topic, partition, offset, given)
    except WingsError as error:
        raise explained(error, endpoint.url, name) from error
    return batch.schema, [Found(partition, start, end, [batch] if batch.num_rows else [])]
