"""Opens a file: its format, its reader, and the columns of a topic for it."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from wings_client.files.formats import (
    FileFormat,
    check_uncompressed,
    compression_of,
    format_by_content,
    format_by_name,
)
from wings_client.files.parts import HasRowsBefore, Rows, resolved_type
from wings_client.files.sections import (
    Blank,
    Range,
    Section,
    csv_ranges,
    line_ranges,
    may_split_names,
    may_split_values,
    rows_in,
)
from wings_client.files.source import Source
from wings_core.arrow_types import fields_of
from wings_core.errors import InvalidArgument

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowField


NULLS = ("",)
"""Texts of CSV that are null, unless others are given."""

QUOTE = '"'
"""What is around values of CSV, unless another character is given."""

RECOGNISED = "recognised"
"""In place of a delimiter: the one that the first lines have."""


@dataclass(frozen=True, slots=True)
class OpenFile:
    """An open file of rows."""

    name: str
    format: FileFormat
    rows: Rows
    source: Source
    path: Path | None = None

    @property
    def total(self) -> int | None:
        """The file's size in bytes; None if unknown."""
        return self.source.size

    @property
    def position(self) -> int:
        """Bytes read so far."""
        return self.source.position

    def rows_before(self) -> int:
        """Return how many rows precede the section; reads the file up to it."""
        if isinstance(self.rows, HasRowsBefore):
            return self.rows.rows_before
        if not self.source.ranges or self.path is None:
            return 0
        *names, (first, _) = self.source.ranges
        begin = names[0][1] if names else 0
        return rows_in(self.path, (begin, first), self._blank())

    def _blank(self) -> Blank:
        if self.format is not FileFormat.CSV:
            return Blank.SPACES
        from wings_client.files.csv_rows import CsvRows

        assert isinstance(self.rows, CsvRows), "CSV is read so"
        return self.rows.blank

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
            fields: The columns whose type is given, by name; others are as in the file.

        Raises:
            InvalidArgument: The file has no column of a given name; fact `argument` is `fields`.
            WingsError: The file cannot be read, or its rows contradict each other.
        """
        found = self.rows.schema()
        for name in fields:
            if name not in found.names:
                raise InvalidArgument(f"{self.name} has no column {name!r:.80}", argument="fields")
        return pa.schema(
            [
                fields.get(field.name)
                or pa.field(
                    field.name, resolved_type(field.type, pa.string()), nullable=field.nullable
                )
                for field in fields_of(found)
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
    texts: frozenset[str] = frozenset(),
    nulls: Sequence[str] = NULLS,
    quote: str = QUOTE,
) -> Generator[OpenFile]:
    """Open a file to read its rows.

    Args:
        path: Of the file; None for standard input.
        given: Its format; None: by its name, else by its first bytes.
        delimiter: Of CSV; None: a tab for `.tsv`, else a comma; `RECOGNISED`: by the first lines.
        encoding: Of CSV, as Python names it; None: UTF-8.
        section: The part to read, of uncompressed lines, CSV, Parquet or Arrow; None: all.
        texts: Columns of JSON whose values are kept as text: of what is no string, its JSON.
        nulls: Of CSV, the texts without quotes that are null.
        quote: Of CSV, the character around values; empty: none.

    Raises:
        InvalidArgument: Its format is not known (fact `argument`: `format`), it has no encoding
            (`encoding`), it cannot be read from standard input or compressed (`path`); it is not of
            its format, or cannot be read in sections.
    """
    ranges = None if section is None or path is None else _ranges(path, given, section)
    is_alone = section is not None and section.is_alone
    with Source(path, encoding, ranges, is_alone=is_alone) as source:
        name = "standard input" if path is None else str(path)
        check_uncompressed(source.head())
        found = given or (None if path is None else format_by_name(path))
        if found is None:
            found = format_by_content(source.head())
        if encoding is not None and found is not FileFormat.CSV:
            raise InvalidArgument(f"goes with CSV; {name} is {found.value}", argument="encoding")
        if found is FileFormat.CSV:
            rows = _csv_rows(source, path, delimiter, nulls, quote)
        else:
            rows = _rows(source, path, found, section, texts)
        yield OpenFile(name, found, rows, source, path)


def infer_schema(path: Path, fields: "Mapping[str, ArrowField]") -> pa.Schema:
    """Return the columns that a topic for a file would have; see `OpenFile.schema`."""
    with open_file(path) as file:
        return file.schema(fields)


def _ranges(path: Path, given: FileFormat | None, section: Section) -> Sequence[Range] | None:
    """Return the bytes of a section of lines; None where bytes do not delimit its rows."""
    if compression_of(path) is None:
        wanted = given or format_by_name(path)
        if wanted in (FileFormat.JSONL, FileFormat.CSV):
            ranges = line_ranges if wanted is FileFormat.JSONL else csv_ranges
            with path.open("rb") as file:
                return ranges(file, path.stat().st_size, section)
        if wanted in (FileFormat.PARQUET, FileFormat.ARROW):
            return None
    raise InvalidArgument(f"{path} cannot be read in sections")


def _rows(
    source: Source,
    path: Path | None,
    wanted: FileFormat,
    section: Section | None,
    texts: frozenset[str],
) -> Rows:
    # Imported here, so that a command does not import readers of other formats.
    if wanted is FileFormat.PARQUET:
        from wings_client.files.arrow_batches import ParquetRows

        return ParquetRows(source, path, section)
    if wanted is FileFormat.ARROW:
        from wings_client.files.arrow_batches import ArrowRows

        return ArrowRows(source, path, section)
    if wanted is FileFormat.ORC:
        from wings_client.files.orc_rows import OrcRows

        return OrcRows(source, path)
    from wings_client.files.json_rows import JsonRows

    return JsonRows(source, by_line=wanted is FileFormat.JSONL, texts=texts)


def _csv_rows(
    source: Source, path: Path | None, delimiter: str | None, nulls: Sequence[str], quote: str
) -> Rows:
    from wings_client.files.csv_lines import delimiter_of
    from wings_client.files.csv_rows import CsvRows

    is_tabbed = path is not None and ".tsv" in path.suffixes
    if delimiter == RECOGNISED:
        delimiter = None if is_tabbed else delimiter_of(source.head())
    return CsvRows(source, delimiter or ("\t" if is_tabbed else ","), path, nulls, quote)
