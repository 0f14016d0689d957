"""Statements: one SELECT, parsed by DuckDB, every node of its tree checked against lists.

The functions that a statement may call are those of filters, which keep the memory of an expression
in proportion to its rows, plus aggregates, window functions and the clock. None reads files,
settings or the environment, sleeps, or multiplies its input.

The tree also gives the tables that a statement names, and the positions of its parameters.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from wings_core.contracts.sql import RESERVED
from wings_core.errors import InvalidName, InvalidSql, ResourceExhausted, suggested
from wings_core.fetch.expression import FUNCTIONS as FILTER_FUNCTIONS
from wings_core.fetch.expression import words
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName, TopicName
from wings_core.sql_process.interface import CATALOG, Parsed
from wings_core.storage.lru import Lru

STATEMENT_BYTES_MAX = 256 * 1024
"""Longest text of a statement, lists of values included, in bytes."""

TABLES_MAX = 64
"""Most tables that a statement may name."""

TREES_KEPT_BYTES_MAX = 1 << 20
"""Bytes of cached syntax trees, as JSON; in memory they take ten times as much."""

TREE_KEPT_BYTES_MAX = 32 * 1024
"""Bytes of the largest syntax tree that is cached."""

CATALOGS = frozenset({"memory", "system"})
"""Catalogs of DuckDB whose names a schema of ours may have too."""

_AGGREGATES = words(
    """
    any_value approx_count_distinct approx_quantile approx_top_k arbitrary arg_max
    arg_max_null arg_min arg_min_null argmax argmin array_agg avg bit_and bit_or bit_xor
    bool_and bool_or corr count count_if count_star countif covar_pop covar_samp entropy
    favg first fsum group_concat grouping grouping_id histogram kahan_sum kurtosis
    kurtosis_pop last list listagg mad max max_by mean median min min_by mode product
    quantile quantile_cont quantile_disc regr_avgx regr_avgy regr_count regr_intercept
    regr_r2 regr_slope regr_sxx regr_sxy regr_syy sem skewness stddev stddev_pop stddev_samp
    string_agg sum sumkahan sum_no_overflow var_pop var_samp variance
    """
)

_WINDOW_FUNCTIONS = words(
    """
    cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank
    rank_dense row_number
    """
)

_SCALARS = words(
    """
    age current_date current_localtime current_localtimestamp current_time current_timestamp
    gen_random_uuid get_current_date get_current_time get_current_timestamp ifnull map now
    nvl random replace struct_pack today transaction_timestamp typeof unnest uuid
    """
)

FUNCTIONS = FILTER_FUNCTIONS | _AGGREGATES | _WINDOW_FUNCTIONS | _SCALARS

_TABLE_FUNCTIONS = words("generate_series range unnest")

_NODES = words("SELECT_NODE SET_OPERATION_NODE RECURSIVE_CTE_NODE CTE_NODE STATEMENT_NODE")
"""Kinds of queries that only read."""

_SOURCES = words("BASE_TABLE EMPTY EXPRESSION_LIST JOIN PIVOT SHOW_REF SUBQUERY TABLE_FUNCTION")
"""Kinds of sources after FROM."""

_CLASSES = words(
    """
    BETWEEN CASE CAST COLLATE COLUMN_REF COMPARISON CONJUNCTION CONSTANT FUNCTION LAMBDA OPERATOR
    PARAMETER POSITIONAL_REFERENCE STAR SUBQUERY TYPE WINDOW
    """
)
"""Classes of expressions."""

_SETTING = re.compile(r"\b(?:SET|PRAGMA|RESET|settings?|configur\w+)\b|=\s*(?:true|false)\b")

_Node = dict[str, Any]
_NOWHERE = 2**64 - 1


@dataclass(frozen=True, slots=True)
class TableName:
    """A table's name in a statement."""

    schema: str
    """Schema; empty for an unqualified name."""
    table: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the text of a statement."""

    name: str
    """Number, from 1, or the name after `$`."""
    start: int
    """Offset of its first byte in the text."""
    end: int


@dataclass(frozen=True, slots=True)
class Statement:
    """A parsed and permitted statement."""

    text: str
    tables: tuple[TableName, ...]
    """Tables, each once, in order of appearance."""
    parameters: tuple[Parameter, ...]
    """Parameters, in order of appearance."""
    qualified: tuple[int, ...]
    """Byte offsets of table names that DuckDB would resolve wrongly without their catalog."""
    root: Mapping[str, Any]
    """DuckDB's syntax tree."""
    references: int
    """Number of references to tables."""


def parse(
    text: str, parser: Callable[[str], Parsed], known: frozenset[str] = frozenset()
) -> Statement:
    """Parse one statement and check that it is permitted.

    Args:
        text: SQL.
        parser: Makes the syntax tree.
        known: Names of tables sent with the statement, in lower case; they are not topics.

    Raises:
        InvalidSql: The text is not a single SELECT, or contains something not allowed.
        ResourceExhausted: The text is too long, names too many tables, or takes too long to parse.
        EngineFailed: The query was cancelled or timed out.
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
"""Cached statements: parsing takes as long as a look-up, and programs repeat their statements."""


def invalid_sql(message: str, text: str, byte: int | None) -> InvalidSql:
    """Return the error of a statement, with its position in characters, from 1.

    Args:
        message: The problem.
        text: The statement.
        byte: Byte offset of the problem, from 0; None if it has no position.
    """
    if byte is None or not 0 <= byte <= len(text.encode()):
        return InvalidSql(message)
    position = len(text.encode()[:byte].decode("utf-8", "ignore")) + 1
    return InvalidSql(f"{message} (at character {position})", position=position)


def without_hints(message: str) -> str:
    """Return a message without DuckDB's advice on settings, which the caller cannot change."""
    sentences = re.split(r"(?<=[.!?]) +", message)
    return " ".join(each for each in sentences if not _SETTING.search(each)) or sentences[0]


def _root(text: str, parsed: Parsed) -> _Node:
    """Return the syntax tree of the only statement of a text."""
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
    """Visits every node of a tree, and rejects unknown ones."""

    text: str
    tables: dict[TableName, None] = field(default_factory=dict[TableName, None])
    parameters: list[Parameter] = field(default_factory=list[Parameter])
    qualified: list[int] = field(default_factory=list[int])
    references: int = 0

    def visit(self, value: object, known: frozenset[str]) -> None:
        """Visit a node and its descendants; `known` holds the names of WITH in scope."""
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
        if node["type"] not in _NODES:
            self._refuse(node, f"{node['type'].partition('_')[0]} is refused: SQL reads topics")
        for entry in node["cte_map"]["map"]:
            self.visit(entry["value"], known)
            known |= {_folded(entry["key"])}
        own = {_folded(node["cte_name"])} if "cte_name" in node else set[str]()
        for key, value in node.items():
            if key != "cte_map":
                # In DuckDB the anchor of a recursive query does not see the query's name.
                self.visit(value, known - own if key == "left" else known | own)

    def _source(self, node: _Node, known: frozenset[str]) -> None:
        kind = node["type"]
        if kind not in _SOURCES:
            self._refuse(node, f"{kind} is refused")
        if kind == "BASE_TABLE":
            self._table(node, known)
        elif kind == "TABLE_FUNCTION":
            function: _Node = node["function"]
            name = str(function["function_name"]).lower()
            if function["schema"] or function["catalog"] or name not in _TABLE_FUNCTIONS:
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
        if kind not in _CLASSES:
            self._refuse(node, f"{kind} is refused")
        if kind in ("FUNCTION", "WINDOW"):
            self._function(node)
        elif kind == "PARAMETER":
            start = node["query_location"]
            end = start + node["query_location_length"]
            self.parameters.append(Parameter(str(node["identifier"]), start, end))
        elif kind == "TYPE" and (node["schema"] or node["catalog"]):
            self._refuse(node, f"there is no type {node['type_name']!r:.80}")
        self._children(node, known)

    def _function(self, node: _Node) -> None:
        name = str(node["function_name"]).lower()
        if node["schema"] or node["catalog"] or name not in FUNCTIONS:
            path = ".".join(part for part in (node["catalog"], node["schema"], name) if part)
            hint = suggested(path, FUNCTIONS)
            self._refuse(node, f"the function {path!r:.80} is not one for SQL over topics{hint}")

    def _refuse(self, node: _Node, message: str) -> None:
        byte = node.get("query_location", _NOWHERE)
        raise invalid_sql(message, self.text, None if byte == _NOWHERE else byte)


def _folded(name: object) -> str:
    """Return a name as DuckDB compares it: case-insensitive for ASCII letters only."""
    return str(name).encode().lower().decode()


def namespace_of(schema: str) -> NamespaceName:
    """Return the namespace that a schema denotes.

    A namespace of the tenant `default` is named by its id, one of another tenant
    `TENANT/NAMESPACE`, and one whose id is reserved in SQL `/NAME`.

    Raises:
        InvalidSql: No namespace can have this name.
    """
    if schema in RESERVED:
        raise InvalidSql(f"there is no schema {schema!r}; a namespace of that name is '/{schema}'")
    tenant, slash, name = schema.rpartition("/")
    if not slash or not tenant:
        tenant = DEFAULT_NAMESPACE.tenant
    try:
        return NamespaceName.parse(f"tenants/{tenant}/namespaces/{name}")
    except InvalidName:
        raise InvalidSql(f"there is no schema {schema!r:.80}") from None


def topic_of(table: TableName, namespace: NamespaceName) -> TopicName:
    """Return the topic that a table denotes.

    Args:
        table: The table's name in the statement.
        namespace: The namespace of names without a schema.

    Raises:
        InvalidSql: No namespace can have this name.
    """
    found = namespace_of(table.schema) if table.schema else namespace
    try:
        return found.topic(table.table)
    except InvalidName:
        raise InvalidSql(f"there is no table {table.table!r:.80}: not a valid topic id") from None
