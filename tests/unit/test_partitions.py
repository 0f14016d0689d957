"""Partitions: what value is of which key's kind, and one canonical text for each."""

import base64
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import each

from wings_core.errors import (
    InvalidArgument,
    PartitionNotAllowed,
    PartitionRequired,
    PartitionTypeMismatch,
    WingsError,
)
from wings_core.partitions import (
    UNPARTITIONED,
    VALUE_BYTES_MAX,
    Partition,
    canonical_partition,
    is_partition_key_type,
    partition_of,
    partition_of_value,
    partition_sort_key,
    partition_value,
    partitions_of,
    partitions_of_keys,
)

SIGNED = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
UNSIGNED = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}
INTEGERS: list[pa.DataType] = [*SIGNED.values(), *UNSIGNED.values()]
STRINGS: list[pa.DataType] = [pa.string(), pa.large_string()]
BINARIES: list[pa.DataType] = [pa.binary(), pa.large_binary(), pa.binary(3)]
KEY_TYPES = [*INTEGERS, *STRINGS, *BINARIES, pa.bool_()]

NO_SCALARS: list[object] = [1.0, 1.5, 1e300, -0.0, float("nan"), [], [1], {}, {"a": 1}, [[[]]]]

texts = st.text(st.characters(exclude_categories=["Cs"]))


def of_key(value: object, data_type: pa.DataType) -> str:
    make: Any = pa.array
    (partition,) = partitions_of_keys(make([value], data_type))
    return partition


@each("data_type", KEY_TYPES)
def test_ints_strings_binaries_and_bools_can_be_keys(data_type: pa.DataType) -> None:
    assert is_partition_key_type(data_type)


@each(
    "data_type",
    [
        pa.null(),
        pa.float16(),
        pa.float32(),
        pa.float64(),
        pa.date32(),
        pa.timestamp("us"),
        pa.decimal128(10, 0),
        pa.list_(pa.int64()),
        pa.struct([("a", pa.int64())]),
        pa.map_(pa.string(), pa.int64()),
        pa.dictionary(pa.int32(), pa.string()),
        pa.string_view(),
    ],
)
def test_no_other_type_can_be_a_key(data_type: pa.DataType) -> None:
    assert not is_partition_key_type(data_type)


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_an_integer_must_be_in_the_range_of_its_type(bits: int) -> None:
    for data_type, low, high in (
        (SIGNED[bits], -(1 << bits - 1), (1 << bits - 1) - 1),
        (UNSIGNED[bits], 0, (1 << bits) - 1),
    ):
        assert partition_of(low, data_type) == str(low)
        assert partition_of(high, data_type) == str(high)
        for outside in (low - 1, high + 1, 1 << 100):
            with pytest.raises(PartitionTypeMismatch, match="out of the range"):
                partition_of(outside, data_type)


@each("data_type", KEY_TYPES)
@each("value", NO_SCALARS)
def test_an_object_a_list_or_a_float_is_of_no_keys_kind(
    value: object, data_type: pa.DataType
) -> None:
    with pytest.raises(PartitionTypeMismatch):
        partition_of(value, data_type)


@each(
    ("value", "data_type"),
    [
        ("7", pa.int64()),
        (True, pa.int64()),
        (False, pa.uint8()),
        (7, pa.string()),
        (True, pa.string()),
        (0, pa.bool_()),
        (1, pa.bool_()),
        ("true", pa.bool_()),
        (7, pa.binary()),
        ("a", pa.binary()),
        ("YQ", pa.binary()),
        ("YQ==\n", pa.binary()),
        ("YR==", pa.binary()),
        ("é", pa.binary()),
        ("YWI=", pa.binary(3)),
        ("YWJjZA==", pa.binary(3)),
        ("\ud800", pa.string()),
    ],
)
def test_nothing_is_converted(value: object, data_type: pa.DataType) -> None:
    with pytest.raises(PartitionTypeMismatch):
        partition_of(value, data_type)


values = st.integers(-(2**70), 2**70) | st.integers(-3, 3) | st.none() | st.booleans() | texts


@given(
    st.lists(values, max_size=3) | st.lists(st.integers(-300, 300)),
    st.sampled_from([*KEY_TYPES, None]),
)
def test_many_values_are_judged_as_one_is(
    given_values: list[object], data_type: pa.DataType | None
) -> None:
    def outcome(call: Callable[[], list[Partition]]) -> object:
        try:
            return call()
        except WingsError as error:
            return type(error), str(error)

    one_by_one = outcome(lambda: [partition_of(value, data_type) for value in given_values])
    assert outcome(lambda: partitions_of(given_values, data_type)) == one_by_one


@each("data_type", KEY_TYPES)
def test_a_topic_with_a_key_needs_a_value(data_type: pa.DataType) -> None:
    with pytest.raises(PartitionRequired):
        partition_of(None, data_type)


def test_a_topic_without_a_key_has_one_partition_and_takes_no_value() -> None:
    assert partition_of(None, None) == UNPARTITIONED == "null"
    assert partition_value(UNPARTITIONED) is None
    for value in (0, "", False, *NO_SCALARS):
        with pytest.raises(PartitionNotAllowed):
            partition_of(value, None)


@given(texts)
def test_a_string_has_one_canonical_text(value: str) -> None:
    partition = partition_of(value, pa.string())
    assert partition_value(partition) == value
    assert partition_of(json.loads(json.dumps(value)), pa.large_string()) == partition
    assert of_key(value, pa.string()) == partition
    assert partition_of_value(value) == partition


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_an_integer_has_one_canonical_text(value: int) -> None:
    partition = partition_of(value, pa.int64())
    assert partition == str(value)
    assert partition_value(partition) == value
    assert of_key(value, pa.int64()) == partition


@given(st.binary())
def test_binary_is_base64_in_its_canonical_form(value: bytes) -> None:
    text = base64.b64encode(value).decode()
    partition = partition_of(text, pa.binary())
    assert partition == f'"{text}"'
    assert of_key(value, pa.binary()) == partition
    assert of_key(value, pa.large_binary()) == partition


def test_a_bool_is_true_or_false() -> None:
    for value, text in ((True, "true"), (False, "false")):
        assert partition_of(value, pa.bool_()) == text
        assert of_key(value, pa.bool_()) == text


def test_texts_are_as_short_as_json_allows() -> None:
    assert partition_of('é\n"\\☃', pa.string()) == '"é\\n\\"\\\\☃"'


@each("letter", ["a", "é", "☃", "𝄞", "\n", '"'])
def test_a_value_is_bounded_in_bytes_of_its_json_text(letter: str) -> None:
    letter_bytes = len(json.dumps(letter, ensure_ascii=False).encode()) - 2
    longest = letter * ((VALUE_BYTES_MAX - 2) // letter_bytes)
    assert partition_value(partition_of(longest, pa.string())) == longest
    for data_type in STRINGS:
        with pytest.raises(PartitionTypeMismatch, match="longer than"):
            partition_of(longest + letter, data_type)
        with pytest.raises(PartitionTypeMismatch, match="longer than"):
            of_key(longest + letter, data_type)


@pytest.mark.parametrize("value", ["x" * 100_000, 1 << 1000, ["x"] * 100_000, {"x" * 1000: 1}])
def test_errors_about_long_values_are_short(value: object) -> None:
    with pytest.raises(PartitionTypeMismatch) as caught:
        partition_of(value, pa.int8())
    assert len(caught.value.message.encode()) <= 512
    with pytest.raises(PartitionNotAllowed) as refused:
        partition_of(value, None)
    assert len(refused.value.message.encode()) <= 512


def test_partitions_sort_by_value() -> None:
    integers = [partition_of(value, pa.int64()) for value in (-10, -9, 0, 2, 10, 100)]
    assert sorted(set(integers), key=partition_sort_key) == integers
    strings = [partition_of(value, pa.string()) for value in ("", "B", "a", "b", "é", "𝄞")]
    assert sorted(set(strings), key=partition_sort_key) == strings
    bools = [partition_of(value, pa.bool_()) for value in (False, True)]
    assert sorted(set(bools), key=partition_sort_key) == bools
    assert sorted([UNPARTITIONED], key=partition_sort_key) == [UNPARTITIONED]


def test_a_decimal_is_not_mistaken_for_an_integer() -> None:
    with pytest.raises(PartitionTypeMismatch):
        partition_of(Decimal(7), pa.int64())


def test_a_partition_is_its_text() -> None:
    assert isinstance(partition_of("x", pa.string()), str)
    assert {Partition('"x"'): 1}[partition_of("x", pa.string())] == 1


@given(st.one_of(st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 64) - 1), texts))
def test_every_partition_is_canonical(value: Any) -> None:
    partition = partition_of_value(value)
    assert canonical_partition(partition) == partition


@given(st.text(st.sampled_from('"\\/u0018dbfnrte \n-+.JFKé\0\ud800')).map(lambda text: f'"{text}"'))
def test_a_string_is_canonical_where_it_is_written_as_it_was_read(text: str) -> None:
    try:
        canonical = json.dumps(json.loads(text), ensure_ascii=False) == text
        text.encode()
    except ValueError:
        canonical = False
    if canonical:
        assert canonical_partition(text) == text
    else:
        with pytest.raises(InvalidArgument, match="canonical JSON"):
            canonical_partition(text)


@each(
    "text",
    [
        *("", " ", "nul", "Null", "JFK", "'a'", '"a', 'a"', '"a" ', " 7", "7\n", "07", "-0", "+1"),
        *("1.0", "1e3", "NaN", "Infinity", "[]", "[" * 60_000, "{}", "1" * 21, "\0", '"\0"'),
        *('"\\u0041"', '"\\u000A"', '"\\u000a"', '"\\/"', '"\\ud800"', '"\ud800"', "٣"),
        f'"{"x" * (VALUE_BYTES_MAX - 1)}"',
        f'"{"é" * (VALUE_BYTES_MAX // 2)}"',
    ],
)
def test_a_text_that_is_no_partition_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        canonical_partition(text)
    assert len(caught.value.message) < 700
