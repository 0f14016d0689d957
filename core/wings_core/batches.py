"""Validation of incoming batches: schema, data, and the keys of maps."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from wings_core.arrow_compute import pc
from wings_core.arrow_types import children, fields_of, is_list, map_entries, shape
from wings_core.errors import SchemaMismatch, suggested
from wings_core.model import Topic
from wings_core.type_names import type_name

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowArray, ArrowField

_IN_COLUMN = re.compile(r"In column (\d+): (?:Invalid: )?")

_Column = tuple[str, pa.DataType]

_TYPE_SHOWN_MAX = 200
"""Most characters of a type shown in an error."""


def check_stream_schema(topic_schema: pa.Schema, schema: pa.Schema) -> None:
    """Check that a stream's columns are the topic's: names, order and types.

    Metadata and nullability are ignored, also in nested fields, as are the names of list items and
    of a map's key and value; `check_batch` checks for nulls.

    Raises:
        SchemaMismatch: A column differs, is missing or superfluous. Facts `column`, `expected` and
            `actual` describe the first one (types; None without such a column); `superfluous` names
            the first column of the stream that the topic lacks, if there is one.
    """
    if topic_schema.equals(schema):
        return
    try:
        found = list(zip(schema.names, schema.types, strict=True))
    except UnicodeDecodeError:
        raise SchemaMismatch("the name of a column is not UTF-8") from None
    expected = list(zip(topic_schema.names, topic_schema.types, strict=True))
    known = set(topic_schema.names)
    extra = next((column for column in found if column[0] not in known), None)
    for index, (name, data_type) in enumerate(expected):
        if index >= len(found) or found[index][0] != name:
            raise _different_names(expected, found, index, extra)
        actual = found[index][1]
        if not _is_same_type(data_type, actual):
            raise _mismatch(
                f"column {name!r:.80} is of type {_shown(actual)}, the topic's is of type "
                f"{_shown(data_type)}",
                name,
                data_type,
                actual,
                extra,
                expected,
            )
    if extra is not None:
        raise _extra(extra, expected)
    if len(found) > len(expected):
        name, actual = found[len(expected)]
        raise _mismatch(f"column {name!r:.80} is duplicate", name, None, actual)


def version_of_stream(topic: Topic, schema: pa.Schema) -> Topic:
    """Return a topic with its latest schema version that has the columns of a stream.

    Versions that differ only in nullability have the same columns.

    Raises:
        SchemaMismatch: No version matches; describes the difference from the latest. See
            `check_stream_schema`.
    """
    error: SchemaMismatch | None = None
    for version in range(topic.schema_versions, 0, -1):
        written = topic.at(version)
        try:
            check_stream_schema(written.schema, schema)
        except SchemaMismatch as found:
            error = error or found
        else:
            return written
    assert error is not None
    raise error


class BatchCheck:
    """A check of one topic's batches, constructed once for many batches.

    Args:
        topic_schema: The topic's schema.
        stored: Whether the batches come from the log, where earlier versions stored maps with
            duplicate keys and decimals with too many digits, which are then accepted.
    """

    def __init__(self, topic_schema: pa.Schema, *, stored: bool = False) -> None:
        self._schema = topic_schema
        self._mapped = [
            (index, field)
            for index, field in enumerate(fields_of(topic_schema))
            if not stored and _has_map(field.type)
        ]
        self._decimals = [
            (index, field)
            for index, field in enumerate(fields_of(topic_schema))
            if not stored and has_wide_decimal(field.type)
        ]
        self._required = [
            (index, field)
            for index, field in enumerate(fields_of(topic_schema))
            if not field.nullable or _has_required(field.type)
        ]

    def check(self, batch: pa.RecordBatch) -> None:
        """Check all data of a batch: validity, nullability, and unique keys of maps.

        A null in a struct's field counts only if the struct itself is not null, one in a list or
        map only if a row's list or map contains it. Reads every buffer once.

        Args:
            batch: A batch whose schema has passed `check_stream_schema`; its buffers are not
                trusted.

        Raises:
            SchemaMismatch: The data is invalid; fact `column` is the dotted path of the field.
        """
        try:
            batch.validate(full=True)
        except MemoryError:
            raise  # SchemaMismatch is also an Arrow exception.
        except (pa.ArrowException, ValueError) as error:
            raise _invalid(self._schema, str(error)) from None
        for index, field in self._required:
            column = cast("ArrowArray", batch.column(index))
            _check_nulls(field, column, field.name, 0)
        for index, field in self._mapped:
            _check_keys(field.type, cast("ArrowArray", batch.column(index)), field.name)
        for index, field in self._decimals:
            _check_digits(field.type, cast("ArrowArray", batch.column(index)), field.name)


def check_batch(topic_schema: pa.Schema, batch: pa.RecordBatch, *, stored: bool = False) -> None:
    """Check one batch; see `BatchCheck`."""
    BatchCheck(topic_schema, stored=stored).check(batch)


def _different_names(
    expected: Sequence[_Column], found: Sequence[_Column], index: int, extra: _Column | None
) -> SchemaMismatch:
    """Return the error for a position where the columns of topic and stream differ."""
    name, data_type = expected[index]
    if all(other != name for other, _ in found):
        message = f"column {name!r:.80} is missing"
        return _mismatch(message, name, data_type, None, extra, expected)
    if extra is not None:
        return _extra(extra, expected)
    other, actual = found[index]
    message = (
        f"column {index} is {other!r:.80}, the topic's is {name!r:.80}: columns must come in the "
        "topic's order, without duplicates"
    )
    return _mismatch(message, name, data_type, actual)


def _extra(extra: _Column, expected: Sequence[_Column]) -> SchemaMismatch:
    return _mismatch("", extra[0], None, extra[1], extra, expected)


def _mismatch(
    message: str,
    column: str,
    data_type: pa.DataType | None,
    actual: pa.DataType | None,
    extra: _Column | None = None,
    expected: Sequence[_Column] = (),
) -> SchemaMismatch:
    """Return an error about a column, which also names a superfluous one, if there is one."""
    facts: dict[str, str] = {}
    if extra is not None:
        name = extra[0]
        hint = suggested(name, (known for known, _ in expected))
        before = f"{message}, and " if message else ""
        message = f"{before}column {name!r:.80} is not a column of the topic{hint}"
        facts["superfluous"] = name
    return SchemaMismatch(
        message,
        column=column,
        expected=None if data_type is None else _shown(data_type),
        actual=None if actual is None else _shown(actual),
        **facts,
    )


def _shown(data_type: pa.DataType) -> str:
    try:
        return type_name(data_type)[:_TYPE_SHOWN_MAX]
    except UnicodeDecodeError:
        return "a type with a field whose name is not UTF-8"


def _is_same_type(expected: pa.DataType, actual: pa.DataType) -> bool:
    """Compare types without nullability and metadata; the recursion is as deep as `expected`."""
    if expected.equals(actual):
        return True
    fields = children(expected)
    if not fields or expected.id != actual.id or shape(expected) != shape(actual):
        return False
    named = pa.types.is_struct(expected)
    try:
        return all(
            (field.name == other.name or not named) and _is_same_type(field.type, other.type)
            for field, other in zip(fields, children(actual), strict=True)
        )
    except UnicodeDecodeError:
        return False


def _invalid(topic_schema: pa.Schema, problem: str) -> SchemaMismatch:
    match = _IN_COLUMN.match(problem)
    if match is None or int(match[1]) >= len(topic_schema):
        return SchemaMismatch(f"the batch is not valid Arrow data: {problem:.300}")
    name = topic_schema.names[int(match[1])]
    return SchemaMismatch(
        f"column {name!r:.80} is not valid Arrow data: {problem[match.end() :]:.300}", column=name
    )


def _check_nulls(field: "ArrowField", array: "ArrowArray", path: str, allowed: int) -> None:
    """Reject nulls in `array` if `field`, or a field nested in it, is not nullable.

    Args:
        field: The topic's field.
        array: Values; also null where an enclosing struct is null.
        path: Dotted path of the field.
        allowed: Number of nulls that come from an enclosing struct.
    """
    if not field.nullable and array.null_count > allowed:
        nulls = array.null_count - allowed
        raise SchemaMismatch(
            f"column {path!r:.80} may not be null, and the batch has {nulls} null"
            f"{'s' if nulls > 1 else ''} in it",
            column=path,
            nulls=nulls,
        )
    if _has_required(field.type):
        for child, values, child_allowed in _inside(field.type, array):
            _check_nulls(child, values, f"{path}.{child.name}", child_allowed)


def _check_keys(data_type: pa.DataType, array: "ArrowArray", path: str) -> None:
    """Reject maps with duplicate keys in an array, or nested in it."""
    if pa.types.is_map(data_type) and _has_key_twice(array):
        raise SchemaMismatch(f"column {path!r:.80}: a map has a duplicate key", column=path)
    for child, values, _ in _inside(data_type, array):
        if _has_map(child.type):
            _check_keys(child.type, values, f"{path}.{child.name}")


def _check_digits(data_type: pa.DataType, array: "ArrowArray", path: str) -> None:
    """Reject decimals with too many digits that Arrow accepts, in an array or nested in it."""
    if pa.types.is_decimal(data_type) and has_least(array):
        raise SchemaMismatch(
            f"column {path!r:.80}: a decimal has more digits than {data_type} holds", column=path
        )
    for child, values, _ in _inside(data_type, array) if children(data_type) else ():
        if has_wide_decimal(child.type):
            _check_digits(child.type, values, f"{path}.{child.name}")


def _inside(
    data_type: pa.DataType, array: "ArrowArray"
) -> "Iterator[tuple[ArrowField, ArrowArray, int]]":
    """Yield the children of a nested array: field, values, and the nulls of the array itself.

    `flatten` of a struct makes its fields null where it is null; that of a list skips values under
    nulls. Both respect slices, unlike `keys` and `items` of a map.
    """
    fields = children(data_type)
    nested = cast("Any", array)
    if pa.types.is_struct(data_type):
        for field, values in zip(fields, nested.flatten(), strict=True):
            yield field, values, array.null_count
    elif pa.types.is_map(data_type):
        entries = map_entries(array).flatten()
        for field, values in zip(fields, entries.flatten(), strict=True):
            yield field, values, 0
    else:
        yield fields[0], nested.flatten(), 0


def _has_required(data_type: pa.DataType) -> bool:
    """Return whether a type contains a non-nullable field; a map's keys always are."""
    fields = children(data_type)
    if pa.types.is_map(data_type):
        key, value = fields
        return not value.nullable or _has_required(key.type) or _has_required(value.type)
    return any(not field.nullable or _has_required(field.type) for field in fields)


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows."""
    # Not from Python lists: on the first one pyarrow imports pandas, if it is installed.
    columns = [pa.nulls(0, cast("Any", data_type)) for data_type in schema.types]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def has_wide_decimal(data_type: pa.DataType) -> bool:
    """Return whether a type is, or contains, a decimal of 128 or 256 bits."""
    return _is_wide(data_type) or any(has_wide_decimal(each.type) for each in children(data_type))


def has_least(values: "ArrowArray") -> bool:
    """Return whether an array of wide decimals contains the least integer of its bits.

    Arrow accepts it at any precision: its check of digits takes the absolute value, which
    overflows, so -2^127 passes as decimal128(5, 2).
    """
    # Arrow cannot compare decimals of a negative scale; the scale does not matter here.
    plain: Any = pa.decimal128(38) if pa.types.is_decimal128(values.type) else pa.decimal256(76)
    bits = cast("Any", pa.Array).from_buffers(
        plain, len(values), cast("Any", values).buffers(), offset=cast("Any", values).offset
    )
    return bool(pc.equal(bits, _least(plain)).true_count)


def _is_wide(data_type: pa.DataType) -> bool:
    return pa.types.is_decimal128(data_type) or pa.types.is_decimal256(data_type)


@lru_cache(maxsize=2)
def _least(data_type: Any) -> Any:
    bits: int = data_type.bit_width
    raw = (-(1 << (bits - 1))).to_bytes(bits // 8, "little", signed=True)
    return cast("Any", pa.Array).from_buffers(data_type, 1, [None, pa.py_buffer(raw)])[0]


def _has_map(data_type: pa.DataType) -> bool:
    """Return whether a type is, or contains, a map."""
    return pa.types.is_map(data_type) or any(_has_map(each.type) for each in children(data_type))


def _has_key_twice(maps: "ArrowArray") -> bool:
    """Return whether a map in an array has a duplicate key; as in SQL, NaN = NaN and 0.0 = -0.0.

    Args:
        maps: Valid maps with keys of any type; values under nulls are ignored.
    """
    entries = map_entries(maps)
    lengths = pc.fill_null(pc.list_value_length(entries), 0)
    if (pc.max(lengths).as_py() or 0) < 2:
        return False
    keys = entries.flatten().flatten()[0]
    rows = pc.list_parent_indices(_lists(lengths, keys))
    return _has_pair_twice(pc.cast(rows, pa.int64()), _ids(keys))


def _lists(lengths: Any, values: Any) -> Any:
    """Return `values` split into lists of `lengths`."""
    ends = pc.cumulative_sum(pc.cast(lengths, pa.int64()))
    offsets = pa.concat_arrays([pa.nulls(1, pa.int64()).fill_null(0), ends])
    return cast("Any", pa.LargeListArray).from_arrays(offsets, values)


def _has_pair_twice(high: Any, low: Any) -> bool:
    pairs = _paired(high, low)
    return pc.count_distinct(pairs).as_py() < len(pairs)


def _paired(high: Any, low: Any) -> Any:
    """Return a number for each pair of non-negative numbers, equal only for equal pairs."""
    return pc.add(pc.multiply(high, (pc.max(low).as_py() or 0) + 1), low)


def _ids(values: Any) -> Any:
    """Return a number below the length for each value, equal only for equal values."""
    data_type = values.type
    if pa.types.is_struct(data_type):
        ids = pc.cast(values.is_valid(), pa.int64())
        for part in values.flatten():
            ids = _encoded(_paired(ids, _ids(part)))
        return ids
    if pa.types.is_map(data_type):
        return _ids(map_entries(values))
    if is_list(data_type):
        items = pc.cast(_ids(values.flatten()), pa.string())
        lengths = pc.fill_null(pc.list_value_length(values), 0)
        texts = pc.binary_join(_lists(lengths, items), ",")
        return _encoded(
            pc.if_else(values.is_valid(), pc.binary_join_element_wise(texts, ";", ""), None)
        )
    if pa.types.is_float16(data_type):
        values = values.cast(pa.float32())
    if pa.types.is_floating(data_type):
        values = pc.if_else(pc.is_nan(values), float("nan"), pc.add(values, 0.0))
    if pa.types.is_decimal32(data_type) or pa.types.is_decimal64(data_type):
        values = values.cast(pa.decimal128(data_type.precision, data_type.scale))
    return _encoded(values)


def _encoded(values: Any) -> Any:
    return pc.cast(values.dictionary_encode(null_encoding="encode").indices, pa.int64())
