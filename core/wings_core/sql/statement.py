"""Statements: one SELECT, parsed by DuckDB, every node of its tree held against what is allowed.

The tree also says which tables a statement names, and where its parameters stand in its text.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from wings_core.errors import InvalidSql, ResourceExhausted
from wings_core.fetch.expression import CASTS_NESTED_MAX, CONCATENATIONS_MAX
from wings_core.fetch.vocabulary import CONCATENATIONS, JSON_FUNCTIONS, PATTERN_FUNCTIONS
from wings_core.sql.vocabulary import CLASSES, FUNCTIONS, NODES, SOURCES, TABLE_FUNCTIONS
from wings_core.sql_process.interface import CATALOG, Parsed
from wings_core.storage.lru import Lru

STATEMENT_BYTES_MAX = 256 * 1024
"""Bytes of a statement's text, so also of its lists of values."""

TABLES_MAX = 64
"""Tables that a statement may name."""

COLUMNS_MAX = 4096
"""Entries of all SELECT lists of a statement: planning takes time by their square, unstopped."""

STAR_COLUMNS = 64
"""How many of them a `*` counts for."""

TREES_KEPT_BYTES_MAX = 1 << 20
"""Of the syntax trees of the statements parsed last, as JSON: in memory ten times as much."""

TREE_KEPT_BYTES_MAX = 32 * 1024
"""Of one that is kept."""

PATTERN_LENGTH_MAX = 1024
"""Characters of a regular expression."""

CATALOGS = frozenset({"memory", "system"})
"""Other catalogs, by whose names there may be a schema of ours too."""

_SETTING = re.compile(r"\b(?:SET|PRAGMA|RESET|settings?|configur\w+)\b|=\s*(?:true|false)\b")

_Node = dict[str, Any]
_NOWHERE = 2**64 - 1


@dataclass(frozen=True, slots=True)
class TableName:
    """A table as a statement names it."""

    schema: str
    """Empty: that of names without one."""
    table: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the text of a statement."""

    name: str
    """Its number, from 1 on, or the name after `$`."""
    start: int
    """Of its text, in bytes."""
    end: int


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that may be run."""

    text: str
    tables: tuple[TableName, ...]
    """Each once, in order."""
    parameters: tuple[Parameter, ...]
    """In the order of the text."""
    qualified: tuple[int, ...]
    """Where, in bytes, a table is named that DuckDB would take for another without its catalog."""
    root: Mapping[str, Any]
    """Its syntax tree, as DuckDB tells it."""
    references: int
    """How often it names tables."""


def parse(
    text: str, parser: Callable[[str], Parsed], known: frozenset[str] = frozenset()
) -> Statement:
    """Parse one statement and check that it may be run.

    Args:
        text: SQL.
        parser: Makes the syntax tree.
        known: Tables that came along, lower case: no topics.

    Raises:
        InvalidSql: It is not one SELECT, or holds what is not allowed.
        ResourceExhausted: It is too long, names too many tables, or takes too long to parse.
        EngineFailed: The query is to end.
    """
    kept = _kept.get((text, known))
    if kept is not None:
        return kept
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InvalidSql("a statement may not hold a NUL or half a surrogate pair")
    if len(text.encode()) > STATEMENT_BYTES_MAX:
        raise ResourceExhausted(f"a statement has at most {STATEMENT_BYTES_MAX} bytes")
    try:
        parsed = parser(text)
        root = _root(text, parsed)
        walk = _Walk(text)
        walk.visit(root, known)
    except RecursionError:
        raise InvalidSql("the statement is nested too deep") from None
    if len(walk.tables) > TABLES_MAX:
        raise ResourceExhausted(f"a statement names at most {TABLES_MAX} tables")
    parameters = tuple(sorted(walk.parameters, key=lambda parameter: parameter.start))
    statement = Statement(
        text,
        tuple(walk.tables),
        parameters,
        tuple(walk.qualified),
        root,
        walk.references,
    )
    if len(parsed.tree) <= TREE_KEPT_BYTES_MAX:
        _kept.put((text, known), statement, len(parsed.tree))
    return statement


_kept: Lru[tuple[str, frozenset[str]], Statement] = Lru(TREES_KEPT_BYTES_MAX)
"""Parsing takes as long as running a look-up; programs ask the same again, with other values."""


def invalid_sql(message: str, text: str, byte: int | None) -> InvalidSql:
    """Return the error of a statement; its position is a character, from 1 on.

    Args:
        message: What is wrong.
        text: The statement.
        byte: Where in it, in bytes from 0 on; None: nowhere in particular.
    """
    if byte is None or not 0 <= byte <= len(text.encode()):
        return InvalidSql(message)
    position = len(text.encode()[:byte].decode("utf-8", "ignore")) + 1
    return InvalidSql(f"{message} (at character {position})", position=position)


def without_hints(message: str) -> str:
    """Return a message without the sentences about settings, which are not the caller's."""
    sentences = re.split(r"(?<=[.!?]) +", message)
    return " ".join(each for each in sentences if not _SETTING.search(each)) or sentences[0]


def _root(text: str, parsed: Parsed) -> _Node:
    """Return the syntax tree of the one statement of a text."""
    found = json.loads(parsed.tree)
    if found["error"]:
        _refuse_statement(text, found, parsed.kinds)
    statements: list[_Node] = found["statements"]
    if len(statements) != 1:
        raise InvalidSql(f"expected one statement; got {len(statements)}")
    return statements[0]["node"]


def _refuse_statement(text: str, found: Mapping[str, Any], kinds: Sequence[str]) -> None:
    if found.get("error_type") != "not implemented":
        byte = int(found["position"]) if "position" in found else None
        message = without_hints(str(found["error_message"]).partition("\n")[0])
        raise invalid_sql(message, text, byte)
    kind = next((kind for kind in kinds if kind != "SELECT"), "this")
    if kind == "MULTI":
        kind = "PIVOT without its list of values"
    raise invalid_sql(
        f"{kind} is refused: SQL reads topics, by one SELECT (or VALUES, DESCRIBE, SUMMARIZE)",
        text,
        0,
    )


@dataclass(slots=True)
class _Walk:
    """Visits every node of a tree; what it does not know it refuses."""

    text: str
    tables: dict[TableName, None] = field(default_factory=dict[TableName, None])
    parameters: list[Parameter] = field(default_factory=list[Parameter])
    qualified: list[int] = field(default_factory=list[int])
    concatenations: int = 0
    casts: int = 0
    columns: int = 0
    references: int = 0

    def visit(self, value: object, known: frozenset[str]) -> None:
        """Visit a node and all below it; `known` are the names of WITH that it may use."""
        if isinstance(value, list):
            for entry in cast("list[object]", value):
                self.visit(entry, known)
        elif isinstance(value, dict):
            node = cast("_Node", value)
            if "cte_map" in node:
                self._query(node, known)
            elif "class" in node:
                self._expression(node, known)
            elif "alias" in node and "sample" in node:
                self._source(node, known)
            else:
                self._children(node, known)

    def _children(self, node: _Node, known: frozenset[str]) -> None:
        for value in node.values():
            self.visit(value, known)

    def _query(self, node: _Node, known: frozenset[str]) -> None:
        if node["type"] not in NODES:
            self._refuse(node, f"{node['type'].partition('_')[0]} is refused: SQL reads topics")
        self._count_columns(node.get("select_list", ()))
        for entry in node["cte_map"]["map"]:
            self.visit(entry["value"], known)
            known |= {_folded(entry["key"])}
        own = {_folded(node["cte_name"])} if "cte_name" in node else set[str]()
        for key, value in node.items():
            if key != "cte_map":
                # To DuckDB the part that a recursion begins with does not know its name.
                self.visit(value, known - own if key == "left" else known | own)

    def _count_columns(self, entries: Sequence[_Node]) -> None:
        self.columns += sum(STAR_COLUMNS if each["class"] == "STAR" else 1 for each in entries)
        if self.columns > COLUMNS_MAX:
            raise ResourceExhausted(
                f"a statement selects at most {COLUMNS_MAX} columns, a '*' being {STAR_COLUMNS}"
            )

    def _source(self, node: _Node, known: frozenset[str]) -> None:
        kind = node["type"]
        if kind not in SOURCES:
            self._refuse(node, f"{kind} is refused")
        if kind == "BASE_TABLE":
            self._table(node, known)
        elif kind == "TABLE_FUNCTION":
            function: _Node = node["function"]
            name = str(function["function_name"]).lower()
            if function["schema"] or function["catalog"] or name not in TABLE_FUNCTIONS:
                self._refuse(node, f"the table function {name!r:.80} is refused")
            for argument in function["arguments"]:
                self.visit(argument, known)
        elif kind == "SHOW_REF" and (not node["query"] or node["table_name"]):
            self._refuse(node, "SHOW is refused: ask the catalog, or name a table to DESCRIBE")
        else:
            self._children(node, known)

    def _table(self, node: _Node, known: frozenset[str]) -> None:
        catalog, schema, table = (
            _folded(node[key]) for key in ("catalog_name", "schema_name", "table_name")
        )
        if node["at_clause"]:
            self._refuse(node, "AT is refused: a query sees the present")
        if not schema and not catalog and table in known:
            return
        if catalog not in ("", CATALOG) or (catalog and not schema):
            self._refuse(node, f"there is no catalog {catalog!r:.80}: it is named {CATALOG!r}")
        self.tables[TableName(schema, table)] = None
        self.references += 1
        if schema in CATALOGS and not catalog and node["query_location"] != _NOWHERE:
            self.qualified.append(node["query_location"])

    def _expression(self, node: _Node, known: frozenset[str]) -> None:
        kind = node["class"]
        if kind not in CLASSES:
            self._refuse(node, f"{kind} is refused")
        if kind in ("FUNCTION", "WINDOW"):
            self._function(node)
        elif kind == "PARAMETER":
            start = node["query_location"]
            end = start + node["query_location_length"]
            self.parameters.append(Parameter(str(node["identifier"]), start, end))
        elif kind == "TYPE" and (node["schema"] or node["catalog"]):
            self._refuse(node, f"there is no type {node['type_name']!r:.80}")
        if kind == "CAST":
            if self.casts == CASTS_NESTED_MAX:
                self._refuse(node, f"casts may be nested {CASTS_NESTED_MAX} deep")
            self.casts += 1
            self._children(node, known)
            self.casts -= 1
        else:
            self._children(node, known)

    def _function(self, node: _Node) -> None:
        name = str(node["function_name"]).lower()
        if node["schema"] or node["catalog"] or name not in FUNCTIONS:
            path = ".".join(part for part in (node["catalog"], node["schema"], name) if part)
            self._refuse(node, f"the function {path!r:.80} is not one for SQL over topics")
        if node["class"] == "WINDOW":
            return
        arguments: list[_Node] = [entry["expression"] for entry in node["arguments"]]
        if name in CONCATENATIONS:
            self.concatenations += max(1, len(arguments) - 1)
            if self.concatenations > CONCATENATIONS_MAX:
                self._refuse(node, f"a statement joins at most {CONCATENATIONS_MAX} strings")
        if name in PATTERN_FUNCTIONS:
            self._check_pattern(node, name, arguments)
        if name == "replace":
            self._check_replacement(node, arguments)
        if name in JSON_FUNCTIONS:
            for path in arguments[1:]:
                text = _constant(path)
                if text is None or "*" in text or ".." in text:
                    self._refuse(
                        node, f"the path of {name} must be a constant without '*' and '..'"
                    )

    def _check_pattern(self, node: _Node, name: str, arguments: list[_Node]) -> None:
        """A regular expression for each row would be compiled for each row."""
        pattern = arguments[1] if len(arguments) > 1 else {}
        if pattern.get("class") == "PARAMETER":
            return
        text = _constant(pattern)
        if text is None:
            self._refuse(node, f"the regular expression of {name} must be a constant")
        elif len(text) > PATTERN_LENGTH_MAX:
            raise ResourceExhausted(
                f"a regular expression has at most {PATTERN_LENGTH_MAX} characters"
            )

    def _check_replacement(self, node: _Node, arguments: list[_Node]) -> None:
        """Or nested calls would grow without end."""
        texts = [_constant(argument) for argument in arguments[1:]]
        if len(texts) != 2 or texts[0] is None or texts[1] is None:
            self._refuse(node, "the second and third arguments of replace must be constants")
        elif len(texts[1].encode()) > len(texts[0].encode()):
            self._refuse(node, "replace may not make a text longer")

    def _refuse(self, node: _Node, message: str) -> None:
        byte = node.get("query_location", _NOWHERE)
        raise invalid_sql(message, self.text, None if byte == _NOWHERE else byte)


def _folded(name: object) -> str:
    """Return a name as DuckDB compares it: letters outside of ASCII are alike in one case alone."""
    return str(name).encode().lower().decode()


def _constant(node: _Node) -> str | None:
    """Return the text of a constant, None of anything else."""
    return str(node["literal"].get("text", "")) if node.get("class") == "CONSTANT" else None
