"""Rescue: rows that do not fit are kept as text, in their place among the others.

Rows are converted many at a time. A block that fails is bisected down to the bad rows, which costs
a few conversions for each of them.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from wings_client.files.csv_rows import CsvRows, RaggedRow, text_converter
from wings_client.files.formats import FileFormat
from wings_client.files.json_rows import decode_block, line_blocks, object_blocks, values_of
from wings_client.files.opened import OpenFile
from wings_core.arrow_types import fields_of
from wings_core.cast import Caster
from wings_core.errors import SchemaMismatch, WingsError
from wings_core.json_rows import decode_rows, encode_lines
from wings_spark.ingest.columns import FileColumns

arrow: Any = pa

Rows = TypeVar("Rows")


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows."""

    batch: pa.RecordBatch
    texts: list[str | None] | None = None
    """For each row what does not fit: all of it, and its columns are null, or its values in columns
    that the topic lacks. None: everything fits."""

    @property
    def rescued(self) -> int:
        """How many rows have texts."""
        return sum(text is not None for text in self.texts or ())

    def sliced(self, first: int, rows: int) -> "Piece":
        """Return some of the rows."""
        if first == 0 and rows >= self.batch.num_rows:
            return self
        texts = None if self.texts is None else self.texts[first : first + rows]
        return Piece(self.batch.slice(first, rows), texts)


def rescued_pieces(
    file: OpenFile, schema: pa.Schema, columns: FileColumns | None
) -> Iterator[Piece]:
    """Yield the rows of a file, in order, those that do not fit as texts.

    Args:
        file: Opened, and not read yet.
        schema: Of the rows that fit.
        columns: How a file's columns become those of the schema; None for JSON, whose rows have
            names of their own.

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
                lambda rows: Piece(_decoded(rows, schema)),
                lambda rows: _split(rows[0], schema),
            )
        return
    assert columns is not None, "other formats have one set of columns"
    convert: Callable[[pa.RecordBatch], pa.RecordBatch]
    if file.format is FileFormat.CSV:
        assert isinstance(file.rows, CsvRows), "CSV is read so"
        names = file.rows.names
        own: pa.Schema = arrow.schema([(name, pa.string()) for name in names])
        convert = text_converter(names, columns.read)
    else:
        own = file.rows.schema()
        convert = Caster(own, columns.read).cast
    for part in _in_order(file, own, schema):
        if isinstance(part, Piece):
            yield part
            continue
        yield from _halved(
            part,
            part.num_rows,
            lambda batch, first, count: batch.slice(first, count),
            lambda batch: Piece(*columns.completed(convert(batch))),
            lambda batch: Piece(_nulls(schema, 1), _texts(batch)),
        )


def _in_order(
    file: OpenFile, own: pa.Schema, schema: pa.Schema
) -> Iterator[pa.RecordBatch | Piece]:
    """Yield the rows of a file as its own columns, and in their places those that have none.

    These are rows of CSV that have more or fewer values than there are names.
    """
    ragged: deque[RaggedRow] = deque()
    if isinstance(file.rows, CsvRows):
        file.rows.ragged = ragged
    place = 0
    for part in file.rows.parts(own):
        batch = part.batch
        while ragged and ragged[0].index <= place + batch.num_rows:
            before = ragged[0].index - place
            if before:
                yield batch.slice(0, before)
                batch = batch.slice(before)
            yield Piece(_nulls(schema, 1), [ragged.popleft().text])
            place += before + 1
        if batch.num_rows:
            yield batch
        place += batch.num_rows
    for row in ragged:
        yield Piece(_nulls(schema, 1), [row.text])


def _halved(
    rows: Rows,
    count: int,
    sliced: Callable[[Rows, int, int], Rows],
    convert: Callable[[Rows], Piece],
    rescue: Callable[[Rows], Piece],
) -> Iterator[Piece]:
    """Convert rows; where that fails, each half of them, down to single rows, which are rescued."""
    if count == 0:
        return
    try:
        yield convert(rows)
        return
    except (WingsError, pa.ArrowInvalid):
        if count == 1:
            yield rescue(rows)
            return
    half = count // 2
    for first, part in ((0, half), (half, count - half)):
        yield from _halved(sliced(rows, first, part), part, sliced, convert, rescue)


def _decoded(rows: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
    batch = decode_rows(b"[" + b",".join(rows) + b"]", schema)
    if batch.num_rows != len(rows):
        raise SchemaMismatch("not one object on each line")
    return batch


def _split(row: bytes, schema: pa.Schema) -> Piece:
    """Return a JSON row that does not fit: its columns where they do, and the others as text."""
    text = row.decode("utf-8", "replace")
    with suppress(WingsError, ValueError, RecursionError):
        spans = values_of(text)
        names = [name for name, _, _ in spans]
        if len(set(names)) == len(names) and not set(names) <= set(schema.names):
            parts = [
                f"{json.dumps(name)}: {text[first:end]}"
                for wanted in (True, False)
                for name, first, end in spans
                if (name in schema.names) is wanted
            ]
            known = sum(name in schema.names for name in names)
            batch = _decoded([f"{{{', '.join(parts[:known])}}}".encode()], schema)
            return Piece(batch, [f"{{{', '.join(parts[known:])}}}"])
    return Piece(_nulls(schema, 1), [text])


def _texts(batch: pa.RecordBatch) -> list[str | None]:
    """Return rows as JSON."""
    # As bytes: of texts, other characters end lines too, which JSON leaves as they are.
    return [line.decode() for line in b"".join(encode_lines(batch)).splitlines()]


def _nulls(schema: pa.Schema, rows: int) -> pa.RecordBatch:
    columns: list[Any] = [arrow.nulls(rows, field.type) for field in fields_of(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
