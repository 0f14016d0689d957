"""Predicates: the filters that DuckDB pushes down to a scan, and the bounds that follow from them.

DuckDB passes simple conditions to a scan as an Arrow expression. Its tree is read from Arrow's
serialized form of expressions: a list of keys and values in the metadata of a schema.
"""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa

from wings_core.arrow_compute import pc
from wings_core.fetch.expression import words
from wings_core.sql_process.interface import expression_of

_NEVER_LESS = -(1 << 62)
_NEVER_MORE = 1 << 62


@dataclass(frozen=True, slots=True)
class ScanBounds:
    """Bounds of the rows that can satisfy a predicate; rows within need not satisfy it."""

    offsets: tuple[int, int] = (_NEVER_LESS, _NEVER_MORE)
    """First and last offset, both inclusive."""
    times: tuple[int, int] = (_NEVER_LESS, _NEVER_MORE)
    """First and last timestamp, both inclusive, in microseconds since the epoch."""
    partitions: frozenset[str] | None = None
    """Values of `__partition`; None for any."""
    keys: tuple[Any, ...] | None = None
    """Values of the key column; None for any."""

    @property
    def has_times(self) -> bool:
        """Whether times are bounded."""
        return self.times != (_NEVER_LESS, _NEVER_MORE)

    def both(self, other: "ScanBounds") -> "ScanBounds":
        """Return the intersection with other bounds."""
        return ScanBounds(
            _overlap(self.offsets, other.offsets),
            _overlap(self.times, other.times),
            other.partitions
            if self.partitions is None
            else self.partitions
            if other.partitions is None
            else self.partitions & other.partitions,
            other.keys
            if self.keys is None
            else self.keys
            if other.keys is None
            else tuple(key for key in self.keys if key in other.keys),
        )

    def either(self, other: "ScanBounds") -> "ScanBounds":
        """Return bounds that cover both these and other bounds."""
        partitions = keys = None
        if self.partitions is not None and other.partitions is not None:
            partitions = self.partitions | other.partitions
        if self.keys is not None and other.keys is not None:
            keys = self.keys + other.keys
        return ScanBounds(
            _hull(self.offsets, other.offsets), _hull(self.times, other.times), partitions, keys
        )


ANY_ROW = ScanBounds()


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return max(one[0], other[0]), min(one[1], other[1])


def _hull(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return min(one[0], other[0]), max(one[1], other[1])


@dataclass(frozen=True, slots=True)
class Names:
    """Names, in the expression, of the columns by which rows are located."""

    partition: str
    offset: str
    timestamp: str
    key: str | None


@dataclass(frozen=True, slots=True)
class _Call:
    """A function call in an expression."""

    name: str
    arguments: "Sequence[_Node]"
    options: Any = None


@dataclass(frozen=True, slots=True)
class _Column:
    name: str


@dataclass(frozen=True, slots=True)
class _Literal:
    value: Any
    """An Arrow scalar."""


_Node = _Call | _Column | _Literal


_PLAIN = words(
    "and_kleene equal greater greater_equal invert is_valid less less_equal not_equal or_kleene"
)
"""Functions without options."""


@dataclass(frozen=True, slots=True)
class Predicate:
    """A condition on the rows of a scan."""

    root: _Node
    serialized: bytes

    @classmethod
    def of(cls, serialized: bytes) -> "Predicate":
        """Read an expression in the form of `rows.serialized`."""
        reader = pa.ipc.open_file(serialized)
        return cls(_Reader(reader.schema, reader.get_batch(0)).read(), serialized)

    @property
    def columns(self) -> set[str]:
        """Names of the columns that the predicate reads."""
        return set(_columns(self.root))

    def bounds(self, names: Names) -> ScanBounds:
        """Return bounds of the rows that can satisfy the predicate."""
        return _bounds(self.root, names)

    def filter(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that satisfy the predicate."""
        if self._is_plain(self.root):
            # Arrow's engine evaluates any expression, but takes a millisecond to start.
            return rows.filter(self._value(self.root, rows))
        return cast("Any", rows).filter(expression_of(self.serialized))

    def _is_plain(self, node: _Node) -> bool:
        if isinstance(node, _Call):
            return node.name in _PLAIN and all(map(self._is_plain, node.arguments))
        return True

    def _value(self, node: _Node, rows: pa.RecordBatch) -> Any:
        if isinstance(node, _Call):
            arguments = [self._value(argument, rows) for argument in node.arguments]
            return pc.call_function(node.name, arguments)
        return rows.column(node.name) if isinstance(node, _Column) else node.value


class _Reader:
    """Reads a serialized expression: `call` … `end` enclose the arguments of each call."""

    def __init__(self, schema: pa.Schema, literals: pa.RecordBatch) -> None:
        self._entries = iter(_metadata(schema))
        self._literals = literals

    def read(self) -> _Node:
        return self._node(*next(self._entries))

    def _node(self, key: str, value: str) -> _Node:
        if key == "field_ref":
            return _Column(value)
        if key == "literal":
            return _Literal(self._literals.column(int(value))[0])
        if key == "nested_field_ref":
            # A nested reference: `value` names follow, each a field_ref. Never a located-by column.
            names = [next(self._entries)[1] for _ in range(int(value))]
            return _Call("nested", [_Column(names[0])])
        assert key == "call", "Arrow knows no other"
        arguments: list[_Node] = []
        options = None
        while True:
            inner, text = next(self._entries)
            if inner == "end":
                return _Call(value, arguments, options)
            if inner == "options":
                options = self._literals.column(int(text))[0]
            else:
                arguments.append(self._node(inner, text))


class _ArrowSchema(ctypes.Structure):
    """The first members of `ArrowSchema` of Arrow's C data interface."""

    _fields_ = (
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_void_p),
    )


def _metadata(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """Yield the metadata of a schema in order; `Schema.metadata` keeps one value for each key.

    The layout is that of https://arrow.apache.org/docs/format/CDataInterface.html.
    """
    capsule = schema.__arrow_c_schema__()
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    found = _ArrowSchema.from_address(pointer_of(capsule, b"arrow_schema"))
    if not found.metadata:
        return
    place = found.metadata

    def number() -> int:
        nonlocal place
        value = ctypes.c_int32.from_address(place).value
        place += 4
        return value

    def text() -> str:
        nonlocal place
        length = number()
        value = ctypes.string_at(place, length).decode()
        place += length
        return value

    for _ in range(number()):
        key = text()
        yield key, text()


def _columns(node: _Node) -> Iterator[str]:
    if isinstance(node, _Column):
        yield node.name
    elif isinstance(node, _Call):
        for argument in node.arguments:
            yield from _columns(argument)


def _bounds(node: _Node, names: Names) -> ScanBounds:
    if not isinstance(node, _Call):
        return ANY_ROW
    if node.name in ("and_kleene", "or_kleene"):
        left, right = (_bounds(argument, names) for argument in node.arguments)
        return left.both(right) if node.name == "and_kleene" else left.either(right)
    if node.name == "if_else":
        # Membership in a list: true where the value is not null and in it, null otherwise.
        last = node.arguments[-1]
        if isinstance(last, _Literal) and not last.value.is_valid:
            return _bounds(node.arguments[1], names)
        return ANY_ROW
    if node.name == "is_in" and isinstance(node.arguments[0], _Column):
        values = _values_of(node)
        return ANY_ROW if values is None else _among(node.arguments[0].name, values, names)
    if len(node.arguments) == 2:
        column, literal = node.arguments
        if isinstance(column, _Column) and isinstance(literal, _Literal):
            return _compared(node.name, column.name, literal.value, names)
    return ANY_ROW


def _values_of(node: _Call) -> list[Any] | None:
    if node.options is None or "value_set" not in node.options.type.names:
        return None
    return list(node.options["value_set"].values)


def _among(column: str, values: Sequence[Any], names: Names) -> ScanBounds:
    """Return the bounds of rows whose `column` has one of `values`."""
    found: ScanBounds | None = None
    for value in values:
        if value.is_valid:
            one = _compared("equal", column, value, names)
            found = one if found is None else found.either(one)
    return found or ANY_ROW


def _compared(sign: str, column: str, value: Any, names: Names) -> ScanBounds:
    if column == names.partition and sign == "equal":
        return ScanBounds(partitions=frozenset({str(value.as_py())}))
    if column == names.key and sign == "equal":
        return ScanBounds(keys=(value.as_py(),))
    if column == names.offset and pa.types.is_integer(value.type):
        return ScanBounds(offsets=_range(sign, value.as_py()))
    if column == names.timestamp and value.type == pa.timestamp("us", "UTC"):
        return ScanBounds(times=_range(sign, value.value))
    return ANY_ROW


def _range(sign: str, value: int) -> tuple[int, int]:
    """Return the first and the last integer that satisfies the comparison with `value`."""
    return {
        "equal": (value, value),
        "less": (_NEVER_LESS, value - 1),
        "less_equal": (_NEVER_LESS, value),
        "greater": (value + 1, _NEVER_MORE),
        "greater_equal": (value, _NEVER_MORE),
    }.get(sign, (_NEVER_LESS, _NEVER_MORE))
