"""Messages on standard output: tables for people; JSON, CSV and Arrow for pipes."""

import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol

import pyarrow as pa
import typer

from wings_client.cli.tables import TableWriter, print_table, render_table, terminal_width
from wings_core.errors import InvalidArgument
from wings_core.json_rows import count_not_finite, encode_lines, encode_rows_within
from wings_core.json_rows.encode import csv_head, csv_rows

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn


Format = Literal["table", "json", "jsonl", "csv", "arrow", "parquet"]
"""Format of written rows; `json` is one array for a finite result, else `jsonl`."""


class Writer(Protocol):
    """A writer of batches of one schema as they arrive."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch, and flush."""
        ...

    def close(self) -> None:
        """Complete the output."""
        ...


def check_output(wanted: Format, *, is_endless: bool = False) -> None:
    """Check that standard output accepts a format.

    Args:
        wanted: The format.
        is_endless: Whether rows are written as they arrive.

    Raises:
        typer.BadParameter: The format is binary, and standard output a terminal; or Parquet, which
            has an end.
    """
    if is_endless and wanted == "parquet":
        raise typer.BadParameter(
            "rows that arrive cannot be written as Parquet, which has an end: use arrow",
            param_hint="--format",
        )
    if wanted in {"arrow", "parquet"} and sys.stdout.isatty():
        raise typer.BadParameter(
            f"{wanted} is binary: send it to a file or a pipe", param_hint="--format"
        )


def write_all(batches: Iterable[pa.RecordBatch], schema: pa.Schema, wanted: Format) -> None:
    """Write a finite result: JSON as one array, a table with one header."""
    if wanted == "table":
        for line in render_table(pa.Table.from_batches(batches, schema), terminal_width()):
            sys.stdout.write(line + "\n")
        return
    if wanted == "parquet":
        with parquet_writer(sys.stdout.buffer, schema) as write_table:
            for batch in batches:
                write_table(pa.Table.from_batches([batch]))
        return
    writer = _JsonArray() if wanted == "json" else stream_writer(schema, wanted)
    for batch in batches:
        writer.write(batch)
    writer.close()


def write_list(
    names: Sequence[str],
    rows: Iterable[Sequence[str | int | None]],
    wanted: Format = "table",
    empty: str = "",
) -> None:
    """Write what a command lists.

    Args:
        names: The columns; in data, `_` stands for a space.
        rows: The rows; None is a dash in a table, null in data.
        wanted: The format.
        empty: Line on standard error where there are no rows, in place of an empty table.
    """
    check_output(wanted)
    found = list(rows)
    if not found and empty:
        typer.echo(empty, err=True)
    if wanted != "table":
        columns = list(zip(*found, strict=True)) or [()] * len(names)
        keys = [name.replace(" ", "_") for name in names]
        table: Any = pa.table(list(map(pa.array, columns)), names=keys)
        write_all(table.to_batches(), table.schema, wanted)
    elif found or not empty:
        print_table(names, found)


def stream_writer(schema: pa.Schema, wanted: Format, sink: IO[bytes] | None = None) -> Writer:
    """Return a writer for messages as they arrive; JSON is one object per line.

    Args:
        schema: The schema of the messages.
        wanted: The format.
        sink: The file to write to; None: standard output.
    """
    if wanted == "table":
        return _TableText()
    file: IO[bytes] = sys.stdout.buffer if sink is None else sink
    if wanted in {"json", "jsonl"}:
        return _JsonLines(file)
    return _Csv(file, schema) if wanted == "csv" else _Arrow(file, schema)


@contextmanager
def parquet_writer(sink: Any, schema: pa.Schema) -> Generator[Callable[[pa.Table], None]]:
    """Yield a writer of rows to a Parquet file; leaving the block completes the file.

    Raises:
        InvalidArgument: Parquet has no type for a column.
    """
    import pyarrow.parquet as pq  # Imported here, as other formats do not need it.

    try:
        with pq.ParquetWriter(sink, schema, compression="zstd") as parquet:
            yield parquet.write_table
    except pa.ArrowNotImplementedError as error:
        raise InvalidArgument(
            f"Parquet cannot hold these columns: {error!s:.200}; leave them out, or use arrow"
        ) from None


@contextmanager
def terminal_progress(*columns: "ProgressColumn") -> "Generator[Progress]":
    """Show progress on standard error, where that is a terminal, during the block."""
    from rich.console import Console  # Most commands show no progress.
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        yield progress


@contextmanager
def progress_line(text: str) -> Generator[Callable[[str], None]]:
    """Show a line as `terminal_progress`; yields a function that sets its text."""
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with terminal_progress(*columns) as progress:
        task = progress.add_task(text)
        yield lambda text: progress.update(task, description=text)


@contextmanager
def statement_progress() -> "Generator[Progress]":
    """Show a statement's elapsed time and rows so far, as `terminal_progress`, in one task."""
    from rich.progress import TextColumn

    text = "{task.elapsed:.0f} s, {task.completed:,.0f} rows so far"
    with terminal_progress(TextColumn(text)) as progress:
        progress.add_task("", total=None)
        yield progress


def write_rows(reader: pa.RecordBatchReader, wanted: Format, progress: "Progress") -> int:
    """Write the rows of a statement to standard output; returns their number.

    Args:
        reader: Reads the rows.
        wanted: The format.
        progress: A `statement_progress`, which is removed before a terminal gets rows.
    """
    # A table is written at the end, when its widths are known.
    is_shown = wanted != "table" and sys.stdout.isatty()
    rows = 0

    def counted() -> Generator[pa.RecordBatch]:
        nonlocal rows
        for batch in reader:
            rows += batch.num_rows
            progress.update(progress.task_ids[0], completed=rows)
            if is_shown:
                progress.stop()
            yield batch
        progress.stop()

    write_all(counted(), reader.schema, wanted)
    return rows


class _TableText:
    def __init__(self) -> None:
        self._table = TableWriter(terminal_width())

    def write(self, batch: pa.RecordBatch) -> None:
        for line in self._table.lines(pa.Table.from_batches([batch])):
            sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def close(self) -> None:
        return


class _JsonLines:
    def __init__(self, sink: IO[bytes]) -> None:
        self._sink = sink
        self._not_finite = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._not_finite += count_not_finite(batch)
        self._write(batch)
        self._sink.flush()

    def close(self) -> None:
        """Say how many values JSON has no form for: NaN and infinities, which became null."""
        if self._not_finite:
            values = "1 value is" if self._not_finite == 1 else f"{self._not_finite:,} values are"
            typer.echo(f"{values} NaN or infinite: null, as JSON has no such number", err=True)

    def _write(self, batch: pa.RecordBatch) -> None:
        self._sink.writelines(encode_lines(batch))


class _JsonArray(_JsonLines):
    def __init__(self) -> None:
        super().__init__(sys.stdout.buffer)
        self._before = b"["

    def close(self) -> None:
        self._sink.write(b"]\n" if self._before != b"[" else b"[]\n")
        self._sink.flush()
        super().close()

    def _write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._sink.write(self._before + encode_rows_within(batch, None).text)
            self._before = b",\n"


class _Csv:
    def __init__(self, sink: IO[bytes], schema: pa.Schema) -> None:
        self._sink = sink
        self._write(csv_head(schema))

    def write(self, batch: pa.RecordBatch) -> None:
        self._write(csv_rows(batch))

    def close(self) -> None:
        return

    def _write(self, text: bytes) -> None:
        self._sink.write(text)
        self._sink.flush()


class _Arrow:
    def __init__(self, sink: IO[bytes], schema: pa.Schema) -> None:
        self._sink: Any = sink
        self._writer = pa.ipc.new_stream(self._sink, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)
        self._sink.flush()

    def close(self) -> None:
        self._writer.close()
        self._sink.flush()
