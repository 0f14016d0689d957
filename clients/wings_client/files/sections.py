"""Sections: disjoint parts of a file for several readers, which together cover all rows.

Lines belong to the section in which they begin. Section boundaries are byte positions that depend
only on the file, so independent readers agree on them. A value of CSV may contain line ends within
quotes, and lines of CSV may end with a lone carriage return: if either occurs early, the first
section is the whole file. A later occurrence is reported by the reader that finds it, as the others
cannot find or count rows after it (`may_split_values`).
"""

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

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
        first = len(_mark_of(b"".join(_blocks(path, (0, len(codecs.BOM_UTF8))))))
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


def _mark_of(head: bytes) -> bytes:
    """Return the byte order mark of UTF-8 if a file begins with it, or b""."""
    return codecs.BOM_UTF8 if head.startswith(codecs.BOM_UTF8) else b""


def names_start(head: bytes) -> int:
    """Return the start of the first line that is neither empty nor gives the delimiter."""
    place = len(_mark_of(head))
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
