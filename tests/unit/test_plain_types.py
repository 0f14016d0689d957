import pyarrow as pa
import pytest
from arrow_strategies import arrow, schemas
from hypothesis import given

from wings_core.plain_types import plain_schema
from wings_core.schemas import check_topic_schema

ENCODED: list[tuple[pa.DataType, pa.DataType]] = [
    (pa.dictionary(pa.int8(), pa.large_string()), pa.large_string()),
    (pa.dictionary(pa.int8(), pa.string_view()), pa.string()),
    (pa.run_end_encoded(pa.int32(), pa.int64()), pa.int64()),
    (pa.string_view(), pa.string()),
    (pa.binary_view(), pa.binary()),
    (pa.uuid(), pa.binary(16)),
    (pa.list_view(pa.string_view()), pa.list_(pa.string())),
    (pa.large_list_view(pa.int8()), pa.large_list(pa.int8())),
    (pa.struct([("a", pa.string_view())]), pa.struct([("a", pa.string())])),
    (pa.map_(pa.string_view(), pa.uuid()), pa.map_(pa.string(), pa.binary(16))),
]


@pytest.mark.parametrize(("encoded", "plain"), ENCODED, ids=str)
def test_an_encoding_becomes_what_it_stands_for(encoded: pa.DataType, plain: pa.DataType) -> None:
    made = plain_schema(pa.schema([pa.field("x", encoded, metadata={"k": "v"})]))
    assert made.equals(pa.schema([pa.field("x", plain)]), check_metadata=True)
    check_topic_schema(made, None)


@given(schemas())
def test_a_plain_schema_stays_what_it_is(schema: pa.Schema) -> None:
    assert plain_schema(schema).equals(schema)


def test_what_may_not_be_null_still_may_not() -> None:
    field = pa.field("x", arrow.list_(pa.field("item", pa.int8(), nullable=False)), nullable=False)
    assert plain_schema(pa.schema([field])) == pa.schema([field])
