"""CSV: values parsed as the topic's types, or as types inferred from the first rows.

Nothing between commas is null; `""` is an empty string. Columns with numbers that would not
round-trip (leading zeros, more digits than a double has) are inferred as strings.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv

from wings_client.files.csv_lines import CONVERT, column_names, is_open, line_of
from wings_client.files.csv_values import CsvCaster, is_text
from wings_client.files.parts import Part, bad_row, cast_part, resolved_type
from wings_client.files.sections import Blank, names_end
from wings_client.files.source import BLOCK_BYTES, HEAD_BYTES, CsvFile, Head, Source
from wings_core.arrow_types import fields_of
from wings_core.errors import InvalidArgument, SchemaMismatch
from wings_core.type_names import type_name

pc: Any = pyarrow.compute
arrow_csv: Any = pyarrow.csv
"""Untyped: its stubs accept paths and Python's own files alone."""

_CONVERSION = re.compile(r"(?s)In CSV column #(\d+): Row #(\d+): (.*)")
_INVALID_VALUE = re.compile(r"(?s)CSV conversion error to (.*?): invalid value '(.*)'")
_STRUCTURE = re.compile(r"(?s)CSV parse error: Row #(\d+): (.*)")
_NO_LINE = "CSV parse error: Empty CSV file or block"
_PROBLEM_SHOWN_MAX = 200
"""Characters of Arrow's message on a row that an error shows."""

_INEXACT_INTEGER = r"^\s*[+-]?0[0-9xX]"
"""An integer that would lose its zeros, or be written in other digits."""

_INEXACT_FLOAT = r"^\s*[+-]?(0[0-9]|[0-9]{16,}\s*$)"
"""The same, and one of more digits than a double has."""


@dataclass(frozen=True, slots=True)
class RaggedRow:
    """A row that has more or fewer values than there are names."""

    index: int
    """Its place among all rows, from 0."""
    text: str


class CsvRows:
    """A CSV file with the names of its columns in the first line.

    Args:
        source: Its bytes.
        delimiter: Between values.
        path: To read the file again for a line number; None where that is impossible.
        nulls: Texts without quotes that are null.
        quote: The character around values; empty: none.
    """

    def __init__(
        self,
        source: Source,
        delimiter: str,
        path: Path | None,
        nulls: Sequence[str] = ("",),
        quote: str = '"',
    ) -> None:
        self.rows: int | None = None
        self.delimiter = delimiter
        self.ragged: deque[RaggedRow] | None = None
        """Where rows of more or fewer values than there are names go; None: they are refused."""
        self._source = source
        self._path = path
        self._nulls = list(nulls)
        self._quote = quote
        head = source.head()
        self.names = column_names(head, delimiter, quote)
        is_cut = source.head_is_all and not head.endswith((b"\n", b"\r"))
        self._ended_head = head + b"\n" if is_cut else None
        """The whole of a short file that lacks the last line end, with one added."""

    @property
    def blank(self) -> Blank:
        """Which lines are no rows."""
        return Blank.NONE if len(self.names) == 1 else Blank.EMPTY

    def schema(self) -> pa.Schema:
        """Infer columns from the first rows.

        Raises:
            SchemaMismatch: One of them has more or fewer values than there are names, or is not
                UTF-8.
            InvalidArgument: The file is empty.
        """
        head = self._source.head()
        heads = [(head, self._head_bytes(head))]
        schema = self._inferred(*heads[0])
        names = head[: names_end(head)]
        for _, lines in self._source.samples(in_quotes=True):
            sample = names + lines, len(names) + len(lines)
            with suppress(SchemaMismatch, InvalidArgument):  # The push names its line.
                found = self._inferred(*sample)
                if found.names == schema.names:
                    schema = _common(schema, found)
                    heads.append(sample)
        # By the types of all: an integer of many digits is exact, unless others have fractions.
        inexact = {name for each in heads for name in self._inexact(*each, schema)}
        fields: list[Any] = []
        for field in fields_of(schema):
            is_inexact = field.name in inexact
            data_type = pa.string() if is_inexact else resolved_type(field.type, pa.string())
            fields.append(pa.field(field.name, data_type))
        return pa.schema(fields)

    def _inferred(self, head: bytes, size: int) -> pa.Schema:
        """Infer columns from rows after the names; without a value, they are of type null."""
        inferred = self._open(_head_file(head), {}, size).schema
        unreadable: dict[str, pa.DataType] = {
            field.name: pa.string()
            for field in fields_of(inferred)
            if pa.types.is_binary(field.type)
        }
        if unreadable:
            file = _head_file(head)  # Read as strings, so that Arrow's error names the row.
            self._next(self._open(file, unreadable, size), file)
        return inferred

    def parts(self, schema: pa.Schema) -> Iterator[Part]:
        """Yield its rows; see `Rows.parts`."""
        file = CsvFile(self._source)
        types = {field.name: _read_type(field) for field in fields_of(schema)}
        reader = self._open(file, types, block_bytes=BLOCK_BYTES)
        cast = CsvCaster(reader.schema, schema).cast
        rows = 0
        batch = self._next(reader, file)
        while batch is not None:

            def place(index: int, rows: int = rows) -> str:
                return self._place(rows + index + 1, file)

            try:
                following = self._next(reader, file)
            except SchemaMismatch:
                yield cast_part(cast, batch, place)  # The good rows before it are pushed.
                raise

            is_quoted = self._quote != ""
            if following is None and is_quoted and is_open(batch, file.tail, self._quote):
                raise bad_row(place(batch.num_rows - 1), "a quote is never closed")
            yield cast_part(cast, batch, place)
            rows += batch.num_rows
            batch = following

    def _head_bytes(self, head: bytes) -> int:
        """Return how many of the first bytes to read as one block, with all complete rows."""
        # Of a block that is not the last one, Arrow leaves out the incomplete row at its end. A
        # head that ends where a pipe paused after a line has none.
        is_paused = len(head) < HEAD_BYTES and head.endswith(b"\n")
        is_whole = self._source.head_is_all or is_paused
        return len(head) if is_whole else len(head) - 1

    def _open(self, file: CsvFile, types: dict[str, pa.DataType], block_bytes: int) -> Any:
        try:
            try:
                return self._reader(file, types, block_bytes)
            except pa.ArrowInvalid as error:
                if self._ended_head is None or not str(error).startswith(_NO_LINE):
                    raise
                # The file is the names alone; Arrow needs their line end.
                return self._reader(_head_file(self._ended_head), types, len(self._ended_head))
        except pa.ArrowInvalid as error:
            raise self._explained(error, file) from None

    def _reader(self, file: CsvFile, types: dict[str, pa.DataType], block_bytes: int) -> Any:
        return arrow_csv.open_csv(
            file,
            pyarrow.csv.ReadOptions(block_size=max(1, block_bytes), use_threads=False),
            pyarrow.csv.ParseOptions(
                delimiter=self.delimiter,
                quote_char=self._quote or False,
                newlines_in_values=self._quote != "",
                # Where there is one column, an empty line is a row without a value.
                ignore_empty_lines=self.blank is Blank.EMPTY,
                invalid_row_handler=None if self.ragged is None else self._put_aside,
            ),
            _conversion(types, self._nulls),
        )

    def _put_aside(self, row: Any) -> Literal["skip"]:
        assert self.ragged is not None, "else Arrow does not call this"
        self.ragged.append(RaggedRow(row.number - 2, row.text))  # The names are row 1.
        return "skip"

    def _next(self, reader: Any, file: CsvFile) -> pa.RecordBatch | None:
        try:
            return reader.read_next_batch()
        except StopIteration:
            return None
        except pa.ArrowInvalid as error:
            raise self._explained(error, file) from None

    def _inexact(self, head: bytes, size: int, inferred: pa.Schema) -> set[str]:
        """Return the columns whose numbers would not round-trip."""
        patterns = {
            field.name: _INEXACT_INTEGER if pa.types.is_integer(field.type) else _INEXACT_FLOAT
            for field in fields_of(inferred)
            if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        }
        if not patterns:
            return set()
        texts: dict[str, pa.DataType] = dict.fromkeys(patterns, pa.string())
        batch = self._open(_head_file(head), texts, size).read_next_batch()
        return {
            name
            for index, name in enumerate(batch.schema.names)
            if name in patterns
            and pc.any(pc.match_substring_regex(batch.column(index), patterns[name])).as_py()
        }

    def _explained(self, error: pa.ArrowInvalid, file: CsvFile) -> Exception:
        """Return Arrow's error with the row's place in the file."""
        text = str(error)
        structure = _STRUCTURE.match(text)
        if structure is not None:
            problem = " ".join(structure[2].split())[:_PROBLEM_SHOWN_MAX]
            return bad_row(self._place(int(structure[1]) - 1, file), problem)
        conversion = _CONVERSION.match(text)
        if conversion is not None:
            name = self.names[int(conversion[1])]
            place = self._place(int(conversion[2]) - 1, file)
            problem = conversion[3].removeprefix("CSV conversion error to ")[:_PROBLEM_SHOWN_MAX]
            if "invalid UTF8" in problem:
                return bad_row(place, f"column {name!r:.80}: not UTF-8: {CONVERT}")
            invalid = _INVALID_VALUE.match(conversion[3])
            if invalid is not None:
                problem = f"{invalid[2]!r:.80} is not a value of type {invalid[1]}"
            return bad_row(place, f"column {name!r:.80}: {problem}", name)
        if "straddling" in text:
            return InvalidArgument(
                f"a row is longer than {BLOCK_BYTES} bytes, or a quote is never closed"
            )
        return InvalidArgument(f"not CSV: {text:.300}")

    def _place(self, row: int, file: CsvFile) -> str:
        """Return the place of a row: its line, where that can be known."""
        if file.is_plain and self._quote in ('"', ""):
            return self._source.line(row + 1)
        if self._source.ranges:
            return f"row {row} after byte {self._source.ranges[-1][0]}"
        line = None if self._path is None else self._line_of(self._path, row)
        return f"row {row}" if line is None else f"line {line}"

    def _line_of(self, path: Path, row: int) -> int | None:
        return line_of(path, self.delimiter, row, self._source.encoding, self._quote)


def text_converter(
    names: Sequence[str], schema: pa.Schema
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return a function that converts rows of texts exactly as `CsvRows.parts` does.

    It raises `ArrowInvalid` or `SchemaMismatch` if a row does not fit.

    Args:
        names: The names of the file's columns, and the texts'.
        schema: The topic's schema.

    Raises:
        SchemaMismatch: The columns are not the topic's, or CSV has no form for one of them.
    """
    types = {field.name: _read_type(field) for field in fields_of(schema)}
    read = pa.schema([pa.field(name, types.get(name, pa.string())) for name in names])
    caster = CsvCaster(read, schema)
    typed = [name for name in names if not pa.types.is_string(read.field(name).type)]

    def convert(texts: pa.RecordBatch) -> pa.RecordBatch:
        columns: dict[str, Any] = {name: texts.column(name) for name in names}
        if typed:
            columns |= _parsed(texts.select(typed), types)
        batch = pa.RecordBatch.from_arrays([columns[name] for name in names], schema=read)
        return caster.cast(batch)

    return convert


def _parsed(texts: Any, types: dict[str, pa.DataType]) -> dict[str, Any]:
    """Parse texts with the reader that reads files; returns columns by name."""
    names: list[str] = texts.schema.names
    sink: Any = pa.BufferOutputStream()
    # All texts are quoted and nulls are not, which distinguishes the two.
    arrow_csv.write_csv(texts, sink, arrow_csv.WriteOptions(include_header=False))
    written = sink.getvalue()
    table = arrow_csv.read_csv(
        pa.BufferReader(written),
        arrow_csv.ReadOptions(
            column_names=names, block_size=max(1, written.size), use_threads=False
        ),
        pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        _conversion({name: types[name] for name in names}),
    )
    return {name: table.column(name).combine_chunks() for name in names}


def _conversion(types: dict[str, pa.DataType], nulls: Sequence[str] = ("",)) -> Any:
    return pyarrow.csv.ConvertOptions(
        column_types=types,
        null_values=list(nulls),
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )


def _common(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    """Return columns with types that hold the values of both: text where no narrower one does."""
    fields: list[Any] = []
    for mine, others in zip(fields_of(one), fields_of(other), strict=True):
        found = mine.type
        if pa.types.is_null(found):
            found = others.type
        elif not pa.types.is_null(others.type) and others.type != found:
            is_number = all(
                pa.types.is_integer(each) or pa.types.is_floating(each)
                for each in (found, others.type)
            )
            found = pa.float64() if is_number else pa.string()
        fields.append(pa.field(mine.name, found))
    return pa.schema(fields)


def _head_file(head: bytes) -> CsvFile:
    return CsvFile(Head(head))


def _read_type(field: Any) -> pa.DataType:
    """Return the type that a column is parsed as, before it is cast to the topic's.

    Raises:
        SchemaMismatch: CSV cannot represent the type.
    """
    data_type = field.type
    if pa.types.is_timestamp(data_type):
        # Parsed with more digits than the type keeps, as the text may have them.
        return data_type if data_type.unit == "ns" else pa.timestamp("us", data_type.tz)
    if pa.types.is_time(data_type):
        return pa.time64("ns" if str(data_type).endswith("[ns]") else "us")
    if is_text(data_type):
        return pa.string()
    is_textual = (
        pa.types.is_boolean(data_type)
        or pa.types.is_integer(data_type)
        or pa.types.is_date(data_type)
        or pa.types.is_string(data_type)
        or pa.types.is_large_string(data_type)
        or pa.types.is_null(data_type)
    )
    if is_textual:
        return data_type
    raise SchemaMismatch(
        f"column {field.name!r:.80} is of type {type_name(data_type):.80}, which CSV has no form "
        "for: use JSON, Arrow or Parquet",
        column=field.name,
    )
