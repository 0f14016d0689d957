"""Where each column lies in an encapsulated Arrow IPC RecordBatch message.

pyarrow writes and reads these messages but does not say which bytes belong to which column, which
a checksum per column needs. So this reads the few fields of the flatbuffer metadata that tell:
`Message.header`, `Message.bodyLength`, `RecordBatch.length` and `RecordBatch.buffers`. A message is

    ff ff ff ff │ int32: length of the metadata │ metadata, padded to 8 bytes │ body

and the buffers of the columns lie in the body one after the other, a column's own before its
children's (https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format,
https://flatbuffers.dev/internals/). Nothing here trusts its input: whatever the bytes are, the
result is a layout inside the message's bounds or `StorageCorrupt`.
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
"""A vtable begins with its length and its table's; then each field's place in the table."""

# Of Arrow's Message.fbs: version, header_type, header, bodyLength; length, nodes, buffers,
# compression.
_MESSAGE_FIELDS = 4
_RECORD_BATCH_FIELDS = 4
_RECORD_BATCH = 3
"""The member of the union MessageHeader for record batches."""

COMPRESSION = "zstd"
"""As small as Parquet, and read three times as fast (measured)."""

_STRUCT_BYTES = 16
"""Of a node (length, nulls), and of a buffer (offset, length)."""

_TABLES_BYTES_MAX = 512
"""Of everything else in the metadata (it is about 150)."""


class MessageLayout(NamedTuple):
    """The parts of a message; positions count from the message's first byte."""

    rows: int
    column_starts: tuple[int, ...]
    """Where each column's bytes begin, and last the message's end: column `i` takes
    `[column_starts[i], column_starts[i + 1])`, padding included. The first is the body's start."""


class SchemaShape(NamedTuple):
    """What a schema says of each message of its rows: an index by column, and last the sum."""

    first_buffers: tuple[int, ...]
    first_nodes: tuple[int, ...]
    """A node tells the length and the nulls of a column, or of one inside it."""

    @property
    def metadata_bytes_max(self) -> int:
        """No message's prefix and metadata are longer, as pyarrow writes them today."""
        structs = self.first_buffers[-1] + self.first_nodes[-1]
        return _PREFIX.size + structs * _STRUCT_BYTES + _TABLES_BYTES_MAX


def first_buffers(schema: pa.Schema) -> tuple[int, ...]:
    """Return the index of each column's first buffer in a message, and last the buffers' number.

    Raises:
        InvalidSchema: A column's type cannot be stored (a dictionary, for one, takes more
            messages than one).
    """
    indices = [0]
    for data_type in schema.types:
        indices.append(indices[-1] + _buffers_of(data_type))
    return tuple(indices)


def shape_of(schema: pa.Schema) -> SchemaShape:
    """Return what is known of every message of a schema.

    Raises:
        InvalidSchema: as `first_buffers`.
    """
    nodes = [0]
    for data_type in schema.types:
        nodes.append(nodes[-1] + _nodes_of(data_type))
    return SchemaShape(first_buffers(schema), tuple(nodes))


def metadata_end(message: memoryview, length_max: int | None = None) -> int:
    """Return the length of a message's prefix and metadata: where its body begins.

    Args:
        message: The message, or its first bytes.
        length_max: The whole message's length, where only its first bytes are given.

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
    """Read where the columns of a message lie, from its prefix and metadata.

    Args:
        metadata: All of the message before its body, of `metadata_end` bytes.
        body_length: In bytes.
        first_buffers: What `first_buffers` says of the schema.

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
    """Writes batches of one schema as messages, without a copy of their buffers; for one thread.

    Args:
        schema: Of the batches.
        compressed: Whether their buffers are compressed, each by itself.
    """

    def __init__(self, schema: pa.Schema, *, compressed: bool = False) -> None:
        self.schema = schema
        self._written = _Written()
        # On one thread: it works in the background, where others answer readers.
        options = pa.ipc.IpcWriteOptions(
            compression=COMPRESSION if compressed else None, use_threads=not compressed
        )
        self._writer = pa.ipc.new_stream(
            pa.PythonFile(self._written, mode="w"), schema, options=options
        )
        # The stream begins with its schema, which is written with its first batch.
        self._writer.write_batch(empty_batch(schema))

    def message(self, batch: pa.RecordBatch) -> tuple[memoryview, list[memoryview]]:
        """Return what `RecordBatch.serialize` does: prefix and metadata, and the body's parts.

        The parts are the batch's own buffers where those can be written as they are, and the
        padding between them.
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
    """A file that keeps what is written to it as it comes."""

    def __init__(self) -> None:
        self.parts: list[memoryview] = []

    def writable(self) -> bool:
        return True

    def write(self, data: "Buffer") -> int:
        part = memoryview(data)
        self.parts.append(part)
        return part.nbytes


def _parse(metadata: memoryview, buffers: int, body_length: int) -> tuple[int, list[int]]:
    """Return the number of rows, and where each buffer begins in the body and the last ends.

    struct refuses to read past the end of the metadata; positions never become negative.
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
    # One past the last buffer, for the columns that have none there: they take no bytes.
    offsets, lengths = [*numbers[::2], body_length], numbers[1::2]
    in_order = all(map(operator.le, map(operator.add, offsets, lengths), offsets[1:]))
    if not in_order or min(lengths, default=0) < 0:
        raise StorageCorrupt("the message's buffers do not follow one another in its body")
    if offsets[0] != 0:
        raise StorageCorrupt("the body does not begin with the first column")
    return rows, offsets


def find_fields(metadata: memoryview, table: int, count: int) -> list[int]:
    """Return where the first fields of a flatbuffer table lie, 0 for one that is not there."""
    vtable = table - _I32.unpack_from(metadata, table)[0]
    if vtable < 0:
        raise StorageCorrupt("the message's metadata points outside itself")
    there = min(count, (_U16.unpack_from(metadata, vtable)[0] - _VTABLE_START) // _U16.size)
    entries = struct.unpack_from(f"<{max(0, there)}H", metadata, vtable + _VTABLE_START)
    found = [table + entry if entry else 0 for entry in entries]
    return found + [0] * (count - len(found))


def is_compressed(metadata: memoryview) -> bool:
    """Tell whether the buffers of a message are compressed.

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
    """Return the prefix and metadata of a message that has only some of the columns.

    The body that belongs to it is those columns' bytes, one column after the other. Nodes and
    buffers of the others are taken out of the vectors, whose structs lie in the metadata as they
    are, so nothing needs to be written anew.

    Args:
        metadata: Prefix and metadata of a message that `read_metadata` has accepted.
        shape: Of the message's schema.
        layout: What `read_metadata` said.
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

# Validity counts as a buffer; a column of nulls has none.
_OWN_BUFFERS: dict[int, int] = {
    pa.null().id: 0,
    **{data_type.id: 2 for data_type in _FIXED_WIDTH},
    **{data_type.id: 3 for data_type in (pa.string(), pa.large_string())},
    **{data_type.id: 3 for data_type in (pa.binary(), pa.large_binary())},
    **{data_type.id: 2 for data_type in _LISTS},
    pa.list_(pa.null(), 1).id: 1,
    pa.struct([]).id: 1,
}
