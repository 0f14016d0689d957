"""Rescue: rows that do not fit are kept as text, in their place among the others.

Rows are converted many at a time. A block that fails is bisected down to the bad rows, which costs
a few conversions for each of them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from wings_client.cast import Caster
from wings_client.files.csv_rows import CsvRows, text_converter
from wings_client.files.formats import FileFormat
from wings_client.files.json_rows import decode_block, line_blocks, object_blocks
from wings_client.files.opened import OpenFile
from wings_core.arrow_types import fields_of
from wings_core.errors import SchemaMismatch, WingsError
from wings_core.json_rows import decode_rows, encode_lines

arrow: Any = pa

Rows = TypeVar("Rows")


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows that all fit, or none of which does."""

    batch: pa.RecordBatch
    texts: list[str] | None = None
    """The rows that do not fit, whose columns are null; None: they fit."""

    def sliced(self, first: int, rows: int) -> "Piece":
        """Return some of the rows."""
        if first == 0 and rows >= self.batch.num_rows:
            return self
        texts = None if self.texts is None else self.texts[first : first + rows]
        return Piece(self.batch.slice(first, rows), texts)


def rescued_pieces(file: OpenFile, schema: pa.Schema) -> Iterator[Piece]:
    """Yield the rows of a file, in order, those that do not fit as texts.

    Args:
        file: Opened, and not read yet.
        schema: Of the rows that fit.

    Raises:
        WingsError: The file itself is damaged, or its columns are not those of the schema.
    """
    if file.format in (FileFormat.JSONL, FileFormat.JSON):
        is_lines = file.format is FileFormat.JSONL
        blocks = line_blocks(file.source) if is_lines else object_blocks(file.source)
        for block in blocks:
            piece: Piece | None = None
            with suppress(WingsError):
                piece = Piece(decode_block(block, schema))
            if piece is not None:
                yield piece
                continue
            yield from _halved(
                block.rows,
                len(block.rows),
                lambda rows, first, count: rows[first : first + count],
                lambda rows: _decoded(rows, schema),
                lambda rows: [row.decode("utf-8", "replace") for row in rows],
                schema,
            )
        return
    convert: Callable[[pa.RecordBatch], pa.RecordBatch]
    if file.format is FileFormat.CSV:
        assert isinstance(file.rows, CsvRows), "CSV is read so"
        names = file.rows.schema().names
        own: pa.Schema = arrow.schema([(name, pa.string()) for name in names])
        convert = text_converter(names, schema)
    else:
        own = file.rows.schema()
        convert = Caster(own, schema).cast
    for part in file.rows.parts(own):
        yield from _halved(
            part.batch,
            part.batch.num_rows,
            lambda batch, first, count: batch.slice(first, count),
            convert,
            _texts,
            schema,
        )


def _halved(
    rows: Rows,
    count: int,
    sliced: Callable[[Rows, int, int], Rows],
    convert: Callable[[Rows], pa.RecordBatch],
    texts: Callable[[Rows], list[str]],
    schema: pa.Schema,
) -> Iterator[Piece]:
    """Convert rows; where that fails, each half of them, down to single rows."""
    if count == 0:
        return
    try:
        yield Piece(convert(rows))
        return
    except (WingsError, pa.ArrowInvalid):
        if count == 1:
            yield Piece(_nulls(schema, 1), texts(rows))
            return
    half = count // 2
    for first, part in ((0, half), (half, count - half)):
        yield from _halved(sliced(rows, first, part), part, sliced, convert, texts, schema)


def _decoded(rows: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
    batch = decode_rows(b"[" + b",".join(rows) + b"]", schema)
    if batch.num_rows != len(rows):
        raise SchemaMismatch("not one object on each line")
    return batch


def _texts(batch: pa.RecordBatch) -> list[str]:
    """Return rows as JSON."""
    # As bytes: of texts, other characters end lines too, which JSON leaves as they are.
    return [line.decode() for line in b"".join(encode_lines(batch)).splitlines()]


def _nulls(schema: pa.Schema, rows: int) -> pa.RecordBatch:
    columns: list[Any] = [arrow.nulls(rows, field.type) for field in fields_of(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
