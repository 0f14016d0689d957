"""What is read is handed to data frames, without a copy where it says so: by where values lie."""

from typing import Any

import pyarrow as pa
import pytest
from fix_client import NewTopic

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


@pytest.mark.parametrize("name", ["n", "x"])
def test_the_table_has_the_batches_own_buffers(result: FetchResult, name: str) -> None:
    received = [addresses(batch.column(name))[0] for batch in result.batches]
    assert addresses(result.table[name]) == received
    assert addresses(pa.table(result)[name]) == received


def test_polars_reads_what_was_fetched(result: FetchResult) -> None:
    # It takes over buffers that are aligned; those off the wire may lie anywhere.
    polars = pytest.importorskip("polars")
    assert polars.DataFrame(result)["n"].sum() == sum(range(1000))


@pytest.mark.parametrize("name", ["n", "x"])
def test_pandas_shares_the_buffers_where_it_can(result: FetchResult, name: str) -> None:
    pandas: Any = pytest.importorskip("pandas")
    (batch,) = result.batches
    array: Any = batch.column(name).to_numpy(zero_copy_only=True)
    assert [array.ctypes.data] == addresses(result.table[name])
    frame: Any = result.table.to_pandas(types_mapper=pandas.ArrowDtype)
    assert addresses(frame[name].array.__arrow_array__()) == addresses(result.table[name])


def test_duckdb_scans_what_was_fetched(result: FetchResult) -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        connection.register("fetched", result)
        assert connection.sql("SELECT count(*), max(n) FROM fetched").fetchall() == [(1000, 999)]
