"""Kernels: plain predicates as Arrow's compute functions, with exactly DuckDB's meaning.

    text ─▶ DuckDB's own plan: bound, casts made explicit, constants computed ─▶ kernel, or None

DuckDB decides which types are compared and what a literal is in them; here only what it has decided
is carried out, where Arrow's functions are known to agree: comparisons of columns with constants
and of columns of one type, IN, IS NULL, prefixes, suffixes and parts of text, joined by AND, OR and
NOT. Anything else in a plan, also of a form that a later DuckDB brings, is left to DuckDB.

Where Arrow's meaning is another: in DuckDB NaN equals itself and is greater than all else; a null
in the list of IN makes null of what is not found.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from math import ceil, floor
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pyarrow as pa

from wings_core.arrow_compute import pc
from wings_core.fetch.storage_values import array_of, integer_range

if TYPE_CHECKING:
    import duckdb

    from wings_core.arrow_types import ArrowField

Kernel = Callable[[pa.RecordBatch], "pa.BooleanArray"]
"""Tells for each row whether the predicate is true, false or null."""

_Array = Any
_Node = Mapping[str, Any]

_SQL_TYPES: Mapping[pa.DataType, str] = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.large_string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.large_binary(): "BLOB",
    pa.date32(): "DATE",
    pa.time64("us"): "TIME",
    pa.timestamp("s"): "TIMESTAMP_S",
    pa.timestamp("ms"): "TIMESTAMP_MS",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("ns"): "TIMESTAMP_NS",
}
"""The types whose values DuckDB takes out of Arrow as they are; with `_sql_type`, all of them."""

_NUMBERS: Mapping[str, pa.DataType] = {
    name: data_type
    for data_type, name in _SQL_TYPES.items()
    if pa.types.is_integer(data_type) or pa.types.is_floating(data_type)
}
_FLOATS = frozenset({"FLOAT", "DOUBLE"})

_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
_SIGNS: Mapping[str, str] = {
    "COMPARE_EQUAL": "=",
    "COMPARE_NOTEQUAL": "<>",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}
_DISTINCT: Mapping[str, str] = {"COMPARE_NOT_DISTINCT_FROM": "=", "COMPARE_DISTINCT_FROM": "<>"}

_COMPARE: Mapping[str, str] = {
    "=": "equal",
    "<>": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
"""Arrow's functions by sign, named so that the import waits for the first filter."""

_TEXT_FUNCTIONS: Mapping[str, str] = {
    "prefix": "starts_with",
    "starts_with": "starts_with",
    "^@": "starts_with",
    "suffix": "ends_with",
    "ends_with": "ends_with",
    "contains": "match_substring",
}

_ESCAPED_BYTE = re.compile(rb"\\x([0-9A-F]{2})")

# Not by `pa.scalar`, whose first call imports pandas where that is installed.
_TRUE, _FALSE, _NULL = array_of(pa.bool_(), [True, False, None])


class _LeftToDuckDBError(Exception):
    """The plan holds what is not known to mean the same in Arrow."""


def kernel_of(
    expression: str, columns: "Sequence[ArrowField]", planner: "duckdb.DuckDBPyConnection"
) -> Kernel | None:
    """Return what evaluates a predicate as DuckDB does, None where only DuckDB does.

    Args:
        expression: One that `expression.parse` has checked and that DuckDB takes.
        columns: Columns that it names; the batches given to the kernel have these, in this order.
        planner: Connection of a `FilterEngine`.
    """
    try:
        plan = _plan(expression, columns, planner)
        kernel = _Translation(columns, plan.inputs).predicate(plan.root)
        # What Arrow lacks for a type is found now, and not on the first batch.
        nulls = [array_of(column.type, [None]) for column in columns]
        kernel(pa.RecordBatch.from_arrays(nulls, names=[column.name for column in columns]))
    except (_LeftToDuckDBError, LookupError, TypeError, ValueError, pa.ArrowException):
        return None
    return kernel


@dataclass(frozen=True, slots=True)
class _Plan:
    root: _Node
    inputs: list[int]
    """The index among the columns of each input that the nodes refer to."""


def _plan(
    expression: str, columns: "Sequence[ArrowField]", planner: "duckdb.DuckDBPyConnection"
) -> _Plan:
    """Have DuckDB bind, simplify and fold an expression over a table of the columns' types."""
    definitions = ", ".join(
        f'"{column.name.replace(chr(34), chr(34) * 2)}" {_sql_type(column.type)}'
        for column in columns
    )
    planner.execute(f"CREATE OR REPLACE TEMP TABLE batch ({definitions})")
    query = f"SELECT (\n{expression}\n) FROM batch"
    (answer,) = planner.execute(
        "SELECT json_serialize_plan(?::VARCHAR, optimize := true)", [query]
    ).fetchall()
    # A NaN stands in it as `nan`, which is no JSON.
    found = json.loads(answer[0])
    (projection,) = found["plans"]
    (source,) = projection["children"]
    (root,) = projection["expressions"]
    if projection["type"] != "LOGICAL_PROJECTION" or source["type"] != "LOGICAL_GET":
        _left_to_duckdb()
    read = [each["index"] for each in source["column_indexes"]]
    return _Plan(root, [read[index] for index in source["projection_ids"] or range(len(read))])


def _sql_type(data_type: pa.DataType) -> str:
    found = cast("Any", data_type)
    if pa.types.is_decimal128(data_type) and 0 <= found.scale <= found.precision:
        return f"DECIMAL({found.precision}, {found.scale})"
    if pa.types.is_timestamp(data_type) and found.tz is not None and found.unit == "us":
        return "TIMESTAMP WITH TIME ZONE"
    return _SQL_TYPES[data_type]


def _left_to_duckdb() -> NoReturn:
    raise _LeftToDuckDBError


@dataclass(frozen=True, slots=True)
class _Constant:
    """A constant of a plan: its DuckDB type, and its value as DuckDB and Arrow store it."""

    sql_type: _Node
    value: Any
    """None for null; of a decimal, the integer without its point."""

    @property
    def kind(self) -> str:
        return self.sql_type["id"]

    @property
    def number(self) -> Fraction:
        """The value of an integer or a decimal."""
        scale = self.sql_type["type_info"]["scale"] if self.kind == "DECIMAL" else 0
        return Fraction(self.value, 10**scale)


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a plan, perhaps within a cast."""

    index: int
    stored_type: pa.DataType
    sql_type: _Node
    """DuckDB's type that it is compared as."""
    compared_type: pa.DataType
    """The same as Arrow has it; the stored type where Arrow compares those with the same result."""

    @classmethod
    def of(cls, index: int, stored_type: pa.DataType, sql_type: _Node) -> "_Column":
        return cls(index, stored_type, sql_type, _NUMBERS.get(sql_type["id"], stored_type))

    @property
    def as_stored(self) -> "_Column":
        """The column without its cast, which changes nothing for exact numbers."""
        return replace(self, compared_type=self.stored_type)

    @property
    def kind(self) -> str:
        return self.sql_type["id"]

    @property
    def is_exact(self) -> bool:
        """True if it holds integers or decimals, and is compared as one of these."""
        exact = pa.types.is_integer(self.stored_type) or pa.types.is_decimal(self.stored_type)
        return exact and self.kind not in _FLOATS

    def values(self, batch: pa.RecordBatch) -> _Array:
        """Return the column as what it is compared as."""
        column = batch.column(self.index)
        if self.compared_type == self.stored_type:
            return column
        return pc.cast(column, self.compared_type, safe=False)  # To the nearest, as DuckDB's.

    def unit(self, number: Fraction) -> Fraction:
        """Return a number in units of the column's last digit."""
        return number * 10 ** _scale(self.stored_type)

    def holds(self, units: Fraction | int) -> bool:
        """Tell whether so many units are a value of the column's type."""
        low, high = integer_range(self.stored_type)
        return units == int(units) and low <= units <= high


@dataclass(frozen=True, slots=True, eq=False)
class _Translation:
    """Translates the nodes of one plan."""

    _columns: "Sequence[ArrowField]"
    _inputs: Sequence[int]

    def predicate(self, node: _Node) -> Kernel:
        """Return the kernel of a node of type BOOLEAN."""
        kind, operation = node["expression_class"], node["type"]
        if kind == "BOUND_REF":
            column = self._column(node)
            return column.values if pa.types.is_boolean(column.stored_type) else _left_to_duckdb()
        if kind == "BOUND_CONSTANT":
            return _constant({True: _TRUE, False: _FALSE, None: _NULL}[_constant_of(node).value])
        if kind == "BOUND_CONJUNCTION":
            join = {"CONJUNCTION_AND": pc.and_kleene, "CONJUNCTION_OR": pc.or_kleene}
            return _joined(join[operation], [self.predicate(child) for child in node["children"]])
        if kind == "BOUND_OPERATOR":
            return self._operator(operation, node["children"])
        if kind == "BOUND_FUNCTION" and operation in _SIGNS:
            return self._comparison(_SIGNS[operation], node["children"])
        if kind == "BOUND_FUNCTION" and operation in _DISTINCT:
            return self._distinct(_DISTINCT[operation], node["children"])
        if kind == "BOUND_FUNCTION" and operation == "COMPARE_BETWEEN":
            return self._between(node)
        if kind == operation == "BOUND_FUNCTION":
            return self._text_function(node)
        _left_to_duckdb()

    def _operator(self, operation: str, children: Sequence[_Node]) -> Kernel:
        if operation == "COMPARE_IN":
            return self._membership(self._column(children[0]), children[1:])
        (child,) = children
        if operation == "OPERATOR_NOT":
            inner = self.predicate(child)
            return lambda batch: pc.invert(inner(batch))
        check = {"OPERATOR_IS_NULL": pc.is_null, "OPERATOR_IS_NOT_NULL": pc.is_valid}
        tested, index = check[operation], self._column(child).index
        return lambda batch: tested(batch.column(index))

    def _comparison(self, sign: str, children: Sequence[_Node]) -> Kernel:
        left, right = children
        if left["expression_class"] == "BOUND_CONSTANT":
            left, right, sign = right, left, _MIRRORED.get(sign, sign)
        column = self._column(left)
        if right["expression_class"] == "BOUND_CONSTANT":
            constant = _constant_of(right)
            if constant.sql_type != column.sql_type or constant.value is None:
                _left_to_duckdb()
            return _with_constant(column, sign, constant)
        return _of_columns(column, sign, self._column(right))

    def _distinct(self, sign: str, children: Sequence[_Node]) -> Kernel:
        """Compare with a constant, to which a null is unequal."""
        equal = self._comparison(sign, children)
        if all(child["expression_class"] != "BOUND_CONSTANT" for child in children):
            _left_to_duckdb()
        of_null = _TRUE if sign == "<>" else _FALSE
        return lambda batch: pc.fill_null(equal(batch), of_null)

    def _between(self, node: _Node) -> Kernel:
        tested, low, high = node["children"]
        bounds = node["function_data"]
        at_least = ">=" if bounds["lower_inclusive"] else ">"
        at_most = "<=" if bounds["upper_inclusive"] else "<"
        pairs = ((at_least, [tested, low]), (at_most, [tested, high]))
        return _joined(pc.and_kleene, [self._comparison(*pair) for pair in pairs])

    def _membership(self, column: _Column, nodes: Sequence[_Node]) -> Kernel:
        constants = [_constant_of(node) for node in nodes]
        if any(constant.sql_type != column.sql_type for constant in constants):
            _left_to_duckdb()
        present = [constant for constant in constants if constant.value is not None]
        if column.is_exact:
            column = column.as_stored
            units = [column.unit(constant.number) for constant in present]
            values = [int(each) for each in units if column.holds(each)]
        else:
            values = [constant.value for constant in present]
            if column.kind in _FLOATS and 0.0 in values:
                values += [0.0, -0.0]  # Arrow looks floats up by their bits.
        found = array_of(column.compared_type, values)
        of_others = _FALSE if len(present) == len(constants) else _NULL

        def is_in(batch: pa.RecordBatch) -> _Array:
            tested = column.values(batch)
            inside = pc.is_in(tested, value_set=found)
            if of_others is _NULL:
                return pc.if_else(inside, _TRUE, _NULL)
            return _where_valid(tested, inside)

        return is_in

    def _text_function(self, node: _Node) -> Kernel:
        text, part = node["children"]
        column, constant = self._column(text), _constant_of(part)
        if column.kind != "VARCHAR" or constant.kind != "VARCHAR" or constant.value is None:
            _left_to_duckdb()
        function = getattr(pc, _TEXT_FUNCTIONS[node["qname"]["path"][-1]])
        return lambda batch: function(column.values(batch), pattern=constant.value)

    def _column(self, node: _Node) -> _Column:
        """Return a column, or one in a cast that neither fails nor changes what is compared."""
        if node["expression_class"] == "BOUND_REF":
            index = self._inputs[node["index"]]
            return _Column.of(index, self._columns[index].type, node["return_type"])
        if node["type"] != "OPERATOR_CAST":
            _left_to_duckdb()
        (child,) = node["children"]
        inner = self._column(child)
        found = _Column.of(inner.index, inner.stored_type, node["return_type"])
        of_column = child["expression_class"] == "BOUND_REF"
        if not of_column or not (_is_exact_cast(found) or _is_float_cast(found)):
            _left_to_duckdb()
        return found


def _is_exact_cast(column: _Column) -> bool:
    """Tell whether an integer or decimal column is cast to what holds all of its type's values."""
    if not column.is_exact:
        return False
    low, high = integer_range(column.stored_type)
    scale = _scale(column.stored_type)
    if column.kind == "DECIMAL":
        width, digits = (column.sql_type["type_info"][key] for key in ("width", "scale"))
        return digits >= scale and max(-low, high) * 10 ** (digits - scale) < 10**width
    if scale:
        return False
    least, most = (
        (-(1 << 127), (1 << 127) - 1)
        if column.kind == "HUGEINT"
        else integer_range(_NUMBERS[column.kind])
    )
    return least <= low and high <= most


def _is_float_cast(column: _Column) -> bool:
    """Tell whether integers or floats are cast to a float, each to the nearest one."""
    if column.kind not in _FLOATS:
        return False
    return pa.types.is_integer(column.stored_type) or column.stored_type == pa.float32()


def _scale(data_type: pa.DataType) -> int:
    return cast("Any", data_type).scale if pa.types.is_decimal(data_type) else 0


def _constant_of(node: _Node) -> _Constant:
    if node["expression_class"] != "BOUND_CONSTANT":
        _left_to_duckdb()
    found, sql_type = node["value"], node["value"]["type"]
    if found["is_null"]:
        return _Constant(sql_type, None)
    value = found["value"]
    if isinstance(value, dict):  # An integer of 128 bits.
        value = (value["upper"] << 64) + value["lower"]
    if sql_type["id"] == "BLOB":
        escaped = value.encode("ascii")
        value = _ESCAPED_BYTE.sub(lambda match: bytes([int(match[1], 16)]), escaped)
    return _Constant(sql_type, value)


def _with_constant(column: _Column, sign: str, constant: _Constant) -> Kernel:
    if column.is_exact:
        return _with_number(column.as_stored, sign, column.unit(constant.number))
    if column.kind in _FLOATS and sign in (">", ">="):
        # So that it is true of NaN, of which no comparison by Arrow is.
        opposite = _with_value(column, {">": "<=", ">=": "<"}[sign], constant.value)
        return lambda batch: pc.invert(opposite(batch))
    return _with_value(column, sign, constant.value)


def _with_number(column: _Column, sign: str, units: Fraction) -> Kernel:
    """Compare exact numbers: the constant becomes one of the column's type, or decides alone."""
    if sign in ("=", "<>"):
        if column.holds(units):
            return _with_value(column, sign, int(units))
        return _decided(column, sign == "<>")
    if units != int(units):
        sign = "<=" if sign[0] == "<" else ">="
    nearest = floor(units) if sign[0] == "<" else ceil(units)
    if column.holds(nearest):
        return _with_value(column, sign, nearest)
    return _decided(column, (nearest > 0) == (sign[0] == "<"))


def _with_value(column: _Column, sign: str, value: Any) -> Kernel:
    compare, scalar = getattr(pc, _COMPARE[sign]), array_of(column.compared_type, [value])[0]
    return lambda batch: compare(column.values(batch), scalar)


def _of_columns(left: _Column, sign: str, right: _Column) -> Kernel:
    """Compare two columns that DuckDB compares as one type."""
    if left.sql_type != right.sql_type or left.compared_type != right.compared_type:
        _left_to_duckdb()
    compare = getattr(pc, _COMPARE[sign])
    if left.kind not in _FLOATS:
        return lambda batch: compare(left.values(batch), right.values(batch))

    def compare_floats(batch: pa.RecordBatch) -> _Array:
        one, other = left.values(batch), right.values(batch)
        first, second = pc.is_nan(one), pc.is_nan(other)
        either = pc.or_(first, second)
        # By whether they are NaN: a NaN is the greater, and equals another.
        of_nan = compare(first, second)
        return pc.if_else(either, of_nan, compare(one, other))

    return compare_floats


def _decided(column: _Column, answer: bool) -> Kernel:
    """Return the kernel that says the same of all rows in which a column is not null."""
    scalar = _TRUE if answer else _FALSE
    return lambda batch: _where_valid(batch.column(column.index), pa.repeat(scalar, batch.num_rows))


def _where_valid(tested: _Array, answer: _Array) -> _Array:
    if tested.null_count == 0:
        return answer
    return pc.if_else(pc.is_valid(tested), answer, _NULL)


def _constant(scalar: Any) -> Kernel:
    return lambda batch: cast("Any", pa.repeat(scalar, batch.num_rows))


def _joined(join: Callable[[_Array, _Array], _Array], kernels: Sequence[Kernel]) -> Kernel:
    return lambda batch: reduce(join, (kernel(batch) for kernel in kernels))
