"""Filters: a SQL predicate over the rows of a batch, evaluated by Arrow's kernels or by DuckDB.

    text ─▶ expression.parse (what may be said) ─▶ bound to the columns' types ─▶ RowFilter
                                                     └▶ kernels.kernel_of: with Arrow, if it can be

DuckDB sees nothing but the columns that the filter names.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from wings_core.arrow_types import children, fields_of, shape
from wings_core.errors import InvalidFilter, suggested
from wings_core.fetch.engines import Allowance, lent
from wings_core.fetch.expression import parse
from wings_core.fetch.kernels import Kernel, kernel_of

if TYPE_CHECKING:
    import duckdb

    from wings_core.arrow_types import ArrowField

FILTERS_KEPT_MAX = 256
"""Compiled filters that are kept, those used last; each has a text of at most 16 Ki characters."""

PATTERN_SLICE_BYTES = 4096
"""About so much of a batch goes into DuckDB at a time where a filter matches regular expressions:
it is interrupted between two slices only, and the worst of expressions takes a second for these."""

# Not by `pa.array`, whose first call imports pandas where that is installed: seconds of a start.
_NO_ROWS: pa.BooleanArray = cast("Any", pa).nulls(0, pa.bool_())
# Nor by `pa.scalar`, as `fill_null` does with a bool: the first filtered read would wait for it.
_FALSE: Any = cast("Any", pa).nulls(1, pa.bool_()).is_valid()[0]


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A predicate over the rows of a topic; may be used by any number of threads at once."""

    expression: str
    columns: tuple[int, ...]
    """Indices into the topic's schema of the columns it reads, in the topic's order."""
    has_pattern: bool = False
    """True if it matches regular expressions."""
    kernel: Kernel | None = field(default=None, compare=False, repr=False)
    """Arrow kernels that evaluate it; None: DuckDB does."""

    @classmethod
    def compile(
        cls, expression: str, schema: pa.Schema, allowance: Allowance | None = None
    ) -> "RowFilter":
        """Check a predicate and bind it to a topic's columns.

        A name is a column's if it is written alike, or else if it differs in case from one column
        alone. What was compiled lately is returned as it is; else takes a few milliseconds, and
        waits for an engine, see `engines.lent`.

        Args:
            expression: One scalar SQL expression, of type BOOLEAN, that reads at least one column.
            schema: The topic's.
            allowance: How long it may take.

        Raises:
            InvalidFilter: Anything else; see `expression.parse` for what it may hold.
            ResourceExhausted: No engine was free in time.
        """
        found = _kept.get((expression, schema))
        if found is None:
            found = _compile(expression, schema, allowance or Allowance())
            _kept.put((expression, schema), found)
        return found

    def mask(self, batch: pa.RecordBatch, allowance: Allowance | None = None) -> pa.BooleanArray:
        """Tell which rows pass; a row for which the predicate is null does not.

        Where DuckDB evaluates it, waits for an engine, see `engines.lent`.

        Args:
            batch: The columns named by `columns`, in that order.
            allowance: The time it has.

        Returns:
            A mask of the batch's rows, without nulls.

        Raises:
            InvalidFilter: The predicate fails on this data, like a cast of text that is no number.
            FilterTimedOut: DuckDB took longer than it may.
            ResourceExhausted: No engine was free in time.
            WingsError: What the read was cancelled with.
        """
        if batch.num_rows == 0:
            return _NO_ROWS
        if self.kernel is not None:
            passed: Any = self.kernel(batch)
        else:
            with lent(allowance or Allowance(), pattern=self.has_pattern) as engine:
                rows = _sliced(batch) if self.has_pattern else batch
                table = _relation(engine.runner, rows, self.expression).to_arrow_table()
            passed = table.column(0).combine_chunks()
            assert len(passed) == batch.num_rows, "a projection keeps every row"
        return passed.fill_null(_FALSE) if passed.null_count else passed


class _Kept:
    """The filters that were compiled, those used last; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._filters: OrderedDict[tuple[str, pa.Schema], RowFilter] = OrderedDict()

    def get(self, key: tuple[str, pa.Schema]) -> RowFilter | None:
        with self._lock:
            found = self._filters.get(key)
            if found is not None:
                self._filters.move_to_end(key)
            return found

    def put(self, key: tuple[str, pa.Schema], compiled: RowFilter) -> None:
        with self._lock:
            self._filters[key] = compiled
            while len(self._filters) > FILTERS_KEPT_MAX:
                self._filters.popitem(last=False)


_kept = _Kept()


def _compile(expression: str, schema: pa.Schema, allowance: Allowance) -> RowFilter:
    with lent(allowance) as engine:
        parsed = parse(expression, engine.runner)
    # Constants are computed now, regular expressions over constants too.
    with lent(allowance, pattern=parsed.has_pattern) as engine:
        columns = _resolve(parsed.columns, schema)
        fields = fields_of(schema)
        selected = [fields[index] for index in columns]
        for column in selected:
            _check_readable(column)
        # One row of nulls: on none at all, what is wrong with a constant would not show.
        nulls: dict[str, Any] = {field.name: pa.nulls(1, field.type) for field in selected}
        relation = _relation(engine.runner, pa.RecordBatch.from_pydict(nulls), expression)
        found = str(relation.types[0])
        if found != "BOOLEAN":
            raise InvalidFilter(f"a filter must be of type BOOLEAN, this one is of type {found}")
        relation.to_arrow_table()
        kernel = kernel_of(expression, selected, engine.planner)
    return RowFilter(expression, columns, parsed.has_pattern, kernel)


def _relation(
    connection: "duckdb.DuckDBPyConnection", rows: pa.RecordBatch | pa.Table, expression: str
) -> "duckdb.DuckDBPyRelation":
    return connection.from_arrow(cast("Any", rows)).project(f"(\n{expression}\n)")


def _sliced(batch: pa.RecordBatch) -> pa.Table:
    """Return a batch as a table of slices, each of about `PATTERN_SLICE_BYTES`."""
    step = max(1, batch.num_rows * PATTERN_SLICE_BYTES // max(1, batch.nbytes))
    return pa.Table.from_batches(
        [batch.slice(first, step) for first in range(0, batch.num_rows, step)]
    )


def _resolve(names: Iterable[str], schema: pa.Schema) -> tuple[int, ...]:
    """Return the indices of the columns that are named, each once, in the topic's order."""
    columns = {_column_index(name, schema) for name in names}
    if not columns:
        raise InvalidFilter("the filter reads no column")
    # DuckDB's names do not differ by case alone, so such columns cannot be told apart there.
    folded: dict[bytes, str] = {}
    for index in sorted(columns):
        name = schema.names[index]
        other = folded.setdefault(_folded(name), name)
        if other != name:
            raise InvalidFilter(
                f"columns {other!r:.80} and {name!r:.80} differ in case alone, so a filter can "
                "read only one of them"
            )
    return tuple(sorted(columns))


def _column_index(name: str, schema: pa.Schema) -> int:
    index = schema.get_field_index(name)
    if index >= 0:
        return index
    alike = [other for other in schema.names if _folded(other) == _folded(name)]
    if len(alike) > 1:
        raise InvalidFilter(f"column {name!r:.80} may be {alike[0]!r:.80} or {alike[1]!r:.80}")
    if not alike:
        raise InvalidFilter(f"the topic has no column {name!r:.80}{suggested(name, schema.names)}")
    return schema.get_field_index(alike[0])


def _folded(name: str) -> bytes:
    """Return a name as DuckDB compares names: in lower case, ASCII alone."""
    return name.encode().lower()


def _check_readable(column: "ArrowField") -> None:
    part = unreadable(column.type)
    if part is not None:
        raise InvalidFilter(
            f"column {column.name!r:.80} cannot be read by a filter: it holds {part!s:.80}",
            column=column.name,
        )


def unreadable(data_type: pa.DataType) -> pa.DataType | None:
    """Return the part of a type that DuckDB cannot read (measured), None where it reads all."""
    if pa.types.is_float16(data_type) or pa.types.is_decimal256(data_type):
        return data_type
    if pa.types.is_decimal(data_type) and cast("Any", data_type).scale < 0:
        return data_type
    fields = children(data_type)
    empty_struct = pa.types.is_struct(data_type) and not fields
    if empty_struct or (pa.types.is_fixed_size_list(data_type) and shape(data_type)[0] == 0):
        return data_type
    return next(filter(None, (unreadable(child.type) for child in fields)), None)
