"""Topics as lazy frames of Polars, against a real server."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from fix_calls import Calls

from wings_client import Client, ReadResult, SchemaMismatch, Topic, TopicNotFound, connect
from wings_client._lazy import filter_of
from wings_server.testing import RunningServer

pl = pytest.importorskip("polars")

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
COLUMNS = {
    "key": "int64",
    "n": "int32",
    "s": "string",
    "d": "double",
    "at": "timestamp[us, tz=UTC]",
    "ms": "timestamp[ms]",
    "b": "bool",
}
ROWS = [
    {
        "key": n % 3,
        "n": None if n % 11 == 0 else n,
        "s": None if n % 13 == 0 else f"it's {n % 5}",
        "d": float("nan") if n % 7 == 0 else n / 2,
        "at": NOON + timedelta(hours=n),
        "ms": (NOON + timedelta(minutes=n)).replace(tzinfo=None),
        "b": None if n % 17 == 0 else n % 2 == 0,
    }
    for n in range(200)
]

Query = Callable[[Any], Any]
c = pl.col
QUERIES: dict[str, tuple[Any, str | None]] = {
    "number": (c("n") > 50, '("n" > 50)'),
    "text": (c("s") == "it's 3", """("s" = 'it''s 3')"""),
    "flag": (c("b"), '("b")'),
    "not": (~c("b"), '(NOT ("b"))'),
    "time": (
        c("at") >= NOON + timedelta(hours=9),
        "(\"at\" >= TIMESTAMPTZ '2026-01-01 21:00:00+00:00')",
    ),
    "null": (c("d").is_null() | c("n").is_not_null(), '(("d" IS NULL) OR ("n" IS NOT NULL))'),
    "between": (c("n").is_between(5, 60, closed="left"), '("n" >= 5 AND "n" < 60)'),
    "among": (c("s").is_in(["it's 1", "no"]), """("s" IN ('it''s 1', 'no'))"""),
    "begins": (~c("s").str.starts_with("it's 1"), """(NOT (starts_with("s", 'it''s 1')))"""),
    "part": ((c("n") <= 90) & (c("d") > 3), '("n" <= 90)'),
    "float": (c("d") > 90, None),
    "float of a number": (c("n") > 7.5, None),
    "coarser time": (c("ms") > (NOON + timedelta(minutes=3)).replace(tzinfo=None), None),
    "either with a float": ((c("n") < 5) | (c("d") > 3), None),
    "of two columns": (c("n") > c("key"), None),
    "missing": (c("n").eq_missing(None), None),
    "among nulls": (c("n").is_in([1, None]), None),
    "computed": (c("n") % 2 == 0, None),
}


@pytest.fixture
def client(server: RunningServer) -> Any:
    with connect(server.flight) as client:
        yield client


@pytest.fixture(params=[None, "key"])
def topic(request: Any, client: Client, new_topic_id: str) -> Topic:
    topic = client.create_topic(new_topic_id, COLUMNS, request.param)
    client.push(topic, ROWS)
    return topic


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_a_query_has_the_rows_that_it_has_of_a_frame(
    client: Client, topic: Topic, engine: Any
) -> None:
    """Whatever of its predicate the server evaluates; NaN and null included."""
    lazy, frame = client.lazy(topic), client.read(topic).to_polars()
    for name, (predicate, _) in QUERIES.items():
        for columns in ([*COLUMNS], ["s"]):
            found = lazy.filter(predicate).select(columns).collect(engine=engine)
            wanted = frame.filter(predicate).select(columns)
            assert found.sort(columns).equals(wanted.sort(columns)), name
    assert lazy.select(pl.len()).collect(engine=engine).item() == 200
    grouped = lazy.group_by("s").agg(c("n").sum()).sort("s").collect(engine=engine)
    assert grouped.equals(frame.group_by("s").agg(c("n").sum()).sort("s"))
    assert lazy.filter(c("n") < 0).collect(engine=engine).schema == frame.schema


def test_what_means_the_same_in_sql_is_evaluated_on_the_server() -> None:
    schema: Any = pa.schema(
        [
            ("key", pa.int64()),
            ("n", pa.int32()),
            ("s", pa.string()),
            ("d", pa.float64()),
            ("at", pa.timestamp("us", "UTC")),
            ("ms", pa.timestamp("ms")),
            ("b", pa.bool_()),
        ]
    )
    for name, (predicate, sql) in QUERIES.items():
        assert filter_of(predicate, schema) == sql, name
    assert filter_of(c("__offset") > 3, schema) is None


def test_only_the_columns_of_a_query_are_read_and_no_more_rows(
    client: Client, topic: Topic, calls: Calls
) -> None:
    asked: list[dict[str, Any]] = []

    def note(result: ReadResult, *_: object, **keys: Any) -> ReadResult:
        asked.append(keys)
        return result

    calls.change(Client, "scan", note)
    lazy = client.lazy(topic)
    assert asked == []
    assert lazy.filter(c("n") == 3).select("s").collect().height == 1
    assert ([*asked[-1]["columns"]], asked[-1]["filter"]) == (["n", "s"], '("n" = 3)')
    # Ten rows, and then those of them that pass.
    assert lazy.head(10).filter(c("key") >= 0).collect().height == 10
    assert asked[-1]["filter"] is None
    assert lazy.filter(c("key") == 1).head(10).collect()["key"].to_list() == [1] * 10


def test_a_lazy_frame_begins_where_it_is_told_and_has_system_columns(
    client: Client, topic: Topic
) -> None:
    keyed = topic.partition_key is not None
    frame = client.lazy(topic, -2, 1 if keyed else None, system_columns=True)
    offsets = frame.select("__offset").collect()["__offset"].to_list()
    assert offsets == ([65, 66] if keyed else [198, 199])
    assert frame.filter(c("__offset") == offsets[1]).collect().height == 1
    every = client.lazy(topic, system_columns=True).collect()
    assert ("__partition" in every.columns) == keyed
    client.push(topic, ROWS[:1])
    assert client.lazy(topic).collect().height == 201


def test_a_predicate_that_the_server_refuses_is_applied_here(client: Client, topic: Topic) -> None:
    """It is too long, or has a text or columns that no filter may have."""
    lazy = client.lazy(topic)
    assert lazy.filter(c("n").is_in(range(100, 9_000))).collect().height == 91
    assert lazy.filter(~c("s").str.starts_with("x\0")).collect().height == 184
    alike = client.create_topic(f"{topic.id}-alike", {"a": "int64", "A": "int64"})
    client.push(alike, {"a": [1, 2], "A": [3, 3]})
    assert client.lazy(alike).filter(c("a") == 2, c("A") == 3).collect().height == 1


def test_a_lazy_frame_keeps_its_schema_while_the_topic_grows(client: Client, topic: Topic) -> None:
    lazy = client.lazy(topic)
    client.alter_schema(topic, add={"z": "int64"}, widen={"n": "int64"})
    client.push(topic.id, [{"key": 0, "n": 7_000, "z": 1}])
    assert lazy.filter(c("n") == 7_000).collect().schema["n"] == pl.Int32
    assert client.lazy(topic).filter(c("z") == 1).collect()["n"].to_list() == [7_000]
    client.push(topic.id, [{"key": 0, "n": 2**40}])
    with pytest.raises(SchemaMismatch, match="cannot hold"):
        lazy.collect()


def test_a_query_of_a_topic_that_is_gone_says_so(client: Client, topic: Topic) -> None:
    lazy = client.lazy(topic)
    client.delete_topic(topic)
    with pytest.raises(TopicNotFound):
        lazy.collect()
