"""The head of a record batch, and its records as columns."""

import struct
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

HEAD = struct.Struct(">qiibIhiqqqhii")
HEAD_BYTES = HEAD.size
LENGTH_FROM = 12
"""Position after the length of a batch, which counts the bytes from there on."""

UNCHECKED_HEAD = struct.Struct(">qiibI")
"""The part of the head before what its checksum covers, which a server may change."""

CHECKED_HEAD = struct.Struct(">hiqqqhii")
"""The part of the head that its checksum covers."""

HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS = pa.list_(HEADER)

_PLACE = struct.Struct(">qii")
"""The fields of the head that a server sets, offset and leader epoch, and the length in between."""

COMPRESSION, ZSTD = 0x07, 4
"""The bits of the attributes that tell how records are compressed, and one of their values."""

Column = Any
"""A binary array of Arrow, or one of lists, of which its stubs know too little."""

Ints = np.ndarray[Any, np.dtype[np.int64]]


class Head(NamedTuple):
    """Fields of a batch's head, in the order of its bytes."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    first_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int


class Records(NamedTuple):
    """Records as columns, of the same length.

    A record without headers has an empty list. Missing keys and values are null.
    """

    key: Column
    """Binary."""
    value: Column
    """Binary."""
    headers: Column
    """Lists of type `HEADERS`."""
    timestamps: Ints
    """Milliseconds since the epoch; -1 for none."""


def compression_of(data: bytes) -> int:
    """Return how the records of a batch are compressed; 0: not at all."""
    return HEAD.unpack_from(data)[5] & COMPRESSION


def placed_at(offset: int, data: bytes | bytearray) -> bytes:
    """Return a batch at an offset; its checksum does not cover what changes."""
    length = HEAD.unpack_from(data)[1]
    return b"".join((_PLACE.pack(offset, length, -1), memoryview(data)[_PLACE.size :]))


def offsets_of(column: Column) -> Any:
    """Return where the values of a binary column begin in its data, and where the last one ends."""
    offsets: Any = np.frombuffer(column.buffers()[1], np.int32)
    return offsets[column.offset : column.offset + len(column) + 1]
