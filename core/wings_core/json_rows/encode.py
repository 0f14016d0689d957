"""Encoding of a batch as a JSON array of objects, as lines, or as CSV."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pyarrow.csv

from wings_core.arrow_compute import pc
from wings_core.arrow_types import children, is_list, leaves, map_entries
from wings_core.errors import BatchTooLarge
from wings_core.json_rows.values import (
    Column,
    arrow,
    base64_texts,
    date_texts,
    decimal_texts,
    duration_texts,
    interval_structs,
    is_zoned,
    joined,
    time_texts,
    timestamp_texts,
)

ROW_BYTES_MAX = 512 * 1024 * 1024
"""Longest possible JSON of a row in bytes; longer ones are rejected before they are encoded."""

STEP_BYTES = 8 * 1024 * 1024
"""Approximate bytes of JSON encoded at a time, which bounds the working memory."""

_ESCAPES = {
    **{bytes([code]): f"\\u{code:04x}" for code in range(0x20)},
    b"\b": "\\b", b"\t": "\\t", b"\n": "\\n", b"\f": "\\f", b"\r": "\\r",
    b'"': '\\"', b"\\": "\\\\",
}  # fmt: skip
"""Characters that a JSON string must escape, and their escapes."""

_UNESCAPED = bytes(code for code in range(256) if bytes([code]) not in _ESCAPES)

_FLAT_LENGTH_MAX = 48
"""Most bytes of a number, boolean, time or null, including quotes and a comma."""

_INTERVAL_LENGTH_MAX = 96
_ESCAPE_LENGTH = len("\\u0000")


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
        yield _object_texts(step.schema.names, cast("list[Column]", step.columns), step.num_rows)


def count_not_finite(batch: pa.RecordBatch) -> int:
    """Return the number of NaN and infinite values in a batch, at any depth, which become null."""
    return sum(
        len(array) - array.null_count - pc.sum(pc.is_finite(array), min_count=0).as_py()
        for column in batch.columns
        for array in leaves(column)
        if pa.types.is_floating(array.type)
    )


def csv_head(schema: pa.Schema) -> bytes:
    """Return the header line of CSV."""
    # Not from Python lists: on the first one pyarrow imports pandas, if it is installed.
    nothing: list[Any] = [pa.nulls(0, pa.string()) for _ in schema.names]
    return _encoded(pa.RecordBatch.from_arrays(nothing, names=schema.names), head=True)


def csv_rows(batch: pa.RecordBatch) -> bytes:
    """Return a line of CSV for each row; values without a CSV form are JSON, nulls are empty."""
    columns = [_csv_column(column) for column in cast("Any", batch).columns]
    return _encoded(pa.RecordBatch.from_arrays(columns, names=batch.schema.names), head=False)


def json_texts(values: Column, *, names_floats: bool = False) -> Column:
    """Return the JSON text of each value of a column; nulls become `null`.

    Args:
        values: The column.
        names_floats: Whether NaN and infinities are the strings of Protobuf's JSON, not null.
    """
    return _whole(*_parts(values, names_floats))


def _object_texts(
    names: Sequence[str],
    columns: Sequence[Column],
    rows: int,
    end: str = "}",
    *,
    names_floats: bool = False,
) -> Column:
    """Return the JSON object of each row, with fields in order.

    Args:
        names: Names of the fields.
        columns: Values of the fields, of equal length.
        rows: Number of rows, needed if there are no fields.
        end: End of each text: `}` and a separator.
        names_floats: See `json_texts`.
    """
    pieces: list[Column | str] = []
    constant = "{"
    for index, (name, values) in enumerate(zip(names, columns, strict=True)):
        before, texts, after = _parts(values, names_floats)
        if texts.null_count:
            before, texts, after = "", _whole(before, texts, after), ""
        # One constant for quotes and names, so that the texts are copied once.
        comma = "," if index else ""
        pieces += [f"{constant}{comma}{json.dumps(name, ensure_ascii=False)}:{before}", texts]
        constant = after
    if not pieces:
        return pa.repeat("{" + end, rows)
    return joined(*pieces, constant + end)


def text_bytes_max(values: Column) -> int:
    """Return an upper bound on the bytes of `json_texts(values)`, with a comma after each."""
    data_type = values.type
    rows = len(values)
    if pa.types.is_struct(data_type):
        names = sum(_name_length(field.name) for field in children(data_type))
        fields = values.flatten()
        return rows * (names + 8) + sum(text_bytes_max(field) for field in fields)
    if pa.types.is_map(data_type):
        entries = map_entries(values)
        pairs = entries.flatten()
        names = _name_length("key") + _name_length("value") + 4
        parts = sum(text_bytes_max(part) for part in pairs.flatten())
        return rows * 8 + len(pairs) * names + parts
    if is_list(data_type):
        return rows * 8 + text_bytes_max(values.flatten())
    if pa.types.is_decimal(data_type):
        return rows * (values.type.precision + abs(values.type.scale) + 8)
    if data_type == pa.month_day_nano_interval():
        return rows * _INTERVAL_LENGTH_MAX
    if pa.types.is_fixed_size_binary(data_type):
        return rows * (data_type.byte_width * 4 // 3 + 8)
    if _has_bytes(data_type):
        held: int = pc.sum(pc.binary_length(values)).as_py() or 0
        return rows * 8 + held * _ESCAPE_LENGTH
    return rows * _FLAT_LENGTH_MAX


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
    texts = _object_texts(
        names, columns, piece.num_rows, end="}" + after, names_floats=names_floats
    )
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


def _parts(values: Column, names_floats: bool) -> tuple[str, Column, str]:
    """Return the text before each value, the values as texts, and the text after each.

    A text is null for `null` without quotes: for nulls, and floats that JSON lacks.
    """
    data_type = values.type
    if pa.types.is_null(data_type):
        return "", pa.nulls(len(values), pa.string()), ""
    if pa.types.is_struct(data_type):
        names = [field.name for field in children(data_type)]
        fields = values.flatten()
        texts = _object_texts(names, fields, len(values), names_floats=names_floats)
        return "", _with_nulls_of(values, texts), ""
    if pa.types.is_map(data_type):
        entries = map_entries(values)
        key, value = entries.flatten().flatten()
        items = _object_texts(["key", "value"], [key, value], len(key), names_floats=names_floats)
        return "[", _item_texts(entries, items), "]"
    if is_list(data_type):
        items = json_texts(values.flatten(), names_floats=names_floats)
        return "[", _item_texts(values, items), "]"
    if pa.types.is_floating(data_type):
        return "", _float_texts(values, names_floats), ""
    return _flat_parts(values)


def _whole(before: str, texts: Column, after: str) -> Column:
    if before or after:
        texts = joined(before, texts, after)
    return pc.fill_null(texts, "null") if texts.null_count else texts


def _with_nulls_of(values: Column, texts: Column) -> Column:
    return pc.if_else(values.is_valid(), texts, None) if values.null_count else texts


def _item_texts(lists: Column, items: Column) -> Column:
    """Return the comma-separated texts of each list's items.

    Args:
        lists: Lists of any kind.
        items: Texts of all their items, without those of null lists.
    """
    lengths = pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
    texts = pc.binary_join(arrow.ListArray.from_arrays(offsets, items), ",")
    return _with_nulls_of(lists, texts)


def _flat_parts(values: Column) -> tuple[str, Column, str]:
    data_type = values.type
    if pa.types.is_boolean(data_type) or pa.types.is_integer(data_type):
        return "", values.cast(pa.string()), ""
    if pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
        return '"', _escaped(values.cast(pa.string())), '"'
    if data_type == pa.month_day_nano_interval():
        return _parts(interval_structs(values), False)
    for is_kind, texts in _QUOTED:
        if is_kind(data_type):
            zone = "Z" if is_zoned(data_type) else ""
            return '"', texts(values), f'{zone}"'
    raise AssertionError(f"a topic cannot have type {data_type}")


_QUOTED: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Column], Column]], ...] = (
    (pa.types.is_timestamp, timestamp_texts),
    (pa.types.is_date, date_texts),
    (pa.types.is_time, time_texts),
    (pa.types.is_duration, duration_texts),
    (pa.types.is_decimal, decimal_texts),
    (pa.types.is_binary, base64_texts),
    (pa.types.is_large_binary, base64_texts),
    (pa.types.is_fixed_size_binary, base64_texts),
)
"""Flat types that are JSON strings without escapes."""


def _float_texts(values: Column, is_named: bool) -> Column:
    if values.type == pa.float16():
        values = values.cast(pa.float32())
    texts = values.cast(pa.string())
    whole = pc.equal(values, pc.trunc(values))
    if whole.true_count:
        # Arrow writes 1.0 as `1`, which most readers would parse as an integer.
        bare = pc.and_(whole, pc.invert(pc.match_substring(texts, "e")))
        texts = pc.if_else(bare, joined(texts, ".0"), texts)
    finite = pc.is_finite(values)
    if not finite.false_count:
        return texts
    others: Column | None = None
    if is_named:
        infinite = pc.if_else(pc.greater(values, 0), '"Infinity"', '"-Infinity"')
        others = pc.if_else(pc.is_nan(values), '"NaN"', infinite)
    return pc.if_else(finite, texts, others)


def _escaped(values: Column) -> Column:
    """Escape the characters of `_ESCAPES`; a single pass over the bytes if there are none."""
    data = values.buffers()[2]
    if data is None:
        return values
    # Backslashes first, as the other escapes contain them.
    found = set(data.to_pybytes().translate(None, _UNESCAPED))
    for code in sorted(found, key=lambda code: code != ord("\\")):
        special = bytes([code])
        values = pc.replace_substring(values, special.decode(), _ESCAPES[special])
    return values


def _name_length(name: str) -> int:
    return len(json.dumps(name, ensure_ascii=False).encode()) + len(":,")


def _has_bytes(data_type: pa.DataType) -> bool:
    return (
        pa.types.is_string(data_type)
        or pa.types.is_large_string(data_type)
        or pa.types.is_binary(data_type)
        or pa.types.is_large_binary(data_type)
    )
