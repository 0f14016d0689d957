"""`wings gather`: one request to many partitions, topics and servers; replies as they come."""

import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Literal

import pyarrow as pa
import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

import wings_client
from wings_client import Client, Connection, Topic
from wings_client.cli.endpoint import DEFAULT, connected, short_name
from wings_client.cli.following import (
    ColumnsOption,
    FilterOption,
    FormatOption,
    SystemColumnsOption,
)
from wings_client.cli.output import Format, Writer, check_output, stream_writer
from wings_client.cli.values import (
    chosen_columns,
    parse_offset,
    parse_partition,
    partition_text,
    printable,
)
from wings_client.gather import EMPTY, GatherEnd, GatherReason, Reply, Request
from wings_core.errors import Unavailable, WingsError
from wings_core.partitions import JsonScalar

SHOWN_MAX = 20
"""Most sources with a line of their own in the live count; the others are one line together."""

FAILURES_SHOWN_MAX = 10
"""Most sources that are named with what they failed with."""

FAILED = {GatherReason.NO_RESPONDERS, GatherReason.SERVER_ERROR, GatherReason.DISCONNECTED}
"""Reasons with exit status 1."""

Kind = Literal["fetch", "scan", "follow"]


class KindOption(StrEnum):
    """What is asked of each source."""

    FETCH = "fetch"
    SCAN = "scan"
    FOLLOW = "follow"


class OnError(StrEnum):
    """What a source that fails does to the others."""

    END = "end"
    CONTINUE = "continue"


class SentinelOption(StrEnum):
    """Which reply ends the gather."""

    EMPTY = "empty"


def gather(
    topics: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC...", help="Name, or id in the default namespace."),
    ],
    *,
    partition: Annotated[
        list[str] | None,
        typer.Option(
            metavar="V", help="A partition of each topic, once for each wanted. Default: all."
        ),
    ] = None,
    offset: Annotated[
        str,
        typer.Option(
            metavar="WHERE", help="earliest, latest, a number, or a time like 2026-11-20T12:00:00Z."
        ),
    ] = "earliest",
    kind: Annotated[
        KindOption,
        typer.Option(
            help="fetch waits where there is nothing yet, scan does not, follow goes on and on."
        ),
    ] = KindOption.FETCH,
    timeout: Annotated[
        int | None,
        typer.Option(metavar="MS", min=1, help="Milliseconds to wait in all. Default: 30000."),
    ] = None,
    stall_timeout: Annotated[
        int | None,
        typer.Option(
            metavar="MS",
            min=1,
            help="End when no reply comes for so many milliseconds, after the first.",
        ),
    ] = None,
    max_replies: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="End with so many replies.")
    ] = None,
    sentinel: Annotated[
        SentinelOption | None,
        typer.Option(help="empty: a reply without messages ends it, and is not shown."),
    ] = None,
    on_error: Annotated[
        OnError, typer.Option(help="Whether a source that fails ends it.")
    ] = OnError.END,
    columns: ColumnsOption = None,
    predicate: FilterOption = None,
    system_columns: SystemColumnsOption = False,
    wanted_format: FormatOption = Format.TABLE,
    endpoint: Annotated[
        list[str] | None,
        typer.Option(
            "--endpoint",
            envvar="WINGS_ENDPOINT",
            metavar="grpc://HOST:PORT",
            help="Where the server is; once for each, where several are asked.",
        ),
    ] = None,
) -> None:
    """Send one request to many partitions, topics or servers, and show the replies as they come.

        $ wings gather flights --stall-timeout 200

        $ wings gather flights weather --partition JFK --max-replies 10 --format json

    A reply is a batch of messages of one partition. On a terminal, a count for each source is shown
    meanwhile. The last line says why it ended, on standard error:

        complete: 3 replies, 120 messages of 3 sources in 0.08 s

    Exit status: 0 where it ended as it was told to, 1 where a source failed, 130 after Ctrl-C.
    """
    check_output(wanted_format)
    where = parse_offset(offset)
    servers = endpoint or [DEFAULT]
    with connected(servers[0], topics[0]) as client:
        described = [client.topic(name) for name in topics]
        if wanted_format is Format.ARROW and len({str(each.schema) for each in described}) > 1:
            raise typer.BadParameter(
                "an Arrow stream has one schema, and the topics have several",
                param_hint="--format",
            )
        requests = [
            Request(
                topic.name,
                value,
                where,
                kind=_kind(kind),
                columns=_tuple(chosen_columns(columns, topic.schema)),
                filter=predicate,
                system_columns=system_columns,
                endpoint=None if server == servers[0] else server,
            )
            for server in servers
            for topic in described
            for value in _partitions(client, server, servers[0], topic, partition)
        ]
        if not requests:
            names = ", ".join(short_name(topic.name) for topic in described)
            typer.echo(f"complete: {names} has no partitions yet", err=True)
            return
        gathered = client.gather(
            requests,
            timeout=None if timeout is None else timeout / 1000,
            stall_timeout=None if stall_timeout is None else stall_timeout / 1000,
            max_messages=max_replies,
            sentinel=None if sentinel is None else EMPTY,
            on_error="end" if on_error is OnError.END else "continue",
        )
        shown = _Shown(requests, wanted_format, servers[0])
        interrupted = False
        try:
            with gathered, shown:
                for reply in gathered:
                    shown.show(reply)
        except KeyboardInterrupt:
            interrupted = True
        gathered.cancel()
        end = gathered.end
    assert end is not None
    raise typer.Exit(_tell(end, servers[0], interrupted=interrupted))


class _Shown:
    """Writes replies to standard output, and counts them on a terminal.

    Args:
        requests: The sources.
        wanted: The format.
        server: Of requests that name none.
    """

    def __init__(self, requests: Sequence[Request], wanted: Format, server: str) -> None:
        self._wanted = wanted
        self._several = len({request.endpoint for request in requests}) > 1
        self._server = server
        self._counts = {id(request): [0, 0] for request in requests}
        self._requests = requests
        self._writers: dict[str, Writer] = {}
        console = Console(stderr=True)
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._is_live = console.is_terminal
        self._shares_terminal = self._is_live and sys.stdout.isatty()

    def show(self, reply: Reply) -> None:
        """Write a reply and count it."""
        if self._shares_terminal:
            self._live.stop()  # Takes the count away, so that the messages stand above it.
        self._writer(reply.request.topic, reply.batch.schema).write(reply.batch)
        if self._shares_terminal:
            self._live.start()
        counts = self._counts[id(reply.request)]
        counts[0] += 1
        counts[1] += reply.batch.num_rows
        self._refresh()

    def __enter__(self) -> None:
        """Begin to show the count."""
        if self._is_live:
            self._live.start()
            self._refresh()

    def __exit__(self, *error: object) -> None:
        """Take the count away, and end what was written."""
        if self._is_live:
            self._live.stop()
        for writer in self._writers.values():
            writer.close()

    def _refresh(self) -> None:
        if self._is_live:
            self._live.update(self._table(), refresh=True)

    def _table(self) -> Table:
        table = Table("source", box=None, padding=(0, 2, 0, 0))
        table.add_column("replies", justify="right")
        table.add_column("messages", justify="right")
        for request in self._requests[:SHOWN_MAX]:
            replies, messages = self._counts[id(request)]
            name = source_name(request, self._server if self._several else None)
            table.add_row(name, f"{replies:,}", f"{messages:,}")
        others = self._requests[SHOWN_MAX:]
        if others:
            sums = [sum(self._counts[id(each)][index] for each in others) for index in (0, 1)]
            table.add_row(f"{len(others):,} others", f"{sums[0]:,}", f"{sums[1]:,}")
        return table

    def _writer(self, topic: str, schema: pa.Schema) -> Writer:
        # An Arrow stream is one, whatever topics it is of.
        key = "" if self._wanted is Format.ARROW else topic
        writer = self._writers.get(key)
        if writer is None:
            writer = self._writers[key] = stream_writer(schema, self._wanted)
        return writer


def source_name(request: Request, server: str | None) -> str:
    """Return how a person names a source; with its server, where there are several."""
    name = f"{short_name(request.topic)}/{partition_text(_text(request.partition))}"
    where = request.endpoint or server
    return name if where is None else f"{name} at {where}"


def _text(value: object) -> JsonScalar:
    assert not isinstance(value, bytes)
    return value  # pyright: ignore[reportReturnType] - what is left of a partition value.


def _tell(end: GatherEnd, server: str, *, interrupted: bool) -> int:
    """Say how it ended; return the exit status."""
    sources = len(end.sources)
    said = (
        f"{'cancelled' if interrupted else end.reason}: {_count(end.replies, 'reply', 'replies')}, "
        f"{_count(end.rows, 'message')} of {_count(sources, 'source')} in {end.elapsed:.2f} s"
    )
    if end.reason in FAILED and isinstance(end.error, WingsError):
        said += f": {_problem(end.error)}"
    failed = [each for each in end.sources if each.error is not None]
    if end.reason is not GatherReason.NO_RESPONDERS and len(failed) > 0 and not interrupted:
        for each in failed[:FAILURES_SHOWN_MAX]:
            assert each.error is not None
            name = source_name(each.request, server)
            typer.echo(f"{name} failed: {_problem(each.error)}", err=True)
        if len(failed) > FAILURES_SHOWN_MAX:
            typer.echo(f"{len(failed) - FAILURES_SHOWN_MAX:,} more sources failed", err=True)
    typer.echo(said, err=True)
    if interrupted:
        return 130
    return 1 if end.reason in FAILED or failed else 0


def _problem(error: WingsError) -> str:
    if isinstance(error, Unavailable) and error.facts.get("connection") == Connection.UNREACHABLE:
        return f"nobody answers at {error.facts.get('endpoint')}"
    return " ".join(printable(error.message.replace("\n", " ")).split())


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _partitions(
    client: Client, server: str, first: str, topic: Topic, given: list[str] | None
) -> list[JsonScalar]:
    """Return the partitions of a topic to ask a server for."""
    if given is not None and topic.partition_key is not None:
        return [parse_partition(text, topic) for text in given]
    if server != first:
        try:
            retry = wings_client.Retry(attempts=1)
            with wings_client.connect(server, retry=retry) as other:
                return [state.partition for state in other.partitions(topic.name)]
        except Unavailable:
            pass  # It is asked for those of the first server, and its failure told with the others.
    return [state.partition for state in client.partitions(topic)]


def _kind(kind: KindOption) -> Kind:
    if kind is KindOption.SCAN:
        return "scan"
    return "follow" if kind is KindOption.FOLLOW else "fetch"


def _tuple(columns: list[str] | None) -> tuple[str, ...] | None:
    return None if columns is None else tuple(columns)
