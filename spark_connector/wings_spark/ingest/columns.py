"""Mapping of a file's columns to a topic's by name: missing columns, and new ones.

in both             read as the topic's types
only in the topic   null, if nullable
only in the file    by `on_new_columns`: kept as text, added to the topic, or an error of the file
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute

from wings_core.arrow_types import fields_of
from wings_core.errors import SchemaMismatch
from wings_core.json_rows import encode_lines

arrow: Any = pa
pc: Any = pyarrow.compute


class OnNewColumns(StrEnum):
    """Treatment of a file's columns that the topic lacks."""

    EVOLVE = "evolve"
    """Columns are added to the topic's schema; needs the right `admin` on the topic."""
    RESCUE = "rescue"
    """Values are kept in the rescued column, as a JSON object for each row."""
    FAIL = "fail"
    """The file fails."""


class NewColumnsError(Exception):
    """A file has columns that must be added to the topic.

    Args:
        fields: The columns.
    """

    def __init__(self, fields: Sequence[Any]) -> None:
        super().__init__(", ".join(field.name for field in fields))
        self.fields = tuple(fields)


def new_column_refused(name: str) -> SchemaMismatch:
    """Return the error of a column that the topic lacks."""
    return SchemaMismatch(
        f"column {name!r:.80} is not a column of the topic: 'on_new_columns' can have it added to "
        "the topic, or kept as text, and 'exclude_columns' left out",
        column=name,
    )


class FileColumns:
    """A mapping of one file's columns to a topic's.

    Args:
        found: The file's columns; columns that the topic lacks have the types to read them as.
        target: The topic's columns, except those that the source adds.
        on_new: Treatment of columns that the topic lacks.

    Attributes:
        read: Schema to read the file with.

    Raises:
        SchemaMismatch: A column that must not be null is missing, or the topic lacks one.
        NewColumnsError: Columns must be added to the topic.
    """

    def __init__(self, found: pa.Schema, target: pa.Schema, on_new: OnNewColumns) -> None:
        new = [field for field in fields_of(found) if field.name not in target.names]
        if new and on_new is OnNewColumns.EVOLVE:
            raise NewColumnsError([field.with_nullable(True) for field in new])
        if new and on_new is OnNewColumns.FAIL:
            raise new_column_refused(new[0].name)
        for field in fields_of(target):
            if field.name not in found.names and not field.nullable:
                raise SchemaMismatch(
                    f"column {field.name!r:.80} is missing, and must not be null in the topic",
                    column=field.name,
                )
        known = [field for field in fields_of(target) if field.name in found.names]
        self.read: pa.Schema = pa.schema([*known, *new])
        self._target = target
        self._new = [field.name for field in new]

    @property
    def is_as_target(self) -> bool:
        """Whether the file has the topic's columns and no others."""
        return self.read.equals(self._target)

    def completed(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[str | None] | None]:
        """Return rows with the topic's columns, and texts of values in new columns.

        Args:
            batch: Rows with the schema `read`.

        Returns:
            The rows; for each a JSON object of its values in new columns, None where all are null;
            None for all rows where there are no such values.
        """
        if self.is_as_target:
            return batch, None
        columns: list[Any] = [
            batch.column(field.name)
            if field.name in batch.schema.names
            else arrow.nulls(batch.num_rows, field.type)
            for field in fields_of(self._target)
        ]
        rows = pa.RecordBatch.from_arrays(columns, schema=self._target)
        if not self._new:
            return rows, None
        return rows, _texts(batch.select(self._new))


def _texts(rest: Any) -> list[str | None] | None:
    is_null: Any = None
    for column in rest.columns:
        nulls = column.is_null()
        is_null = nulls if is_null is None else pc.and_(is_null, nulls)
    empty: list[bool] = is_null.to_pylist()
    if all(empty):
        return None
    texts = row_texts(rest)
    return [None if none else text for none, text in zip(empty, texts, strict=True)]


def row_texts(batch: pa.RecordBatch) -> list[str | None]:
    """Return each row as JSON; NaN and infinities are the strings of Protobuf's JSON."""
    # Splitting bytes: text also splits at other characters, which JSON does not escape.
    lines = b"".join(encode_lines(batch, names_floats=True)).splitlines()
    return [line.decode() for line in lines]
