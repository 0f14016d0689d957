"""`wings gather`: one request to many partitions, topics and servers; shows replies on arrival."""

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pyarrow as pa
import typer
from rich.progress import Progress, TextColumn

from wings_client import Topic
from wings_client.cli.endpoint import connected, is_absent, short_name
from wings_client.cli.options import DEFAULT, FormatOption, ReadingOptions, grouped
from wings_client.cli.output import Format, Writer, check_output, stream_writer, terminal_progress
from wings_client.cli.values import (
    Offset,
    count_of,
    duration,
    one_line,
    parse_offset,
    parse_partition,
    partition_text,
    printable,
)
from wings_client.gather import EMPTY, Gather, GatherEnd, GatherReason, Reply, Request, Sentinel
from wings_core.arrow_compute import pc
from wings_core.contracts.reads import ALL
from wings_core.errors import WingsError

EMPTY_NAME = "empty"
"""Sentinel for an empty reply instead of a column."""

SHOWN_MAX = 20
"""Most sources with a line of their own in the live count; the others share one."""

FAILURES_SHOWN_MAX = 10
"""Most failed sources that are printed with their errors."""

COUNTS = (
    TextColumn("{task.description}", markup=False),
    TextColumn("{task.fields[replies]:,} replies"),
    TextColumn("{task.completed:,.0f} messages"),
)
"""Columns of the count for each source."""

FAILED = {GatherReason.NO_RESPONDERS, GatherReason.SERVER_ERROR, GatherReason.DISCONNECTED}
"""Reasons with exit status 1."""


class GatherDisplay:
    """Writes replies to standard output, and counts them on a terminal.

    Args:
        requests: The sources.
        wanted: The format.
        server: Address for requests without one.
        progress: A `terminal_progress` with the columns `COUNTS`.
    """

    def __init__(
        self, requests: Sequence[Request], wanted: Format, server: str, progress: Progress
    ) -> None:
        self._wanted: Format = wanted
        self._writers: dict[str, Writer] = {}
        self._progress = progress
        self._shares_terminal = sys.stdout.isatty()
        several = len({request.endpoint for request in requests}) > 1
        names = [source_name(each, server if several else None) for each in requests[:SHOWN_MAX]]
        others = len(requests) - len(names)
        rows = [*names, *([f"{others:,} others"] if others else ())]
        tasks = [progress.add_task(name, total=None, replies=0) for name in rows]
        self._tasks = dict(zip(map(id, requests), tasks, strict=False))
        self._last_task = tasks[-1]

    def show(self, reply: Reply) -> None:
        """Write a reply and count it."""
        if self._shares_terminal:
            self._progress.stop()  # Removes the count, so that messages appear above it.
        self._writer(reply.request.topic, reply.batch.schema).write(reply.batch)
        if self._shares_terminal:
            self._progress.start()
        task = self._tasks.get(id(reply.request), self._last_task)
        replies: int = self._progress.tasks[task].fields["replies"] + 1
        self._progress.update(task, advance=reply.batch.num_rows, replies=replies)

    def close(self) -> None:
        """Complete the output."""
        for writer in self._writers.values():
            writer.close()

    def _writer(self, topic: str, schema: pa.Schema) -> Writer:
        # All topics share one Arrow stream.
        key = "" if self._wanted == "arrow" else topic
        writer = self._writers.get(key)
        if writer is None:
            writer = self._writers[key] = stream_writer(schema, self._wanted)
        return writer


def source_name(request: Request, server: str | None) -> str:
    """Return a source's name for display, with its server if there are several."""
    name = short_name(request.topic)
    if request.partitions is None:
        name += f"/{partition_text(request.partition)}"
    elif request.partitions != ALL:
        name += "/" + ",".join(map(partition_text, request.partitions))
    where = request.endpoint or server
    return name if where is None else f"{name} at {where}"


def report_end(end: GatherEnd, server: str, *, interrupted: bool) -> int:
    """Print how the gather ended on standard error; returns the exit status."""
    reason = "cancelled" if interrupted else end.reason
    sources = count_of(len(end.sources), "source")
    said = (
        f"{reason}: {count_of(end.replies, 'reply', 'replies')}, "
        f"{count_of(end.rows, 'message')} of {sources} in {end.elapsed:.2f} s"
    )
    if end.reason in FAILED and isinstance(end.error, WingsError):
        said += f": {_problem(end.error)}"
    failed = [(each.request, each.error) for each in end.sources if each.error is not None]
    if end.reason is not GatherReason.NO_RESPONDERS and not interrupted:
        for request, error in failed[:FAILURES_SHOWN_MAX]:
            typer.echo(f"{source_name(request, server)} failed: {_problem(error)}", err=True)
        if len(failed) > FAILURES_SHOWN_MAX:
            typer.echo(f"{len(failed) - FAILURES_SHOWN_MAX:,} more sources failed", err=True)
    typer.echo(said, err=True)
    if interrupted:
        return 130
    return 1 if end.reason in FAILED or failed else 0


def _problem(error: WingsError) -> str:
    if is_absent(error):
        return f"no server answers at {error.facts.get('endpoint')}"
    return one_line(error.message)


TopicsArgument = Annotated[
    list[str],
    typer.Argument(metavar="TOPIC...", help="Name, or id in the default namespace."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherOptions(ReadingOptions):
    """Options of the requests, and of the end of the gather."""

    partition: Annotated[
        list[str] | None,
        typer.Option(metavar="V", help="A partition of each topic; repeatable. Default: all."),
    ] = None
    offset: Annotated[
        str,
        typer.Option(
            "--from",
            "--offset",
            metavar="WHERE",
            help="earliest, latest, an offset, a time like 2026-11-20T12:00:00Z or -1h, or "
            "-100 for the last hundred of each partition.",
        ),
    ] = "earliest"
    kind: Annotated[
        Literal["fetch", "scan", "follow"],
        typer.Option(help="fetch waits for messages, scan does not, follow never ends."),
    ] = "fetch"
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="DURATION",
            parser=duration("ms", 1),
            help="Longest total wait. Default: 30s.",
        ),
    ] = None
    stall_timeout: Annotated[
        float | None,
        typer.Option(
            metavar="DURATION",
            parser=duration("ms", 1),
            help="End when no reply arrives for this long, after the first: 200ms.",
        ),
    ] = None
    max_replies: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="End after this many replies.")
    ] = None
    sentinel: Annotated[
        str | None,
        typer.Option(
            metavar="empty|COLUMN",
            help="empty: a reply without messages ends the command, and is not shown. A bool "
            "column: the first reply with a message in which it is true is the last.",
        ),
    ] = None
    on_error: Annotated[
        Literal["end", "continue"], typer.Option(help="Whether a failing source ends it.")
    ] = "end"

    def request(self, topic: Topic, server: str | None, offset: Offset) -> Request:
        """Return the request to a topic.

        Args:
            topic: The topic.
            server: Its server; None for the client's.
            offset: The parsed offset.

        Raises:
            typer.BadParameter: The sentinel's column is not among the given ones.
        """
        arguments = self.arguments(topic.schema)
        columns = arguments["columns"]
        if columns is not None:
            if self.sentinel not in {None, EMPTY_NAME, *columns}:
                raise typer.BadParameter(
                    f"must include the sentinel {self.sentinel}", param_hint="--columns"
                )
            arguments["columns"] = tuple(columns)
        where = self._partitions(topic)
        if server is not None and isinstance(offset, int) and offset < 0:
            raise typer.BadParameter("counts from the end on one server alone", param_hint="--from")
        return Request(
            topic.name,
            offset=offset,
            kind=self.kind,
            endpoint=server,
            **arguments,
            **where,
        )

    def _partitions(self, topic: Topic) -> dict[str, Any]:
        """Return the keys of a request for its partitions, which share one stream."""
        if topic.partition_key is None:
            return {"partition": None}
        if self.partition is None:
            return {"partitions": ALL}
        values = list(dict.fromkeys(parse_partition(text, topic) for text in self.partition))
        return {"partition": values[0]} if len(values) == 1 else {"partitions": tuple(values)}


EndpointsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--endpoint",
        envvar="WINGS_ENDPOINT",
        metavar="grpc://HOST:PORT",
        help="Address of the server; repeatable.",
    ),
]


@grouped
def gather(
    topics: TopicsArgument,
    *,
    options: GatherOptions,
    wanted_format: FormatOption = "table",
    endpoint: EndpointsOption = None,
) -> None:
    """Send one request to many partitions, topics or servers, and show replies as they arrive.

        $ wings gather flights --stall-timeout 200

        $ wings gather flights weather --partition JFK --max-replies 10 --format json

    A source is a topic on a server; its partitions arrive in one stream, so a reply may have
    messages of several. On a terminal, a count for each source is shown meanwhile. The last line,
    on standard error, shows why it ended:

        complete: 3 replies, 120 messages of 1 source in 0.08 s

    Exit status: 0 it ended as requested, 1 a source failed, 130 after Ctrl-C.
    """
    check_output(wanted_format, is_endless=True)
    where = parse_offset(options.offset)
    servers = endpoint or [DEFAULT]
    with connected(servers[0], topics[0]) as client:
        described = [client.topic(name) for name in topics]
        if wanted_format == "arrow" and len({str(topic.schema) for topic in described}) > 1:
            raise typer.BadParameter(
                "an Arrow stream has one schema, but the topics have several",
                param_hint="--format",
            )
        requests = [
            options.request(topic, None if server == servers[0] else server, where)
            for server in servers
            for topic in described
        ]
        gathered = client.gather(
            requests,
            timeout=options.timeout,
            stall_timeout=options.stall_timeout,
            max_messages=options.max_replies,
            sentinel=_sentinel(options.sentinel, described),
            on_error=options.on_error,
        )
        with terminal_progress(*COUNTS) as progress:
            shown = GatherDisplay(requests, wanted_format, servers[0], progress)
            end, interrupted = _shown(gathered, shown)
    raise typer.Exit(report_end(end, servers[0], interrupted=interrupted))


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

    def goes_on(reply: Reply) -> bool:
        return not pc.any(reply.batch.column(given)).as_py()

    return goes_on


def _shown(gathered: Gather, shown: GatherDisplay) -> tuple[GatherEnd, bool]:
    """Show the replies; returns the end, and whether it was Ctrl-C."""
    interrupted = False
    try:
        with gathered, closing(shown):
            for reply in gathered:
                shown.show(reply)
    except KeyboardInterrupt:
        interrupted = True
    gathered.cancel()
    assert gathered.end is not None
    return gathered.end, interrupted
