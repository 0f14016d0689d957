"""`wings gather`: one request to many partitions, topics and servers; shows replies on arrival."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal

import pyarrow as pa
import typer

from wings_client import Topic
from wings_client.cli.endpoint import DEFAULT, connected, short_name
from wings_client.cli.following import (
    ColumnsOption,
    FilterOption,
    FormatOption,
    SystemColumnsOption,
)
from wings_client.cli.gathered import Display, report_end
from wings_client.cli.output import Format, check_output
from wings_client.cli.values import (
    chosen_columns,
    parse_offset,
    parse_partition,
    printable,
)
from wings_client.gather import EMPTY, Gather, GatherEnd, Reply, Request, Sentinel
from wings_core.contracts.reads import ALL

Kind = Literal["fetch", "scan", "follow"]


class KindOption(StrEnum):
    """Kind of request to each source."""

    FETCH = "fetch"
    SCAN = "scan"
    FOLLOW = "follow"


class OnError(StrEnum):
    """Effect of a failing source on the others."""

    END = "end"
    CONTINUE = "continue"


EMPTY_NAME = "empty"
"""Sentinel for an empty reply instead of a column."""


TopicsArgument = Annotated[
    list[str],
    typer.Argument(metavar="TOPIC...", help="Name, or id in the default namespace."),
]
PartitionsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--partition",
        metavar="V",
        help="A partition of each topic; repeatable. Default: all.",
    ),
]
OffsetOption = Annotated[
    str,
    typer.Option(
        metavar="WHERE", help="earliest, latest, a number, or a time like 2026-11-20T12:00:00Z."
    ),
]
KindChoice = Annotated[
    KindOption,
    typer.Option(help="fetch waits for messages, scan does not, follow never ends."),
]
TimeoutOption = Annotated[
    int | None,
    typer.Option(metavar="MS", min=1, help="Total milliseconds to wait. Default: 30000."),
]
StallOption = Annotated[
    int | None,
    typer.Option(
        metavar="MS",
        min=1,
        help="End when no reply arrives for this many milliseconds, after the first.",
    ),
]
RepliesOption = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="End after this many replies.")
]
SentinelOption = Annotated[
    str | None,
    typer.Option(
        metavar="empty|COLUMN",
        help="empty: a reply without messages ends the command, and is not shown. A bool column: "
        "the first reply with a message in which it is true is the last.",
    ),
]
OnErrorOption = Annotated[OnError, typer.Option(help="Whether a failing source ends it.")]
EndpointsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--endpoint",
        envvar="WINGS_ENDPOINT",
        metavar="grpc://HOST:PORT",
        help="Address of the server; repeatable.",
    ),
]


def gather(
    topics: TopicsArgument,
    *,
    partition: PartitionsOption = None,
    offset: OffsetOption = "earliest",
    kind: KindChoice = KindOption.FETCH,
    timeout: TimeoutOption = None,
    stall_timeout: StallOption = None,
    max_replies: RepliesOption = None,
    sentinel: SentinelOption = None,
    on_error: OnErrorOption = OnError.END,
    columns: ColumnsOption = None,
    predicate: FilterOption = None,
    system_columns: SystemColumnsOption = False,
    wanted_format: FormatOption = Format.TABLE,
    endpoint: EndpointsOption = None,
) -> None:
    """Send one request to many partitions, topics or servers, and show replies as they arrive.

        $ wings gather flights --stall-timeout 200

        $ wings gather flights weather --partition JFK --max-replies 10 --format json

    A source is a topic on a server; its partitions arrive in one stream, so a reply may have
    messages
    of several. On a terminal, a count for each source is shown meanwhile. The last line, on
    standard error, shows why it ended:

        complete: 3 replies, 120 messages of 1 source in 0.08 s

    Exit status: 0 it ended as requested, 1 a source failed, 130 after Ctrl-C.
    """
    check_output(wanted_format)
    where = parse_offset(offset)
    servers = endpoint or [DEFAULT]
    with connected(servers[0], topics[0]) as client:
        described = [client.topic(name) for name in topics]
        _check_one_schema(described, wanted_format)
        requests = [
            Request(
                topic.name,
                offset=where,
                kind=_kind(kind),
                columns=_columns(columns, sentinel, topic),
                filter=predicate,
                system_columns=system_columns,
                endpoint=None if server == servers[0] else server,
                **_which(topic, partition),
            )
            for server in servers
            for topic in described
        ]
        gathered = client.gather(
            requests,
            timeout=None if timeout is None else timeout / 1000,
            stall_timeout=None if stall_timeout is None else stall_timeout / 1000,
            max_messages=max_replies,
            sentinel=_sentinel(sentinel, described),
            on_error="end" if on_error is OnError.END else "continue",
        )
        end, interrupted = _shown(gathered, Display(requests, wanted_format, servers[0]))
    raise typer.Exit(report_end(end, servers[0], interrupted=interrupted))


def _check_one_schema(topics: Sequence[Topic], wanted: Format) -> None:
    if wanted is Format.ARROW and len({str(topic.schema) for topic in topics}) > 1:
        raise typer.BadParameter(
            "an Arrow stream has one schema, but the topics have several", param_hint="--format"
        )


def _sentinel(given: str | None, topics: Sequence[Topic]) -> Sentinel | None:
    """Return the sentinel of a name.

    Raises:
        typer.BadParameter: A topic lacks the column, or it has another type.
    """
    if given is None:
        return None
    if given == EMPTY_NAME:
        return EMPTY
    for topic in topics:
        index = topic.schema.get_field_index(given)
        if index < 0 or not pa.types.is_boolean(topic.schema.field(index).type):
            raise typer.BadParameter(
                f"{short_name(topic.name)} has no column {printable(given)} of type bool",
                param_hint="--sentinel",
            )

    # Imported here, to keep the start of other commands short.
    import pyarrow.compute

    pc: Any = pyarrow.compute

    def goes_on(reply: Reply) -> bool:
        return not pc.any(reply.batch.column(given)).as_py()

    return goes_on


def _columns(given: list[str] | None, sentinel: str | None, topic: Topic) -> tuple[str, ...] | None:
    """Return the columns to request.

    Raises:
        typer.BadParameter: The sentinel's column is not among the given ones.
    """
    columns = chosen_columns(given, topic.schema)
    if columns is None:
        return None
    if sentinel not in {None, EMPTY_NAME, *columns}:
        raise typer.BadParameter(f"must include the sentinel {sentinel}", param_hint="--columns")
    return tuple(columns)


def _shown(gathered: Gather, shown: Display) -> tuple[GatherEnd, bool]:
    """Show the replies; returns the end, and whether it was Ctrl-C."""
    interrupted = False
    try:
        with gathered, shown:
            for reply in gathered:
                shown.show(reply)
    except KeyboardInterrupt:
        interrupted = True
    gathered.cancel()
    assert gathered.end is not None
    return gathered.end, interrupted


def _which(topic: Topic, given: list[str] | None) -> dict[str, Any]:
    """Return the keys of a request for its partitions, which share one stream."""
    if topic.partition_key is None:
        return {"partition": None}
    if given is None:
        return {"partitions": ALL}
    values = list(dict.fromkeys(parse_partition(text, topic) for text in given))
    return {"partition": values[0]} if len(values) == 1 else {"partitions": tuple(values)}


def _kind(kind: KindOption) -> Kind:
    if kind is KindOption.SCAN:
        return "scan"
    return "follow" if kind is KindOption.FOLLOW else "fetch"
