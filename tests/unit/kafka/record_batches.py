"""Record batches as plain Python: strategies, and a decoder of their own."""

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from wings_server.kafka.record_types import HEADERS, Records

HEAD = struct.Struct(">qiibIhiqqqhii")


@dataclass(frozen=True)
class Record:
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def plain_records(batch: bytes) -> list[Record]:
    """Decode an uncompressed batch, one byte after another."""
    head = HEAD.unpack_from(batch)
    first_timestamp, count = head[7], head[12]
    assert (head[1], head[3], head[6]) == (len(batch) - 12, 2, count - 1)
    data, at = batch[HEAD.size :], 0

    def varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)

    def text() -> bytes | None:
        nonlocal at
        length = varint()
        if length < 0:
            return None
        at += length
        return data[at - length : at]

    found: list[Record] = []
    for number in range(count):
        length = varint()
        end = at + length
        at += 1
        timestamp = first_timestamp + varint()
        assert varint() == number
        key, value = text(), text()
        headers: list[tuple[str, bytes | None]] = []
        for _ in range(varint()):
            name = text()
            assert name is not None
            headers.append((name.decode(), text()))
        assert at == end
        found.append(Record(timestamp, key, value, tuple(headers)))
    assert at == len(data)
    return found


def columns_of(records: list[Record]) -> Records:
    headers: list[Any] = [
        [{"key": key, "value": value} for key, value in record.headers] for record in records
    ]
    return Records(
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
        pa.array(headers, HEADERS),
        np.array([record.timestamp for record in records], np.int64),
    )


def records_in(columns: Records) -> list[Record]:
    """Return columns as records, checked in full by Arrow."""
    for column in columns[:3]:
        column.validate(full=True)
    rows = zip(*(column.to_pylist() for column in columns[:3]), columns.timestamps, strict=True)
    return [
        Record(int(time), key, value, tuple((each["key"], each["value"]) for each in headers))
        for key, value, headers, time in rows
    ]


_bytes = st.one_of(
    st.none(), st.binary(max_size=40), st.integers(60, 17_000).map(lambda size: b"\xff" * size)
)
_headers = st.lists(st.tuples(st.text(max_size=8), _bytes), max_size=3).map(tuple)
_times = st.one_of(
    st.integers(-1, 2_000), st.integers(1_700_000_000_000, 1_700_000_100_000), st.just(1 << 47)
)
record = st.builds(Record, _times, _bytes, _bytes, st.one_of(st.just(()), _headers))
batches = st.lists(record, min_size=1, max_size=30)
