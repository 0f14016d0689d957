"""The rows of one claimed file as batches of the topic's schema.

A file is read from this machine's disk: others are fetched first, so that formats with a footer can
be read, and all rows are of one version.

Rows that do not fit may be kept as text, in their order among the others. Rows are converted many
at a time. A block that fails is bisected down to the bad rows, which costs a few conversions for
each of them.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pyarrow as pa

from wings_client.files import FileFormat
from wings_client.files.csv_rows import CsvBlock, CsvRows
from wings_client.files.formats import format_by_name
from wings_client.files.json_rows import Block, JsonRows, decode_block, decode_objects, values_of
from wings_client.files.opened import Folder, OpenFile, open_file
from wings_client.files.parts import Part, PartCheck, bad_row, named
from wings_core.arrow_types import fields_of
from wings_core.cast import Caster
from wings_core.errors import InvalidArgument, SchemaMismatch, WingsError
from wings_core.queue.journal import ClaimedFile
from wings_spark.ingest.columns import (
    FileColumns,
    OnNewColumns,
    new_column_refused,
    row_texts,
)
from wings_spark.ingest.fetch import fetched_file
from wings_spark.ingest.files import FileError, partition_values, read_errors
from wings_spark.ingest.plan import FileSection
from wings_spark.ingest.settings import SourceSettings

arrow: Any = pa

Rows = TypeVar("Rows")

NAME_MAX = 200
"""Most characters of a file's name in errors of its rows; a longer name keeps its last ones."""


@dataclass(slots=True)
class FileReading:
    """Progress of reading a file; updated as its batches are consumed."""

    rows: int = 0
    """Rows read, from the file's position on."""
    finished: bool = False
    rescued: int = 0
    seen: str | None = None
    """Version of the file, which differs from that of another file of the same name."""
    is_whole: bool = False
    """Whether no row was read because the file must be read as a whole."""


@dataclass(frozen=True, slots=True)
class _RescuedRows:
    """Consecutive rows."""

    batch: pa.RecordBatch
    texts: list[str | None] | None = None
    """For each row the part that does not fit: the whole row, with null columns, or its values in
    columns that the topic lacks. None if everything fits."""

    @property
    def rescued(self) -> int:
        """Number of rows with texts."""
        return sum(text is not None for text in self.texts or ())

    def sliced(self, first: int, rows: int) -> "_RescuedRows":
        """Return some of the rows."""
        if first == 0 and rows >= self.batch.num_rows:
            return self
        texts = None if self.texts is None else self.texts[first : first + rows]
        return _RescuedRows(self.batch.slice(first, rows), texts)


class FileReader:
    """A reader of files for one topic.

    Args:
        settings: Settings of the source.
        schema: Schema of the topic.
        partition_key: Partition key of the topic.

    Raises:
        InvalidArgument: The topic lacks columns that the source names, or cannot store rows that
            do not fit.
    """

    def __init__(
        self, settings: SourceSettings, schema: pa.Schema, partition_key: str | None
    ) -> None:
        self.settings = settings
        self._schema = schema
        self._rescued = settings.files.rescued_column
        lineage = settings.files.lineage
        named: list[tuple[str | None, Any]] = [
            (lineage.file, pa.string()),
            (lineage.offset, pa.int64()),
            (lineage.version, pa.string()),
            (self._rescued, pa.string()),
        ]
        self._own = {name: data_type for name, data_type in named if name is not None}
        self._own |= self._partition_types(schema)
        _check_own_columns(schema, self._own, self._rescued, partition_key)
        self._row_schema: pa.Schema = arrow.schema(
            [field for field in fields_of(schema) if field.name not in self._own]
        )
        is_in_file = partition_key is not None and partition_key in self._row_schema.names
        self._check = PartCheck(self._row_schema, partition_key if is_in_file else None)

    def batches(self, section: FileSection, reading: FileReading) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file from its position on, up to as many as one batch may read.

        Args:
            section: The file, or section of one.
            reading: Progress, which is updated.

        Raises:
            RefusedError: The file is outside the places that the source may read.
            FileError: The file cannot be read, or a row does not fit.
            SupersededError: The file was overwritten by another version.
            WingsError: The object store or this machine can read no file now.
        """
        file = section.file
        rows_max = self.settings.limits.rows_per_file
        end = None if rows_max is None else file.position + rows_max
        for first, piece in self._pieces(section, reading):
            row = first + piece.batch.num_rows
            if row <= file.position:
                continue
            if end is not None and first >= end:
                return  # There is at least this row after the last one.
            skipped = max(0, file.position - first)
            kept = piece.sliced(skipped, row if end is None else min(row, end) - first - skipped)
            reading.rows += kept.batch.num_rows
            reading.rescued += kept.rescued
            yield self._completed(kept, file, reading.seen, first + skipped)
            if end is not None and row > end:
                return
        reading.finished = not reading.is_whole

    def _pieces(
        self, section: FileSection, reading: FileReading
    ) -> Iterator[tuple[int, _RescuedRows]]:
        """Yield all rows of a section, in order, with the number of the first in the file."""
        file = section.file
        # The dead letter of a file, whose error is short, has all of a long name.
        name = file.uri if len(file.uri) <= NAME_MAX else f"…{file.uri[-NAME_MAX:]}"
        with read_errors(file.uri), ExitStack() as stack:
            directory = Path(stack.enter_context(TemporaryDirectory(prefix="wings-ingest-")))
            found = stack.enter_context(fetched_file(section, directory, self.settings))
            reading.seen = found.seen
            files = self.settings.files
            if found.path.stat().st_size == 0:
                return
            try:
                is_csv = (files.format or format_by_name(found.path)) is FileFormat.CSV
                opened = stack.enter_context(
                    open_file(
                        found.path,
                        files.format,
                        files.delimiter,
                        files.encoding if is_csv else None,
                        found.section,
                        name=name,
                        nulls=files.null_texts,
                        quote=files.quote,
                        chosen=files.chosen,
                    )
                )
                if opened.is_ambiguous:
                    reading.is_whole = True
                    return
                first = row = 0 if files.lineage.offset is None else opened.rows.rows_before()
                with named(name):
                    for piece in self._converted(opened):
                        yield row, piece
                        row += piece.batch.num_rows
                found.check()
                opened.check_complete(row - first)
            except WingsError as error:
                raise FileError(error.message) from None

    def _converted(self, opened: OpenFile) -> Iterator[_RescuedRows]:
        columns = self._columns(opened)
        if self._rescued is not None:
            on_new = self.settings.files.new_columns
            yield from _rescued_pieces(opened, self._row_schema, columns, on_new)
            return
        for part in opened.parts(self._row_schema if columns is None else columns.read):
            rows = part.batch if columns is None else columns.completed(part.batch)[0]
            self._check.check(Part(rows, part.place))
            yield _RescuedRows(rows)

    def _columns(self, opened: OpenFile) -> FileColumns | None:
        """Return the mapping of a file's columns; None for JSON, which has names in each row.

        Raises:
            SchemaMismatch: The columns do not fit the topic.
            NewColumnsError: Columns must be added to the topic.
        """
        on_new = self.settings.files.new_columns
        names = opened.names
        if names is None:
            if on_new is OnNewColumns.EVOLVE:
                self._evolve_json(opened)
            return None
        found: pa.Schema
        if not isinstance(opened.rows, CsvRows):
            found = opened.rows.schema()
        elif on_new is OnNewColumns.EVOLVE and not set(names) <= set(self._row_schema.names):
            found = opened.rows.schema(every_row=True)  # The topic keeps these types.
        else:
            found = arrow.schema([(name, pa.string()) for name in names])
        return FileColumns(found, self._row_schema, on_new)

    def _evolve_json(self, opened: OpenFile) -> None:
        """Request new columns of the first rows for the topic; names first seen later are unknown.

        Raises:
            SchemaMismatch: Rows have conflicting types, and are not kept as text.
            NewColumnsError: Columns must be added to the topic.
        """
        try:
            found = opened.rows.schema()
        except InvalidArgument as error:  # Without rows, there are no columns.
            if isinstance(error, SchemaMismatch) and self._rescued is None:
                raise
            return
        FileColumns(found, _nullable(self._row_schema), OnNewColumns.EVOLVE)

    def _partition_types(self, schema: pa.Schema) -> dict[str, Any]:
        fields = {field.name: field for field in fields_of(schema)}
        missing = [name for name in self.settings.files.partition_columns if name not in fields]
        if missing:
            raise InvalidArgument(
                f"the topic needs a column {missing[0]!r:.80}, which 'partition_columns' names"
            )
        return {name: fields[name].type for name in self.settings.files.partition_columns}

    def _partitions(self, file: ClaimedFile) -> dict[str, Any]:
        """Return the partition values in a file's path, as the topic's types.

        Raises:
            FileError: A value is missing, is not of its type, or must not be null.
        """
        values = partition_values(file.uri, self.settings.files.partition_columns)
        found: dict[str, Any] = {}
        for name, text in values.items():
            try:
                found[name] = Folder(name, text).value(arrow.schema(self._schema).field(name))
            except SchemaMismatch as error:
                raise FileError(f"{file.uri!a:.300}: {error.message}") from None
        return found

    def _completed(
        self, piece: _RescuedRows, file: ClaimedFile, version: str | None, first: int
    ) -> pa.RecordBatch:
        """Return rows with the columns that the source adds; `version` is the version read."""
        lineage = self.settings.files.lineage
        rows = piece.batch.num_rows
        partitions = self._partitions(file)
        columns: list[Any] = []
        for field in fields_of(self._schema):
            if field.name in partitions:
                columns.append(arrow.repeat(partitions[field.name], rows))
            elif field.name == lineage.file:
                columns.append(arrow.repeat(file.uri, rows))
            elif field.name == lineage.offset:
                columns.append(arrow.array(range(first, first + rows), pa.int64()))
            elif field.name == lineage.version:
                columns.append(
                    arrow.nulls(rows, pa.string())
                    if version is None
                    else arrow.repeat(version, rows)
                )
            elif field.name == self._rescued:
                columns.append(
                    arrow.nulls(rows, pa.string())
                    if piece.texts is None
                    else arrow.array(piece.texts, pa.string())
                )
            else:
                columns.append(piece.batch.column(field.name))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in fields_of(schema)])


def _check_own_columns(
    schema: pa.Schema,
    own: Mapping[str, Any],
    rescued: str | None,
    partition_key: str | None,
) -> None:
    """Check that a topic has the columns that a source adds.

    Raises:
        InvalidArgument: The topic lacks a column, has it with another type, or cannot store rows
            that do not fit, as other columns are required.
    """
    for name, data_type in own.items():
        index = schema.get_field_index(name)
        found = None if index < 0 else arrow.schema(schema).field(index).type
        if found != data_type:
            raise InvalidArgument(
                f"the topic needs a column {name!r} of type {data_type}, which the source adds; "
                f"it has {'none' if found is None else found}"
            )
    if rescued is None:
        return
    if partition_key is not None and partition_key not in own:
        raise InvalidArgument(
            f"rows that do not fit have no {partition_key!r}, which is the topic's partition key: "
            "leave 'rescued_column' out, or use a topic without a key"
        )
    for field in fields_of(schema):
        if not field.nullable and field.name not in own:
            raise InvalidArgument(
                f"rows that do not fit have no {field.name!r}, which must not be null in the topic"
            )
    index = schema.get_field_index(rescued)
    if not fields_of(schema)[index].nullable:
        raise InvalidArgument(f"the column {rescued!r} must be nullable: rows that fit have none")


def _rescued_pieces(
    file: OpenFile, schema: pa.Schema, columns: FileColumns | None, on_new: OnNewColumns
) -> Iterator[_RescuedRows]:
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
                lambda batch: _RescuedRows(*columns.completed(cast(batch))),
                lambda batch: _RescuedRows(_null_row(schema), row_texts(batch)),
            )


def _of_json(block: Block, schema: pa.Schema, on_new: OnNewColumns) -> Iterator[_RescuedRows]:
    try:
        yield _RescuedRows(decode_block(block, schema))
        return
    except WingsError:
        rows = range(len(block.rows))
    yield from _halved(
        rows,
        lambda rows: [rows[: len(rows) // 2], rows[len(rows) // 2 :]] if len(rows) > 1 else [],
        lambda rows: _RescuedRows(decode_objects(block.rows[rows.start : rows.stop], schema)),
        lambda rows: _split(block.rows[rows.start], schema, on_new, block.place(rows.start)),
    )


def _of_csv(rows: CsvRows, schema: pa.Schema, columns: FileColumns) -> Iterator[_RescuedRows]:
    convert = rows.converter(columns.read)

    def rescue(block: CsvBlock) -> _RescuedRows:
        found = rows.as_texts(block)
        return _RescuedRows(
            _null_row(schema), [found] if isinstance(found, str) else row_texts(found)
        )

    for block in rows.blocks():
        yield from _halved(
            block, rows.halves, lambda part: _RescuedRows(*columns.completed(convert(part))), rescue
        )


def _halves_of_batch(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    half = batch.num_rows // 2
    return [batch.slice(0, half), batch.slice(half)] if half else []


def _halved(
    rows: Rows,
    halves: Callable[[Rows], Sequence[Rows]],
    convert: Callable[[Rows], _RescuedRows],
    rescue: Callable[[Rows], _RescuedRows],
) -> Iterator[_RescuedRows]:
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


def _split(row: bytes, schema: pa.Schema, on_new: OnNewColumns, place: str) -> _RescuedRows:
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
            return _RescuedRows(
                decode_objects([f"{{{known}}}".encode()], schema), [f"{{{others}}}"]
            )
    return _RescuedRows(_null_row(schema), [text])


def _null_row(schema: pa.Schema) -> pa.RecordBatch:
    columns: list[Any] = [arrow.nulls(1, field.type) for field in fields_of(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
