"""Plain statements: columns of a topic, by comparisons with constants.

    SELECT * | column, … FROM topic [WHERE column = constant AND …]

DuckDB asks a scan for the columns and the condition of such a statement, and changes nothing of the
rows that it gets. Planning that takes longer than reading the few rows of a look-up, so here it is
the scan that answers.
"""

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from wings_core.sql.parameters import Parameters, named
from wings_core.sql.predicate import Comparison, Predicate
from wings_core.sql.statement import Statement
from wings_core.sql.topic_table import ShownColumn, TopicTable

COMPARISONS_MAX = 64
"""Of a plain statement; the condition of a scan is as deep as they are many."""

_INTEGER = re.compile(r"-?[0-9]{1,20}")

_SIGNS = {
    "COMPARE_EQUAL": ("equal", "equal"),
    "COMPARE_GREATERTHAN": ("greater", "less"),
    "COMPARE_GREATERTHANOREQUALTO": ("greater_equal", "less_equal"),
    "COMPARE_LESSTHAN": ("less", "greater"),
    "COMPARE_LESSTHANOREQUALTO": ("less_equal", "greater_equal"),
}
"""The functions of Arrow, the second of them where the constant comes first."""

_CHANGES_OF_A_STAR = (
    *("alias", "relation_name", "exclude_list", "qualified_exclude_list"),
    *("replace_list", "rename_list", "columns", "expr"),
)

_Node = Mapping[str, Any]


def is_one_table(root: _Node) -> bool:
    """Tell whether a query is a SELECT from one table, whose columns keep their names."""
    if root["type"] != "SELECT_NODE" or root["cte_map"]["map"]:
        return False
    source = root["from_table"]
    return source["type"] == "BASE_TABLE" and not source["column_name_alias"]


def conditions(node: _Node | None) -> Iterator[_Node]:
    """Yield the conditions that each row must pass."""
    if node is not None and node["type"] == "CONJUNCTION_AND":
        for child in node["children"]:
            yield from conditions(child)
    elif node is not None:
        yield node


def value_of(node: _Node, given: Mapping[str, Any]) -> Any:
    """Return the value of a text or a whole number, None of anything else."""
    if node["class"] == "PARAMETER":
        return given.get(str(node["identifier"]))
    if node["class"] != "CONSTANT":
        return None
    kind, text = node["literal"]["kind"], node["literal"].get("text")
    if kind == "STRING":
        return text
    return int(text) if kind == "INTEGER" and _INTEGER.fullmatch(text) else None


def compared(value: Any, data_type: pa.DataType) -> int | str | None:
    """Return a value as a column of a type compares it; None where it is not known how."""
    if isinstance(value, bool):
        return None
    if pa.types.is_integer(data_type):
        if isinstance(value, str):  # SQL casts it; drivers send all values as texts.
            return int(value) if _INTEGER.fullmatch(value) else None
        return value if isinstance(value, int) else None
    is_text = pa.types.is_string(data_type) or pa.types.is_large_string(data_type)
    return value if is_text and isinstance(value, str) else None


class PlainRun:
    """A plain statement, in this process; closed by its caller.

    Args:
        table: What it reads.
        columns: Those of its rows, in order.
        predicate: The condition of its rows; None: all.
    """

    usable = True
    """Whether the engine, which it does not use, may be lent again."""

    def __init__(
        self, table: TopicTable, columns: Sequence[ShownColumn], predicate: Predicate | None
    ) -> None:
        self._table = table
        self._predicate = predicate
        self._scanned = pa.schema([column.field for column in columns])
        self.schema = pa.schema([column.field.with_name(column.name) for column in columns])
        """Of the rows."""

    def batches(self, rows: int) -> Generator[pa.RecordBatch]:
        """Yield the rows of the statement, at most so many at a time."""
        for batch in self._table.batches(self._scanned, self._predicate):
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)

    def close(self) -> None:
        """There is nothing to end."""


def plain_run(statement: Statement, parameters: Parameters, table: TopicTable) -> PlainRun | None:
    """Return the run of a statement over the table of a topic, if it is plain; else None."""
    root = statement.root
    if statement.references != 1 or not is_one_table(root) or root["from_table"]["sample"]:
        return None
    beside = ("modifiers", "group_expressions", "group_sets", "having", "sample", "qualify")
    # GROUP BY ALL has no expressions.
    if any(root[part] for part in beside) or root["aggregate_handling"] != "STANDARD_HANDLING":
        return None
    known = table.shown.columns
    columns = _columns(root["select_list"], known)
    if columns is None or not all(column.is_kept for column in columns):
        return None
    given = named(parameters)
    comparisons: list[Comparison] = []
    for condition in conditions(root["where_clause"]):
        comparison = _comparison(condition, given, known)
        if comparison is None or len(comparisons) == COMPARISONS_MAX:
            return None
        comparisons.append(comparison)
    return PlainRun(table, columns, Predicate.all_of(comparisons) if comparisons else None)


def _columns(
    entries: Sequence[_Node], known: Mapping[str, ShownColumn]
) -> Sequence[ShownColumn] | None:
    """Return the columns of a SELECT list of columns as they are; None of any other."""
    if len(entries) == 1 and entries[0]["class"] == "STAR":
        changed = any(entries[0][change] for change in _CHANGES_OF_A_STAR)
        return None if changed else list(known.values())
    found: dict[str, ShownColumn] = {}
    for entry in entries:
        column = _column(entry, known)
        # DuckDB has names of its own for one that stands there twice.
        if column is None or entry["alias"] or column.name in found:
            return None
        found[column.name] = column
    return list(found.values())


def _column(node: _Node, known: Mapping[str, ShownColumn]) -> ShownColumn | None:
    """Return the column that an expression is, in the letters of its name; None of any other."""
    if node["class"] != "COLUMN_REF" or len(node["column_names"]) != 1:
        return None
    return known.get(str(node["column_names"][0]))


def _comparison(
    condition: _Node, given: Mapping[str, Any], known: Mapping[str, ShownColumn]
) -> Comparison | None:
    """Return a condition of which a scan knows what it means; None of any other."""
    if condition["type"] not in _SIGNS:
        return None
    sign, turned = _SIGNS[condition["type"]]
    column, constant = _column(condition["left"], known), condition["right"]
    if column is None:
        column, constant = _column(condition["right"], known), condition["left"]
        sign = turned
    if column is None:
        return None
    value = compared(value_of(constant, given), column.field.type)
    if value is None:
        return None
    try:
        return Comparison(sign, column.scanned_as, pa.scalar(value, column.field.type))
    except (OverflowError, pa.ArrowException):
        return None  # No value of the column's: SQL compares them in a wider type.
