from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa
import pytest
from tables import each

from wings_core.errors import InvalidArgument, SchemaMismatch
from wings_spark.types import SchemaConverter, arrow_schema, spark_schema

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
EPOCH = datetime.fromisoformat("1970-01-01")
NAIVE = MOMENT.replace(tzinfo=None)

DICTIONARY: Any = cast("Any", pa.array(["x", None, "x"])).dictionary_encode()
STRUCT = pa.struct([pa.field("u", pa.uint8()), pa.field("at", pa.timestamp("ms", "Asia/Tokyo"))])

COLUMNS: list[tuple[str, Any, str, list[Any]]] = [
    ("uint8", pa.array([255, None], pa.uint8()), "smallint", [255, None]),
    ("uint16", pa.array([65_535], pa.uint16()), "int", [65_535]),
    ("uint32", pa.array([(1 << 32) - 1], pa.uint32()), "bigint", [(1 << 32) - 1]),
    (
        "uint64",
        pa.array([(1 << 64) - 1], pa.uint64()),
        "decimal(20,0)",
        [Decimal((1 << 64) - 1)],
    ),
    ("float16", pa.array([0.5], pa.float16()), "float", [0.5]),
    ("string", pa.array(["a"]), "string", ["a"]),
    ("large_string", pa.array(["a"], pa.large_string()), "string", ["a"]),
    ("string_view", pa.array(["a"], pa.string_view()), "string", ["a"]),
    ("dictionary", DICTIONARY, "string", ["x", None, "x"]),
    ("large_binary", pa.array([b"a"], pa.large_binary()), "binary", [b"a"]),
    ("fixed", pa.array([b"ab"], pa.binary(2)), "binary", [b"ab"]),
    ("date64", pa.array([date(2026, 1, 1)], pa.date64()), "date", [date(2026, 1, 1)]),
    ("zoned", pa.array([MOMENT], pa.timestamp("us", "Asia/Tokyo")), "timestamp", [MOMENT]),
    (
        "nanoseconds",
        pa.array([-1, 1_999], pa.timestamp("ns")),
        "timestamp_ntz",
        [EPOCH - timedelta(microseconds=1), EPOCH + timedelta(microseconds=1)],
    ),
    (
        "milliseconds",
        pa.array([NAIVE.replace(microsecond=678_000)], pa.timestamp("ms")),
        "timestamp_ntz",
        [NAIVE.replace(microsecond=678_000)],
    ),
    ("time", pa.array([time(1, 2, 3)], pa.time32("s")), "time(6)", [time(1, 2, 3)]),
    (
        "duration",
        pa.array([timedelta(days=-1)], pa.duration("ms")),
        "interval day to second",
        [timedelta(days=-1)],
    ),
    (
        "decimal",
        pa.array([Decimal("1.5")], pa.decimal128(7, 2)),
        "decimal(7,2)",
        [Decimal("1.50")],
    ),
    (
        "list",
        pa.array([[1, None], None], pa.large_list(pa.uint8())),
        "array<smallint>",
        [[1, None], None],
    ),
    ("fixed_list", pa.array([[1, 2]], pa.list_(pa.int32(), 2)), "array<int>", [[1, 2]]),
    (
        "struct",
        pa.array([{"u": 7, "at": MOMENT.replace(microsecond=0)}], STRUCT),
        "struct<u:smallint,at:timestamp>",
        [{"u": 7, "at": MOMENT.replace(microsecond=0)}],
    ),
    (
        "map",
        pa.array([[("a", 1)]], pa.map_(pa.large_string(), pa.uint16())),
        "map<string,int>",
        [[("a", 1)]],
    ),
    ("null", pa.nulls(2), "void", [None, None]),
]


@each(
    ("array", "name", "values"),
    [pytest.param(*row, id=name) for name, *row in COLUMNS],
)
def test_a_column_becomes_the_type_of_spark_that_holds_it(
    array: Any, name: str, values: list[Any]
) -> None:
    schema = pa.schema([pa.field("c", array.type)])
    wanted = spark_schema(schema)
    assert wanted["c"].dataType.simpleString() == name
    target = arrow_schema(wanted)
    batch = pa.RecordBatch.from_arrays([array], schema=schema)
    found = SchemaConverter(schema, target).convert(batch)
    found.validate(full=True)
    assert found.schema.equals(target, check_metadata=True)
    assert cast("Any", found).column(0).to_pylist() == values
    # Of no rows and of a slice, too.
    sliced = SchemaConverter(schema, target).convert(batch.slice(len(values) - 1))
    assert cast("Any", sliced).column(0).to_pylist() == values[-1:]
    assert SchemaConverter(schema, target).convert(batch.slice(0, 0)).num_rows == 0


def test_what_fits_is_not_copied() -> None:
    batch = pa.record_batch({"n": pa.array([1, 2]), "s": pa.array(["a", "b"])})
    converter = SchemaConverter(batch.schema, arrow_schema(spark_schema(batch.schema)))
    assert converter.convert(batch) is batch


def test_columns_are_found_by_name_and_constants_are_added() -> None:
    batch = pa.record_batch({"a": pa.array([1, 2]), "b": pa.array(["x", "y"])})
    target = pa.schema({"b": pa.string(), "__topic": pa.string(), "a": pa.int64()})
    found = SchemaConverter(batch.schema, target, {"__topic": "t"}).convert(batch)
    assert found.to_pydict() == {"b": ["x", "y"], "__topic": ["t", "t"], "a": [1, 2]}


def test_a_value_that_would_change_is_an_error_that_names_its_column() -> None:
    batch = pa.record_batch({"n": pa.array([1 << 40])})
    with pytest.raises(SchemaMismatch, match="column 'n'"):
        SchemaConverter(batch.schema, pa.schema({"n": pa.int32()})).convert(batch)
    required = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    nulls = pa.record_batch({"n": pa.array([None], pa.int64())})
    with pytest.raises(SchemaMismatch, match="column 'n' holds nulls"):
        SchemaConverter(nulls.schema, required).convert(nulls)


def test_a_type_that_cannot_be_read_as_another_is_an_error_before_any_row() -> None:
    with pytest.raises(SchemaMismatch, match="column 'n' is of type string"):
        SchemaConverter(pa.schema({"n": pa.string()}), pa.schema({"n": pa.int32()}))
    with pytest.raises(SchemaMismatch, match="no column 'm'"):
        SchemaConverter(pa.schema({"n": pa.string()}), pa.schema({"m": pa.string()}))


@each("data_type", [pa.decimal256(60, 2), pa.month_day_nano_interval()])
def test_a_type_that_spark_lacks_is_an_error_that_names_the_way_out(data_type: pa.DataType) -> None:
    with pytest.raises(InvalidArgument, match=r"column 'c'.*with the option 'columns'"):
        spark_schema(pa.schema([pa.field("c", data_type)]))


@each(
    "data_type",
    [
        pa.timestamp("s"),
        pa.timestamp("ms", "UTC"),
        pa.duration("ms"),
        pa.list_(pa.timestamp("ms")),
    ],
)
def test_a_time_that_spark_has_no_room_for_is_an_error_and_not_another_time(
    data_type: pa.DataType,
) -> None:
    never: Any = (1 << 63) - 1  # As is often written for what never ends.
    array: Any = pa.array([[never]] if pa.types.is_list(data_type) else [never], data_type)
    batch = pa.RecordBatch.from_arrays([array], ["until"])
    target = arrow_schema(spark_schema(batch.schema))
    with pytest.raises(SchemaMismatch, match="column 'until' holds what Spark cannot"):
        SchemaConverter(batch.schema, target).convert(batch)
