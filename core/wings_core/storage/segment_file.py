"""Segments as Arrow IPC files: many pages of one partition in one file.

Any reader of Arrow IPC files can read a segment (pyarrow, DuckDB over a pyarrow dataset, polars).
The footer of such a file has the position of each record batch message, so the space between
messages is free: each message is preceded by the header of a page, with its checksums.

    "ARROW1" 00 00 │ schema message │ padding │ page │ page │ … │ end of stream │ footer │
    int32: length of the footer │ "ARROW1"          └ header │ message │ padding

A page thus has an address in its segment, and is read like any other. Its buffers are compressed
individually, and its last column holds the timestamp of each row, as pages of many timestamps are
merged into one. The metadata of the schema names the origin (`wings.topic`, `wings.topic_uuid`,
`wings.partition`, `wings.start_offset`): row `i` of a segment has the offset `wings.start_offset` +
i.

The footer is the one that pyarrow writes for as many empty batches, with the positions of the real
ones filled in (https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format).
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from wings_core.batches import empty_batch
from wings_core.errors import StorageCorrupt
from wings_core.storage.ipc import COMPRESSION, find_fields
from wings_core.storage.page import PAGE_ALIGNMENT, PageEncoder, header_length

TIMESTAMP_FIELD = pa.field("__timestamp", pa.timestamp("us", tz="UTC"), nullable=False)
"""The last column of a segment's pages."""

_MAGIC = b"ARROW1"
_START = _MAGIC + bytes(2)
_END_OF_STREAM = struct.pack("<Ii", 0xFFFFFFFF, 0)
_FOOTER_LENGTH = struct.Struct("<i")
_BLOCK = struct.Struct("<qi4xq")
"""Block of the footer: position of a message, length of prefix and metadata, length of body."""

_U32 = struct.Struct("<I")
_PREFIX_BYTES = 8
"""Length of a message's prefix: a mark, and the length of its metadata."""

_FOOTER_FIELDS = 4
"""Fields of Arrow's File.fbs: version, schema, dictionaries, recordBatches."""


def segment_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a segment's pages: a topic's columns, and the timestamps."""
    return schema.append(TIMESTAMP_FIELD)


class SegmentWriter:
    """A writer of one segment in memory, for one thread.

    Args:
        topic_uuid: The topic, as the text of a UUID.
        schema: The topic's columns and types.
        about: Metadata of the schema, for readers of the file.
    """

    def __init__(self, topic_uuid: str, schema: pa.Schema, about: Mapping[str, str]) -> None:
        self.schema = segment_schema(schema)
        self._encoder = PageEncoder(topic_uuid, self.schema, compressed=True)
        self._file_schema = self.schema.with_metadata(dict(about))
        message = self._file_schema.serialize().to_pybytes()
        self._parts: list[bytes | memoryview] = [_START, message]
        self._length = len(_START) + len(message)
        self._append(bytes(-self._length % PAGE_ALIGNMENT))
        self._blocks: list[tuple[int, int, int]] = []

    @property
    def length(self) -> int:
        """Bytes so far."""
        return self._length

    def write(self, batch: pa.RecordBatch) -> tuple[int, int]:
        """Write rows as a page.

        Args:
            batch: Rows of the segment's schema.

        Returns:
            Position and length of the page in the segment, in bytes.
        """
        page = self._encoder.encode(batch)
        position = self._length
        # Header, prefix with metadata, parts of the body, padding.
        header, metadata = page.parts[:2]
        body = sum(map(len, page.parts[2:-1]))
        self._blocks.append((position + len(header), len(metadata), body))
        for part in page.parts:
            self._append(part)
        return position, page.length

    def finish(self) -> list[bytes | memoryview]:
        """Return the whole segment as consecutive parts."""
        footer = self._footer()
        for part in (_END_OF_STREAM, footer, _FOOTER_LENGTH.pack(len(footer)), _MAGIC):
            self._append(part)
        return self._parts

    def _append(self, part: bytes | memoryview) -> None:
        self._parts.append(part)
        self._length += len(part)

    def _footer(self) -> bytes:
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression=COMPRESSION)
        with pa.ipc.new_file(sink, self._file_schema, options=options) as writer:
            empty = empty_batch(self._file_schema)
            for _ in self._blocks:
                writer.write_batch(empty)
        file = sink.getvalue().to_pybytes()
        end = len(file) - len(_MAGIC) - _FOOTER_LENGTH.size
        (length,) = _FOOTER_LENGTH.unpack_from(file, end)
        footer = bytearray(file[end - length : end])
        view = memoryview(footer)
        first, count = _blocks_in(view)
        assert count == len(self._blocks), "pyarrow writes a block for each batch"
        for number, block in enumerate(self._blocks):
            _BLOCK.pack_into(view, first + number * _BLOCK.size, *block)
        return bytes(footer)


def segment_problems(
    read: Callable[[int, int], bytes], size: int, pages: Sequence[tuple[int, int]]
) -> Iterator[str]:
    """Yield the problems that keep other Arrow IPC readers from reading all of a segment.

    Pages are not examined, as they have checksums. Damage in bytes that no reader uses is not
    found.

    Args:
        read: Returns the bytes from a start to an end position (exclusive).
        size: Size of the segment in bytes.
        pages: Position and end of the pages that the footer must list.
    """
    try:
        ending = len(_MAGIC) + _FOOTER_LENGTH.size
        if size < len(_START) + ending:
            yield f"it has {size} bytes, and is cut off"
            return
        *_, length, magic = struct.unpack(f"<i{len(_MAGIC)}s", read(size - ending, size))
        begin = size - ending - length - len(_END_OF_STREAM)
        if magic != _MAGIC or length <= 0 or begin < len(_START):
            yield "it ends without a footer: it is cut off, or its end is damaged"
            return
        tail = read(begin, size)
        if not tail.startswith(_END_OF_STREAM):
            yield "its footer does not follow the end of its pages"
        footer = memoryview(tail)[len(_END_OF_STREAM) : -ending]
        first, count = _blocks_in(footer)
        blocks = sorted(
            _BLOCK.unpack_from(footer, first + number * _BLOCK.size) for number in range(count)
        )
        first_message = blocks[0][0] if blocks else begin
        head = read(0, min(max(first_message, len(_START) + _PREFIX_BYTES), begin))
        schema = pa.ipc.read_schema(pa.py_buffer(head[len(_START) :]))
        # pyarrow examines a file of the same schema and footer without the pages.
        said = pa.ipc.open_file(pa.py_buffer(_START + tail)).schema
        if not head.startswith(_START) or not said.equals(schema, check_metadata=True):
            yield "its beginning and its footer have different schemas"
        known = {start: (prefix, body) for start, prefix, body in blocks}
        for position, end in pages:
            message = position + header_length(len(schema))
            prefix, body = known.get(message, (0, 0))
            (said_prefix,) = _U32.unpack_from(read(message, message + _PREFIX_BYTES), _U32.size)
            padded = -(message + prefix + body) % PAGE_ALIGNMENT
            if prefix != _PREFIX_BYTES + said_prefix or message + prefix + body + padded != end:
                yield f"its footer does not have the page at byte {position}"
    except (pa.ArrowException, struct.error, StorageCorrupt, ValueError, OSError) as error:
        yield f"its beginning or its footer is damaged: {error}"


def _blocks_in(footer: memoryview) -> tuple[int, int]:
    """Return the position of the record batch blocks in a footer, and their number."""
    vector = find_fields(footer, _U32.unpack_from(footer)[0], _FOOTER_FIELDS)[3]
    vector += _U32.unpack_from(footer, vector)[0]
    (count,) = _U32.unpack_from(footer, vector)
    if vector + _U32.size + count * _BLOCK.size > len(footer):
        raise StorageCorrupt(f"it cannot list {count} pages")
    return vector + _U32.size, count
