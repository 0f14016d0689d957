"""The output of `wings gather`: replies, a count for each source, and the end."""

import sys
from collections.abc import Sequence

import pyarrow as pa
import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from wings_client.cli.endpoint import is_absent, short_name
from wings_client.cli.output import Format, Writer, stream_writer
from wings_client.cli.values import partition_text, printable
from wings_client.gather import GatherEnd, GatherReason, Reply, Request
from wings_core.contracts.reads import ALL
from wings_core.errors import WingsError
from wings_core.partitions import JsonScalar

SHOWN_MAX = 20
"""Most sources with a line of their own in the live count; the others share one."""

FAILURES_SHOWN_MAX = 10
"""Most failed sources that are printed with their errors."""

FAILED = {GatherReason.NO_RESPONDERS, GatherReason.SERVER_ERROR, GatherReason.DISCONNECTED}
"""Reasons with exit status 1."""


class Display:
    """Writes replies to standard output, and counts them on a terminal.

    Args:
        requests: The sources.
        wanted: The format.
        server: Address for requests without one.
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
            self._live.stop()  # Removes the count, so that messages appear above it.
        self._writer(reply.request.topic, reply.batch.schema).write(reply.batch)
        if self._shares_terminal:
            self._live.start()
        counts = self._counts[id(reply.request)]
        counts[0] += 1
        counts[1] += reply.batch.num_rows
        self._refresh()

    def __enter__(self) -> None:
        """Start showing the count."""
        if self._is_live:
            self._live.start()
            self._refresh()

    def __exit__(self, *error: object) -> None:
        """Remove the count, and complete the output."""
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
        # All topics share one Arrow stream.
        key = "" if self._wanted is Format.ARROW else topic
        writer = self._writers.get(key)
        if writer is None:
            writer = self._writers[key] = stream_writer(schema, self._wanted)
        return writer


def source_name(request: Request, server: str | None) -> str:
    """Return a source's name for display, with its server if there are several."""
    name = short_name(request.topic)
    if request.partitions is None:
        name += f"/{partition_text(_text(request.partition))}"
    elif request.partitions != ALL:
        name += "/" + ",".join(partition_text(_text(value)) for value in request.partitions)
    where = request.endpoint or server
    return name if where is None else f"{name} at {where}"


def _text(value: object) -> JsonScalar:
    assert not isinstance(value, bytes)
    return value  # pyright: ignore[reportReturnType] - what is left of a partition value.


def report_end(end: GatherEnd, server: str, *, interrupted: bool) -> int:
    """Print how the gather ended on standard error; returns the exit status."""
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
    if is_absent(error):
        return f"no server answers at {error.facts.get('endpoint')}"
    return " ".join(printable(error.message.replace("\n", " ")).split())


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
