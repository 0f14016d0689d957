"""Records of small batches, one by one, in the compiled code of aiokafka."""

from itertools import pairwise

import google_crc32c
import numpy as np
import pyarrow as pa
from aiokafka.errors import (  # pyright: ignore[reportMissingTypeStubs]
    CorruptRecordException,
)
from aiokafka.record._crecords import (  # pyright: ignore[reportMissingTypeStubs]
    DefaultRecordBatch,
    DefaultRecordBatchBuilder,
)

from wings_server.kafka.record_types import (
    HEAD,
    HEADERS,
    UNCHECKED_HEAD,
    Column,
    Head,
    Records,
    offsets_of,
)

_NO_HEADERS: list[tuple[str, bytes | None]] = []
_NO_PRODUCER = (-1, -1, -1)
_UNBOUNDED = 1 << 31


def decode(head: Head, body: memoryview) -> Records:
    """Decode uncompressed records.

    Args:
        head: Head of their batch.
        body: The records.

    Raises:
        ValueError: They are not as many records as the head states, numbered from 0.
    """
    plain = HEAD.pack(*head._replace(base_offset=0, attributes=0))
    batch = DefaultRecordBatch(plain + body)
    try:
        found = list(batch)
    except CorruptRecordException as error:
        raise ValueError(str(error)) from None
    if [record.offset for record in found] != list(range(head.record_count)):
        raise ValueError("records are not numbered one after another")
    if found[-1].headers or any(record.headers for record in found):
        headers = pa.array(
            [[{"key": key, "value": value} for key, value in record.headers] for record in found],
            HEADERS,
        )
    else:
        headers = no_headers(head.record_count)
    return Records(
        pa.array([record.key for record in found], pa.binary()),
        pa.array([record.value for record in found], pa.binary()),
        headers,
        np.array([record.timestamp for record in found], np.int64),
    )


def encode(base_offset: int, records: Records) -> bytearray:
    """Return records as a batch, with its head; see `records.encode`."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, *_NO_PRODUCER, _UNBOUNDED)
    keys, values = values_of(records.key), values_of(records.value)
    headers = _headers_of(records.headers)
    # The builder takes a first time of -1 for none yet, so it is given times a millisecond later.
    later = int(records.timestamps[0] == -1)
    times = (records.timestamps + later).tolist()
    for offset, (time, key, value) in enumerate(zip(times, keys, values, strict=True)):
        builder.append(offset, time, key, value, headers[offset] if headers else _NO_HEADERS)
    batch = builder.build()
    head = Head(*HEAD.unpack_from(batch))._replace(base_offset=base_offset)
    if later:
        first, last = head.first_timestamp - later, head.max_timestamp - later
        head = head._replace(first_timestamp=first, max_timestamp=last)
        HEAD.pack_into(batch, 0, *head)
        crc = google_crc32c.value(bytes(batch[UNCHECKED_HEAD.size :]))
        head = head._replace(crc=crc)
    HEAD.pack_into(batch, 0, *head)
    return batch


def no_headers(count: int) -> Column:
    """Return the headers of as many records without any."""
    offsets = pa.py_buffer(bytes(4 * (count + 1)))
    empty: Column = pa.array([], HEADERS.value_type)
    return pa.Array.from_buffers(HEADERS, count, [None, offsets], children=[empty])


def values_of(column: Column) -> list[bytes | None]:
    """Return the values of a binary column; four times as fast as `to_pylist`."""
    offsets: list[int] = offsets_of(column).tolist()
    first, data = offsets[0], column.buffers()[2]
    data = b"" if data is None else bytes(memoryview(data)[first : offsets[-1]])
    found: list[bytes | None] = [
        data[begin - first : end - first] for begin, end in pairwise(offsets)
    ]
    if column.null_count:
        for index in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            found[index] = None
    return found


def _headers_of(column: Column) -> list[list[tuple[str, bytes | None]]] | None:
    """Return the headers of each record; None if no record has any."""
    if not len(column.flatten()):
        return None
    return [
        [(header["key"], header["value"]) for header in headers or ()]
        for headers in column.to_pylist()
    ]
