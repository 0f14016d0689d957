r"""Texts of CSV: split into rows like Arrow's reader, and converted where that changes values.

A quote begins a quoted part only at the beginning of a value, and is an ordinary character
elsewhere; two quotes in a quoted part are one. Outside of quotes, `\n`, `\r\n` and `\r` end a row.

Arrow's CSV reader lets decimals overflow, reads 1e400 as infinity, and 0xFF as -1 for types of
eight bits. So columns of such types are read as texts, and converted here.
"""

import codecs
import csv
import io
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute

from wings_client.files.formats import Blank, line_ends, names_start
from wings_core.cast import Caster
from wings_core.errors import InvalidArgument, SchemaMismatch
from wings_core.json_rows.values import decimals_of
from wings_core.type_names import type_name

HEADER_BYTES_MAX = 1024 * 1024
"""Longest line of column names, in bytes."""

UNNAMED = ("\0numbers", "\0nothing")
"""Names for unnamed columns: a first one of row numbers, as written by pandas and R, and a last one
that is empty, after a delimiter at the end of each line."""

CONVERT = "give its encoding, like --encoding latin1"
"""Hint for a file with another encoding."""

_UTF_16 = CONVERT.replace("latin1", "utf-16")

pc: Any = pyarrow.compute

_DECIMAL = r"^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?$"

_INFINITY = r"(?i)^[+-]?inf(?:inity)?$"

_HEXADECIMAL = r"^0[xX]"
"""Hexadecimal integer, which Arrow reads as negative if its first bit is the sign bit."""

ZEROS = r"^\s*[+-]?0[0-9xX]"
"""Number with leading zeros or hexadecimal digits, which would be lost."""

LONG_INTEGER = r"^\s*[+-]?[0-9]{16,}\s*$"
"""Integer with more digits than a double has."""

DIGIT = r"^\s*[01]\s*$"
"""Number that would become true or false."""

_INEXACT_FLOAT = r"^\s*[+-]?(?:0[0-9xX]|[0-9]{16,}\s*$)"
"""Number of one of the first two kinds."""


@dataclass(frozen=True)
class Dialect:
    """The ASCII delimiter and quote of CSV.

    Args:
        delimiter: Character between values.
        quote: Character around values; empty for none.
    """

    delimiter: str
    quote: str

    def rows_end(self, text: bytes) -> int:
        """Return the end of the last complete row of a text that begins with a row; 0 without one.

        A carriage return at the end of the text does not end a row, as a line feed may follow.
        """
        end = len(text) - text.endswith(b"\r")
        while True:
            place = max(text.rfind(b"\n", 0, end), text.rfind(b"\r", 0, end))
            quote = self.open_quote(text, place)
            if place < 0 or quote < 0:
                return place + 1
            end = quote

    def open_quote(self, text: bytes, end: int) -> int:
        """Return the start of the quoted part left open by `text[:end]`; -1 if there is none."""
        if not self.quote or end <= 0:
            return -1
        known = self._value_end.match(text, 0, end + 1)
        closed = self._closed.match(text, 0 if known is None else known.end(), end)
        return text.find(self.quote.encode(), closed.end() if closed else 0, end)

    def row_end(self, text: bytes) -> int:
        """Return the end of the first row; that of the text for the last row of a file."""
        found = self._row.match(text)
        return len(text) if found is None else found.end()

    def count(self, text: bytes, blank: Blank) -> int:
        """Return the number of rows of a text."""
        return sum(1 for _ in self._starts(text, blank))

    def lines_before(self, text: bytes, row: int, blank: Blank) -> int:
        """Return the number of lines of a text before a row (0-based)."""
        start = next(islice(self._starts(text, blank), row, None), len(text))
        return line_ends(text, start)

    def _starts(self, text: bytes, blank: Blank) -> Iterator[int]:
        for found in self._row.finditer(text):
            if found.group() if blank is Blank.NONE else found.group().strip(b"\r\n"):
                yield found.start()

    def header(self, head: bytes) -> tuple[list[str], int] | None:
        """Return the names of the columns, and the end of their row; None if the row is incomplete.

        Raises:
            InvalidArgument: The row is not text, or not CSV.
        """
        first = names_start(head)
        text = head[first : first + HEADER_BYTES_MAX]
        end = self.row_end(text)
        if text[:end].endswith(b"\n") or (end < len(text) and text[:end].endswith(b"\r")):
            return self.names(text[:end]), first + end
        if len(text) == HEADER_BYTES_MAX:
            raise InvalidArgument(f"the first line is longer than {HEADER_BYTES_MAX} bytes")
        return None

    def names(self, line: bytes) -> list[str]:
        """Return the names in the first line; the first and last may be those of `UNNAMED`.

        Raises:
            InvalidArgument: The line is empty, or has invalid names.
        """
        if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise InvalidArgument(f"the file is UTF-16: {_UTF_16}")
        if b"\0" in line:
            raise InvalidArgument(f"there is a NUL byte in the first line: {_UTF_16}")
        if not line.strip():
            raise InvalidArgument("the file is empty: it should begin with the names of columns")
        if self.open_quote(line, len(line)) >= 0:
            raise InvalidArgument("not CSV: a quote in the first line is never closed")
        text = io.StringIO(line.decode("utf-8", "surrogateescape"), newline="")
        try:
            if self.quote:
                rows = csv.reader(text, delimiter=self.delimiter, quotechar=self.quote)
            else:
                rows = csv.reader(text, delimiter=self.delimiter, quoting=csv.QUOTE_NONE)
            return _checked(next(rows))
        except csv.Error as error:
            raise InvalidArgument(f"the first line is not CSV: {error}") from None

    # In these patterns, Q is the quote, and S the characters before and after values. Alternatives
    # begin with a character, and look behind after it: in early releases of Python 3.11 (3.11.2,
    # not 3.11.7) a possessive repeat loses its place where one fails behind an assertion.

    @cached_property
    def _value_end(self) -> re.Pattern[bytes]:
        """Matches up to the last quote that certainly ends a quoted part, or is in none.

        A delimiter follows it, and neither a delimiter nor a quote precedes it: whether or not a
        quoted part was open before, none is open after it.
        """
        return self._compiled(r"(?s:.*)Q(?<=[^SQ]Q)(?=[S])")

    @cached_property
    def _closed(self) -> re.Pattern[bytes]:
        """Matches up to an open quote, or to the end."""
        return self._compiled(rf"(?:[^Q]++|{_QUOTED}Q|Q(?<=[^S]Q))*+")

    @cached_property
    def _row(self) -> re.Pattern[bytes]:
        if not self.quote:
            return self._compiled(r"[^\r\n]*+(?:\r\n?|\n|\Z)")
        return self._compiled(rf"(?:[^\r\nQ]++|{_QUOTED}(?:Q|\Z)|Q(?<=[^S]Q))*+(?:\r\n?|\n|\Z)")

    def _compiled(self, pattern: str) -> re.Pattern[bytes]:
        marks = {"Q": re.escape(self.quote), "S": re.escape(self.delimiter) + r"\r\n"}
        return re.compile(re.sub("[QS]", lambda found: marks[found[0]], pattern).encode())


_QUOTED = "Q(?<![^S]Q)[^Q]*+(?:QQ[^Q]*+)*+"
"""Pattern of a quoted part without its closing quote."""


def _checked(names: list[str]) -> list[str]:
    for index, name in enumerate(names):
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(f"the first line is not UTF-8: {CONVERT}") from None
        if not name and 0 < index < len(names) - 1:
            raise InvalidArgument(
                f"column {index + 1} has no name in the first line: give it one, or leave it out"
            )
        if name and name in names[:index]:
            raise InvalidArgument(
                f"columns {names.index(name) + 1} and {index + 1} are both named {name!r:.80} in "
                "the first line: rename one"
            )
    ends = dict.fromkeys([0, len(names) - 1])
    unnamed = {end: name for end, name in zip(ends, UNNAMED, strict=False) if not names[end]}
    return [unnamed.get(index, name) for index, name in enumerate(names)]


def is_text(data_type: pa.DataType) -> bool:
    """Return whether a type is read as text for `CsvCaster` to convert."""
    return (
        pa.types.is_decimal(data_type)
        or pa.types.is_boolean(data_type)
        or pa.types.is_floating(data_type)
        or pa.types.is_signed_integer(data_type)
    )


class CsvCaster:
    """A cast of batches of Arrow's CSV reader to a topic's schema.

    Args:
        read: Schema of the reader's batches.
        schema: The topic's schema.
        exact: Columns that reject values whose text would change.

    Raises:
        SchemaMismatch: The columns are not the topic's.
    """

    def __init__(self, read: pa.Schema, schema: pa.Schema, exact: Set[str] = frozenset()) -> None:
        self._exact = exact
        types = dict(zip(schema.names, schema.types, strict=True))
        self._texts: Mapping[int, pa.DataType] = {
            index: types[name]
            for index, name in enumerate(read.names)
            if name in types and is_text(types[name])
        }
        fields = [read.field(index) for index in range(len(read))]
        for index, data_type in self._texts.items():
            fields[index] = fields[index].with_type(data_type)
        self._schema = pa.schema(fields)
        self._caster = Caster(self._schema, schema)

    def cast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the topic's schema.

        Raises:
            SchemaMismatch: A value is not of its column's type; fact `column`. The message shows
                the first such value.
        """
        columns: list[Any] = list(batch.columns)
        for index, data_type in self._texts.items():
            texts = columns[index]
            name = batch.schema.names[index]
            told = f"column {name!r:.80}: {_first(texts)!r:.80}"
            try:
                columns[index] = values_of(pc.ascii_trim_whitespace(texts), data_type)
            except (pa.ArrowException, ValueError):
                raise SchemaMismatch(
                    f"{told} is not a value of type {type_name(data_type):.80}", column=name
                ) from None
            if name in self._exact and _changes(texts, columns[index]):
                raise SchemaMismatch(f"{told} would be {_first(columns[index])}", column=name)
        return self._caster.cast(pa.RecordBatch.from_arrays(columns, schema=self._schema))


def not_of_type(text: str, name: str, said: str) -> str:
    """Describe why a text is not a value of a type.

    Args:
        text: The text.
        name: Name of the type.
        said: Arrow's message.
    """
    if "expected a zone offset" in said:
        return f"{text!r:.80} has no time zone, like the Z of 2026-11-20T12:00:00Z ({name:.80})"
    if "expected no zone offset" in said:
        return f"{text!r:.80} has a time zone, and the column has none ({name:.80})"
    return f"{text!r:.80} is not a value of type {name:.80}"


def values_of(texts: Any, data_type: pa.DataType) -> Any:
    """Parse texts as values of any type that Arrow parses.

    Raises:
        ArrowException, ValueError: A text is not a value of the type.
    """
    if pa.types.is_decimal(data_type):
        _refuse(texts, pc.invert(pc.match_substring_regex(texts, _DECIMAL)))
        return decimals_of(texts, data_type)
    values = texts.cast(data_type)
    if pa.types.is_floating(data_type):
        # There is no such kernel for half floats.
        infinite = pc.is_inf(values.cast(pa.float64()))
        if infinite.true_count:
            named = pc.match_substring_regex(texts, _INFINITY)
            _refuse(texts, pc.and_not(infinite, named))
    elif pa.types.is_signed_integer(data_type):
        negative = pc.less(values, 0)
        if negative.true_count:
            _refuse(texts, pc.and_(negative, pc.match_substring_regex(texts, _HEXADECIMAL)))
    return values


def _first(column: Any) -> Any:
    return column[0].as_py() if len(column) else None


def _changes(texts: Any, values: Any) -> bool:
    """Return whether the text of a value would change."""
    if pa.types.is_boolean(values.type):
        pattern = DIGIT
    elif pa.types.is_floating(values.type):
        pattern = _INEXACT_FLOAT
    else:
        # Most do not change; only the others need to be matched.
        texts = texts.filter(pc.not_equal(values.cast(pa.string()), texts))
        pattern = ZEROS
    return bool(pc.any(pc.match_substring_regex(texts, pattern)).as_py())


def _refuse(texts: Any, bad: Any) -> None:
    if bad.true_count:
        raise ValueError(f"{texts.filter(bad)[0]} does not fit")
