import math
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from arrow_strategies import FLAT_TYPES, arrow, batches
from hypothesis import example, given
from hypothesis import strategies as st
from tables import each

from wings_client._rows import batch_of_columns, batch_of_rows
from wings_core.errors import SchemaMismatch


def one(value: Any, data_type: pa.DataType) -> Any:
    """Take one value through a column `x`."""
    batch = batch_of_rows([{"x": value}], pa.schema([pa.field("x", data_type)]))
    return batch.column(0)[0].as_py()


# Python has no nanoseconds, and years from 1 to 9999; pyarrow does not take every zero of a decimal
# with more digits after the point than digits.
PYTHON_TYPES = [
    kind for kind in FLAT_TYPES if not pa.types.is_temporal(kind) and kind != pa.decimal128(4, 6)
]
PYTHON_SCHEMAS = st.lists(st.sampled_from(PYTHON_TYPES), min_size=1, max_size=4).map(
    lambda kinds: pa.schema(
        [
            pa.field(name, nested, nullable=True)
            for index, kind in enumerate(kinds)
            for name, nested in (
                (f"flat{index}", kind),
                (f"list{index}", pa.list_(kind)),
                (f"struct{index}", pa.struct([pa.field("a", kind)])),
                (f"map{index}", pa.map_(pa.string(), kind)),
            )
        ]
    )
)


@given(batches(PYTHON_SCHEMAS))
def test_rows_that_came_from_a_batch_make_the_same_batch(batch: pa.RecordBatch) -> None:
    made = batch_of_rows(batch.to_pylist(), batch.schema)
    assert made.schema == batch.schema
    assert made.to_pylist() == batch.to_pylist()


@given(batches(PYTHON_SCHEMAS))
def test_columns_that_came_from_a_batch_make_the_same_batch(batch: pa.RecordBatch) -> None:
    made = batch_of_columns(batch.to_pydict(), batch.schema)
    assert made.to_pylist() == batch.to_pylist()


def test_times_are_taken_as_the_moments_that_they_are() -> None:
    noon = datetime(2026, 11, 20, 12, tzinfo=timezone(timedelta(hours=3)))
    assert one(noon, arrow.timestamp("us", "UTC")) == noon
    assert one(date(2026, 11, 20), pa.date32()) == date(2026, 11, 20)


def test_an_integer_is_a_float_and_a_whole_float_an_integer() -> None:
    assert one(2, pa.float64()) == 2.0
    assert one(2.0, pa.int64()) == 2


def test_a_float_column_takes_the_nearest_of_a_python_float() -> None:
    assert math.isclose(one(0.1, pa.float32()), 0.1, rel_tol=1e-6)
    assert math.isnan(one(float("nan"), pa.float64()))
    assert math.isnan(one(np.float32("nan"), pa.float32()))
    assert one(np.float32(0.5), pa.float32()) == 0.5


LOSING: list[tuple[Any, pa.DataType]] = [
    (1.5, pa.int64()),
    ("5", pa.int64()),
    (5, pa.string()),
    (True, pa.int64()),
    (1, pa.bool_()),
    (300, pa.int8()),
    ((1 << 53) + 1, pa.float64()),
    (1e300, pa.float32()),
    (65_520.0, pa.float16()),
    (10**400, pa.float64()),
    (Decimal("1" * 38), pa.decimal128(38, 2)),
    (Decimal("1" * 1000), pa.decimal128(38, 2)),
    (int("2" * 38), pa.decimal128(38, 2)),
    (2**32 + 1, pa.decimal32(9, 0)),
    ([Decimal("1" * 38)], pa.list_(pa.decimal128(38, 2))),
    (timedelta.max, arrow.duration("ns")),
    (datetime(2500, 1, 1), arrow.timestamp("ns")),  # noqa: DTZ001 - of no zone, as the column.
    (datetime(2026, 11, 20, 12), pa.date32()),  # noqa: DTZ001 - it is the time that is lost.
    (datetime(2026, 11, 20, 12), arrow.timestamp("us", "UTC")),  # noqa: DTZ001 - which zone?
    (datetime(2026, 11, 20, 12, tzinfo=UTC), arrow.timestamp("us")),
    (7, arrow.timestamp("us", "UTC")),
    ({"a": 1, "b": 2}, pa.struct([("a", pa.int64())])),
    ([1.5], pa.list_(pa.int64())),
    ({"k": 1.5}, pa.map_(pa.string(), pa.int64())),
]


@each(("value", "data_type"), LOSING)
def test_a_value_that_is_not_of_the_columns_type_is_refused_by_row_and_column(
    value: Any, data_type: pa.DataType
) -> None:
    schema = pa.schema([pa.field("x", data_type)])
    with pytest.raises(SchemaMismatch, match=r"row 11: column 'x'") as refused:
        batch_of_rows([{"x": None}, {"x": value}, {"x": None}], schema, first_row=10)
    assert refused.value.column == "x"
    assert refused.value.row == 11


def test_an_absent_key_is_null_and_an_unknown_one_refused() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    assert batch_of_rows([{"a": 1}], schema).to_pylist() == [{"a": 1, "b": None}]
    with pytest.raises(SchemaMismatch, match="row 1: 'c' is not a column of the topic"):
        batch_of_rows([{"a": 1}, {"c": 1}], schema)


def test_an_absent_field_of_a_struct_is_null() -> None:
    struct = pa.struct([("a", pa.int64()), ("b", pa.int64())])
    assert one({"a": 1}, struct) == {"a": 1, "b": None}


def test_a_mapping_is_a_map() -> None:
    assert one({"k": 1, "l": None}, pa.map_(pa.string(), pa.int64())) == [("k", 1), ("l", None)]


def test_a_value_may_be_one_of_arrows() -> None:
    assert one(pa.scalar(7), pa.int64()) == 7
    assert one([pa.scalar("a")], pa.list_(pa.string())) == ["a"]
    with pytest.raises(SchemaMismatch, match="'x'"):
        one(pa.scalar(1.5), pa.int64())


def test_an_array_of_numpy_is_a_list() -> None:
    numpy = pytest.importorskip("numpy")
    assert one(numpy.array([1, 2]), pa.list_(pa.int64())) == [1, 2]


def test_columns_of_different_lengths_are_refused() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    with pytest.raises(SchemaMismatch, match="'b' has 1 values, the first column has 2"):
        batch_of_columns({"a": [1, 2], "b": [1]}, schema)
    assert batch_of_columns({"b": [1]}, schema).to_pylist() == [{"a": None, "b": 1}]
    with pytest.raises(SchemaMismatch, match="'a' is missing"):
        batch_of_columns({}, schema)
    with pytest.raises(SchemaMismatch, match="'c' is not a column"):
        batch_of_columns({"a": [1], "b": [1], "c": [1]}, schema)


ZONES = st.sampled_from([None, UTC, ZoneInfo("UTC"), timezone(timedelta(0), "Z")])
"""Of a column of times: none, and UTC as Python names it."""


@given(zone=ZONES, times=st.lists(st.datetimes(), min_size=1), null=st.booleans())
@example(
    zone=UTC,
    times=[datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)],  # noqa: DTZ001 - set below.
    null=False,
)
def test_times_become_what_pyarrow_makes_of_them(
    zone: tzinfo | None, times: list[datetime], *, null: bool
) -> None:
    data_type = arrow.timestamp("us", None if zone is None else "UTC")
    values: list[datetime | None] = [each.replace(tzinfo=zone) for each in times]
    if null:
        values.append(None)
    rows = batch_of_rows([{"x": value} for value in values], pa.schema([("x", data_type)]))
    assert rows.column(0).equals(pa.array(values, type=data_type))


def test_times_of_several_zones_are_the_moments_that_they_name() -> None:
    noon = datetime(2026, 11, 20, 12, tzinfo=UTC)
    east = noon.astimezone(timezone(timedelta(hours=3)))
    schema = pa.schema([("x", arrow.timestamp("us", "UTC"))])
    found = batch_of_rows([{"x": noon}, {"x": east}], schema)
    assert found.column(0).to_pylist() == [noon, noon]


def test_times_in_folds_and_gaps_of_their_zone_are_the_moments_that_they_name() -> None:
    # Of which Python says that they equal no time of another zone.
    zone = ZoneInfo("America/New_York")
    fold = [datetime(2022, 11, 6, 1, 6, 58, tzinfo=zone, fold=fold) for fold in (0, 1)]
    values = [*fold, datetime(2022, 3, 13, 2, 30, tzinfo=zone)]
    moments = [value.astimezone(UTC) for value in values]
    for column in ("UTC", "Europe/Berlin"):
        at = arrow.timestamp("us", column)
        schema = arrow.schema([("x", at), ("y", arrow.list_(arrow.struct([("at", at)])))])
        rows = [{"x": value, "y": [{"at": value}]} for value in values]
        columns = {name: [row[name] for row in rows] for name in schema.names}
        for found in (batch_of_rows(rows, schema), batch_of_columns(columns, schema)):
            for row, moment in zip(found.to_pylist(), moments, strict=True):
                read = (row["x"], row["y"][0]["at"])
                assert [each.astimezone(UTC) for each in read] == [moment, moment]
