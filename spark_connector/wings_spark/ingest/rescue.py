"""Rescue of rows that do not fit: they are kept as text, in their order among the others.

Rows are converted many at a time. A block that fails is bisected down to the bad rows, which costs
a few conversions for each of them.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from wings_client.files.csv_rows import CsvBlock, CsvRows
from wings_client.files.json_rows import AnyBlock, JsonRows, decode_block, values_of
from wings_client.files.opened import OpenFile
from wings_client.files.parts import bad_row
from wings_core.arrow_types import fields_of
from wings_core.cast import Caster
from wings_core.errors import SchemaMismatch, WingsError
from wings_core.json_rows import decode_rows
from wings_spark.ingest.columns import (
    FileColumns,
    OnNewColumns,
    new_column_refused,
    row_texts,
)

arrow: Any = pa

Rows = TypeVar("Rows")


@dataclass(frozen=True, slots=True)
class RescuedRows:
    """Consecutive rows."""

    batch: pa.RecordBatch
    texts: list[str | None] | None = None
    """For each row the part that does not fit: the whole row, with null columns, or its values in
    columns that the topic lacks. None if everything fits."""

    @property
    def rescued(self) -> int:
        """Number of rows with texts."""
        return sum(text is not None for text in self.texts or ())

    def sliced(self, first: int, rows: int) -> "RescuedRows":
        """Return some of the rows."""
        if first == 0 and rows >= self.batch.num_rows:
            return self
        texts = None if self.texts is None else self.texts[first : first + rows]
        return RescuedRows(self.batch.slice(first, rows), texts)


def rescued_pieces(
    file: OpenFile, schema: pa.Schema, columns: FileColumns | None, on_new: OnNewColumns
) -> Iterator[RescuedRows]:
    """Yield the rows of a file in order, with texts for rows that do not fit.

    Args:
        file: The opened file, of which nothing has been read.
        schema: Schema of rows that fit.
        columns: Mapping of the file's columns to the schema; None for JSON, whose rows have names
            of their own.
        on_new: Treatment of JSON names that the schema lacks.

    Raises:
        WingsError: The file itself is damaged, or its columns do not fit the schema.
    """
    if columns is None:
        assert isinstance(file.rows, JsonRows), "other formats have one set of columns"
        for block in file.rows.blocks():
            yield from _of_json(block, schema, on_new)
    elif isinstance(file.rows, CsvRows):
        yield from _of_csv(file.rows, schema, columns)
    else:
        own = file.rows.schema()
        cast = Caster(own, columns.read).cast
        for part in file.parts(own):
            yield from _halved(
                part.batch,
                _halves_of_batch,
                lambda batch: RescuedRows(*columns.completed(cast(batch))),
                lambda batch: RescuedRows(_nulls(schema, 1), row_texts(batch)),
            )


def _of_json(block: AnyBlock, schema: pa.Schema, on_new: OnNewColumns) -> Iterator[RescuedRows]:
    try:
        yield RescuedRows(decode_block(block, schema))
        return
    except WingsError:
        rows = range(len(block.rows))
    yield from _halved(
        rows,
        lambda rows: [rows[: len(rows) // 2], rows[len(rows) // 2 :]] if len(rows) > 1 else [],
        lambda rows: RescuedRows(_decoded(block.rows[rows.start : rows.stop], schema)),
        lambda rows: _split(block.rows[rows.start], schema, on_new, block.place(rows.start)),
    )


def _of_csv(rows: CsvRows, schema: pa.Schema, columns: FileColumns) -> Iterator[RescuedRows]:
    convert = rows.converter(columns.read)

    def rescue(block: CsvBlock) -> RescuedRows:
        found = rows.as_texts(block)
        return RescuedRows(
            _nulls(schema, 1), [found] if isinstance(found, str) else row_texts(found)
        )

    for block in rows.blocks():
        yield from _halved(
            block, rows.halves, lambda part: RescuedRows(*columns.completed(convert(part))), rescue
        )


def _halves_of_batch(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    half = batch.num_rows // 2
    return [batch.slice(0, half), batch.slice(half)] if half else []


def _halved(
    rows: Rows,
    halves: Callable[[Rows], Sequence[Rows]],
    convert: Callable[[Rows], RescuedRows],
    rescue: Callable[[Rows], RescuedRows],
) -> Iterator[RescuedRows]:
    """Convert rows; if that fails, convert each half, down to single rows, which are rescued."""
    try:
        yield convert(rows)
        return
    except (WingsError, pa.ArrowInvalid):
        parts = halves(rows)
    if not parts:
        yield rescue(rows)
    for part in parts:
        yield from _halved(part, halves, convert, rescue)


def _decoded(rows: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
    batch = decode_rows(b"[" + b",".join(rows) + b"]", schema)
    if batch.num_rows != len(rows):
        raise SchemaMismatch("not one object on each line")
    return batch


def _split(row: bytes, schema: pa.Schema, on_new: OnNewColumns, place: str) -> RescuedRows:
    """Return a JSON row that does not fit: its fitting columns, and the others as text.

    Raises:
        SchemaMismatch: The row has a name that the schema lacks, and `on_new` is `fail`.
    """
    text = row.decode("utf-8", "replace")
    spans: list[tuple[str, int, int]] = []
    with suppress(ValueError, RecursionError):
        spans = values_of(text)
    names = [name for name, _, _ in spans]
    new = [name for name in names if name not in schema.names]
    if new and on_new is OnNewColumns.FAIL:
        refused = new_column_refused(new[0])
        raise bad_row(place, refused.message, new[0])
    if new and len(set(names)) == len(names):
        known, others = (
            ", ".join(
                f"{json.dumps(name)}: {text[first:end]}"
                for name, first, end in spans
                if (name in new) is wanted
            )
            for wanted in (False, True)
        )
        with suppress(WingsError):
            return RescuedRows(_decoded([f"{{{known}}}".encode()], schema), [f"{{{others}}}"])
    return RescuedRows(_nulls(schema, 1), [text])


def _nulls(schema: pa.Schema, rows: int) -> pa.RecordBatch:
    columns: list[Any] = [arrow.nulls(rows, field.type) for field in fields_of(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
