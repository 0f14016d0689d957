"""Conversion of CSV texts to a topic's types where Arrow's reader silently changes values.

Arrow's CSV reader lets decimals overflow, reads 1e400 as infinity, and 0xFF as -1 for types of
eight bits. So columns of such types are read as texts, and converted here.
"""

from collections.abc import Mapping, Set
from typing import Any

import pyarrow as pa
import pyarrow.compute

from wings_core.cast import Caster
from wings_core.errors import SchemaMismatch
from wings_core.json_rows.values import decimals_of
from wings_core.type_names import type_name

pc: Any = pyarrow.compute

_DECIMAL = r"^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?$"
_INFINITY = r"(?i)^[+-]?inf(?:inity)?$"
_HEXADECIMAL = r"^0[xX]"
"""Hexadecimal integer, which Arrow reads as negative if its first bit is the sign bit."""

ZEROS = r"^\s*[+-]?0[0-9xX]"
"""Number with leading zeros or hexadecimal digits, which would be lost."""

LONG_INTEGER = r"^\s*[+-]?[0-9]{16,}\s*$"
"""Integer with more digits than a double has."""

DIGIT = r"^\s*[01]\s*$"
"""Number that would become true or false."""

_INEXACT_FLOAT = r"^\s*[+-]?(?:0[0-9xX]|[0-9]{16,}\s*$)"
"""Number of one of the first two kinds."""


def is_text(data_type: pa.DataType) -> bool:
    """Return whether a type is read as text for `CsvCaster` to convert."""
    return (
        pa.types.is_decimal(data_type)
        or pa.types.is_boolean(data_type)
        or pa.types.is_floating(data_type)
        or pa.types.is_signed_integer(data_type)
    )


class CsvCaster:
    """A cast of batches of Arrow's CSV reader to a topic's schema.

    Args:
        read: Schema of the reader's batches.
        schema: The topic's schema.
        exact: Columns that reject values whose text would change.

    Raises:
        SchemaMismatch: The columns are not the topic's.
    """

    def __init__(self, read: pa.Schema, schema: pa.Schema, exact: Set[str] = frozenset()) -> None:
        self._exact = exact
        types = dict(zip(schema.names, schema.types, strict=True))
        self._texts: Mapping[int, pa.DataType] = {
            index: types[name]
            for index, name in enumerate(read.names)
            if name in types and is_text(types[name])
        }
        fields = [read.field(index) for index in range(len(read))]
        for index, data_type in self._texts.items():
            fields[index] = fields[index].with_type(data_type)
        self._schema = pa.schema(fields)
        self._caster = Caster(self._schema, schema)

    def cast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the topic's schema.

        Raises:
            SchemaMismatch: A value is not of its column's type; fact `column`. The message shows
                the first such value.
        """
        columns: list[Any] = list(batch.columns)
        for index, data_type in self._texts.items():
            texts = columns[index]
            name = batch.schema.names[index]
            told = f"column {name!r:.80}: {_first(texts)!r:.80}"
            try:
                columns[index] = values_of(pc.ascii_trim_whitespace(texts), data_type)
            except (pa.ArrowException, ValueError):
                raise SchemaMismatch(
                    f"{told} is not a value of type {type_name(data_type):.80}", column=name
                ) from None
            if name in self._exact and _changes(texts, columns[index]):
                raise SchemaMismatch(f"{told} would be {_first(columns[index])}", column=name)
        return self._caster.cast(pa.RecordBatch.from_arrays(columns, schema=self._schema))


def not_of_type(text: str, name: str, said: str) -> str:
    """Describe why a text is not a value of a type.

    Args:
        text: The text.
        name: Name of the type.
        said: Arrow's message.
    """
    if "expected a zone offset" in said:
        return f"{text!r:.80} has no time zone, like the Z of 2026-11-20T12:00:00Z ({name:.80})"
    if "expected no zone offset" in said:
        return f"{text!r:.80} has a time zone, and the column has none ({name:.80})"
    return f"{text!r:.80} is not a value of type {name:.80}"


def values_of(texts: Any, data_type: pa.DataType) -> Any:
    """Parse texts as values of any type that Arrow parses.

    Raises:
        ArrowException, ValueError: A text is not a value of the type.
    """
    if pa.types.is_decimal(data_type):
        _refuse(texts, pc.invert(pc.match_substring_regex(texts, _DECIMAL)))
        return decimals_of(texts, data_type)
    values = texts.cast(data_type)
    if pa.types.is_floating(data_type):
        # There is no such kernel for half floats.
        infinite = pc.is_inf(values.cast(pa.float64()))
        if infinite.true_count:
            named = pc.match_substring_regex(texts, _INFINITY)
            _refuse(texts, pc.and_not(infinite, named))
    elif pa.types.is_signed_integer(data_type):
        negative = pc.less(values, 0)
        if negative.true_count:
            _refuse(texts, pc.and_(negative, pc.match_substring_regex(texts, _HEXADECIMAL)))
    return values


def _first(column: Any) -> Any:
    return column[0].as_py() if len(column) else None


def _changes(texts: Any, values: Any) -> bool:
    """Return whether the text of a value would change."""
    if pa.types.is_boolean(values.type):
        pattern = DIGIT
    elif pa.types.is_floating(values.type):
        pattern = _INEXACT_FLOAT
    else:
        # Most do not change; only the others need to be matched.
        texts = texts.filter(pc.not_equal(values.cast(pa.string()), texts))
        pattern = ZEROS
    return bool(pc.any(pc.match_substring_regex(texts, pattern)).as_py())


def _refuse(texts: Any, bad: Any) -> None:
    if bad.true_count:
        raise ValueError(f"{texts.filter(bad)[0]} does not fit")
