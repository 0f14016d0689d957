"""Topics as datasets of Arrow, against a real server: what DuckDB reads of them."""

from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pytest
from fix_calls import Calls
from tables import each

from wings_client import Client, ReadResult, SchemaMismatch, Topic, TopicNotFound, connect
from wings_client._dataset import sql_of
from wings_server.testing import RunningServer

duckdb = pytest.importorskip("duckdb")

COLUMNS = {"key": "int64", "n": "int32", "s": "string", "d": "double", "b": "bool"}
ROWS = [
    {
        "key": n % 3,
        "n": None if n % 11 == 0 else n,
        "s": None if n % 13 == 0 else f'it\'s "{n % 5}" and (n == {n % 2})',
        "d": float("nan") if n % 7 == 0 else n / 2,
        "b": None if n % 17 == 0 else n % 2 == 0,
    }
    for n in range(200)
]

WHERE = [
    "true",
    "n > 50",
    "n <> 7 AND key = 1",
    "n BETWEEN 5 AND 60",
    "n IN (3, 5, 180) OR key = 2",
    "b",
    "NOT b AND d > 20",
    "d IS NULL OR s IS NOT NULL",
    "s = 'it''s \"3\" and (n == 1)'",
    "s >= 'it' AND n < 100 AND d <> 4.5",
    "s LIKE '%2%' AND n > 90",
    "n IS NULL",
]


@pytest.fixture
def client(server: RunningServer) -> Any:
    with connect(server.flight) as client:
        yield client


@pytest.fixture(params=[None, "key"])
def topic(request: Any, client: Client, new_topic_id: str) -> Topic:
    topic = client.create_topic(new_topic_id, COLUMNS, request.param)
    client.push(topic, ROWS)
    return topic


@pytest.fixture
def asked(calls: Calls) -> list[dict[str, Any]]:
    """The columns and filters that scans were opened with."""
    found: list[dict[str, Any]] = []

    def note(result: ReadResult, *_: object, **keys: Any) -> ReadResult:
        found.append(keys)
        return result

    calls.change(Client, "scan", note)
    return found


def test_a_query_of_duckdb_has_the_rows_that_it_has_of_a_table(
    client: Client, topic: Topic, capfd: pytest.CaptureFixture[str]
) -> None:
    orders, table = client.dataset(topic), client.read(topic).to_arrow()
    with duckdb.connect() as connection:
        connection.register("orders", orders)
        connection.register("frame", table)
        for where in WHERE:
            for columns in ("*", "s", "count(*)"):
                query = f"SELECT {columns} FROM {{}} WHERE {where} ORDER BY ALL"
                wanted = connection.sql(query.format("frame")).fetchall()
                found = connection.sql(query.format("orders")).fetchall()
                assert repr(found) == repr(wanted), where  # NaN is no equal of itself.
    assert capfd.readouterr().err == ""  # Arrow's scanner warns of buffers that are not aligned.


def test_only_what_a_query_needs_is_sent(
    client: Client, topic: Topic, asked: list[dict[str, Any]]
) -> None:
    orders = client.dataset(topic)
    assert isinstance(orders, pyarrow.dataset.Dataset)
    assert asked == []
    assert duckdb.sql("SELECT sum(d) FROM orders WHERE n = 3 AND key = 0").fetchall() == [(1.5,)]
    assert [*asked[-1]["columns"]] == ["key", "n", "d"]
    assert asked[-1]["filter"] in ('("n" = 3) AND ("key" = 0)', '("key" = 0) AND ("n" = 3)')
    assert duckdb.sql("SELECT key FROM orders LIMIT 1").fetchall() == [(0,)]
    assert ([*asked[-1]["columns"]], asked[-1]["filter"]) == (["key"], None)


def test_a_filter_that_the_server_refuses_is_applied_here(client: Client, topic: Topic) -> None:
    """It is too long, or has too many columns: a query has its rows all the same."""
    table = client.read(topic).to_arrow()
    for wanted in (s != "x" * 20_000, reduce(and_, (n != number for number in range(600)))):
        assert client.dataset(topic).to_table(filter=wanted).num_rows == len(table.filter(wanted))


def test_bytes_are_no_text_of_their_digits(client: Client, topic: Topic) -> None:
    client.push(topic, [{"key": 0, "s": "it"}])
    for of_bytes in (s == b"it", s <= b"it"):
        wanted = client.read(topic).to_arrow().filter(of_bytes)
        assert wanted.num_rows > 0
        assert client.dataset(topic).to_table(filter=of_bytes).num_rows == len(wanted)


def test_a_dataset_has_no_wider_values_than_its_types(client: Client, new_topic_id: str) -> None:
    """Arrow would make infinity of a double that is no float."""
    topic = client.create_topic(new_topic_id, {"f": "float"})
    dataset = client.dataset(topic)
    client.alter_schema(topic, widen={"f": "double"})
    client.push(topic.id, [{"f": 1.5}])
    assert duckdb.sql("SELECT sum(f) FROM dataset").fetchall() == [(1.5,)]
    client.push(topic.id, [{"f": 1e300}])
    with pytest.raises(SchemaMismatch, match="cannot hold"):
        dataset.to_table()
    assert client.dataset(topic).to_table()["f"].to_pylist() == [1.5, 1e300]


n, s, b, d = (pc.field(name) for name in "nsbd")


@each(
    ("expression", "sql"),
    [
        (n > 5, '("n" > 5)'),
        ((n >= -5) & (s == "x"), """("n" >= -5) AND ("s" = 'x')"""),
        ((n != 5) & ((d > 1) & (b == True)), '("n" <> 5) AND ("b" = TRUE)'),  # noqa: E712
        ((n > 5) | (n < 2), None),
        (~(n > 5), None),
        (s == 'a" and (n == 5)', None),
        (s == "it's) and (n == 5", """("s" = 'it''s) and (n == 5')"""),
        (d > 5, None),
        (n.is_null(), None),
        (pc.field("__offset") > 5, None),
        (pc.field("(n == 5) and y") == 1, None),
    ],
)
def test_comparisons_that_mean_the_same_in_sql_are_evaluated_on_the_server(
    expression: Any, sql: str | None
) -> None:
    names = [("n", pa.int32()), ("s", pa.string()), ("b", pa.bool_()), ("d", pa.float64())]
    schema: Any = pa.schema([*names, ("(n == 5) and y", pa.int32())])
    assert sql_of(str(expression), schema) == sql


def test_a_dataset_is_read_by_its_scanner_alone(client: Client, topic: Topic) -> None:
    keyed = topic.partition_key is not None
    dataset = client.dataset(topic, -2, 1 if keyed else None, system_columns=True)
    offsets = dataset.to_table(columns=["__offset"])["__offset"].to_pylist()
    assert offsets == ([65, 66] if keyed else [198, 199])
    assert dataset.to_table(filter=pc.field("__offset") == offsets[1]).num_rows == 1
    assert dataset.count_rows() == 2
    assert dataset.head(1).num_rows == 1
    doubled = {"twice": pc.multiply(pc.field("key"), 2)}
    assert dataset.to_table(columns=doubled)["twice"].to_pylist()[-1] == 2
    with pytest.raises(NotImplementedError, match="scanner"):
        dataset.get_fragments()
    with pytest.raises(NotImplementedError, match="scanner"):
        _ = dataset.partition_expression
    client.delete_topic(topic)
    with pytest.raises(TopicNotFound):
        dataset.to_table()
