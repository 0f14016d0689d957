from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wings_core.errors import InvalidSchema, StorageCorrupt
from wings_core.storage.ipc import MessageLayout, first_buffers, metadata_end, read_metadata

_NESTED = pa.struct(
    [
        ("a", pa.list_(pa.large_string())),
        ("b", pa.map_(pa.string(), pa.list_(pa.int8(), 2))),
        ("c", pa.null()),
        ("d", pa.large_list(pa.struct([("e", pa.bool_()), ("f", pa.decimal128(20, 2))]))),
    ]
)
_NESTED_VALUE = {
    "a": ["x", None],
    "b": [("k", [1, 2])],
    "c": None,
    "d": [{"e": True, "f": None}],
}


def _batch() -> pa.RecordBatch:
    return pa.record_batch(
        [
            pa.array([1, 2, None], pa.int32()),
            pa.nulls(3),
            pa.array(["one", None, "three"]),
            pa.array([_NESTED_VALUE, None, _NESTED_VALUE], _NESTED),
            pa.array([b"abc", b"def", None], pa.binary(3)),
            pa.nulls(3),
        ],
        names=["int", "null", "string", "nested", "fixed", "last"],
    )


def _layout_of(message: memoryview, buffers: tuple[int, ...]) -> MessageLayout:
    body = metadata_end(message)
    return read_metadata(message[:body], len(message) - body, buffers)


def test_every_buffer_lies_in_the_range_of_its_column() -> None:
    batch = _batch()
    message = batch.serialize()
    layout = _layout_of(memoryview(message), first_buffers(batch.schema))
    decoded = pa.ipc.read_record_batch(message, batch.schema)
    assert layout.rows == 3
    assert layout.column_starts[-1] == message.size
    for index, column in enumerate(decoded.columns):
        begin, end = layout.column_starts[index : index + 2]
        for buffer in column.buffers():
            if buffer is not None:
                start = buffer.address - message.address
                assert begin <= start <= start + buffer.size <= end
    starts = layout.column_starts
    assert [end - begin for begin, end in pairwise(starts)] == [
        *(24, 0, 32, starts[4] - starts[3], 24, 0)
    ]


def test_a_batch_without_columns_has_no_body() -> None:
    message = pa.record_batch([pa.array([1, 2])], names=["a"]).select([]).serialize()
    layout = _layout_of(memoryview(message), first_buffers(pa.schema([])))
    assert layout.column_starts == (message.size,)
    assert layout.rows == 2


@pytest.mark.parametrize(
    "data_type",
    [
        pa.dictionary(pa.int8(), pa.string()),
        pa.string_view(),
        pa.run_end_encoded(pa.int32(), pa.int8()),
        pa.list_(pa.dense_union([pa.field("a", pa.int8())])),
    ],
)
def test_types_that_no_topic_can_have_are_refused(data_type: pa.DataType) -> None:
    with pytest.raises(InvalidSchema):
        first_buffers(pa.schema([("a", data_type)]))


def test_a_schema_message_is_not_a_record_batch() -> None:
    message = memoryview(_batch().schema.serialize())
    with pytest.raises(StorageCorrupt):
        _layout_of(message, first_buffers(_batch().schema))


def test_another_number_of_buffers_is_found() -> None:
    message = memoryview(_batch().serialize())
    with pytest.raises(StorageCorrupt, match="buffers"):
        _layout_of(message, first_buffers(pa.schema([("a", pa.int32())])))


def _assert_in_bounds_or_corrupt(message: bytes, buffers: tuple[int, ...]) -> None:
    try:
        layout = _layout_of(memoryview(message), buffers)
    except StorageCorrupt:
        return
    starts = layout.column_starts
    assert layout.rows >= 0
    assert list(starts) == sorted(starts)
    assert starts[0] == metadata_end(memoryview(message))
    assert starts[-1] == len(message)


def test_a_message_cut_off_anywhere_is_found() -> None:
    batch = _batch()
    message = memoryview(batch.serialize())
    buffers = first_buffers(batch.schema)
    for length in range(len(message)):
        with pytest.raises(StorageCorrupt):
            _layout_of(message[:length], buffers)


@pytest.mark.parametrize("change", [0x01, 0x04, 0x80, 0xFF])
def test_a_changed_byte_of_metadata_never_leads_outside_the_message(change: int) -> None:
    batch = _batch()
    message = bytearray(batch.serialize())
    buffers = first_buffers(batch.schema)
    for position in range(metadata_end(memoryview(message))):
        message[position] ^= change
        _assert_in_bounds_or_corrupt(bytes(message), buffers)
        message[position] ^= change


@given(st.data())
def test_damaged_metadata_never_leads_outside_the_message(data: st.DataObject) -> None:
    batch = _batch()
    message = bytearray(batch.serialize())
    end = metadata_end(memoryview(message))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(8, end - 1))
        patch = data.draw(st.binary(min_size=1, max_size=8))
        message[position : position + len(patch)] = patch
    _assert_in_bounds_or_corrupt(bytes(message), first_buffers(batch.schema))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_corrupt(tail: bytes) -> None:
    buffers = first_buffers(pa.schema([("a", pa.int32())]))
    _assert_in_bounds_or_corrupt(tail, buffers)
    prefix = b"\xff\xff\xff\xff" + (len(tail) // 2).to_bytes(4, "little")
    _assert_in_bounds_or_corrupt(prefix + tail, buffers)
