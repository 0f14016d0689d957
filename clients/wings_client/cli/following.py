"""Display of messages as they arrive, until Ctrl-C, for `wings tail` and `wings consume`."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, NoReturn

import pyarrow as pa
import typer

from wings_client import Retry
from wings_client.cli.output import Format, Writer, stream_writer

RETRY = Retry(reconnect_seconds=24 * 3600.0)
"""Retry policy of followers: reconnect for a day."""

PARTITION, OFFSET, TIMESTAMP = "__partition", "__offset", "__timestamp"

ColumnsOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAMES", help="Columns to show, comma-separated; repeatable."),
]
FollowedOption = Annotated[
    str | None,
    typer.Option(
        metavar="V", help="Partition value, by the key's type. Default: all, new ones included."
    ),
]
FilterOption = Annotated[
    str | None, typer.Option("--filter", metavar="SQL", help="Show only matching messages.")
]
SystemColumnsOption = Annotated[
    bool,
    typer.Option(
        "--system-columns",
        help="Show __offset and __timestamp in every format, and __partition for all partitions.",
    ),
]
FormatOption = Annotated[
    Format,
    typer.Option(
        "--format", help="table for people; json (an object per line), csv, arrow for pipes."
    ),
]
IdleOption = Annotated[
    int | None,
    typer.Option(
        metavar="MS",
        min=1,
        help="End after this many milliseconds without a message. Default: never.",
    ),
]


class Display:
    """Writes batches as they arrive, and counts messages.

    Args:
        wanted: The format.
        system_columns: Whether to show system columns; otherwise a table shows only the offset.
        names: The columns to show instead, in order.

    Attributes:
        messages: Number of messages written.
    """

    def __init__(
        self, wanted: Format, *, system_columns: bool, names: Sequence[str] | None = None
    ) -> None:
        self.messages = 0
        self._names = names
        self._format = wanted
        self._system_columns = system_columns
        self._writer: Writer | None = None

    def show(self, batch: pa.RecordBatch) -> None:
        """Write a batch with system columns."""
        system = [name for name in batch.schema.names if name in {PARTITION, OFFSET, TIMESTAMP}]
        names = [name for name in batch.schema.names if name not in system]
        if self._system_columns:
            names += system
        elif self._format is Format.TABLE:
            names.insert(0, OFFSET)
        shown = batch.select(list(self._names or names))
        if self._writer is None:
            self._writer = stream_writer(shown.schema, self._format)
        self.messages += batch.num_rows
        self._writer.write(shown)

    def run(self, batches: Iterator[pa.RecordBatch], done: Callable[[], str]) -> None:
        """Write all batches, until they end or on Ctrl-C.

        Args:
            batches: Batches; blocks while there are none.
            done: Returns the text to print after the count of messages.

        Raises:
            typer.Exit: Interrupted by Ctrl-C, with its exit status.
        """
        try:
            for batch in batches:
                self.show(batch)
        except KeyboardInterrupt:
            self._close()
            self._interrupted(done)
        self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _interrupted(self, done: Callable[[], str]) -> NoReturn:
        plural = "" if self.messages == 1 else "s"
        typer.echo(f"stopped after {self.messages:,} message{plural}{done()}", err=True)
        raise typer.Exit(130)


def say(text: str) -> None:
    """Print a line on standard error, if it is a terminal."""
    if sys.stderr.isatty():
        typer.echo(text, err=True)
