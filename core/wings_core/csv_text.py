"""CSV of batches with a header line; values without a CSV form are JSON, nulls are empty."""

from typing import Any, cast

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv

from wings_core.json_rows.texts import json_texts

pc: Any = pyarrow.compute


def csv_head(schema: pa.Schema) -> bytes:
    """Return the header line."""
    # Not from Python lists: on the first one pyarrow imports pandas, if it is installed.
    nothing: list[Any] = [pa.nulls(0, pa.string()) for _ in schema.names]
    return _encoded(pa.RecordBatch.from_arrays(nothing, names=schema.names), head=True)


def csv_rows(batch: pa.RecordBatch) -> bytes:
    """Return a line for each row."""
    columns = [_csv_column(column) for column in cast("Any", batch).columns]
    return _encoded(pa.RecordBatch.from_arrays(columns, names=batch.schema.names), head=False)


def _encoded(batch: pa.RecordBatch, *, head: bool) -> bytes:
    sink = pa.BufferOutputStream()
    options: Any = pyarrow.csv.WriteOptions(include_header=head, quoting_style="needed")
    pyarrow.csv.write_csv(batch, sink, options)
    return sink.getvalue().to_pybytes()


def _csv_column(values: Any) -> Any:
    data_type = values.type
    if (
        pa.types.is_boolean(data_type)
        or pa.types.is_integer(data_type)
        or pa.types.is_floating(data_type)
        or pa.types.is_string(data_type)
        or pa.types.is_large_string(data_type)
    ):
        return values
    texts: Any = json_texts(values)
    if not pa.types.is_nested(data_type) and data_type != pa.month_day_nano_interval():
        texts = pc.utf8_trim(texts, characters='"')
    nothing: Any = pa.scalar(None, pa.string())
    return pc.if_else(values.is_valid(), texts, nothing) if values.null_count else texts
