import json

import pyarrow as pa
from arrow_strategies import batches
from hypothesis import given, settings
from property_examples import examples

from wings_core.json_rows import decode_rows, encode_rows
from wings_core.schemas import check_topic_schema


@given(batches())
@settings(max_examples=examples(20, 300))
def test_what_is_written_is_read_back_equal(batch: pa.RecordBatch) -> None:
    check_topic_schema(batch.schema, None)
    data = encode_rows(batch)
    rows = json.loads(data, parse_constant=lambda name: 1 / 0)
    assert [list(row) for row in rows] == [batch.schema.names] * batch.num_rows
    decoded = decode_rows(data, batch.schema)
    decoded.validate(full=True)
    assert decoded.schema.equals(batch.schema)
    # Compared as JSON too, as -0.0 equals 0.0.
    assert decoded.equals(batch)
    assert encode_rows(decoded) == data
