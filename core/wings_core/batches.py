"""Batches that come in: do they fit their topic, and are they sound?"""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from wings_core.arrow_types import children, fields_of, map_entries, shape
from wings_core.decimal_bounds import has_least, has_wide_decimal
from wings_core.errors import SchemaMismatch
from wings_core.map_keys import has_key_twice, has_map
from wings_core.model import Topic
from wings_core.suggestions import suggested
from wings_core.type_names import type_name

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowArray, ArrowField

_IN_COLUMN = re.compile(r"In column (\d+): (?:Invalid: )?")

_Column = tuple[str, pa.DataType]

_TYPE_SHOWN_MAX = 200
"""Characters of a type in an error; a nested one can be long."""


def check_stream_schema(topic_schema: pa.Schema, schema: pa.Schema) -> None:
    """Check that a stream's columns are the topic's: names, order and types.

    Metadata and nullability are ignored, also nested, as are the names of list items and of a
    map's key and value; whether a batch has nulls where none may be is `check_batch`'s.

    Raises:
        SchemaMismatch: Names the first column that differs, is missing or is not the topic's, in
            the facts `column`, `expected` and `actual` (types; None where there is no such column).
    """
    if topic_schema.equals(schema):
        return
    try:
        found = list(zip(schema.names, schema.types, strict=True))
    except UnicodeDecodeError:
        raise SchemaMismatch("the name of a column is not UTF-8") from None
    expected = list(zip(topic_schema.names, topic_schema.types, strict=True))
    for index, (name, data_type) in enumerate(expected):
        if index >= len(found) or found[index][0] != name:
            raise _different_names(expected, found, index)
        actual = found[index][1]
        if not _is_same_type(data_type, actual):
            raise _mismatch(
                f"column {name!r:.80} is of type {_shown(actual)}, the topic's is of type "
                f"{_shown(data_type)}",
                name,
                data_type,
                actual,
            )
    if len(found) > len(expected):
        raise _extra(*found[len(expected)], expected)


def version_of_stream(topic: Topic, schema: pa.Schema) -> Topic:
    """Return a topic with the last version of its schema that has the columns of a stream.

    Versions that differ in what may be null alone have the same columns.

    Raises:
        SchemaMismatch: None has; says what differs from the last. See `check_stream_schema`.
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
    """Checks the batches of one topic; made once for many batches, as it looks at the types.

    Args:
        topic_schema: The topic's.
        stored: Whether they are in the log already, where earlier versions put maps with a key
            twice, and decimals of too many digits: then those are let pass.
    """

    def __init__(self, topic_schema: pa.Schema, *, stored: bool = False) -> None:
        self._schema = topic_schema
        self._mapped = [
            (index, field)
            for index, field in enumerate(fields_of(topic_schema))
            if not stored and has_map(field.type)
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
        """Check a batch's data in full: nulls only where they may be, and no key twice in a map.

        A null in a struct's field counts only where the struct itself is not null, one in a list or
        map only where a row's list or map holds it. Reads every buffer once.

        Args:
            batch: Its schema has passed `check_stream_schema`; its buffers may hold anything.

        Raises:
            SchemaMismatch: Fact `column` names the column, with dots down to a nested field.
        """
        try:
            batch.validate(full=True)
        except MemoryError:
            raise  # Which is one of Arrow's exceptions too.
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
    expected: Sequence[_Column], found: Sequence[_Column], index: int
) -> SchemaMismatch:
    """Say what is wrong at a position where the topic has another column, or the stream none."""
    name, data_type = expected[index]
    if all(other != name for other, _ in found):
        return _mismatch(f"column {name!r:.80} is missing", name, data_type, None)
    other, actual = found[index]
    if all(other != known for known, _ in expected):
        return _extra(other, actual, expected)
    message = (
        f"column {index} is {other!r:.80}, the topic's is {name!r:.80}: columns must come in the "
        "topic's order, each once"
    )
    return _mismatch(message, name, data_type, actual)


def _extra(name: str, data_type: pa.DataType, expected: Sequence[_Column]) -> SchemaMismatch:
    hint = suggested(name, (known for known, _ in expected))
    message = f"column {name!r:.80} is not a column of the topic{hint}"
    return _mismatch(message, name, None, data_type)


def _mismatch(
    message: str, column: str, expected: pa.DataType | None, actual: pa.DataType | None
) -> SchemaMismatch:
    return SchemaMismatch(
        message,
        column=column,
        expected=None if expected is None else _shown(expected),
        actual=None if actual is None else _shown(actual),
    )


def _shown(data_type: pa.DataType) -> str:
    try:
        return type_name(data_type)[:_TYPE_SHOWN_MAX]
    except UnicodeDecodeError:
        return "a type with a field whose name is not UTF-8"


def _is_same_type(expected: pa.DataType, actual: pa.DataType) -> bool:
    """Compare types but for nullability and metadata; goes as deep as the expected one."""
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
    """Refuse nulls in `array` where `field`, or a field nested in it, may not be null.

    Args:
        field: The topic's.
        array: Its rows; null also where an enclosing struct is null.
        path: The field's name, with dots from the column down.
        allowed: How many of the nulls are an enclosing struct's.
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
    """Refuse maps with a key twice in an array, or nested in it."""
    if pa.types.is_map(data_type) and has_key_twice(array):
        raise SchemaMismatch(f"column {path!r:.80}: a map has a key twice", column=path)
    for child, values, _ in _inside(data_type, array):
        if has_map(child.type):
            _check_keys(child.type, values, f"{path}.{child.name}")


def _check_digits(data_type: pa.DataType, array: "ArrowArray", path: str) -> None:
    """Refuse decimals of too many digits that Arrow lets pass, in an array or nested in it."""
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
    """Yield what a nested array holds: field, values, and nulls that are the array's own.

    `flatten` of a struct makes its fields null where it is; that of a list leaves out what lies
    under a null. Both respect slices, which `keys` and `items` of a map do not.
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
    """Tell whether a field somewhere inside a type may not be null; a map's keys never may."""
    fields = children(data_type)
    if pa.types.is_map(data_type):
        key, value = fields
        return not value.nullable or _has_required(key.type) or _has_required(value.type)
    return any(not field.nullable or _has_required(field.type) for field in fields)


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of no rows."""
    # Not from Python lists: with the first of these pyarrow imports pandas, if it is installed.
    columns = [pa.nulls(0, cast("Any", data_type)) for data_type in schema.types]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
