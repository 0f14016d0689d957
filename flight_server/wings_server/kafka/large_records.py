"""Records of large batches, column by column: numpy finds the fields, Arrow copies the bytes.

The chain of record lengths is the only loop over records. All else runs over arrays of positions.
"""

from typing import Any, NamedTuple, Self

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute

from wings_server.kafka import small_records
from wings_server.kafka.record_types import (
    CHECKED_HEAD,
    HEADERS,
    LENGTH_FROM,
    UNCHECKED_HEAD,
    Column,
    Head,
    Ints,
    Records,
    offsets_of,
)

pc: Any = pyarrow.compute  # Its stubs know no binary arrays in general.

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]

PADDING = bytes(64)
"""Bytes after the records, so that the five varints of a record cut short are read in bounds."""

VARINT_BYTES_MAX = 10

HEADERS_MAX = 64
"""Most headers of a record that are read column by column: each costs a turn over all records."""

_POSITIVE = (1 << 63) - 1
_SIGNED = np.array([byte >> 1 ^ -(byte & 1) for byte in range(128)], np.int64)
"""The signed numbers of varints of one byte."""

_NO_HEADERS: Column = pa.array([b"\0"], pa.binary())


def decode(head: Head, body: memoryview) -> Records:
    """Decode uncompressed records; as `small_records.decode`.

    Raises:
        ValueError: They are not as many records as the head states, numbered from 0.
    """
    padded = b"".join((body, PADDING))
    data = np.frombuffer(padded, np.uint8)
    starts = _starts(padded, head.record_count, len(body))
    lengths, at = _varints(data, starts)
    ends = at + lengths
    deltas, at = _varints(data, at + 1)  # After the record's attributes, which are unused.
    numbers, at = _varints(data, at)
    if not np.array_equal(numbers, np.arange(head.record_count)):
        raise ValueError("records are not numbered one after another")
    key_lengths, keys = _varints(data, at)
    value_lengths, values = _varints(data, _after(keys, key_lengths, ends))
    counts, at = _varints(data, _after(values, value_lengths, ends))
    if counts.min() < 0 or (2 * counts > ends - at).any():
        raise ValueError("a record states more headers than it can hold")
    if counts.max() > HEADERS_MAX:
        return small_records.decode(head, body)
    buffer = pa.py_buffer(padded)
    headers = small_records.no_headers(head.record_count)
    if counts.any():
        headers, at = _headers(data, buffer, counts, at, ends)
    if not np.array_equal(at, ends):
        raise ValueError("a record's length is not that of its fields")
    return Records(
        _slices(buffer, keys, key_lengths),
        _slices(buffer, values, value_lengths),
        headers,
        deltas + head.first_timestamp,
    )


def _starts(data: bytes, count: int, end: int) -> Ints:
    """Return where each record begins; they fill the bytes up to `end`.

    A length is taken as positive here: one that is not contradicts the record's fields later.
    """
    starts: list[int] = []
    add = starts.append
    position = 0
    try:
        for _ in range(count):
            add(position)
            first = data[position]
            if first < 0x80:
                position += 1 + (first >> 1)
                continue
            second = data[position + 1]
            if second < 0x80:
                position += 2 + ((second << 7 | first & 0x7F) >> 1)
                continue
            length, size = second << 7 & 0x3FFF | first & 0x7F, 2
            while (byte := data[position + size]) >= 0x80 and size < VARINT_BYTES_MAX:
                length |= (byte & 0x7F) << 7 * size
                size += 1
            position += size + 1 + ((length | byte << 7 * size) >> 1)
    except IndexError:
        raise ValueError("a record ends outside its batch") from None
    if position != end:
        raise ValueError("records do not fill their batch")
    return np.array(starts, np.int64)


def _varints(data: _Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Return the signed varints at positions, and the positions after them."""
    first = data[at]
    is_long = first > 0x7F
    if not is_long.any():
        return _SIGNED[first], at + 1
    found = (first & 0x7F).astype(np.int64)
    second = data[at + 1]
    found += (second & 0x7F).astype(np.int64) * is_long << 7
    after = at + 1 + is_long
    more = np.flatnonzero(is_long & (second > 0x7F))
    shift = 14
    while more.size:
        if shift >= 7 * VARINT_BYTES_MAX:
            raise ValueError("a varint is too long")
        byte = data[after[more]]
        found[more] |= (byte & 0x7F).astype(np.int64) << shift
        after[more] += 1
        more = more[byte > 0x7F]
        shift += 7
    return found >> 1 & _POSITIVE ^ -(found & 1), after


def _after(at: Ints, lengths: Ints, ends: Ints) -> Ints:
    """Return the positions after byte strings, checked to end within their records."""
    if (lengths > ends - at).any():
        raise ValueError("a field ends outside its record")
    return at + np.maximum(lengths, 0)


def _slices(buffer: pa.Buffer, starts: Ints, lengths: Ints) -> Column:
    """Return byte strings of a buffer, in ascending order, as a column; null for lengths below 0.

    All bytes of the buffer are one binary array, in which every second slot is wanted.
    """
    count = len(starts)
    if not count or lengths.max() < 0:
        return pa.nulls(count, pa.binary())
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = starts
    offsets[1::2] = starts + np.maximum(lengths, 0)
    slots: Column = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, _buffer(offsets), buffer]
    )
    missing = lengths < 0
    mask = missing if missing.any() else None
    return slots.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32), mask=mask))


def _headers(
    data: _Bytes, buffer: pa.Buffer, counts: Ints, at: Ints, ends: Ints
) -> tuple[Column, Ints]:
    """Return the headers of records, and the positions after them."""
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    keys, key_lengths, values, value_lengths = np.empty((4, int(offsets[-1])), np.int64)
    at = at.copy()
    for number in range(int(counts.max())):
        rows = np.flatnonzero(counts > number)
        slots = offsets[rows] + number
        key_lengths[slots], keys[slots] = _varints(data, at[rows])
        if key_lengths[slots].min() < 0:
            raise ValueError("a header has no key")
        after = _after(keys[slots], key_lengths[slots], ends[rows])
        value_lengths[slots], values[slots] = _varints(data, after)
        at[rows] = _after(values[slots], value_lengths[slots], ends[rows])
    found = pa.StructArray.from_arrays(
        [
            _slices(buffer, keys, key_lengths).cast(pa.string()),
            _slices(buffer, values, value_lengths),
        ],
        fields=list(HEADERS.value_type),
    )
    lists: Any = pa.ListArray
    return lists.from_arrays(pa.array(offsets), found, type=HEADERS), at


class _Varints(NamedTuple):
    """A signed varint for each record, or one that all have."""

    bits: Any
    """The numbers in zigzag form, unsigned."""
    sizes: _Bytes
    """Bytes of each."""
    width: int
    """Most bytes of one."""

    @classmethod
    def of(cls, numbers: Ints) -> Self:
        if (numbers == numbers[0]).all():
            numbers = numbers[:1]
        bits = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
        sizes, bound, most = np.ones(len(bits), np.uint8), 1 << 7, int(bits.max())
        while most >= bound:
            sizes += (bits >= bound).view(np.uint8)
            bound <<= 7
        return cls(bits, sizes, bound.bit_length() // 7)


_ZERO = _Varints.of(np.zeros(1, np.int64))


def encode(base_offset: int, records: Records) -> bytes:
    """Return records as a batch, with its head; see `records.encode`."""
    times = records.timestamps
    count, first, last = len(times), int(times[0]), int(times.max())
    key_lengths, value_lengths = _lengths(records.key), _lengths(records.value)
    numbers = (times - first, np.arange(count), key_lengths)
    before_key = [_ZERO, *map(_Varints.of, numbers)]
    before_value = _Varints.of(value_lengths)
    tail, tail_sizes = _encoded_headers(records.headers)
    sizes: Any = sum([each.sizes for each in before_key], before_value.sizes + tail_sizes)
    sizes = sizes + np.maximum(key_lengths, 0) + np.maximum(value_lengths, 0)
    heads = [_Varints.of(sizes), *before_key]
    if key_lengths.max() <= 0:
        pieces = [_joined(count, *heads, before_value), records.value, tail]
    else:
        before = _joined(count, *heads), records.key, _joined(count, before_value)
        pieces = [*before, records.value, tail]
    joined = _interleaved(count, *pieces)
    body = _bytes_of(joined)
    checked = CHECKED_HEAD.pack(0, count - 1, first, last, -1, -1, -1, count)
    checksum = google_crc32c.extend(google_crc32c.value(checked), np.frombuffer(body, np.uint8))
    length = UNCHECKED_HEAD.size + len(checked) + len(body) - LENGTH_FROM
    return b"".join((UNCHECKED_HEAD.pack(base_offset, length, -1, 2, checksum), checked, body))


def _encoded_headers(headers: Column) -> tuple[Column, Ints | int]:
    """Return the count and the headers of each record as bytes, and their sizes."""
    found = headers.flatten()
    if not len(found):
        return _NO_HEADERS, 1
    counts = pc.list_value_length(headers).fill_null(0).to_numpy(zero_copy_only=False)
    keys, values = (found.field(0).cast(pa.binary()), found.field(1))
    key_lengths, value_lengths = (
        _joined(len(found), _Varints.of(_lengths(each))) for each in (keys, values)
    )
    texts = _interleaved(len(found), key_lengths, keys, value_lengths, values)
    slots = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(4 * counts, out=slots[1:])
    of_record = _cut(texts, slots)
    before = _joined(len(counts), _Varints.of(counts.astype(np.int64)))
    pairs = _interleaved(len(counts), before, of_record)
    encoded = _cut(pairs, np.arange(0, len(pairs) + 1, 2))
    return encoded, pc.binary_length(encoded).to_numpy().astype(np.int64)


def _cut(texts: Column, slots: Ints) -> Column:
    """Return runs of byte strings, each from one slot to the next, as one string each."""
    offsets = _buffer(np.ascontiguousarray(offsets_of(texts)[slots]))
    return pa.Array.from_buffers(pa.binary(), len(slots) - 1, [None, offsets, texts.buffers()[2]])


def _lengths(column: Column) -> Ints:
    """Return the byte lengths of a binary column, -1 for nulls; one for all if all are null."""
    if column.null_count == len(column):
        return np.full(1, -1)
    lengths = pc.binary_length(column)
    if column.null_count:
        lengths = lengths.fill_null(-1)
    return lengths.to_numpy().astype(np.int64)


def _joined(count: int, *fields: _Varints) -> Column:
    """Return, for each record, its varints one after another."""
    offsets = np.zeros(count + 1, np.int32)
    offsets[1:] = sum([each.sizes for each in fields])
    np.cumsum(offsets, out=offsets)
    data = np.empty((count, sum([each.width for each in fields])), np.uint8)
    used = np.ones(data.shape, np.bool_)
    column = 0
    for bits, sizes, width in fields:
        data[:, column] = bits
        for number in range(1, width):
            more = sizes > number
            data[:, column] |= more.view(np.uint8) << 7
            column += 1
            data[:, column] = bits >> 7 * number
            used[:, column] = more
        column += 1
    buffers = [None, _buffer(offsets), _buffer(data[used])]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _interleaved(count: int, *columns: Column) -> Column:
    """Return the first value of each column, then the second, and so on; of a single one that."""
    places = np.empty((count, len(columns)), np.int32)
    before = 0
    for number, column in enumerate(columns):
        places[:, number] = before
        if len(column) > 1:
            places[:, number] += np.arange(count, dtype=np.int32)
        before += len(column)
    joined: Any = pa.concat_arrays([*columns])
    return joined.take(pa.array(places.ravel()))


def _bytes_of(column: Column) -> memoryview:
    """Return the bytes of a binary column, one value after another."""
    offsets, data = offsets_of(column), column.buffers()[2]
    return memoryview(b"" if data is None else data)[int(offsets[0]) : int(offsets[-1])]


def _buffer(values: Any) -> pa.Buffer:
    return pa.py_buffer(values)
