"""Parameters: values put into a statement's text as literals, where its parameters stand.

DuckDB would keep all rows of a prepared statement's result in memory; that of a text it streams.
Its own parser has said where the parameters are.
"""

import datetime
import decimal
import math
import uuid
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wings_core.errors import InvalidSql
from wings_core.sql.statement import Parameter, Statement
from wings_core.sql_process.interface import CATALOG

Parameters = Sequence[Any] | Mapping[str, Any]
"""Values by position, or by name: None, bool, int, float, str, bytes, Decimal, dates, times
and timedeltas."""


@dataclass(frozen=True, slots=True)
class BoundText:
    """A statement's text as DuckDB gets it."""

    text: str
    edits: tuple[tuple[int, int], ...]
    """Ends of edits in bytes of `text`, each with how much longer the text is up to there."""

    def original(self, byte: int) -> int:
        """Return which byte of the statement a byte of the text was."""
        index = bisect_right(self.edits, byte, key=lambda edit: edit[0])
        return byte - self.edits[index - 1][1] if index else byte


def bind(statement: Statement, parameters: Parameters) -> BoundText:
    """Return a statement's text with the values of its parameters.

    Raises:
        InvalidSql: A value is missing, there is one too many, or it is of a kind that SQL lacks.
    """
    given = named(parameters)
    wanted = {parameter.name for parameter in statement.parameters}
    if extra := sorted(set(given) - wanted):
        raise InvalidSql(f"the statement has no parameter {extra[0]:.80}")
    edits: list[tuple[int, int, bytes]] = [
        (parameter.start, parameter.end, _literal(given, parameter).encode())
        for parameter in statement.parameters
    ]
    edits += [(start, start, f"{CATALOG}.".encode()) for start in statement.qualified]
    raw, done, longer = statement.text.encode(), 0, 0
    pieces: list[bytes] = []
    shifts: list[tuple[int, int]] = []
    for start, end, text in sorted(edits):
        pieces += [raw[done:start], text]
        done = end
        longer += len(text) - (end - start)
        shifts.append((end + longer, longer))
    pieces.append(raw[done:])
    return BoundText(b"".join(pieces).decode(), tuple(shifts))


def named(parameters: Parameters) -> Mapping[str, Any]:
    """Return the values by the names of the parameters."""
    if isinstance(parameters, Mapping):
        return parameters
    return {str(index): value for index, value in enumerate(parameters, 1)}


def _literal(given: Mapping[str, Any], parameter: Parameter) -> str:
    if parameter.name not in given:
        raise InvalidSql(f"parameter {parameter.name:.80} has no value")
    return literal(given[parameter.name])


def literal(value: Any) -> str:  # noqa: C901 - one line for each type
    """Return a value as SQL.

    Raises:
        InvalidSql: It is of another type than those of `Parameters`.
    """
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        # In brackets: `a -?` of a negative number is no comment.
        return f"({value})" if -(2**127) < value < 2**127 else _unfit(value)
    if isinstance(value, float):
        text = repr(value) if math.isfinite(value) else str(value)
        return f"CAST('{text}' AS DOUBLE)"
    if isinstance(value, str):
        if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
            raise InvalidSql("a parameter may not hold a NUL or half a surrogate pair")
        return _quoted(value)
    if isinstance(value, (bytes, bytearray)):
        return "CAST('" + "".join(f"\\x{byte:02X}" for byte in value) + "' AS BLOB)"
    if isinstance(value, decimal.Decimal) and value.is_finite():
        digits = _digits(value)
        return f"CAST('{value:f}' AS DECIMAL({digits[0]}, {digits[1]}))"
    if isinstance(value, datetime.datetime):
        kind = "TIMESTAMP" if value.tzinfo is None else "TIMESTAMP WITH TIME ZONE"
        return f"CAST('{value.isoformat(' ')}' AS {kind})"
    if isinstance(value, datetime.date):
        return f"CAST('{value.isoformat()}' AS DATE)"
    if isinstance(value, datetime.time) and value.tzinfo is None:
        return f"CAST('{value.isoformat()}' AS TIME)"
    if isinstance(value, datetime.timedelta):
        return f"CAST('{value // datetime.timedelta(microseconds=1)} microseconds' AS INTERVAL)"
    if isinstance(value, uuid.UUID):
        return f"CAST('{value}' AS UUID)"
    return _unfit(value)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _digits(value: decimal.Decimal) -> tuple[int, int]:
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "a finite decimal"
    scale = max(0, -exponent)
    width = max(len(digits) + max(0, exponent), scale, 1)
    if width > 38:
        _unfit(value)
    return width, scale


def _unfit(value: object) -> str:
    raise InvalidSql(f"a parameter cannot be {value!r:.80} ({type(value).__name__})")
