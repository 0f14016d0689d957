"""Filters: what they may say, what they must not, and that they find what pyarrow finds."""

import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from tables import each

from wings_core.errors import InvalidFilter
from wings_core.fetch import engines
from wings_core.fetch import selection as filter_module
from wings_core.fetch.engines import ENGINES_MAX
from wings_core.fetch.expression import (
    CASTS_NESTED_MAX,
    COLUMN_REFERENCES_MAX,
    CONCATENATIONS_MAX,
    DEPTH_MAX,
    EXPRESSION_LENGTH_MAX,
    FUNCTIONS,
)
from wings_core.fetch.selection import RowFilter

# pyarrow's stubs know only some of the arguments that its functions take.
arrow: Any = pa
compute: Any = pc

SCHEMA: pa.Schema = arrow.schema(
    [
        ("a", pa.int64()),
        ("b", pa.float64()),
        ("s", pa.string()),
        ("ok", pa.bool_()),
        ("d", pa.date32()),
        ("ts", pa.timestamp("us")),
        ("tz", pa.timestamp("us", tz="UTC")),
        ("dec", pa.decimal128(10, 2)),
        ("bin", pa.binary()),
        ("l", pa.list_(pa.int64())),
        ("st", arrow.struct([("x", pa.int64()), ("y z", pa.string())])),
        ("m", pa.map_(pa.string(), pa.int64())),
        ("js", pa.string()),
        ("select", pa.int64()),
        ("x y", pa.int64()),
        ('q"q', pa.int64()),
        ("n\nl", pa.int64()),
        ("batch", arrow.struct([("a", pa.int64())])),
        ("C", pa.int64()),
        ("c", pa.int64()),
        ("É", pa.int64()),
        ("é", pa.int64()),
        ("half", pa.float16()),
        ("wide", pa.decimal256(70, 2)),
    ]
)

ROW: dict[str, Any] = {
    "a": 1,
    "b": 1.5,
    "s": "it's",
    "ok": True,
    "d": date(2026, 11, 20),
    "ts": datetime(2026, 11, 20, 12),  # noqa: DTZ001
    "tz": datetime(2026, 11, 20, 12, tzinfo=UTC),
    "dec": Decimal("1.50"),
    "bin": b"\x00\xff",
    "l": [1, 2, 3],
    "st": {"x": 1, "y z": "y"},
    "m": [("k", 1)],
    "js": '{"a": {"b": 1}, "s": "t"}',
    "select": 2,
    "x y": 3,
    'q"q': 4,
    "n\nl": 5,
    "batch": {"a": 7},
    "C": 8,
    "c": 9,
    "É": 10,
    "é": 11,
    "half": None,
    "wide": None,
}


def batch_of(rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> Any:
    return arrow.RecordBatch.from_pylist(rows, schema)


def evaluate(expression: str, batch: Any) -> list[bool]:
    row_filter = RowFilter.compile(expression, batch.schema)
    mask = row_filter.mask(batch.select(list(row_filter.columns)))
    assert mask.null_count == 0
    return mask.to_pylist()  # pyright: ignore[reportReturnType]


def refusal(expression: str, schema: pa.Schema = SCHEMA) -> InvalidFilter:
    with pytest.raises(InvalidFilter) as caught:
        RowFilter.compile(expression, schema)
    assert type(caught.value) is InvalidFilter
    assert len(caught.value.message.encode()) <= 512
    assert "\n" not in caught.value.message
    return caught.value


# What a filter may say.

TRUE = [
    "ok",
    "NOT NOT ok",
    "a = 1",
    "(((a)))=1",
    "a = 1 AND b > 1 OR s = 'x'",
    "a IN (1, 2, 3)",
    "a NOT IN (2, 3)",
    "(a, b) IN ((1, 1.5), (2, 3))",
    "a BETWEEN 0 AND 1",
    "a IS NOT NULL",
    "a IS DISTINCT FROM 2",
    "ok IS TRUE",
    "CASE WHEN a = 1 THEN ok ELSE FALSE END",
    "CASE a WHEN 1 THEN TRUE END",
    "COALESCE(NULL, a) = 1",
    "NULLIF(a, 1) IS NULL",
    "IF(a = 1, TRUE, FALSE)",
    "TRY(CAST(s AS INTEGER)) IS NULL",
    "-a < 0 AND +a > 0 AND a % 2 = 1 AND a // 2 = 0 AND a / 2 = 0.5",
    "abs(-a) = 1 AND round(b) = 2 AND greatest(a, 5) = 5",
    "a::VARCHAR = '1' AND CAST(a AS DOUBLE) = 1.0 AND TRY_CAST(s AS BIGINT) IS NULL",
    "s = 'it''s'",
    "s = E'it\\'s'",
    "s = $$it's$$",
    "s LIKE 'it%' AND s NOT LIKE 'x%' AND s ILIKE 'IT_S' AND s LIKE 'it!%' ESCAPE '!' IS FALSE",
    "s ^@ 'it' AND starts_with(s, 'it') AND contains(s, 't') AND suffix(s, 's')",
    "regexp_extract(s, '(i)' || 't', 1) = 'i' AND regexp_matches(s, 'IT', 'i')",
    "s SIMILAR TO 'it.s' AND regexp_matches(s, '^it') AND s ~ '.*t.s'",
    "lower(upper(s)) = s AND length(s) = 4 AND substring(s, 1, 2) = 'it' AND s[1] = 'i'",
    "s || '!' = 'it''s!' AND concat(s, '!') = s || '!'",
    "split_part(s, '''', 1) = 'it' AND trim(s) = s AND md5(s) <> s",
    "d = DATE '2026-11-20' AND d > '2020-01-01' AND year(d) = 2026",
    "ts = '2026-11-20 12:00:00' AND ts < TIMESTAMP '2027-01-01' AND hour(ts) = 12",
    "date_trunc('day', ts) = '2026-11-20' AND extract(month FROM ts) = 11",
    "ts + INTERVAL 1 DAY > '2026-11-21' AND ts - INTERVAL '1' HOUR < ts",
    "strftime(ts, '%Y-%m') = '2026-11' AND epoch_ms(ts) > 0",
    "tz = '2026-11-20T12:00:00Z' AND tz < TIMESTAMPTZ '2026-11-20T12:00:00-01:00'",
    "tz AT TIME ZONE 'UTC' = ts AND hour(tz) = 12",
    "dec = 1.5 AND dec * 2 = 3",
    "bin = '\\x00\\xFF'::BLOB AND octet_length(bin) = 2",
    "l[1] = 1 AND l[-1] = 3 AND len(l) = 3 AND 2 IN l AND l[1:2] = [1, 2]",
    "list_contains(l, 3) AND list_has_any(l, [3, 4]) AND list_sum(l) = 6 AND list_max(l) = 3",
    "list_filter(l, lambda x: x > 1) = [2, 3]",
    "len(list_filter(l, lambda x, i: x = i)) = 3",
    "st.x = 1 AND st.\"y z\" = 'y' AND st['x'] = 1 AND (st).x = 1",
    "m['k'] = 1 AND map_contains(m, 'k') AND cardinality(m) = 1",
    "js->>'$.a.b' = '1' AND json_extract_string(js, '$.s') = 't' AND js->>'s' = 't'",
    '"select" = 2 AND "x y" = 3 AND "q""q" = 4 AND "n\nl" = 5',
    "batch.a = 7 AND a = 1",
    "C = 8",
    "c = 9",
    "É = 10 AND é = 11",
    '"SELECT" = 2',
    "A = 1 and OK",
    "\n a \n = \n 1 \n",
]


@each("expression", TRUE)
def test_a_filter_may_be_any_plain_predicate(expression: str) -> None:
    assert evaluate(expression, batch_of([ROW])) == [True]
    assert evaluate(f"NOT ({expression})", batch_of([ROW])) == [False]


def test_a_row_for_which_the_predicate_is_null_does_not_pass() -> None:
    schema = arrow.schema([("a", pa.int64())])
    batch = batch_of([{"a": 1}, {"a": None}, {"a": 3}], schema)
    assert evaluate("a > 0", batch) == [True, False, True]
    assert evaluate("NOT a > 0", batch) == [False, False, False]
    assert evaluate("a IS NULL", batch) == [False, True, False]


def test_the_columns_are_those_it_names_each_once_in_the_topics_order() -> None:
    assert RowFilter.compile("s = 'x' AND a > 1 OR A < 0 AND st.x = 1", SCHEMA).columns == (
        SCHEMA.names.index("a"),
        SCHEMA.names.index("s"),
        SCHEMA.names.index("st"),
    )


def test_a_lambdas_parameter_hides_a_column_of_its_name() -> None:
    row_filter = RowFilter.compile("list_filter(l, lambda a: a > 1) = [2, 3]", SCHEMA)
    assert row_filter.columns == (SCHEMA.names.index("l"),)


def test_a_name_in_another_case_means_the_only_column_it_can() -> None:
    schema = arrow.schema([("Day", pa.int64())])
    assert RowFilter.compile("DAY = 1", schema).columns == (0,)


def test_an_empty_batch_has_an_empty_mask() -> None:
    assert evaluate("a > 1", batch_of([])) == []


def test_a_mask_is_as_long_as_a_large_batch_and_in_its_order() -> None:
    batch = arrow.record_batch({"a": arrow.array(range(200_000))})
    mask = RowFilter.compile("a % 3 = 0", batch.schema).mask(batch)
    assert mask.equals(compute.equal(arrow.array([0, 1, 2] * 66_667).slice(0, 200_000), 0))


# What it must not say.

FORMS = [
    "", " ", "\n", "a", "a + 1", "s", "l", "st", "(a, ok)", "ok, ok", "ok AS x", "x: ok", "a, b",
    "a >", "> 1", "a > 1 1", "a = = 1", "a := 1", "a = 1 = 1", "NOT", "s = 'x", 's = "x', "s = $$x",
    "a > 1;", "a > 1; SELECT 1", ";", "a > 1 -- x", "a > 1 /* x */", "/* x */ a > 1", "-- x",
    "/* x",
    "a > 1 # x", "TRUE", "NULL", "1 = 1", "'ok'", "a > 1\0",
]  # fmt: skip

ESCAPES = [
    "1=1) FROM read_text('/etc/passwd') --",
    "1=1) FROM read_text('/etc/passwd'); --",
    "1=1) FROM read_text('/etc/passwd') /*",
    "1=1) FROM (SELECT 1",
    "a > 1) FROM batch WHERE (ok",
    "a > 1), (SELECT content FROM read_text('/etc/passwd')",
    "a > 1) OR (ok",
    "(a > 1",
    "a > 1)",
    "((a > 1)",
    ")(",
    "a > 1] FROM batch, [ok",
    "a], [b",
    "a > 1) UNION SELECT (TRUE",
    "a > 1 UNION SELECT TRUE",
    "a > 1) ORDER BY (a",
    "a > 1) LIMIT (1",
    "a > 1) USING SAMPLE (1",
    "a > 1 FROM batch",
    "a > 1 WHERE ok",
    "a > 1 GROUP BY a",
    "ok QUALIFY TRUE",
    "ok WINDOW w AS ()",
    "SELECT ok",
    "(SELECT ok)",
    "FROM batch",
    "VALUES (TRUE)",
    "WITH x AS (SELECT 1) SELECT TRUE",
]

QUERIES = [
    "EXISTS (SELECT 1)",
    "EXISTS (FROM read_csv('/etc/passwd'))",
    "a IN (SELECT 1)",
    "a IN (FROM range(10))",
    "a = (SELECT max(a) FROM batch)",
    "a = ANY (SELECT 1)",
    "a > ALL (SELECT 1)",
    "a = ANY(l)",
    "s = (SELECT content FROM read_text('/etc/passwd'))",
    "s IN (SELECT file FROM glob('/etc/*'))",
    "a IN (SELECT a FROM python_rows)",
    "a IN (VALUES (1))",
    "ARRAY(SELECT 1) = l",
    "sum(a) > 1",
    "count(*) > 1",
    "count(DISTINCT a) > 1",
    "max(a) FILTER (WHERE ok) > 1",
    "string_agg(s, ',' ORDER BY a) = 'x'",
    "any_value(ok)",
    "first(ok)",
    "row_number() OVER () = 1",
    "sum(a) OVER (ORDER BY a) > 1",
    "lag(ok) OVER ()",
    "unnest(l) = 1",
    "GROUPING(a) = 1",
    "* IS NULL",
    "batch.* IS NULL",
    "COLUMNS(*) > 1",
    "COLUMNS('a') > 1",
    "*COLUMNS(*) > 1",
    "COLUMNS(x -> x = 'a') > 1",
    "a > $1",
    "a > $x",
    "a > ?",
    "#1 > 1",
    "DEFAULT",
    "lambda x: x > 1",
    "list_filter(lambda x: x > 1, l) = l",
]

COMMANDS = [
    "COPY batch TO '/tmp/x'",
    "ATTACH '/tmp/x.db'",
    "ATTACH 'x' AS y",
    "DETACH x",
    "PRAGMA version",
    "PRAGMA database_list",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET memory_limit = '1TB'",
    "RESET ALL",
    "CALL pragma_version()",
    "CREATE TABLE x (a INT)",
    "CREATE MACRO f(a) AS a",
    "DROP VIEW batch",
    "INSERT INTO batch VALUES (1)",
    "EXPORT DATABASE 'x'",
    "CHECKPOINT",
    "EXPLAIN SELECT 1",
    "BEGIN",
    "USE x",
]

FUNCTION_CALLS = [
    "read_csv('/etc/passwd') IS NULL",
    "read_text('/etc/passwd') = s",
    "glob('/etc/*') = s",
    "getenv('HOME') = s",
    "current_setting('memory_limit') = s",
    "getvariable('x') = s",
    "nextval('x') = a",
    "setseed(0.5) IS NULL",
    "random() < b",
    "uuid() = s",
    "now() > tz",
    "today() > d",
    "get_current_timestamp() > tz",
    "current_localtimestamp() > ts",
    "age(ts) > INTERVAL 1 DAY",
    "ago(INTERVAL 1 DAY) > ts",
    "current_database() = s",
    "current_query() = s",
    "version() = s",
    "error(s) IS NULL",
    "sleep_ms(1000) IS NULL",
    "write_log(s) IS NULL",
    "query('SELECT 1') IS NULL",
    "query_table('batch') IS NULL",
    "json_execute_serialized_sql(js) IS NULL",
    "json_serialize_sql(s) IS NULL",
    "json_serialize_plan(s) IS NULL",
    "json_deserialize_sql(js) IS NULL",
    "pg_typeof(a) = s",
    "pg_sleep(1) IS NULL",
    "txid_current() = a",
    "in_search_path('a', 'b')",
    "can_cast_implicitly(a, b)",
    "__internal_compress_string_hugeint(s) IS NULL",
    "parse_duckdb_log_message('x', s) IS NULL",
    "list_aggregate(l, 'sum') = 1",
    "repeat(s, 1000000000) = s",
    "replace(s, 'a', 'aaaaaaaa') = s",
    "regexp_replace(s, 'a', 'aaaaaaaa') = s",
    "lpad(s, 1000000000, 'x') = s",
    "printf('%1000000000d', a) = s",
    "format('{:1000000000}', a) = s",
    "range(1000000000) = l",
    "generate_series(1, 1000000000) = l",
    "list_resize(l, 1000000000) = l",
    "list_transform(l, lambda x: l) = [l]",
    "list_reduce(l, lambda x, y: x + y) = 1",
    "bar(a, 0, 1, 1000000000) = s",
    "hex(s) = s",
    "to_json(st) = js",
    "levenshtein(s, s) = 0",
    "main.abs(a) = 1",
    "system.main.abs(a) = 1",
    "a.abs() = 1",
    "abs(x := a) = 1",
    "struct_pack(x := a) = st",
    "{'x': a} = st",
    "MAP {'k': a} = m",
    "nosuchfunction(a) = 1",
]

PARTS = [
    "nope = 1",
    "st2.x = 1",
    "__offset = 1",
    "rowid = 1",
    "batch.nope = 1",
    "main.batch.a = 1",
    "python_rows = 1",
    "current_date = d",
    "current_timestamp > tz",
    "localtimestamp > ts",
    "current_user = s",
    "user = s",
    "half = 1",
    "wide = 1",
    "half IS NULL",
    "C = 1 AND c = 1",
    "a > s",
    "a = 'x'",
    "CAST('x' AS INTEGER) = a",
    "s + 1 = 2",
    "regexp_matches(s, '[')",
    "strftime(ts, '%!') = s",
    "a::INT[] = l",
    "a::STRUCT(x INT) = st",
    "s::ENUM('x') = s",
    "s::mytype = s",
    "s::main.mytype = s",
    "NULL::INT[1000000000] IS NULL AND ok",
    "a::UNION(x INT) IS NULL",
    "s::BIT = s",
    "s::VARIANT = s",
    "s COLLATE nocase = 'x'",
    "[a, 1] = l",
    "list_value(a) = l",
    "list_filter(l, lambda x: x > a) = l",
    "list_filter(l, lambda x: len(list_filter([1], lambda y: y > 1)) > x) = l",
    "list_filter(l, x -> x > 1) = l",
    "js -> '$.a' = 'x'",
    "js ->> '$.*' = 'x'",
    "js ->> '$..a' = 'x'",
    "js ->> s = 'x'",
    "json_extract(js, ['$.a', '$.b']) IS NULL",
    "regexp_matches(s, js)",
    "regexp_matches(s, js, 'i')",
    "regexp_full_match('x', lower(js))",
    "regexp_extract(s, js, 1) = 'x'",
    "s ~ js",
    "s !~ js",
    "s SIMILAR TO js",
    "s NOT SIMILAR TO (js || 'x')",
    "regexp_matches(s, CASE WHEN a = 1 THEN 'x' ELSE 'y' END)",
    "len(list_filter(['x'], lambda x: regexp_matches('x', x))) > a",
]

python_rows = arrow.table({"a": [1]})
"""What DuckDB would find by its name if it looked into Python's variables."""


@each("expression", FORMS + ESCAPES + QUERIES + COMMANDS + FUNCTION_CALLS + PARTS)
def test_anything_else_is_an_invalid_filter(expression: str) -> None:
    refusal(expression)


@each(
    ("expression", "message"),
    [
        ("nope = 1", "the topic has no column 'nope'"),
        ("wied = 1", "the topic has no column 'wied'; did you mean 'wide'?"),
        ("__offset > 5", "no column '__offset'; SQL sees system columns, filters do not"),
        ("a", "a filter must be of type BOOLEAN, this one is of type BIGINT"),
        ("1 = 1", "the filter reads no column"),
        ("a > 1)", 'cannot be parsed: syntax error at or near ")" (at character 6)'),
        ("s = '\u00fc' ]", 'syntax error at or near "]" (at character 9)'),
        ("a >", "the filter cannot be parsed: it ends too early"),
        ("a > 1 AND ", "the filter cannot be parsed: it ends too early"),
        ("a > (1 ", "the filter cannot be parsed: it ends too early"),
        ("CASE WHEN a > 1", "the filter cannot be parsed: it ends too early"),
        ("a > 1 -- x", "may not hold comments"),
        ("a IN (SELECT 1)", "may not hold a subquery"),
        ("read_text(s) = s", "the function 'read_text' is not one for filters"),
        ("lenght(s) = 1", "is not one for filters; did you mean 'length'"),
        ("a = 'x'", "Could not convert string 'x' to INT64"),
        ("s::mytype = s", "may not cast to mytype"),
        (
            "regexp_matches(s, js)",
            "expression of regexp_matches must be a constant, it may not come from 'js'",
        ),
        ("C = 1 AND c = 1", "columns 'C' and 'c' differ in case alone"),
        ("wide = 1", "column 'wide' cannot be read by a filter: it holds decimal256(70, 2)"),
    ],
)
def test_an_error_says_what_is_wrong(expression: str, message: str) -> None:
    assert message in refusal(expression).message


def test_a_name_that_may_be_either_of_two_columns_is_refused() -> None:
    schema = arrow.schema([("Ab", pa.int64()), ("aB", pa.int64())])
    assert "may be 'Ab' or 'aB'" in refusal("AB = 1", schema).message
    assert RowFilter.compile("aB = 1", schema).columns == (1,)


@each(
    "data_type",
    [
        pa.float16(),
        pa.decimal256(10, 2),
        pa.decimal128(10, -2),
        pa.list_(pa.float16()),
        arrow.struct([("x", pa.decimal256(10, 2))]),
        pa.map_(pa.string(), pa.list_(pa.float16())),
        arrow.list_(pa.int64(), 0),
        arrow.struct([]),
    ],
)
def test_a_column_that_duckdb_cannot_read_is_named_where_it_is_used(data_type: Any) -> None:
    schema = arrow.schema([("a", pa.int64()), ("bad", data_type)])
    assert refusal("bad IS NULL", schema).column == "bad"
    assert RowFilter.compile("a IS NULL", schema).columns == (0,)


READABLE = [
    pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(),
    pa.uint32(), pa.uint64(), pa.float32(), pa.float64(), pa.string(), pa.large_string(),
    pa.binary(), pa.large_binary(), pa.binary(4), pa.date32(), pa.date64(), pa.time32("s"),
    pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.timestamp("s"), pa.timestamp("ms"),
    pa.timestamp("us"), pa.timestamp("ns"), pa.timestamp("s", tz="UTC"),
    pa.timestamp("ns", tz="America/New_York"), pa.duration("s"), pa.duration("ns"),
    pa.month_day_nano_interval(), pa.decimal32(5, 2), pa.decimal64(18, 2), pa.decimal128(38, 10),
    pa.list_(pa.int64()), pa.large_list(pa.string()), arrow.list_(pa.int64(), 3),
    arrow.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))]),
    pa.map_(pa.string(), pa.int64()),
]  # fmt: skip


@each("data_type", READABLE)
def test_every_other_column_can_be_read(data_type: Any) -> None:
    schema = arrow.schema([("c", data_type)])
    batch = arrow.RecordBatch.from_arrays([arrow.nulls(3, data_type)], schema=schema)
    assert evaluate("c IS NULL", batch) == [True, True, True]


# Bounds.


def test_a_filter_has_a_bound_on_its_length() -> None:
    def padded(length: int) -> str:
        return "a > 1" + " " * (length - 5)

    RowFilter.compile(padded(EXPRESSION_LENGTH_MAX), SCHEMA)
    assert "at most" in refusal(padded(EXPRESSION_LENGTH_MAX + 1)).message


def test_a_filter_has_a_bound_on_its_depth() -> None:
    RowFilter.compile("NOT " * (DEPTH_MAX - 1) + "ok", SCHEMA)
    assert "nested more than" in refusal("NOT " * DEPTH_MAX + "ok").message
    refusal("NOT " * 4_000 + "ok")
    for opening, closing in (("(", ")"), ("[", "]"), ("abs(", ")"), ("CASE WHEN ok THEN ", " END")):
        refusal(opening * 600 + "a" + closing * 600)


def test_a_filter_that_would_take_hours_to_parse_is_refused() -> None:
    for piece, times in (("(", 15_000), ("a IN (", 2_500), ("(with a as ", 12)):
        refusal(piece * times)


@pytest.mark.parametrize(
    ("begin", "each", "end", "most"),
    [
        ("ok", " OR a = 1", "", COLUMN_REFERENCES_MAX - 1),
        ("s", " || s", " = 'x'", CONCATENATIONS_MAX),
        ("concat(s", ", s", ") = 'x'", CONCATENATIONS_MAX),
        ("a", "::VARCHAR", " = '1'", CASTS_NESTED_MAX),
    ],
)
def test_what_makes_a_filter_costly_has_a_bound(begin: str, each: str, end: str, most: int) -> None:
    RowFilter.compile(begin + each * most + end, SCHEMA)
    assert "at most" in refusal(begin + each * (most + 1) + end).message


def test_a_long_list_of_constants_is_fine() -> None:
    values = ", ".join(str(value) for value in range(2_000))
    assert evaluate(f"a IN ({values})", batch_of([ROW, {**ROW, "a": -1}])) == [True, False]


def test_every_function_is_scalar_and_the_same_each_time_or_a_plain_macro() -> None:
    found = duckdb.connect().execute(
        "SELECT function_name, function_type, stability, internal, macro_definition, "
        "regexp_matches(concat(parameter_types::VARCHAR, return_type), 'TIME ZONE|TIMESTAMPTZ') "
        "FROM duckdb_functions()"
    )
    kinds: dict[str, set[tuple[str, str | None]]] = {}
    for name, kind, stability, internal, macro, is_zoned in found.fetchall():
        if name in FUNCTIONS:
            assert internal
            if is_zoned and stability == "CONSISTENT_WITHIN_QUERY":
                continue  # By the session's time zone, which is the same for all filters.
            kinds.setdefault(name, set()).add((kind, stability))
            assert macro is None or "select" not in macro.lower()
    assert set(kinds) == FUNCTIONS
    for name, variants in kinds.items():
        assert variants in ({("scalar", "CONSISTENT")}, {("macro", None)}), name


# Data on which it fails.


@each(
    ("expression", "good", "bad"),
    [
        ("s::INTEGER > 0", {"s": "1"}, {"s": "x"}),
        ("a + a > 0", {"a": 1}, {"a": (1 << 63) - 1}),
        ("a * a > 0", {"a": 1}, {"a": 1 << 62}),
        ("a::TINYINT > 0", {"a": 1}, {"a": 1000}),
        ("s::DATE > '2020-01-01'", {"s": "2026-11-20"}, {"s": "2026-13-20"}),
        ("js->>'$.a' = '1'", {"js": '{"a": 1}'}, {"js": "{"}),
        ("b::INTEGER > 0", {"b": 4.0}, {"b": 1e300}),
    ],
)
def test_a_filter_that_fails_on_the_data_is_an_invalid_filter(
    expression: str, good: dict[str, Any], bad: dict[str, Any]
) -> None:
    row_filter = RowFilter.compile(expression, SCHEMA)
    columns = list(row_filter.columns)
    batch = batch_of([{**ROW, **good}, {**ROW, **bad}])
    with pytest.raises(InvalidFilter, match="the filter fails: ") as caught:
        row_filter.mask(batch.select(columns))
    assert "\n" not in caught.value.message
    assert len(caught.value.message.encode()) <= 512
    # What failed leaves nothing behind.
    assert row_filter.mask(batch.slice(0, 1).select(columns)).to_pylist() == [True]


@each(
    "data_type",
    [arrow.timestamp(unit, tz=zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")]
    + [pa.duration(unit) for unit in ("s", "ms", "us", "ns")],
)
def test_times_beyond_duckdbs_range_are_an_invalid_filter_or_fine(data_type: Any) -> None:
    extremes = [0, 1, -1, 10**15, -(10**15), (1 << 63) - 1, -(1 << 63)]
    schema = arrow.schema([("c", data_type)])
    comparison = RowFilter.compile("c = c", schema)
    text = RowFilter.compile("c::VARCHAR <> ''", schema)
    for value in extremes:
        batch = arrow.record_batch([arrow.array([value]).view(data_type)], schema=schema)
        for row_filter in (comparison, text):
            try:
                mask = row_filter.mask(batch)
            except InvalidFilter:
                continue
            assert mask.to_pylist() == [True]
    assert evaluate("c = c", arrow.record_batch([arrow.array([0]).view(data_type)], schema=schema))


# As pyarrow finds.

values = {
    "a": st.none() | st.integers(-3, 3) | st.sampled_from([-(1 << 63), (1 << 63) - 1]),
    # Without -0.0, which SQL takes for 0.0 and pyarrow's `is_in` does not.
    "b": st.none() | st.sampled_from([-1.5, 0.0, 1.5, float("inf"), 1e300]),
    "s": st.none() | st.text("ab'\"\\%_é𝄞\0\n", max_size=3),
    "ok": st.none() | st.booleans(),
}
plain_schema = arrow.schema(
    [("a", pa.int64()), ("b", pa.float64()), ("s", pa.string()), ("ok", pa.bool_())]
)


def slice_of(rows: list[dict[str, Any]], start: int, length: int) -> Any:
    return batch_of(rows, plain_schema).slice(min(start, len(rows)), length)


batches = st.builds(
    slice_of,
    st.lists(st.fixed_dictionaries(values), max_size=12),
    st.integers(0, 3),
    st.integers(0, 12),
)
OPERATIONS = {
    "=": compute.equal, "<>": compute.not_equal, "<": compute.less, "<=": compute.less_equal,
    ">": compute.greater, ">=": compute.greater_equal,
}  # fmt: skip
Predicate = tuple[str, Callable[[Any], Any]]


def quoted(value: object) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, float):
        return f"'{value}'::DOUBLE"
    return str(value)


def comparison_of(column: str, sign: str, value: Any) -> Predicate:
    operation: Any = OPERATIONS[sign]
    data_type = plain_schema.field(column).type
    return (
        f"{column} {sign} {quoted(value)}",
        lambda batch: operation(batch.column(column), arrow.scalar(value, data_type)),
    )


def membership_of(column: str, found: list[Any]) -> Predicate:
    data_type = plain_schema.field(column).type

    def check(batch: Any) -> Any:
        array = batch.column(column)
        inside = compute.is_in(array, value_set=arrow.array(found, data_type))
        return compute.if_else(array.is_null(), arrow.scalar(None, pa.bool_()), inside)

    return f"{column} IN ({', '.join(quoted(value) for value in found)})", check


def is_null(column: str) -> Predicate:
    return f"{column} IS NULL", lambda batch: batch.column(column).is_null()


def negated(one: Predicate) -> Predicate:
    return f"NOT ({one[0]})", lambda batch: compute.invert(one[1](batch))


def both(one: Predicate, other: Predicate) -> Predicate:
    return (
        f"({one[0]}) AND ({other[0]})",
        lambda batch: compute.and_kleene(one[1](batch), other[1](batch)),
    )


def either(one: Predicate, other: Predicate) -> Predicate:
    return (
        f"({one[0]}) OR ({other[0]})",
        lambda batch: compute.or_kleene(one[1](batch), other[1](batch)),
    )


def literals(column: str) -> st.SearchStrategy[Any]:
    return values[column].filter(lambda value: value is not None and "\0" not in str(value))


columns = st.sampled_from(["a", "b", "s"])
leaves = st.one_of(
    columns.flatmap(
        lambda column: st.builds(
            comparison_of, st.just(column), st.sampled_from(list(OPERATIONS)), literals(column)
        )
    ),
    columns.flatmap(
        lambda column: st.builds(
            membership_of, st.just(column), st.lists(literals(column), min_size=1, max_size=3)
        )
    ),
    st.sampled_from(["a", "b", "s", "ok"]).map(is_null),
)
predicates = st.recursive(
    leaves,
    lambda inner: st.one_of(
        inner.map(negated), st.builds(both, inner, inner), st.builds(either, inner, inner)
    ),
    max_leaves=5,
)


@given(predicates, batches)
def test_a_filter_finds_what_pyarrow_finds(predicate: Predicate, batch: Any) -> None:
    expression, expected = predicate
    assert evaluate(expression, batch) == expected(batch).fill_null(False).to_pylist()


@given(st.text("ab1()[]{}'\"=<>,.:;-*/%$#@!~^&| \n\\", max_size=30))
def test_any_other_text_is_a_filter_or_an_invalid_filter(text: str) -> None:
    try:
        row_filter = RowFilter.compile(text, plain_schema)
    except InvalidFilter:
        return
    assert row_filter.columns


# Threads.


@pytest.mark.hypothesis
def test_many_more_threads_than_engines_filter_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "WAIT_SECONDS_MAX", 60.0)  # A busy machine takes over five.
    batch = arrow.record_batch({"a": arrow.array(range(1_000))})
    threads = ENGINES_MAX * examples(3, 8)
    together = threading.Barrier(threads)
    found: dict[int, int] = {}

    def run(limit: int) -> None:
        together.wait()
        row_filter = RowFilter.compile(f"a < {limit}", batch.schema)
        for _ in range(3):
            found[limit] = row_filter.mask(batch).true_count
            with pytest.raises(InvalidFilter):
                RowFilter.compile("nope", batch.schema)

    running = [threading.Thread(target=run, args=(limit,)) for limit in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert found == {limit: limit for limit in range(threads)}


def test_one_filter_serves_many_threads() -> None:
    batch = arrow.record_batch({"a": arrow.array(range(1_000))})
    row_filter = RowFilter.compile("a % 2 = 0", batch.schema)
    counts: list[int] = []
    running = [
        threading.Thread(target=lambda: counts.append(row_filter.mask(batch).true_count))
        for _ in range(ENGINES_MAX * 4)
    ]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert counts == [500] * len(running)


def test_a_filter_is_compiled_once_for_a_schema_and_a_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(filter_module, "FILTERS_KEPT_MAX", 4)

    def compiled(text: str, schema: Any) -> RowFilter:
        return RowFilter.compile(text, schema)

    same = arrow.schema([(field.name, field.type) for field in SCHEMA])
    known = compiled("a = 41", SCHEMA)
    assert compiled("a = 41", same) is known
    other = arrow.schema([("a", pa.string())])
    assert compiled("a = 41", other) is not known
    for number in range(3):
        compiled(f"a = {number}", SCHEMA)
    assert compiled("a = 41", same) is not known


@pytest.mark.programs
def test_the_first_filter_of_a_process_does_not_wait_for_pandas() -> None:
    pytest.importorskip("pandas")
    # In a process of its own, as pyarrow imports pandas for much that tests do.
    script = """
import struct, sys
import pyarrow as pa
from wings_core.fetch.selection import RowFilter

values = pa.Array.from_buffers(pa.int64(), 2, [None, pa.py_buffer(struct.pack("<2q", 1, 2))])
rows = pa.RecordBatch.from_arrays([values], names=["n"])
assert RowFilter.compile("n = 2", rows.schema).mask(rows).true_count == 1
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
