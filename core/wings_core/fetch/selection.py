"""Selection: which columns and rows a reader wants of a topic."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from wings_core.contracts.messages import shortened
from wings_core.errors import InvalidTicket
from wings_core.fetch.engines import Allowance
from wings_core.fetch.filter import RowFilter
from wings_core.fetch.timestamps import timestamp_column
from wings_core.model import Topic
from wings_core.storage.segment_file import TIMESTAMP_FIELD as TIMESTAMP_FIELD
from wings_core.suggestions import suggested

PARTITION_FIELD = pa.field("__partition", pa.string(), nullable=False)
OFFSET_FIELD = pa.field("__offset", pa.int64(), nullable=False)


WISHES_MAX = 256
"""Selections that are told apart by an object of their own."""


@lru_cache(WISHES_MAX)
def _wish(*wanted: Hashable) -> object:
    """Return an object that stands for a selection, so that it is compared only once."""
    del wanted
    return object()


def resolve_columns(schema: pa.Schema, columns: Sequence[str]) -> tuple[int, ...]:
    """Return the indices of columns in a topic's schema, in the order of `columns`.

    Raises:
        InvalidTicket: The topic has no such column.
    """
    indices = tuple(schema.get_field_index(name) for name in columns)
    for name, index in zip(columns, indices, strict=True):
        if index < 0:
            hint = suggested(name, schema.names)
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
    schema: pa.Schema
    """Of the batches delivered."""
    stored_columns: tuple[int, ...] | None
    """Indices of the columns read from storage: those delivered, then what only the filter needs;
    None for all, in the topic's order."""
    stored_share: float
    """The share of the topic's columns that are read from storage."""
    is_plain: bool
    """Whether it is all rows with all columns, in the topic's order, and nothing else."""
    wish: object
    """The same object for all who want the same of the topic's rows, lately."""

    @classmethod
    def of(
        cls,
        topic: Topic,
        columns: Sequence[str] | None = None,
        expression: str | None = None,
        *,
        system_columns: bool = False,
        many: bool = False,
        allowance: Allowance | None = None,
    ) -> "Selection":
        """Resolve what a reader asked for.

        Args:
            topic: The topic read from.
            columns: Names, in the order wanted; None for all.
            expression: A SQL predicate over the topic's columns.
            system_columns: Append `__offset` and `__timestamp`.
            many: Of many partitions: `__partition`, their values' JSON text, comes before these.
            allowance: How long it may take to compile the expression.

        Raises:
            InvalidTicket: An unknown column.
            InvalidFilter: Not one boolean scalar expression over the topic's columns.
            ResourceExhausted: Too many filters are at work already.
        """
        every = tuple(range(len(topic.schema)))
        wanted = every if columns is None else resolve_columns(topic.schema, columns)
        row_filter = None
        if expression is not None:
            row_filter = RowFilter.compile(expression, topic.schema, allowance)
        schema = topic.schema  # The very object that the pages' rows have, so that none compares.
        if wanted != every or system_columns:
            fields = [topic.schema.field(index) for index in wanted]
            if system_columns:
                fields += [PARTITION_FIELD] if many else []
                fields += [OFFSET_FIELD, TIMESTAMP_FIELD]
            schema = pa.schema(fields)
        stored = wanted
        if row_filter is not None:
            stored += tuple(index for index in row_filter.columns if index not in wanted)
        return cls(
            columns=wanted,
            row_filter=row_filter,
            system_columns=system_columns,
            schema=schema,
            stored_columns=None if stored == every else stored,
            stored_share=len(stored) / len(every),
            is_plain=schema is topic.schema and row_filter is None,
            wish=_wish(topic.schema, schema, wanted, row_filter, system_columns, many),
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
        self,
        rows: pa.RecordBatch,
        start_offset: int,
        timestamps: "Sequence[tuple[int | pa.Array[Any], int]]",
    ) -> pa.RecordBatch:
        """Shape stored rows as the reader gets them.

        Args:
            rows: A batch of the stored columns.
            start_offset: Of its first row.
            timestamps: Runs of (timestamp, number of rows) that add up to the batch; or of a column
                of timestamps and its length.
        """
        if not self.system_columns and rows.num_columns == len(self.columns):
            return rows
        arrays = list(rows.columns[: len(self.columns)])
        if self.system_columns:
            end_offset = start_offset + rows.num_rows
            arrays.append(pa.arange(start_offset, end_offset))  # pyright: ignore[reportAttributeAccessIssue] - not in the stubs
            arrays.append(timestamp_column(timestamps))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
