"""Decoding of a JSON array of objects into a batch of a topic's schema."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.json

from wings_core.arrow_compute import pc
from wings_core.arrow_types import fields_of
from wings_core.batches import check_batch
from wings_core.errors import BatchTooLarge, SchemaMismatch
from wings_core.json_rows.convert import converted, read_type
from wings_core.json_rows.diagnostics import first_problem
from wings_core.json_rows.kernels import Column, UnfitError, arrow

DATA_BYTES_MAX = 1 << 30
"""Longest array in bytes; Arrow's reader counts bytes in an int32."""


def decode_rows(
    data: bytes, schema: pa.Schema, fill: Mapping[str, str] | None = None
) -> pa.RecordBatch:
    """Decode a JSON array of objects into a batch.

    Every row must fit exactly: at any depth no unknown or duplicate field, and no value of another
    kind, out of range, or in another form than `encode` writes. An absent field is null.

    Args:
        data: The array, in UTF-8.
        schema: The topic's schema, and that of the batch.
        fill: JSON texts by column, used where a row's value is absent or null.

    Raises:
        InvalidArgument: The data is not JSON.
        SchemaMismatch: A row does not fit; facts `row` (0-based) and `column` (a dotted path)
            locate the first problem.
        BatchTooLarge: More bytes than `DATA_BYTES_MAX`.
    """
    if len(data) > DATA_BYTES_MAX:
        raise BatchTooLarge(f"{len(data)} bytes of rows, the limit is {DATA_BYTES_MAX}")
    fill = fill or {}
    try:
        return _decode(data, schema, fill)
    except (ValueError, SchemaMismatch) as problem:
        # Bulk decoding does not report which row is bad; finding it is slow.
        raise first_problem(data, schema, fill, _decode, problem) from None


def _decode(data: bytes, schema: pa.Schema, fill: Mapping[str, str]) -> pa.RecordBatch:
    """Decode rows in bulk.

    Raises:
        ValueError: A row does not fit, or the JSON is malformed.
        SchemaMismatch: A null in a column that is not nullable.
    """
    data.decode("utf-8")  # Arrow's reader does not validate it.
    rows = _read(data, schema)
    columns: list[Column] = []
    for index, field in enumerate(fields_of(schema)):
        column = converted(pc.struct_field(rows, [index]), field.type)
        if field.name in fill and column.null_count:
            value = _value(fill[field.name], field.type)
            column = pc.fill_null(column, value)
        columns.append(column)
    batch: pa.RecordBatch = arrow.RecordBatch.from_arrays(columns, schema=schema)
    check_batch(schema, batch)
    return batch


def _read(data: bytes, schema: pa.Schema) -> Column:
    """Read an array of objects as a column of structs of the reader's types."""
    fields = [pa.field(field.name, read_type(field.type)) for field in fields_of(schema)]
    # Wrapped as the only field of a single row, so that the array is read as a whole.
    document = b'{"rows":' + data + b"}"
    table: Any = arrow.json.read_json(
        pa.BufferReader(document),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(document) + 1),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=pa.schema([pa.field("rows", pa.list_(pa.struct(fields)))]),
            newlines_in_values=True,
            unexpected_field_behavior="error",
        ),
    )
    if table.num_rows != 1 or table.column(0).null_count:
        raise UnfitError("expected one array of objects")
    rows: Column = table.column(0).chunk(0).values
    if rows.null_count:
        raise UnfitError("a row must not be null")
    return rows


def _value(text: str, data_type: pa.DataType) -> Any:
    """Read one JSON value."""
    rows = _read(f'[{{"value":{text}}}]'.encode(), pa.schema([pa.field("value", data_type)]))
    return converted(pc.struct_field(rows, [0]), data_type)[0]
