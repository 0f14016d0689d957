"""Record batches of format 2, the only one that is accepted, to and from Arrow.

    head ─▶ sizes, checksum, count ─▶ unfold within a bound ─▶ small_records │ large_records

What a batch states about itself is checked before memory is taken for it. Two codecs read and write
the records, with the same results: `small_records` goes record by record in compiled code,
`large_records` column by column.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import cramjam
import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute
from kio.schema.errors import ErrorCode

from wings_server.kafka import large_records, small_records
from wings_server.kafka.errors import KafkaError
from wings_server.kafka.record_types import (
    COMPRESSION,
    HEAD,
    HEAD_BYTES,
    HEADERS,
    LENGTH_FROM,
    UNCHECKED_HEAD,
    ZSTD,
    Column,
    Head,
    Ints,
    Records,
    offsets_of,
)

pc: Any = pyarrow.compute  # Its stubs know no binary arrays in general.

LARGE_RECORDS_MIN = 1_000
"""Records from which going by columns is cheaper than going by records: of 100 bytes each, 10,000
are decoded in 6.4 ms against 10.4 and encoded in 3.4 against 12.7, and 1 in 510 µs against 84."""

UNFOLDED_BYTES_MIN, UNFOLDED_TIMES = 64 * 1024, 16
"""Room for unfolded records that is tried first, the latter for each compressed byte."""

RECORD_BYTES_MIN = 7
"""Bytes of an empty record: one for each of its length, attributes, timestamp, offset, and the
lengths of key, value and headers."""

RECORD_BYTES_MORE = 14
"""About the most bytes of a record beside its key, value and headers."""

HEADER_BYTES_MORE = 4
"""About the most bytes of a header beside its key and value."""

TIMESTAMP_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999, which all readers of a topic can print."""

_LOG_APPEND_TIME, _CONTROL = 0x08, 0x20
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEAD_BYTES = 16
_CHUNK_BYTES = struct.Struct(">i")


def _take_nothing(size: int) -> None:
    del size


class Decoded(NamedTuple):
    """A batch of a producer."""

    head: Head
    records: Records


def decode(
    data: bytes, unfolded_bytes_max: int, take: Callable[[int], None] = _take_nothing
) -> Decoded:
    """Decode the record batch of one partition of a Produce request.

    Args:
        data: Exactly one batch.
        unfolded_bytes_max: Most bytes of its records after decompression.
        take: Takes bytes of memory before they are unfolded into.

    Raises:
        KafkaError: The batch is damaged, of another format, or exceeds a bound.
        ResourceExhausted: There is no room; raised by `take`.
    """
    head = _head(data)
    body = memoryview(data)[HEAD_BYTES:]
    if head.attributes & COMPRESSION:
        body = _unfold(head.attributes & COMPRESSION, body, unfolded_bytes_max, take)
    if head.record_count * RECORD_BYTES_MIN > len(body):
        raise KafkaError(ErrorCode.invalid_record, "a batch states more records than it can hold")
    codec = large_records if head.record_count >= LARGE_RECORDS_MIN else small_records
    try:
        records = codec.decode(head, body)
    except (ValueError, pa.ArrowException) as error:
        raise KafkaError(ErrorCode.invalid_record, f"a damaged batch: {error!s:.200}") from None
    _check_timestamps(records.timestamps)
    return Decoded(head, records)


def encode(base_offset: int, records: Records) -> bytes | bytearray:
    """Return records as one uncompressed batch of no producer.

    Args:
        base_offset: Offset of the first.
        records: At least one.
    """
    codec = large_records if len(records.value) >= LARGE_RECORDS_MIN else small_records
    return codec.encode(base_offset, records)


def rows_of(records: Records, partition: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return records as rows of a topic whose values are bytes; those without a time have null."""
    times = pa.array(records.timestamps, mask=records.timestamps < 0)
    columns: list[Column] = [
        pa.repeat(pa.scalar(partition, pa.int32()), len(times)),
        records.key,
        records.value,
        records.headers,
        times.view(pa.timestamp("ms", "UTC")),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def records_of(rows: pa.RecordBatch) -> Records:
    """Return the rows of a topic whose values are bytes as records; the inverse of `rows_of`."""
    _, key, value, _, times = rows.columns
    headers: Column = rows.column(3)
    entries = headers.flatten()
    if entries.null_count or entries.field(0).null_count:
        headers = _whole_headers(headers)
    times = times.view(pa.int64())
    if times.null_count:
        times = times.fill_null(-1)
    return Records(key, value, headers, times.to_numpy())


def _whole_headers(headers: Column) -> Column:
    """Return headers as Kafka can have them: null entries are left out, null keys are empty."""
    return pa.array(
        [
            [{**each, "key": each["key"] or ""} for each in entries or () if each is not None]
            for entries in headers.to_pylist()
        ],
        HEADERS,
    )


def ends_of(records: Records) -> Ints:
    """Return about where each record ends in a batch, in bytes from the first one's beginning."""
    numbers = np.arange(1, len(records.value) + 1)
    ends = RECORD_BYTES_MORE * numbers + _ends(records.key, numbers)
    ends += _ends(records.value, numbers)
    headers = records.headers.flatten()
    if len(headers):
        numbers = np.cumsum(pc.list_value_length(records.headers).fill_null(0).to_numpy())
        ends += HEADER_BYTES_MORE * numbers + _ends(headers.field(1), numbers)
        ends += _ends(headers.field(0), numbers)
    return ends


def _ends(column: Column, numbers: Ints) -> Ints:
    """Return the bytes of so many values of a binary column."""
    offsets = offsets_of(column)
    return offsets[numbers] - offsets[0]


def _head(data: bytes) -> Head:
    if len(data) < HEAD_BYTES:
        raise KafkaError(ErrorCode.corrupt_message, "a batch is shorter than its head")
    head = Head(*HEAD.unpack_from(data))
    if head.magic != 2:
        raise KafkaError(
            ErrorCode.unsupported_for_message_format, f"format {head.magic} of records"
        )
    if head.length + LENGTH_FROM != len(data):
        raise KafkaError(ErrorCode.invalid_record, "a partition's records are not one batch")
    if google_crc32c.value(data[UNCHECKED_HEAD.size :]) != head.crc:
        raise KafkaError(ErrorCode.corrupt_message, "the checksum of a batch does not match")
    if head.record_count < 1 or head.last_offset_delta != head.record_count - 1:
        raise KafkaError(ErrorCode.invalid_record, f"a batch of {head.record_count} records")
    if head.attributes & _CONTROL:
        raise KafkaError(ErrorCode.invalid_record, "a producer cannot write control records")
    if head.attributes & _LOG_APPEND_TIME:
        raise KafkaError(ErrorCode.invalid_timestamp, "a producer cannot set the time of append")
    return head


def _unfold(
    compression: int, body: memoryview, bytes_max: int, take: Callable[[int], None]
) -> memoryview:
    """Decompress records into at most `bytes_max` bytes, at first into far fewer.

    The memory is only reserved, and used as far as it is written.
    """
    into = _UNFOLD.get(compression)
    if into is None:
        raise KafkaError(ErrorCode.unsupported_compression_type, f"compression {compression}")
    room = min(bytes_max, max(UNFOLDED_BYTES_MIN, UNFOLDED_TIMES * len(body)))
    taken = 0
    for size in dict.fromkeys((room, bytes_max)):
        take(size - taken)
        taken = size
        unfolded = np.empty(size, np.uint8)
        try:
            count = into(body, unfolded)
        except (cramjam.DecompressionError, struct.error) as error:
            if "write whole buffer" in str(error) or isinstance(error, struct.error):
                continue
            message = f"bad compression: {error!s:.200}"
            raise KafkaError(ErrorCode.corrupt_message, message) from None
        return memoryview(cast("Any", unfolded[:count])).toreadonly()
    raise KafkaError(ErrorCode.message_too_large, f"records unfold to more than {bytes_max} bytes")


def _snappy(body: memoryview, into: Any) -> int:
    """Decompress a raw block, or the framed ones that Java's clients write."""
    if bytes(body[: len(_XERIAL)]) != _XERIAL:
        return _snappy_block(body, into)
    position, size = _XERIAL_HEAD_BYTES, 0
    while position < len(body):
        (length,) = _CHUNK_BYTES.unpack_from(body, position)
        position += _CHUNK_BYTES.size
        if not 0 < length <= len(body) - position:
            raise cramjam.DecompressionError("a cut block")
        size += _snappy_block(body[position : position + length], into[size:])
        position += length
    return size


def _snappy_block(body: memoryview, into: Any) -> int:
    # Checked beforehand, as the decompressor asks for exactly the size that a block states.
    if cramjam.snappy.decompress_raw_len(body) > len(into):
        raise cramjam.DecompressionError("failed to write whole buffer")
    return cramjam.snappy.decompress_raw_into(body, into)


_UNFOLD: Mapping[int, Callable[[Any, Any], int]] = {
    1: cramjam.gzip.decompress_into,
    2: _snappy,
    3: cramjam.lz4.decompress_into,
    ZSTD: cramjam.zstd.decompress_into,
}


def _check_timestamps(timestamps: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    if timestamps.min() < -1 or timestamps.max() > TIMESTAMP_MAX:
        raise KafkaError(ErrorCode.invalid_timestamp, "a timestamp is negative or after year 9999")
