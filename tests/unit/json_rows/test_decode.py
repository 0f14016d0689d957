"""What rows must be to be taken, and what is said of those that are not."""

import json
from decimal import Context
from typing import Any

import pyarrow as pa
import pytest
from arrow_strategies import FLAT_TYPES, batches
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from wings_core.errors import InvalidArgument, SchemaMismatch
from wings_core.json_rows import decode_rows, encode_rows
from wings_core.schemas import check_topic_schema

# pyarrow's stubs know only some of the arguments that its factories take.
arrow: Any = pa

GOOD = '{"a": null}'


def schema_of(data_type: Any, *, nullable: bool = True) -> Any:
    return arrow.schema([pa.field("a", data_type, nullable)])


def decoded(data_type: Any, text: str) -> Any:
    """The value of column `a` in a row where it is this JSON text."""
    batch = decode_rows(f'[{{"a":{text}}}]'.encode(), schema_of(data_type))
    return batch.column(0)[0].as_py()


OTHER_FORMS = [
    (pa.float64(), "1", "1.0"),
    (pa.float64(), "-0", "-0.0"),
    (pa.float64(), "100", "1e2"),
    (pa.int64(), "-0", "0"),
    (arrow.timestamp("us", "UTC"), '"2026-11-20T12:00:00Z"', '"2026-11-20T12:00:00.000000Z"'),
    (arrow.timestamp("us", "UTC"), '"2026-11-20T14:00:00+02:00"',
     '"2026-11-20T12:00:00.000000Z"'),
    (arrow.timestamp("s"), '"2026-11-20T12:00:00"', '"2026-11-20T12:00:00.000000"'),
    (arrow.timestamp("ms"), '"2026-11-20T12:00:00.1"', '"2026-11-20T12:00:00.100000000"'),
    (pa.time32("ms"), '"12:00:00"', '"12:00:00.000"'),
    (arrow.duration("s"), '"PT5S"', '"PT5.000000S"'),
    (arrow.decimal128(10, 2), '"1.5"', '"1.50"'),
    (arrow.decimal128(10, 2), '"15E-1"', '"1.50"'),
    (arrow.decimal128(10, 2), '"1.5000"', '"1.50"'),
    (arrow.decimal128(38, 2), f'"{"0" * 90}1.5{"0" * 90}"', '"1.50"'),
    (arrow.decimal128(38, 2), f'"{"0" * 90}15e-1"', '"1.50"'),
    (arrow.decimal128(38, 2), '"0e999"', '"0.00"'),
    (arrow.decimal128(38, 2), f'"-{"1" * 36}"', f'"-{"1" * 36}.00"'),
    (arrow.decimal128(38, 2), f'"{"1" * 36}00e-2"', f'"{"1" * 36}.00"'),
    (arrow.decimal128(5, -2), '"1.5e6"', '"1500000"'),
    (arrow.decimal128(4, 6), f'"0.001{"0" * 90}"', '"0.001"'),
    (pa.float64(), "9007199254740993", "9007199254740992"), (pa.float64(), "1e-400", "0.0"),
    (pa.float32(), "0.1", "0.100000001"), (pa.float16(), "65519", "65504"),
]  # fmt: skip


def test_other_ways_to_write_a_value_are_taken(subtests: pytest.Subtests) -> None:
    for data_type, text, same_as in OTHER_FORMS:
        with subtests.test(f"{data_type!r:.60} {text!r:.60} {same_as!r:.60}"):
            assert repr(decoded(data_type, text)) == repr(decoded(data_type, same_as))


BAD = [
    (pa.int64(), '"1"'), (pa.int64(), "1.5"), (pa.int64(), "1.0"), (pa.int64(), "1e2"),
    (pa.int64(), "true"), (pa.int64(), "9223372036854775808"), (pa.int64(), "{}"),
    (pa.int8(), "128"), (pa.int8(), "-129"), (pa.uint8(), "-1"), (pa.uint64(), str(1 << 64)),
    (pa.float64(), '"1"'), (pa.float64(), "1e999"), (pa.float64(), "NaN"),
    (pa.float64(), "Infinity"), (pa.float64(), "true"), (pa.float32(), "1e39"),
    (pa.float16(), "65520"),
    (pa.bool_(), "1"), (pa.bool_(), '"true"'), (pa.null(), "1"), (pa.null(), "false"),
    (pa.string(), "1"), (pa.string(), "[]"), (pa.string(), r'"\ud800"'),
    (pa.large_string(), "true"),
    (pa.binary(), '"QQ"'), (pa.binary(), '"QR=="'), (pa.binary(), '"Q Q="'),
    (pa.binary(), '"QQ==QQ=="'), (pa.binary(), '"-_-_"'), (pa.binary(), "[1]"),
    (pa.binary(), '"=QQ="'), (pa.binary(2), '"QQ=="'), (pa.binary(2), '"QUFB"'),
    (arrow.decimal128(5, 2), "1.5"), (arrow.decimal128(5, 2), '"1.555"'),
    (arrow.decimal128(5, 2), '"1000"'), (arrow.decimal128(5, 2), '"+1"'),
    (arrow.decimal128(5, 2), '"1."'), (arrow.decimal128(5, 2), '" 1"'),
    (arrow.decimal128(5, 2), '"NaN"'), (arrow.decimal128(5, 2), '"1e9999"'),
    (arrow.decimal128(38, 2), f'"{"1" * 38}"'), (arrow.decimal128(38, 2), f'"{"1" * 1000}"'),
    (arrow.decimal128(38, 0), f'"{"1" * 40}"'), (arrow.decimal128(38, 0), f'"{"1" * 77}"'),
    (arrow.decimal128(38, 2), '"1e37"'), (arrow.decimal128(4, 6), '"0.01"'),
    (arrow.decimal128(38, 2), '"1e-3"'), (arrow.decimal128(5, -2), '"150"'),
    (arrow.decimal128(5, -2), '"100.1"'), (arrow.decimal256(76, 0), f'"{"1" * 77}"'),
    (arrow.list_(arrow.decimal128(38, 2)), f'["{"1" * 38}"]'),
    (pa.float32(), "1e400"), (pa.float64(), "-1e400"), (pa.float16(), "1e400"),
    (arrow.timestamp("us", "UTC"), '"2026-11-20T12:00:00"'),
    (arrow.timestamp("us", "UTC"), '"2026-11-20T12:00:00+0200"'),
    (arrow.timestamp("us", "UTC"), '"2026-11-20"'), (arrow.timestamp("us", "UTC"), "0"),
    (arrow.timestamp("us", "UTC"), '"2026-02-30T12:00:00Z"'),
    (arrow.timestamp("us"), '"2026-11-20T12:00:00Z"'),
    (arrow.timestamp("us"), '"2026-11-20T12:00:00.1234567"'),
    (arrow.timestamp("s"), '"2026-11-20T12:00:00.5"'),
    (arrow.timestamp("ms"), '"2026-11-20T12:00:00.0001"'),
    (arrow.timestamp("us"), '"2026-11-20 12:00:00"'), (arrow.timestamp("us"), '"now"'),
    (arrow.timestamp("us"), '"2026-11-20T24:00:00"'),
    (arrow.timestamp("us"), '"+294248-01-01T00:00:00"'),
    (arrow.timestamp("ns"), '"2262-04-12T00:00:00"'),
    (arrow.timestamp("ns"), '"1677-09-21T00:12:43.145224191"'),
    (arrow.timestamp("s"), '"+292277026596-12-04T15:30:08"'),
    (pa.date32(), '"2026-11-20T00:00:00"'), (pa.date32(), '"20261120"'),
    (pa.date32(), '"2026-13-01"'), (pa.date32(), '"+99999999-01-01"'), (pa.date32(), "20777"),
    (pa.time32("s"), '"12:00"'), (pa.time32("s"), '"12:00:00.5"'), (pa.time32("s"), '"24:00:00"'),
    (pa.time64("us"), '"12:00:00.0000001"'), (pa.time64("us"), '"12:00:60"'),
    (arrow.duration("us"), '"PT1M"'), (arrow.duration("us"), '"1s"'),
    (arrow.duration("us"), '"PT0.0000001S"'), (arrow.duration("ns"), '"PT9223372037S"'),
    (arrow.duration("us"), "5"),
    (pa.month_day_nano_interval(), '{"months": 1, "days": 2}'),
    (pa.month_day_nano_interval(), '{"months": 2147483648, "days": 2, "nanoseconds": 3}'),
    (pa.month_day_nano_interval(), "[1, 2, 3]"),
    (arrow.list_(pa.int64()), "1"), (arrow.list_(pa.int64()), '["1"]'),
    (arrow.list_(pa.int64()), "{}"), (arrow.list_(pa.int64(), 2), "[1]"),
    (arrow.list_(pa.int64(), 2), "[1, 2, 3]"),
    (arrow.list_(pa.field("item", pa.int64(), False)), "[null]"),
    (arrow.struct([("x", pa.int64())]), '{"y": 1}'),
    (arrow.struct([("x", pa.int64())]), '{"x": 1, "x": 2}'),
    (arrow.struct([("x", pa.int64())]), '{"X": 1}'), (arrow.struct([("x", pa.int64())]), "[]"),
    (arrow.struct([pa.field("x", pa.int64(), False)]), "{}"),
    (arrow.struct([pa.field("x", pa.int64(), False)]), '{"x": null}'),
    (arrow.map_(pa.string(), pa.int64()), '{"k": 1}'),
    (arrow.map_(pa.string(), pa.int64()), "[null]"),
    (arrow.map_(pa.string(), pa.int64()), '[{"value": 1}]'),
    (arrow.map_(pa.string(), pa.int64()), '[{"key": null, "value": 1}]'),
    (arrow.map_(pa.string(), pa.int64()), '[{"key": "k", "value": "1"}]'),
    (arrow.map_(pa.string(), pa.int64()), '[{"key": "k", "value": 1, "more": 1}]'),
    (arrow.map_(pa.string(), pa.int64()), '[{"key": "k", "value": 1}, {"key": "k", "value": 1}]'),
    (arrow.list_(arrow.map_(pa.float64(), pa.int64())), '[[{"key": 0}, {"key": -0.0}]]'),
]  # fmt: skip


DECIMALS = [kind for kind in FLAT_TYPES if pa.types.is_decimal(kind)]


@given(
    st.sampled_from(DECIMALS),
    st.sampled_from(["", "-"]),
    st.from_regex(r"0{0,3}[0-9]{1,80}(\.[0-9]{1,80})?(e[+-]?[0-9]{1,2})?", fullmatch=True),
)
def test_a_decimal_is_what_its_text_says_or_refused(kind: Any, sign: str, text: str) -> None:
    exact = Context(prec=1000)
    unscaled = exact.create_decimal(sign + text).scaleb(kind.scale, exact)
    holds = unscaled == unscaled.to_integral_value() and abs(unscaled) < 10**kind.precision
    try:
        found = decoded(kind, json.dumps(sign + text))
    except SchemaMismatch:
        assert not holds
    else:
        assert holds
        assert found == exact.create_decimal(sign + text)


def test_a_bad_value_is_refused_by_row_and_column(subtests: pytest.Subtests) -> None:
    for data_type, text in BAD:
        with subtests.test(f"{data_type!r:.60} {text!r:.60}"):
            rows = f'[{GOOD}, {{}}, {{"a": {text}}}, {{"a": {text}}}, {GOOD}]'.encode()
            with pytest.raises(SchemaMismatch) as caught:
                decode_rows(rows, schema_of(data_type))
            assert caught.value.row == 2
            assert caught.value.column.startswith("a")
            assert caught.value.message.startswith(f"row 2: column '{caught.value.column}': ")


PATHS = [
    ('{"b": 1}', "b", "there is no such field; there is a"),
    ('{"a": {"x": [{"y": 1, "z": 2}]}}', "a.x[0].z", "there is no such field; there is y"),
    ('{"a": {"x": [{"y": 1}, {"y": "1"}]}}', "a.x[1].y",
     'expected an integer in range (int64), got "1"'),
    ('{"a": {"x": [{}, null, {"y": null}]}}', "a.x[0].y", "the field is required"),
    ('{"a": {"x": [null, {"y": null}]}}', "a.x[1].y", "the field must not be null"),
    ('{"a": {"x": 5}}', "a.x", "expected an array, got 5"),
    ('{"a": {"x": {"y": [1, 2.50, null]}}}', "a.x",
     'expected an array, got {"y": [1, 2.50, null]}'),
    ('{"a": {"x": {"y": ' + '[' * 900 + ']' * 900 + '}}}', "a.x",
     'expected an array, got {"y": [[[...]]]}'),
    ('{"a": 5}', "a", "expected an object, got 5"),
    ('{"a": null, "a": null}', "a", "duplicate field"),
    ('{"a": {"x": [{"y": 1, "y": 1}]}}', "a.x[0].y", "duplicate field"),
]  # fmt: skip


def test_the_path_leads_to_the_bad_value(subtests: pytest.Subtests) -> None:
    for row, column, what in PATHS:
        with subtests.test(f"{row!r:.60} {column!r:.60} {what!r:.60}"):
            inner = arrow.struct([pa.field("y", pa.int64(), False)])
            schema = schema_of(arrow.struct([pa.field("x", arrow.list_(inner))]))
            with pytest.raises(SchemaMismatch) as caught:
                decode_rows(f"[{row}]".encode(), schema)
            assert caught.value.message == f"row 0: column {column!r}: {what}"


def test_a_time_of_another_form_is_told_the_way_on() -> None:
    for value, hint in (('"2001/01/01"', True), ("20010101", False)):
        with pytest.raises(SchemaMismatch) as caught:
            decode_rows(f'[{{"a": {value}}}]'.encode(), schema_of(pa.timestamp("us")))
        text = "; a text of another form fits a column of type string, which SQL parses"
        assert caught.value.message.endswith(f"got {value}{text * hint}")


@pytest.mark.parametrize(("row", "got"), [("5", "5"), ("null", "null"), ("[]", "[]")])
def test_a_row_that_is_no_object_is_refused(row: str, got: str) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        decode_rows(f"[{GOOD}, {row}]".encode(), schema_of(pa.int64()))
    assert caught.value.message == f"row 1: expected an object, got {got}"


NOT_ARRAYS = [
    b"", b"5", b"{}", b"null", b"[", b"[{}", b"[{}}", b"[{},]", b"[,{}]", b"[{}] x",
    b'[{"a":1,}]',
    b"[{}]}", b'[]}{"rows":[]', b'[],"rows":[]', b'[{"a": 01}]', b"[{a: 1}]", b"[{'a': 1}]",
    b'[{"a": \xff}]', b'[{"a": "\xff"}]', b'[{"a": "\n"}]', b'[{"a": 1}] []', b"[{} {}]",
    b'[{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]",
]  # fmt: skip


def test_what_is_no_json_array_is_an_invalid_argument(subtests: pytest.Subtests) -> None:
    for data in NOT_ARRAYS:
        with subtests.test(f"{data!r:.60}"):
            with pytest.raises(InvalidArgument) as caught:
                decode_rows(data, schema_of(pa.string()))
            assert not isinstance(caught.value, SchemaMismatch)


def test_absent_and_null_are_the_same_where_nulls_may_be() -> None:
    schema = arrow.schema([("a", pa.int64()), ("b", arrow.struct([("x", pa.string())]))])
    batch = decode_rows(b'[{}, {"a": null, "b": null}, {"b": {}}, {"b": {"x": null}}]', schema)
    assert batch.column(0).null_count == 4
    assert batch.column(1).to_pylist() == [None, None, {"x": None}, {"x": None}]


@pytest.mark.parametrize(
    ("row", "what"), [("{}", "is required"), ('{"a": null}', "must not be null")]
)
def test_a_null_where_none_may_be_is_refused(row: str, what: str) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        decode_rows(f'[{{"a": 1}}, {row}]'.encode(), schema_of(pa.int64(), nullable=False))
    assert caught.value.message == f"row 1: column 'a': the field {what}"


def test_columns_come_in_the_order_of_the_schema() -> None:
    schema = arrow.schema([("b", pa.int64()), ("a", pa.int64()), ("A", pa.int64())])
    batch = decode_rows(b'[{"A": 3, "a": 2, "b": 1}, {"a": 5}]', schema)
    assert batch.schema.equals(schema)
    assert [column.to_pylist() for column in batch.columns] == [[1, None], [2, 5], [3, None]]


def test_an_empty_array_is_a_batch_of_no_rows() -> None:
    batch = decode_rows(b" [ ] ", schema_of(pa.int64(), nullable=False))
    assert batch.num_rows == 0


def test_names_of_any_characters_are_matched_exactly() -> None:
    names = ["a b", 'quo"te', "back\\slash", "ümlaut", "new\nline", "{", "𝄞"]
    schema = arrow.schema([(name, pa.int64()) for name in names])
    escaped = json.dumps([dict.fromkeys(names, 1)]).encode()
    plain = json.dumps([dict.fromkeys(names, 1)], ensure_ascii=False).encode()
    for data in (escaped, plain):
        assert decode_rows(data, schema).to_pylist() == [dict.fromkeys(names, 1)]


def test_a_column_is_filled_where_a_row_has_none() -> None:
    schema = arrow.schema([pa.field("k", pa.binary(), False), pa.field("n", pa.int64())])
    batch = decode_rows(b'[{"n": 1}, {"k": "Yg==", "n": 2}]', schema, {"k": '"YQ=="'})
    assert batch.column(0).to_pylist() == [b"a", b"b"]


def test_the_first_of_many_rows_is_named() -> None:
    rows = [{"a": index} for index in range(10_000)]
    rows[7_654]["a"] = "no"  # pyright: ignore[reportArgumentType]
    rows[9_999]["a"] = "no"  # pyright: ignore[reportArgumentType]
    with pytest.raises(SchemaMismatch) as caught:
        decode_rows(json.dumps(rows).encode(), schema_of(pa.int64()))
    assert caught.value.row == 7_654


# What is encoded is decoded to the same. ##########################################################


@given(batches())
@settings(max_examples=examples(20, 300))
def test_what_is_written_is_read_back_equal(batch: pa.RecordBatch) -> None:
    check_topic_schema(batch.schema, None)
    data = encode_rows(batch)
    rows = json.loads(data, parse_constant=lambda name: 1 / 0)
    assert [list(row) for row in rows] == [batch.schema.names] * batch.num_rows
    decoded = decode_rows(data, batch.schema)
    decoded.validate(full=True)
    assert decoded.schema.equals(batch.schema)
    # Compared as JSON too, as -0.0 equals 0.0.
    assert decoded.equals(batch)
    assert encode_rows(decoded) == data
