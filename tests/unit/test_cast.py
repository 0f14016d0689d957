import decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from arrow_strategies import arrays, arrow, batches, schemas
from hypothesis import given
from hypothesis import strategies as st
from tables import each

from wings_core.arrow_types import plain_schema
from wings_core.cast import Caster
from wings_core.errors import SchemaMismatch
from wings_core.schemas import check_topic_schema


def cast(array: Any, target: pa.DataType) -> Any:
    """Cast one column `x` to a type, as a push to a topic of one column does."""
    batch = arrow.RecordBatch.from_arrays([array], names=["x"])
    casted = Caster(batch.schema, pa.schema([pa.field("x", target)])).cast(batch)
    assert casted.schema.field("x").type == target
    casted.validate(full=True)
    return casted.column(0)


compute: Any = pc
"""The stubs know neither all functions nor all types that these take."""

UTC = arrow.timestamp("us", "UTC")
DAY = 86_400_000_000

FITTING: list[tuple[str, Any, Any, Any]] = [
    ("narrower integer", pa.array([1, None]), pa.int8(), [1, None]),
    ("unsigned integer", pa.array([1, None], pa.uint64()), pa.int16(), [1, None]),
    ("whole floats", pa.array([1.0, None]), pa.int64(), [1, None]),
    ("integers as floats", pa.array([1 << 53]), pa.float64(), [float(1 << 53)]),
    ("float of a double", pa.array([0.5, float("inf")]), pa.float32(), [0.5, float("inf")]),
    ("half of a double", pa.array([0.5, None]), pa.float16(), [0.5, None]),
    ("half of an integer", pa.array([2048]), pa.float16(), [2048.0]),
    ("decimal of an integer", pa.array([12]), pa.decimal128(4, 2), [decimal.Decimal(12)]),
    (
        "decimal of fewer digits",
        pa.array([decimal.Decimal("1.20")]),
        pa.decimal128(2, 1),
        [decimal.Decimal("1.2")],
    ),
    ("integer of a decimal", pa.array([decimal.Decimal("3.00")]), pa.int8(), [3]),
    ("large string", pa.array(["a", None], pa.large_string()), pa.string(), ["a", None]),
    ("string view", pa.array(["a", None], pa.string_view()), pa.large_string(), ["a", None]),
    ("binary view", pa.array([b"ab"], pa.binary_view()), pa.binary(2), [b"ab"]),
    ("dictionary", pa.array(["a", None, "a"]).dictionary_encode(), pa.string(), ["a", None, "a"]),
    (
        "dictionary of views",
        arrow.DictionaryArray.from_arrays(
            pa.array([1, None, 0], pa.uint32()), pa.array(["a", "b"], pa.string_view())
        ),
        pa.string(),
        ["b", None, "a"],
    ),
    (
        "dictionary of integers",
        pa.array([7, 9, 7]).dictionary_encode(),
        pa.int16(),
        [7, 9, 7],
    ),
    ("runs", arrow_runs := compute.run_end_encode(pa.array([1, 1, 2])), pa.int16(), [1, 1, 2]),
    ("a slice of runs", arrow_runs.slice(1), pa.int64(), [1, 2]),
    ("uuid", pa.array([b"u" * 16], pa.uuid()), pa.binary(16), [b"u" * 16]),
    ("nulls", pa.nulls(2), pa.list_(pa.int64()), [None, None]),
    ("coarser time", pa.array([1_000], arrow.timestamp("ns", "UTC")), UTC, None),
    ("date of midnight", pa.array([DAY], arrow.timestamp("us")), pa.date32(), None),
    ("date of milliseconds", pa.array([86_400_000], pa.date64()), pa.date32(), None),
    ("list of views", pa.array([["a"], None], pa.list_(pa.string_view())), pa.list_(pa.string()),
     [["a"], None]),
    ("large list", pa.array([[1]], pa.large_list(pa.int64())), pa.list_(pa.int32()), [[1]]),
    ("list view", arrow_views := pa.array([[1], None, [], [2, 3]], pa.list_view(pa.int64())),
     pa.list_(pa.int8()), [[1], None, [], [2, 3]]),
    ("a slice of list views", arrow_views.slice(1, 2), pa.list_(pa.int64()), [None, []]),
    ("large list view", pa.array([[1]], pa.large_list_view(pa.int8())), pa.list_(pa.int8()), [[1]]),
    (
        "struct in another order",
        pa.array([{"a": 1, "b": "x"}, None]),
        pa.struct([("b", pa.string()), ("a", pa.int8())]),
        [{"b": "x", "a": 1}, None],
    ),
    (
        "map",
        pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        pa.map_(pa.large_string(), pa.int8()),
        [[("k", 1)]],
    ),
]  # fmt: skip


@each(
    ("array", "target", "values"),
    [pytest.param(*row, id=name) for name, *row in FITTING],
)
def test_values_that_stay_what_they_are_are_cast(
    array: Any, target: Any, values: list[Any] | None
) -> None:
    casted = cast(array, target)
    if values is None:
        assert casted.cast(array.type).equals(array)
    else:
        assert casted.to_pylist() == values


LOSING: list[tuple[str, Any, pa.DataType]] = [
    ("too large an integer", pa.array([300]), pa.int8()),
    ("negative as unsigned", pa.array([-1]), pa.uint64()),
    ("a fraction as integer", pa.array([1.5]), pa.int64()),
    ("nan as integer", pa.array([float("nan")]), pa.int64()),
    ("a double between floats", pa.array([0.1]), pa.float32()),
    ("a double beyond floats", pa.array([1e300]), pa.float32()),
    ("an integer between doubles", pa.array([(1 << 53) + 1]), pa.float64()),
    ("an integer between halves", pa.array([2049]), pa.float16()),
    ("digits of a decimal", pa.array([decimal.Decimal("1.23")]), pa.decimal128(5, 1)),
    ("too large for a decimal", pa.array([1000]), pa.decimal128(4, 2)),
    ("digits for the scale", pa.array([decimal.Decimal("1" * 38)]), pa.decimal128(38, 2)),
    ("bits of a decimal", pa.array([decimal.Decimal(2**32 + 1)]), pa.decimal32(9, 0)),
    ("bits of an integer", pa.array([2**32 + 1]), pa.decimal32(9, 0)),
    ("the greatest as decimal", pa.array([2**64 - 1], pa.uint64()), pa.decimal32(9, 2)),
    ("a time that no day has", pa.array([-(2**31)], pa.time32("s")), pa.time32("ms")),
    ("a day beyond dates", pa.array([1 << 62], arrow.timestamp("s")), pa.date32()),
    ("a day beyond times", pa.array([200_000], pa.date32()), arrow.timestamp("ns")),
    ("a duration beyond units", pa.array([1 << 62], arrow.duration("s")), arrow.duration("ns")),
    ("a time beyond units", pa.array([1 << 62], arrow.timestamp("s")), arrow.timestamp("us")),
    ("a double beyond integers", pa.array([2.0**63]), pa.int64()),
    ("a double beyond halves", pa.array([65_520.0]), pa.float16()),
    ("a fraction of a decimal", pa.array([decimal.Decimal("1.5")]), pa.int64()),
    ("nanoseconds", pa.array([1], arrow.timestamp("ns", "UTC")), UTC),
    ("a time of day", pa.array([DAY + 1], arrow.timestamp("us")), pa.date32()),
    ("a shorter binary", pa.array([b"a"]), pa.binary(2)),
    ("a shorter list", pa.array([[1]]), pa.list_(pa.int64(), 2)),
]


@each(("array", "target"), [pytest.param(*row, id=name) for name, *row in LOSING])
def test_a_value_that_would_be_lost_is_refused_and_names_the_column(
    array: Any, target: pa.DataType
) -> None:
    with pytest.raises(SchemaMismatch, match="column 'x'") as refused:
        cast(array, target)
    assert refused.value.column == "x"


OTHER_KINDS: list[tuple[pa.DataType, pa.DataType]] = [
    (pa.string(), pa.int64()),
    (pa.int64(), pa.string()),
    (pa.binary(), pa.string()),
    (pa.bool_(), pa.int64()),
    (pa.int64(), pa.bool_()),
    (pa.float64(), pa.decimal128(10, 2)),
    (pa.decimal128(10, 2), pa.float64()),
    (arrow.timestamp("us"), UTC),
    (UTC, arrow.timestamp("us")),
    (UTC, pa.date32()),
    (pa.string(), UTC),
    (pa.int64(), UTC),
    (pa.list_(pa.float64()), pa.list_(pa.float32())),
    (pa.list_(pa.decimal128(38, 0)), pa.list_(pa.decimal128(38, 2))),
    (pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64()), ("b", pa.int64())])),
    (pa.struct([("a", pa.int64()), ("b", pa.int64())]), pa.struct([("a", pa.int64())])),
    (pa.dictionary(pa.int8(), pa.string()), pa.int64()),
    (pa.list_(pa.list_view(pa.int64())), pa.list_(pa.list_(pa.int64()))),
]


@each(("source", "target"), OTHER_KINDS)
def test_another_kind_of_value_is_refused_by_its_type_alone(
    source: pa.DataType, target: pa.DataType
) -> None:
    with pytest.raises(SchemaMismatch, match="column 'x'") as refused:
        Caster(pa.schema([pa.field("x", source)]), pa.schema([pa.field("x", target)]))
    assert refused.value.column == "x"


NUMBERS_AND_TIMES = [
    pa.int8(), pa.int16(), pa.int64(), pa.uint8(), pa.uint64(), pa.float16(), pa.float32(),
    pa.float64(), pa.decimal32(9, 2), pa.decimal64(18, 9), pa.decimal128(38, 18),
    pa.decimal128(5, -2), pa.decimal256(76, 0), pa.decimal256(76, 38),
]  # fmt: skip


@given(
    st.sampled_from(NUMBERS_AND_TIMES).flatmap(lambda kind: arrays(kind, 3, nulls=True)),
    st.sampled_from(NUMBERS_AND_TIMES),
)
def test_a_number_is_cast_to_the_same_number_or_not_at_all(array: Any, target: pa.DataType) -> None:
    try:
        casted = cast(array, target)
    except SchemaMismatch:
        return
    assert casted.to_pylist() == array.to_pylist()


def test_texts_of_times_are_told_how_they_are_parsed() -> None:
    texts = pa.record_batch({"a": ["2001/01/01 00:47"]})
    with pytest.raises(SchemaMismatch, match=r"pandas\.to_datetime\(texts, utc=True\)$"):
        Caster(texts.schema, pa.schema([pa.field("a", UTC)]))


@given(batches())
def test_a_batch_of_the_topics_own_schema_is_handed_on_as_it_is(batch: pa.RecordBatch) -> None:
    assert Caster(batch.schema, batch.schema).cast(batch) is batch


@given(batches(), st.randoms())
def test_columns_are_found_by_name_in_any_order_and_whatever_their_metadata(
    batch: Any, random: Any
) -> None:
    order = list(range(batch.num_columns))
    random.shuffle(order)
    fields = [batch.schema.field(index).with_metadata({"k": "v"}) for index in order]
    shuffled = arrow.RecordBatch.from_arrays(
        [batch.column(index) for index in order], schema=pa.schema(fields)
    )
    casted = Caster(shuffled.schema, batch.schema).cast(shuffled)
    assert casted.schema == batch.schema
    assert casted.equals(batch)


def schema(*names: str) -> pa.Schema:
    return pa.schema([pa.field(name, pa.int64()) for name in names])


def test_a_column_that_may_be_null_may_be_missing() -> None:
    required = pa.schema([pa.field("a", pa.int64(), nullable=False), *schema("b", "c")])
    batch = pa.record_batch({"c": [3], "a": [1]})
    assert Caster(batch.schema, required).cast(batch).to_pylist() == [{"a": 1, "b": None, "c": 3}]
    with pytest.raises(SchemaMismatch, match="'a' is missing"):
        Caster(schema("b"), required)
    with pytest.raises(SchemaMismatch, match="'a' is missing"):
        Caster(schema(), schema("a", "b"))


def test_a_column_that_the_topic_does_not_have_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="'c' is not a column of the topic"):
        Caster(schema("a", "c"), schema("a"))


def test_a_column_that_is_there_twice_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="'a' is duplicate"):
        Caster(schema("a", "a"), schema("a"))


# Plain types in the place of encodings. ###########################################################

ENCODED: list[tuple[pa.DataType, pa.DataType]] = [
    (pa.dictionary(pa.int8(), pa.large_string()), pa.large_string()),
    (pa.dictionary(pa.int8(), pa.string_view()), pa.string()),
    (pa.run_end_encoded(pa.int32(), pa.int64()), pa.int64()),
    (pa.string_view(), pa.string()),
    (pa.binary_view(), pa.binary()),
    (pa.uuid(), pa.binary(16)),
    (pa.list_view(pa.string_view()), pa.list_(pa.string())),
    (pa.large_list_view(pa.int8()), pa.large_list(pa.int8())),
    (pa.struct([("a", pa.string_view())]), pa.struct([("a", pa.string())])),
    (pa.map_(pa.string_view(), pa.uuid()), pa.map_(pa.string(), pa.binary(16))),
]


@pytest.mark.parametrize(("encoded", "plain"), ENCODED, ids=str)
def test_an_encoding_becomes_what_it_stands_for(encoded: pa.DataType, plain: pa.DataType) -> None:
    made = plain_schema(pa.schema([pa.field("x", encoded, metadata={"k": "v"})]))
    assert made.equals(pa.schema([pa.field("x", plain)]), check_metadata=True)
    check_topic_schema(made, None)


@given(schemas())
def test_a_plain_schema_stays_what_it_is(schema: pa.Schema) -> None:
    assert plain_schema(schema).equals(schema)


def test_what_may_not_be_null_still_may_not() -> None:
    field = pa.field("x", arrow.list_(pa.field("item", pa.int8(), nullable=False)), nullable=False)
    assert plain_schema(pa.schema([field])) == pa.schema([field])
