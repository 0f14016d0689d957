"""SQL over topics: what a statement reads, by the client and over HTTP, and what is refused."""

import asyncio
import base64
import io
import json
import math
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, get_args

import duckdb
import httpx
import pandas as pd  # pyright: ignore[reportMissingTypeStubs]
import polars as pl
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from fix_calls import Calls
from fix_client import NewTopic
from fix_server import Trim
from tables import each
from token_calls import ROOT, client_of, new_token
from waiting import until

import wings_client
from wings_client import (
    Client,
    GroupNotFound,
    InvalidArgument,
    InvalidSql,
    PermissionDenied,
    ResourceExhausted,
    TopicNotFound,
)
from wings_client.cli.output import Format
from wings_core.limits import Limits
from wings_core.sql import query, workers
from wings_server.testing import RunningServer, running_server

DAY = "tenants/default/namespaces/day"


def rows(client: Client, text: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
    table = client.sql(text, parameters).read_all()
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


@pytest.fixture
def wings(server: RunningServer) -> Iterator[Client]:
    """A client of the module's server; the async one has a test of its own."""
    with wings_client.connect(server.flight) as connected:
        yield connected


@pytest.fixture
def flights(wings: Client, new_topic: NewTopic) -> str:
    """A topic of two partitions, in three commits; returns its id."""
    topic = new_topic("origin: string", "delay: int64", "carrier: string", partition_key="origin")
    for first in (0, 10, 20):
        wings.push(
            topic,
            [
                {"origin": "JFK" if n % 2 else "LAX", "delay": n, "carrier": f"c{n % 3}"}
                for n in range(first, first + 10)
            ],
        )
    return topic.name.rpartition("/")[2]


def test_rows_have_the_topics_columns_and_where_they_lie(wings: Client, flights: str) -> None:
    table = wings.sql(f'from "{flights}" where delay = 13').read_all()
    assert table.schema.names == [
        "origin", "delay", "carrier", "__partition", "__offset", "__timestamp",
    ]  # fmt: skip
    assert table.schema.field("__timestamp").type == pa.timestamp("us", "UTC")
    ((origin, delay, carrier, partition, offset, timestamp),) = zip(
        *(column.to_pylist() for column in table.columns), strict=True
    )
    assert (origin, delay, carrier, partition, offset) == ("JFK", 13, "c1", '"JFK"', 6)
    fetched = wings.fetch(flights, "JFK", offset=6, max_messages=1, system_columns=True)
    assert timestamp == fetched.table.column("__timestamp")[0].as_py()


def test_statements_answer_as_duckdb_does_on_the_same_rows(
    wings: Client, flights: str, subtests: pytest.Subtests
) -> None:
    everything = wings.scan(flights, system_columns=True).read_all()
    for text in (
        "select count(*), sum(delay), min(carrier) from t",
        "select origin, count(*) from t group by 1 order by 1",
        "select delay from t where carrier in ('c1', 'c2') and delay > 5 order by 1 desc limit 4",
        "select delay from t where carrier like 'c%' or origin is null order by 1",
        "select a.delay from t a join t b on a.delay = b.delay + 20 order by 1",
        "select delay, lag(delay) over (order by delay) from t order by 1 limit 3",
        "select count(*) from t where __offset between 3 and 5",
        "select max(__offset), min(__offset) from t where __partition = '\"JFK\"'",
        "select count(*) from t where origin = 'LAX' and __offset >= 10",
        "select count(*) from t where __timestamp > timestamptz '2020-01-01 00:00:00Z'",
        "select count(*) from t where __timestamp < timestamptz '2020-01-01 00:00:00Z'",
        "with w as (select delay d from t) select sum(d) from w where d not in (1, 2)",
        "select * exclude (__timestamp) from t union all values ('x', 0, '', 'z', 2) order by 2, 1",
        "values (1, 'a'), (2, null)",
    ):
        with subtests.test(text):
            there = duckdb.connect()
            there.execute("SET TimeZone = 'UTC'")
            there.register("t", everything)
            assert rows(wings, text.replace(" t ", f' "{flights}" ').replace(
                "from t", f'from "{flights}"')) == there.execute(text).fetchall()  # fmt: skip


def test_parameters_stand_for_values_of_any_kind(wings: Client, flights: str) -> None:
    text = f'select delay from "{flights}" where origin = ? and delay > $2 order by 1 limit 2'
    assert rows(wings, text, ["JFK", 7]) == [(9,), (11,)]
    named = f'select delay from "{flights}" where carrier = $c and delay < $n'
    assert rows(wings, named, {"c": "c0", "n": 1}) == [(0,)]
    assert rows(wings, "select ?::double > 1e300, ?::double", [math.nan, -math.inf]) == [
        (True, -math.inf)
    ]
    assert rows(wings, "select ?, ?, ?", ["it's -- é", None, True]) == [("it's -- é", None, True)]
    for given in ([], ["JFK"], ["JFK", 1, 2]):
        with pytest.raises(InvalidSql):
            wings.sql(text, given)


def test_a_query_reads_no_more_than_it_needs(server: RunningServer, flights: str) -> None:
    def read(text: str) -> int:
        opened = server.server.log.sql.open(
            text.replace("from t", f'from "{flights}"'), lambda _: None
        )
        list(opened.batches())
        return opened.count.rows

    assert read("select count(*), max(__offset) from t where __partition = '\"JFK\"'") == 0
    assert read("select delay from t where origin = 'JFK' and __offset = 7") == 1
    assert read("select delay from t where origin in ('JFK', 'none')") == 15
    assert read("select delay from t where __timestamp > timestamptz '2100-01-01'") == 0
    assert read("select delay from t where origin = 'JFK' or __offset < 2") == 30


LOOKED_UP: list[tuple[str, tuple[Any, ...], int]] = [
    ("k = 'b'", (), 1),
    ("'b' = k and n > 0", (), 1),
    ("K in ('b', ?, 'never')", ("c",), 3),
    ("k = ? and n = ?", ("b", 5), 1),
    ("__partition = '\"b\"'", (), 1),
    ("__partition = 'no JSON'", (), 0),
    ("k = 'b' or n = 1", (), 4),
    ("k = null", (), 4),
    ("k = '7' and n > ?", (3,), 1),
    ("upper(k) = 'B'", (), 4),
    ("n = 3", (), 4),
    ("k = 'b' and n in (select 5)", (), 1),
    ("k = 'b' and n in (select n from {t})", (), 4),
]


@pytest.mark.parametrize(("where", "values", "looked_at"), LOOKED_UP)
def test_a_look_up_by_key_looks_at_no_other_partitions(
    server: RunningServer,
    wings: Client,
    new_topic: NewTopic,
    calls: Calls,
    where: str,
    values: tuple[Any, ...],
    looked_at: int,
) -> None:
    topic = new_topic("k: string", "n: int64", partition_key="k")
    wings.push(topic, [{"k": "abc7"[n % 4], "n": n} for n in range(40)])
    table = f'"{topic.name.rpartition("/")[2]}"'
    with duckdb.connect() as there:
        there.register("t", wings.scan(topic, system_columns=True).read_all())
        text = f"select 'b' as k, n from t where {where.format(t='t')} order by n"
        expected = there.execute(text, values).fetchall()
    looked: list[int] = []

    def count(found: dict[Any, Any], *_: object) -> None:
        looked.append(sum(map(len, found.values())))

    calls.after(query, "states_of", count)
    text = f"select 'b' as k, n from {table} where {where.format(t=table)} order by n"
    assert rows(wings, text, values) == expected
    assert looked[0] == looked_at


def test_a_whole_number_is_looked_up_by_its_text_too(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic("k: int16", "n: int64", partition_key="k")
    wings.push(topic, [{"k": n % 3 - 1, "n": n} for n in range(6)])
    table = f'"{topic.name.rpartition("/")[2]}"'
    for where, value, found in (
        ("k = ?", 1, [2, 5]),
        ("k = ?", "1", [2, 5]),
        ("k = ?", "-01", [0, 3]),
        ("k = ?", 1.0, [2, 5]),
        ("k in (0, ?)", "1", [1, 2, 4, 5]),
        ("k = ?", 40_000, []),
        ("k = ?::int + 1", 0, [2, 5]),
    ):
        assert rows(wings, f"select n from {table} where {where} order by 1", [value]) == [
            (n,) for n in found
        ]


def test_one_query_sees_one_moment_of_its_topics(
    server: RunningServer, wings: Client, flights: str
) -> None:
    opened = server.server.log.sql.open(f'select delay from "{flights}"', lambda _: None)
    wings.push(flights, [{"origin": "JFK", "delay": 99, "carrier": "late"}])
    assert sum(batch.num_rows for batch in opened.batches()) == 30


def test_a_namespace_named_as_a_catalog_of_duckdb_is_a_schema(wings: Client) -> None:
    namespace = "tenants/default/namespaces/memory"
    wings.create_namespace(namespace)
    wings.create_topic(f"{namespace}/topics/hours", {"n": "int64"})
    wings.push(f"{namespace}/topics/hours", [{"n": 1}])
    assert rows(wings, "select n from memory.hours") == [(1,)]


def test_namespaces_are_schemas(wings: Client) -> None:
    wings.create_namespace(DAY)
    wings.create_namespace("tenants/acme/namespaces/main")
    wings.create_namespace("tenants/default/namespaces/system")
    for number, namespace in enumerate(
        (DAY, "tenants/acme/namespaces/main", "tenants/default/namespaces/system")
    ):
        wings.create_topic(f"{namespace}/topics/hours", {"n": "int64"})
        wings.push(f"{namespace}/topics/hours", [{"n": number}])
    text = "select (select n from day.hours), (select n from wings.day.hours), {}, {}"
    assert rows(
        wings,
        text.format('(select n from "acme/main".hours)', '(select n from "/system".hours h)'),
    ) == [(0, 0, 1, 2)]
    assert wings.sql("select n from hours", namespace=DAY).read_all().to_pydict() == {"n": [0]}
    for refused in ("hours", "night.hours", "main.hours", "information_schema.tables"):
        with pytest.raises((InvalidSql, TopicNotFound, wings_client.NamespaceNotFound)):
            wings.sql(f"select * from {refused}")


REFUSED = (
    "select * from read_csv('/etc/passwd')",
    "select * from '/etc/passwd'",
    "select * from glob('*')",
    "select * from duckdb_settings()",
    "select * from query('select 1')",
    "select * from information_schema.tables",
    "select current_setting('threads'), getenv('HOME')",
    "select pg_sleep(1)",
    "select repeat('x', 1000000000)",
    "select * from read_text('/etc/passwd')",
    "select (select content from read_blob('/etc/passwd'))",
    "select * from sniff_csv('/etc/passwd')",
    "from read_parquet('x'), read_json('x')",
    'from "s3://bucket/x.parquet"',
    "with read_text as (select 1) from read_text('/etc/passwd')",
    "select * from duckdb_secrets()",
    "select * from pragma_table_info('x')",
    "select * from arrow_scan_dumb(1, 1, 1)",
    "select * from query_table('x')",
    "select json_execute_serialized_sql('{}')",
    "from system.main.duckdb_settings",
    "from __scan0",
    "select main.getenv('HOME')",
    "select 'HOME'.getenv()",
    "select \"getenv\"('HOME')",
    "select list_transform(['HOME'], lambda x: getenv(x))",
    "select [getenv(x) for x in ['HOME']]",
    "select list_aggregate(['HOME'], 'getenv')",
    "values (1) order by getenv('HOME')",
    "select 1 limit getenv('HOME')",
    "select count(*) filter (where getenv('HOME') = '') from range(1)",
    "select * replace (getenv('HOME') as range) from range(1)",
    "select columns(c -> c = getenv('HOME')) from range(1)",
    "describe (select getenv('HOME'))",
    "select getvariable('x')",
    "set variable x = 1",
    "prepare p as copy (select 1) to '/tmp/x'",
    "execute p",
    "explain analyze select 1",
    "export database '/tmp/x'",
    "create secret (type s3)",
    "update extensions",
    "select 1; copy (select 1) to '/tmp/x'",
    "copy (select 1) to '/tmp/x'",
    "attach '/tmp/x' as x",
    "install httpfs",
    "load httpfs",
    "pragma version",
    "set threads = 1",
    "use wings",
    "create macro f(x) as x",
    "create table x as select 1",
    "insert into x values (1)",
    "delete from x",
    "with x as (delete from y returning *) select * from x",
    "call pragma_version()",
    "explain select 1",
    "begin",
    "show tables",
    "select 1; select 2",
    "select * from x at (version => 1)",
    "",
    "-- nothing",
    "select \0",
)


def test_what_is_no_reading_of_topics_is_refused(wings: Client, subtests: pytest.Subtests) -> None:
    for text in REFUSED:
        with subtests.test(text), pytest.raises((InvalidSql, wings_client.InvalidTicket)):
            wings.sql(text).read_all()


def test_texts_may_grow_and_patterns_may_differ_by_row(wings: Client) -> None:
    """What a step makes of a row is bounded by the memory of its process, and by no rules."""
    texts = [f"t{n}" for n in range(40)]
    assert rows(
        wings,
        f"select 'b' ~ x, replace('a', 'a', 'aa'), {' || '.join(map(repr, texts))}, "
        "1::tinyint::smallint::int::bigint::varchar from (values ('[a-c]'), ('x')) v(x)",
    ) == [(True, "aa", "".join(texts), "1"), (False, "aa", "".join(texts), "1")]


def test_no_name_is_a_variable_of_python(wings: Client) -> None:
    table = pa.table({"n": [1]})
    for name in ("table", "rows", "wings", "self", "text", "df", "os"):
        with pytest.raises(TopicNotFound):
            wings.sql(f'select * from "{name}"')
    assert table.num_rows == 1


def test_a_name_of_with_hides_no_view_of_duckdb(wings: Client) -> None:
    # The Kelvin sign is a k in lower case, but not to DuckDB.
    text = 'with "duc\u212adb_databases" as (select 1) select * from duckdb_databases'
    with pytest.raises(TopicNotFound):
        wings.sql(text)


def test_a_recursion_begins_with_no_view_of_duckdb(wings: Client, flights: str) -> None:
    for name in ("duckdb_databases", "__scan0"):
        text = f"with recursive {name} as (select * from {name} union all select * from {name})"
        with pytest.raises((TopicNotFound, InvalidSql), match="there is no t"):
            wings.sql(f'{text} select * from {name}, "{flights}"')


def test_a_refusal_says_where(wings: Client, flights: str, http: httpx.Client) -> None:
    for text, position in (
        ("selec 1", 1),
        (f'select é from "{flights}" where origin = ?', 8),
        ("select 1, getenv('HOME')", 11),
        ("select 'é', 'x'::int", 16),
    ):
        with pytest.raises(InvalidSql) as caught:
            wings.sql(text, ["JFK"] if "?" in text else ()).read_all()
        assert caught.value.position == position, caught.value
    answer = http.post("/v1/sql", json={"sql": "selec 1"})
    assert answer.status_code == 400
    assert answer.json()["code"] == "INVALID_SQL"
    assert "at character 1" in answer.json()["message"]


def test_a_statement_that_fails_on_the_data_says_so(wings: Client, flights: str) -> None:
    with pytest.raises(InvalidSql, match="Could not convert"):
        wings.sql(f'select carrier::int from "{flights}"').read_all()
    assert rows(wings, "select 1") == [(1,)]


def test_http_answers_in_the_form_that_is_accepted(http: httpx.Client, flights: str) -> None:
    body = {
        "sql": f'select delay, carrier from "{flights}" where delay < $n order by 1',
        "parameters": {"n": 2},
    }
    assert http.post("/v1/sql", json=body).json() == {
        "schema": {
            "fields": [
                {"name": "delay", "type": "int64", "nullable": True},
                {"name": "carrier", "type": "string", "nullable": True},
            ]
        },
        "rows": [{"delay": 0, "carrier": "c0"}, {"delay": 1, "carrier": "c1"}],
    }
    csv = http.post("/v1/sql", json=body, headers={"accept": "text/csv"})
    assert csv.headers["content-type"] == "text/csv"
    assert csv.text == '"delay","carrier"\n0,"c0"\n1,"c1"\n'
    arrow = "application/vnd.apache.arrow.stream"
    stream = http.post("/v1/sql", json=body, headers={"accept": arrow})
    assert stream.headers["content-type"] == arrow
    with pa.ipc.open_stream(io.BytesIO(stream.content)) as reader:
        assert reader.read_all().to_pydict() == {"delay": [0, 1], "carrier": ["c0", "c1"]}
    for accept, given in (
        ("text/csv;q=0, application/json;q=0.1", "application/json"),
        ("application/json;q=0.5, text/csv;q=0.9", "text/csv"),
        ("text/html, */*", "application/json"),
    ):
        answer = http.post("/v1/sql", json=body, headers={"accept": accept})
        assert answer.headers["content-type"] == given
    refused = http.post("/v1/sql", json={**body, "extra": 1})
    assert (refused.status_code, refused.json()["code"]) == (400, "INVALID_ARGUMENT")
    refused = http.post("/v1/sql", json={**body, "parameters": {"n": [2]}})
    assert "'parameters': must be a list, or an object by name" in refused.json()["message"]


def test_columns_of_one_name_are_told_apart_in_every_form(
    wings: Client, http: httpx.Client
) -> None:
    text = "select 1 a, 2 a"
    assert wings.sql(text).read_all().to_pylist() == [{"a": 1, "a_1": 2}]
    assert http.post("/v1/sql", json={"sql": text}).json()["rows"] == [{"a": 1, "a_1": 2}]
    accept = {"accept": "application/vnd.apache.arrow.stream"}
    answer = http.post("/v1/sql", json={"sql": text}, headers=accept)
    assert pa.ipc.open_stream(answer.content).read_all().to_pylist() == [{"a": 1, "a_1": 2}]


def test_results_of_types_of_duckdb_alone_are_refused(wings: Client, http: httpx.Client) -> None:
    for value in ("'a'::enum('a')", "['a'::enum('a')]", "{'x': 1::bignum}"):
        with pytest.raises(InvalidSql, match="cast it"):
            wings.sql(f"select {value} v")
        assert http.post("/v1/sql", json={"sql": f"select {value} v"}).status_code == 400
        assert rows(wings, f"select v::varchar = '' from (select {value} v)") == [(False,)]


def test_the_async_client_awaits_the_rows(server: RunningServer, flights: str) -> None:
    async def run() -> None:
        async with wings_client.connect_async(server.flight) as client:
            tables = {"known": {"n": [7]}}
            async with client.sql("select n from known", tables=tables) as sent:
                assert (await sent.read_all()).to_pylist() == [{"n": 7}]
            async with client.sql(f'select delay from "{flights}" order by 1') as found:
                assert found.schema.names == ["delay"]
                table = await found.read_all()
            assert table.column("delay").to_pylist() == list(range(30))

    asyncio.run(run())


def test_a_client_that_goes_away_ends_its_query(server: RunningServer, wings: Client) -> None:
    sql = server.server.log.sql
    reader = wings.sql("select a.i + b.i from range(10000000) a(i), range(10000000) b(i)")
    until(lambda: sql.running == 1)  # One before it may just be ending.
    reader.read_next_batch()
    del reader
    server.wait_for_calls(0)
    assert sql.running == 0


BOUNDS = Limits(
    sql_memory_bytes_max=32 << 20,
    sql_spill_bytes_max=0,
    sql_rows_max=100_000,
    sql_queries_max=1,
)

SPILLING = """select max(r), max(s) from (
    select row_number() over (order by hash(i)) r, i::varchar || '-------------------------------' s
    from range(1000000) t(i)
)"""
"""It sorts more than its memory holds, and with room to spill it ends: see the tests of engines."""

ENDLESS = "with recursive r as (select 1 n union all select n + 1 from r) select count(*) from r"


def test_bounds_are_exhausted_resources(
    subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "WAIT_SECONDS_MAX", 0.05)
    doubled = "i::varchar"
    for _ in range(10):
        doubled = f"replace({doubled}, '1', '{'1' * 20}')"
    with running_server(limits=BOUNDS) as server, wings_client.connect(server.flight) as client:
        for what, text, seconds in (
            ("memory", "select list(i) from range(100000000) r(i)", None),
            ("spill", SPILLING, None),
            ("rows", "select * from range(100001)", None),
            ("time", "select count(*) from range(100000000) a, range(100000000) b", 0.05),
            ("recursion", ENDLESS, 0.05),
            ("text", f"select 1 in ({', '.join(map(str, range(60_000)))})", None),
            ("doubled", f"select length({doubled}) from range(2) r(i)", None),
        ):
            with subtests.test(what), pytest.raises(ResourceExhausted):
                client.sql(text, timeout=seconds).read_all()
        with subtests.test("queries"):
            held = client.sql(ENDLESS)
            with pytest.raises(ResourceExhausted, match="run already"):
                client.sql("select 1")
            del held
        # A worker that was killed is not used again.
        server.wait_for_calls(0)
        assert rows(client, "select 1") == [(1,)]


def test_a_list_of_thousands_of_values_is_read(wings: Client, flights: str) -> None:
    values = ", ".join(map(str, range(5, 2_000)))
    assert rows(wings, f'select count(*) from "{flights}" where delay in ({values})') == [(25,)]


def test_a_topic_is_read_by_those_with_the_right() -> None:
    with running_server(root_token=ROOT) as server:
        with wings_client.connect(server.flight, token=ROOT) as operator:
            for topic in ("mine", "theirs"):
                operator.create_topic(topic, {"n": "int64"})
        prefix = "tenants/default/namespaces/default/topics"
        with client_of(server.flight, ROOT) as root:
            token = new_token(root, "analyst", f"read={prefix}/mine", f"write={prefix}/theirs")
        with wings_client.connect(server.flight, token=token) as client:
            assert rows(client, "select count(*) from mine") == [(0,)]
            for text in (
                "select * from theirs",
                "select * from mine where n in (select n from theirs)",
                "with mine as (select 1 n) select * from theirs",
                "select * from nothing",
                'select * from "acme/theirs".nothing',
            ):
                with pytest.raises(PermissionDenied):
                    client.sql(text)


def test_system_tables_tell_what_the_actions_do(
    wings: Client, server: RunningServer, flights: str
) -> None:
    name = f"tenants/default/namespaces/default/topics/{flights}"
    assert rows(
        wings,
        "select partition, log_start_offset, next_offset, bytes > 0, last_timestamp "
        "from system.partitions where topic = ? order by 1",
        [name],
    ) == [
        (f'"{state.partition}"', state.log_start_offset, state.next_offset, state.bytes > 0,
         state.last_timestamp)
        for state in wings.partitions(flights)
    ]  # fmt: skip
    described = wings.topic(flights)
    assert rows(
        wings, "select uuid, partition_key from wings.system.topics where topic = ?", [name]
    ) == [(described.uuid, "origin")]
    wings.commit_offsets("reader", flights, {"JFK": 5})
    assert rows(
        wings,
        'select consumer, partition, "offset" from system.consumers where topic = ?',
        [name],
    ) == [("reader", '"JFK"', 5)]
    wings.create_share_group("workers", flights)
    assert rows(wings, 'select "group" from system.groups where topic = ?', [name]) == [
        ("workers",)
    ]
    segments = "select sum(rows) from system.segments s where topic = ?"
    assert rows(wings, segments, [name]) == [(30,)]
    assert rows(wings, "select * from system.files") == []
    assert rows(wings, "select flight from system.nodes") == [(server.flight,)]
    assert rows(
        wings,
        f"select count(*) from \"{flights}\" f join system.topics t on t.partition_key = 'origin' "
        "where t.topic = ?",
        [name],
    ) == [(30,)]
    with pytest.raises(InvalidSql, match="no system table"):
        wings.sql("select * from system.secrets")


def test_dead_letters_are_tables_with_the_columns_of_their_messages(
    wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic("n: int64", "reason: string")
    name = topic.name.rpartition("/")[2]
    wings.push(topic, [{"n": n, "reason": f"r{n}"} for n in range(4)])
    judges, jury = f"judges-{name}", f"jury-{name}"
    wings.create_share_group(judges, topic, {"start": "earliest", "dlq_topic": f"{name}-dead"})
    with wings.share_consumer(judges, topic, max_messages=4) as consumer:
        delivery = next(iter(consumer))
        consumer.reject(delivery, [1, 3], reason="odd")
        consumer.accept(delivery, [0, 2])
    wings.fetch(f"{name}-dead", offset=0, min_messages=2, timeout=60)
    letters = f'system."dead_letters/{name}"'
    assert rows(
        wings, f'select "offset", reason, error, n, payload_reason from {letters} order by n'
    ) == [(0, "rejected", "odd", 1, "r1"), (1, "rejected", "odd", 3, "r3")]
    assert rows(wings, f"select source_offset from {letters} where n = 3") == [(3,)]
    for found in (wings.dead_letters(judges, topic), wings.dead_letters(judges)):
        held = found.read_all().sort_by("n").select(["n", "payload_reason", "error"])
        assert held.to_pylist() == [
            {"n": 1, "payload_reason": "r1", "error": "odd"},
            {"n": 3, "payload_reason": "r3", "error": "odd"},
        ]
    wings.create_share_group(jury, topic, {"dlq_topic": f"{name}-dead"})
    assert wings.dead_letters(jury).read_all().num_rows == 0
    wings.create_share_group(jury, wings.create_topic(f"{name}-other", {"n": "int64"}))
    with pytest.raises(InvalidArgument, match="give the topic"):
        wings.dead_letters(jury)
    with pytest.raises(GroupNotFound):
        wings.dead_letters("nobody")
    assert rows(wings, f"select count(*), sum(l.n) from {letters} l, {letters} r") == [(4, 8)]
    assert rows(
        wings,
        "select topic, payload from system.dead_letters where source_topic = ? order by 2",
        [topic.name],
    ) == [(f"{topic.name}-dead", f'{{"n":{n},"reason":"r{n}"}}') for n in (1, 3)]
    with pytest.raises(TopicNotFound):
        wings.sql('select * from system."dead_letters/nothing"')


def test_a_table_that_is_sent_along_is_joined(
    wings: Client, http: httpx.Client, flights: str
) -> None:
    names = {"code": ["JFK", "LAX"], "city": ["New York", "Los Angeles"]}
    text = f'select city, count(*) n from "{flights}" join names on code = origin group by 1'
    for table in (
        names,
        pa.table(names),
        pd.DataFrame(names),
        pl.DataFrame(names),
        [{"code": code, "city": city} for code, city in zip(*names.values(), strict=True)],
    ):
        found = wings.sql(f"{text} order by 1", tables={"names": table}).read_all()
        assert found.to_pylist() == [
            {"city": "Los Angeles", "n": 15},
            {"city": "New York", "n": 15},
        ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.table(names).schema) as writer:
        writer.write_table(pa.table(names))
    sent = base64.b64encode(sink.getvalue()).decode()
    body = {"sql": "select max(city) c from names", "tables": {"names": sent}}
    assert http.post("/v1/sql", json=body).json()["rows"] == [{"c": "New York"}]
    for broken in ("?", base64.b64encode(b"no stream").decode()):
        answer = http.post("/v1/sql", json={**body, "tables": {"names": broken}})
        assert answer.status_code == 400
    with pytest.raises(wings_client.InvalidArgument, match="no table"):
        wings.sql(text, tables={"names": 5})
    with pytest.raises(wings_client.InvalidTicket, match="at most"):
        wings.sql(text, tables={"names": {"code": [random.randbytes(4 << 20)]}})


def test_hints_about_settings_are_no_part_of_messages(wings: Client) -> None:
    for text in (
        "select (select i from range(3) r(i))",
        f"select {'(' * 1100}1{')' * 1100} + 1",
        f"select 1 {'+ 1' * 1100}",
    ):
        with pytest.raises((InvalidSql, ResourceExhausted)) as caught:
            wings.sql(text).read_all()
        assert "SET" not in str(caught.value), caught.value


def test_system_tables_show_what_their_reader_may_see() -> None:
    with running_server(root_token=ROOT) as server:
        with wings_client.connect(server.flight, token=ROOT) as operator:
            for topic in ("mine", "theirs"):
                operator.create_topic(topic, {"n": "int64"})
                operator.push(topic, [{"n": 1}])
                operator.commit_offsets("reader", topic, {None: 1})
        prefix = "tenants/default/namespaces/default/topics"
        with client_of(server.flight, ROOT) as root:
            token = new_token(root, "analyst", f"read={prefix}/mine")
        with wings_client.connect(server.flight, token=token) as client:
            for table in ("topics", "partitions", "segments", "consumers"):
                assert rows(client, f"select topic from system.{table}") == [(f"{prefix}/mine",)]
            assert rows(client, "select * from system.nodes") == []


LIVE: list[tuple[str, list[str] | None, str | None]] = [
    ("from {t}", None, None),
    ("select * from {t} where delay > 25", None, "(delay > 25)"),
    ("select delay, origin from {t} as f where f.delay % 2 = 0", ["delay", "origin"], None),
    ("select f.carrier from {t} f where carrier in ('c1', 'it''s')", ["carrier"], None),
    ('select "delay" from "default".{t} where not (delay between 3 and 27)', ["delay"], None),
    ("select __offset, origin from {t} where origin like 'J%' and delay is not null", None, None),
]


@pytest.mark.parametrize(("text", "columns", "predicate"), LIVE)
def test_a_live_view_has_the_rows_of_its_statement(
    wings: Client,
    http: httpx.Client,
    flights: str,
    text: str,
    columns: list[str] | None,
    predicate: str | None,
) -> None:
    sql = text.replace("{t}", f'"{flights}"')
    answer = http.post("/v1/actions/sql-live", json={"sql": sql})
    assert answer.status_code == 200, answer.text
    view = answer.json()
    assert view["topic"].endswith(f"/{flights}")
    if columns is not None:
        assert view["columns"] == columns
    if predicate is not None:
        assert view["filter"] == predicate
    read = wings.scan(view["topic"], filter=view["filter"], system_columns=True).read_all()
    shown = read.select(view["columns"]) if view["columns"] else read
    assert sorted(map(str, shown.to_pylist())) == sorted(
        map(str, wings.sql(sql).read_all().select(shown.column_names).to_pylist())
    )


@each(
    ("text", "told"),
    [
        ("select count(*) from t", "columns are to be the topic's"),
        ("select delay as d from t", "columns are to be the topic's"),
        ("select delay, delay from t", "stands there twice"),
        ("select * exclude (delay) from t", "`*` with changes"),
        ("from t order by delay", "ORDER BY"),
        ("from t limit 3", "LIMIT"),
        ("select distinct delay from t", "DISTINCT"),
        ("select delay from t group by delay", "GROUP BY"),
        ("from t, u", "more than one"),
        ("from (from t)", "more than one"),
        ("with x as (from t) from x", "plain SELECT"),
        ("from t union all from t", "plain SELECT"),
        ("from t where delay > ?", "parameters"),
        ("from t where __offset > 3", "system column"),
        ("from t where delay = (select max(delay) from t)", "subquery"),
        ("from system.topics", "system tables"),
        ("from t tablesample 3 rows", "sample"),
    ],
)
def test_what_no_follow_can_serve_is_refused_with_the_reason(
    http: httpx.Client, text: str, told: str
) -> None:
    answer = http.post("/v1/actions/sql-live", json={"sql": text})
    assert answer.status_code == 400
    assert answer.json()["code"] == "INVALID_SQL"
    assert told in answer.json()["message"]


def test_an_engine_that_told_of_a_live_view_runs_the_next_statement(
    server: RunningServer, wings: Client, flights: str
) -> None:
    server.server.log.sql.live(f'select delay from "{flights}" where delay > 28')
    assert rows(wings, f'select delay from "{flights}" where delay > 28') == [(29,)]


def test_the_command_follows_a_statement(
    server: RunningServer, wings: Client, flights: str
) -> None:
    """It shows what is there from where it begins, and what comes later."""
    command = [sys.executable, "-m", "wings_client.cli", "sql", "--endpoint", server.flight]
    text = f'select origin, delay from "{flights}" where delay >= 28'
    with subprocess.Popen(
        [*command, "--follow", "--from", "earliest", "--format", "json", text],
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        found = [json.loads(child.stdout.readline()) for _ in range(2)]
        wings.push(flights, [{"origin": "BOS", "delay": 99, "carrier": None}] * 2)
        found += [json.loads(child.stdout.readline()) for _ in range(2)]
        child.terminate()
    assert sorted(row["delay"] for row in found) == [28, 29, 99, 99]
    assert all(list(row) == ["origin", "delay"] for row in found)


def test_many_partitions_are_read_as_few_are(wings: Client, new_topic: NewTopic) -> None:
    topic = new_topic("k: int64", "n: int64", partition_key="k")
    wings.push(topic, [{"k": n % 200, "n": n} for n in range(1_000)])
    name = topic.name.rpartition("/")[2]
    for where, count in (("true", 1_000), ("k < 100", 500), ("k in (3, 5)", 10)):
        ((found, total, offsets, partitions, timed),) = rows(
            wings,
            f"select count(*), sum(n - k - 200 * __offset), max(__offset), "
            f'sum(__partition::int - k), count(__timestamp) from "{name}" where {where}',
        )
        assert (found, total, offsets, partitions, timed) == (count, 0, 4, 0, count)


def test_what_retention_has_taken_is_skipped(
    server: RunningServer, wings: Client, new_topic: NewTopic, trim: Trim
) -> None:
    topic = new_topic()
    for n in range(4):
        wings.push(topic, [{"n": n}])
    name = topic.name.rpartition("/")[2]
    opened = server.server.log.sql.open(f'select n from "{name}"', lambda _: None)
    trim(topic, 2)
    assert [row for batch in opened.batches() for row in batch.column(0).to_pylist()] == [2, 3]


def test_the_command_writes_rows_in_each_format(server: RunningServer, flights: str) -> None:
    def run(*arguments: str) -> bytes:
        command = [sys.executable, "-m", "wings_client.cli", "sql", "--endpoint", server.flight]
        return subprocess.run([*command, *arguments], check=True, capture_output=True).stdout

    text = f'select delay, carrier from "{flights}" where delay < ? order by 1'
    written = {name: run(text, "-p", "2", "--format", name) for name in get_args(Format)}
    assert b"carrier" in written["table"]
    expected = [{"delay": 0, "carrier": "c0"}, {"delay": 1, "carrier": "c1"}]
    assert json.loads(written["json"]) == expected
    assert written["csv"] == b'"delay","carrier"\n0,"c0"\n1,"c1"\n'
    with pa.ipc.open_stream(io.BytesIO(written["arrow"])) as reader:
        assert reader.read_all().to_pylist() == expected
    assert parquet.read_table(io.BytesIO(written["parquet"])).to_pylist() == expected
