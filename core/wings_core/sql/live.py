"""Live views: statements that a follow can serve, with columns and a condition over one topic.

    SELECT * | column, … FROM topic [WHERE condition on the topic's own columns]

Every other clause needs the end of the log, or more than one row at a time.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from wings_core.contracts.sql import SYSTEM
from wings_core.errors import InvalidSql
from wings_core.names import NamespaceName, TopicName
from wings_core.sql.statement import Statement, TableName, invalid_sql, topic_of

SYSTEM_COLUMNS = frozenset({"__partition", "__offset", "__timestamp"})

_Node = Mapping[str, Any]

_NOTHING = {"type": "EMPTY", "alias": "", "sample": None, "query_location": 0}
"""The FROM clause of a SELECT without one."""

_PARTS = {
    "group_expressions": "GROUP BY needs an end of the log",
    "having": "HAVING needs an end of the log",
    "qualify": "QUALIFY needs an end of the log",
    "sample": "a sample needs an end of the log",
}

_MODIFIERS = {
    "ORDER_MODIFIER": "ORDER BY: rows come as they are committed",
    "LIMIT_MODIFIER": "LIMIT: a follow has no end",
    "LIMIT_PERCENT_MODIFIER": "LIMIT: a follow has no end",
    "DISTINCT_MODIFIER": "DISTINCT needs all rows before",
}


@dataclass(frozen=True, slots=True)
class LiveView:
    """The columns and rows of a topic that a follow delivers."""

    topic: TopicName
    columns: tuple[str, ...] | None
    """Names in order, system columns included; None for all columns and system columns."""
    filter: str | None
    """A predicate over the topic's own columns; None for all rows."""


def live_view(
    statement: Statement, write: Callable[[str], str], namespace: NamespaceName
) -> LiveView:
    """Return the columns and the condition that a follow delivers for a statement.

    Args:
        statement: A parsed and permitted statement.
        write: Returns the text of a syntax tree.
        namespace: The namespace of names without a schema.

    Raises:
        InvalidSql: A follow cannot serve it; the message says why.
    """
    root, text = statement.root, statement.text
    if root["type"] != "SELECT_NODE" or root["cte_map"]["map"]:
        _refuse("it is not one plain SELECT", text)
    if statement.parameters:
        _refuse("parameters: write their values", text)
    source = root["from_table"]
    if source["type"] != "BASE_TABLE" or source["column_name_alias"]:
        _refuse("it reads no topic, or more than one", text, source)
    for part, reason in _PARTS.items():
        if root[part] or source.get(part):
            _refuse(reason, text)
    for modifier in root["modifiers"]:
        _refuse(_MODIFIERS.get(modifier["type"], "it has more than a condition"), text)
    table = TableName(str(source["schema_name"]), str(source["table_name"]))
    if table.schema == SYSTEM:
        _refuse("system tables have no new rows to follow", text, source)
    names = {str(source["alias"] or source["table_name"]).lower()}
    condition = root["where_clause"]
    return LiveView(
        topic_of(table, namespace),
        _columns(root["select_list"], names, text),
        None if condition is None else _filter(statement, condition, names, write),
    )


def _columns(entries: Sequence[_Node], names: set[str], text: str) -> tuple[str, ...] | None:
    if len(entries) == 1 and entries[0]["class"] == "STAR":
        star = entries[0]
        changes = ("columns", "exclude_list", "replace_list", "rename_list", "expr")
        if any(star.get(change) for change in changes):
            _refuse("`*` with changes: name the columns", text, star)
        return None
    found: list[str] = []
    for entry in entries:
        path = _unqualified(entry["column_names"], names) if entry["class"] == "COLUMN_REF" else []
        if len(path) != 1 or entry["alias"] not in {"", path[0]}:
            _refuse("its columns are to be the topic's, as they are", text, entry)
        found.append(path[0])
    if len(set(found)) < len(found):
        _refuse("a column stands there twice", text)
    return tuple(found)


def _filter(
    statement: Statement, condition: _Node, names: set[str], write: Callable[[str], str]
) -> str:
    """Return a condition as text, its columns unqualified."""
    cleared = {"select_list": [_plain(condition, names, statement.text)], "where_clause": None}
    node = {**statement.root, **cleared, "from_table": _NOTHING}
    tree = {"error": False, "statements": [{"node": node, "named_param_map": []}]}
    return write(json.dumps(tree)).removeprefix("SELECT ")


def _plain(value: Any, names: set[str], text: str) -> Any:
    """Return a part of a condition, its columns unqualified."""
    if isinstance(value, list):
        return [_plain(each, names, text) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    node = cast("dict[str, Any]", value)
    if node.get("class") == "SUBQUERY":
        _refuse("a subquery has a moment of its own", text, node)
    found = {key: _plain(each, names, text) for key, each in node.items()}
    if node.get("class") == "COLUMN_REF":
        found["column_names"] = _unqualified(node["column_names"], names)
        if found["column_names"][0].lower() in SYSTEM_COLUMNS:
            _refuse("its condition is on a system column: say where to begin instead", text, node)
    return found


def _unqualified(path: Sequence[str], names: set[str]) -> list[str]:
    """Return the path of a column and of fields in it, without the table's name."""
    return list(path[1:] if len(path) > 1 and path[0].lower() in names else path)


def _refuse(reason: str, text: str, node: _Node | None = None) -> NoReturn:
    found = None if node is None else node.get("query_location")
    error: InvalidSql = invalid_sql(f"a follow cannot serve this: {reason}", text, found)
    raise error
