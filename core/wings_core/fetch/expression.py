"""Expressions: which SQL a filter may be made of.

DuckDB parses, and every node of its syntax tree is held against lists of what is allowed. What is
not named here is refused: subqueries, windows, aggregates, table functions, stars, parameters, and
functions that read state, the clock or files.

The lists keep a filter's memory in proportion to the rows it looks at, since DuckDB's memory
limit does not count what lies between two functions (measured: `repeat('x', 1000000000)` takes
2 GB under a limit of 256 MiB, and nested `replace` grows without end). So nothing is allowed that
multiplies its input (`repeat`, `replace`, `lpad`, `range`, `list_transform`, `printf` …), what adds
up is counted, casts, whose quoting doubles nested text, may be nested a few times only, and a
lambda sees its own parameters alone. Measured at the limits: 0.5 GB for a batch of 16 MiB.

A regular expression is a constant: one for each row, out of the data, is compiled for each row, and
takes seconds on data that was written for it.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from wings_core.errors import InvalidFilter, suggested

if TYPE_CHECKING:
    import duckdb

EXPRESSION_LENGTH_MAX = 16 * 1024
"""Characters of a filter."""

DEPTH_MAX = 64
"""Levels of nesting of a filter's syntax tree."""

COLUMN_REFERENCES_MAX = 512
"""How often a filter may name columns."""

CONCATENATIONS_MAX = 16
"""Strings that a filter may join to others, in all."""

CASTS_NESTED_MAX = 4
"""Casts inside one another."""

_SELECT_KEYS = frozenset({"type", "select_list", "from_table", "cte_map", "aggregate_handling"})
"""Keys of every query; any other key that is not empty is a clause."""

_PLAIN_CLASSES = frozenset({"BETWEEN", "CASE", "COMPARISON", "CONJUNCTION"})

_REFUSED_CLASSES: Mapping[str, str] = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "STAR": "a star or COLUMNS",
    "PARAMETER": "a parameter",
    "POSITIONAL_REFERENCE": "a positional reference",
    "DEFAULT": "DEFAULT",
    "COLLATE": "COLLATE",
    "LAMBDA": "an arrow or a lambda that is not the second argument of list_filter",
}


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


_OPERATOR_FUNCTIONS = words(
    "+ - * / // % ^ ** & | ~ << >> @ || ~~ !~~ ~~* !~~* ~~~ ^@ && @> <@ ->>"
)

_MATH_FUNCTIONS = words(
    """
    abs acos add asin atan atan2 bit_count cbrt ceil ceiling cos cosh degrees divide even exp floor
    fmod gcd greatest greatest_common_divisor isfinite isinf isnan lcm least least_common_multiple
    ln log log10 log2 mod multiply pi pow power radians round round_even sign signbit sin sinh sqrt
    subtract tan tanh trunc xor
    """
)

_STRING_FUNCTIONS = words(
    """
    ascii bit_length char_length character_length chr concat contains ends_with hash ilike_escape
    instr lcase left len length like_escape lower ltrim md5 not_ilike_escape not_like_escape
    octet_length ord position prefix regexp_extract regexp_full_match regexp_matches reverse right
    rtrim sha256 split split_part starts_with str_split string_split strip_accents strlen strpos
    substr substring suffix translate trim ucase unicode upper
    """
)

_TIME_FUNCTIONS = words(
    """
    century date_add date_diff date_part date_sub date_trunc datediff datepart datesub datetrunc
    day dayname dayofmonth dayofweek dayofyear decade epoch epoch_ms epoch_ns epoch_us era hour
    isodow isoyear julian last_day make_date make_time make_timestamp make_timestamp_ms
    make_timestamp_ns make_timestamptz microsecond millennium millisecond minute month monthname
    nanosecond quarter second strftime strptime time_bucket timezone to_centuries to_days
    to_decades to_hours to_microseconds to_millennia to_milliseconds to_minutes to_months
    to_quarters to_seconds to_timestamp to_weeks to_years try_strptime week weekday weekofyear year
    yearweek
    """
)

_NESTED_FUNCTIONS = words(
    """
    array_contains array_extract array_filter array_has array_has_all array_has_any array_indexof
    array_length array_position array_slice cardinality element_at filter flatten if list_any_value
    list_avg list_bool_and list_bool_or list_contains list_count list_distinct list_element
    list_extract list_filter list_first list_has list_has_all list_has_any list_indexof
    list_intersect list_last list_max list_min list_position list_slice list_sort list_sum
    list_unique list_value map_contains map_extract map_extract_value map_keys map_values nullif
    row struct_extract
    """
)

_JSON_FUNCTIONS = words(
    """
    json_array_length json_contains json_exists json_extract json_extract_path
    json_extract_path_text json_extract_string json_keys json_type json_valid json_value ->>
    """
)

FUNCTIONS = (
    _OPERATOR_FUNCTIONS
    | _MATH_FUNCTIONS
    | _STRING_FUNCTIONS
    | _TIME_FUNCTIONS
    | _NESTED_FUNCTIONS
    | _JSON_FUNCTIONS
)
"""The functions of a filter, and those operators that DuckDB parses as functions."""

_PATTERN_FUNCTIONS = frozenset({"regexp_extract", "regexp_full_match", "regexp_matches"})
"""Their second argument is a regular expression: `~` and `SIMILAR TO` are parsed as these too."""

_LAMBDA_FUNCTIONS = frozenset({"array_filter", "filter", "list_filter"})

_CONCATENATIONS = frozenset({"||", "concat"})

_TYPES = words(
    """
    bigint binary blob bool boolean bytea char date datetime dec decimal double float float4 float8
    hugeint int int1 int128 int16 int2 int32 int4 int64 int8 integer integral interval json logical
    long numeric real short signed smallint string text time timestamp timestamp_ms timestamp_ns
    timestamp_s timestamp_us timestamptz timetz tinyint ubigint uhugeint uint128 uint16 uint32
    uint64 uint8 uinteger usmallint utinyint uuid varbinary varchar
    """
) | {"time with time zone", "timestamp with time zone"}

_OPERATORS = words(
    """
    ARRAY_CONSTRUCTOR ARRAY_EXTRACT ARRAY_SLICE COMPARE_IN COMPARE_NOT_IN OPERATOR_COALESCE
    OPERATOR_IS_NOT_NULL OPERATOR_IS_NULL OPERATOR_NOT OPERATOR_TRY STRUCT_EXTRACT
    """
)

_QUERY = re.compile(rb"select\b|with\b(?!\s+time\b)", re.IGNORECASE)
"""Keywords with which a query begins, and no type's name goes on."""

_Node = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Expression:
    """The references of a checked expression."""

    columns: tuple[str, ...]
    """The first parts of the names as they are written, in order, repeated where they are."""
    has_pattern: bool
    """True if it matches regular expressions."""


def parse(expression: str, connection: "duckdb.DuckDBPyConnection") -> Expression:
    """Check that a text is one scalar expression a filter may be.

    Args:
        expression: SQL, without SELECT or WHERE.
        connection: Only its parser is used.

    Raises:
        InvalidFilter: Not one expression, or made of something that is not allowed.
    """
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise InvalidFilter(f"a filter has at most {EXPRESSION_LENGTH_MAX} characters")
    if "\0" in expression or any("\ud800" <= letter <= "\udfff" for letter in expression):
        raise InvalidFilter("a filter may not hold a NUL or half a surrogate pair")
    try:
        _check_tokens(expression)
        # A token that closes the one kind of bracket early is an error within the other.
        roots = [_parse(expression, brackets, connection) for brackets in ("[]", "()")]
    except RecursionError:
        raise InvalidFilter(f"the filter is nested more than {DEPTH_MAX} levels deep") from None
    *_, root = roots
    if None in roots or root is None:
        raise InvalidFilter("the filter cannot be parsed: it ends too early")
    walk = _Walk()
    walk.visit(root, _Place())
    return Expression(tuple(walk.columns), walk.has_pattern)


def _check_tokens(expression: str) -> None:
    """Refuse what DuckDB's parser, which heeds no interrupt, could take hours for.

    Raises:
        InvalidFilter: A comment, a query, or brackets that are nested too deep or are not closed.
    """
    import duckdb

    raw = expression.encode()
    depth = 0
    for start, kind in duckdb.tokenize(expression):
        if kind == duckdb.token_type.comment:
            raise InvalidFilter("a filter may not hold comments")
        if kind == duckdb.token_type.keyword and _QUERY.match(raw, start):
            raise InvalidFilter("a filter may not hold a subquery")
        if kind == duckdb.token_type.operator:
            depth += (raw[start : start + 1] in b"([{") - (raw[start : start + 1] in b")]}")
            if depth > DEPTH_MAX:
                raise InvalidFilter(f"the filter is nested more than {DEPTH_MAX} levels deep")


def _parse(expression: str, brackets: str, connection: "duckdb.DuckDBPyConnection") -> _Node | None:
    """Return the syntax tree of an expression within brackets; None: more of it is expected."""
    before, after = f"SELECT {brackets[0]}\n", f"\n{brackets[1]} FROM batch"
    query = f"{before}{expression}{after}"
    rows = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchall()
    found = json.loads(rows[0][0])
    if found["error"]:
        raw, byte = expression.encode(), int(found.get("position", 0)) - len(before)
        if byte >= len(raw):  # What it names is ours.
            return None
        at = f" (at character {len(raw[:byte].decode()) + 1})" if byte >= 0 else ""
        message = _first_line(found["error_message"])
        raise InvalidFilter(f"the filter cannot be parsed: {message}{at}")
    statements = found["statements"]
    if len(statements) != 1 or not _is_plain_select(statements[0]["node"]):
        raise InvalidFilter("a filter is one expression, without clauses of a query")
    return statements[0]["node"]["select_list"][0]


def _is_plain_select(node: _Node) -> bool:
    """Tell whether a query is `SELECT one FROM batch` and nothing else."""
    source = node.get("from_table", {})
    clauses = {key: value for key, value in node.items() if key not in _SELECT_KEYS and value}
    return (
        node["type"] == "SELECT_NODE"
        and len(node["select_list"]) == 1
        and source.get("type") == "BASE_TABLE"
        and source.get("table_name") == "batch"
        and not any(source.get(key) for key in ("schema_name", "catalog_name", "alias", "sample"))
        and not node["cte_map"]["map"]
        and node["aggregate_handling"] == "STANDARD_HANDLING"
        and not clauses
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in the tree a node stands."""

    depth: int = 1
    casts: int = 0
    parameters: frozenset[str] | None = None
    """Inside a lambda, the names it may use."""
    constant: bool = False
    """Whether no columns may be named, as in a list's constructor."""
    pattern_of: str | None = None
    """The function whose regular expression this is: it may refer to nothing at all."""


@dataclass(slots=True)
class _Walk:
    """Visits every node of a tree; what it does not know it refuses."""

    columns: list[str] = field(default_factory=list[str])
    concatenations: int = 0
    has_pattern: bool = False

    def visit(self, node: _Node, place: _Place) -> None:
        if place.depth > DEPTH_MAX:
            raise InvalidFilter(f"the filter is nested more than {DEPTH_MAX} levels deep")
        place = replace(place, depth=place.depth + 1)
        if node.get("alias"):
            raise InvalidFilter(f"a filter may not name its parts: {node['alias']!r:.80}")
        kind: str = node["class"]
        if kind == "CONSTANT":
            return
        if kind == "COLUMN_REF":
            self._column(node["column_names"], place)
        elif kind == "FUNCTION":
            self._function(node, place)
        elif kind == "CAST":
            self._cast(node, place)
        elif kind == "TYPE":
            self._type(node, place)
        elif kind == "OPERATOR" and node["type"] in _OPERATORS:
            constant = place.constant or node["type"] == "ARRAY_CONSTRUCTOR"
            self._children(node, replace(place, constant=constant))
        elif kind in _PLAIN_CLASSES:
            self._children(node, place)
        else:
            what = _REFUSED_CLASSES.get(kind, str(node.get("type", kind)))
            raise InvalidFilter(f"a filter may not hold {what}")

    def _children(self, node: _Node, place: _Place) -> None:
        for value in node.values():
            self._anything(value, place)

    def _anything(self, value: object, place: _Place) -> None:
        """Descend to the next nodes, through the nodes between."""
        if isinstance(value, list):
            for entry in cast("list[object]", value):
                self._anything(entry, place)
        elif isinstance(value, dict):
            found = cast("_Node", value)
            if "class" in found:
                self.visit(found, place)
            elif "type" in found:
                raise InvalidFilter(f"a filter may not hold {found['type']!s:.80}")
            else:
                self._children(found, place)

    def _column(self, names: Sequence[str], place: _Place) -> None:
        if place.pattern_of is not None:
            raise InvalidFilter(
                f"the regular expression of {place.pattern_of} must be a constant, it may not come "
                f"from {names[0]!r:.80}"
            )
        if place.parameters is not None:
            if names[0].lower() not in place.parameters:
                raise InvalidFilter(
                    f"a lambda in a filter sees its own parameters alone, not {names[0]!r:.80}"
                )
            return
        if place.constant:
            raise InvalidFilter(f"a list in a filter holds constants alone, not {names[0]!r:.80}")
        self.columns.append(names[0])
        if len(self.columns) > COLUMN_REFERENCES_MAX:
            raise InvalidFilter(f"a filter names columns at most {COLUMN_REFERENCES_MAX} times")

    def _function(self, node: _Node, place: _Place) -> None:
        name = str(node["function_name"]).lower()
        if node["schema"] or node["catalog"] or name not in FUNCTIONS:
            path = ".".join(part for part in (node["catalog"], node["schema"], name) if part)
            hint = suggested(path, FUNCTIONS)
            raise InvalidFilter(f"the function {path!r:.80} is not one for filters{hint}")
        orders = node["order_bys"]["orders"]
        if node["filter"] or node["distinct"] or node["export_state"] or orders:
            raise InvalidFilter(f"a filter may not aggregate: {name}")
        arguments = _arguments(node)
        if name in _CONCATENATIONS:
            self.concatenations += max(1, len(arguments) - 1)
            if self.concatenations > CONCATENATIONS_MAX:
                raise InvalidFilter(f"a filter joins at most {CONCATENATIONS_MAX} strings")
        if name in _JSON_FUNCTIONS:
            _check_json_paths(name, arguments[1:])
        place = replace(place, constant=place.constant or name == "list_value")
        has_pattern = name in _PATTERN_FUNCTIONS
        self.has_pattern |= has_pattern
        for index, argument in enumerate(arguments):
            if has_pattern and index == 1:
                self.visit(argument, replace(place, pattern_of=name))
            elif argument.get("class") == "LAMBDA" and index == 1 and name in _LAMBDA_FUNCTIONS:
                self._lambda(argument, place)
            else:
                self.visit(argument, place)

    def _lambda(self, node: _Node, place: _Place) -> None:
        if place.parameters is not None:
            raise InvalidFilter("a filter may not hold a lambda in a lambda")
        head: _Node = node["lhs"]
        parameters = _arguments(head) if head["class"] == "FUNCTION" else [head]
        if any(parameter["class"] != "COLUMN_REF" for parameter in parameters):
            raise InvalidFilter("the parameters of a lambda are names")
        names = frozenset(parameter["column_names"][-1].lower() for parameter in parameters)
        self.visit(node["expr"], replace(place, parameters=names))

    def _cast(self, node: _Node, place: _Place) -> None:
        if place.casts == CASTS_NESTED_MAX:
            raise InvalidFilter(f"a filter nests at most {CASTS_NESTED_MAX} casts")
        self._children(node, replace(place, casts=place.casts + 1))

    def _type(self, node: _Node, place: _Place) -> None:
        name = str(node["type_name"]).lower()
        if node["schema"] or node["catalog"] or name not in _TYPES:
            raise InvalidFilter(f"a filter may not cast to {name:.80}")
        self._anything(node["children"], place)


def _arguments(node: _Node) -> list[_Node]:
    """Return the arguments of a call, none of which may be named."""
    entries: Iterable[_Node] = node["arguments"]
    for entry in entries:
        if entry["name"]:
            raise InvalidFilter(f"a filter may not name arguments: {entry['name']!r:.80}")
    return [entry["expression"] for entry in entries]


def _check_json_paths(name: str, paths: Sequence[_Node]) -> None:
    """Refuse paths that can match more than once: what they find adds up beyond the input."""
    for path in paths:
        text = str(path.get("literal", {}).get("text", "*")) if path["class"] == "CONSTANT" else "*"
        if "*" in text or ".." in text:
            raise InvalidFilter(f"the path of {name} must be a constant without '*' and '..'")


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
