"""The reader of CSV: values are parsed as the topic's types, or as inferred types.

An empty value is null; `""` is an empty string. Columns with numbers that do not round-trip
(leading zeros, more digits than a double has) are inferred as strings; later such numbers in a
column with an inferred number type are rejected. Arrow parses blocks of whole rows in memory.
"""

import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv

from wings_client.files.csv_text import (
    CONVERT,
    DIGIT,
    LONG_INTEGER,
    UNNAMED,
    ZEROS,
    CsvCaster,
    Dialect,
    is_text,
    not_of_type,
)
from wings_client.files.formats import Blank, line_ends, names_start
from wings_client.files.parts import (
    ALL,
    Cast,
    ChosenColumns,
    Part,
    bad_row,
    cast_part,
)
from wings_client.files.source import Source, row_blocks
from wings_core.arrow_types import fields_of
from wings_core.errors import InvalidArgument, SchemaMismatch
from wings_core.type_names import type_name

pc: Any = pyarrow.compute
arrow_csv: Any = pyarrow.csv
"""Untyped, as its stubs only accept paths and Python files."""

_CONVERSION = re.compile(r"(?s)In CSV column #(\d+): Row #(\d+): (.*)")
_INVALID_VALUE = re.compile(
    r"(?s)CSV conversion error to (.*?): (?:invalid value|expected .* offset in) '(.*)'"
)
_STRUCTURE = re.compile(r"(?s)CSV parse error: Row #(\d+): (.*)")
_PROBLEM_SHOWN_MAX = 200
"""Most characters of Arrow's message in an error."""


@dataclass(slots=True)
class CsvBlock:
    """A block of whole rows."""

    text: bytes
    line: int
    """Number of the first line, from 1."""
    rows: int | None = None
    """Number of rows, known after parsing."""


class CsvRows:
    """A CSV file with column names in the first line.

    Args:
        source: The file's bytes.
        delimiter: Character between values.
        nulls: Unquoted texts that are null.
        quote: Character around values; empty for none.
        chosen: The columns to read.
        time_format: Form of times beside ISO 8601, in the letters of `strptime`; None for none.

    Raises:
        InvalidArgument: The delimiter is not an ASCII character.
    """

    def __init__(
        self,
        source: Source,
        delimiter: str,
        nulls: Sequence[str] = ("",),
        quote: str = '"',
        chosen: ChosenColumns = ALL,
        time_format: str | None = None,
    ) -> None:
        if len(delimiter.encode()) != 1 or delimiter in {"\r", "\n", quote}:
            raise InvalidArgument(f"{delimiter!r} cannot separate values", argument="delimiter")
        self.found = 0
        self.delimiter = delimiter
        self._source = source
        self._nulls = list(nulls)
        self._dialect = Dialect(delimiter, quote)
        self._chosen = chosen
        self._time_parsers = [] if time_format is None else [arrow_csv.ISO8601, time_format]

    @property
    def names(self) -> list[str]:
        """Names of the columns to read, without unnamed ones."""
        return self._chosen.of([name for name in self._header[0] if name not in UNNAMED])

    @property
    def blank(self) -> Blank:
        """The kind of lines that are not rows."""
        return Blank.NONE if len(self._header[0]) == 1 else Blank.EMPTY

    @cached_property
    def _header(self) -> tuple[list[str], int]:
        """The names in the first line, and the number of the next line; reads the line."""
        while True:
            head = self._source.head()
            found = self._dialect.header(head)
            if found is None and self._source.head_is_all:
                names = self._dialect.names(head[names_start(head) :])
                found = names, len(head)
            if found is not None:
                names, end = found
                text = self._source.read(end) if end else b""
                return names, 1 + line_ends(text)
            self._source.grow_head()

    def rows_before(self) -> int:
        """Return how many rows of the file precede those of the section."""
        return self._source.rows_before(self.blank)

    def schema(self, *, every_row: bool = False) -> pa.Schema:
        """Infer columns from the first rows, and from samples of the rest.

        Args:
            every_row: Whether to read all rows for it, except those whose number of values differs
                from that of the names.

        Raises:
            SchemaMismatch: A row has a different number of values than names, or is not UTF-8.
            InvalidArgument: The file is empty.
        """
        guess = _Guess(self.names)
        if every_row:
            for block in self.blocks():
                self._look_at(block, guess, skips_ragged=True)
            return guess.schema()
        self._look_at(CsvBlock(self._first_rows(), self._header[1]), guess)
        for number, lines in self._source.samples(in_quotes=True):
            with suppress(SchemaMismatch, InvalidArgument):  # The push reports the line.
                self._look_at(CsvBlock(lines, number), guess)
        return guess.schema()

    def _first_rows(self) -> bytes:
        self._header  # noqa: B018 - must be read before the rows
        while not self._source.head_is_all:
            head = self._source.head()
            if end := self._dialect.rows_end(head):
                return head[:end]
            self._source.grow_head()
        return self._source.head()

    def _look_at(self, block: CsvBlock, guess: "_Guess", *, skips_ragged: bool = False) -> None:
        """Widen the inferred types by a block of rows."""
        if not block.text:
            return
        parse = partial(self._parsed, block, skips_ragged=skips_ragged)
        found = parse({}, self.names)
        unreadable = [field.name for field in fields_of(found.schema) if _is_binary(field.type)]
        if unreadable:
            parse(dict.fromkeys(unreadable, pa.string()), unreadable)  # The error names the row.
        others = [field.name for field in fields_of(found.schema) if is_text(field.type)]
        guess.widen(found.schema)
        if others:
            guess.look_at(parse(dict.fromkeys(others, pa.string()), others))

    def parts(self, schema: pa.Schema, exact: Set[str] = frozenset()) -> Iterator[Part]:
        """Yield its rows; see `Rows.parts`."""
        read, cast = self._reader(schema, exact)
        for block in self.blocks():
            yield cast_part(cast, read(block), partial(self._place, block))

    def converter(self, schema: pa.Schema) -> Callable[[CsvBlock], pa.RecordBatch]:
        """Return a function that converts a block's rows like `parts`."""
        read, cast = self._reader(schema, frozenset())
        return lambda block: cast(read(block))

    def _reader(
        self, schema: pa.Schema, exact: Set[str]
    ) -> tuple[Callable[[CsvBlock], pa.RecordBatch], Cast]:
        """Return a parser of blocks, and a cast of their rows to a topic's types.

        Raises:
            SchemaMismatch: The columns are not the topic's, or CSV cannot represent one of them.
        """
        wanted = {field.name: _read_type(field) for field in fields_of(schema)}
        types = {name: wanted.get(name, pa.string()) for name in self.names}
        cast = CsvCaster(pa.schema(list(types.items())), schema, exact).cast
        shown = {field.name: type_name(field.type) for field in fields_of(schema)}
        return lambda block: self._parsed(block, types, self.names, shown), cast

    def blocks(self) -> Iterator[CsvBlock]:
        """Yield blocks of rows, as they arrive.

        Raises:
            SchemaMismatch: A quote is never closed, or a row is too long.
        """
        _, first = self._header
        for text, line in row_blocks(self._source, self._dialect.rows_end, first):
            if self._source.ended and (quote := self._dialect.open_quote(text, len(text))) >= 0:
                place = self._source.line(line + line_ends(text, quote))
                raise bad_row(place, "a quote is never closed")
            block = CsvBlock(text, line)
            yield block
            count = self._dialect.count(text, self.blank) if block.rows is None else block.rows
            self.found += count

    def halves(self, block: CsvBlock) -> list[CsvBlock]:
        """Split a block into two; empty if it has a single row."""
        text = block.text
        cut = self._dialect.rows_end(text[: len(text) // 2]) or self._dialect.row_end(text)
        if cut == len(text):
            return []
        return [
            CsvBlock(text[:cut], block.line),
            CsvBlock(text[cut:], block.line + line_ends(text, cut)),
        ]

    def as_texts(self, block: CsvBlock) -> str | pa.RecordBatch:
        """Return the only row of a block as strings, or its text if its columns do not match.

        Raises:
            SchemaMismatch: The row is not UTF-8.
        """
        try:
            return self._parsed(block, dict.fromkeys(self.names, pa.string()), self.names)
        except SchemaMismatch:
            try:
                return block.text.decode().rstrip("\r\n")
            except UnicodeDecodeError:
                raise bad_row(self._place(block, 0), f"not UTF-8: {CONVERT}") from None

    def _parsed(
        self,
        block: CsvBlock,
        types: dict[str, pa.DataType],
        names: Sequence[str],
        shown: Mapping[str, str] | None = None,
        *,
        skips_ragged: bool = False,
    ) -> pa.RecordBatch:
        """Parse rows.

        Args:
            block: The rows.
            types: Types of columns by name; others are inferred.
            names: Names of the columns to return.
            shown: Names of the types that columns become, for errors.
            skips_ragged: Whether to skip rows with a different number of values than names.

        Raises:
            SchemaMismatch: A row has a different number of values, or a value is not of its
                column's type.
        """
        unnamed = [name for name in self._header[0] if name in UNNAMED]
        text = block.text
        try:
            table = arrow_csv.read_csv(
                # Arrow drops a byte order mark, which may be the first character of a value.
                pa.BufferReader(BOM_UTF8 + text if text.startswith(BOM_UTF8) else text),
                arrow_csv.ReadOptions(
                    column_names=self._header[0],
                    block_size=len(text) + len(BOM_UTF8),
                    use_threads=False,
                ),
                pyarrow.csv.ParseOptions(
                    delimiter=self.delimiter,
                    quote_char=self._dialect.quote or False,
                    newlines_in_values=self._dialect.quote != "",
                    # With a single column, an empty line is a row without a value.
                    ignore_empty_lines=self.blank is Blank.EMPTY,
                    invalid_row_handler=(lambda _: "skip") if skips_ragged else None,
                ),
                arrow_csv.ConvertOptions(
                    column_types=types | dict(zip(UNNAMED, (pa.int64(), pa.null()), strict=True)),
                    null_values=self._nulls,
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                    timestamp_parsers=self._time_parsers,
                    include_columns=[*unnamed, *names],
                ),
            )
        except pa.ArrowInvalid as error:
            raise self._explained(error, block, shown or {}) from None
        block.rows = table.num_rows
        # Arrow parses all rows as one block.
        columns = [column.chunk(0) for column in table.columns[len(unnamed) :]]
        return pa.RecordBatch.from_arrays(columns, names=list(names))

    def _explained(
        self, error: pa.ArrowInvalid, block: CsvBlock, shown: Mapping[str, str]
    ) -> Exception:
        """Return Arrow's error with the row's position in the file."""
        text = str(error)
        structure = _STRUCTURE.match(text)
        if structure is not None:
            problem = " ".join(structure[2].split())[:_PROBLEM_SHOWN_MAX]
            return bad_row(self._place(block, int(structure[1]) - 1), problem)
        conversion = _CONVERSION.match(text)
        if conversion is None:
            return InvalidArgument(f"not CSV: {text:.300}")
        name = self._header[0][int(conversion[1])]
        place = self._place(block, int(conversion[2]) - 1)
        invalid = _INVALID_VALUE.match(conversion[3])
        problem = conversion[3].removeprefix("CSV conversion error to ")[:_PROBLEM_SHOWN_MAX]
        if invalid is not None:
            text = invalid[2].partition("'. If these timestamps")[0]  # Advice on Arrow's reader.
            problem = not_of_type(text, shown.get(name, invalid[1]), conversion[3])
        if name in UNNAMED:
            column = f"column {int(conversion[1]) + 1} has no name in the first line"
            value = "" if invalid is None else f", and has a value, {invalid[2]!r:.80}"
            return bad_row(place, f"{column}{value}: give it one")
        if "invalid UTF8" in problem:
            return bad_row(place, f"column {name!r:.80}: not UTF-8: {CONVERT}")
        return bad_row(place, f"column {name!r:.80}: {problem}", name)

    def _place(self, block: CsvBlock, row: int) -> str:
        """Return the place of a row of a block."""
        return self._source.line(
            block.line + self._dialect.lines_before(block.text, row, self.blank)
        )


class _Guess:
    """Types of columns inferred from the examined rows."""

    def __init__(self, names: Sequence[str]) -> None:
        self._types: dict[str, pa.DataType] = dict.fromkeys(names, pa.null())
        self._inexact: dict[str, set[str]] = {ZEROS: set(), LONG_INTEGER: set(), DIGIT: set()}

    def widen(self, found: pa.Schema) -> None:
        """Widen the types by those of further rows."""
        for field in fields_of(found):
            self._types[field.name] = _common(self._types[field.name], field.type)

    def look_at(self, texts: pa.RecordBatch) -> None:
        """Examine the texts of number and boolean columns for values that would change."""
        for pattern, names in self._inexact.items():
            for name, column in zip(texts.schema.names, texts.columns, strict=True):
                if name not in names and pc.any(pc.match_substring_regex(column, pattern)).as_py():
                    names.add(name)

    def schema(self) -> pa.Schema:
        """Return the columns; those with numbers that would change become strings."""
        fields: list[Any] = []
        for name, found in self._types.items():
            is_inexact = name in self._inexact[ZEROS] and _is_number(found)
            is_inexact |= name in self._inexact[LONG_INTEGER] and pa.types.is_floating(found)
            is_inexact |= name in self._inexact[DIGIT] and pa.types.is_boolean(found)
            known = pa.string() if is_inexact or pa.types.is_null(found) else found
            fields.append(pa.field(name, known))
        return pa.schema(fields)


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the narrowest type that holds the values of both, string at worst."""
    if pa.types.is_null(one) or one == other:
        return other
    if pa.types.is_null(other):
        return one
    return pa.float64() if _is_number(one) and _is_number(other) else pa.string()


def _is_number(data_type: pa.DataType) -> bool:
    return pa.types.is_integer(data_type) or pa.types.is_floating(data_type)


def _is_binary(data_type: pa.DataType) -> bool:
    return pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type)


def _read_type(field: Any) -> pa.DataType:
    """Return the type that a column is parsed as, before the cast to the topic's.

    Raises:
        SchemaMismatch: CSV cannot represent the type.
    """
    data_type = field.type
    if pa.types.is_timestamp(data_type):
        # Parsed with more digits than the type has, as the text may have them.
        return data_type if data_type.unit == "ns" else pa.timestamp("us", data_type.tz)
    if pa.types.is_time(data_type):
        return pa.time64("ns" if str(data_type).endswith("[ns]") else "us")
    if is_text(data_type):
        return pa.string()
    is_textual = (
        pa.types.is_integer(data_type)
        or pa.types.is_date(data_type)
        or pa.types.is_string(data_type)
        or pa.types.is_large_string(data_type)
        or pa.types.is_null(data_type)
    )
    if is_textual:
        return data_type
    raise SchemaMismatch(
        f"column {field.name!r:.80} has type {type_name(data_type):.80}, which CSV cannot "
        "represent: use JSON, Arrow or Parquet",
        column=field.name,
    )
