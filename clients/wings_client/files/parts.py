"""Parts of a file: rows as a batch, and where in the file each of them is."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from wings_client.cast import Caster
from wings_core.arrow_types import children, fields_of, with_children
from wings_core.batches import BatchCheck
from wings_core.errors import SchemaMismatch
from wings_core.first_bad import first_bad

Place = Callable[[int], str]
"""Says where the row of a batch is, by its index: `line 17`."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that are read and pushed together."""

    batch: pa.RecordBatch
    place: Place


class Rows(Protocol):
    """A file that is read."""

    def schema(self) -> pa.Schema:
        """Return the columns as the file has them, or as its first rows let them be inferred."""
        ...

    def parts(self, schema: pa.Schema) -> Iterator[Part]:
        """Yield the rows, in order, as batches of a topic's schema.

        Raises:
            SchemaMismatch: A row does not fit; its message says where it is.
            InvalidArgument: The file is not what it should be.
        """
        ...


@runtime_checkable
class HasRowsBefore(Protocol):
    """Rows that know how many of the file come before them."""

    rows_before: int


def bad_row(place: str, message: str, column: str | None = None) -> SchemaMismatch:
    """Return the error of a row of a file.

    Args:
        place: Where it is, like `line 17`.
        message: What is wrong with it.
        column: Where in it.
    """
    facts = {} if column is None else {"column": column}
    return SchemaMismatch(f"{place}: {message}", **facts)


class PartCheck:
    """Checks what a server would refuse, so that the row can be named.

    Args:
        schema: The topic's.
        partition_key: The topic's.
    """

    def __init__(self, schema: pa.Schema, partition_key: str | None) -> None:
        self._check = BatchCheck(schema)
        self._key = partition_key
        self._has_required = any(_has_required(field) for field in fields_of(schema))

    def check(self, part: Part) -> None:
        """Check that there are no nulls where none may be.

        Raises:
            SchemaMismatch: There is one; names the first row that has one.
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
            row = first_refused(batch, self._check.check)
            if row is not None:
                index, error = row
                raise bad_row(part.place(index), error.message, error.facts.get("column"))


def cast_part(caster: Caster, batch: pa.RecordBatch, place: Place) -> Part:
    """Return rows cast to a topic's types.

    Raises:
        SchemaMismatch: A value does not fit; names the first row that has one.
    """
    try:
        return Part(caster.cast(batch), place)
    except SchemaMismatch:
        found = first_refused(batch, caster.cast)
        if found is None:
            raise
        index, error = found
        raise bad_row(place(index), error.message, error.facts.get("column")) from None


def first_refused(
    batch: pa.RecordBatch, check: Callable[[pa.RecordBatch], object]
) -> tuple[int, SchemaMismatch] | None:
    """Return the index of the first row that a check refuses, and with what; None if none.

    Args:
        batch: The rows.
        check: Raises `SchemaMismatch` for a batch if it does for one of its rows alone.
    """

    def refusal(low: int, high: int) -> SchemaMismatch | None:
        try:
            check(batch.slice(low, high - low))
        except SchemaMismatch as error:
            return error
        return None

    found = refusal(0, batch.num_rows)
    if found is None:
        return None
    row = first_bad(batch.num_rows, lambda low, high: refusal(low, high) is not None)
    return row, refusal(row, row + 1) or found


def settled_type(data_type: pa.DataType, unknown: pa.DataType) -> pa.DataType:
    """Return an inferred type with something in place of what no value told anything of.

    Args:
        data_type: As it was inferred.
        unknown: For the type of nulls, at every depth.
    """
    if pa.types.is_null(data_type):
        return unknown
    parts = [
        pa.field(child.name, settled_type(child.type, unknown), nullable=child.nullable)
        for child in children(data_type)
    ]
    return with_children(data_type, parts)


def _has_required(field: Any) -> bool:
    return not field.nullable or any(_has_required(child) for child in children(field.type))
