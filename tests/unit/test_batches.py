"""Batches: schemas that fit, data that is sound, and nulls only where they may be."""

import contextlib
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import each

from wings_core.batches import check_batch, check_stream_schema
from wings_core.errors import SchemaMismatch
from wings_core.schemas import parse_type

# pyarrow's stubs know only some of the arguments that its factories take.
arrow: Any = pa


def required(name: str, data_type: pa.DataType) -> Any:
    return pa.field(name, data_type, nullable=False)


def batch_of(data_type: Any, values: list[Any]) -> pa.RecordBatch:
    """A batch of one column `a`, made as if the type had no required fields."""
    array = arrow.array(values, relaxed(data_type))
    return arrow.RecordBatch.from_arrays([array], names=["a"])


def relaxed(found: pa.DataType) -> Any:
    """The same type with everything nullable that may be."""
    data_type: Any = found
    if pa.types.is_struct(found):
        names: list[str] = data_type.names
        return arrow.struct([(name, relaxed(data_type.field(name).type)) for name in names])
    if pa.types.is_map(data_type):
        return arrow.map_(relaxed(data_type.key_type), relaxed(data_type.item_type))
    if pa.types.is_fixed_size_list(data_type):
        return arrow.list_(relaxed(data_type.value_type), data_type.list_size)
    if pa.types.is_large_list(data_type):
        return arrow.large_list(relaxed(data_type.value_type))
    if pa.types.is_list(data_type):
        return arrow.list_(relaxed(data_type.value_type))
    return data_type


def check(data_type: Any, values: list[Any], *, nullable: bool = True) -> None:
    """Check values against a topic's column `a`, whole and as slices of a longer batch."""
    schema = arrow.schema([pa.field("a", data_type, nullable)])
    batch = batch_of(data_type, values)
    check_stream_schema(schema, batch.schema)
    check_batch(schema, batch)


# The schema of a stream.

TOPIC = arrow.schema(
    [
        required("id", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("s", arrow.struct([required("x", pa.int64()), ("y", pa.list_(pa.string()))])),
        pa.field("m", arrow.map_(pa.string(), required("value", pa.int64()))),
    ]
)


def test_the_topics_own_schema_fits() -> None:
    check_stream_schema(TOPIC, TOPIC)


def test_metadata_and_nullability_are_ignored_also_nested() -> None:
    nested = pa.field("x", pa.int64(), metadata={"k": "v"})
    schema = arrow.schema(
        [
            pa.field("id", pa.int64(), metadata={"k": "v"}),
            required("name", pa.string()),
            pa.field("at", pa.timestamp("us", tz="UTC")),
            pa.field("s", arrow.struct([nested, required("y", pa.list_(pa.string()))])),
            pa.field("m", pa.map_(pa.string(), pa.int64())),
        ],
        metadata={"pandas": "{}"},
    )
    check_stream_schema(TOPIC, schema)


@each(
    ("expected", "actual"),
    [
        ("list<item: int64>", "list<element: int64 not null>"),
        ("large_list<item: int64>", "large_list<l: int64>"),
        ("fixed_size_list<item: int64>[2]", "fixed_size_list<e: int64>[2]"),
        ("map<string, int64>", "map<string ('k'), int64 not null ('v')>"),
    ],
)
def test_names_of_list_items_and_map_parts_are_ignored(expected: str, actual: str) -> None:
    check_stream_schema(
        arrow.schema([("a", parse_type(expected))]), arrow.schema([("a", parse_type(actual))])
    )


def of_type(name: str, data_type: pa.DataType) -> Any:
    """The topic's schema with another type for one column."""
    return TOPIC.set(TOPIC.get_field_index(name), pa.field(name, data_type))


DIFFERENT: list[tuple[Any, str, str | None, str | None]] = [
    (TOPIC.remove(1), "name", "string", None),
    (TOPIC.remove(4), "m", "map<string, int64 not null>", None),
    (TOPIC.append(pa.field("z", pa.int8())), "z", None, "int8"),
    (TOPIC.insert(0, pa.field("z", pa.int8())), "z", None, "int8"),
    (TOPIC.append(TOPIC.field(0)), "id", None, "int64"),
    (arrow.schema([]), "id", "int64", None),
    (TOPIC.set(1, pa.field("Name", pa.string())), "name", "string", None),
    (of_type("id", pa.int32()), "id", "int64", "int32"),
    (of_type("name", pa.large_string()), "name", "string", "large_string"),
    (of_type("name", pa.dictionary(pa.int8(), pa.string())), "name", "string",
     "dictionary<values=string, indices=int8, ordered=0>"),
    (of_type("at", pa.timestamp("us")), "at", "timestamp[us, tz=UTC]", "timestamp[us]"),
    (of_type("at", pa.timestamp("ns", tz="UTC")), "at",
     "timestamp[us, tz=UTC]", "timestamp[ns, tz=UTC]"),
    (of_type("m", arrow.map_(pa.string(), pa.int64(), True)), "m",
     "map<string, int64 not null>", "map<string, int64, keys_sorted>"),
]  # fmt: skip


@each(("schema", "column", "expected", "actual"), DIFFERENT)
def test_the_first_column_that_differs_is_named(
    schema: pa.Schema, column: str, expected: str | None, actual: str | None
) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        check_stream_schema(TOPIC, schema)
    assert caught.value.column == column
    assert (caught.value.expected, caught.value.actual) == (expected, actual)
    assert repr(column) in caught.value.message


def test_a_superfluous_column_is_named_beside_one_that_is_missing_or_of_another_type() -> None:
    extra = pa.field("nme", pa.string())
    for schema, column, message in (
        (TOPIC.set(1, extra), "name", "column 'name' is missing, and column 'nme' is not a column"),
        (of_type("id", pa.int32()).append(extra), "id", "'id' is of type int32, the topic's is"),
        (TOPIC.append(extra), "nme", "column 'nme' is not a column of the topic; did you mean"),
    ):
        with pytest.raises(SchemaMismatch, match=message) as caught:
            check_stream_schema(TOPIC, schema)
        assert (caught.value.column, caught.value.superfluous) == (column, "nme")
        assert "'nme' is not a column of the topic; did you mean 'name'?" in caught.value.message
    with pytest.raises(SchemaMismatch) as missing:
        check_stream_schema(TOPIC, TOPIC.remove(1))
    assert "superfluous" not in missing.value.facts


def test_columns_in_another_order_are_told_as_such() -> None:
    with pytest.raises(SchemaMismatch, match="in the topic's order") as caught:
        check_stream_schema(TOPIC, arrow.schema([TOPIC.field(index) for index in (1, 0, 2, 3, 4)]))
    assert caught.value.column == "id"


@each(
    "inner",
    [
        [("x", pa.int64())],
        [("x", pa.int32()), ("y", pa.list_(pa.string()))],
        [("y", pa.list_(pa.string())), ("x", pa.int64())],
        [("x", pa.int64()), ("z", pa.list_(pa.string()))],
        [("x", pa.int64()), ("y", pa.list_(pa.int64()))],
        [("x", pa.int64()), ("y", pa.large_list(pa.string()))],
        [("x", pa.int64()), ("y", pa.list_(pa.string())), ("z", pa.null())],
    ],
)
def test_a_struct_differs_by_names_order_and_types_of_its_fields(inner: Any) -> None:
    schema = TOPIC.set(3, pa.field("s", arrow.struct(inner)))
    with pytest.raises(SchemaMismatch) as caught:
        check_stream_schema(TOPIC, schema)
    assert caught.value.column == "s"


def test_an_error_about_long_types_is_short() -> None:
    wide = arrow.struct([(f"field{index}", pa.int64()) for index in range(5_000)])
    with pytest.raises(SchemaMismatch) as caught:
        check_stream_schema(
            arrow.schema([("a" * 500, wide)]), arrow.schema([("a" * 500, pa.int8())])
        )
    assert len(caught.value.message.encode()) <= 512
    assert len(caught.value.expected) <= 200


# Nulls.


def test_nulls_are_fine_where_the_topic_allows_them() -> None:
    check(pa.int64(), [1, None])
    check(arrow.struct([("x", pa.int64())]), [None, {"x": None}])
    check(pa.list_(pa.int64()), [None, [None]])
    check(pa.map_(pa.string(), pa.int64()), [None, [("k", None)]])


def test_a_null_under_a_null_struct_in_a_map_is_fine() -> None:
    fields = [required("x", pa.int64())]
    values = arrow.StructArray.from_arrays(
        [pa.array([None, 1], pa.int64())], fields=fields, mask=pa.array([True, False])
    )
    map_type = arrow.map_(pa.string(), arrow.struct(fields))
    offsets = pa.array([0, 1, 2], pa.int32())
    maps = arrow.MapArray.from_arrays(offsets, pa.array(["a", "b"]), values, map_type)
    schema = arrow.schema([pa.field("a", map_type)])
    check_batch(schema, arrow.RecordBatch.from_arrays([maps], schema=schema))


@each(
    "data_type",
    [pa.int64(), pa.string(), pa.bool_(), pa.list_(pa.int64()), arrow.struct([])],
)
def test_a_null_in_a_required_column_is_a_mismatch_that_names_it(data_type: pa.DataType) -> None:
    check(data_type, [], nullable=False)
    with pytest.raises(SchemaMismatch, match="'a' may not be null") as caught:
        check(data_type, [None, None], nullable=False)
    assert caught.value.column == "a"
    assert caught.value.nulls == 2


STRUCT = arrow.struct([required("x", pa.int64()), pa.field("y", pa.int64())])
DEEP = arrow.struct([pa.field("in", arrow.struct([required("x", pa.int64())]))])
ITEM = required("item", pa.int64())
LISTS = [arrow.list_(ITEM), arrow.large_list(ITEM)]
PAIR = arrow.list_(ITEM, 2)
MAP = arrow.map_(pa.string(), required("value", pa.int64()))
LIST_OF_STRUCTS = arrow.list_(pa.field("item", STRUCT))
MAP_OF_STRUCTS = arrow.map_(pa.string(), pa.field("value", STRUCT))
MAP_BY_STRUCT = arrow.map_(STRUCT, pa.int64())


@each(
    ("data_type", "good", "bad", "column"),
    [
        (STRUCT, [None, {"x": 1, "y": None}], {"x": None, "y": 1}, "a.x"),
        (DEEP, [None, {"in": None}, {"in": {"x": 1}}], {"in": {"x": None}}, "a.in.x"),
        *[(data_type, [None, [], [1, 2]], [1, None], "a.item") for data_type in LISTS],
        (PAIR, [None, [1, 2]], [1, None], "a.item"),
        (MAP, [None, [], [("k", 1)]], [("k", 1), ("l", None)], "a.value"),
        (LIST_OF_STRUCTS, [None, [], [None, {"x": 1}]], [{"x": None}], "a.item.x"),
        (MAP_OF_STRUCTS, [None, [("k", None)], [("k", {"x": 1})]], [("k", {"x": None})],
         "a.value.x"),
        (MAP_BY_STRUCT, [None, [({"x": 1}, None)]], [({"x": None}, 1)], "a.key.x"),
        (arrow.list_(required("item", arrow.list_(ITEM))), [None, [[1], []]], [[1], [None]],
         "a.item.item"),
        (arrow.list_(required("item", pa.list_(pa.int64()))), [None, [[None]]], [None], "a.item"),
    ],
)  # fmt: skip
def test_a_null_in_a_required_nested_field_is_named_by_its_path(
    data_type: Any, good: list[Any], bad: Any, column: str
) -> None:
    check(data_type, good)
    check(data_type, [])
    schema = arrow.schema([("a", data_type)])
    batch = batch_of(data_type, [*good, bad, *good, bad])
    with pytest.raises(SchemaMismatch) as caught:
        check_batch(schema, batch)
    assert caught.value.column == column
    # What is outside of a slice is not of the batch.
    check_batch(schema, batch.slice(0, len(good)))
    check_batch(schema, batch.slice(len(good) + 1, len(good)))
    check_batch(schema, batch.slice(len(good), 0))
    with pytest.raises(SchemaMismatch) as caught:
        check_batch(schema, batch.slice(len(good) + 1))
    assert caught.value.nulls == 1


def test_what_lies_under_a_null_does_not_count() -> None:
    nulls = arrow.array([None, None, 1], pa.int64())
    mask = arrow.array([True, True, False])
    struct = arrow.StructArray.from_arrays([nulls, nulls], names=["x", "y"], mask=mask)
    offsets = arrow.array([0, 1, 2, 3], pa.int32())
    listed = arrow.ListArray.from_arrays(offsets, nulls, mask=mask)
    large = arrow.LargeListArray.from_arrays(offsets.cast(pa.int64()), nulls, mask=mask)
    pairs = arrow.FixedSizeListArray.from_arrays(
        arrow.array([None, 1, None, None, 1, 2], pa.int64()), 2, mask=mask
    )
    keys = arrow.array(["k", "l", "m"])
    mapped = arrow.MapArray.from_arrays(offsets, keys, nulls, mask=mask)
    for data_type, array in (
        (STRUCT, struct),
        (LISTS[0], listed),
        (LISTS[1], large),
        (PAIR, pairs),
        (MAP, mapped),
    ):
        schema = arrow.schema([("a", data_type)])
        batch = arrow.RecordBatch.from_arrays([array], names=["a"])
        for part in (batch, batch.slice(1), batch.slice(0, 2), batch.slice(2)):
            check_batch(schema, part)


@each(
    ("key", "good", "twice"),
    [
        (pa.int64(), [1, 2], [1, 2, 1]),
        (pa.string(), ["", "a"], ["", ""]),
        (pa.bool_(), [True, False], [True, True]),
        (pa.float16(), [0.5, 1.0], [0.5, 0.5]),
        (pa.float64(), [0.0, 1.0], [0.0, -0.0]),
        (pa.float64(), [0.0, float("nan")], [float("nan"), -float("nan")]),
        (pa.decimal32(3, 1), [Decimal(1), Decimal(2)], [Decimal(1), Decimal(1)]),
        (arrow.timestamp("ns"), [1, 2], [1, 1]),
        (pa.binary(2), [b"ab", b"ac"], [b"ab", b"ab"]),
        (arrow.struct([("x", pa.int64()), ("y", pa.string())]),
         [{"x": 1, "y": "a"}, {"x": 1, "y": "b"}, {"x": 2, "y": "a"}, {"x": None, "y": "a"}],
         [{"x": 1, "y": None}, {"x": 1, "y": None}]),
        (arrow.list_(pa.int64()), [[1, 2], [12], [], [1], [None]], [[1, 2], [3], [1, 2]]),
        (arrow.list_(pa.int64(), 2), [[1, 2], [2, 1]], [[1, 2], [1, 2]]),
        (arrow.map_(pa.int64(), pa.int64()), [[(1, 2)], [(2, 1)]], [[(1, 2)], [(1, 2)]]),
    ],
)  # fmt: skip
def test_a_map_with_a_key_twice_is_refused_by_its_path(
    key: Any, good: list[Any], twice: list[Any]
) -> None:
    map_type = arrow.map_(key, pa.int64())
    single, double = [(each, 1) for each in good], [(each, 1) for each in twice]
    nested = arrow.struct([("l", arrow.list_(map_type))])
    for data_type, one, two, column in (
        (map_type, single, double, "a"),
        (nested, {"l": [single, None, single]}, {"l": [single, double]}, "a.l.item"),
    ):
        schema = arrow.schema([("a", data_type)])
        batch = batch_of(data_type, [None, one, one, two, None, one])
        check_batch(schema, batch.slice(0, 3))
        check_batch(schema, batch.slice(4))
        with pytest.raises(SchemaMismatch, match="a map has a duplicate key") as caught:
            check_batch(schema, batch.slice(2))
        assert caught.value.column == column
        check_batch(schema, batch, stored=True)


@given(
    st.lists(
        st.one_of(st.none(), st.lists(st.one_of(st.integers(0, 4), st.just(9)), max_size=4)),
        max_size=6,
    ),
    st.integers(0, 6),
    st.integers(0, 6),
)
def test_keys_are_found_twice_exactly_where_a_map_has_them(
    found: list[Any], start: int, length: int
) -> None:
    map_type = arrow.map_(pa.int64(), pa.null())
    maps = [None if each is None else [(key, None) for key in each] for each in found]
    batch = batch_of(map_type, maps).slice(min(start, len(found)), length)
    rows = [each for each in found[start : start + length] if each is not None]
    if any(len(set(each)) < len(each) for each in rows):
        with pytest.raises(SchemaMismatch):
            check_batch(arrow.schema([("a", map_type)]), batch)
    else:
        check_batch(arrow.schema([("a", map_type)]), batch)


values = st.one_of(st.none(), st.integers(0, 3))
rows = st.one_of(
    st.none(),
    st.fixed_dictionaries({"x": values, "y": st.one_of(st.none(), st.lists(values, max_size=3))}),
)


def has_null(row: Any) -> bool:
    return row is not None and (row["x"] is None or (row["y"] is not None and None in row["y"]))


@given(st.lists(rows, max_size=6), st.integers(0, 6), st.integers(0, 6))
def test_nulls_are_found_exactly_where_a_row_has_them(
    found: list[Any], start: int, length: int
) -> None:
    data_type = arrow.struct([required("x", pa.int64()), pa.field("y", arrow.list_(ITEM))])
    schema = arrow.schema([("a", data_type)])
    batch = batch_of(data_type, found).slice(min(start, len(found)), length)
    if any(has_null(row) for row in found[start : start + length]):
        with pytest.raises(SchemaMismatch):
            check_batch(schema, batch)
    else:
        check_batch(schema, batch)


# Hostile data.


def buffers_batch(data_type: Any, rows: int, buffers: list[bytes | None], **more: Any) -> Any:
    """A batch as a hostile client would send it: read from an IPC message, not yet checked."""
    made = [None if raw is None else pa.py_buffer(raw) for raw in buffers]
    return arrow.Array.from_buffers(data_type, rows, made, **more)


def test_text_that_is_not_utf8_is_a_mismatch_that_names_its_column() -> None:
    bad = buffers_batch(pa.string(), 1, [None, b"\0\0\0\0\2\0\0\0", b"\xff\xfe"])
    nested = arrow.StructArray.from_arrays([bad], names=["x"])
    for array in (bad, nested):
        batch = arrow.RecordBatch.from_arrays([arrow.array([1]), array], names=["ok", "bad"])
        with pytest.raises(SchemaMismatch, match="'bad' is not valid Arrow data") as caught:
            check_batch(batch.schema, batch)
        assert caught.value.column == "bad"


def test_a_number_beyond_its_precision_is_a_mismatch() -> None:
    array = buffers_batch(pa.decimal128(3, 0), 1, [None, (10**30).to_bytes(16, "little")])
    batch = arrow.RecordBatch.from_arrays([array], names=["d"])
    with pytest.raises(SchemaMismatch) as caught:
        check_batch(batch.schema, batch)
    assert caught.value.column == "d"


@each("data_type", [pa.decimal128(5, 2), pa.decimal256(5, 2)])
def test_the_least_integer_of_a_decimal_s_bits_is_a_mismatch(data_type: Any) -> None:
    """Arrow's own check of digits overflows there, and takes it for a value of any precision."""
    bits = data_type.bit_width
    raw = b"".join(
        number.to_bytes(bits // 8, "little", signed=True)
        for number in (1, -(2 ** (bits - 1)), -1, 2)
    )
    flat = buffers_batch(data_type, 4, [None, raw])
    lists = arrow.ListArray.from_arrays(arrow.array([0, 0, 4], pa.int32()), flat)
    for array, good, column in ((flat, [0, 2], "d"), (lists, [0], "d.item")):
        batch = arrow.RecordBatch.from_arrays([array], names=["d"])
        check_batch(batch.schema, batch, stored=True)
        for row in good:
            check_batch(batch.schema, batch.slice(row, 1))
        with pytest.raises(SchemaMismatch, match="more digits than") as caught:
            check_batch(batch.schema, batch.slice(1, 1))
        assert caught.value.column == column
    null = buffers_batch(data_type, 4, [b"\x0d", raw])
    batch = arrow.RecordBatch.from_arrays([null], names=["d"])
    check_batch(batch.schema, batch)


_SOUND = arrow.RecordBatch.from_arrays(
    [
        arrow.array(["abc", "de", None]),
        arrow.array([[1], [2, 3], None], arrow.list_(pa.int64())),
        arrow.array([{"x": 1, "y": "a"}, None, {"x": None, "y": "c"}]),
        arrow.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        arrow.array([[1, 2], None, [3, 4]], arrow.list_(pa.int64(), 2)),
    ],
    names=["s", "l", "st", "m", "f"],
)
_TOPIC = arrow.schema(
    [
        required("s", pa.string()),
        pa.field("l", arrow.list_(ITEM)),
        pa.field("st", arrow.struct([required("x", pa.int64()), required("y", pa.string())])),
        pa.field("m", MAP),
        pa.field("f", PAIR),
    ]
)
_MESSAGE = _SOUND.serialize().to_pybytes()


@given(st.lists(st.tuples(st.integers(0, len(_MESSAGE) - 1), st.integers(0, 255)), max_size=4))
def test_a_damaged_batch_is_never_a_crash(damage: list[tuple[int, int]]) -> None:
    raw = bytearray(_MESSAGE)
    for position, value in damage:
        raw[position] = value
    try:
        batch = arrow.ipc.read_record_batch(pa.py_buffer(bytes(raw)), _SOUND.schema)
    except (pa.ArrowException, OSError):
        return
    with contextlib.suppress(SchemaMismatch):
        check_batch(_TOPIC, batch)


@each("rows", [0, 1])
def test_a_batch_of_few_rows_passes(rows: int) -> None:
    schema = arrow.schema([required("a", pa.int64()), pa.field("b", STRUCT), pa.field("m", MAP)])
    arrays = [
        arrow.array([1] * rows, pa.int64()),
        arrow.array([{"x": 1, "y": 2}] * rows, relaxed(STRUCT)),
        arrow.array([[("k", 1)]] * rows, relaxed(MAP)),
    ]
    check_batch(schema, arrow.RecordBatch.from_arrays(arrays, names=["a", "b", "m"]))
