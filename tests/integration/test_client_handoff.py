"""What is read is handed to data frames, without a copy where it says so: by where values lie."""

from typing import Any

import pyarrow as pa
import pytest
from fix_client import NewTopic, async_in_soak

from wings_client import Client, FetchResult


@pytest.fixture
def result(wings: Client, new_topic: NewTopic) -> FetchResult:
    topic = new_topic("n: int32", "x: double")
    values = {"n": list(range(1000)), "x": [index / 2 for index in range(1000)]}
    wings.push(topic, values)
    return wings.fetch(topic, offset=0)


def addresses(column: Any) -> list[int]:
    """Return where the values of a column lie, chunk by chunk."""
    chunks: list[Any] = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return [
        chunk.buffers()[1].address + chunk.offset * chunk.type.bit_width // 8 for chunk in chunks
    ]


@async_in_soak
@pytest.mark.parametrize("name", ["n", "x"])
def test_the_table_has_the_batches_own_buffers(result: FetchResult, name: str) -> None:
    received = [addresses(batch.column(name))[0] for batch in result.batches]
    assert addresses(result.table[name]) == received
    assert addresses(pa.table(result)[name]) == received


def polars_addresses(polars: Any, table: Any, name: str) -> list[int]:
    return addresses(polars.from_arrow(table, rechunk=False)[name].to_arrow())


@async_in_soak
@pytest.mark.parametrize("name", ["n", "x"])
def test_polars_shares_a_column_that_lies_at_a_multiple_of_its_values_size(
    result: FetchResult, name: str
) -> None:
    # Those off the wire may lie anywhere, and are copied then.
    polars = pytest.importorskip("polars")
    assert polars.DataFrame(result)["n"].sum() == sum(range(1000))
    (here,) = addresses(result.table[name])
    aligned = here % (result.table[name].type.bit_width // 8) == 0
    assert (polars_addresses(polars, result.table, name) == [here]) == aligned


@pytest.mark.parametrize(("shift", "shared"), [(0, True), (8, True), (1, False)])
def test_polars_copies_a_column_that_lies_elsewhere(shift: int, *, shared: bool) -> None:
    polars = pytest.importorskip("polars")
    allocate: Any = pa.allocate_buffer  # The stubs have it resizable alone.
    memory = allocate(1024)
    assert memory.address % 64 == 0
    column = pa.Array.from_buffers(pa.float64(), 100, [None, memory.slice(shift, 800)])
    table = pa.table({"x": column})
    assert (polars_addresses(polars, table, "x") == addresses(column)) == shared


@async_in_soak
@pytest.mark.parametrize("name", ["n", "x"])
def test_pandas_shares_the_buffers_where_it_can(result: FetchResult, name: str) -> None:
    pandas: Any = pytest.importorskip("pandas")
    (batch,) = result.batches
    array: Any = batch.column(name).to_numpy(zero_copy_only=True)
    assert [array.ctypes.data] == addresses(result.table[name])
    frame: Any = result.table.to_pandas(types_mapper=pandas.ArrowDtype)
    assert addresses(frame[name].array.__arrow_array__()) == addresses(result.table[name])


@async_in_soak
def test_duckdb_scans_what_was_fetched(result: FetchResult) -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        connection.register("fetched", result)
        assert connection.sql("SELECT count(*), max(n) FROM fetched").fetchall() == [(1000, 999)]
