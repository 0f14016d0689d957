"""Peers: the expressions that parameters are compared with, which give the parameters their types.

Drivers ask for the types of parameters before they have values. DuckDB infers none, but reports the
types of a query's columns: for each parameter there is a query whose single column has its type.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from wings_core.sql.statement import Statement

_TEMPLATE = "SELECT NULL"

_COUNT = f"{_TEMPLATE}::BIGINT"
"""The query for a parameter of LIMIT or OFFSET."""

_CLAUSES = ("where_clause", "having", "qualify", "sample")

_LISTS = ("group_expressions", "group_sets", "modifiers")

_Node = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Peer:
    """A parameter, and the expression that it is compared with."""

    name: str
    """Number of the parameter, from 1, or the name after `$`."""
    query: str | None
    """A query whose single column has the parameter's type; None if the type is unknown."""


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
