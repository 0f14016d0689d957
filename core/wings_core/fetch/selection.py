"""Selection: which columns and rows a reader wants of a topic, and how it gets them.

A filter is a SQL predicate over the rows of a batch, evaluated by Arrow's kernels or by DuckDB,
which sees nothing but the columns that the filter names:

    text ─▶ expression.parse (what may be said) ─▶ bound to the columns' types ─▶ RowFilter
                                                     └▶ kernels.kernel_of: with Arrow, if it can be
"""

import struct
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from wings_core.arrow_types import children, fields_of, shape
from wings_core.contracts.messages import shortened
from wings_core.contracts.reads import ReadOptions
from wings_core.errors import InvalidFilter, InvalidTicket, suggested
from wings_core.fetch.engines import Allowance, lent
from wings_core.model import Topic
from wings_core.schemas import RESERVED_PREFIX
from wings_core.storage.segment_file import TIMESTAMP_FIELD as TIMESTAMP_FIELD

if TYPE_CHECKING:
    import duckdb

    from wings_core.arrow_types import ArrowField
    from wings_core.fetch.kernels import Kernel

PARTITION_FIELD = pa.field("__partition", pa.string(), nullable=False)
OFFSET_FIELD = pa.field("__offset", pa.int64(), nullable=False)

WISHES_MAX = 256
"""Selections that are told apart by an object of their own."""

FILTERS_KEPT_MAX = 256
"""Compiled filters that are kept, those used last; each has a text of at most 16 Ki characters."""

PATTERN_SLICE_BYTES = 4096
"""About so much of a batch goes into DuckDB at a time where a filter matches regular expressions:
it is interrupted between two slices only, and the worst of expressions takes a second for these."""

EVERYTHING = ReadOptions()
"""All rows with all columns."""

_INT64 = struct.Struct("=q")

# Not by `pa.array`, whose first call imports pandas where that is installed: seconds of a start.
_NO_ROWS: pa.BooleanArray = cast("Any", pa).nulls(0, pa.bool_())

# Nor by `pa.scalar`, as `fill_null` does with a bool: the first filtered read would wait for it.
_FALSE: Any = pa.Array.from_buffers(pa.bool_(), 1, [None, pa.py_buffer(b"\0")])[0]


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A predicate over the rows of a topic; may be used by any number of threads at once."""

    expression: str
    columns: tuple[int, ...]
    """Indices into the topic's schema of the columns it reads, in the topic's order."""
    has_pattern: bool = False
    """True if it matches regular expressions."""
    kernel: "Kernel | None" = field(default=None, compare=False, repr=False)
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


def resolve_columns(schema: pa.Schema, columns: Sequence[str]) -> tuple[int, ...]:
    """Return the indices of columns in a topic's schema, in the order of `columns`.

    Raises:
        InvalidTicket: The topic has no such column.
    """
    indices = tuple(schema.get_field_index(name) for name in columns)
    for name, index in zip(columns, indices, strict=True):
        if index < 0:
            hint = suggested(name, schema.names)
            if name.startswith(RESERVED_PREFIX):
                hint = "; key 'system_columns' adds system columns"
            raise InvalidTicket(
                shortened(f"key 'columns': the topic has no column {name!r:.80}{hint}"), column=name
            )
    return indices


@dataclass(frozen=True, slots=True)
class Selection:
    """Columns, filter and system columns of one read, resolved against a topic's schema."""

    columns: tuple[int, ...]
    """Indices into the topic's schema of the columns delivered, in the order wanted."""
    row_filter: RowFilter | None
    system_columns: bool
    many: bool
    """Whether `__partition` is among the system columns."""
    schema: pa.Schema
    """The schema of the batches delivered."""
    stored_columns: tuple[int, ...] | None
    """Indices of the columns read from storage: those delivered, then what only the filter needs;
    None for all, in the topic's order."""
    stored_share: float
    """The share of the topic's columns that are read from storage."""
    wish: object
    """The same object for all readers who lately wanted the same of the topic's rows."""

    @classmethod
    def of(
        cls,
        topic: Topic,
        options: ReadOptions = EVERYTHING,
        *,
        many: bool = False,
        allowance: Allowance | None = None,
    ) -> "Selection":
        """Resolve what a reader asked for.

        Args:
            topic: The topic read from.
            options: The columns, the filter, and whether to append `__offset` and `__timestamp`.
            many: Whether `__partition`, a partition value's JSON text, comes before these.
            allowance: How long it may take to compile the filter.

        Raises:
            InvalidTicket: An unknown column.
            InvalidFilter: Not one boolean scalar expression over the topic's columns.
            ResourceExhausted: Too many filters are at work already.
        """
        every = tuple(range(len(topic.schema)))
        columns = options.columns
        wanted = every if columns is None else resolve_columns(topic.schema, columns)
        row_filter = None
        if options.filter is not None:
            row_filter = RowFilter.compile(options.filter, topic.schema, allowance)
        schema = topic.schema  # The very object that the pages' rows have, so that none compares.
        if wanted != every or options.system_columns:
            fields = [topic.schema.field(index) for index in wanted]
            if options.system_columns:
                fields += [PARTITION_FIELD] if many else []
                fields += [OFFSET_FIELD, TIMESTAMP_FIELD]
            schema = pa.schema(fields)
        stored = wanted
        if row_filter is not None:
            stored += tuple(index for index in row_filter.columns if index not in wanted)
        return cls(
            columns=wanted,
            row_filter=row_filter,
            system_columns=options.system_columns,
            many=many,
            schema=schema,
            stored_columns=None if stored == every else stored,
            stored_share=len(stored) / len(every),
            wish=_wish(
                topic.uuid, topic.schema_version, wanted, row_filter, options.system_columns, many
            ),
        )

    def filter_mask(
        self, rows: pa.RecordBatch, allowance: Allowance | None = None
    ) -> pa.BooleanArray | None:
        """Return which of the rows pass; None where there is no filter.

        Args:
            rows: A batch of the stored columns.
            allowance: How long it may take.

        Raises: as `RowFilter.mask`.
        """
        if self.row_filter is None:
            return None
        stored = self.stored_columns or tuple(range(rows.num_columns))
        needed = [stored.index(index) for index in self.row_filter.columns]
        return self.row_filter.mask(rows.select(needed), allowance)

    def deliver(
        self, rows: pa.RecordBatch, system: "Iterable[pa.Array[Any]]" = ()
    ) -> pa.RecordBatch:
        """Return stored rows as the reader gets them.

        Args:
            rows: A batch of the stored columns.
            system: The system columns, where they are wanted: `__partition` if `many`, `__offset`,
                `__timestamp`.
        """
        if not self.system_columns and rows.num_columns == len(self.columns):
            return rows
        arrays = [*rows.columns[: len(self.columns)], *system]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


@lru_cache(WISHES_MAX)
def _wish(*wanted: Hashable) -> object:
    """Return an object that stands for a selection, so that it is compared only once."""
    del wanted
    return object()


def timestamp_column(timestamps: "Sequence[tuple[int | pa.Array[Any], int]]") -> "pa.Array[Any]":
    """Return a column of timestamps.

    Args:
        timestamps: At least one run, each a timestamp and its number of rows, or a column of
            timestamps and its length.
    """
    parts: list[pa.Array[Any]] = []
    runs: list[bytes] = []
    for value, count in timestamps:
        if isinstance(value, int):
            runs.append(_INT64.pack(value) * count)
            continue
        if runs:
            parts.append(_column(b"".join(runs)))
            runs = []
        parts.append(value)
    if runs:
        parts.append(_column(b"".join(runs)))
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _column(values: bytes) -> "pa.Array[Any]":
    # Not by `pa.scalar`: at its first use pyarrow imports pandas, where that is installed.
    rows = len(values) // _INT64.size
    return pa.Array.from_buffers(TIMESTAMP_FIELD.type, rows, [None, pa.py_buffer(values)])


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
    # Loaded by the first filter.
    from wings_core.fetch.expression import parse
    from wings_core.fetch.kernels import kernel_of

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
        hint = suggested(name, schema.names)
        if name.startswith(RESERVED_PREFIX):
            hint = "; SQL sees system columns, filters do not"
        raise InvalidFilter(f"the topic has no column {name!r:.80}{hint}")
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
