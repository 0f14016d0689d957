"""Bounded statements: those that take no more memory than DuckDB counts, and plan in no time.

They scan one table, and make nothing of its rows that is longer than a number, but their own values
once each, groups and orders, which DuckDB counts. What is not known to be so is not: it runs in a
worker, which costs the way of its rows there and back.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from wings_core.fetch.vocabulary import words
from wings_core.sql.statement import Statement

TEXT_BYTES_MAX = 8 * 1024
"""Bytes of the text, values of parameters included."""

PARSE_SECONDS_MAX = 0.1
"""Processor time to parse it."""

NAME_PARTS_MAX = 8
"""Parts of a column's name, as in `a.b.c`: planning takes time by the cube of their number."""

COLUMNS_MAX = 512
"""Columns of the table."""

ENTRIES_MAX = 64
"""Entries of the SELECT list."""

_FUNCTIONS = words(
    """
    + - * / % // abs ceil ceiling floor round sign ~~ !~~ ~~* !~~* starts_with prefix contains
    avg bool_and bool_or corr count count_if count_star countif covar_pop covar_samp favg fsum
    kahan_sum max mean min regr_count regr_slope stddev stddev_pop stddev_samp sum sumkahan
    var_pop var_samp variance approx_count_distinct
    date_part date_trunc datediff date_diff day dayofweek epoch epoch_ms epoch_us hour minute month
    quarter second time_bucket week year
    """
)

_TYPES = words(
    """
    bigint bool boolean date double float float4 float8 hugeint int int1 int2 int4 int8 integer
    real smallint time timestamp timestamptz tinyint ubigint uinteger usmallint utinyint uuid
    """
)
"""What columns may be cast to: types of one width."""

_CLASSES = frozenset(
    {"BETWEEN", "CAST", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION"}
    | {"OPERATOR", "PARAMETER", "STAR", "TYPE"}
)

_OPERATORS = frozenset(
    {
        "COMPARE_IN",
        "COMPARE_NOT_IN",
        "OPERATOR_IS_NOT_NULL",
        "OPERATOR_IS_NULL",
        "OPERATOR_NOT",
    }
)

_MODIFIERS = frozenset({"DISTINCT_MODIFIER", "LIMIT_MODIFIER", "ORDER_MODIFIER"})

_Node = Mapping[str, Any]


def is_bounded(statement: Statement, text: str, nested: frozenset[str]) -> bool:
    """Tell whether a statement is known to be bounded.

    Args:
        statement: That may be run.
        text: What DuckDB gets of it.
        nested: The names of columns of lists, structs and maps, lower case.
    """
    root = statement.root
    if root["type"] != "SELECT_NODE" or root["cte_map"]["map"]:
        return False
    if statement.seconds > PARSE_SECONDS_MAX:
        return False  # Where it runs it is parsed again.
    if len(text.encode()) > TEXT_BYTES_MAX:
        return False
    source = root["from_table"]
    if source["type"] != "BASE_TABLE" or source["sample"] or source["column_name_alias"]:
        return False
    if root["sample"] or root["qualify"] or len(root["group_sets"]) > 1:
        return False
    rest = [root["where_clause"], root["having"], *root["group_expressions"]]
    for modifier in root["modifiers"]:
        if modifier["type"] not in _MODIFIERS or modifier.get("distinct_on_targets"):
            return False
        rest += [order["expression"] for order in modifier.get("orders", ())]
        rest += [modifier.get("limit"), modifier.get("offset")]
    entries: Sequence[_Node] = root["select_list"]
    return _shows_once(entries) and all(_is_plain(each, nested) for each in (*entries, *rest))


def _shows_once(entries: Sequence[_Node]) -> bool:
    """Tell whether each column is among the rows once at most, as itself, and nothing longer is."""
    if len(entries) > ENTRIES_MAX:
        return False
    shown: set[str] = {str(entry["alias"]).lower() for entry in entries} - {""}
    for entry in entries:
        if entry["class"] == "STAR":
            parts = ("columns", "replace_list", "rename_list", "expr")
            if len(entries) > 1 or any(entry[part] for part in parts):
                return False
        elif entry["class"] == "COLUMN_REF":
            name = str(entry["column_names"][-1]).lower()
            if name in shown - {str(entry["alias"]).lower()}:
                return False
            shown.add(name)
        elif entry["class"] == "CAST" or _is_text(entry):
            return False
    return True


def _is_text(node: _Node) -> bool:
    """Tell whether an expression is a text, or may be: the value of a parameter."""
    if node["class"] == "PARAMETER":
        return True
    return node["class"] == "CONSTANT" and node["literal"]["kind"] == "STRING"


def _is_plain(node: _Node | None, nested: frozenset[str]) -> bool:
    """Tell whether an expression's value is as long as a number, or a column's value."""
    if node is None:
        return True
    kind = node["class"]
    if kind not in _CLASSES or (kind == "OPERATOR" and node["type"] not in _OPERATORS):
        return False
    if kind == "COLUMN_REF" and len(node["column_names"]) > NAME_PARTS_MAX:
        return False
    if kind == "CAST":
        constant = node["child"]["class"] in ("CONSTANT", "PARAMETER")
        if not constant and str(node["type_expr"].get("type_name", "")).lower() not in _TYPES:
            return False
    children = [each["expression"] for each in node["arguments"]] if kind == "FUNCTION" else []
    if kind == "FUNCTION":
        if node["function_name"].lower() not in _FUNCTIONS or node["order_bys"]["orders"]:
            return False
        # Lists are joined by `+`.
        if any(not nested.isdisjoint(_names(child)) for child in children):
            return False
        children.append(node["filter"])
    else:
        children += [node.get(key) for key in ("child", "left", "right", "input", "lower", "upper")]
        children += node.get("children", ())
    return all(_is_plain(child, nested) for child in children)


def _names(value: object) -> Iterator[str]:
    """Yield the parts of names of columns in an expression, lower case."""
    if isinstance(value, dict):
        node = cast("_Node", value)
        yield from (str(name).lower() for name in node.get("column_names", ()))
        for inner in node.values():
            yield from _names(inner)
    elif isinstance(value, list):
        for entry in cast("list[object]", value):
            yield from _names(entry)
