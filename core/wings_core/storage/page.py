"""The format of pages: the rows of one partition in one flush, framed with checksums.

A page is a header and a bare Arrow IPC RecordBatch message, padded with zeros to 64 bytes. It
does not contain its schema, which the topic has. Numbers are little-endian:

    offset  bytes
         0      4  magic, "WgPg"
         4      2  format version, 1
         6      2  flags, none so far
         8      4  length of the header: 64 + 8 n
        12      4  number of columns, n
        16      8  length of the message
        24      8  number of rows
        32     16  the topic's UUID
        48      8  checksum of the message's metadata: all of it before the body
        56    8 n  checksum of each column: its range of the body, padding between buffers included
    56 + 8 n    8  checksum of the header: all of it before this

Checksums are xxh3_64 (https://xxhash.com). They cover every byte up to the padding, which is
compared with zeros: verifying the page detects a change of any byte, and verifying a column a
change of any of its bytes.
"""

import struct
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
import xxhash

from wings_core.errors import StorageCorrupt
from wings_core.storage.interfaces import EncodedPage
from wings_core.storage.ipc import (
    MessageLayout,
    MessageWriter,
    SchemaShape,
    first_buffers,
    metadata_end,
    read_metadata,
    shape_of,
)
from wings_core.storage.lru import Lru

PAGE_ALIGNMENT = 64
"""Alignment of pages' beginnings and ends, in bytes."""

LAYOUTS_KEPT_MAX = 64
"""Message layouts that an encoder caches."""

SCHEMAS_REMEMBERED_MAX = 1_024
"""Topics whose schema shapes are cached."""

_MAGIC = b"WgPg"
_VERSION = 1
_START = struct.Struct("<4sHHIIQQ16sQ")
_CHECKSUM_BYTES = 8
_checksum = xxhash.xxh3_64_intdigest

COPIED_BYTES_MAX = 64 * 1024
"""Most bytes a column of rows that are copied into one buffer, which is faster than writing many
small ones; larger ones are written in place."""

_POOL = pa.system_memory_pool()
"""Memory pool of copies, which live for one flush. The C library's allocator reuses the memory of
earlier copies; Arrow's default returns it to the system, and faulting pages in again halves the
throughput of large pushes (measured)."""

_shapes: Lru[str, tuple[pa.Schema, SchemaShape]] = Lru(SCHEMAS_REMEMBERED_MAX)


class PageEncoder:
    """An encoder of one topic's rows as pages, for many batches of one thread.

    Args:
        topic_uuid: The topic, as the text of a UUID.
        schema: The topic's columns and types.
        compressed: Whether to compress the buffers; checksums cover the stored bytes.

    Raises:
        InvalidSchema: A column's type cannot be stored.
    """

    def __init__(self, topic_uuid: str, schema: pa.Schema, *, compressed: bool = False) -> None:
        self._compressed = compressed
        self._uuid = _uuid_bytes(topic_uuid)
        self._first_buffers = first_buffers(schema)
        self._columns = len(schema)
        self._header_length = header_length(self._columns)
        self._checksums = struct.Struct(f"<{self._columns}Q")
        self._writer: MessageWriter | None = None
        self._layouts: dict[bytes, tuple[list[int], int]] = {}
        """Cached results of `_layout_of`, by metadata."""

    def encode(self, batch: pa.RecordBatch) -> EncodedPage:
        """Encode rows of one partition as a page; a slice is encoded without its parent's rows.

        The page of a large batch refers to its buffers, which must not change.
        """
        bound = COPIED_BYTES_MAX * self._columns
        # The first test is quick, but counts the whole buffers of a slice's parent.
        small = batch.get_total_buffer_size() <= bound or batch.nbytes <= bound
        if small and not self._compressed:
            message = memoryview(batch.serialize(memory_pool=_POOL))
            body = metadata_end(message)
            metadata, parts = message[:body], [message[body:]]
        else:
            metadata, parts = self._message_of(batch)
        body_length = sum(map(len, parts))
        lengths, metadata_checksum = self._layout_of(metadata, body_length)
        message_length = len(metadata) + body_length
        start = _START.pack(
            _MAGIC,
            _VERSION,
            0,
            self._header_length,
            self._columns,
            message_length,
            batch.num_rows,
            self._uuid,
            metadata_checksum,
        )
        unsigned = start + self._checksums.pack(*_checksums(parts, lengths))
        header = unsigned + _checksum(unsigned).to_bytes(_CHECKSUM_BYTES, "little")
        length = _padded(self._header_length + message_length)
        padding = bytes(length - self._header_length - message_length)
        return EncodedPage(batch.num_rows, (header, metadata, *parts, padding), length)

    def _layout_of(self, metadata: memoryview, body_length: int) -> tuple[list[int], int]:
        """Return the length of each column in bytes, and the checksum of the metadata.

        Cached, since small batches of a producer often have identical metadata, and parsing it
        takes a third of the time of encoding one row.
        """
        key = bytes(metadata)
        known = self._layouts.get(key)
        if known is None:
            starts = read_metadata(metadata, body_length, self._first_buffers).column_starts
            lengths = [end - begin for begin, end in pairwise(starts)]
            if len(self._layouts) >= LAYOUTS_KEPT_MAX:
                self._layouts.clear()
            known = self._layouts[key] = (lengths, _checksum(key))
        return known

    def _message_of(self, batch: pa.RecordBatch) -> tuple[memoryview, list[memoryview]]:
        """Return the metadata and the parts of the body of a batch's message."""
        if self._writer is None or not self._writer.schema.equals(batch.schema):
            # The columns are the topic's, but names inside lists, and nullability, may differ.
            self._writer = MessageWriter(batch.schema, compressed=self._compressed)
        return self._writer.message(batch)


def parts_of(schema: pa.Schema, columns: Sequence[int] | None) -> int:
    """Return the parts of a page that reading some columns needs, as a bit mask.

    Bit 0 stands for header, metadata and padding, bit `i + 1` for column `i`.
    """
    if columns is None:
        return (2 << len(schema)) - 1
    parts = 1
    for column in columns:
        parts |= 2 << column
    return parts


class PageHead(NamedTuple):
    """Verified header and metadata of a page; positions count from the page's first byte."""

    rows: int
    metadata: memoryview
    """The message up to its body, prefix included."""
    layout: MessageLayout
    """Layout of the message; positions count from the message's first byte."""
    checksums: tuple[int, ...]
    """Checksum of each column, then of the header."""
    message_start: int
    message_end: int

    def column(self, index: int) -> tuple[int, int]:
        """Return the start and end (exclusive) of a column's bytes in the page."""
        starts = self.layout.column_starts
        return self.message_start + starts[index], self.message_start + starts[index + 1]

    def verify_column(self, index: int, data: memoryview, schema: pa.Schema) -> None:
        """Verify the bytes of a column.

        Raises:
            StorageCorrupt: Their checksum does not match.
        """
        if _checksum(data) != self.checksums[index]:
            name = schema.names[index]
            raise StorageCorrupt(f"the checksum of column {name!r:.80} does not match")


def head_length_max(topic_uuid: str, schema: pa.Schema) -> int:
    """Return the bytes that header and metadata of a page normally take at most."""
    return header_length(len(schema)) + shape_of_topic(topic_uuid, schema).metadata_bytes_max


def head_length(data: memoryview, page_length: int, topic_uuid: str) -> int:
    """Return the exact length of a page's header and metadata in bytes.

    Args:
        data: The first `head_length_max` bytes of the page, or all of a shorter page.
        page_length: Length of the whole page in bytes.
        topic_uuid: The topic that the page must belong to.

    Raises:
        StorageCorrupt: The bytes are not the beginning of such a page.
    """
    header = _read_header(data, page_length, topic_uuid)
    return header.length + metadata_end(data[header.length :], header.message_length)


def read_head(data: memoryview, page_length: int, topic_uuid: str, schema: pa.Schema) -> PageHead:
    """Verify and parse the header and metadata of a page.

    Args:
        data: At least the first `head_length` bytes of the page.
        page_length: Length of the whole page in bytes.
        topic_uuid: The topic that the page must belong to.
        schema: The topic's schema, whole.

    Raises:
        StorageCorrupt: The page is damaged, or another topic's.
    """
    header = _read_header(data, page_length, topic_uuid)
    if header.columns != len(schema):
        raise StorageCorrupt(f"it has {header.columns} columns, its topic has {len(schema)}")
    signed = header.length - _CHECKSUM_BYTES
    if len(data) < header.length:
        raise StorageCorrupt("it is cut off in its header")
    checksums = struct.unpack_from(f"<{header.columns + 1}Q", data, _START.size)
    if _checksum(data[:signed]) != checksums[-1]:
        raise StorageCorrupt("the checksum of its header does not match")
    # Only metadata whose checksum matches is parsed, here and by pyarrow.
    message = data[header.length :]
    metadata = message[: metadata_end(message, header.message_length)]
    if _checksum(metadata) != header.metadata_checksum:
        raise StorageCorrupt("the checksum of its metadata does not match")
    body_length = header.message_length - len(metadata)
    layout = read_metadata(metadata, body_length, _first_buffers_of(topic_uuid, schema))
    if layout.rows != header.rows:
        raise StorageCorrupt(f"its header says {header.rows} rows, its metadata {layout.rows}")
    end = header.length + header.message_length
    return PageHead(layout.rows, metadata, layout, checksums, header.length, end)


def verify_page(page: pa.Buffer, topic_uuid: str, schema: pa.Schema, parts: int) -> PageHead:
    """Verify header, metadata and padding of a page, and the columns among `parts`.

    Args:
        page: The whole page with its padding.
        topic_uuid: The topic that the page must belong to.
        schema: The topic's schema, whole.
        parts: A bit mask of `parts_of`.

    Raises:
        StorageCorrupt: The page is damaged, or another topic's.
    """
    data = memoryview(page)
    head = read_head(data, len(data), topic_uuid, schema)
    if any(data[head.message_end :]):
        raise StorageCorrupt("its padding is not zero")
    for column in range(len(schema)):
        if parts & 2 << column:
            start, end = head.column(column)
            head.verify_column(column, data[start:end], schema)
    return head


def read_page(page: pa.Buffer, topic_uuid: str, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of a page; the caller must read only columns that were verified.

    Args:
        page: The whole page with its padding.
        topic_uuid: The topic that the page must belong to.
        schema: The topic's schema, whole.

    Raises:
        StorageCorrupt: The page is another topic's, or its rows do not fit the schema.
    """
    header = _read_header(page, page.size, topic_uuid)
    try:
        message = page.slice(header.length, header.message_length)
        return pa.ipc.read_record_batch(message, schema)
    except MemoryError:
        raise  # StorageCorrupt is also an Arrow exception.
    except (pa.ArrowException, OSError) as error:
        raise StorageCorrupt(f"its rows cannot be read: {error}") from error


class _Header(NamedTuple):
    """The fixed part of a header; only its lengths are checked against the page."""

    length: int
    columns: int
    message_length: int
    rows: int
    metadata_checksum: int


def _read_header(page: pa.Buffer | memoryview, page_length: int, topic_uuid: str) -> _Header:
    """Parse the fixed part of a header, without verifying its checksum."""
    if len(page) < _START.size:
        raise StorageCorrupt("it is shorter than a header")
    (magic, version, flags, length, columns, message_length, rows, uuid, metadata_checksum) = (
        _START.unpack_from(page)
    )
    if magic != _MAGIC:
        raise StorageCorrupt("it does not begin as a page")
    if version != _VERSION or flags != 0:
        raise StorageCorrupt(f"it has version {version} and flags {flags:#x}, expected 1 and 0")
    if length != header_length(columns) or _padded(length + message_length) != page_length:
        raise StorageCorrupt(f"its lengths do not add up to its {page_length} bytes")
    if uuid != _uuid_bytes(topic_uuid):
        raise StorageCorrupt(f"it belongs to topic {uuid.hex()}, not to {topic_uuid}")
    return _Header(length, columns, message_length, rows, metadata_checksum)


def _checksums(parts: Sequence[memoryview], lengths: Iterable[int]) -> list[int]:
    """Return the checksum of each column of a body.

    Args:
        parts: Parts of the body, in order; a part may end within a column.
        lengths: Lengths of the columns in bytes, in order.
    """
    left = iter(parts)
    part = memoryview(b"")
    found: list[int] = []
    for length in lengths:
        if len(part) == 0 and length:
            part = next(left)
        if len(part) >= length:
            found.append(_checksum(part[:length]))
            part = part[length:]
            continue
        hasher = xxhash.xxh3_64()
        while True:
            taken = part[:length]
            hasher.update(taken)
            length -= len(taken)
            part = part[len(taken) :]
            if length == 0:
                break
            part = next(left)
        found.append(hasher.intdigest())
    return found


def header_length(columns: int) -> int:
    """Return the length in bytes of the header of a page with `columns` columns."""
    return _START.size + (columns + 1) * _CHECKSUM_BYTES


def _padded(length: int) -> int:
    return -(-length // PAGE_ALIGNMENT) * PAGE_ALIGNMENT


def _uuid_bytes(topic_uuid: str) -> bytes:
    return bytes.fromhex(topic_uuid.replace("-", ""))


def buffers_of(topic_uuid: str, schema: pa.Schema) -> int:
    """Return the number of buffers of a page's rows."""
    return _first_buffers_of(topic_uuid, schema)[-1]


def shape_of_topic(topic_uuid: str, schema: pa.Schema) -> SchemaShape:
    """Return `shape_of(schema)`, cached by topic: it takes 50 µs for 100 columns."""
    remembered = _shapes.get(topic_uuid)
    if remembered is not None and (remembered[0] is schema or remembered[0].equals(schema)):
        return remembered[1]
    counted = shape_of(schema)
    _shapes.put(topic_uuid, (schema, counted))
    return counted


def _first_buffers_of(topic_uuid: str, schema: pa.Schema) -> tuple[int, ...]:
    return shape_of_topic(topic_uuid, schema).first_buffers
