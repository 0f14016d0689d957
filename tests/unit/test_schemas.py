"""Schemas: types as text and back, and what a topic's schema may hold."""

import base64
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import each

from wings_core.errors import InvalidSchema
from wings_core.schemas import (
    COLUMN_NAME_BYTES_MAX,
    DEPTH_MAX,
    FIELDS_MAX,
    FIXED_SIZE_MAX,
    FieldSpec,
    bare_schema,
    check_topic_schema,
    parse_type,
    schema_from_fields,
    schema_from_ipc,
    schema_to_fields,
    schema_to_ipc,
    type_name,
)
from wings_core.type_names import TYPE_NAME_LENGTH_MAX

# pyarrow's stubs know only some of the arguments that its factories take.
arrow: Any = pa

FLAT = [
    pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(),
    pa.uint32(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.string(),
    pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(0), pa.binary(16), pa.date32(),
    pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"),
    pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ns"),
    pa.timestamp("us", tz="UTC"), pa.timestamp("ns", tz="America/Argentina/Buenos_Aires"),
    pa.timestamp("s", tz="+05:30"), pa.timestamp("ms", tz="Etc/GMT-14"), pa.duration("s"),
    pa.duration("ms"), pa.duration("us"), pa.duration("ns"), pa.month_day_nano_interval(),
    pa.decimal32(5, 2), pa.decimal64(18, 0), pa.decimal128(10, 2), pa.decimal128(38, -3),
    pa.decimal256(76, 38),
]  # fmt: skip

UNSUPPORTED = [
    pa.dictionary(pa.int32(), pa.string()),
    pa.string_view(),
    pa.binary_view(),
    pa.list_view(pa.int64()),
    pa.large_list_view(pa.int64()),
    pa.run_end_encoded(pa.int32(), pa.int64()),
    pa.dense_union([pa.field("a", pa.int64())]),
    pa.sparse_union([pa.field("a", pa.int64())]),
    pa.uuid(),
    pa.json_(),
    pa.opaque(pa.int8(), "type", "vendor"),
]

names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8
).filter(lambda name: ": " not in name and not name.startswith(">"))


@st.composite
def fields(draw: st.DrawFn, types: st.SearchStrategy[pa.DataType]) -> Any:
    data_type = draw(types)
    # pyarrow builds no field of type null that is not nullable.
    nullable = pa.types.is_null(data_type) or draw(st.booleans())
    return pa.field(draw(names), data_type, nullable=nullable)


def nested(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    def unique(entries: list[Any]) -> bool:
        return len({entry.name for entry in entries}) == len(entries)

    key = types.filter(lambda data_type: not pa.types.is_null(data_type))
    value = fields(types).map(lambda field: field.with_name("value"))
    return st.one_of(
        fields(types).map(arrow.list_),
        fields(types).map(arrow.large_list),
        st.builds(arrow.list_, fields(types), st.integers(0, 5)),
        st.lists(fields(types), max_size=4).filter(unique).map(arrow.struct),
        st.builds(arrow.map_, key, value, st.booleans()),
    )


types = st.recursive(st.sampled_from(FLAT), nested, max_leaves=8)
schemas = (
    st.lists(fields(types), min_size=1, max_size=5, unique_by=lambda entry: entry.name)
    .filter(lambda found: not any(entry.name.startswith("__") for entry in found))
    .map(arrow.schema)
)


def has_required_map_value(found: pa.DataType) -> bool:
    data_type: Any = found
    if pa.types.is_map(found) and not data_type.item_field.nullable:
        return True
    children: Any = (data_type.field(index) for index in range(data_type.num_fields))
    return any(has_required_map_value(child.type) for child in children)


def schema_of(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    return arrow.schema(list(columns))


def nest(data_type: pa.DataType, levels: int) -> pa.DataType:
    for _ in range(levels):
        data_type = pa.list_(data_type)
    return data_type


# Types as text.


@each("data_type", FLAT)
def test_every_flat_type_is_read_back_from_arrows_own_text(data_type: pa.DataType) -> None:
    assert parse_type(str(data_type)).equals(data_type)
    assert type_name(data_type) == str(data_type)


@given(types)
def test_every_type_is_read_back_from_its_name(data_type: pa.DataType) -> None:
    text = type_name(data_type)
    assert parse_type(text).equals(data_type)
    assert type_name(parse_type(text)) == text


@given(types.filter(lambda data_type: not has_required_map_value(data_type)))
def test_the_name_of_a_type_is_arrows_own_text_where_that_tells_all(
    data_type: pa.DataType,
) -> None:
    assert type_name(data_type) == str(data_type)
    assert parse_type(str(data_type)) == data_type


def test_a_maps_required_values_are_told_where_arrows_text_drops_them() -> None:
    data_type = arrow.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))
    assert str(data_type) == "map<string, int64>"
    assert type_name(data_type) == "map<string, int64 not null>"
    assert parse_type("map<string, int64 not null>").equals(data_type)


def test_the_names_of_a_maps_parts_are_read_and_dropped() -> None:
    key, value = pa.field("k", pa.string(), nullable=False), pa.field("v", pa.int64())
    data_type = arrow.map_(key, value, True)
    assert str(data_type) == "map<string ('k'), int64 ('v'), keys_sorted>"
    assert parse_type(str(data_type)).equals(data_type)
    assert type_name(data_type) == type_name(parse_type(str(data_type)))
    assert type_name(data_type) == "map<string, int64, keys_sorted>"


@each(
    ("alias", "data_type"),
    [
        ("int", pa.int64()),
        ("float16", pa.float16()),
        ("float32", pa.float32()),
        ("float64", pa.float64()),
        ("half", pa.float16()),
        ("boolean", pa.bool_()),
        ("bool", pa.bool_()),
        ("str", pa.string()),
        ("utf8", pa.string()),
        ("large_utf8", pa.large_string()),
        ("date32", pa.date32()),
        ("date64", pa.date64()),
        ("date", pa.date32()),
        ("decimal(10,2)", pa.decimal128(10, 2)),
        ("decimal128(10,2)", pa.decimal128(10, 2)),
        (" int64 ", pa.int64()),
        ("list<item: float64>", pa.list_(pa.float64())),
    ],
)
def test_the_usual_aliases_are_read(alias: str, data_type: pa.DataType) -> None:
    assert parse_type(alias).equals(data_type)


@each(
    ("text", "position", "problem"),
    [
        ("", 0, "expected the name of a type"),
        ("Int64", 0, "expected the name of a type"),
        ("int65", 0, "unknown or unsupported type 'int65'"),
        ("int64 x", 5, "expected the end"),
        ("int64[us]", 5, "expected the end"),
        ("timestamp", 9, "like timestamp[us], or timestamp[us, tz=UTC] of times with a zone"),
        ("timestamp[]", 10, "expected s or ms or us or ns"),
        ("timestamp[fs]", 10, "expected s or ms or us or ns"),
        ("timestamp[us", 12, "expected ']'"),
        ("timestamp[us, tz=]", 17, "expected a time zone"),
        ("timestamp[us, zone=UTC]", 12, "expected ']'"),
        ("time32[us]", 7, "expected s or ms"),
        ("time64[s]", 7, "expected us or ns"),
        ("duration", 8, "expected '['"),
        ("decimal128", 10, "expected '('"),
        ("decimal128(10)", 13, "expected ','"),
        ("decimal128(a, 1)", 11, "expected an integer"),
        ("decimal128(39, 1)", 10, "precision"),
        ("decimal128(0, 1)", 10, "precision"),
        ("decimal32(10, 1)", 9, "precision"),
        ("fixed_size_binary", 17, "expected '['"),
        ("fixed_size_binary[-1]", 18, "expected a size"),
        ("fixed_size_binary[2147483648]", 18, "expected a size"),
        ("list", 4, "expected '<'"),
        ("list<int64>", 5, "expected a field"),
        ("list<item: >", 11, "expected the name of a type"),
        ("list<item: int64", 16, "expected '>'"),
        ("list<item: int64, b: int64>", 16, "expected '>'"),
        ("fixed_size_list<item: int64>", 28, "expected '['"),
        ("struct<a: int64", 15, "expected ', ' or '>'"),
        ("struct<a: int64,b: int64>", 15, "expected ', ' or '>'"),
        ("struct<a: int64, >", 17, "expected a field"),
        ("struct<a:int64>", 7, "expected a field"),
        ("struct<a: list<b: x>>", 18, "unknown or unsupported type 'x'"),
        ("map<string>", 10, "expected ', '"),
        ("map<string, int64, sorted>", 17, "expected '>'"),
        ("map<string ('k, int64>", 13, "expected a name"),
        ("map<null, int64>", 4, "key cannot be null"),
        ("map<string, null not null>", 16, "must be nullable"),
        ("struct<a: null not null>", 14, "must be nullable"),
        ("dictionary<values=string, indices=int32, ordered=0>", 0, "unknown or unsupported"),
        ("extension<arrow.uuid>", 0, "unknown or unsupported"),
        ("string_view", 0, "unknown or unsupported"),
        ("int64\0", 5, "expected the end"),
    ],
)
def test_a_bad_type_is_told_with_its_place(text: str, position: int, problem: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        parse_type(text)
    assert problem in caught.value.message
    assert caught.value.position == position


@given(st.text(alphabet="abcilmnorstu_<>[](),: '=0123456789-", max_size=40))
def test_any_other_text_is_a_type_or_an_invalid_schema(text: str) -> None:
    try:
        data_type = parse_type(text)
    except InvalidSchema:
        return
    assert parse_type(type_name(data_type)).equals(data_type)


def test_types_nest_to_a_bound() -> None:
    deepest = nest(pa.int64(), DEPTH_MAX - 1)
    assert parse_type(type_name(deepest)).equals(deepest)
    with pytest.raises(InvalidSchema, match="nested more than"):
        parse_type(type_name(nest(pa.int64(), DEPTH_MAX)))
    with pytest.raises(InvalidSchema, match="nested more than"):
        parse_type("list<item: " * 5_000)


def test_a_types_text_has_a_bound() -> None:
    with pytest.raises(InvalidSchema, match="longer than"):
        parse_type("x" * (TYPE_NAME_LENGTH_MAX + 1))


# What a topic's schema may hold.


@given(schemas)
def test_a_schema_of_supported_types_may_be_a_topics(schema: pa.Schema) -> None:
    check_topic_schema(schema, None)


@each("data_type", UNSUPPORTED)
def test_an_unsupported_type_is_refused_at_any_depth(data_type: pa.DataType) -> None:
    struct = arrow.struct([("b", data_type)])
    for path, column in {
        "a": data_type,
        "a.item": pa.list_(data_type),
        "a.b": struct,
        "a.value": pa.map_(pa.string(), data_type),
        "a.item.b": arrow.list_(struct, 2),
    }.items():
        with pytest.raises(InvalidSchema) as caught:
            check_topic_schema(schema_of(("ok", pa.int64()), ("a", column)), None)
        assert caught.value.column == path
        assert len(caught.value.message.encode()) <= 512


def test_a_topic_needs_a_column() -> None:
    with pytest.raises(InvalidSchema, match="at least one column"):
        check_topic_schema(arrow.schema([]), None)


@each("name", ["__offset", "__", "__mine"])
def test_reserved_names_are_refused_for_columns_and_free_within_them(name: str) -> None:
    with pytest.raises(InvalidSchema, match="reserved") as caught:
        check_topic_schema(schema_of((name, pa.int64())), None)
    assert caught.value.column == name
    check_topic_schema(schema_of(("a", arrow.struct([(name, pa.int64())]))), None)


@each(
    ("columns", "problem"),
    [
        (["a", "b", "a"], "duplicate"),
        (["a", ""], "empty name"),
        (["a\0"], "NUL"),
        (["é" * (COLUMN_NAME_BYTES_MAX // 2 + 1)], "longer than"),
    ],
)
def test_bad_names_are_refused_for_columns_and_in_structs(columns: list[str], problem: str) -> None:
    found = [(name, pa.int64()) for name in columns]
    with pytest.raises(InvalidSchema, match=problem):
        check_topic_schema(schema_of(*found), None)
    with pytest.raises(InvalidSchema, match=problem):
        check_topic_schema(schema_of(("s", arrow.struct(found))), None)


@each("name", ["A", "select", "a b", 'a"b', "a'b", "a.b", "é", "\n", "a: b", "_a"])
def test_odd_names_of_columns_are_fine(name: str) -> None:
    check_topic_schema(schema_of((name, pa.int64()), ("a", pa.int64())), None)


@each("name", ["a: b", ": ", ">", ">a"])
def test_a_nested_name_that_its_types_text_could_not_tell_is_refused(name: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        check_topic_schema(schema_of(("s", arrow.struct([(name, pa.int64())]))), None)
    assert caught.value.column == "s"


@each("zone", ["a b", "UTC]", "x" * 65, "é"])
def test_a_time_zone_that_cannot_be_one_is_refused(zone: str) -> None:
    with pytest.raises(InvalidSchema, match="time zone"):
        check_topic_schema(schema_of(("t", pa.timestamp("us", tz=zone))), None)


def test_columns_nest_to_a_bound() -> None:
    check_topic_schema(schema_of(("a", nest(pa.int64(), DEPTH_MAX - 1))), None)
    for levels in (DEPTH_MAX, 200):
        with pytest.raises(InvalidSchema, match="nested more than"):
            check_topic_schema(schema_of(("a", nest(pa.int64(), levels))), None)


def test_a_schema_has_a_bound_on_its_fields_nested_ones_counted() -> None:
    half = arrow.struct([(f"f{index}", pa.int64()) for index in range(FIELDS_MAX // 2 - 1)])
    check_topic_schema(schema_of(("a", half), ("b", half)), None)
    with pytest.raises(InvalidSchema, match="fields"):
        check_topic_schema(schema_of(("a", half), ("b", half), ("c", pa.int64())), None)


def test_fixed_sizes_have_a_bound_over_all_levels() -> None:
    inner = arrow.list_(pa.int8(), 1024)
    check_topic_schema(schema_of(("a", arrow.list_(inner, FIXED_SIZE_MAX // 1024))), None)
    for column in (
        arrow.list_(inner, FIXED_SIZE_MAX // 1024 + 1),
        arrow.list_(pa.int8(), 2**31 - 1),
        pa.binary(FIXED_SIZE_MAX + 1),
    ):
        with pytest.raises(InvalidSchema, match="fixed sizes"):
            check_topic_schema(schema_of(("a", column)), None)


@each("key", ["i", "s", "b", "u"])
def test_a_key_is_a_column_of_a_keys_type(key: str) -> None:
    schema = schema_of(
        ("i", pa.int64()), ("s", pa.string()), ("b", pa.bool_()), ("u", pa.binary(4))
    )
    check_topic_schema(schema, key)


@each(("key", "problem"), [("x", "is not a column"), ("", "is not a column"), ("f", "cannot be")])
def test_another_key_is_refused(key: str, problem: str) -> None:
    with pytest.raises(InvalidSchema, match=problem):
        check_topic_schema(schema_of(("f", pa.float64()), ("s", pa.string())), key)


# The forms a schema comes in.


@given(schemas)
def test_a_schema_survives_its_json(schema: pa.Schema) -> None:
    specs = schema_to_fields(schema)
    again = schema_from_fields(specs)
    assert again.equals(schema)
    assert [spec.model_dump() for spec in schema_to_fields(again)] == [
        spec.model_dump() for spec in specs
    ]


@given(schemas)
def test_a_schema_survives_its_ipc_message(schema: pa.Schema) -> None:
    assert schema_from_ipc(schema_to_ipc(schema)).equals(schema, check_metadata=True)


def test_metadata_is_dropped_at_every_level() -> None:
    marked = {"a": "b"}
    inner = pa.field("x", pa.int64(), nullable=False, metadata=marked)
    outer = [
        pa.field("s", arrow.struct([inner]), metadata=marked),
        pa.field("l", arrow.list_(inner)),
        pa.field("f", arrow.list_(inner, 2)),
        pa.field("g", arrow.large_list(inner)),
        pa.field("m", arrow.map_(pa.field("key", pa.string(), False, marked), inner, True)),
    ]
    schema = arrow.schema(outer, metadata=marked)
    for bare in (bare_schema(schema), schema_from_ipc(schema_to_ipc(schema))):
        assert bare.equals(schema)
        assert b"b" not in b"".join((bare.metadata or {}).values())
        again = schema_from_fields(schema_to_fields(schema))
        assert bare.serialize().to_pybytes() == again.serialize().to_pybytes()


@each("levels", [0, 1])
def test_an_extension_type_that_nobody_here_knows_is_refused_too(levels: int) -> None:
    metadata = {"ARROW:extension:name": "geoarrow.point", "ARROW:extension:metadata": ""}
    column = pa.field("p", pa.binary(), metadata=metadata)
    schema = arrow.schema([pa.field("a", arrow.struct([column])) if levels else column])
    with pytest.raises(InvalidSchema, match=r"geoarrow\.point"):
        schema_from_ipc(schema_to_ipc(schema))


def test_a_bad_type_in_a_field_names_its_column() -> None:
    specs = [FieldSpec(name="ok", type="int64"), FieldSpec(name="bad", type="int65")]
    with pytest.raises(InvalidSchema) as caught:
        schema_from_fields(specs)
    assert caught.value.column == "bad"
    assert caught.value.position == 0
    assert "column 'bad'" in caught.value.message


@each("nested_in", [None, "struct"])
def test_a_column_of_type_null_must_be_nullable(nested_in: str | None) -> None:
    name = "null" if nested_in is None else "struct<a: null not null>"
    with pytest.raises(InvalidSchema) as caught:
        schema_from_fields([FieldSpec(name="n", type=name, nullable=False)])
    assert caught.value.column == "n"


def test_a_schema_has_a_bound_on_its_columns() -> None:
    spec = FieldSpec(name="a", type="int64")
    with pytest.raises(InvalidSchema, match="columns"):
        schema_from_fields([spec] * (FIELDS_MAX + 1))


@each(
    "text",
    [
        "",
        "!",
        "é",
        "AAAA",
        "A",
        base64.b64encode(b"\xff" * 100).decode(),
        base64.b64encode(b"\xff\xff\xff\xff\x00\x00\x00\x00").decode(),
        base64.b64encode(b"\xff\xff\xff\xff\xff\xff\xff\x7f").decode(),
        schema_to_ipc(schema_of(("a", pa.int64())))[:-8],
        base64.b64encode(pa.record_batch({"a": [1]}).serialize()).decode(),
    ],
)
def test_what_is_no_schema_message_is_an_invalid_schema(text: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        schema_from_ipc(text)
    assert len(caught.value.message.encode()) <= 512


_SOUND = schema_of(
    ("a", pa.int64()), ("s", arrow.struct([("x", pa.list_(pa.string()))])), ("d", UNSUPPORTED[0])
).serialize()


@given(st.lists(st.tuples(st.integers(0, _SOUND.size - 1), st.integers(0, 255)), max_size=4))
def test_a_damaged_schema_message_is_a_schema_or_an_invalid_schema(
    damage: list[tuple[int, int]],
) -> None:
    raw = bytearray(_SOUND.to_pybytes())
    for position, value in damage:
        raw[position] = value
    try:
        schema = schema_from_ipc(base64.b64encode(raw).decode())
        check_topic_schema(schema, None)
    except InvalidSchema:
        return
    assert schema_from_ipc(schema_to_ipc(schema)).equals(schema)
