"""The byte range of each column in an encapsulated Arrow IPC RecordBatch message.

pyarrow writes and reads these messages but does not expose the bytes of each column, which a
checksum per column needs. So this module reads a few fields of the flatbuffer metadata:
`Message.header`, `Message.bodyLength`, `RecordBatch.length` and `RecordBatch.buffers`. A message is

    ff ff ff ff │ int32: length of the metadata │ metadata, padded to 8 bytes │ body

with the buffers of the columns in the body in order, a column's own before its children's
(https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format,
https://flatbuffers.dev/internals/). The input is not trusted: for any bytes the result is a layout
inside the message's bounds or `StorageCorrupt`.
"""

import io
import operator
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from wings_core.batches import empty_batch
from wings_core.errors import InvalidSchema, StorageCorrupt

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PREFIX = struct.Struct("<Ii")
_CONTINUATION = 0xFFFFFFFF
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_I64 = struct.Struct("<q")
_BUFFER = struct.Struct("<qq")

_VTABLE_START = 4
"""Bytes of a vtable before the positions of the fields: its length, and its table's."""

# Of Arrow's Message.fbs: version, header_type, header, bodyLength; length, nodes, buffers,
# compression.
_MESSAGE_FIELDS = 4
_RECORD_BATCH_FIELDS = 4
_RECORD_BATCH = 3
"""The member of the union MessageHeader for record batches."""

COMPRESSION = "zstd"
"""Compression of segments: as small as Parquet, and read three times as fast (measured)."""

_STRUCT_BYTES = 16
"""Size of the structs for a node (length, nulls) and a buffer (offset, length)."""

_TABLES_BYTES_MAX = 512
"""Bound of all other metadata, which takes about 150 bytes."""


class MessageLayout(NamedTuple):
    """The layout of a message; positions count from the message's first byte."""

    rows: int
    column_starts: tuple[int, ...]
    """Start of each column, and the message's end: column `i` takes
    `[column_starts[i], column_starts[i + 1])`, padding included. The first is the body's start."""


class SchemaShape(NamedTuple):
    """Numbers of nodes and buffers in messages of a schema: cumulative by column, then total."""

    first_buffers: tuple[int, ...]
    first_nodes: tuple[int, ...]
    """Index of each column's first node; a node has the length and nulls of a column or a child."""

    @property
    def metadata_bytes_max(self) -> int:
        """Upper bound of a message's prefix and metadata in bytes, as pyarrow writes them."""
        structs = self.first_buffers[-1] + self.first_nodes[-1]
        return _PREFIX.size + structs * _STRUCT_BYTES + _TABLES_BYTES_MAX


def first_buffers(schema: pa.Schema) -> tuple[int, ...]:
    """Return the index of each column's first buffer in a message, then the number of buffers.

    Raises:
        InvalidSchema: A column's type cannot be stored; a dictionary, for example, takes more than
            one message.
    """
    indices = [0]
    for data_type in schema.types:
        indices.append(indices[-1] + _buffers_of(data_type))
    return tuple(indices)


def shape_of(schema: pa.Schema) -> SchemaShape:
    """Return the shape that all messages of a schema share.

    Raises:
        InvalidSchema: See `first_buffers`.
    """
    nodes = [0]
    for data_type in schema.types:
        nodes.append(nodes[-1] + _nodes_of(data_type))
    return SchemaShape(first_buffers(schema), tuple(nodes))


def metadata_end(message: memoryview, length_max: int | None = None) -> int:
    """Return the length of a message's prefix and metadata, which is the start of its body.

    Args:
        message: The message, or its first bytes.
        length_max: Length of the whole message, if `message` holds only its first bytes.

    Raises:
        StorageCorrupt: The message does not begin as one, or is shorter than its metadata.
    """
    if len(message) < _PREFIX.size:
        raise StorageCorrupt("the message is cut off")
    continuation, length = _PREFIX.unpack_from(message)
    whole = len(message) if length_max is None else length_max
    if continuation != _CONTINUATION or not 0 < length <= whole - _PREFIX.size:
        raise StorageCorrupt("the message does not begin as an Arrow IPC message")
    return _PREFIX.size + length


def read_metadata(
    metadata: memoryview, body_length: int, first_buffers: tuple[int, ...]
) -> MessageLayout:
    """Read the layout of a message from its prefix and metadata.

    Args:
        metadata: The message up to its body: `metadata_end` bytes.
        body_length: Length of the body in bytes.
        first_buffers: The result of `first_buffers` for the schema.

    Raises:
        StorageCorrupt: The bytes are not of a record batch of this many buffers, or its buffers do
            not follow one another inside the body.
    """
    body = len(metadata)
    try:
        rows, offsets = _parse(metadata[_PREFIX.size :], first_buffers[-1], body_length)
    except (struct.error, IndexError):
        raise StorageCorrupt("the message's metadata points outside itself") from None
    return MessageLayout(rows, tuple([body + offsets[first] for first in first_buffers]))


class MessageWriter:
    """A writer of batches of one schema as messages, without copying buffers; for one thread.

    Args:
        schema: Schema of the batches.
        compressed: Whether to compress the buffers, each by itself.
    """

    def __init__(self, schema: pa.Schema, *, compressed: bool = False) -> None:
        self.schema = schema
        self._written = _Written()
        # Single-threaded: it runs in the background, beside threads that serve readers.
        options = pa.ipc.IpcWriteOptions(
            compression=COMPRESSION if compressed else None, use_threads=not compressed
        )
        self._writer = pa.ipc.new_stream(
            pa.PythonFile(self._written, mode="w"), schema, options=options
        )
        # A stream begins with its schema, which is written with the first batch.
        self._writer.write_batch(empty_batch(schema))

    def message(self, batch: pa.RecordBatch) -> tuple[memoryview, list[memoryview]]:
        """Serialize a batch as `RecordBatch.serialize` does; returns metadata and the body.

        The parts are the batch's own buffers where they can be written unchanged, and padding.
        """
        self._written.parts = []
        self._writer.write_batch(batch)
        parts, self._written.parts = self._written.parts, []
        # The prefix comes as two parts, the metadata as one, and sometimes its padding as another.
        metadata, body = b"".join(parts[:2]), 2
        while len(metadata) < _PREFIX.size + _PREFIX.unpack_from(metadata)[1]:
            metadata += parts[body]
            body += 1
        return memoryview(metadata), parts[body:]


class _Written(io.RawIOBase):
    """A file that collects the written buffers."""

    def __init__(self) -> None:
        self.parts: list[memoryview] = []

    def writable(self) -> bool:
        return True

    def write(self, data: "Buffer") -> int:
        part = memoryview(data)
        self.parts.append(part)
        return part.nbytes


def _parse(metadata: memoryview, buffers: int, body_length: int) -> tuple[int, list[int]]:
    """Return the number of rows, the start of each buffer in the body, and the last one's end.

    `struct` raises on reads past the end of the metadata; positions never become negative.
    """
    (root,) = _U32.unpack_from(metadata)
    _, header_type, header, length = find_fields(metadata, root, _MESSAGE_FIELDS)
    if not header or header_type == 0 or metadata[header_type] != _RECORD_BATCH:
        raise StorageCorrupt("the message is not a record batch")
    if (_I64.unpack_from(metadata, length)[0] if length else 0) != body_length:
        raise StorageCorrupt(f"the message does not say that its body has {body_length} bytes")
    batch = header + _U32.unpack_from(metadata, header)[0]
    length, _, vector, _ = find_fields(metadata, batch, _RECORD_BATCH_FIELDS)
    rows: int = _I64.unpack_from(metadata, length)[0] if length else 0
    if rows < 0 or not vector:
        raise StorageCorrupt("the message lacks its rows or its buffers")
    vector += _U32.unpack_from(metadata, vector)[0]
    if _U32.unpack_from(metadata, vector)[0] != buffers:
        raise StorageCorrupt(f"the message does not have the {buffers} buffers of its schema")
    numbers = struct.unpack_from(f"<{2 * buffers}q", metadata, vector + _U32.size)
    # One entry past the last buffer, for final columns without buffers, which take no bytes.
    offsets, lengths = [*numbers[::2], body_length], numbers[1::2]
    in_order = all(map(operator.le, map(operator.add, offsets, lengths), offsets[1:]))
    if not in_order or min(lengths, default=0) < 0:
        raise StorageCorrupt("the message's buffers do not follow one another in its body")
    if offsets[0] != 0:
        raise StorageCorrupt("the body does not begin with the first column")
    return rows, offsets


def find_fields(metadata: memoryview, table: int, count: int) -> list[int]:
    """Return the positions of a flatbuffer table's first fields, 0 for absent ones."""
    vtable = table - _I32.unpack_from(metadata, table)[0]
    if vtable < 0:
        raise StorageCorrupt("the message's metadata points outside itself")
    there = min(count, (_U16.unpack_from(metadata, vtable)[0] - _VTABLE_START) // _U16.size)
    entries = struct.unpack_from(f"<{max(0, there)}H", metadata, vtable + _VTABLE_START)
    found = [table + entry if entry else 0 for entry in entries]
    return found + [0] * (count - len(found))


def is_compressed(metadata: memoryview) -> bool:
    """Return whether the buffers of a message are compressed.

    Args:
        metadata: Prefix and metadata of a message that `read_metadata` has accepted.
    """
    metadata = metadata[_PREFIX.size :]
    (root,) = _U32.unpack_from(metadata)
    header = find_fields(metadata, root, _MESSAGE_FIELDS)[2]
    batch = header + _U32.unpack_from(metadata, header)[0]
    return find_fields(metadata, batch, _RECORD_BATCH_FIELDS)[3] != 0


def prune_metadata(
    metadata: memoryview, shape: SchemaShape, layout: MessageLayout, columns: Sequence[int]
) -> bytearray:
    """Return prefix and metadata of a message reduced to some of its columns.

    The matching body is the concatenation of those columns' bytes. The nodes and buffers of the
    other columns are removed from the metadata's vectors in place.

    Args:
        metadata: Prefix and metadata of a message that `read_metadata` has accepted.
        shape: Shape of the message's schema.
        layout: The result of `read_metadata`.
        columns: Indices of the columns to keep, ascending.
    """
    pruned = bytearray(metadata)
    view = memoryview(pruned)[_PREFIX.size :]
    (root,) = _U32.unpack_from(view)
    _, _, header, body_length = find_fields(view, root, _MESSAGE_FIELDS)
    batch = header + _U32.unpack_from(view, header)[0]
    _, nodes, buffers, _ = find_fields(view, batch, _RECORD_BATCH_FIELDS)
    starts = layout.column_starts
    body = starts[0]
    kept_nodes, kept_buffers = bytearray(), bytearray()
    end = 0
    nodes_at = nodes + _U32.unpack_from(view, nodes)[0] + _U32.size
    buffers_at = buffers + _U32.unpack_from(view, buffers)[0] + _U32.size
    for column in columns:
        first, last = shape.first_nodes[column], shape.first_nodes[column + 1]
        kept_nodes += view[nodes_at + first * _STRUCT_BYTES : nodes_at + last * _STRUCT_BYTES]
        moved = end - (starts[column] - body)
        for index in range(shape.first_buffers[column], shape.first_buffers[column + 1]):
            offset, length = _BUFFER.unpack_from(view, buffers_at + index * _STRUCT_BYTES)
            kept_buffers += _BUFFER.pack(offset + moved, length)
        end += starts[column + 1] - starts[column]
    for at, kept in ((nodes_at, kept_nodes), (buffers_at, kept_buffers)):
        _U32.pack_into(view, at - _U32.size, len(kept) // _STRUCT_BYTES)
        view[at : at + len(kept)] = kept
    if body_length:
        _I64.pack_into(view, body_length, end)
    return pruned


def _nodes_of(data_type: pa.DataType) -> int:
    """Return the number of nodes of a type, its children's included."""
    fields = range(data_type.num_fields)
    return 1 + sum(_nodes_of(data_type.field(index).type) for index in fields)


def _buffers_of(data_type: pa.DataType) -> int:
    """Return the number of buffers of a type, its children's included."""
    buffers = _OWN_BUFFERS.get(data_type.id)
    if buffers is None:
        raise InvalidSchema(f"a column of type {data_type} cannot be stored")
    for index in range(data_type.num_fields):
        buffers += _buffers_of(data_type.field(index).type)
    return buffers


_FIXED_WIDTH = (
    pa.bool_(),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64()),
    *(pa.decimal32(9), pa.decimal64(18), pa.decimal128(38), pa.decimal256(76)),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us"), pa.timestamp("us")),
    *(pa.duration("us"), pa.month_day_nano_interval(), pa.binary(1)),
)
_LISTS = (pa.list_(pa.null()), pa.large_list(pa.null()), pa.map_(pa.int8(), pa.null()))

# Validity counts as a buffer; a column of type null has none.
_OWN_BUFFERS: dict[int, int] = {
    pa.null().id: 0,
    **{data_type.id: 2 for data_type in _FIXED_WIDTH},
    **{data_type.id: 3 for data_type in (pa.string(), pa.large_string())},
    **{data_type.id: 3 for data_type in (pa.binary(), pa.large_binary())},
    **{data_type.id: 2 for data_type in _LISTS},
    pa.list_(pa.null(), 1).id: 1,
    pa.struct([]).id: 1,
}
