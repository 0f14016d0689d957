"""Parquet and Arrow IPC: batches as they are, cast to the topic's types."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from wings_client.files.formats import ARROW_FILE
from wings_client.files.parts import Part, cast_part
from wings_client.files.sections import Section
from wings_client.files.source import Source, SourceFile
from wings_core.cast import Caster
from wings_core.errors import InvalidArgument
from wings_core.plain_types import plain_schema

arrow: Any = pa
"""Untyped, for names that pyarrow's stubs lack."""

BATCH_ROWS = 65_536
"""Rows that are read at a time."""

GATHERED_BYTES = 1024 * 1024
"""Smaller batches are joined."""

_FILE_HEAD_BYTES = 8
"""Bytes of an IPC file before its stream: magic and padding."""


class ParquetRows:
    """A Parquet file.

    Args:
        source: Its `position` is kept up to date.
        path: Of the file; None for standard input, which is refused.
        section: The row groups to read; None: all.

    Attributes:
        rows: How many rows the section has.
        rows_before: How many rows of the file precede them.

    Raises:
        InvalidArgument: Not a Parquet file.
    """

    def __init__(self, source: Source, path: Path | None, section: Section | None = None) -> None:
        self._source = source
        if path is None or not source.is_plain:
            raise InvalidArgument(
                "Parquet is read from its end, so it must be a file, and one that is not "
                "compressed",
                argument="path",
            )
        try:
            self._file: Any = pyarrow.parquet.ParquetFile(path, memory_map=True)
        except pa.ArrowInvalid as error:
            raise InvalidArgument(f"{path}: {error!s:.300}") from None
        about = self._file.metadata
        self._groups = groups_of(about, section or Section(0, 1))
        rows = [about.row_group(group).num_rows for group in range(self._groups.stop)]
        self.rows: int = sum(rows[self._groups.start :])
        self.rows_before: int = sum(rows[: self._groups.start])

    def schema(self) -> pa.Schema:
        """Return the file's columns, without types that only encode others."""
        return plain_schema(self._file.schema_arrow)

    def parts(self, schema: pa.Schema) -> Iterator[Part]:
        """Yield its rows; see `Rows.parts`."""
        groups = list(self._groups)
        batches = self._file.iter_batches(batch_size=BATCH_ROWS, row_groups=groups)
        found = self._file.schema_arrow
        rows = 0
        for part in cast_parts(_readable(batches, "Parquet"), found, schema, self.rows_before):
            rows += part.batch.num_rows
            self._source.position = (self._source.size or 0) * rows // max(1, self.rows)
            yield part


def groups_of(about: Any, section: Section) -> range:
    """Return the row groups of a section: those whose middle is in its part of the bytes.

    Args:
        about: The metadata of a Parquet file.
        section: The section.
    """
    sizes = [about.row_group(group).total_byte_size for group in range(about.num_row_groups)]
    total = max(1, sum(sizes))
    ends = list(accumulate(sizes))
    owners = [
        min(section.count - 1, (2 * end - size) * section.count // (2 * total))
        for end, size in zip(ends, sizes, strict=True)
    ]
    return range(bisect_left(owners, section.index), bisect_right(owners, section.index))


class ArrowRows:
    """An Arrow IPC stream or file.

    A file contains a stream, and is read as one, also from a pipe. A file on a disk is mapped, so a
    batch in it may exceed memory.

    Args:
        source: Its bytes.
        path: Of the file; None for standard input.
        section: The batches of a file to read; of a stream, the first section reads all. None: all.

    Attributes:
        rows_before: How many rows of the file precede those of the section.

    Raises:
        InvalidArgument: Not Arrow IPC.
    """

    def __init__(self, source: Source, path: Path | None, section: Section | None = None) -> None:
        self.rows: int | None = None
        self.rows_before = 0
        self._source = source
        self._mapped: Any = None
        if path is not None and source.is_plain and source.size:
            self._mapped = file = arrow.memory_map(str(path))
        else:
            file = pa.PythonFile(SourceFile(source), "r")
        try:
            self._reader: Any
            if section is not None and self._mapped is not None and self._is_file():
                self._reader = _FileSection(self._mapped, section)
                self.rows_before = self._reader.rows_before
            else:
                if self._is_file():
                    file.read(_FILE_HEAD_BYTES)
                self._reader = pa.ipc.open_stream(file)
                if section is not None and section.index > 0:
                    self._reader = _Nothing(self._reader.schema)
        except (pa.ArrowInvalid, OSError) as error:
            raise InvalidArgument(f"not Arrow IPC: {error!s:.300}") from None

    def schema(self) -> pa.Schema:
        """Return the columns, without types that only encode others."""
        return plain_schema(self._reader.schema)

    def parts(self, schema: pa.Schema) -> Iterator[Part]:
        """Yield its rows; see `Rows.parts`."""
        batches = gathered(_readable(self._reader, "Arrow IPC"))
        for part in cast_parts(batches, self._reader.schema, schema, self.rows_before):
            if self._mapped is not None:
                self._source.position = self._mapped.tell()
            yield part

    def _is_file(self) -> bool:
        if self._mapped is None:
            return self._source.head().startswith(ARROW_FILE)
        return self._mapped.read_at(len(ARROW_FILE), 0) == ARROW_FILE


class _FileSection:
    """Some of the batches of an IPC file."""

    def __init__(self, file: Any, section: Section) -> None:
        self._reader: Any = arrow.ipc.open_file(file)
        first, end = section.of(self._reader.num_record_batches)
        self._batches = range(first, end)
        self.schema: pa.Schema = self._reader.schema
        # With one column alone, the least is decompressed.
        options = arrow.ipc.IpcReadOptions(included_fields=[0] if len(self.schema) else [])
        counted: Any = arrow.ipc.open_file(file, options=options)
        self.rows_before = sum(counted.get_batch(index).num_rows for index in range(first))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return (self._reader.get_batch(index) for index in self._batches)


class _Nothing:
    """A section without batches."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(())


def cast_parts(
    batches: Iterable[pa.RecordBatch], source: pa.Schema, schema: pa.Schema, rows_before: int = 0
) -> Iterator[Part]:
    """Yield batches cast to a schema, columns found by name.

    Args:
        batches: Of a file.
        source: Their schema.
        schema: The schema to cast to.
        rows_before: How many rows of the file precede them.

    Raises:
        SchemaMismatch: A column or a value does not fit.
    """
    cast = Caster(source, schema).cast
    rows = rows_before
    for batch in batches:
        yield cast_part(cast, batch, lambda index, rows=rows: f"row {rows + index + 1}")
        rows += batch.num_rows


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches, small ones joined with the next, and large ones cut."""
    waiting: list[pa.RecordBatch] = []
    rows, size = 0, 0
    for batch in _cut(batches):
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= BATCH_ROWS or size >= GATHERED_BYTES:
            yield _joined(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _joined(waiting)


def _cut(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, BATCH_ROWS):
            yield batch.slice(start, BATCH_ROWS)


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
