"""Messages on standard output: tables for people; JSON, CSV and Arrow for pipes.

A table has a line for each row, its columns aligned and fitted to a width.
"""

import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol, Self

import pyarrow as pa
import typer
from rich.cells import cell_len, set_cell_size

from wings_client.cli.values import partitions_text, printable
from wings_core.arrow_compute import pc
from wings_core.errors import InvalidArgument
from wings_core.json_rows import count_not_finite, encode_lines, encode_rows_within
from wings_core.json_rows.encode import csv_head, csv_rows, json_texts

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

Format = Literal["table", "json", "jsonl", "csv", "arrow", "parquet"]
"""Format of written rows; `json` is one array for a finite result, else `jsonl`."""

PARTITIONS_SHOWN_MAX = 20
"""Partitions shown by default."""

CELL_CHARACTERS_MAX = 1_000
"""Longer values are truncated, whatever the table's width."""

CELL_WIDTHS = (64, 48, 40, 32, 24, 20, 16, 12)
"""Widths of a column, tried in order until the table fits."""

MARGIN = " │ "

GAP = "…"


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
        _print_table(names, found)


def write_partitions(
    names: Sequence[str],
    rows: Sequence[Sequence[str | int | None]],
    wanted: Format,
    total: str,
    *,
    all_partitions: bool,
) -> None:
    """Write a row for each partition; a table has the first ones, and the total below it.

    Args:
        names: The columns; see `write_list`.
        rows: The rows.
        wanted: The format.
        total: Text of the line below a table.
        all_partitions: Whether a table has all partitions.
    """
    if wanted != "table":
        write_list(names, rows, wanted)
    elif not rows:
        typer.echo("no partitions yet: each comes into being with its first message")
    else:
        shown = rows if all_partitions else rows[:PARTITIONS_SHOWN_MAX]
        write_list(names, shown)
        typer.echo(f"{total}, {partitions_text(len(rows), len(shown))}")


def stream_writer(schema: pa.Schema, wanted: Format, sink: IO[bytes] | None = None) -> Writer:
    """Return a writer for messages as they arrive; JSON is one object per line.

    Args:
        schema: The schema of the messages.
        wanted: The format.
        sink: The file to write to; None: standard output.
    """
    if wanted == "table":
        return TableWriter(terminal_width())
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


def write_rows(run: Callable[[], pa.RecordBatchReader], wanted: Format) -> int:
    """Write the rows of a statement to standard output; returns their number.

    The elapsed time and the rows so far are shown as by `terminal_progress`, until a terminal gets
    rows.

    Args:
        run: Runs the statement.
        wanted: The format.
    """
    from rich.progress import TextColumn

    # A table is written at the end, when its widths are known.
    is_shown = wanted != "table" and sys.stdout.isatty()
    rows = 0

    def counted(reader: pa.RecordBatchReader) -> Generator[pa.RecordBatch]:
        nonlocal rows
        for batch in reader:
            rows += batch.num_rows
            progress.update(task, completed=rows)
            if is_shown:
                progress.stop()
            yield batch
        progress.stop()

    text = "{task.elapsed:.0f} s, {task.completed:,.0f} rows so far"
    with terminal_progress(TextColumn(text)) as progress:
        task = progress.add_task("", total=None)
        with run() as reader:
            write_all(counted(reader), reader.schema, wanted)
    return rows


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
        self._sink.write(csv_head(schema))

    def write(self, batch: pa.RecordBatch) -> None:
        self._sink.write(csv_rows(batch))
        self._sink.flush()

    def close(self) -> None:
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


def terminal_width() -> int | None:
    """Return the terminal's width in cells; None for a pipe or a file."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    if not sys.stdout.isatty():
        return None
    return os.get_terminal_size(sys.stdout.fileno()).columns or None


class _Column:
    """The texts of a column: each on one line, nulls as `null`; numbers are right-aligned."""

    def __init__(self, name: str, texts: Iterable[str], *, is_number: bool) -> None:
        self.name = printable(name)
        self.texts = list(texts)
        self.is_number = is_number
        self.width = max(map(cell_len, (self.name, *self.texts)))

    @classmethod
    def of(cls, name: str, values: "pa.ChunkedArray[Any]") -> Self:
        """Return the column of an Arrow array."""
        kinds = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal
        is_number = any(is_kind(values.type) for is_kind in kinds)
        return cls(name, _cell_texts(values), is_number=is_number)


@dataclass(frozen=True, slots=True)
class Layout:
    """The shown columns, and their widths."""

    widths: tuple[int, ...]
    """Widths of all columns; 0 for those left out."""
    dropped: range
    """Columns left out, from the middle."""

    @classmethod
    def fit(cls, natural: Sequence[int], width: int | None) -> Self:
        """Choose widths: narrow the wide columns first, then leave out middle ones.

        Args:
            natural: Widths that the columns need.
            width: Width of the terminal; None for unbounded.
        """
        if width is None or _total(natural) <= width:
            return cls(tuple(natural), range(0))
        widths: list[int] = list(natural)
        for bound in CELL_WIDTHS:
            widths = [min(bound, each) for each in natural]
            if _total(widths) <= width:
                return cls(tuple(widths), range(0))
        left, right = 0, len(widths)
        room = width - len(GAP)
        while left < right:
            # The left end keeps one more, as the first columns identify a row.
            index = left if left <= len(widths) - right else right - 1
            room -= widths[index] + len(MARGIN)
            if room < 0:
                break
            left, right = (left + 1, right) if index == left else (left, right - 1)
        if left == 0:
            widths[0], left = max(1, width - len(MARGIN) - len(GAP)), 1
        dropped = range(left, right)
        return cls(
            tuple(0 if index in dropped else each for index, each in enumerate(widths)), dropped
        )

    def line(self, cells: Sequence[str], numbers: Sequence[bool], margin: str = MARGIN) -> str:
        """Return the cells of one row as a line."""
        shown: list[str] = []
        for index, (cell, width) in enumerate(zip(cells, self.widths, strict=True)):
            if width:
                shown.append(_fitted(cell, width, right=numbers[index]))
            elif index == self.dropped.start:
                shown.append(GAP)
        return margin.join(shown).rstrip()

    def rule(self) -> str:
        """Return the line under the names."""
        widths = [
            width or len(GAP)
            for index, width in enumerate(self.widths)
            if width or index == self.dropped.start
        ]
        return "─┼─".join("─" * width for width in widths)

    def note(self, names: Sequence[str]) -> str | None:
        """Return a note on the columns left out; None without any."""
        if not self.dropped:
            return None
        first, last = names[self.dropped.start], names[self.dropped.stop - 1]
        which = first if len(self.dropped) == 1 else f"{first} to {last}"
        return f"({len(self.dropped)} of {len(names)} columns left out: {which})"


class TableWriter:
    """A renderer of a table in parts; repeats the header when columns need more room.

    Args:
        width: Width of the lines in cells; None for unbounded.
    """

    def __init__(self, width: int | None) -> None:
        self._width = width
        self._natural: list[int] = []
        self._layout: Layout | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the lines of the next rows to standard output."""
        for line in self.lines(pa.Table.from_batches([batch])):
            sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def close(self) -> None:
        """Do nothing: each row was written."""

    def lines(self, table: pa.Table) -> Iterator[str]:
        """Yield the lines of the next rows, after the header if needed."""
        columns = _columns(table)
        natural = self._natural or [0] * len(columns)
        self._natural = [
            max(before, column.width) for before, column in zip(natural, columns, strict=True)
        ]
        layout = Layout.fit(self._natural, self._width)
        if layout != self._layout:
            note = layout.note([column.name for column in columns])
            if note is not None and self._layout is None:
                yield note
            yield from _head(columns, layout)
            self._layout = layout
        yield from _rows(columns, layout)


def _print_table(names: Sequence[str], rows: Iterable[Sequence[str | int | None]]) -> None:
    """Print a table at the terminal's width; numbers are right-aligned, None is a dash."""
    cells = list(zip(*rows, strict=True)) or [()] * len(names)
    columns = [
        _Column(
            name,
            ("-" if cell is None else printable(str(cell)) for cell in column),
            is_number=any(isinstance(cell, int) for cell in column),
        )
        for name, column in zip(names, cells, strict=True)
    ]
    for line in _rendered(columns, terminal_width()):
        typer.echo(line)


def render_table(table: pa.Table, width: int | None) -> Iterator[str]:
    """Yield the lines of an Arrow table, and a note if columns are left out."""
    yield from _rendered(_columns(table), width)


def _rendered(columns: Sequence[_Column], width: int | None) -> Iterator[str]:
    layout = Layout.fit([column.width for column in columns], width)
    yield from _head(columns, layout)
    yield from _rows(columns, layout)
    note = layout.note([column.name for column in columns])
    if note is not None:
        yield note


def _columns(table: pa.Table) -> list[_Column]:
    return list(map(_Column.of, table.schema.names, table.columns))


def _head(columns: Sequence[_Column], layout: Layout) -> Iterator[str]:
    yield layout.line([column.name for column in columns], [c.is_number for c in columns])
    yield layout.rule()


def _rows(columns: Sequence[_Column], layout: Layout) -> Iterator[str]:
    numbers = [column.is_number for column in columns]
    for cells in zip(*(column.texts for column in columns), strict=True):
        yield layout.line(cells, numbers)


def _cell_texts(values: "pa.ChunkedArray[Any]") -> Iterator[str]:
    """Yield each value as text on one line; nested ones as JSON, nulls as `null`."""
    for chunk in values.chunks:
        yield from map(printable, _texts(chunk).to_pylist())


def _texts(values: Any) -> Any:
    data_type = values.type
    if pa.types.is_floating(data_type):
        # JSON has no infinities; `.0` is omitted.
        texts = values.cast(pa.float32() if pa.types.is_float16(data_type) else data_type)
        texts = texts.cast(pa.string())
    elif pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
        texts = values
    else:
        texts = json_texts(values)
        if not pa.types.is_nested(data_type):
            texts = pc.utf8_trim(texts, characters='"')
    cut = pc.utf8_slice_codeunits(texts, 0, CELL_CHARACTERS_MAX)
    return pc.fill_null(cut.cast(pa.string()), "null")


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(MARGIN) * (len(widths) - 1)


def _fitted(cell: str, width: int, *, right: bool) -> str:
    needed = cell_len(cell)
    if needed > width:
        return set_cell_size(cell, width - 1) + GAP
    padding = " " * (width - needed)
    return padding + cell if right else cell + padding
