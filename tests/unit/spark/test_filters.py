"""Pushed filters mean on the server what they mean in Spark.

The server's own evaluation of the SQL is held against Spark's rules for these filters, written out
below: three-valued logic, NaN equal to itself and above all numbers, text compared by its bytes.
"""

import math
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples
from pyspark.sql import datasource as spark
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from wings_core.fetch.filter import RowFilter
from wings_spark.filters import FILTERS_MAX, SQL_LENGTH_MAX, pushable
from wings_spark.types import spark_schema

MOMENTS = st.datetimes(datetime.fromisoformat("1900-01-01"), datetime.fromisoformat("2200-01-01"))
DECIMALS = st.decimals(Decimal("-99999.99"), Decimal("99999.99"), places=2)
LETTERS = st.characters(exclude_categories=["Cs"])
TEXTS = st.text(LETTERS, max_size=5) | st.text("ab'\"\\%_", max_size=4)


def _zoned(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC)


def _seconds(moment: datetime) -> datetime:
    return moment.replace(microsecond=0)


KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int8": (pa.int8(), st.integers(-128, 127)),
    "int64": (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-3, 3)),
    "uint32": (pa.uint32(), st.integers(0, (1 << 32) - 1) | st.integers(0, 3)),
    "uint64": (pa.uint64(), (st.integers(0, (1 << 64) - 1) | st.integers(0, 3)).map(Decimal)),
    "float": (pa.float32(), st.floats(width=32) | st.sampled_from([0.0, -0.0, math.nan])),
    "double": (pa.float64(), st.floats() | st.sampled_from([0.0, -0.0, math.nan, 0.1])),
    "decimal": (pa.decimal128(7, 2), DECIMALS),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), TEXTS),
    "large_string": (pa.large_string(), TEXTS),
    "binary": (pa.binary(), st.binary(max_size=3)),
    "date": (pa.date32(), st.dates(date(1, 1, 1), date(9999, 12, 31))),
    "timestamp": (pa.timestamp("us", "UTC"), MOMENTS.map(_zoned)),
    "timestamp_s": (pa.timestamp("s", "Europe/Zurich"), MOMENTS.map(_seconds).map(_zoned)),
    "timestamp_ntz": (pa.timestamp("us"), MOMENTS),
    "timestamp_ntz_ms": (pa.timestamp("ms"), MOMENTS.map(_seconds)),
}

ORDERED = (
    spark.EqualTo,
    spark.EqualNullSafe,
    spark.GreaterThan,
    spark.GreaterThanOrEqual,
    spark.LessThan,
    spark.LessThanOrEqual,
)
TEXTUAL = (spark.StringStartsWith, spark.StringEndsWith, spark.StringContains)


def key(value: Any) -> Any:
    """Return what Spark orders a value by."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value.encode() if isinstance(value, str) else value


def compare(kind: type[spark.Filter], one: Any, other: Any) -> bool:
    a, b = key(one), key(other)
    results: dict[type[spark.Filter], bool] = {
        spark.EqualTo: a == b,
        spark.EqualNullSafe: a == b,
        spark.GreaterThan: a > b,
        spark.GreaterThanOrEqual: a >= b,
        spark.LessThan: a < b,
        spark.LessThanOrEqual: a <= b,
    }
    return results[kind]


def holds(found: spark.Filter, value: Any) -> bool | None:
    """Return what Spark says of a value; None is SQL's null."""
    if isinstance(found, spark.Not):
        inner = holds(found.child, value)
        return None if inner is None else not inner
    if isinstance(found, spark.IsNull):
        return value is None
    if isinstance(found, spark.IsNotNull):
        return value is not None
    if isinstance(found, spark.EqualNullSafe) and value is None:
        return False
    if value is None:
        return None
    if isinstance(found, spark.In):
        if any(each is not None and key(each) == key(value) for each in found.value):
            return True
        return None if None in found.value else False
    wanted = cast("Any", found).value
    if isinstance(found, TEXTUAL):
        test: Callable[[str], bool] = {
            spark.StringStartsWith: value.startswith,
            spark.StringEndsWith: value.endswith,
            spark.StringContains: value.__contains__,
        }[type(found)]
        return test(wanted)
    return compare(type(found), value, wanted)


@st.composite
def cases(draw: st.DrawFn) -> tuple[pa.DataType, list[Any], list[spark.Filter]]:
    data_type, values = KINDS[draw(st.sampled_from(list(KINDS)))]
    rows = draw(st.lists(st.none() | values, max_size=12))
    literals = values | st.sampled_from([row for row in rows if row is not None] or [draw(values)])
    path = ("the \"co'l",)
    leaves: list[st.SearchStrategy[spark.Filter]] = [
        st.builds(kind, st.just(path), literals) for kind in ORDERED
    ]
    leaves += [st.just(spark.IsNull(path)), st.just(spark.IsNotNull(path))]
    in_lists = st.lists(st.none() | literals, min_size=1, max_size=4).map(tuple)
    leaves.append(st.builds(spark.In, st.just(path), in_lists))
    if pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
        leaves += [st.builds(kind, st.just(path), TEXTS) for kind in TEXTUAL]
    leaf = st.one_of(leaves)
    filters = draw(st.lists(leaf | leaf.map(spark.Not), min_size=1, max_size=3))
    return data_type, rows, filters


@settings(max_examples=examples(75, 300))
@given(cases())
def test_the_server_and_spark_agree(
    case: tuple[pa.DataType, list[Any], list[spark.Filter]],
) -> None:
    data_type, rows, filters = case
    stored = pa.schema([pa.field("the \"co'l", data_type)])
    pushed, rest = pushable(filters, spark_schema(stored), stored)
    # What cannot be written in a filter stays with Spark; nothing else does.
    for each in rest:
        assert "\\x00" in repr(each)
    taken = [each for each in filters if each not in rest]
    if pushed is None:
        assert not taken
        return
    # Spark has decimals for uint64.
    whole = pa.types.is_uint64(data_type)
    values = [int(row) if whole and row is not None else row for row in rows]
    batch = pa.RecordBatch.from_arrays([pa.array(values, cast("Any", data_type))], schema=stored)
    row_filter = RowFilter.compile(pushed, stored)
    passed = row_filter.mask(batch).to_pylist()
    assert passed == [all(holds(each, row) is True for each in taken) for row in rows]


N = ("n",)


INT64 = pa.int64()


def left(found: spark.Filter, data_type: pa.DataType = INT64, wanted: Any = None) -> bool:
    stored = pa.schema([pa.field("n", data_type)])
    schema = wanted or spark_schema(stored)
    pushed, rest = pushable([found], schema, stored)
    assert (pushed is None) == bool(rest)
    return bool(rest)


def test_what_would_not_mean_the_same_is_left_to_spark() -> None:
    assert not left(spark.EqualTo(N, 1))
    assert left(spark.EqualTo(("n", "field"), 1))
    assert left(spark.EqualTo(("__offset",), 1))
    assert left(spark.EqualTo(N, "1"))
    assert left(spark.EqualTo(N, True))
    assert left(spark.In(N, ()))
    assert left(spark.EqualTo(N, 1), wanted=StructType([StructField("n", IntegerType())]))
    assert left(spark.EqualTo(N, 1), pa.int32(), StructType([StructField("n", LongType())]))
    # Spark sees nanoseconds cut to microseconds.
    assert left(spark.EqualTo(N, datetime.fromisoformat("2026-01-01")), pa.timestamp("ns"))
    assert left(spark.EqualTo(N, datetime.fromisoformat("2026-01-01")), pa.timestamp("us", "UTC"))
    assert left(spark.EqualTo(N, 0.5), pa.float16())
    assert left(spark.EqualTo(N, Decimal("0.125")), pa.decimal128(7, 2))
    assert left(spark.EqualTo(N, "a\0b"), pa.string())


def test_columns_that_differ_in_case_alone_are_left_to_spark() -> None:
    stored = pa.schema({"n": pa.int64(), "N": pa.int64(), "m": pa.int64()})
    filters = [spark.EqualTo(N, 1), spark.EqualTo(("m",), 1)]
    pushed, rest = pushable(filters, spark_schema(stored), stored)
    assert pushed is not None
    assert rest == filters[:1]


@pytest.mark.parametrize("values", [tuple(range(100_000)), ("x" * SQL_LENGTH_MAX,)])
def test_what_is_longer_than_the_server_takes_is_left_to_spark(values: tuple[Any, ...]) -> None:
    assert left(spark.In(N, values), pa.string() if isinstance(values[0], str) else pa.int64())


def test_as_many_filters_are_pushed_as_the_server_takes() -> None:
    stored = pa.schema({"n": pa.int64()})
    filters = [spark.Not(spark.EqualTo(N, number)) for number in range(2_000)]
    pushed, rest = pushable(filters, spark_schema(stored), stored)
    assert pushed is not None
    assert len(rest) == len(filters) - FILTERS_MAX
    RowFilter.compile(f"({pushed})", stored)


def test_midnight_of_a_zone_is_one_moment_in_any() -> None:
    stored = pa.schema([pa.field("n", pa.timestamp("us", "Asia/Tokyo"))])
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    pushed, _ = pushable([spark.EqualTo(N, moment)], spark_schema(stored), stored)
    assert pushed is not None
    rows = pa.array([moment, moment + timedelta(microseconds=1)], stored.field("n").type)
    batch = pa.RecordBatch.from_arrays([rows], schema=stored)
    assert RowFilter.compile(pushed, stored).mask(batch).to_pylist() == [True, False]
