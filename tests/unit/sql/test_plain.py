"""Which statements are plain, and that their rows are DuckDB's."""

import datetime
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from tables import each

from wings_core.data_directory import DataDirectory
from wings_core.deployments import OneDirectory
from wings_core.errors import ResourceExhausted, Unavailable
from wings_core.fetch.fetcher import Cancel
from wings_core.ingest.pending import PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.log import Log
from wings_core.names import TopicName
from wings_core.sql import Query, Sql
from wings_core.sql import query as queries
from wings_core.sql.plain import PlainRun

DAY = datetime.date(2024, 2, 29)

TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, None, False]),
    **{
        f"{kind}{bits}": (getattr(pa, f"{kind}{bits}")(), [0, None, 100])
        for kind in ("int", "uint")
        for bits in (8, 16, 32, 64)
    },
    "float32": (pa.float32(), [0.5, None, float("-inf")]),
    "float64": (pa.float64(), [-0.0, None, float("nan")]),
    "text": (pa.string(), ["", None, "é'x"]),
    "large_text": (pa.large_string(), ["", None, "é'x"]),
    "bytes": (pa.binary(), [b"", None, b"\0\xff"]),
    "large_bytes": (pa.large_binary(), [b"", None, b"\0\xff"]),
    "fixed": (pa.binary(2), [b"ab", None, b"\0\xff"]),
    "date32": (pa.date32(), [DAY, None, datetime.date(1, 1, 1)]),
    "date64": (pa.date64(), [DAY, None, datetime.date(1970, 1, 1)]),
    **{f"naive_{unit}": (pa.timestamp(unit), [0, None, -1]) for unit in ("s", "ms", "us", "ns")},
    **{f"zoned_{unit}": (pa.timestamp(unit, "UTC"), [0, None, 5]) for unit in ("s", "ms", "us")},
    "berlin": (pa.timestamp("us", "Europe/Berlin"), [0, None, 5]),
    "time32": (pa.time32("s"), [0, None, 5]),
    "time64": (pa.time64("us"), [0, None, 5]),
    "time_ns": (pa.time64("ns"), [0, None, 5]),
    "duration": (pa.duration("us"), [0, None, 5]),
    "decimal": (pa.decimal128(9, 2), [0, None, 5]),
    "list": (pa.list_(pa.int64()), [[], None, [1, None]]),
    "struct": (pa.struct([("a", pa.int64())]), [{"a": 1}, None, {"a": None}]),
}


def pushed(log: Log, name: str, batch: pa.RecordBatch, key: str | None = None) -> None:
    topic = log.admin.create_topic(TopicName.parse(name), batch.schema, key)
    prepared = Preparer(topic, log.limits).prepare(batch, PushOptions())
    log.group_commit.submit(PushStream(), prepared, awaited=True).accepted()


@pytest.fixture(scope="module")
def sql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sql]:
    root = tmp_path_factory.mktemp("plain")
    with (
        DataDirectory.open(root / "data") as directory,
        closing(Log.open(OneDirectory(directory))) as log,
        closing(Sql(log)) as sql,
    ):
        arrays = [pa.array(values, data_type) for data_type, values in TYPES.values()]
        pushed(log, "types", pa.RecordBatch.from_arrays(arrays, names=list(TYPES)))
        numbers = {"n": [5, None, 7, 5], "N": [1, 2, 3, 4], "types": ["a", "b", "b", "c"]}
        pushed(log, "keyed", pa.record_batch({**numbers, "k": ["x", "y", "x", "z"]}), "k")
        yield sql


def opened(sql: Sql, text: str, parameters: Any = (), cancel: Cancel | None = None) -> Query:
    return sql.open(text, lambda _: None, parameters, cancel=cancel)


def is_plain(query: Query) -> bool:
    return isinstance(query._run, PlainRun)  # pyright: ignore[reportPrivateUsage]


def table_of(query: Query) -> pa.Table:
    return pa.Table.from_batches(list(query.batches()), query.schema)


def _never(*_: object) -> None:
    """Find no statement plain."""


def by_duckdb(sql: Sql, text: str, parameters: Any = ()) -> pa.Table:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(queries, "plain_run", _never)
        query = opened(sql, text, parameters)
        assert not is_plain(query)
        return table_of(query)


@each("column", [*TYPES, "__partition", "__offset", "__timestamp"])
def test_a_column_has_the_type_and_the_values_that_duckdb_gives_it(sql: Sql, column: str) -> None:
    text = f"select {column} from types where __offset >= 0"
    found, expected = table_of(opened(sql, text)), by_duckdb(sql, text)
    assert found.schema.equals(expected.schema, check_metadata=True)
    assert str(found.to_pylist()) == str(expected.to_pylist())  # NaN is not equal to NaN.


@each(
    ("text", "parameters"),
    [
        ("select * from keyed", ()),
        ("from keyed where n = 5", ()),
        ("select k, n from keyed where 5 <= n and k = ?", ("x",)),
        ("select n from keyed where n = '5'", ()),
        ("select n from keyed where n = $n", {"n": "0007"}),
        ("select n from keyed where n < 7 and n > -3 and types <= 'b'", ()),
        ("select types from keyed types where types > 'a'", ()),
        (
            "select __offset, __partition from keyed where __offset = 0 and __partition = ?",
            ('"x"',),
        ),
        ("select n from keyed where k = 'never'", ()),
        ("select uint8 from types where uint8 = 100", ()),
        ("select int8 from types where large_text = ?", ("é'x",)),
    ],
)
def test_what_is_plain_has_the_rows_of_duckdb(sql: Sql, text: str, parameters: Any) -> None:
    query = opened(sql, text, parameters)
    assert is_plain(query)
    found, expected = table_of(query), by_duckdb(sql, text, parameters)
    assert found.schema == expected.schema
    assert sorted(found.to_pylist(), key=str) == sorted(expected.to_pylist(), key=str)


@each(
    ("text", "parameters"),
    [
        ("select n as k from keyed where k = 'x'", ()),
        ("select n, n from keyed", ()),
        ("select types.n from keyed types", ()),
        ("select N from keyed", ()),
        ("select * exclude (n) from keyed", ()),
        ("select distinct n from keyed", ()),
        ("select n from keyed order by n", ()),
        ("select n from keyed limit 1", ()),
        ("select n from keyed group by n", ()),
        ("select n from keyed group by all", ()),
        ("select a from keyed t(a, b, c, d, e)", ()),
        ("select n from keyed tablesample reservoir(1)", ()),
        ("select n from keyed where n = 5 or n = 7", ()),
        ("select n from keyed where n = 5.5", ()),
        ("select n from keyed where n = true", ()),
        ("select n from keyed where n = ?", (5.0,)),
        ("select n from keyed where n = ?", (None,)),
        ("select n from keyed where n = 99999999999999999999", ()),
        ("select uint8 from types where uint8 = 300", ()),
        ("select n from keyed where n = n", ()),
        ("select n from keyed where types = 5", ()),
        ("select duration from types", ()),
        ("select list from types", ()),
        ("with keyed as (select 1 n) select n from keyed", ()),
        ("select tier from system.segments", ()),
        ("select n from keyed where n < 9" + " and n < 9" * 2_000, ()),
    ],
)
def test_what_is_not_known_to_mean_the_same_is_left_to_duckdb(
    sql: Sql, text: str, parameters: Any
) -> None:
    with closing(opened(sql, text, parameters)) as query:
        assert not is_plain(query)


def test_batches_are_no_longer_than_those_of_duckdb(
    sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "BATCH_ROWS", 2)
    query = opened(sql, "select int8 from types")
    assert [batch.num_rows for batch in query.batches()] == [2, 1]


def test_a_plain_query_ends_with_its_time_and_its_client(sql: Sql) -> None:
    query = sql.open("select int8 from types", lambda _: None, seconds_max=0)
    assert is_plain(query)
    with pytest.raises(ResourceExhausted, match="stopped after"):
        list(query.batches())
    cancel = Cancel()
    query = opened(sql, "select int8 from types", cancel=cancel)
    cancel.cancel(Unavailable("gone"))
    with pytest.raises(Unavailable, match="gone"):
        list(query.batches())
    assert sql.running == 0
