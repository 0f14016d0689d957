"""Parameters: values are put into a statement's text as literals, in place of its parameters.

DuckDB keeps the whole result of a prepared statement in memory; that of a text it streams. DuckDB's
parser gives the positions of the parameters.

Drivers ask for the types of parameters before they have values. DuckDB infers none, but reports the
types of a query's columns: for each parameter there is a query whose single column has the type of
its *peer*, the expression that it is compared with.
"""

import datetime
import decimal
import json
import math
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from wings_core.errors import InvalidSql
from wings_core.sql.statement import Parameter, Statement
from wings_core.sql_process.interface import CATALOG

Parameters = Sequence[Any] | Mapping[str, Any]
"""Values by position, or by name: None, bool, int, float, str, bytes, Decimal, dates, times
and timedeltas."""

_TEMPLATE = "SELECT NULL"

_COUNT = f"{_TEMPLATE}::BIGINT"
"""The query for a parameter of LIMIT or OFFSET."""

_CLAUSES = ("where_clause", "having", "qualify", "sample")

_LISTS = ("group_expressions", "group_sets", "modifiers")

_Node = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BoundText:
    """The text of a statement as sent to DuckDB."""

    text: str
    edits: tuple[tuple[int, int], ...]
    """Byte offset in `text` of the end of each edit, and the bytes by which the text grew here."""

    def original(self, byte: int) -> int:
        """Return the position in the statement, in bytes, of a byte of the text."""
        index = bisect_right(self.edits, byte, key=lambda edit: edit[0])
        return byte - self.edits[index - 1][1] if index else byte


@dataclass(frozen=True, slots=True)
class Peer:
    """A parameter, and the expression that it is compared with."""

    name: str
    """Number of the parameter, from 1, or the name after `$`."""
    query: str | None
    """A query whose single column has the parameter's type; None if the type is unknown."""


def bind(statement: Statement, parameters: Parameters) -> BoundText:
    """Put the values of its parameters into a statement's text.

    Raises:
        InvalidSql: A value is missing, superfluous, or of a type that SQL lacks.
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
    """Return the values by the names of their parameters."""
    if isinstance(parameters, Mapping):
        return parameters
    return {str(index): value for index, value in enumerate(parameters, 1)}


def peers_of(statement: Statement, write: Callable[[str], str]) -> list[Peer]:
    """Return the parameters of a statement, each once, in order of appearance.

    Args:
        statement: A permitted statement; the returned queries are permitted too.
        write: Returns the text of a syntax tree.
    """
    queries: dict[str, str] = {}
    for name, node, scope in _compared(statement.root, statement.root):
        if name not in queries:
            queries[name] = _COUNT if node is None else _written(node, scope, write)
    names = dict.fromkeys(parameter.name for parameter in statement.parameters)
    return [Peer(name, queries.get(name)) for name in names]


def _literal(given: Mapping[str, Any], parameter: Parameter) -> str:
    if parameter.name not in given:
        raise InvalidSql(f"parameter {parameter.name:.80} has no value")
    return literal(given[parameter.name])


def literal(value: Any) -> str:  # noqa: C901 - one line for each type
    """Return a value as an SQL literal.

    Raises:
        InvalidSql: The value has a type that `Parameters` does not list.
    """
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        # In parentheses: `a -?` with a negative number must not begin a comment.
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


def _compared(value: Any, scope: _Node) -> Iterator[tuple[str, _Node | None, _Node]]:
    """Yield parameters, their peers (None for a row count), and the query that contains both."""
    if isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from _compared(each, scope)
    if not isinstance(value, dict):
        return
    node = cast("_Node", value)
    if "select_list" in node:
        scope = node
    for name, peer in _peers(node):
        if peer is None or not (_has_parameter(peer) or _has_parameter(scope["from_table"])):
            yield name, peer, scope
    for each in node.values():
        yield from _compared(each, scope)


def _peers(node: _Node) -> Iterator[tuple[str, _Node | None]]:
    kind = node.get("type")
    if kind == "LIMIT_MODIFIER":
        yield from ((name, None) for name in _names(node["limit"], node["offset"]))
    elif node.get("class") == "COMPARISON":
        yield from _beside(node["left"], node["right"])
    elif node.get("class") == "BETWEEN":
        yield from _beside(node["input"], node["lower"], node["upper"])
    elif kind in {"COMPARE_IN", "COMPARE_NOT_IN"}:
        yield from _beside(*node["children"])


def _beside(*nodes: _Node) -> Iterator[tuple[str, _Node]]:
    """Yield the parameters among `nodes`, each with the first node that is not a parameter."""
    others = [node for node in nodes if node["class"] != "PARAMETER"]
    if others:
        yield from ((name, others[0]) for name in _names(*nodes))


def _names(*nodes: _Node | None) -> list[str]:
    return [str(node["identifier"]) for node in nodes if node and node["class"] == "PARAMETER"]


def _has_parameter(value: Any) -> bool:
    if isinstance(value, dict):
        node = cast("_Node", value)
        return node.get("class") == "PARAMETER" or any(map(_has_parameter, node.values()))
    return isinstance(value, list) and any(map(_has_parameter, cast("list[Any]", value)))


def _written(node: _Node, scope: _Node, write: Callable[[str], str]) -> str:
    """Return a query that selects `node` from the sources of the query `scope`."""
    cleared = {**dict.fromkeys(_CLAUSES), **{each: [] for each in _LISTS}}
    query = {**scope, **cleared, "select_list": [node]}
    return write(
        json.dumps({"error": False, "statements": [{"node": query, "named_param_map": []}]})
    )
