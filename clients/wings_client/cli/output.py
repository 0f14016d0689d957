"""Messages on standard output: tables for people; JSON, CSV and Arrow for pipes."""

import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from enum import StrEnum
from typing import IO, Any, Protocol

import pyarrow as pa
import typer

from wings_client.cli.tables import TableWriter, render_table, terminal_width
from wings_core.errors import InvalidArgument
from wings_core.json_rows import count_not_finite, encode_lines, encode_rows_within
from wings_core.json_rows.encode import csv_head, csv_rows


class Format(StrEnum):
    """Format of written messages."""

    TABLE = "table"
    JSON = "json"
    """One array for a finite result; `JSONL` for messages as they arrive."""
    JSONL = "jsonl"
    """One object per line."""
    CSV = "csv"
    ARROW = "arrow"


class Writer(Protocol):
    """A writer of batches of one schema as they arrive."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch, and flush."""
        ...

    def close(self) -> None:
        """Complete the output."""
        ...


def check_output(wanted: Format) -> None:
    """Check that standard output accepts a format.

    Raises:
        typer.BadParameter: The format is binary, and standard output a terminal.
    """
    if wanted is Format.ARROW and sys.stdout.isatty():
        raise typer.BadParameter(
            "arrow is binary: send it to a file or a pipe", param_hint="--format"
        )


def write_all(batches: Iterable[pa.RecordBatch], schema: pa.Schema, wanted: Format) -> None:
    """Write a finite result: JSON as one array, a table with one header."""
    if wanted is Format.TABLE:
        for line in render_table(pa.Table.from_batches(batches, schema), terminal_width()):
            sys.stdout.write(line + "\n")
        return
    writer: Writer = _JsonArray() if wanted is Format.JSON else stream_writer(schema, wanted)
    for batch in batches:
        writer.write(batch)
    writer.close()


def stream_writer(schema: pa.Schema, wanted: Format) -> Writer:
    """Return a writer for messages as they arrive; JSON is one object per line."""
    if wanted is Format.TABLE:
        return _Table()
    if wanted in (Format.JSON, Format.JSONL):
        return _JsonLines()
    return _Csv(schema) if wanted is Format.CSV else _Arrow(schema)


class _Table:
    def __init__(self) -> None:
        self._table = TableWriter(terminal_width())

    def write(self, batch: pa.RecordBatch) -> None:
        for line in self._table.lines(pa.Table.from_batches([batch])):
            sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def close(self) -> None:
        return


class NotFinite:
    """A count of values without a JSON form, NaN and infinities, which become null."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the values of a batch."""
        self._count += count_not_finite(batch)

    def tell(self) -> None:
        """Print the count on standard error, unless it is 0."""
        if self._count:
            values = "1 value is" if self._count == 1 else f"{self._count:,} values are"
            typer.echo(f"{values} NaN or infinite: null, as JSON has no such number", err=True)


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


class _JsonArray:
    def __init__(self) -> None:
        self._before = b"["
        self._not_finite = NotFinite()

    def write(self, batch: pa.RecordBatch) -> None:
        self._not_finite.add(batch)
        if batch.num_rows:
            _binary().write(self._before + encode_rows_within(batch, None).text)
            self._before = b",\n"

    def close(self) -> None:
        _binary().write(b"]\n" if self._before != b"[" else b"[]\n")
        _binary().flush()
        self._not_finite.tell()


class _JsonLines:
    def __init__(self) -> None:
        self._not_finite = NotFinite()

    def write(self, batch: pa.RecordBatch) -> None:
        self._not_finite.add(batch)
        for part in encode_lines(batch):
            _binary().write(part)
        _binary().flush()

    def close(self) -> None:
        self._not_finite.tell()


class _Csv:
    def __init__(self, schema: pa.Schema) -> None:
        self._write(csv_head(schema))

    def write(self, batch: pa.RecordBatch) -> None:
        self._write(csv_rows(batch))

    def close(self) -> None:
        return

    def _write(self, text: bytes) -> None:
        _binary().write(text)
        _binary().flush()


class _Arrow:
    def __init__(self, schema: pa.Schema) -> None:
        sink: Any = _binary()
        self._writer = pa.ipc.new_stream(sink, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)
        _binary().flush()

    def close(self) -> None:
        self._writer.close()
        _binary().flush()


def _binary() -> IO[bytes]:
    return sys.stdout.buffer
