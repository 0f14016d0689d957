"""Segments as Parquet files: each row group is a page, and any engine can read the file.

    "PAR1" │ row group │ row group │ … │ checksums │ page indexes │ footer │ its length │ "PAR1"

The columns are those of the topic's first schema version, then `__offset` and `__timestamp`, then
those of later versions, each with its field id in the topic's Iceberg table. Other programs verify
the checksum of each data page; Wings verifies its own checksums, which cover every byte, page
headers and the footer included. They are in a block that other readers ignore, little-endian:

    offset  bytes
         0      8  magic, "WgPq" and the version, 1
         8      8  checksum of all that follows, to the end of the file
        16    8 n  checksum of each column chunk, row group by row group

Checksums are xxh3_64. The footer's metadata names the topic and the partition, as in other
segments.
"""

import io
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import xxhash

from wings_core.arrow_types import children, fields_of
from wings_core.errors import InvalidSchema, StorageCorrupt
from wings_core.model import PageFormat, Topic
from wings_core.storage.parquet_types import file_type, from_file, to_file, with_id
from wings_core.storage.segment_file import segment_schema

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from wings_core.arrow_types import ArrowField

OFFSET_COLUMN = "__offset"
TIMESTAMP_COLUMN = "__timestamp"

TAIL_BYTES = 256 * 1024
"""Bytes read from a file's end at first, usually everything after the row groups."""

DICTIONARY_BYTES_MAX = 16 * 1024
"""Largest dictionary of a column of a row group; beyond it values are written plain, as zstd does
better (measured)."""

_MAGIC = b"WgPq\x01\0\0\0"
_HEAD = struct.Struct("<8sQ")
_PARQUET = b"PAR1"
_ENDING = struct.Struct("<I4s")
_U64_BYTES = 8
_TAIL_GROWTH = 8
_UUID = b"wings.topic_uuid"
_START = "wings.start_offset"
_checksum = xxhash.xxh3_64_intdigest


PARQUET_SUFFIX = ".parquet"


TABLE_MARK = "-table"
"""Mark in the name of a file written for its topic's table, which is used as a whole or not at all.

The layout of the table may follow, as hexadecimal digits."""

_OF_TABLE = re.compile(rf"{TABLE_MARK}(?:[0-9a-f]{{8}})?\.")


def is_table_file(folio: str) -> bool:
    """Return whether a file of pages was written for its topic's table."""
    return is_parquet(folio) and _OF_TABLE.search(folio) is not None


def is_parquet(folio: str) -> bool:
    """Return whether a file of pages is a Parquet file."""
    return folio.endswith(PARQUET_SUFFIX)


def file_fields(topic: Topic) -> "list[ArrowField]":
    """Return the columns of a topic's Parquet files, in order, with their ids.

    Raises:
        InvalidSchema: Parquet has no type for a column; fact `column`.
    """
    last = 0

    def ids() -> int:
        nonlocal last
        last += 1
        return last

    first = fields_of(topic.schemas[0])
    system = [
        pa.field(OFFSET_COLUMN, pa.int64(), nullable=False),
        pa.field(TIMESTAMP_COLUMN, cast("Any", pa).timestamp("us", "UTC"), nullable=False),
    ]
    numbers = {field.name: ids() for field in (*first, *system)}
    # Ids inside columns come from the version that added the column: they never change.
    inner = {field.name: _ids_inside(field, ids) for field in first}
    for schema in topic.schemas[1 : topic.schema_version]:
        for field in fields_of(schema):
            if field.name not in numbers:
                numbers[field.name] = ids()
                inner[field.name] = _ids_inside(field, ids)
    now = fields_of(topic.schema)
    return [
        with_id(_file_field(field, inner.get(field.name, ())), numbers[field.name])
        for field in (*now[: len(first)], *system, *now[len(first) :])
    ]


def check_segment_format(topic: Topic) -> Topic:
    """Return the topic, after checking that its segments' format supports all columns.

    Raises:
        InvalidSchema: A column is not supported; fact `column`.
    """
    if topic.config.merged_format is PageFormat.PARQUET:
        for field in file_fields(topic):
            if topic.config.table is not None:
                _check_table_type(field.type, field.name)
    return topic


def _check_table_type(data_type: pa.DataType, column: str) -> None:
    nanoseconds = pa.types.is_temporal(data_type) and "ns" in str(data_type)
    if data_type == pa.uint64() or nanoseconds or pa.types.is_decimal256(data_type):
        raise InvalidSchema(
            f"column {column!r:.80}: an Iceberg table has no type for {data_type!s:.80}",
            column=column,
        )
    for child in children(data_type):
        _check_table_type(child.type, column)


def _ids_inside(field: "ArrowField", ids: Callable[[], int]) -> tuple[int, ...]:
    """Return the ids of all fields inside a column, in the order that `file_type` needs."""
    taken: list[int] = []

    def take() -> int:
        taken.append(ids())
        return taken[-1]

    file_type(field.type, field.name, take)
    return tuple(taken)


def _file_field(field: "ArrowField", inner: Sequence[int]) -> "ArrowField":
    numbers = iter(inner)
    stored = file_type(field.type, field.name, lambda: next(numbers))
    return pa.field(field.name, stored, nullable=field.nullable)


class ParquetWriter:
    """The `MergedFile` of Parquet segments; for one thread.

    Args:
        topic: Topic of the rows.
        about: Key-value metadata of the footer, `wings.topic_uuid` and `wings.start_offset` among
            it.
    """

    def __init__(self, topic: Topic, about: Mapping[str, str]) -> None:
        self.schema = segment_schema(topic.schema)
        import pyarrow.parquet as pq  # Loaded by the first file, as where it is used below.

        self._fields = file_fields(topic)
        self._next_offset = int(about[_START])
        names = [field.name for field in self._fields]
        self._leaves = sum(leaves(field.type) for field in self._fields)
        before = self._fields[: names.index(OFFSET_COLUMN)]
        self._sink = pa.BufferOutputStream()
        self._writer = cast("Any", pq.ParquetWriter)(
            self._sink,
            pa.schema(self._fields),
            compression="zstd",
            store_schema=False,
            dictionary_pagesize_limit=DICTIONARY_BYTES_MAX,
            write_page_index=True,
            write_page_checksum=True,
            sorting_columns=[pq.SortingColumn(sum(leaves(field.type) for field in before))],
        )
        self._writer.add_key_value_metadata(dict(about))
        self._row_groups = 0
        self._length = self._sink.tell()

    @property
    def length(self) -> int:
        """Bytes so far."""
        return self._length

    def write(self, batch: pa.RecordBatch) -> tuple[int, int]:
        """Write rows as a row group.

        Args:
            batch: Rows of `schema`, whose offsets follow those written.

        Returns:
            Position and length of the row group in the file, in bytes.

        Raises:
            pa.ArrowInvalid: The file's types cannot hold a value.
        """
        offsets = cast("Any", pa).arange(self._next_offset, self._next_offset + batch.num_rows)
        place = {name: index for index, name in enumerate(self.schema.names)}
        arrays = [
            offsets
            if field.name == OFFSET_COLUMN
            else to_file(batch.column(place[field.name]), field.type)
            for field in self._fields
        ]
        table = pa.Table.from_arrays(arrays, schema=pa.schema(self._fields))
        position = self._sink.tell()
        self._writer.write_table(table, row_group_size=max(1, batch.num_rows))
        self._next_offset += batch.num_rows
        self._row_groups += 1
        self._length = self._sink.tell()
        return position, self._length - position

    def finish(self) -> list[bytes | memoryview]:
        """Return the whole file as consecutive parts."""
        start = self._sink.tell()
        room = self._row_groups * self._leaves * _U64_BYTES
        self._sink.write(bytes(_HEAD.size + room))
        self._writer.close()
        file = self._sink.getvalue()
        data = memoryview(file).cast("B")
        self._length = len(data)
        tail = bytearray(data[start:])
        chunks = _chunks(_metadata(file))
        checksums = [_checksum(data[begin:end]) for begin, end in chunks]
        struct.pack_into(f"<{len(checksums)}Q", tail, _HEAD.size, *checksums)
        _HEAD.pack_into(tail, 0, _MAGIC, _checksum(memoryview(tail)[_HEAD.size :]))
        return [data[:start], memoryview(tail)]


def leaves(data_type: pa.DataType) -> int:
    """Return the number of column chunks (leaf columns) of a type."""
    return sum(leaves(child.type) for child in children(data_type)) or 1


def _metadata(file: pa.Buffer | bytes) -> "pq.FileMetaData":
    import pyarrow.parquet as pq

    return pq.read_metadata(pa.BufferReader(file))


def _chunks(metadata: "pq.FileMetaData") -> list[tuple[int, int]]:
    """Return the start and end of each column chunk, row group by row group."""
    found: list[tuple[int, int]] = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for index in range(group.num_columns):
            chunk = group.column(index)
            start = chunk.data_page_offset
            if chunk.dictionary_page_offset is not None:
                start = min(start, chunk.dictionary_page_offset)
            found.append((start, start + chunk.total_compressed_size))
    return found


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group of a verified footer."""

    footer: "ParquetFooter"
    number: int
    rows: int
    start: int
    """Position of its first byte in the file."""

    def leaves_of(self, name: str) -> range:
        """Return the column chunks of a column.

        Raises:
            StorageCorrupt: There is no such column.
        """
        found = self.footer.leaves.get(name)
        if found is None:
            raise StorageCorrupt(f"its file has no column {name!r:.80}")
        return found

    def chunk(self, leaf: int) -> tuple[int, int]:
        """Return the start and end of a column chunk in the file."""
        return self.footer.chunks[self.number * self.footer.width + leaf]

    def extent(self, name: str) -> tuple[int, int]:
        """Return the start and end of a column in the file."""
        found = self.leaves_of(name)
        return self.chunk(found[0])[0], self.chunk(found[-1])[1]

    def verify(self, name: str, data: memoryview) -> None:
        """Verify the bytes of a column.

        Raises:
            StorageCorrupt: A checksum does not match.
        """
        start = self.extent(name)[0]
        for leaf in self.leaves_of(name):
            begin, end = self.chunk(leaf)
            wanted = self.footer.checksums[self.number * self.footer.width + leaf]
            if _checksum(data[begin - start : end - start]) != wanted:
                raise StorageCorrupt(f"the checksum of column {name!r:.80} does not match")


class ParquetFooter:
    """A file's verified footer.

    Args:
        metadata: The file's metadata.
        checksums: Checksums of the column chunks.
        size: Size of the file in bytes.
        weight: Bytes that the footer was read from, its weight in the cache.
    """

    def __init__(
        self, metadata: "pq.FileMetaData", checksums: Sequence[int], size: int, weight: int
    ) -> None:
        self.metadata = metadata
        self.checksums = checksums
        self.size = size
        self.weight = weight
        self.chunks = _chunks(metadata)
        self.width = metadata.num_columns
        self.topic_uuid = (metadata.metadata or {}).get(_UUID, b"").decode("ascii", "replace")
        self._groups = {
            self.chunks[number * self.width][0]: number
            for number in range(metadata.num_row_groups if self.width else 0)
        }

    @cached_property
    def leaves(self) -> dict[str, range]:
        """The column chunks of each column, by its name."""
        found: dict[str, range] = {}
        first = 0
        for field in fields_of(self.metadata.schema.to_arrow_schema()):
            found[field.name] = range(first, first + leaves(field.type))
            first = found[field.name].stop
        return found

    def row_group(self, position: int, length: int, topic_uuid: str) -> RowGroup:
        """Return the row group at a position in the file.

        Raises:
            StorageCorrupt: There is no such row group, or the file is another topic's.
        """
        if topic_uuid != self.topic_uuid:
            raise StorageCorrupt(f"it belongs to topic {self.topic_uuid:.36}, not to {topic_uuid}")
        number = self._groups.get(position)
        if number is None or self.end_of(number) != position + length:
            raise StorageCorrupt(f"its file has no row group of {length} bytes at byte {position}")
        return RowGroup(self, number, self.metadata.row_group(number).num_rows, position)

    def end_of(self, number: int) -> int:
        """Return the end position of a row group in the file."""
        return self.chunks[(number + 1) * self.width - 1][1]


def read_footer(read: Callable[[int, int], pa.Buffer], size: int) -> ParquetFooter:
    """Read and verify the footer of a file.

    Args:
        read: Returns the bytes from a start to an end position (exclusive).
        size: Size of the file in bytes.

    Raises:
        StorageCorrupt: The file is truncated, or its end is damaged.
    """
    if size < len(_PARQUET) + _HEAD.size + _ENDING.size:
        raise StorageCorrupt(f"its file has {size} bytes, and is cut off")
    length = TAIL_BYTES
    while True:
        start = max(0, size - length)
        tail = read(start, size)
        if tail.slice(tail.size - len(_PARQUET)).to_pybytes() != _PARQUET:
            raise StorageCorrupt("its file ends without a footer: it is cut off, or damaged there")
        block = _checked_block(memoryview(tail).cast("B"))
        if block is not None:
            return _parse(tail.slice(block), size)
        if start == 0:
            raise StorageCorrupt("the checksum of its file's footer does not match")
        length *= _TAIL_GROWTH


def _checked_block(tail: memoryview) -> int | None:
    """Return the start of the checksum block in the tail of a file; None if it does not match.

    pyarrow crashes on some damaged footers, so none is parsed before it is verified.
    """
    data = bytes(tail)
    place = data.rfind(_MAGIC)
    while place >= 0:
        if len(data) - place >= _HEAD.size:
            _, checksum = _HEAD.unpack_from(data, place)
            if _checksum(tail[place + _HEAD.size :]) == checksum:
                return place
        place = data.rfind(_MAGIC, 0, place)
    return None


def _parse(tail: pa.Buffer, size: int) -> ParquetFooter:
    """Parse a verified tail of a file, which begins with the checksum block."""
    (length, _) = _ENDING.unpack_from(tail, tail.size - _ENDING.size)
    footer = tail.slice(tail.size - _ENDING.size - length)
    try:
        # pyarrow accepts a file that consists of a footer only.
        metadata = _metadata(_PARQUET + footer.to_pybytes())
    except MemoryError:
        raise  # StorageCorrupt is also an Arrow exception.
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StorageCorrupt(f"its file's footer cannot be read: {error}") from None
    count = metadata.num_row_groups * metadata.num_columns
    checksums = struct.unpack_from(f"<{count}Q", tail, _HEAD.size)
    return ParquetFooter(metadata, checksums, size, tail.size)


def parquet_problems(
    read: Callable[[int, int], bytes], size: int, pages: Sequence[tuple[int, int]]
) -> Iterator[str]:
    """Yield the problems that keep other Parquet readers from reading all of a segment.

    Args:
        read: Returns the bytes from a start to an end position (exclusive).
        size: Size of the segment in bytes.
        pages: Position and end of the pages that the footer must list.
    """
    try:
        footer = read_footer(lambda start, end: pa.py_buffer(read(start, end)), size)
        if read(0, len(_PARQUET)) != _PARQUET:
            yield "it does not begin as a Parquet file"
        for position, end in pages:
            footer.row_group(position, end - position, footer.topic_uuid)
    except StorageCorrupt as error:
        yield error.message


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
        import pyarrow.parquet as pq

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
