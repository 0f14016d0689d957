"""Kernels: that Arrow finds exactly what DuckDB finds, over all types, and where it is asked to."""

import struct
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from tables import each

from wings_core.errors import InvalidFilter
from wings_core.fetch.selection import RowFilter
from wings_core.fetch.storage_values import array_of, integer_range

# pyarrow's stubs know only some of the arguments that its functions take.
arrow: Any = pa

INTEGERS = [getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)]
DECIMALS = [arrow.decimal128(*each) for each in ((3, 0), (4, 4), (10, 2), (18, 9), (38, 10))]
FLOATS = [pa.float32(), pa.float64()]
TEXTS = [pa.string(), pa.large_string()]
BINARIES = [pa.binary(), pa.large_binary()]
TIMES = [
    pa.date32(),
    pa.time64("us"),
    *[arrow.timestamp(unit) for unit in ("s", "ms", "us", "ns")],
    arrow.timestamp("us", "UTC"),
    arrow.timestamp("us", "Europe/Berlin"),
]
OTHERS = [  # Left to DuckDB altogether.
    pa.date64(), pa.time32("s"), pa.time64("ns"), pa.timestamp("s", "UTC"), pa.binary(2),
    pa.duration("us"), pa.decimal64(15, 2), pa.list_(pa.int64()),
]  # fmt: skip
TYPES = [pa.bool_(), *INTEGERS, *DECIMALS, *FLOATS, *TEXTS, *BINARIES, *TIMES]

WORDS = [
    "",
    "a",
    "A",
    "ab",
    "abc",
    "b",
    "é",
    "e\u0301",
    "ß",
    "𝄞",
    "a\0b",
    "\0",
    "%",
    "_",
    "a%",
    "\\",
]
MOMENTS = ["1970-01-01", "2026-11-20", "2026-11-20 12:00:00", "1969-12-31 23:59:59.999999"]
NUMBERS = [
    "0", "-0", "1", "-1", "5", "127", "128", "255", "256", "32768", "65536", "2147483647",
    "2147483648", "-2147483649", "4294967296", "9223372036854775807", "9223372036854775808",
    "-9223372036854775808", "18446744073709551615", "18446744073709551616", "0.5", "-0.5", "1.5",
    "1.005", "99.99", "999.999", "0.1", "-0.0", "1e0", "1e3", "0.1e0", "1e18", "9.3e18", "1e300",
    "'nan'::DOUBLE", "'inf'::DOUBLE", "'-inf'::FLOAT", "0.1::FLOAT", "'1'", "'1.5'", "1::HUGEINT",
    "3::UTINYINT", "2.50::DECIMAL(9, 4)", "2 + 3", "NULL",
]  # fmt: skip
FLOAT_VALUES = [0.0, -0.0, 0.5, 1.0, -1.0, 0.1, 1e18, float("inf"), float("-inf"), float("nan")]


def stored_values(data_type: Any) -> st.SearchStrategy[Any]:
    """Return what an array of a type stores: the usual, and the extremes."""
    if pa.types.is_boolean(data_type):
        return st.booleans()
    if pa.types.is_floating(data_type):
        sampled = FLOAT_VALUES
        if data_type == pa.float32():
            sampled = [struct.unpack("f", struct.pack("f", value))[0] for value in FLOAT_VALUES]
        return st.sampled_from(sampled) | st.floats(width=32 if data_type == pa.float32() else 64)
    if pa.types.is_integer(data_type) or pa.types.is_decimal(data_type):
        low, high = integer_range(data_type)
        near = st.integers(max(low, -300), min(high, 300))
        return near | st.sampled_from([low, low + 1, high - 1, high]) | st.integers(low, high)
    if pa.types.is_temporal(data_type):
        return times(data_type)
    texts = st.sampled_from(WORDS) | st.text("abé𝄞%_\0", max_size=3)
    return texts if data_type in TEXTS else texts.map(str.encode)


def times(data_type: Any) -> st.SearchStrategy[int]:
    if pa.types.is_time(data_type):
        return st.integers(0, 86_400_000_000 - 1)
    bits = data_type.bit_width
    extremes = [-(1 << bits - 1) + 1, (1 << bits - 1) - 1, 0, -1, 1]  # The infinities among them.
    day = (
        1
        if bits == 32
        else 86_400 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[data_type.unit]
    )
    near = st.integers(-1, 30_000).map(lambda days: days * day)
    return (
        near | st.just(20_777 * day) | st.just(20_777 * day + day // 2) | st.sampled_from(extremes)
    )


def quoted(text: str) -> str:
    """Return a text as a SQL literal, which may hold anything but a NUL as it is."""
    return (
        "("
        + " || chr(0) || ".join("'" + p.replace("'", "''") + "'" for p in text.split("\0"))
        + ")"
    )


def literals(data_type: Any) -> st.SearchStrategy[str]:
    """Return constants to compare a column with, of its type and of others."""
    if pa.types.is_boolean(data_type):
        return st.sampled_from(["TRUE", "FALSE", "NULL", "'true'", "1"])
    if data_type in TEXTS:
        return st.sampled_from(WORDS).map(quoted) | st.just("NULL")
    if data_type in BINARIES:
        return st.sampled_from(
            [*(f"'{w}'::BLOB" for w in ("", "a", r"\x00\xFF", r"a\x5C\x27")), "NULL"]
        )
    if pa.types.is_temporal(data_type):
        return moments(data_type)
    typed = stored_values(data_type).map(lambda value: number(data_type, value))
    return st.sampled_from(NUMBERS) | typed


def number(data_type: Any, value: Any) -> str:
    if pa.types.is_floating(data_type):
        return f"'{value!r}'::{'FLOAT' if data_type == pa.float32() else 'DOUBLE'}"
    return (
        str(Decimal(value).scaleb(-data_type.scale))
        if pa.types.is_decimal(data_type)
        else str(value)
    )


def moments(data_type: Any) -> st.SearchStrategy[str]:
    if pa.types.is_time(data_type):
        return st.sampled_from(["'12:00:00'", "TIME '00:00:00.000001'", "NULL"])
    casts = ["", "DATE ", "TIMESTAMP ", "TIMESTAMPTZ ", "TIMESTAMP_S ", "TIMESTAMP_NS "]
    of_casts = st.tuples(st.sampled_from(casts), st.sampled_from(MOMENTS))
    return of_casts.map(lambda pair: f"{pair[0]}'{pair[1]}'") | st.sampled_from(
        ["'infinity'", "NULL"]
    )


SIGNS = st.sampled_from(
    ["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"]
)


@st.composite
def leaves(draw: st.DrawFn, columns: Sequence[Any]) -> str:
    index = draw(st.integers(0, len(columns) - 1))
    name, of_type = f"c{index}", literals(columns[index])
    form = draw(st.integers(0, 9))
    if form < 5:
        constant, sign = draw(of_type), draw(SIGNS)
        return f"{name} {sign} {constant}" if draw(st.booleans()) else f"{constant} {sign} {name}"
    if form == 5:
        return f"{name} {draw(SIGNS)} c{draw(st.integers(0, len(columns) - 1))}"
    if form == 6:
        return f"{name} IN ({', '.join(draw(st.lists(of_type, min_size=1, max_size=4)))})"
    if form == 7:
        negation = draw(st.sampled_from(["", "NOT "]))
        return f"{name} {negation}BETWEEN {draw(of_type)} AND {draw(of_type)}"
    if form == 8 and columns[index] in TEXTS:
        part = draw(st.sampled_from(WORDS))
        patterns = [f"{part}%", f"%{part}", f"%{part}%", part]
        like = f"{name} LIKE {quoted(draw(st.sampled_from(patterns)))}"
        calls = [f"{f}({name}, {quoted(part)})" for f in ("starts_with", "contains", "suffix")]
        return draw(st.sampled_from([like, *calls]))
    return f"{name} IS {draw(st.sampled_from(['', 'NOT ']))}NULL"


@st.composite
def predicates(draw: st.DrawFn, columns: Sequence[Any]) -> str:
    """Return leaves joined by AND, OR and NOT."""
    found = draw(leaves(columns))
    for _ in range(draw(st.sampled_from([0, 0, 1, 2, 3]))):
        found = f"NOT ({found})" if draw(st.booleans()) else found
        found = f"({found}) {draw(st.sampled_from(['AND', 'OR']))} ({draw(leaves(columns))})"
    return found


@st.composite
def cases(draw: st.DrawFn, types: Sequence[Any]) -> tuple[str, Any]:
    """Return a predicate and rows of its columns, a slice of more."""
    first = draw(st.sampled_from(types))
    columns = [first, draw(st.just(first) | st.sampled_from(types))]
    rows = draw(st.integers(1, 12))
    arrays = [
        array_of(
            column,
            draw(st.lists(st.none() | stored_values(column), min_size=rows, max_size=rows)),
        )
        for column in columns
    ]
    batch = arrow.RecordBatch.from_arrays(arrays, names=["c0", "c1"])
    return draw(predicates(columns)), batch.slice(draw(st.integers(0, 2)))


def masks(row_filter: RowFilter, batch: Any) -> list[bool]:
    return row_filter.mask(batch.select(list(row_filter.columns))).to_pylist()  # pyright: ignore[reportReturnType]


def check_same(expression: str, batch: Any) -> None:
    """Check that Arrow and DuckDB find the same, of the opposite too: so nulls are compared."""
    for text in (expression, f"NOT ({expression})"):
        try:
            row_filter = RowFilter.compile(text, batch.schema)
        except InvalidFilter:  # As a text that is no number.
            continue
        if row_filter.kernel is None:
            continue
        assert masks(row_filter, batch) == masks(replace(row_filter, kernel=None), batch), text


@given(st.data())
def test_arrow_finds_what_duckdb_finds(data: st.DataObject) -> None:
    for _ in range(examples(3, 60)):
        check_same(*data.draw(cases(TYPES)))


@each("data_type", TYPES)
def test_the_plain_predicates_over_a_type_run_in_arrow(data_type: Any) -> None:
    schema = arrow.schema([("c", data_type), ("other", data_type)])
    constant = {
        pa.bool_(): "TRUE",
        **dict.fromkeys(TEXTS, "'x'"),
        **dict.fromkeys(BINARIES, "'x'::BLOB"),
        **dict.fromkeys(TIMES, "'2026-11-20 12:00:00'"),
        pa.date32(): "'2026-11-20'",
        pa.time64("us"): "'12:00:00'",
    }.get(data_type, "0")
    forms = (
        "c = @", "c <> @", "c < @", "@ <= c", "c > @ AND other >= @", "c IN (@, NULL)", "c IS NULL",
        "c NOT IN (@)", "c BETWEEN @ AND @ OR NOT c > @", "c = other", "c IS DISTINCT FROM @",
    )  # fmt: skip
    text = " OR ".join(f"({form.replace('@', constant)})" for form in forms)
    assert RowFilter.compile(text, schema).kernel is not None


@each(
    "predicate",
    [
        "s LIKE 'x%'", "s LIKE '%x'", "s LIKE '%x%'", "s LIKE 'x'", "s NOT LIKE 'x%'", "s ^@ 'x'",
        "starts_with(s, 'x')", "i > 1.5", "i < 1e3", "i = n", "u = -1", "i + 1 > 5", "f < 0.1",
        "i IN (1, 2.5, 3000000000)", "ts > TIMESTAMP '2020-01-01' + INTERVAL 1 DAY", "i > f",
        "date_trunc('day', ts) = '2026-11-20'", "ok", "NOT ok", "ok IS TRUE",
    ],
)  # fmt: skip
def test_what_duckdb_makes_plain_runs_in_arrow(predicate: str) -> None:
    assert RowFilter.compile(predicate, PLAIN).kernel is not None


PLAIN: Any = arrow.schema(
    [
        ("s", pa.string()), ("i", pa.int32()), ("n", pa.int64()), ("u", pa.uint64()),
        ("f", pa.float32()), ("d", pa.float64()), ("dec", pa.decimal128(10, 2)), ("ok", pa.bool_()),
        ("ts", pa.timestamp("us")), ("tz", pa.timestamp("us", "UTC")), ("day", pa.date32()),
    ]
)  # fmt: skip


@each(
    "predicate",
    [
        "s LIKE 'x_'", "s ILIKE 'x%'", "dec > 1e3", "d = 'nan'", "i::VARCHAR = '1'",
        "length(s) = 3",
        "CASE WHEN ok THEN ok ELSE FALSE END", "COALESCE(i, 0) > 1", "(i, n) = (1, 2)", "ts = tz",
        "day > ts", "dec = n", "u > n", "year(day) = 2026", "s = lower(s)", "(i = 1) = ok",
    ],
)  # fmt: skip
def test_the_rest_is_left_to_duckdb(predicate: str) -> None:
    assert RowFilter.compile(predicate, PLAIN).kernel is None


@each("data_type", OTHERS)
def test_other_types_are_left_to_duckdb(data_type: Any) -> None:
    assert RowFilter.compile("c IS NULL", arrow.schema([("c", data_type)])).kernel is None


@pytest.mark.parametrize("value", [-0.0, 0.0])
def test_zeros_are_one_in_a_list_too(value: float) -> None:
    batch = arrow.record_batch({"c": pa.array([0.0, -0.0, 1.0, None])})
    check_same(f"c IN ({value}, 5)", batch)
    assert masks(RowFilter.compile(f"c IN ({value}, 5)", batch.schema), batch)[:2] == [True, True]
