import datetime
import decimal
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pages import decode_page, encode_page

from wings_core.errors import InvalidSchema, StorageCorrupt
from wings_core.storage.interfaces import EncodedPage
from wings_core.storage.page import PAGE_ALIGNMENT, PageEncoder

TOPIC = "0d4dd6e4-3c0b-4f6f-9d3e-3b7f7a2f1c55"
OTHER_TOPIC = "0d4dd6e4-3c0b-4f6f-9d3e-3b7f7a2f1c56"

_FLAT: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.null(), st.none()),
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.decimal32(5, 2), st.decimals(-9, 9, places=2)),
    (pa.decimal128(20, 3), st.decimals(-(10**9), 10**9, places=3)),
    (pa.decimal256(60, 1), st.decimals(-(10**9), 10**9, places=1)),
    (pa.date32(), st.dates()),
    (pa.time64("us"), st.times()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(datetime.UTC))),
    (pa.duration("ms"), st.integers(-(2**40), 2**40)),
    (pa.string(), st.text(max_size=12)),
    (pa.large_string(), st.text(max_size=12)),
    (pa.binary(), st.binary(max_size=12)),
    (pa.large_binary(), st.binary(max_size=12)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
]

Typed = tuple[pa.DataType, st.SearchStrategy[Any]]


def _nested(children: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    def nest(kind: str, child: Typed, other: Typed) -> Typed:
        data_type, values = child[0], child[1] | st.none()
        if kind == "list":
            return pa.list_(data_type), st.lists(values, max_size=3)
        if kind == "large_list":
            return pa.large_list(data_type), st.lists(values, max_size=3)
        if kind == "fixed_size_list":
            return pa.list_(data_type, 2), st.lists(values, min_size=2, max_size=2)
        if kind == "map":
            return pa.map_(pa.string(), data_type), st.lists(
                st.tuples(st.text(max_size=3), values), max_size=3
            )
        both = st.fixed_dictionaries({"a": values, "b": other[1] | st.none()})
        return pa.struct([("a", data_type), ("b", other[0])]), both

    kinds = ["list", "large_list", "fixed_size_list", "map", "struct"]
    return st.builds(nest, st.sampled_from(kinds), children, children)


_TYPES = st.recursive(st.sampled_from(_FLAT), _nested, max_leaves=4)


@st.composite
def _batches(draw: st.DrawFn) -> pa.RecordBatch:
    typed = draw(st.lists(_TYPES, max_size=4))
    rows = draw(st.integers(0, 6))
    columns = [
        pa.array(draw(st.lists(values | st.none(), min_size=rows, max_size=rows)), data_type)
        for data_type, values in typed
    ]
    if not columns:
        return pa.record_batch([pa.nulls(rows)], names=["c"]).select([])
    return pa.record_batch(columns, names=[f"c{index}" for index in range(len(columns))])


def _bytes_of(page: EncodedPage) -> bytes:
    data = b"".join(page.parts)
    assert len(data) == page.length
    return data


def _buffer_of(page: EncodedPage) -> pa.Buffer:
    return pa.py_buffer(_bytes_of(page))


def _small_batch() -> pa.RecordBatch:
    return pa.record_batch(
        [
            pa.array([1, None, 3], pa.int16()),
            pa.array(["x", "yy", None]),
            pa.array([[1, 2], [], None], pa.list_(pa.int8())),
        ],
        names=["a", "b", "c"],
    )


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(_batches(), st.data())
def test_rows_of_any_schema_come_back(batch: pa.RecordBatch, data: st.DataObject) -> None:
    page = encode_page(batch, TOPIC)
    assert page.length % PAGE_ALIGNMENT == 0
    assert page.rows == batch.num_rows
    decoded = decode_page(_buffer_of(page), TOPIC, batch.schema)
    decoded.validate(full=True)
    assert decoded.equals(batch)
    columns = data.draw(st.lists(st.sampled_from(range(batch.num_columns)), unique=True)
                        if batch.num_columns else st.just([]))  # fmt: skip
    some = decode_page(_buffer_of(page), TOPIC, batch.schema, columns)
    assert some.num_rows == batch.num_rows
    assert some.schema.names == [batch.schema.names[column] for column in columns]
    for index, column in enumerate(columns):
        assert some.column(index).equals(batch.column(column))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(_batches(), st.data())
def test_a_slice_is_stored_without_the_rows_around_it(
    batch: pa.RecordBatch, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, batch.num_rows))
    part = batch.slice(start, data.draw(st.integers(0, batch.num_rows - start)))
    page = encode_page(part, TOPIC)
    assert decode_page(_buffer_of(page), TOPIC, batch.schema).equals(part)


@pytest.mark.parametrize("columns", [1, 3])
def test_a_large_page_is_the_same_bytes_without_a_copy(columns: int) -> None:
    numbers = pa.array(range(50_000), pa.int64())
    texts = pa.array([f"text {number}" if number % 3 else None for number in range(50_000)])
    batch = pa.record_batch([numbers, texts, numbers][:columns], names=list("abc")[:columns])
    encoder = PageEncoder(TOPIC, batch.schema)
    for rows in (batch, batch.slice(7, 40_001), batch.slice(16), batch):
        page = encoder.encode(rows)
        assert rows.serialize().to_pybytes() in _bytes_of(page)
        assert decode_page(_buffer_of(page), TOPIC, batch.schema).equals(rows)
    data = batch.column(0).buffers()[1]
    assert data is not None
    addresses = [pa.py_buffer(part).address for part in page.parts]
    assert data.address in addresses


def test_a_stream_may_name_what_is_inside_of_lists_otherwise() -> None:
    values = pa.array(
        [[number] for number in range(20_000)], pa.list_(pa.field("other", pa.int64()))
    )
    encoder = PageEncoder(TOPIC, pa.schema([("a", pa.list_(pa.int64()))]))
    for batch in (
        pa.record_batch([values], names=["a"]),
        pa.record_batch([values.cast(pa.list_(pa.int64()))], names=["a"]),
    ):
        page = encoder.encode(batch)
        schema = pa.schema([("a", pa.list_(pa.int64()))])
        decoded = decode_page(_buffer_of(page), TOPIC, schema)
        assert decoded == batch.cast(schema)


def test_a_slice_of_a_long_batch_makes_a_short_page() -> None:
    batch = pa.record_batch([pa.array(["text"] * 10_000)], names=["a"])
    assert encode_page(batch.slice(5_000, 2), TOPIC).length < 1_024


def test_a_short_slice_of_a_large_batch_is_copied_into_one_buffer() -> None:
    batch = pa.record_batch({"a": pa.array(range(100_000)), "b": pa.array(range(100_000))})
    rows = batch.slice(5_000, 100)
    page = encode_page(rows, TOPIC)
    alone = encode_page(pa.record_batch(rows.to_pydict(), schema=rows.schema), TOPIC)
    assert len(page.parts) == len(alone.parts)
    assert b"".join(page.parts) == b"".join(alone.parts)
    assert len(page.parts) < len(encode_page(batch, TOPIC).parts)


def test_nan_and_nulls_come_back() -> None:
    batch = pa.record_batch([pa.array([math.nan, None, math.inf])], names=["a"])
    decoded = decode_page(_buffer_of(encode_page(batch, TOPIC)), TOPIC, batch.schema)
    assert math.isnan(decoded.column(0)[0].as_py())
    assert decoded.column(0)[1:].to_pylist() == [None, math.inf]


def test_decoding_copies_nothing() -> None:
    batch = pa.record_batch(
        [pa.array([1] * 1000), pa.array([decimal.Decimal(1)] * 1000)], names=["a", "b"]
    )
    page = _buffer_of(encode_page(batch, TOPIC))
    for column in decode_page(page, TOPIC, batch.schema).columns:
        for buffer in column.buffers():
            if buffer is not None:
                assert page.address <= buffer.address < page.address + page.size


@pytest.mark.parametrize("change", [0x01, 0x80, 0xFF])
def test_every_changed_byte_is_found(change: int) -> None:
    batch = _small_batch()
    page = bytearray(_bytes_of(encode_page(batch, TOPIC)))
    for position in range(len(page)):
        page[position] ^= change
        with pytest.raises(StorageCorrupt):
            decode_page(pa.py_buffer(bytes(page)), TOPIC, batch.schema)
        page[position] ^= change
    assert decode_page(pa.py_buffer(bytes(page)), TOPIC, batch.schema).equals(batch)


def test_every_changed_byte_outside_other_columns_is_found_when_reading_one() -> None:
    batch = _small_batch()
    page = bytearray(_bytes_of(encode_page(batch, TOPIC)))
    found: dict[int, set[int]] = {}
    for column in range(3):
        found[column] = set()
        for position in range(len(page)):
            page[position] ^= 0x10
            try:
                decoded = decode_page(pa.py_buffer(bytes(page)), TOPIC, batch.schema, [column])
                assert decoded.column(0).equals(batch.column(column))
            except StorageCorrupt:
                found[column].add(position)
            page[position] ^= 0x10
    shared = found[0] & found[1] & found[2]
    own = [found[column] - shared for column in range(3)]
    # The columns' parts are disjoint, none is empty, and with what all share they are the page.
    assert all(own)
    assert sum(map(len, own)) + len(shared) == len(page)


def test_a_page_cut_off_anywhere_is_found() -> None:
    batch = _small_batch()
    page = _bytes_of(encode_page(batch, TOPIC))
    for length in range(len(page)):
        with pytest.raises(StorageCorrupt):
            decode_page(pa.py_buffer(page[:length]), TOPIC, batch.schema)


def test_the_damaged_column_is_named() -> None:
    batch = pa.record_batch([pa.array([1, 2]), pa.array([77, 78])], names=["a", "the_column"])
    data = _bytes_of(encode_page(batch, TOPIC))
    damaged = pa.py_buffer(data.replace((77).to_bytes(8, "little"), (76).to_bytes(8, "little")))
    with pytest.raises(StorageCorrupt, match="'the_column'"):
        decode_page(damaged, TOPIC, batch.schema)
    assert decode_page(damaged, TOPIC, batch.schema, [0]).column(0).equals(batch.column(0))


def test_a_page_of_another_topic_is_refused() -> None:
    batch = _small_batch()
    with pytest.raises(StorageCorrupt, match="belongs to topic"):
        decode_page(_buffer_of(encode_page(batch, TOPIC)), OTHER_TOPIC, batch.schema)


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("a", pa.int16()), ("b", pa.string())]),
        pa.schema([("a", pa.int16()), ("b", pa.string()), ("c", pa.int8())]),
    ],
)
def test_a_page_of_another_schema_is_refused(schema: pa.Schema) -> None:
    with pytest.raises(StorageCorrupt):
        decode_page(_buffer_of(encode_page(_small_batch(), TOPIC)), TOPIC, schema)


def test_a_schema_may_change_under_one_topic() -> None:
    first = pa.record_batch([pa.array([1])], names=["a"])
    second = pa.record_batch([pa.array(["x"])], names=["a"])
    for batch in (first, second, first):
        page = _buffer_of(encode_page(batch, TOPIC))
        assert decode_page(page, TOPIC, batch.schema).equals(batch)


def test_a_type_that_takes_more_messages_than_one_is_refused() -> None:
    batch = pa.record_batch([pa.array(["x"]).dictionary_encode()], names=["a"])
    with pytest.raises(InvalidSchema):
        encode_page(batch, TOPIC)
