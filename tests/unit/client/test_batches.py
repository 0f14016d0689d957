import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import ModuleType
from typing import Any, cast

import pandas  # pyright: ignore[reportMissingTypeStubs]
import polars
import pyarrow as pa
import pytest
from arrow_strategies import arrow
from tables import each

from wings_client._batches import BATCH_PARTITIONS_MAX, Cut, to_batches
from wings_client._model import Topic
from wings_client._schemas import schema_of
from wings_core.errors import InvalidArgument, InvalidSchema, SchemaMismatch

SCHEMA = pa.schema([("key", pa.string()), ("n", pa.int64())])
ROWS = [{"key": "a", "n": 1}, {"key": "b", "n": 2}, {"key": "a", "n": 3}]


def table(rows: int) -> Any:
    return pa.table({"key": ["k"] * rows, "n": arrow.arange(0, rows)})


def rows_of(data: Any, cut: Cut | None = None) -> list[dict[str, Any]]:
    made = list(to_batches(data, SCHEMA, cut or Cut()))
    assert all(batch.schema == SCHEMA for batch in made)
    return [row for batch in made for row in batch.to_pylist()]


class OneArray:
    """What hands on a single batch by the PyCapsule interface."""

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return arrow.RecordBatch.from_pylist(ROWS, SCHEMA).__arrow_c_array__(requested_schema)


def whole() -> Any:
    return pa.Table.from_pylist(ROWS)


def pandas_frame() -> Any:
    return pandas.DataFrame(ROWS, index=[7, 8, 9])


def polars_frame() -> Any:
    return polars.DataFrame(ROWS)


FORMS: dict[str, Callable[[], Any]] = {
    "table": whole,
    "batch": lambda: whole().to_batches()[0],
    "reader": lambda: whole().to_reader(max_chunksize=2),
    "list of batches": lambda: whole().to_batches(max_chunksize=2),
    "iterator of batches": lambda: iter(whole().to_batches(max_chunksize=2)),
    "iterable of tables": lambda: (part for part in [whole().slice(0, 1), whole().slice(1)]),
    "rows": lambda: ROWS,
    "iterator of rows": lambda: iter(ROWS),
    "rows and batches": lambda: [ROWS[0], whole().slice(1, 1), ROWS[2]],
    "columns": lambda: {"n": [1, 2, 3], "key": ["a", "b", "a"]},
    "columns of Arrow": lambda: {"key": whole()["key"], "n": pa.array([1, 2, 3], pa.int8())},
    "columns of pandas": lambda: dict(pandas_frame().items()),
    "columns of Polars": lambda: {each.name: each for each in polars_frame()},
    "pandas": pandas_frame,
    "pandas with a named index": lambda: pandas_frame().set_index("key"),
    "pandas categories": lambda: pandas_frame().astype({"key": "category"}),
    "polars": polars_frame,
    "polars categories": lambda: polars_frame().cast({"key": polars.Categorical}),
    "an Arrow array": OneArray,
}


@each("form", FORMS)
def test_every_form_of_data_becomes_the_same_rows(form: str) -> None:
    assert rows_of(FORMS[form]()) == ROWS


def test_columns_of_arrow_are_cast_where_no_value_changes() -> None:
    encoded: Any = pa.array(["a", None]).dictionary_encode()
    assert rows_of({"key": encoded, "n": [1, 2]}) == [{"key": "a", "n": 1}, {"key": None, "n": 2}]
    with pytest.raises(SchemaMismatch, match="'n'"):
        rows_of({"key": encoded, "n": pa.array([1.5, 2.0])})
    with pytest.raises(SchemaMismatch, match="'n' has type string"):
        rows_of({"key": encoded, "n": pa.array(["1", "2"])})


def test_levels_of_an_index_that_have_a_name_are_columns() -> None:
    summed = pandas.DataFrame(ROWS).groupby("key").sum()
    assert rows_of(summed) == [{"key": "a", "n": 4}, {"key": "b", "n": 2}]
    levels = pandas.MultiIndex.from_arrays([["a"], [0]], names=["key", None])
    frame = pandas.DataFrame({"n": [1]}, index=levels)
    assert schema_of(frame).names == ["n", "key"]
    assert rows_of(frame) == [{"key": "a", "n": 1}]
    with pytest.raises(SchemaMismatch, match=r"index 'day' is not a column .*reset_index"):
        rows_of(frame.rename_axis(["key", "day"]))
    with pytest.raises(SchemaMismatch, match="index 'n' is a column too"):
        rows_of(frame.rename_axis(["key", "n"]))


def test_missing_values_of_pandas_are_nulls() -> None:
    frame = pandas.DataFrame({"key": ["a", None], "n": [1, float("nan")]})
    assert frame.dtypes["n"] == "float64"
    assert rows_of(frame) == [{"key": "a", "n": 1}, {"key": None, "n": None}]
    assert rows_of(dict(frame.items())) == [{"key": "a", "n": 1}, {"key": None, "n": None}]
    objects = {"key": frame["key"].astype(object), "n": pandas.Series([1, None], dtype="Int64")}
    assert rows_of(objects) == [{"key": "a", "n": 1}, {"key": None, "n": None}]


def test_rows_are_taken_while_another_thread_is_importing_pandas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", ModuleType("pandas"))  # As it is at its beginning.
    assert rows_of({"key": ["a"], "n": [1]}) == [{"key": "a", "n": 1}]


@each("nothing", [7, "text", b"bytes", None, object()])
def test_what_cannot_be_pushed_is_named(nothing: object) -> None:
    with pytest.raises(InvalidArgument, match="cannot push"):
        list(to_batches(nothing, SCHEMA, Cut()))


def test_nothing_to_push_is_no_batch() -> None:
    for empty in ([], table(0), iter(()), {"key": [], "n": []}):
        assert list(to_batches(empty, SCHEMA, Cut())) == []


def test_a_large_table_is_cut_by_rows() -> None:
    sizes = [batch.num_rows for batch in to_batches(table(10), SCHEMA, Cut(rows_max=4))]
    assert sizes == [4, 4, 2]


def test_small_chunks_of_a_table_are_joined() -> None:
    chunks = pa.concat_tables([table(1)] * 9)
    assert chunks.column(0).num_chunks == 9
    assert [batch.num_rows for batch in to_batches(chunks, SCHEMA, Cut(rows_max=4))] == [4, 4, 1]


def test_batches_of_a_reader_keep_their_borders() -> None:
    reader = table(5).to_reader(max_chunksize=2)
    assert [batch.num_rows for batch in to_batches(reader, SCHEMA, Cut())] == [2, 2, 1]


def test_a_batch_of_too_many_bytes_is_cut_until_it_fits_or_is_one_row() -> None:
    wide = pa.table({"key": ["x" * 1000] * 8, "n": arrow.arange(0, 8)})
    fitting = list(to_batches(wide, SCHEMA, Cut(bytes_max=2100)))
    assert [batch.num_rows for batch in fitting] == [2, 2, 2, 2]
    single = list(to_batches(wide, SCHEMA, Cut(bytes_max=10)))
    assert [batch.num_rows for batch in single] == [1] * 8


def test_a_batch_of_too_many_partitions_is_cut_where_rows_are_routed() -> None:
    count = BATCH_PARTITIONS_MAX + 2
    many = pa.table({"key": [str(index) for index in range(count)], "n": arrow.arange(0, count)})
    cut = Cut(key="key")
    assert [batch.num_rows for batch in to_batches(many, SCHEMA, cut)] == [count // 2] * 2
    assert [batch.num_rows for batch in to_batches(many, SCHEMA, Cut())] == [count]


def test_an_iterable_is_read_no_further_than_asked() -> None:
    asked: list[int] = []

    def source() -> Iterator[Any]:
        for index in range(3):
            asked.append(index)
            yield table(1)

    made = to_batches(source(), SCHEMA, Cut())
    next(made)
    assert asked == [0]


def test_rows_of_an_iterator_are_numbered_through() -> None:
    rows = iter([{"n": 1}, {"n": 2}, {"n": "three"}])
    with pytest.raises(SchemaMismatch, match="row 2"):
        list(to_batches(rows, SCHEMA, Cut(rows_max=2)))


def test_a_column_that_does_not_fit_is_named_before_anything_is_made() -> None:
    wrong = pa.table({"key": [1], "n": [1]})
    with pytest.raises(SchemaMismatch, match="column 'key' has type int64"):
        next(to_batches(wrong, SCHEMA, Cut()))


def test_a_topics_own_bound_on_bytes_counts() -> None:
    topic = Topic(
        name="tenants/default/namespaces/default/topics/t",
        uuid="u",
        schema=cast("Any", SCHEMA),
        partition_key="key",
        config={"batch_bytes_max": 100},
        created_at=datetime.now(UTC),
    )
    assert topic.id == "t"
    assert Cut.of(topic, 10, routed=True) == Cut(rows_max=10, bytes_max=100, key="key")
    assert Cut.of(topic, 10, routed=False).key is None


@each(
    ("make", "problem"),
    [
        (lambda: pandas.DataFrame([["a", "b"]], columns=["key", "key"]), "Duplicate column names"),
        (lambda: pandas.DataFrame({"key": ["a", 1]}), "column key"),
        (lambda: pandas.DataFrame({"n": [1j]}), "column n"),
        (lambda: pandas.DataFrame({"n": pandas.arrays.SparseArray([0])}), "column n"),
        (lambda: pandas.DataFrame({"n": [1 << 64]}), "too large"),
        (lambda: polars.DataFrame({"n": polars.Series([1], dtype=polars.Int128)}), "_pli128"),
        (lambda: polars.DataFrame({"n": polars.Series([object()])}), "'n'"),
    ],
)
def test_a_data_frame_that_arrow_has_no_types_for_is_refused(
    make: Callable[[], Any], problem: str
) -> None:
    frame = make()
    with pytest.raises(InvalidArgument, match=problem):
        rows_of(frame)
    with pytest.raises((InvalidArgument, InvalidSchema), match=problem):
        schema_of(frame)
    if "n" in frame:
        with pytest.raises(SchemaMismatch, match="column 'n'"):
            rows_of({"n": frame["n"]})
