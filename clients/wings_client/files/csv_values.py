"""Texts of CSV as values of a topic's types, where Arrow's own reader changes some in silence.

Arrow's reader of CSV lets decimals overflow, makes an infinity of 1e400, and -1 of 0xFF where the
type has eight bits. So columns of such types are read as texts, and converted here.
"""

from collections.abc import Mapping, Set
from typing import Any

import pyarrow as pa
import pyarrow.compute

from wings_core.cast import Caster
from wings_core.errors import SchemaMismatch
from wings_core.json_rows.decimals import decimals_of
from wings_core.type_names import type_name

pc: Any = pyarrow.compute

_DECIMAL = r"^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?$"
_INFINITY = r"(?i)^[+-]?inf(?:inity)?$"
_HEXADECIMAL = r"^0[xX]"
"""An integer that has no sign: where its first bit is the type's, Arrow makes it negative."""

ZEROS = r"^\s*[+-]?0[0-9xX]"
"""A number that would lose its zeros, or be written in other digits."""

LONG_INTEGER = r"^\s*[+-]?[0-9]{16,}\s*$"
"""An integer of more digits than a double has."""

DIGIT = r"^\s*[01]\s*$"
"""A number that would become true or false."""

_INEXACT_FLOAT = r"^\s*[+-]?(?:0[0-9xX]|[0-9]{16,}\s*$)"
"""Any of the two."""


def is_text(data_type: pa.DataType) -> bool:
    """Return whether values of a type are read as texts, for `CsvCaster` to convert."""
    return (
        pa.types.is_decimal(data_type)
        or pa.types.is_boolean(data_type)
        or pa.types.is_floating(data_type)
        or pa.types.is_signed_integer(data_type)
    )


class CsvCaster:
    """Makes batches of a topic's schema from those that Arrow's reader of CSV returns.

    Args:
        read: The schema of what the reader returns.
        schema: The topic's.
        exact: Columns in which a value that would be written in another way is refused.

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
                the first row's.
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
    """Return what is wrong with a text that stands for no value of a type.

    Args:
        text: The text.
        name: Of the type.
        said: Arrow's message.
    """
    if "expected a zone offset" in said:
        return f"{text!r:.80} has no time zone, like the Z of 2026-11-20T12:00:00Z ({name:.80})"
    if "expected no zone offset" in said:
        return f"{text!r:.80} has a time zone, and the column has none ({name:.80})"
    return f"{text!r:.80} is not a value of type {name:.80}"


def values_of(texts: Any, data_type: pa.DataType) -> Any:
    """Return the values that texts stand for, of any type that Arrow reads from text.

    Raises:
        ArrowException, ValueError: One stands for none of the type.
    """
    if pa.types.is_decimal(data_type):
        _refuse(texts, pc.invert(pc.match_substring_regex(texts, _DECIMAL)))
        return decimals_of(texts, data_type)
    values = texts.cast(data_type)
    if pa.types.is_floating(data_type):
        # Half floats have no such kernel of their own.
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
    """Return whether one of the values would be written in another way than it is."""
    if pa.types.is_boolean(values.type):
        pattern = DIGIT
    elif pa.types.is_floating(values.type):
        pattern = _INEXACT_FLOAT
    else:
        # Most are written as they were, and only the others need to be matched.
        texts = texts.filter(pc.not_equal(values.cast(pa.string()), texts))
        pattern = ZEROS
    return bool(pc.any(pc.match_substring_regex(texts, pattern)).as_py())


def _refuse(texts: Any, bad: Any) -> None:
    if bad.true_count:
        raise ValueError(f"{texts.filter(bad)[0]} does not fit")
