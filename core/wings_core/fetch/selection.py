"""Selection: which columns and rows a reader wants of a topic, and how it gets them."""

import struct
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from wings_core.contracts.messages import shortened
from wings_core.contracts.reads import ReadOptions
from wings_core.errors import InvalidTicket, suggested
from wings_core.fetch.engines import Allowance
from wings_core.fetch.filter import RowFilter
from wings_core.model import Topic
from wings_core.storage.segment_file import TIMESTAMP_FIELD as TIMESTAMP_FIELD

PARTITION_FIELD = pa.field("__partition", pa.string(), nullable=False)
OFFSET_FIELD = pa.field("__offset", pa.int64(), nullable=False)

WISHES_MAX = 256
"""Selections that are told apart by an object of their own."""

EVERYTHING = ReadOptions()
"""All rows with all columns."""

_INT64 = struct.Struct("=q")


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
            wish=_wish(topic.schema, schema, wanted, row_filter, options.system_columns, many),
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
