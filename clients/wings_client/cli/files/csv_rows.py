"""CSV: values read by the types of the topic, or by types that all of the first rows have.

A value is null where there is nothing between the commas; `""` is an empty string. Numbers that
would not come back as they were written (leading zeros, more digits than a double has) are strings.
"""

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv

from wings_client._cast import Caster
from wings_client.cli.files.formats import compression_of
from wings_client.cli.files.parts import Part, cast_part, settled_type
from wings_client.cli.files.source import BLOCK_BYTES, Head, Source, SourceFile
from wings_client.cli.values import bad_row
from wings_core.arrow_types import fields_of
from wings_core.errors import InvalidArgument, SchemaMismatch
from wings_core.type_names import type_name

pc: Any = pyarrow.compute
arrow_csv: Any = pyarrow.csv
"""Its stubs know paths and files opened by Python alone."""

HEADER_BYTES_MAX = 1024 * 1024
"""The names of the columns must end before."""

DECIMAL_DIGITS_MAX = 38
"""Of a decimal that Arrow reads from CSV."""

_CONVERSION = re.compile(r"(?s)In CSV column #(\d+): Row #(\d+): (.*)")
_INVALID_VALUE = re.compile(r"(?s)CSV conversion error to (.*?): invalid value '(.*)'")
_STRUCTURE = re.compile(r"(?s)CSV parse error: Row #(\d+): (.*)")
_PROBLEM_SHOWN_MAX = 200
"""Characters of what Arrow says of a row that an error shows."""

_INEXACT_INTEGER = r"^\s*[+-]?0[0-9]"
"""An integer that would lose its zeros."""

_INEXACT_FLOAT = r"^\s*[+-]?(0[0-9]|[0-9]{16,}\s*$)"
"""The same, and one of more digits than a double has."""


class CsvRows:
    """A CSV file with the names of its columns in the first line.

    Args:
        source: Its bytes.
        delimiter: What stands between values.
        path: To read it again for the number of a line; None where that cannot be.
    """

    def __init__(self, source: Source, delimiter: str, path: Path | None) -> None:
        self.rows: int | None = None
        self._source = source
        self._delimiter = delimiter
        self._path = path
        self._names = _names(source.head(), delimiter)

    def schema(self) -> pa.Schema:
        """Infer columns from the first rows.

        Raises:
            SchemaMismatch: One of them has more or fewer values than there are names.
            InvalidArgument: There is nothing.
        """
        head = self._source.head()
        inferred = self._open(_head_file(head), {}, len(head)).schema
        inexact = self._inexact(head, inferred)
        fields: list[Any] = []
        for field in fields_of(inferred):
            is_text = field.name in inexact or pa.types.is_binary(field.type)
            data_type = pa.string() if is_text else settled_type(field.type, pa.string())
            fields.append(pa.field(field.name, data_type))
        return pa.schema(fields)

    def parts(self, schema: pa.Schema) -> Iterator[Part]:
        """Yield its rows; see `Rows.parts`."""
        file = SourceFile(self._source)
        types = {field.name: _read_type(field) for field in fields_of(schema)}
        reader = self._open(file, types, block_bytes=BLOCK_BYTES)
        caster = Caster(reader.schema, schema)
        rows = 0
        batch = self._next(reader, file)
        while batch is not None:

            def place(index: int, rows: int = rows) -> str:
                return self._place(rows + index + 1, file)

            try:
                following = self._next(reader, file)
            except SchemaMismatch:
                yield cast_part(caster, batch, place)  # What is good before it is not held back.
                raise

            if following is None and _is_open(batch, file.tail):
                raise bad_row(place(batch.num_rows - 1), "a quote is never closed")
            yield cast_part(caster, batch, place)
            rows += batch.num_rows
            batch = following

    def _open(self, file: SourceFile, types: dict[str, pa.DataType], block_bytes: int) -> Any:
        try:
            return arrow_csv.open_csv(
                file,
                pyarrow.csv.ReadOptions(block_size=max(1, block_bytes), use_threads=False),
                pyarrow.csv.ParseOptions(
                    delimiter=self._delimiter,
                    newlines_in_values=True,
                    # Where there is one column, an empty line is a row without a value.
                    ignore_empty_lines=len(self._names) > 1,
                ),
                pyarrow.csv.ConvertOptions(
                    column_types=types,
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid as error:
            raise self._explained(error, file) from None

    def _next(self, reader: Any, file: SourceFile) -> pa.RecordBatch | None:
        try:
            return reader.read_next_batch()
        except StopIteration:
            return None
        except pa.ArrowInvalid as error:
            raise self._explained(error, file) from None

    def _inexact(self, head: bytes, inferred: pa.Schema) -> set[str]:
        """Return the columns whose numbers would not come back as they were written."""
        patterns = {
            field.name: _INEXACT_INTEGER if pa.types.is_integer(field.type) else _INEXACT_FLOAT
            for field in fields_of(inferred)
            if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        }
        if not patterns:
            return set()
        texts: dict[str, pa.DataType] = dict.fromkeys(patterns, pa.string())
        batch = self._open(_head_file(head), texts, len(head)).read_next_batch()
        return {
            name
            for index, name in enumerate(batch.schema.names)
            if name in patterns
            and pc.any(pc.match_substring_regex(batch.column(index), patterns[name])).as_py()
        }

    def _explained(self, error: pa.ArrowInvalid, file: SourceFile) -> Exception:
        """Say where and what, in words of the file."""
        text = str(error)
        structure = _STRUCTURE.match(text)
        if structure is not None:
            problem = " ".join(structure[2].split())[:_PROBLEM_SHOWN_MAX]
            return bad_row(self._place(int(structure[1]) - 1, file), problem)
        conversion = _CONVERSION.match(text)
        if conversion is not None:
            name = self._names[int(conversion[1])]
            problem = conversion[3].removeprefix("CSV conversion error to ")[:_PROBLEM_SHOWN_MAX]
            invalid = _INVALID_VALUE.match(conversion[3])
            if invalid is not None:
                problem = f"{invalid[2]!r:.80} is not a value of type {invalid[1]}"
            return bad_row(
                self._place(int(conversion[2]) - 1, file), f"column {name!r:.80}: {problem}", name
            )
        if "straddling" in text:
            return InvalidArgument(
                f"a row is longer than {BLOCK_BYTES} bytes, or a quote is never closed"
            )
        return InvalidArgument(f"not CSV: {text:.300}")

    def _place(self, row: int, file: SourceFile) -> str:
        """Say where a row is: its line, where that can be known."""
        if file.is_plain:
            return f"line {row + 1}"
        line = None if self._path is None else _line_of(self._path, self._delimiter, row)
        return f"row {row}" if line is None else f"line {line}"


def _names(head: bytes, delimiter: str) -> list[str]:
    """Return the names in the first line.

    Raises:
        InvalidArgument: There is none.
    """
    lines = io.StringIO(head[:HEADER_BYTES_MAX].decode("utf-8-sig", "replace"), newline="")
    try:
        for row in csv.reader(lines, delimiter=delimiter):
            if row:
                return row
    except csv.Error as error:
        raise InvalidArgument(f"the first line is not CSV: {error}") from None
    raise InvalidArgument("the file is empty: it should begin with the names of the columns")


def _head_file(head: bytes) -> SourceFile:
    return SourceFile(Head(head))


def _is_open(batch: pa.RecordBatch, tail: bytes) -> bool:
    """Tell whether the last value took in the end of the file, as its quote was never closed."""
    last = batch.column(batch.num_columns - 1)
    if not batch.num_rows or not pa.types.is_string(last.type) or not tail.endswith(b"\n"):
        return False
    value = last[batch.num_rows - 1].as_py()
    is_closed = tail.removesuffix(b"\n").removesuffix(b"\r").endswith(b'"')
    return value is not None and value.endswith("\n") and not is_closed


def _line_of(path: Path, delimiter: str, row: int) -> int | None:
    """Return the line at which a row begins; None where Python reads the file otherwise.

    Args:
        path: Of the file.
        delimiter: What stands between values.
        row: Counted from 1, the names not counted.
    """
    if compression_of(path) is not None:
        return None
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            reader = csv.reader(file, delimiter=delimiter)
            names = next((found for found in reader if found), [])
            begins = reader.line_num + 1
            for found in reader:
                if found or len(names) == 1:
                    row -= 1
                    if row == 0:
                        return begins
                begins = reader.line_num + 1
    except (OSError, csv.Error):
        pass
    return None


def _read_type(field: Any) -> pa.DataType:
    """Return the type by which a column's values are read, before they are cast to the topic's.

    Raises:
        SchemaMismatch: CSV has no form for them.
    """
    data_type = field.type
    if pa.types.is_timestamp(data_type):
        # Read with more digits than are kept, as what is written may have them.
        return data_type if data_type.unit == "ns" else pa.timestamp("us", data_type.tz)
    if pa.types.is_time(data_type):
        return pa.time64("ns" if str(data_type).endswith("[ns]") else "us")
    if pa.types.is_float16(data_type):
        return pa.float32()
    if pa.types.is_decimal(data_type) and data_type.precision <= DECIMAL_DIGITS_MAX:
        return pa.decimal128(data_type.precision, data_type.scale)
    is_textual = (
        pa.types.is_boolean(data_type)
        or pa.types.is_integer(data_type)
        or pa.types.is_floating(data_type)
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
