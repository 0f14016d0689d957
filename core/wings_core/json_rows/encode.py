"""Encoding of a batch as a JSON array of objects, as lines, or as CSV."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pyarrow.csv

from wings_core.arrow_compute import pc
from wings_core.arrow_types import leaves
from wings_core.errors import BatchTooLarge
from wings_core.json_rows.kernels import Column, arrow
from wings_core.json_rows.texts import json_texts, object_texts, text_bytes_max

ROW_BYTES_MAX = 512 * 1024 * 1024
"""Longest possible JSON of a row in bytes; longer ones are rejected before they are encoded."""

STEP_BYTES = 8 * 1024 * 1024
"""Approximate bytes of JSON encoded at a time, which bounds the working memory."""


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """The first rows of a batch as comma-separated JSON objects, without brackets."""

    text: bytes
    rows: int


def encode_rows(batch: pa.RecordBatch) -> bytes:
    """Encode the rows of a batch as a JSON array of objects, in UTF-8.

    Args:
        batch: Valid rows of a topic's schema.

    Raises:
        BatchTooLarge: A row's JSON could be longer than `ROW_BYTES_MAX`.
    """
    return b"[" + encode_rows_within(batch, None).text + b"]"


def encode_rows_within(
    batch: pa.RecordBatch, bytes_max: int | None, *, rows_min: int = 0
) -> EncodedRows:
    """Encode as many of a batch's first rows as fit into `bytes_max`.

    Args:
        batch: The rows; see `encode_rows`.
        bytes_max: Most bytes of the text; None for no bound.
        rows_min: Least number of rows, whatever their length.

    Raises:
        BatchTooLarge: See `encode_rows`.
    """
    texts: list[bytes] = []
    room = bytes_max
    rows = 0
    for step in _steps(batch):
        text, ends = _step_text(step)
        fitting = len(ends) if room is None else _fitting(ends, room)
        taken = max(fitting, min(rows_min - rows, len(ends)))
        if taken:
            end: int = ends[taken - 1].as_py()
            texts.append(text[:end])
            rows += taken
            if room is not None:
                room -= end
        if taken < len(ends):
            break
    return EncodedRows(b"".join(texts)[:-1], rows)


def encode_lines(batch: pa.RecordBatch, *, names_floats: bool = False) -> Iterator[bytes]:
    """Yield the rows of a batch as JSON objects, each on a line that ends in a line feed.

    Args:
        batch: The rows; see `encode_rows`.
        names_floats: Whether NaN and infinities are the strings of Protobuf's JSON (`"NaN"`,
            `"Infinity"`, `"-Infinity"`), not null.

    Raises:
        BatchTooLarge: See `encode_rows`.
    """
    for step in _steps(batch):
        text, _ = _step_text(step, "\n", names_floats=names_floats)
        yield text


def object_columns(batch: pa.RecordBatch) -> Iterator[Column]:
    """Yield the JSON object of each row, in columns of the next rows.

    Args:
        batch: The rows; see `encode_rows`.

    Raises:
        BatchTooLarge: See `encode_rows`.
    """
    for step in _steps(batch):
        yield object_texts(step.schema.names, cast("list[Column]", step.columns), step.num_rows)


def count_not_finite(batch: pa.RecordBatch) -> int:
    """Return the number of NaN and infinite values in a batch, at any depth, which become null."""
    return sum(
        len(array) - array.null_count - pc.sum(pc.is_finite(array), min_count=0).as_py()
        for column in batch.columns
        for array in leaves(column)
        if pa.types.is_floating(array.type)
    )


def _steps(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch into consecutive pieces whose JSON is not much above `STEP_BYTES`."""
    waiting = [batch]
    while waiting:
        piece = waiting.pop()
        if piece.num_rows == 0:
            continue
        bound = text_bytes_max(piece.to_struct_array())
        if bound <= STEP_BYTES or (piece.num_rows == 1 and bound <= ROW_BYTES_MAX):
            yield piece
        elif piece.num_rows == 1:
            raise BatchTooLarge(
                f"a message may have up to {bound} bytes as JSON, the limit is {ROW_BYTES_MAX}; "
                "read it over Arrow Flight",
                bytes_max=ROW_BYTES_MAX,
            )
        else:
            # Rows may differ in length, so each part is examined again.
            rows = max(1, min(piece.num_rows // 2, piece.num_rows * STEP_BYTES // bound))
            starts = range(0, piece.num_rows, rows)
            waiting += [piece.slice(start, rows) for start in reversed(starts)]


def _step_text(
    piece: pa.RecordBatch, after: str = ",", *, names_floats: bool = False
) -> tuple[bytes, Column]:
    """Return the objects, each followed by a separator, and their ends in the text."""
    columns = cast("list[Column]", piece.columns)
    names = piece.schema.names
    texts = object_texts(names, columns, piece.num_rows, end="}" + after, names_floats=names_floats)
    _, offsets, data = texts.buffers()
    assert offsets is not None
    assert data is not None
    bounds = arrow.Array.from_buffers(
        pa.int32(), len(texts) + 1, [None, offsets], offset=texts.offset
    )
    start: int = bounds[0].as_py()
    stop: int = bounds[-1].as_py()
    return data.slice(start, stop - start).to_pybytes(), pc.subtract(bounds.slice(1), start)


def _fitting(ends: Column, room: int) -> int:
    """Return the number of first texts that fit; the last needs no separator."""
    return pc.sum(pc.less_equal(ends, room + 1)).as_py() or 0


def csv_head(schema: pa.Schema) -> bytes:
    """Return the header line of CSV."""
    # Not from Python lists: on the first one pyarrow imports pandas, if it is installed.
    nothing: list[Any] = [pa.nulls(0, pa.string()) for _ in schema.names]
    return _encoded(pa.RecordBatch.from_arrays(nothing, names=schema.names), head=True)


def csv_rows(batch: pa.RecordBatch) -> bytes:
    """Return a line of CSV for each row; values without a CSV form are JSON, nulls are empty."""
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
