"""Record batches of Kafka's clients, to and from columns, by both codecs."""

import random
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import cramjam
import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from record_batches import HEAD, Record, batches, columns_of, plain_records, record, records_in

from wings_core.errors import ResourceExhausted
from wings_core.kafka_topics import BINARY_SCHEMA
from wings_core.partitions import Partition
from wings_server.kafka import large_records, small_records
from wings_server.kafka.errors import KafkaError
from wings_server.kafka.record_types import Head, Records
from wings_server.kafka.records import (
    LARGE_RECORDS_MIN,
    decode,
    encode,
    ends_of,
    records_of,
    rows_of,
)
from wings_server.kafka.service import KeptBatches
from wings_server.kafka.small_records import no_headers

CODECS = (small_records, large_records)
BYTES_MAX = 1 << 20

SOME = [
    Record(1_700_000_000_000, b"key", b"value", ()),
    Record(1_700_000_000_007, None, b"", (("name", None), ("name", b"again"))),
    Record(-1, b"", None, ()),
]


def batch_of(records: list[Record]) -> bytes:
    return bytes(small_records.encode(0, columns_of(records)))


def sealed(batch: bytes, **changes: int) -> bytes:
    """Return a batch with fields of its head changed, and a length and checksum that match."""
    head = Head(*HEAD.unpack_from(batch))._replace(**changes)
    if "length" not in changes:
        head = head._replace(length=len(batch) - 12)
    rest = HEAD.pack(*head)[21:] + batch[HEAD.size :]
    crc = changes.get("crc", google_crc32c.value(rest))
    return HEAD.pack(*head._replace(crc=crc))[:21] + rest


def compressed(batch: bytes, number: int, body: bytes) -> bytes:
    return sealed(batch[: HEAD.size] + body, attributes=number)


def refusal(batch: bytes, bytes_max: int = BYTES_MAX) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        decode(batch, bytes_max)
    return refused.value.code


@given(batches)
@example([Record(-1, None, b"without a time", ()), Record(0, None, b"with one", ())])
def test_both_codecs_write_the_same_bytes_and_read_what_a_plain_decoder_reads(
    records: list[Record],
) -> None:
    small, large = (bytes(codec.encode(0, columns_of(records))) for codec in CODECS)
    assert small == large
    assert plain_records(small) == records
    head, body = Head(*HEAD.unpack_from(small)), memoryview(small)[HEAD.size :]
    assert head.crc == google_crc32c.value(small[21:])
    for codec in CODECS:
        assert records_in(codec.decode(head, body)) == records


@given(st.data(), record)
def test_a_long_batch_is_read_as_by_a_plain_decoder(data: st.DataObject, one: Record) -> None:
    count = data.draw(st.integers(LARGE_RECORDS_MIN, LARGE_RECORDS_MIN + 300))
    records = [
        Record(one.timestamp, one.key, b"%d" % number, one.headers) for number in range(count)
    ]
    batch = bytes(encode(1 << 40, columns_of(records)))
    assert HEAD.unpack_from(batch)[0] == 1 << 40
    assert plain_records(batch) == records
    assert records_in(decode(batch, 1 << 26).records) == records


@given(batches, st.data())
def test_rows_of_a_topic_are_the_records_again_in_any_slice(
    records: list[Record], data: st.DataObject
) -> None:
    rows = rows_of(columns_of(records), 3, BINARY_SCHEMA)
    rows.validate(full=True)
    assert set(rows.column(0).to_pylist()) == {3}
    first = data.draw(st.integers(0, len(records) - 1))
    count = data.draw(st.integers(1, len(records) - first))
    some = records_of(rows.slice(first, count))
    for codec in CODECS:
        written = codec.encode(0, some)
        assert plain_records(bytes(written)) == records[first : first + count]
        more = 4 * sum(1 + len(each.headers) for each in records[first : first + count])
        assert ends_of(some)[-1] + more >= len(written) - HEAD.size


def test_where_records_end_is_known_where_a_few_have_long_headers() -> None:
    long, short = (Record(1, None, b"v", (("a", bytes(size)),)) for size in (90_000, 0))
    records = [short, long, *[short] * 500]
    ends = ends_of(columns_of(records))
    for count in (1, 2, 3, 502):
        written = len(batch_of(records[:count])) - HEAD.size
        assert written - 4 <= ends[count - 1] <= written + 14 * count


def test_more_headers_than_are_read_by_column_are_read_by_record() -> None:
    many = Record(1, None, b"v", tuple((f"h{number}", b"x") for number in range(200)))
    batch = batch_of([many, *SOME])
    head, body = Head(*HEAD.unpack_from(batch)), memoryview(batch)[HEAD.size :]
    assert records_in(large_records.decode(head, body)) == [many, *SOME]


@pytest.mark.parametrize(
    ("number", "compress"),
    [
        (1, cramjam.gzip.compress),
        (2, cramjam.snappy.compress_raw),
        (3, cramjam.lz4.compress),
        (4, cramjam.zstd.compress),
    ],
)
def test_compressed_records_unfold_within_a_bound(
    number: int, compress: Callable[[bytes], Any], subtests: pytest.Subtests
) -> None:
    records = [*SOME, Record(5, None, bytes(600_000), ())]
    batch = batch_of(records)
    body = bytes(compress(batch[HEAD.size :]))
    folded = compressed(batch, number, body)
    assert len(folded) < len(batch) // 10
    assert records_in(decode(folded, BYTES_MAX).records) == records
    with subtests.test("more than the bound"):
        assert refusal(folded, 500_000) is ErrorCode.message_too_large
    with subtests.test("room is taken before"):
        taken: list[int] = []
        decode(folded, BYTES_MAX, taken.append)
        assert len(folded) <= sum(taken) <= BYTES_MAX

        def refuse(size: int) -> None:
            raise ResourceExhausted(f"{size}")

        with pytest.raises(ResourceExhausted):
            decode(folded, BYTES_MAX, refuse)
    for cut in (0, 1, len(body) // 2, len(body) - 1):
        with subtests.test("cut", cut=cut):
            refusal(compressed(batch, number, body[:cut]))


def test_framed_snappy_of_java_clients_unfolds() -> None:
    batch = batch_of(SOME)
    body = batch[HEAD.size :]
    blocks = [bytes(cramjam.snappy.compress_raw(part)) for part in (body[:20], body[20:])]
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    framed += b"".join(struct.pack(">i", len(block)) + block for block in blocks)
    assert records_in(decode(compressed(batch, 2, framed), BYTES_MAX).records) == SOME
    assert refusal(compressed(batch, 2, framed[:-1])) is ErrorCode.corrupt_message
    assert refusal(compressed(batch, 2, framed), 30) is ErrorCode.message_too_large


def test_a_bomb_takes_no_more_memory_than_its_bound() -> None:
    batch = batch_of(SOME)
    bomb = compressed(batch, 4, bytes(cramjam.zstd.compress(bytes(1 << 28))))
    tracemalloc.start()
    try:
        assert refusal(bomb, 1 << 22) is ErrorCode.message_too_large
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()


def test_a_batch_that_is_not_what_it_states_is_refused(subtests: pytest.Subtests) -> None:
    batch = batch_of(SOME)
    refusals: dict[str, tuple[bytes, ErrorCode]] = {
        "empty": (b"", ErrorCode.corrupt_message),
        "shorter than a head": (batch[:60], ErrorCode.corrupt_message),
        "format 1": (sealed(batch, magic=1), ErrorCode.unsupported_for_message_format),
        "bad checksum": (sealed(batch, crc=1), ErrorCode.corrupt_message),
        "two batches": (batch + batch, ErrorCode.invalid_record),
        "cut": (batch[:-1], ErrorCode.invalid_record),
        "no records": (sealed(batch, record_count=0), ErrorCode.invalid_record),
        "a billion records": (
            sealed(batch, record_count=1 << 30, last_offset_delta=(1 << 30) - 1),
            ErrorCode.invalid_record,
        ),
        "fewer records": (
            sealed(batch, record_count=2, last_offset_delta=1),
            ErrorCode.invalid_record,
        ),
        "more records": (
            sealed(batch, record_count=4, last_offset_delta=3),
            ErrorCode.invalid_record,
        ),
        "offsets": (sealed(batch, last_offset_delta=7), ErrorCode.invalid_record),
        "control records": (sealed(batch, attributes=0x20), ErrorCode.invalid_record),
        "time of append": (sealed(batch, attributes=0x08), ErrorCode.invalid_timestamp),
        "compression 5": (sealed(batch, attributes=5), ErrorCode.unsupported_compression_type),
        "negative time": (sealed(batch, first_timestamp=-2), ErrorCode.invalid_timestamp),
        "year 10000": (sealed(batch, first_timestamp=1 << 48), ErrorCode.invalid_timestamp),
        "key of no UTF-8 in a header": (
            sealed(batch.replace(b"name", b"\xff\xff\xff\xff", 1)),
            ErrorCode.invalid_record,
        ),
    }
    for name, (bad, code) in refusals.items():
        with subtests.test(name):
            assert refusal(bad) is code


@given(batches, st.integers(0, 2**32), st.booleans())
def test_damaged_records_are_refused_or_read_alike_by_both_codecs(
    records: list[Record], seed: int, is_long: bool
) -> None:
    batch = batch_of(records * (20 if is_long else 1))
    body = bytearray(batch[HEAD.size :])
    source = random.Random(seed)
    for _ in range(source.randint(1, 4)):
        at = source.randrange(len(body))
        match source.randrange(4):
            case 0:
                body[at] = source.randrange(256)
            case 1:
                del body[at : at + source.randrange(1, 5)]
            case 2:
                body[at:at] = body[at : at + source.randrange(1, 5)]
            case _:
                body[at:at] = b"\xff" * source.randrange(1, 12)
        if not body:
            return
    head = Head(*HEAD.unpack_from(batch))
    found: list[list[Record] | None] = []
    for codec in CODECS:
        try:
            read: Records | None = codec.decode(head, memoryview(bytes(body)))
        except (ValueError, OverflowError):
            read = None
        found.append(None if read is None else records_in(read))
    if None not in found:
        assert found[0] == found[1]


def test_records_without_a_time_have_none_in_rows_and_batches() -> None:
    rows = rows_of(columns_of(SOME), 0, BINARY_SCHEMA)
    assert rows.column("timestamp").null_count == 1
    assert records_of(rows).timestamps.tolist() == [each.timestamp for each in SOME]
    assert isinstance(records_of(rows).timestamps, np.ndarray)


# Batches that are kept for consumers at the tail. #################################################

ZERO = Partition("0")


def batch(value: bytes) -> bytes:
    values = pa.array([value] * 3, pa.binary())
    return bytes(encode(0, Records(values, values, no_headers(3), np.arange(3))))


def test_a_batch_is_kept_at_its_place_with_its_records() -> None:
    kept = KeptBatches(1 << 20)
    kept.keep("topic", ZERO, 70_000, batch(b"first"), 3)
    found = kept.at("topic", ZERO, 70_000)
    assert found is not None
    decoded = decode(found.data, 1 << 20)
    assert (found.rows, decoded.head.base_offset) == (3, 70_000)
    assert decoded.records.value.to_pylist() == [b"first"] * 3
    assert kept.at("topic", ZERO, 70_001) is None
    assert kept.at("topic", Partition("1"), 70_000) is None
    assert kept.at("other", ZERO, 70_000) is None


def test_the_first_batch_of_a_place_stays() -> None:
    kept = KeptBatches(1 << 20)
    for value in (b"first", b"later"):
        kept.keep("topic", ZERO, 0, batch(value), 3)
    found = kept.at("topic", ZERO, 0)
    assert found is not None
    assert b"first" in found.data


def test_the_oldest_batches_are_dropped_beyond_the_bound() -> None:
    data = batch(b"v" * 10_000)
    kept = KeptBatches(5 * len(data))
    for offset in range(0, 30, 3):
        kept.keep("topic", ZERO, offset, data, 3)
    found = [kept.at("topic", ZERO, offset) is not None for offset in range(0, 30, 3)]
    assert found == [False] * 6 + [True] * 4
