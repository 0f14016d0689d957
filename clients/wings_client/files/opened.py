"""Opening a file: its format, its reader, and the columns of a topic for it.

Columns may be encoded in a path's folders, as by Hive and Spark: `day=2026-01-02/a.csv`.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from wings_client.files.csv_text import not_of_type, values_of
from wings_client.files.formats import (
    FileFormat,
    Range,
    Section,
    check_uncompressed,
    compression_of,
    csv_ranges,
    delimiter_of,
    format_by_content,
    format_by_name,
    line_ranges,
    may_split_names,
    may_split_values,
    told_delimiter,
)
from wings_client.files.parts import ALL, ChosenColumns, Part, Rows, named, resolved_type
from wings_client.files.source import Source
from wings_core.arrow_types import fields_of
from wings_core.errors import Internal, InvalidArgument, SchemaMismatch, suggested
from wings_core.type_names import type_name

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowField

arrow: Any = pa

NULLS = ("",)
"""Default texts of CSV that are null."""

QUOTE = '"'
"""Default quote of CSV."""

RECOGNISED = "recognised"
"""Value of a delimiter that is detected from the first lines."""

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
"""Text of Hive and Spark for a null value."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A column whose single value is in a file's path."""

    name: str
    text: str | None
    type: pa.DataType = pa.string()  # noqa: RUF009 - Types are constants.
    """Type of the column, if no topic defines it."""

    def value(self, field: "ArrowField") -> Any:
        """Return the value in a topic's type.

        Raises:
            SchemaMismatch: The text is not a value of this type, or null for a non-nullable column.
        """
        if self.text is None and not field.nullable:
            problem = "is null in its path, but not nullable in the topic"
            raise SchemaMismatch(f"{self.name!r:.80} {problem}", column=self.name)
        try:
            return values_of(pa.array([self.text], pa.string()), field.type)[0]
        except (pa.ArrowException, ValueError) as error:
            problem = not_of_type(self.text or "", type_name(field.type), str(error))
            raise SchemaMismatch(
                f"column {self.name!r:.80} of its path: {problem}", column=self.name
            ) from None


@dataclass(frozen=True, slots=True)
class OpenFile:
    """An open file of rows. Errors of reading begin with its name."""

    name: str
    format: FileFormat
    rows: Rows
    source: Source
    path: Path | None = None
    folders: tuple[Folder, ...] = ()
    """Columns from its path, except those that the file has itself."""
    delimiter: str | None = None
    """Delimiter of CSV."""

    @property
    def total(self) -> int | None:
        """The file's size in bytes; None if unknown."""
        return self.source.size

    @property
    def position(self) -> int:
        """Bytes read so far."""
        return self.source.position

    @property
    def names(self) -> Sequence[str] | None:
        """Names of its columns; None if each row has its own."""
        with named(self.name):
            own = self.rows.names
        return None if own is None else [*own, *(folder.name for folder in self.folders)]

    def parts(self, schema: pa.Schema, exact: Set[str] = frozenset()) -> Iterator[Part]:
        """Yield its rows; see `Rows.parts`."""
        with named(self.name):
            folders = {each.name: each for each in self.folders}
            fields = fields_of(schema)
            values = {
                each.name: folders[each.name].value(each) for each in fields if each.name in folders
            }
            own = pa.schema([field for field in fields if field.name not in values])
            for part in self.rows.parts(own, exact):
                columns: list[Any] = [
                    arrow.repeat(values[name], part.batch.num_rows)
                    if name in values
                    else part.batch.column(name)
                    for name in schema.names
                ]
                yield Part(pa.RecordBatch.from_arrays(columns, schema=schema), part.place)

    def check_complete(self, rows: int) -> None:
        """Check that all rows of the file or section were processed.

        Args:
            rows: Number of processed rows.

        Raises:
            Internal: The number differs from that of the rows found in the file.
        """
        if rows != self.rows.found:
            raise Internal(f"{self.name}: it has {self.rows.found} rows, and {rows} were read")

    @property
    def is_ambiguous(self) -> bool:
        """Whether the section may begin or end within a value; then the file must be read whole."""
        if self.format is not FileFormat.CSV or not self.source.ranges or self.path is None:
            return False
        names, lines = self.source.ranges
        if lines == (names[1], self.path.stat().st_size):
            return False  # It is the whole file.
        return may_split_names(self.path, names) or may_split_values(self.path, lines)

    def schema(self, fields: "Mapping[str, ArrowField]") -> pa.Schema:
        """Return the columns for a topic.

        Args:
            fields: Columns with given types, by name; others are as in the file.

        Raises:
            InvalidArgument: The file has no column of a given name; fact `argument` is `fields`.
            WingsError: The file cannot be read, or its rows contradict each other.
        """
        with named(self.name):
            found = fields_of(self.rows.schema())
            found += [pa.field(each.name, each.type) for each in self.folders]
            names = [field.name for field in found]
            for name in fields:
                if name not in names:
                    hint = suggested(name, names)
                    raise InvalidArgument(
                        f"there is no column {name!r:.80}{hint}", argument="fields"
                    )
            return pa.schema(
                [
                    fields.get(field.name)
                    or pa.field(field.name, resolved_type(field.type), nullable=field.nullable)
                    for field in found
                ]
            )


@contextmanager
def open_file(
    path: Path | None,
    given: FileFormat | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    section: Section | None = None,
    *,
    name: str | None = None,
    texts: frozenset[str] = frozenset(),
    nulls: Sequence[str] = NULLS,
    quote: str = QUOTE,
    time_format: str | None = None,
    chosen: ChosenColumns = ALL,
    folders: Sequence[Folder] = (),
) -> Generator[OpenFile]:
    """Open a file to read its rows.

    Args:
        path: Path of the file; None for standard input.
        given: Format; None to detect it by name, or by the first bytes.
        delimiter: Delimiter of CSV; None for that of the first line (`sep=;`), a tab for `.tsv`, or
            else a comma; `RECOGNISED` to detect it from the first lines.
        encoding: Python's name of the encoding of CSV; None for UTF-8.
        section: Section of uncompressed lines, CSV, Parquet or Arrow to read; None for all.
        name: Name in errors; None for the path.
        texts: Columns of JSON whose values are kept as text, as their JSON if they are not strings.
        nulls: Unquoted texts of CSV that are null.
        quote: Quote of CSV; empty for none.
        time_format: Form of times of CSV beside ISO 8601, as for `strptime`; None for none.
        chosen: The columns to read.
        folders: Columns from the file's path.

    Raises:
        InvalidArgument: The format is unknown (fact `argument`: `format`), takes no encoding
            (`encoding`) or form of times (`time_format`), or cannot be read from standard input or
            compressed (`path`); the file is not of its format, or cannot be read in sections.
    """
    shown = name or ("standard input" if path is None else str(path))
    with named(shown):
        ranges = None if section is None or path is None else _ranges(path, given, section)
    is_alone = section is not None and section.is_alone
    with Source(path, encoding, ranges, is_alone=is_alone, name=shown) as source:
        with named(shown):
            check_uncompressed(source.head())
            found = given or (None if path is None else format_by_name(path))
            if found is None:
                found = format_by_content(source.head())
            for option, value in (("encoding", encoding), ("time_format", time_format)):
                if value is not None and found is not FileFormat.CSV:
                    raise InvalidArgument(
                        f"{option.replace('_', ' ')} is only for CSV; this is {found.value}",
                        argument=option,
                    )
            rows: Rows
            if found is FileFormat.CSV:
                from wings_client.files.csv_rows import CsvRows

                delimiter = _delimiter(source.head(), path, delimiter)
                rows = CsvRows(source, delimiter, nulls, quote, chosen, time_format)
            else:
                delimiter = None
                rows = _rows(source, path, found, section, texts, chosen)
        own = rows.names if folders else ()
        others = [each for each in folders if chosen.takes(each.name)]
        kept = tuple(each for each in others if each.name not in (own or ()))
        yield OpenFile(shown, found, rows, source, path, kept, delimiter)


def texts_of(fields: "Mapping[str, ArrowField]") -> frozenset[str]:
    """Return the fields that are read as strings, whatever their texts look like."""
    return frozenset(name for name, field in fields.items() if pa.types.is_string(field.type))


def infer_schema(
    path: Path, fields: "Mapping[str, ArrowField]", chosen: ChosenColumns = ALL
) -> pa.Schema:
    """Return the columns of a topic for a file; see `OpenFile.schema`."""
    with open_file(path, delimiter=RECOGNISED, texts=texts_of(fields), chosen=chosen) as file:
        return file.schema(fields)


def _ranges(path: Path, given: FileFormat | None, section: Section) -> Sequence[Range] | None:
    """Return the byte ranges of a section of lines; None for other formats."""
    if compression_of(path) is None:
        wanted = given or format_by_name(path)
        if wanted in (FileFormat.JSONL, FileFormat.CSV):
            ranges = line_ranges if wanted is FileFormat.JSONL else csv_ranges
            with path.open("rb") as file:
                return ranges(file, path.stat().st_size, section)
        if wanted in (FileFormat.PARQUET, FileFormat.ARROW):
            return None
    raise InvalidArgument("it cannot be read in sections")


def _rows(
    source: Source,
    path: Path | None,
    wanted: FileFormat,
    section: Section | None,
    texts: frozenset[str],
    chosen: ChosenColumns,
) -> Rows:
    # Imported here, so that a command does not import readers of other formats.
    if wanted in (FileFormat.PARQUET, FileFormat.ARROW, FileFormat.ORC):
        from wings_client.files.arrow_batches import ArrowRows, OrcRows, ParquetRows

        if wanted is FileFormat.ORC:
            return OrcRows(source, path, chosen)
        reader = ParquetRows if wanted is FileFormat.PARQUET else ArrowRows
        return reader(source, path, section, chosen)
    from wings_client.files.json_rows import JsonRows

    return JsonRows(source, by_line=wanted is FileFormat.JSONL, texts=texts, chosen=chosen)


def _delimiter(head: bytes, path: Path | None, given: str | None) -> str:
    if given is not None and given != RECOGNISED:
        return given
    told = told_delimiter(head)
    if told is None and path is not None and ".tsv" in path.suffixes:
        return "\t"
    return told or (given and delimiter_of(head)) or ","


def folder_values(path: str) -> dict[str, str | None]:
    """Return the values of a path's folders `NAME=VALUE`; the last of each name."""
    found: dict[str, str | None] = {}
    for folder in path.split("/")[:-1]:
        name, equals, value = folder.partition("=")
        if equals:
            found[unquote(name)] = None if value == HIVE_NULL else unquote(value)
    return found


def folders_of(paths: Iterable[str]) -> list[tuple[Folder, ...]]:
    """Return the columns in the folders of files, with the same types for all files."""
    found = [folder_values(path) for path in paths]
    types = {
        name: _type_of(pa.array([each[name] for each in found if name in each], pa.string()))
        for name in {name for each in found for name in each}
    }
    return [tuple(Folder(name, text, types[name]) for name, text in each.items()) for each in found]


def _type_of(texts: Any) -> pa.DataType:
    """Return a type that preserves all texts."""
    for data_type in (pa.int64(), pa.date32()):
        try:
            if values_of(texts, data_type).cast(pa.string()).equals(texts):
                return data_type
        except (pa.ArrowException, ValueError):
            continue
    return pa.string()
