"""Messages on standard output: tables for people; JSON, CSV and Arrow for pipes."""

import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import IO, Any, Protocol

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import typer

from wings_client.cli.tables import TableWriter, render_table, terminal_width
from wings_core.json_rows import encode_lines, encode_rows_within
from wings_core.json_rows.texts import json_texts

pc: Any = pyarrow.compute


class Format(StrEnum):
    """How messages are written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"


class Writer(Protocol):
    """Writes batches of one schema as they come."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch, and flush."""
        ...

    def close(self) -> None:
        """Write the end of the format."""
        ...


def check_output(wanted: Format) -> None:
    """Check that standard output accepts a format.

    Raises:
        typer.BadParameter: Binary data, and it is a terminal.
    """
    if wanted is Format.ARROW and sys.stdout.isatty():
        raise typer.BadParameter(
            "arrow is binary: send it to a file or a pipe", param_hint="--format"
        )


def write_all(batches: Iterable[pa.RecordBatch], schema: pa.Schema, wanted: Format) -> None:
    """Write a finite result: JSON as one array, a table with one head."""
    if wanted is Format.TABLE:
        for line in render_table(pa.Table.from_batches(batches, schema), terminal_width()):
            sys.stdout.write(line + "\n")
        return
    writer: Writer = _JsonArray() if wanted is Format.JSON else stream_writer(schema, wanted)
    for batch in batches:
        writer.write(batch)
    writer.close()


def stream_writer(schema: pa.Schema, wanted: Format) -> Writer:
    """Return a writer for messages as they come: JSON as an object on each line."""
    if wanted is Format.TABLE:
        return _Table()
    if wanted is Format.JSON:
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


class _JsonArray:
    def __init__(self) -> None:
        self._before = b"["

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            _binary().write(self._before + encode_rows_within(batch, None).text)
            self._before = b",\n"

    def close(self) -> None:
        _binary().write(b"]\n" if self._before != b"[" else b"[]\n")
        _binary().flush()


class _JsonLines:
    def write(self, batch: pa.RecordBatch) -> None:
        for part in encode_lines(batch):
            _binary().write(part)
        _binary().flush()

    def close(self) -> None:
        return


class _Csv:
    """CSV with a head; types that CSV lacks are written as in JSON, nulls are empty."""

    def __init__(self, schema: pa.Schema) -> None:
        # Not from Python lists: with the first of these pyarrow imports pandas, if it is installed.
        nothing: list[Any] = [pa.nulls(0, pa.string()) for _ in schema.names]
        self._write(pa.RecordBatch.from_arrays(nothing, names=schema.names), head=True)

    def write(self, batch: pa.RecordBatch) -> None:
        columns = [_csv_column(column) for column in _columns(batch)]
        plain: Any = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
        self._write(plain, head=False)

    def close(self) -> None:
        return

    def _write(self, batch: pa.RecordBatch, *, head: bool) -> None:
        sink = pa.BufferOutputStream()
        options: Any = pyarrow.csv.WriteOptions(include_header=head, quoting_style="needed")
        pyarrow.csv.write_csv(batch, sink, options)
        _binary().write(sink.getvalue().to_pybytes())
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


def _csv_column(values: Any) -> Any:
    data_type = values.type
    if (
        pa.types.is_boolean(data_type)
        or pa.types.is_integer(data_type)
        or pa.types.is_floating(data_type)
        or pa.types.is_string(data_type)
        or pa.types.is_large_string(data_type)
    ):
        return values
    texts: Any = json_texts(values)
    if not pa.types.is_nested(data_type) and data_type != pa.month_day_nano_interval():
        texts = pc.utf8_trim(texts, characters='"')
    nothing: Any = pa.scalar(None, pa.string())
    return pc.if_else(values.is_valid(), texts, nothing) if values.null_count else texts


def _columns(batch: pa.RecordBatch) -> Iterator[Any]:
    yield from batch.columns


def _binary() -> IO[bytes]:
    return sys.stdout.buffer
