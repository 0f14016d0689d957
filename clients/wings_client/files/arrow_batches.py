"""Readers of Parquet, ORC and Arrow IPC, with batches cast to the topic's types.

Parquet is read in batches of bounded size, with INT96 in a lossless unit. INT96 holds times with
nanoseconds over more years than 64 bits of nanoseconds. Arrow reads them as nanoseconds, which
overflows, or as microseconds, which truncates, both silently. Most writers, like Spark, use
microseconds, and `9999-12-31` for no end; others use nanoseconds. So columns of INT96 are first
read in both units, and then in the one that preserves all of their times.
"""

import io
import json
import re
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet

from wings_client.files.formats import ARROW_FILE, Section
from wings_client.files.parts import ALL, ChosenColumns, Part, bad_row, cast_part
from wings_client.files.source import BLOCK_BYTES, Source
from wings_core.arrow_types import leaves, plain_schema
from wings_core.cast import Caster
from wings_core.errors import InvalidArgument

arrow: Any = pa
"""Untyped, for names that pyarrow's stubs lack."""

_UNNAMED = re.compile("__index_level_[0-9]+__")
"""Column of an unnamed pandas index."""

GATHERED_BYTES = 1024 * 1024
"""Size below which batches are joined."""

pc: Any = pyarrow.compute

BATCH_ROWS = 65_536
"""Most rows read at a time."""

BATCH_BYTES = 32 * 1024 * 1024
"""Approximate bytes read at a time: Arrow cannot read nested columns above 2 GiB."""

_NS_PER_US = 1_000


class _TypedRows(ABC):
    """A file of batches whose columns have types, which are cast to the topic's.

    Args:
        source: The file's bytes; its `position` is kept up to date.
        schema: The file's columns.
        chosen: The columns to read.

    Attributes:
        found: Number of rows of the section, or found in it so far.
        names: Names of the columns to read.
    """

    _format: str
    _rows_before = 0

    def __init__(self, source: Source, schema: pa.Schema, chosen: ChosenColumns) -> None:
        self._source = source
        self._schema = columns_of(schema, chosen)
        self.names: list[str] = self._schema.names
        self.found = 0

    def rows_before(self) -> int:
        """Return how many rows of the file precede those of the section."""
        return self._rows_before

    def schema(self) -> pa.Schema:
        """Return the columns, without types that only encode others."""
        return plain_schema(self._schema)

    def parts(self, schema: pa.Schema, exact: Set[str] = frozenset()) -> Iterator[Part]:
        """Yield its rows; see `Rows.parts`."""
        del exact
        convert = Caster(self._schema, schema).cast
        rows = self._rows_before + 1
        for batch in self._readable():
            yield cast_part(
                convert, batch, lambda index, first=rows: self._source.row(first + index)
            )
            rows += batch.num_rows

    @abstractmethod
    def _batches(self) -> Iterable[pa.RecordBatch]:
        """Return the batches of the chosen columns."""

    def _readable(self) -> Iterator[pa.RecordBatch]:
        rows = 0
        try:
            for batch in self._batches():
                yield batch
                rows += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise InvalidArgument(
                f"after row {rows}: unreadable {self._format}: {error!s:.200}"
            ) from None

    def _metered(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches; the position in the file is the share of the rows yielded."""
        rows = 0
        for batch in batches:
            rows += batch.num_rows
            self._source.position = (self._source.size or 0) * rows // max(1, self.found)
            yield batch


def _local(source: Source, path: Path | None, wanted: str) -> Path:
    """Return the path of a file of a format that is read from its end.

    Raises:
        InvalidArgument: It is standard input, or compressed.
    """
    if path is None or not source.is_plain:
        raise InvalidArgument(
            f"{wanted} is read from its end, so it must be a file, and one that is not compressed",
            argument="path",
        )
    return path


class ParquetRows(_TypedRows):
    """A Parquet file.

    Args:
        source: Its `position` is kept up to date.
        path: Path of the file; None for standard input, which is rejected.
        section: The section of row groups to read; None for all.
        chosen: The columns to read.

    Raises:
        InvalidArgument: The file is not Parquet.
    """

    _format = "Parquet"

    def __init__(
        self,
        source: Source,
        path: Path | None,
        section: Section | None = None,
        chosen: ChosenColumns = ALL,
    ) -> None:
        path = _local(source, path, self._format)
        self._fine = self._coarse = _opened(path, "ns")
        super().__init__(source, self._fine.schema_arrow, chosen)
        about = self._fine.metadata
        self._groups = groups_of(about, section or Section(0, 1))
        rows = [about.row_group(group).num_rows for group in range(self._groups.stop)]
        self.found = sum(rows[self._groups.start :])
        self._rows_before = sum(rows[: self._groups.start])
        columns = self._fine.schema
        if any(columns.column(index).physical_type == "INT96" for index in range(len(columns))):
            self._coarse = _opened(path, "us")
        coarse = columns_of(self._coarse.schema_arrow, chosen)
        self._of_microseconds = {
            name
            for name in self.names
            if coarse.field(name) != self._schema.field(name) and self._is_of_microseconds(name)
        }
        for index, name in enumerate(self.names):
            if name in self._of_microseconds:
                self._schema = self._schema.set(index, coarse.field(index))

    def _batches(self) -> Iterable[pa.RecordBatch]:
        return self._metered(self._read())

    def _read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, with each column of INT96 in its unit."""
        coarse = [name for name in self.names if name in self._of_microseconds]
        if not coarse:
            yield from _batches(self._fine, self._groups, self.names)
            return
        readers = [_batches(self._coarse, self._groups, coarse)]
        if fine := [name for name in self.names if name not in self._of_microseconds]:
            readers.append(_batches(self._fine, self._groups, fine))
        for parts in zip(*readers, strict=True):
            columns = {name: part.column(name) for part in parts for name in part.schema.names}
            yield pa.RecordBatch.from_arrays(
                [columns[name] for name in self.names], schema=self._schema
            )

    def _is_of_microseconds(self, name: str) -> bool:
        """Return whether microseconds hold all times of a column of INT96; reads the column.

        Raises:
            SchemaMismatch: Neither unit does.
        """
        has_digits = has_other_years = False
        rows = self._rows_before
        pairs = zip(
            _batches(self._fine, self._groups, [name]),
            _batches(self._coarse, self._groups, [name]),
            strict=True,
        )
        for fine_batch, coarse_batch in pairs:
            for fine, coarse in zip(
                leaves(fine_batch.column(0)), leaves(coarse_batch.column(0)), strict=True
            ):
                if fine.type == coarse.type:
                    continue
                ns, us = fine.cast(pa.int64()), coarse.cast(pa.int64())
                # The part below a microsecond, correct even on overflow of 64 bits.
                digits = pc.subtract(ns, pc.multiply(us, _NS_PER_US))
                has_digits |= bool(pc.any(pc.not_equal(digits, 0)).as_py())
                whole = pc.divide(pc.subtract(ns, digits), _NS_PER_US)
                has_other_years |= bool(pc.any(pc.not_equal(whole, us)).as_py())
            rows += fine_batch.num_rows
            if has_digits and has_other_years:
                raise bad_row(
                    self._source.row(rows),
                    f"column {name!r:.80}: up to here it has times with nanoseconds, and times "
                    "beyond the range of 64 bits of nanoseconds",
                    name,
                )
        return not has_digits


class OrcRows(_TypedRows):
    """An ORC file, of which each stripe is read into memory as a whole.

    Args:
        source: Its `position` is kept up to date.
        path: Path of the file; None for standard input, which is rejected.
        chosen: The columns to read.

    Raises:
        InvalidArgument: The file is not ORC.
    """

    _format = "ORC"

    def __init__(self, source: Source, path: Path | None, chosen: ChosenColumns = ALL) -> None:
        from pyarrow import orc  # Other formats do not need it.

        path = _local(source, path, self._format)
        try:
            self._file: Any = orc.ORCFile(str(path))
        except (pa.ArrowException, OSError) as error:
            raise InvalidArgument(f"not ORC: {error!s:.300}") from None
        super().__init__(source, self._file.schema, chosen)
        self.found = self._file.nrows

    def _batches(self) -> Iterable[pa.RecordBatch]:
        stripes = map(self._file.read_stripe, range(self._file.nstripes))
        return self._metered(gathered(stripe.select(self.names) for stripe in stripes))


def groups_of(about: Any, section: Section) -> range:
    """Return the row groups of a section: those whose midpoint is in its part of the bytes.

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


class ArrowRows(_TypedRows):
    """An Arrow IPC file, read by its footer, or consecutive streams.

    A local file is mapped, so that a batch may exceed memory. A compressed file, or a pipe, is
    copied to disk first.

    Args:
        source: The file's bytes.
        path: Path of the file; None for standard input.
        section: The section of a file's batches to read; the first section reads all of streams.
            None for all.
        chosen: The columns to read.

    Raises:
        InvalidArgument: The file is not Arrow IPC, or truncated.
    """

    _format = "Arrow IPC"

    def __init__(
        self,
        source: Source,
        path: Path | None,
        section: Section | None = None,
        chosen: ChosenColumns = ALL,
    ) -> None:
        self._source = source
        self.found = 0
        self._is_mapped = path is not None and source.is_plain and bool(source.size)
        is_file = source.head().startswith(ARROW_FILE)
        section = section or Section(0, 1)
        self._file: Any
        if self._is_mapped:
            self._file = arrow.memory_map(str(path))
        elif is_file:
            self._file = source.copied()
        else:
            self._file = pa.PythonFile(cast("Any", SourceFile(source)), "r")
        try:
            if is_file:
                self._read = self._of_file(section)
            else:
                self._reader: Any = arrow.ipc.open_stream(self._file)
                self._read = self._of_streams() if section.index == 0 else iter(())
        except (pa.ArrowInvalid, OSError) as error:
            raise InvalidArgument(f"not Arrow IPC, or truncated: {error!s:.300}") from None
        super().__init__(source, self._reader.schema, chosen)

    def _batches(self) -> Iterable[pa.RecordBatch]:
        return (batch.select(self.names) for batch in self._read)

    def _of_file(self, section: Section) -> Iterator[pa.RecordBatch]:
        self._reader = arrow.ipc.open_file(self._file)
        count = self._reader.num_record_batches
        first, end = section.of(count)
        if first:
            # A single column, to decompress as little as possible.
            options = arrow.ipc.IpcReadOptions(included_fields=[0][: len(self._reader.schema)])
            counted: Any = arrow.ipc.open_file(self._file, options=options)
            self._rows_before = sum(counted.get_batch(index).num_rows for index in range(first))

        def batches() -> Iterator[pa.RecordBatch]:
            for index in range(first, end):
                self._source.position = (self._source.size or 0) * (index + 1) // count
                yield self._reader.get_batch(index)

        return gathered(self._counted(batches()))

    def _of_streams(self) -> Iterator[pa.RecordBatch]:
        schema = self._reader.schema
        while True:
            for batch in gathered(self._counted(self._reader)):
                if self._is_mapped:
                    self._source.position = self._file.tell()
                yield batch
            if not self._has_more():
                return
            self._reader = arrow.ipc.open_stream(self._file)
            if not self._reader.schema.equals(schema):
                raise InvalidArgument("a further stream begins there, with different columns")

    def _has_more(self) -> bool:
        if self._is_mapped:
            return self._file.tell() < self._file.size()
        self._source.grow_head()
        return bool(self._source.head())

    def _counted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.found += batch.num_rows
            yield batch


class SourceFile(io.RawIOBase):
    """A source as a Python file.

    Reads are short only at the end of the source, as readers treat a short read as the end.

    Args:
        source: The source to read.
    """

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source = source

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return the next `size` bytes, fewer at the end; blocks until they are available."""
        blocks: list[bytes] = []
        left = BLOCK_BYTES if size < 0 else size
        while left > 0 and (block := self._source.read(left)):
            blocks.append(block)
            left -= len(block)
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)


def columns_of(schema: pa.Schema, chosen: ChosenColumns) -> pa.Schema:
    """Return the chosen columns, without an unnamed pandas index."""
    unnamed: set[str] = set()
    with suppress(ValueError, TypeError, LookupError):  # The metadata is not trusted.
        index = json.loads(cast("Any", schema.metadata)[b"pandas"])["index_columns"]
        unnamed |= {name for name in index if _UNNAMED.fullmatch(name)}
    unnamed -= chosen.only or frozenset()
    twice = [name for index, name in enumerate(schema.names) if name in schema.names[:index]]
    if twice:
        raise InvalidArgument(f"column {twice[0]!r:.80} is duplicate")
    names = chosen.of([name for name in schema.names if name not in unnamed])
    return pa.schema([cast("Any", schema).field(name) for name in names])


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches, with small ones joined and large ones split."""
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


def _opened(path: Path, unit: str) -> Any:
    return pyarrow.parquet.ParquetFile(path, memory_map=True, coerce_int96_timestamp_unit=unit)


def _batches(file: Any, groups: Sequence[int], names: Sequence[str]) -> Iterator[Any]:
    about = [file.metadata.row_group(group) for group in groups]
    row_bytes = max((each.total_byte_size // max(1, each.num_rows) for each in about), default=0)
    rows = max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, row_bytes)))
    for batch in file.iter_batches(rows, list(groups), list(names)):
        yield batch.select(names)  # A name with dots may also match a part of another column.
