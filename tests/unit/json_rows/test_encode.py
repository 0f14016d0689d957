"""The forms of values, names of any characters, and bounds on what is made at a time."""

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from arrow_strategies import batches
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from wings_core.errors import BatchTooLarge
from wings_core.json_rows import encode_rows, encode_rows_within
from wings_core.json_rows.encode import ROW_BYTES_MAX, STEP_BYTES, text_bytes_max

# pyarrow's stubs know only some of the arguments that its factories take.
arrow: Any = pa

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


def column(values: Any, data_type: Any) -> pa.RecordBatch:
    """A batch of one column `a`; values are what the type stores."""
    temporal = pa.types.is_temporal(data_type) and data_type != pa.month_day_nano_interval()
    if temporal:
        width = pa.int32() if data_type.bit_width == 32 else pa.int64()
        array = pa.array(values, width).view(data_type)
    else:
        array = arrow.array(values, data_type)
    return arrow.RecordBatch.from_arrays([array], names=["a"])


FORMS = [
    (pa.int64(), INT64_MIN, "-9223372036854775808"),
    (pa.uint64(), (1 << 64) - 1, "18446744073709551615"),
    (pa.float64(), 1.0, "1.0"),
    (pa.float64(), -0.0, "-0.0"),
    (pa.float64(), 0.1, "0.1"),
    (pa.float64(), 1e22, "1e+22"),
    (pa.float64(), 5e-324, "5e-324"),
    (pa.float64(), float("nan"), "null"),
    (pa.float64(), float("-inf"), "null"),
    (pa.float32(), 0.1, "0.1"),
    (pa.bool_(), True, "true"),
    (pa.string(), 'a"\\\n\x00\x1fü\u2028', r'"a\"\\\n\u0000\u001fü' + '\u2028"'),
    (pa.binary(), b"\x00\xff", '"AP8="'),
    (pa.binary(3), b"abc", '"YWJj"'),
    (arrow.decimal128(10, 2), Decimal("-1.50"), '"-1.50"'),
    (arrow.decimal128(18, 9), Decimal(0), '"0.000000000"'),
    (arrow.decimal128(18, 9), Decimal("1E-9"), '"0.000000001"'),
    (arrow.decimal128(5, -2), Decimal("12300"), '"12300"'),
    (arrow.timestamp("us", "UTC"), 0, '"1970-01-01T00:00:00.000000Z"'),
    (arrow.timestamp("us", "Europe/Berlin"), 0, '"1970-01-01T00:00:00.000000Z"'),
    (arrow.timestamp("us"), -1, '"1969-12-31T23:59:59.999999"'),
    (arrow.timestamp("s"), 1, '"1970-01-01T00:00:01.000000"'),
    (arrow.timestamp("ms"), 1, '"1970-01-01T00:00:00.001000"'),
    (arrow.timestamp("ns"), 1_000, '"1970-01-01T00:00:00.000001"'),
    (arrow.timestamp("ns"), 1, '"1970-01-01T00:00:00.000000001"'),
    (arrow.timestamp("ns"), INT64_MIN, '"1677-09-21T00:12:43.145224192"'),
    (arrow.timestamp("s"), -62_167_219_200, '"0000-01-01T00:00:00.000000"'),
    (arrow.timestamp("s"), -62_167_219_201, '"-0001-12-31T23:59:59.000000"'),
    (arrow.timestamp("s"), 253_402_300_800, '"+10000-01-01T00:00:00.000000"'),
    (arrow.timestamp("s"), INT64_MAX, '"+292277026596-12-04T15:30:07.000000"'),
    (pa.date32(), 20_777, '"2026-11-20"'),
    (pa.date32(), 2_932_897, '"+10000-01-01"'),
    (pa.date32(), -719_529, '"-0001-12-31"'),
    (pa.date64(), 20_777 * 86_400_000, '"2026-11-20"'),
    (pa.time32("s"), 43_200, '"12:00:00.000000"'),
    (pa.time64("ns"), 1_001, '"00:00:00.000001001"'),
    (pa.time64("ns"), 1_000, '"00:00:00.000001"'),
    (arrow.duration("us"), 90_500_000, '"PT90.500000S"'),
    (arrow.duration("s"), INT64_MIN, '"-PT9223372036854775808.000000S"'),
    (arrow.duration("ns"), -1, '"-PT0.000000001S"'),
    (pa.month_day_nano_interval(), (1, -2, 3), '{"months":1,"days":-2,"nanoseconds":3}'),
    (arrow.list_(pa.int64()), [1, None], "[1,null]"),
    (arrow.list_(pa.float64()), [float("nan"), 2.0], "[null,2.0]"),
    (arrow.list_(pa.binary(), 2), [b"a", b"bc"], '["YQ==","YmM="]'),
    (arrow.struct([("x", pa.int64()), ("X", pa.string())]), {"x": 1}, '{"x":1,"X":null}'),
    (arrow.struct([]), {}, "{}"),
    (arrow.map_(pa.string(), pa.int64()), [("k", 1), ("l", None)],
     '[{"key":"k","value":1},{"key":"l","value":null}]'),
    (pa.null(), None, "null"),
]  # fmt: skip


def test_a_value_has_the_documented_form(subtests: pytest.Subtests) -> None:
    for data_type, value, text in FORMS:
        with subtests.test(f"{data_type!r:.60} {value!r:.60} {text!r:.60}"):
            assert encode_rows(column([value], data_type)).decode() == f'[{{"a":{text}}}]'
            padded = column([value, None, value], data_type).slice(1)
            assert encode_rows(padded).decode() == f'[{{"a":null}},{{"a":{text}}}]'


def test_names_keep_their_case_and_characters() -> None:
    names = ["a", "A", 'quo"te', "back\\slash", "ümlaut", "a.b", "new\nline", "'", "{}"]
    batch = arrow.RecordBatch.from_arrays([pa.array([index]) for index in range(9)], names=names)
    (row,) = json.loads(encode_rows(batch))
    assert row == dict(zip(names, range(9), strict=True))


def test_no_rows_are_an_empty_array() -> None:
    assert encode_rows(column([], pa.int64())) == b"[]"


@given(batches())
@settings(max_examples=examples(20, 300))
def test_no_text_is_longer_than_was_foretold(batch: pa.RecordBatch) -> None:
    bound = text_bytes_max(batch.to_struct_array())
    assert len(encode_rows(batch)) - len("[]") <= bound


@given(batches(rows_min=1), st.integers(0, 300))
@settings(max_examples=examples(20, 200))
def test_as_many_rows_are_taken_as_fit(batch: pa.RecordBatch, bytes_max: int) -> None:
    encoded = encode_rows_within(batch, bytes_max)
    assert encoded.text == encode_rows(batch.slice(0, encoded.rows))[1:-1]
    assert len(encoded.text) <= bytes_max
    if encoded.rows < batch.num_rows:
        assert len(encode_rows(batch.slice(0, encoded.rows + 1))) - 2 > bytes_max
    forced = encode_rows_within(batch, 0, rows_min=1)
    assert forced.rows == 1


def test_more_than_a_step_is_made_in_steps() -> None:
    count = STEP_BYTES // 100
    batch = column(range(count), pa.int64())
    assert text_bytes_max(batch.to_struct_array()) < STEP_BYTES
    long = arrow.concat_batches([batch] * 3)
    rows = json.loads(encode_rows(long))
    assert [row["a"] for row in rows] == list(range(count)) * 3
    encoded = encode_rows_within(long, 2_000_000)
    assert json.loads(b"[" + encoded.text + b"]") == rows[: encoded.rows]


def test_a_row_that_would_fill_the_memory_is_refused() -> None:
    nulls = pa.nulls(ROW_BYTES_MAX // 4)
    lists = arrow.ListArray.from_arrays(pa.array([0, 1, len(nulls)], pa.int32()), nulls)
    batch = arrow.RecordBatch.from_arrays([lists], names=["a"])
    assert encode_rows(batch.slice(0, 1)) == b'[{"a":[null]}]'
    with pytest.raises(BatchTooLarge) as caught:
        encode_rows(batch)
    assert caught.value.bytes_max == ROW_BYTES_MAX
