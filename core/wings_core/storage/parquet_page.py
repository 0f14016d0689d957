"""Row groups in memory, whole or as some columns, verified once and decoded for their readers."""

import io
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from wings_core.arrow_types import fields_of
from wings_core.errors import StorageCorrupt
from wings_core.storage.parquet_file import RowGroup
from wings_core.storage.parquet_types import from_file


class ParquetPage:
    """The `HeldPage` of a row group.

    Args:
        group: The row group.
        columns: Bytes of the columns that can be read, by name.
        verified: Names of columns whose checksums were verified.
    """

    is_compressed = True
    extra_bytes = 0

    def __init__(
        self, group: RowGroup, columns: Mapping[str, pa.Buffer], verified: Sequence[str]
    ) -> None:
        self._group = group
        self._columns = columns
        self._verified = set(verified)

    @classmethod
    def whole(cls, group: RowGroup, page: pa.Buffer, verify: Sequence[str]) -> "ParquetPage":
        """Return a page with all columns of a row group.

        Args:
            group: The row group.
            page: The row group's bytes.
            verify: Columns to verify now.

        Raises:
            StorageCorrupt: One of `verify` is damaged.
        """
        columns: dict[str, pa.Buffer] = {}
        for name in group.footer.leaves:
            start, end = group.extent(name)
            columns[name] = page.slice(start - group.start, end - start)
        held = cls(group, columns, ())
        held.verify(verify)
        return held

    def verify(self, names: Sequence[str]) -> None:
        """Verify columns that were not verified yet.

        Raises:
            StorageCorrupt: A column is damaged, or not in the file.
        """
        for name in names:
            if name not in self._verified:
                self._group.leaves_of(name)
                self._group.verify(name, memoryview(self._columns[name]))
                self._verified.add(name)

    def read(
        self, topic_uuid: str, schema: pa.Schema, columns: Sequence[int] | None
    ) -> pa.RecordBatch:
        """See `HeldPage.read`."""
        if topic_uuid != self._group.footer.topic_uuid:
            raise StorageCorrupt(f"it belongs to another topic than {topic_uuid}")
        every = fields_of(schema)
        wanted = every if columns is None else [every[index] for index in columns]
        names = [field.name for field in wanted]
        self.verify(names)
        if not wanted:
            return pa.RecordBatch.from_arrays([pa.nulls(self._group.rows)], ["_"]).select([])
        table = self._decode(list(dict.fromkeys(names)))
        if table.num_rows != self._group.rows:
            raise StorageCorrupt(f"it has {table.num_rows} rows, its footer says otherwise")
        arrays: list[Any] = []
        for field in wanted:
            chunks = cast("Any", table.column(field.name)).chunks
            column = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
            try:
                arrays.append(from_file(column, field.type))
            except MemoryError:
                raise  # StorageCorrupt is also an Arrow exception.
            except pa.ArrowException as error:
                raise StorageCorrupt(f"column {field.name!r:.80} cannot be read: {error}") from None
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(wanted))

    def _decode(self, names: Sequence[str]) -> pa.Table:
        group, footer = self._group, self._group.footer
        parts = {group.extent(name)[0]: self._columns[name] for name in names}
        leaves = sorted(leaf for name in names for leaf in group.leaves_of(name))
        try:
            file = cast("Any", pq.ParquetFile)(
                pa.PythonFile(_Sparse(footer.size, parts), mode="r"),
                metadata=footer.metadata,
                pre_buffer=False,
                page_checksum_verification=True,
            )
            return file.reader.read_row_group(group.number, column_indices=leaves)
        except MemoryError:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            raise StorageCorrupt(f"its rows cannot be read: {error}") from None


class _Sparse(io.RawIOBase):
    """A file with only some of its ranges present.

    Args:
        size: Size of the file in bytes.
        parts: The ranges' bytes, by start position.
    """

    def __init__(self, size: int, parts: Mapping[int, pa.Buffer]) -> None:
        self._size = size
        self._parts = parts
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._position, self._size)[whence]
        self._position = base + offset
        return self._position

    def size(self) -> int:
        return self._size

    def read_buffer(self, size: int) -> pa.Buffer:
        """Return the next bytes without a copy; called by pyarrow."""
        for start, part in self._parts.items():
            first = self._position - start
            if 0 <= first < part.size:
                found = part.slice(first, min(size, part.size - first))
                self._position += found.size
                return found
        return pa.py_buffer(b"")

    def read(self, size: int = -1) -> bytes:
        return self.read_buffer(size).to_pybytes()
