"""Filters: a SQL predicate over the rows of a batch, evaluated by DuckDB.

    text ─▶ expression.column_names (what may be said) ─▶ bound to the columns' types ─▶ RowFilter

DuckDB runs in memory, without access to files, extensions or Python's variables, its configuration
locked, and sees nothing but the columns that the filter names.
"""

import queue
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import duckdb
import pyarrow as pa

from wings_core.arrow_types import children, fields_of, shape
from wings_core.errors import InvalidFilter
from wings_core.fetch.expression import column_names

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowField

CONNECTIONS_MAX = 8
"""Filters evaluated at once in one process; further ones wait for milliseconds."""

MEMORY_LIMIT = "256MiB"
"""What DuckDB may use for one filter, so far as it counts it."""

_MESSAGE_LENGTH_MAX = 300

_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "python_enable_replacements": "false",
    "memory_limit": MEMORY_LIMIT,
    "threads": "1",
}


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

    @classmethod
    def compile(cls, expression: str, schema: pa.Schema) -> "RowFilter":
        """Check a predicate and bind it to a topic's columns.

        A name is a column's if it is written alike, or else if it differs in case from one column
        alone. Takes a few milliseconds, and blocks while `CONNECTIONS_MAX` filters are at work.

        Args:
            expression: One scalar SQL expression, of type BOOLEAN, that reads at least one column.
            schema: The topic's.

        Raises:
            InvalidFilter: Anything else; see `expression.column_names` for what it may hold.
        """
        with _duckdb() as connection:
            names = column_names(expression, connection)
            columns = _resolve(names, schema)
            fields = fields_of(schema)
            selected = [fields[index] for index in columns]
            for column in selected:
                _check_readable(column)
            # One row of nulls: on none at all, what is wrong with a constant would not show.
            nulls: dict[str, Any] = {field.name: pa.nulls(1, field.type) for field in selected}
            rows = pa.RecordBatch.from_pydict(nulls)
            relation = _relation(connection, rows, expression)
            found = str(relation.types[0])
            if found != "BOOLEAN":
                raise InvalidFilter(
                    f"a filter must be of type BOOLEAN, this one is of type {found}"
                )
            relation.to_arrow_table()
        return cls(expression, columns)

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Tell which rows pass; a row for which the predicate is null does not.

        Blocks while `CONNECTIONS_MAX` filters are at work.

        Args:
            batch: Of the columns named by `columns`, in that order.

        Returns:
            As long as the batch, without nulls.

        Raises:
            InvalidFilter: The predicate fails on this data, like a cast of text that is no number.
        """
        if batch.num_rows == 0:
            return _NO_ROWS
        with _duckdb() as connection:
            table = _relation(connection, batch, self.expression).to_arrow_table()
        passed: Any = table.column(0).combine_chunks()
        assert len(passed) == batch.num_rows, "a projection keeps every row"
        return passed.fill_null(_FALSE)


def _relation(
    connection: duckdb.DuckDBPyConnection, rows: pa.RecordBatch, expression: str
) -> duckdb.DuckDBPyRelation:
    return connection.from_arrow(cast("Any", rows)).project(f"(\n{expression}\n)")


def _resolve(names: list[str], schema: pa.Schema) -> tuple[int, ...]:
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
        raise InvalidFilter(f"the topic has no column {name!r:.80}")
    return schema.get_field_index(alike[0])


def _folded(name: str) -> bytes:
    """Return a name as DuckDB compares names: in lower case, ASCII alone."""
    return name.encode().lower()


def _check_readable(column: "ArrowField") -> None:
    unreadable = _unreadable(column.type)
    if unreadable is not None:
        raise InvalidFilter(
            f"column {column.name!r:.80} cannot be read by a filter: it holds {unreadable!s:.80}",
            column=column.name,
        )


def _unreadable(data_type: pa.DataType) -> pa.DataType | None:
    """Return the part of a type that DuckDB cannot read (measured), None where it reads all."""
    if pa.types.is_float16(data_type) or pa.types.is_decimal256(data_type):
        return data_type
    if pa.types.is_decimal(data_type) and cast("Any", data_type).scale < 0:
        return data_type
    fields = children(data_type)
    empty_struct = pa.types.is_struct(data_type) and not fields
    if empty_struct or (pa.types.is_fixed_size_list(data_type) and shape(data_type)[0] == 0):
        return data_type
    return next(filter(None, (_unreadable(child.type) for child in fields)), None)


def _open() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:", config=_CONFIG)
    # Texts and times are compared in UTC, whatever the zone of the machine.
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET lock_configuration = true")
    return connection


_connections: queue.LifoQueue[duckdb.DuckDBPyConnection | None] = queue.LifoQueue()
for _ in range(CONNECTIONS_MAX):
    _connections.put(None)  # A place whose connection is opened on its first use.


@contextmanager
def _duckdb() -> Generator[duckdb.DuckDBPyConnection]:
    """Lend a connection; DuckDB's errors become `InvalidFilter`, with their first line."""
    connection = _connections.get()
    try:
        if connection is None:
            connection = _open()
        yield connection
    except (duckdb.Error, MemoryError) as error:
        if isinstance(error, (duckdb.InternalError, duckdb.OperationalError, MemoryError)):
            connection = _discard(connection)
        message = str(error).strip().partition("\n")[0]
        raise InvalidFilter(f"the filter fails: {message:.{_MESSAGE_LENGTH_MAX}}") from None
    except InvalidFilter:
        raise
    except BaseException:
        connection = _discard(connection)
        raise
    finally:
        _connections.put(connection)


def _discard(connection: duckdb.DuckDBPyConnection | None) -> None:
    """Close a connection that may be in no state to be used again."""
    if connection is not None:
        connection.close()
