"""Formats of files, found by name or first bytes, and sections of a file for several readers.

Lines belong to the section in which they begin. Section boundaries are byte positions that depend
only on the file, so independent readers agree on them. A value of CSV may contain line ends within
quotes, and lines of CSV may end with a lone carriage return: if either occurs early, the first
section is the whole file. A later occurrence is reported by the reader that finds it, as the others
cannot find or count rows after it (`may_split_values`).
"""

import codecs
import csv
import io
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, StrEnum
from itertools import islice
from pathlib import Path, PurePath
from typing import Protocol

from wings_core.errors import InvalidArgument

Range = tuple[int, int]
"""A range of bytes: start, and end (exclusive)."""

SAMPLE_BYTES = 1024 * 1024
"""Bytes of CSV after the names in which a quote or lone carriage return means one section."""

NAMES_BYTES_MAX = 1024 * 1024
"""Longest line of CSV's names, in bytes."""

BLOCK_BYTES = 4 * 1024 * 1024

_LINE_BYTES = 64 * 1024
"""Bytes read at a time in search of a line end."""

_QUOTE = b'"'

_LINE_END = re.compile(rb"\r\n?|\n")

SEPARATOR_LINE = re.compile(rb'"?[sS][eE][pP]=([\x20-\x7e\t])"?(?:\r\n?|\n)')
"""First line that gives the delimiter, read by Excel, and written by it in some countries."""

_LONE_RETURN = re.compile(rb"\r[^\n]")

_MAY_BE_BLANK = (b"\n\n", b"\n\r", b"\n ", b"\n\t", b"\n\x0b", b"\n\x0c")
"""Beginnings of possibly blank lines, after a line end."""


class FileFormat(StrEnum):
    """The format of a file of rows."""

    JSONL = "jsonl"
    """One object per line."""
    JSON = "json"
    """An array of objects, or consecutive objects."""
    CSV = "csv"
    """Comma-separated values, with names in the first line."""
    PARQUET = "parquet"
    ARROW = "arrow"
    """Arrow IPC, of either kind: file or stream."""
    ORC = "orc"


COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
"""Compressions by the last suffix of a name, which may follow that of the format."""

_BY_ENDING = {
    ".jsonl": FileFormat.JSONL,
    ".ndjson": FileFormat.JSONL,
    ".geojsonl": FileFormat.JSONL,
    ".json": FileFormat.JSON,
    ".geojson": FileFormat.JSON,
    ".csv": FileFormat.CSV,
    ".tsv": FileFormat.CSV,
    ".parquet": FileFormat.PARQUET,
    ".pq": FileFormat.PARQUET,
    ".arrow": FileFormat.ARROW,
    ".arrows": FileFormat.ARROW,
    ".feather": FileFormat.ARROW,
    ".ipc": FileFormat.ARROW,
    ".orc": FileFormat.ORC,
}

DELIMITERS = (",", ";", "\t", "|")
"""Delimiters that are detected."""

DELIMITER_BYTES = 1024 * 1024
"""Bytes at the start of a file used to detect the delimiter."""

DELIMITER_LINES = 20
"""Lines after the names used to detect the delimiter."""

ARROW_FILE = b"ARROW1"
PARQUET = b"PAR1"
_ORC = b"ORC"
_ARROW_STREAM = b"\xff\xff\xff\xff"
_AVRO = b"Obj\x01"

_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh91AY&SY": "bz2",
    b"\xfd7zXZ\x00": "xz",
    b"PK\x03\x04": "zip",
}


def compression_of(path: PurePath) -> str | None:
    """Return the compression by a file's suffix; None without one."""
    return COMPRESSIONS.get(path.suffix.lower())


def format_by_name(path: PurePath) -> FileFormat | None:
    """Return the format by a file's suffix, ignoring that of a compression; None if unknown."""
    if compression_of(path) is not None:
        path = path.with_suffix("")
    return _BY_ENDING.get(path.suffix.lower())


def check_uncompressed(head: bytes) -> None:
    """Check that the first bytes of a file without a compression's suffix are not compressed.

    Raises:
        InvalidArgument: The bytes are compressed.
    """
    for magic, name in _COMPRESSED.items():
        if head.startswith(magic):
            endings = [ending for ending, found in COMPRESSIONS.items() if found == name]
            hint = f"name it {endings[0]}, or decompress it" if endings else "decompress it"
            raise InvalidArgument(f"the file is compressed, by {name}: {hint} before it is read")


def format_by_content(head: bytes) -> FileFormat:
    """Return the format that the first bytes indicate.

    Raises:
        InvalidArgument: The bytes match no format (fact `argument` is `format`), or are Avro.
    """
    if head.startswith((ARROW_FILE, _ARROW_STREAM)):
        return FileFormat.ARROW
    if head.startswith(PARQUET):
        return FileFormat.PARQUET
    if head.startswith(_ORC):
        return FileFormat.ORC
    if head.startswith(_AVRO):
        raise InvalidArgument(
            "Avro is not supported, as pyarrow cannot read it: convert it to Parquet, or push its "
            "rows with a program"
        )
    text = head.removeprefix(codecs.BOM_UTF8).lstrip()
    if text.startswith(b"{"):
        first, _, rest = text.partition(b"\n")
        is_spread = not first.rstrip().endswith(b"}") and rest.lstrip()[:1] not in (b"", b"{")
        return FileFormat.JSON if is_spread else FileFormat.JSONL
    if text.startswith(b"["):
        return FileFormat.JSON
    if delimiter_of(head) is not None:
        return FileFormat.CSV
    raise InvalidArgument(f"unknown format; give one of {', '.join(FileFormat)}", argument="format")


def told_delimiter(head: bytes) -> str | None:
    """Return the delimiter given by a first line like `sep=;`; None without one."""
    told = SEPARATOR_LINE.match(head.removeprefix(codecs.BOM_UTF8))
    return None if told is None else told[1].decode()


def delimiter_of(head: bytes) -> str | None:
    """Return the delimiter of CSV, given by the first line or detected from the first lines.

    A detected one is in `DELIMITERS`; the first lines have as many values as names, and no name has
    a comma. None if there is none.
    """
    told = told_delimiter(head)
    if told is not None:
        return told
    text = head[:DELIMITER_BYTES].decode("utf-8-sig", "replace")
    for delimiter in DELIMITERS:
        lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        rows: list[list[str]] = []
        with suppress(csv.Error):
            rows += islice((row for row in lines if row), DELIMITER_LINES + 1)
        is_table = len(rows) > 1 and len(rows[0]) > 1 and len({len(row) for row in rows}) == 1
        if is_table and (delimiter == "," or not any("," in name for name in rows[0])):
            return delimiter
    return None


@dataclass(frozen=True, slots=True)
class Section:
    """One of several sections, counted from 0."""

    index: int
    count: int
    is_alone: bool = False
    """Whether the file has only the bytes of this section."""

    def of(self, total: int) -> Range:
        """Return the part of `range(total)` that belongs to this section."""
        return total * self.index // self.count, total * (self.index + 1) // self.count


class Blank(Enum):
    """Kinds of lines that are not rows."""

    NONE = "none"
    EMPTY = "empty"
    SPACES = "spaces"
    """Lines of only white space."""


class Readable(Protocol):
    """A file that can be read from any position."""

    def seek(self, offset: int, /) -> object:
        """Set the position, in bytes."""
        ...

    def read(self, size: int, /) -> bytes:
        """Return `size` bytes from the position on, fewer at the end."""
        ...


def line_ranges(file: Readable, size: int, section: Section) -> tuple[Range, ...]:
    """Return the byte ranges of a section of a file of lines.

    Args:
        file: The file.
        size: Size of the file in bytes.
        section: The section.
    """
    return (_cut(file, section, 0, size),)


def csv_ranges(file: Readable, size: int, section: Section) -> tuple[Range, ...]:
    """Return the byte ranges of a section of CSV: names and lines; see `line_ranges`.

    If a quote or a lone carriage return occurs early, the first section has all lines.
    """
    file.seek(0)
    names = names_end(file.read(NAMES_BYTES_MAX))
    file.seek(names)
    sample = file.read(SAMPLE_BYTES)
    if _QUOTE in sample or _LONE_RETURN.search(sample) is not None:
        lines = (names if section.index == 0 else size, size)
    else:
        lines = _cut(file, section, names, size)
    return ((0, names), lines)


def may_split_names(path: Path, of: Range) -> bool:
    """Return whether the names of CSV may continue after these bytes.

    A quote may be open at the end of their line, or the line may not end.
    """
    names = b"".join(_blocks(path, of))
    return names.count(_QUOTE) % 2 == 1 or not names.endswith((b"\n", b"\r"))


def may_split_values(path: Path, of: Range) -> bool:
    """Return whether bytes contain a quote, or a carriage return that ends a line."""
    last = b""
    for block in _blocks(path, of):
        text = last + block
        last = b"\r" if block.endswith(b"\r") else b""
        returns = text.count(b"\r") - len(last)
        if _QUOTE in block or returns != text.count(b"\r\n"):
            return True
    return bool(last)


def lines_in(path: Path, of: Range) -> int:
    """Return the number of line ends in a byte range."""
    return sum(block.count(b"\n") for block in _blocks(path, of))


def rows_in(path: Path, of: Range, blank: Blank) -> int:
    """Return the number of rows in a byte range of whole lines.

    Args:
        path: Path of the file.
        of: The byte range.
        blank: The kind of lines that are not rows.
    """
    rows = 0
    rest = b"\n"  # The range begins after a line end.
    first, end = of
    if first == 0:
        first = _mark_end(b"".join(_blocks(path, (0, len(codecs.BOM_UTF8)))))
    for block in _blocks(path, (first, end)):
        text = rest + block
        cut = text.rfind(b"\n")
        rest = text[cut:]
        if cut == 0:
            continue
        rows += text.count(b"\n", 1)
        if blank is not Blank.NONE and any(start in text for start in _MAY_BE_BLANK):
            rows -= sum(_is_blank(line, blank) for line in text[1:cut].split(b"\n"))
    return rows


def _is_blank(line: bytes, blank: Blank) -> bool:
    return not (line.strip() if blank is Blank.SPACES else line.rstrip(b"\r"))


def _mark_end(head: bytes) -> int:
    """Return the end of the byte order mark of UTF-8 with which a file begins; 0 without one."""
    return len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0


def names_start(head: bytes) -> int:
    """Return the start of the first line that is neither empty nor gives the delimiter."""
    place = _mark_end(head)
    told = SEPARATOR_LINE.match(head, place)
    if told is not None:
        place = told.end()
    for line_end in _LINE_END.finditer(head, place):
        if head[place : line_end.start()].strip():
            break
        place = line_end.end()
    return place


def names_end(head: bytes) -> int:
    """Return the end of the line at `names_start`, ignoring quotes."""
    line_end = _LINE_END.search(head, names_start(head))
    return len(head) if line_end is None else line_end.end()


def line_ends(text: bytes, end: int | None = None) -> int:
    """Return the number of line ends in `text[:end]`; carriage returns if it has no line feeds."""
    return text.count(b"\n", 0, end) or text.count(b"\r", 0, end)


def _cut(file: Readable, section: Section, start: int, size: int) -> Range:
    first, end = section.of(size - start)
    return _line_at(file, start, start + first, size), _line_at(file, start, start + end, size)


def _line_at(file: Readable, start: int, place: int, size: int) -> int:
    """Return the start of the first line at or after a position."""
    if place <= start:
        return start
    place -= 1
    while place < size:
        file.seek(place)
        block = file.read(_LINE_BYTES)
        end = block.find(b"\n")
        if end >= 0:
            return place + end + 1
        if not block:
            break
        place += len(block)
    return size


def _blocks(path: Path, of: Range) -> Iterator[bytes]:
    place, end = of
    with path.open("rb") as file:
        file.seek(place)
        while place < end and (block := file.read(min(BLOCK_BYTES, end - place))):
            yield block
            place += len(block)
