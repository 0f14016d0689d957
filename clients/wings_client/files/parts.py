"""Parts of a file: batches of rows, with the position of each row in the file."""

from collections.abc import Callable, Generator, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from wings_core.arrow_types import children, fields_of, with_children
from wings_core.batches import BatchCheck
from wings_core.errors import InvalidArgument, SchemaMismatch, WingsError, first_bad

Place = Callable[[int], str]
"""Returns the position text of a batch's row by its index, like `flights.csv:17`."""

Cast = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Casts a batch to the topic's types; raises `SchemaMismatch` if a value would be lost."""


@dataclass(frozen=True, slots=True)
class Part:
    """A batch of rows with their positions."""

    batch: pa.RecordBatch
    place: Place


class Rows(Protocol):
    """A reader of a file's rows."""

    found: int
    """Rows of the file by its footer, or found in it so far; compared with the rows processed."""

    @property
    def names(self) -> Sequence[str] | None:
        """Names of the columns; None if each row has its own."""
        ...

    def schema(self) -> pa.Schema:
        """Return the file's columns, or columns inferred from its first rows."""
        ...

    def rows_before(self) -> int:
        """Return how many rows of the file precede those of the section."""
        ...

    def parts(self, schema: pa.Schema, exact: Set[str] = frozenset()) -> Iterator[Part]:
        """Yield the rows, in order, as batches of a topic's schema.

        Args:
            schema: The topic's schema.
            exact: Columns with types inferred from other rows, which reject texts that the type
                would change, like 007.

        Raises:
            SchemaMismatch: A row does not fit; the message begins with its position.
            InvalidArgument: The file is damaged, or has another format.
        """
        ...


@dataclass(frozen=True, slots=True)
class ChosenColumns:
    """The choice of a file's columns to read; others are ignored."""

    only: frozenset[str] | None = None
    """Columns to read; None for all except the excluded ones."""
    without: frozenset[str] = frozenset()

    def takes(self, name: str) -> bool:
        """Return whether a column is read."""
        return name not in self.without and (self.only is None or name in self.only)

    def of(self, names: Sequence[str]) -> list[str]:
        """Return the columns of a file to read, in order.

        Raises:
            InvalidArgument: A chosen column is missing.
        """
        missing = sorted((self.only or frozenset()).difference(names))
        if missing:
            raise InvalidArgument(f"there is no column {missing[0]!r:.80}")
        return [name for name in names if self.takes(name)]


ALL = ChosenColumns()
"""All columns."""


def bad_row(place: str, message: str, column: str | None = None) -> SchemaMismatch:
    """Return the error of a row of a file.

    Args:
        place: Position of the row, like `flights.csv:17`.
        message: The problem.
        column: The column at fault.
    """
    facts = {} if column is None else {"column": column}
    return SchemaMismatch(f"{place}: {message}", **facts)


@contextmanager
def named(name: str) -> Generator[None]:
    """Prefix errors of reading a file with its name, those of Arrow too."""
    try:
        yield
    except pa.ArrowException as error:
        raise InvalidArgument(f"{name}: {error!s:.300}") from None
    except OSError as error:
        if error.errno is not None:
            raise
        raise InvalidArgument(f"{name}: {error!s:.300}") from None  # From Arrow, for damaged data.
    except WingsError as error:
        if error.message.startswith(f"{name}:"):
            raise
        raise type(error)(f"{name}: {error.message}", **error.facts) from None


class PartCheck:
    """The server's checks of rows, to name the row that it would reject.

    Args:
        schema: The topic's schema.
        partition_key: The topic's key column, or None.
    """

    def __init__(self, schema: pa.Schema, partition_key: str | None) -> None:
        self._check = BatchCheck(schema)
        self._key = partition_key
        self._has_required = any(_has_required(field) for field in fields_of(schema))

    def check(self, part: Part) -> None:
        """Check that non-nullable columns have no nulls.

        Raises:
            SchemaMismatch: A column has a null; the message names the first such row.
        """
        batch = part.batch
        if self._key is not None:
            key: Any = batch.column(self._key)
            if key.null_count:
                row = key.is_null().index(True).as_py()
                raise bad_row(
                    part.place(row),
                    f"column {self._key!r:.80}: a row without a value has no partition",
                )
        if self._has_required:
            try:
                self._check.check(batch)
            except SchemaMismatch as error:
                raise _first_bad(batch, self._check.check, part.place, error) from None


def cast_part(cast: Cast, batch: pa.RecordBatch, place: Place) -> Part:
    """Cast rows to a topic's types.

    Raises:
        SchemaMismatch: A value does not fit; the message names the first such row.
    """
    try:
        return Part(cast(batch), place)
    except SchemaMismatch as error:
        raise _first_bad(batch, cast, place, error) from None


def _first_bad(
    batch: pa.RecordBatch,
    check: Callable[[pa.RecordBatch], object],
    place: Place,
    problem: SchemaMismatch,
) -> SchemaMismatch:
    row, error = first_refused(
        batch.num_rows, lambda low, high: check(batch.slice(low, high - low)), problem
    )
    return bad_row(place(row), error.message, error.facts.get("column"))


def first_refused(
    rows: int, check: Callable[[int, int], object], problem: WingsError
) -> tuple[int, WingsError]:
    """Return the index of the first row that a check rejects, with its error.

    Args:
        rows: Number of rows.
        check: Raises an error for the rows from one index to another (exclusive) if and only if it
            does for one of them.
        problem: The error of all rows, returned if the row has none by itself.
    """

    def is_bad(low: int, high: int) -> bool:
        nonlocal problem
        try:
            check(low, high)
        except WingsError as error:
            problem = error
            return True
        return False

    row = first_bad(rows, is_bad)
    is_bad(row, row + 1)  # Sets the row's own error.
    return row, problem


def resolved_type(data_type: pa.DataType) -> pa.DataType:
    """Return an inferred type with string in place of the null type, nested types included."""
    if pa.types.is_null(data_type):
        return pa.string()
    parts = [
        pa.field(child.name, resolved_type(child.type), nullable=child.nullable)
        for child in children(data_type)
    ]
    return with_children(data_type, parts)


def _has_required(field: Any) -> bool:
    return not field.nullable or any(_has_required(child) for child in children(field.type))
