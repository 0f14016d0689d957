"""Parquet and Arrow IPC: batches as they are, cast to the topic's types."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import typer

from wings_client._cast import Caster
from wings_client._plain import plain_schema
from wings_client.cli.files.formats import ARROW_FILE
from wings_client.cli.files.parts import Part, cast_part
from wings_client.cli.files.source import Source, SourceFile
from wings_core.errors import InvalidArgument

arrow: Any = pa
"""Beside what pyarrow's stubs know."""

BATCH_ROWS = 65_536
"""Rows that are read at a time."""

GATHERED_BYTES = 1024 * 1024
"""Batches smaller than this are put together."""

_FILE_HEAD_BYTES = 8
"""Of an IPC file before the stream that it holds: magic and padding."""


class ParquetRows:
    """A Parquet file.

    Args:
        path: Where it is; None for standard input, which Parquet cannot be read from.

    Raises:
        InvalidArgument: Not a Parquet file.
    """

    def __init__(self, path: Path | None) -> None:
        if path is None:
            raise typer.BadParameter("Parquet is read from its end, so it must be a file")
        try:
            self._file: Any = pyarrow.parquet.ParquetFile(path, memory_map=True)
        except pa.ArrowInvalid as error:
            raise InvalidArgument(f"{path}: {error!s:.300}") from None
        self.rows: int = self._file.metadata.num_rows

    def schema(self) -> pa.Schema:
        """Return the file's columns, without types that only encode others."""
        return plain_schema(self._file.schema_arrow)

    def parts(self, schema: pa.Schema) -> Iterator[Part]:
        """Yield its rows; see `Rows.parts`."""
        batches = self._file.iter_batches(batch_size=BATCH_ROWS)
        yield from cast_parts(_readable(batches, "Parquet"), self._file.schema_arrow, schema)


class ArrowRows:
    """An Arrow IPC stream or file.

    A file holds a stream, and is read as one, so it may come through a pipe.

    Args:
        source: Its bytes.

    Raises:
        InvalidArgument: Not Arrow IPC.
    """

    def __init__(self, source: Source) -> None:
        self.rows: int | None = None
        file = SourceFile(source)
        if source.head().startswith(ARROW_FILE):
            source.read(_FILE_HEAD_BYTES)
        try:
            self._reader: Any = pa.ipc.open_stream(pa.PythonFile(file, "r"))
        except (pa.ArrowInvalid, OSError) as error:
            raise InvalidArgument(f"not Arrow IPC: {error!s:.300}") from None

    def schema(self) -> pa.Schema:
        """Return the columns, without types that only encode others."""
        return plain_schema(self._reader.schema)

    def parts(self, schema: pa.Schema) -> Iterator[Part]:
        """Yield its rows; see `Rows.parts`."""
        batches = gathered(_readable(self._reader, "Arrow IPC"))
        yield from cast_parts(batches, self._reader.schema, schema)


def cast_parts(
    batches: Iterable[pa.RecordBatch], source: pa.Schema, schema: pa.Schema
) -> Iterator[Part]:
    """Yield batches cast to a schema, columns found by name.

    Raises:
        SchemaMismatch: A column or a value does not fit.
    """
    caster = Caster(source, schema)
    rows = 0
    for batch in batches:
        yield cast_part(caster, batch, lambda index, rows=rows: f"row {rows + index + 1}")
        rows += batch.num_rows


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches, small ones put together with those that follow."""
    waiting: list[pa.RecordBatch] = []
    rows, size = 0, 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= BATCH_ROWS or size >= GATHERED_BYTES:
            yield _joined(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else arrow.concat_batches(batches)


def _readable(batches: Iterable[pa.RecordBatch], what: str) -> Iterator[pa.RecordBatch]:
    rows = 0
    try:
        for batch in batches:
            yield batch
            rows += batch.num_rows
    except (pa.ArrowInvalid, OSError) as error:
        raise InvalidArgument(f"after row {rows}: damaged {what}: {error!s:.200}") from None
