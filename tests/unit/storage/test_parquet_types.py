"""Columns in Parquet files: every type comes back as it was, or is refused by name."""

from typing import Any

import pyarrow as pa
import pytest
from fixtures.arrow_strategies import arrow_fields, batches, schemas
from hypothesis import given

from wings_core.errors import InvalidSchema
from wings_core.model import Topic, TopicConfig
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.storage.parquet_file import ParquetPage, ParquetWriter, file_fields, read_footer
from wings_core.storage.segment_file import TIMESTAMP_FIELD

UUID = "00000000-0000-0000-0000-000000000007"
ABOUT = {"wings.topic_uuid": UUID, "wings.start_offset": "0"}


def topic_of(schema: pa.Schema) -> Topic:
    return Topic(DEFAULT_NAMESPACE.topic("t"), UUID, schema, None, TopicConfig(), 0)


def is_out_of_range(schema: pa.Schema) -> bool:
    """Tell whether a schema has a type of which not all values are stored."""
    names = str(schema)
    return any(each in names for each in ("timestamp[s", "timestamp[ms", "date64"))


def is_stored(topic: Topic) -> bool:
    try:
        return len(file_fields(topic)) == len(topic.schema) + 2
    except InvalidSchema as error:
        return not str(error.facts["column"]).startswith(tuple(topic.schema.names))


@given(batches(schemas(), rows_min=1))
def test_every_type_comes_back_as_it_was_or_is_refused_by_name(batch: pa.RecordBatch) -> None:
    topic = topic_of(batch.schema)
    if not is_stored(topic):
        return
    writer = ParquetWriter(topic, ABOUT)
    times = pa.nulls(batch.num_rows, pa.int64()).fill_null(0).cast(TIMESTAMP_FIELD.type)
    rows = pa.RecordBatch.from_arrays([*batch.columns, times], schema=writer.schema)
    try:
        position, length = writer.write(rows)
    except pa.ArrowInvalid:
        assert is_out_of_range(batch.schema)
        return
    data = pa.py_buffer(b"".join(writer.finish()))
    footer = read_footer(lambda start, end: data.slice(start, end - start), data.size)
    group = footer.row_group(position, length, UUID)
    page = ParquetPage.whole(group, data.slice(position, length), [])
    read = page.read(UUID, writer.schema, None)
    read.validate(full=True)
    assert read.schema.equals(rows.schema)
    assert read.equals(rows)
    for index, field in enumerate(arrow_fields(batch.schema)):
        start, end = group.extent(field.name)
        part = ParquetPage(group, {field.name: data.slice(start, end - start)}, ())
        assert part.read(UUID, writer.schema, [index]).column(0).equals(batch.column(index))


REFUSED: list[Any] = [pa.null(), pa.month_day_nano_interval(), pa.struct([]), pa.binary(0)]


@pytest.mark.parametrize("refused", REFUSED)
def test_a_type_that_parquet_lacks_is_refused_by_the_name_of_its_column(refused: Any) -> None:
    for inside in (refused, pa.struct([pa.field("deep", refused)])):
        schema = pa.schema([pa.field("n", pa.int64()), pa.field("odd", inside)])
        with pytest.raises(InvalidSchema) as caught:
            file_fields(topic_of(schema))
        assert caught.value.facts["column"] in {"odd", "odd.deep"}
