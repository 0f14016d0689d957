"""Reading a file, a compressed file or standard input, in blocks, of bytes or of whole rows."""

import codecs
import io
import os
import re
import select
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self

import pyarrow as pa

from wings_client.files.formats import Blank, Range, compression_of, line_ends, lines_in, rows_in
from wings_client.files.parts import bad_row
from wings_core.errors import InvalidArgument

arrow: Any = pa

BLOCK_BYTES = 4 * 1024 * 1024
"""Bytes read at a time; the rows of a block are pushed before the next is read."""

ROW_BYTES_MAX = 64 * 1024 * 1024
"""Longest row, the server's limit."""

HEAD_BYTES = 16 * 1024 * 1024
"""Bytes from which types are inferred, at the start of a file."""

SAMPLES = 16
"""Further positions of a larger file that types are inferred from, if it can be read twice."""

SAMPLE_BYTES = 512 * 1024
"""Bytes read at each of these positions."""

QUIET_SECONDS = 0.05
"""Pause of a pipe that ends the current block."""

HEAD_QUIET_SECONDS = 1.0
"""Pause of a pipe that ends the head."""


class Source:
    """The bytes of a file in blocks; `head` reads ahead without consuming.

    A block of a pipe ends early when the pipe pauses, so rows are pushed as they come.

    Args:
        path: Path of a file; None for standard input.
        encoding: Encoding of text, which is transcoded to UTF-8; None to pass bytes through.
        ranges: Byte ranges of a local file to read, in order, as if they were the whole file; None
            for the whole file.
        is_alone: Whether the file has no bytes outside of the ranges.
        name: Name in errors; None for the path.

    Attributes:
        name: Name in errors.
        size: Size in bytes; None if unknown.
        position: Bytes read so far; a reader that bypasses the source sets it.
        encoding: Encoding of text, or None.
        is_plain: Whether the source is an uncompressed local file, which can be mapped.
        ranges: Byte ranges, or None.
    """

    def __init__(
        self,
        path: Path | None,
        encoding: str | None = None,
        ranges: Sequence[Range] | None = None,
        *,
        is_alone: bool = False,
        name: str | None = None,
    ) -> None:
        self.name = name or ("standard input" if path is None else str(path))
        self.encoding = encoding
        self.ranges = ranges
        self._path = path
        self._is_alone = is_alone
        self._unread: list[Range] = [] if ranges is None else list(ranges)
        self.size: int | None = None
        self.position = 0
        self._head: bytes | None = None
        self._head_read = 0
        self._ended = False
        self._compressed: Any = None
        self._decoder = None if encoding is None else codecs.getincrementaldecoder(encoding)()
        self._decoded = b""
        """Bytes read ahead."""
        if path is None:
            self._file: io.FileIO = io.FileIO(sys.stdin.fileno(), closefd=False)
        else:
            self._file = io.FileIO(path)
            status = os.fstat(self._file.fileno())
            if status.st_size:
                self.size = status.st_size
            compression = compression_of(path)
            if compression is not None:
                self._compressed = arrow.CompressedInputStream(self._file, compression)
        self._is_pipe = not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)
        self.is_plain = path is not None and not self._is_pipe and self._compressed is None
        if ranges is not None:
            assert self.is_plain, "ranges need a local file"
            self.is_plain = False
            self.size = sum(end - first for first, end in ranges)

    def head(self) -> bytes:
        """Return the first unread bytes, initially about `HEAD_BYTES`.

        `read` returns them again.
        """
        if self._head is None:
            self._head = self._read(HEAD_BYTES, HEAD_QUIET_SECONDS)
        return self._head[self._head_read :]

    def grow_head(self) -> None:
        """Extend the head; blocks until there are more bytes."""
        self._head = self.head() + self._read(BLOCK_BYTES, QUIET_SECONDS)
        self._head_read = 0

    def read(self, bytes_max: int | None = None) -> bytes:
        """Return the next block, at most `BLOCK_BYTES` by default; empty at the end.

        Blocks until there are bytes.

        Raises:
            InvalidArgument: Compressed data is damaged.
        """
        bytes_max = bytes_max or BLOCK_BYTES
        if self._head:
            block = self._head[self._head_read : self._head_read + bytes_max]
            self._head_read += len(block)
            if self._head_read == len(self._head):
                self._head = b""
                self._head_read = 0
            return block
        self._head = b""
        return self._read(bytes_max, QUIET_SECONDS)

    def copied(self) -> Any:
        """Return a memory map of a temporary file with all unread bytes.

        Blocks until the source ends. Threads of Arrow that still hold a Python file when the
        interpreter ends abort the process, so this is none.
        """
        with TemporaryFile() as copy:
            while block := self.read():
                copy.write(block)
            copy.flush()
            return arrow.memory_map(f"/dev/fd/{copy.fileno()}")

    def samples(self, *, in_quotes: bool) -> list[tuple[int, bytes]]:
        """Return whole lines from positions spread over the rest of a file, including its end.

        Reads the file up to its end; `read` is not affected.

        Args:
            in_quotes: Whether to ignore line ends within quotes.

        Returns:
            The number of the first line (from 1) and the lines at each position; empty if the file
            cannot be read twice, or is completely in the head.
        """
        if self._path is None or not self.is_plain or self.encoding or self.size is None:
            return []
        if self.size <= HEAD_BYTES:
            return []
        step = (self.size - HEAD_BYTES) / SAMPLES
        places = [HEAD_BYTES + int(step * index) for index in range(SAMPLES - 1)]
        places.append(self.size - SAMPLE_BYTES)
        found: list[tuple[int, bytes]] = []
        with self._path.open("rb") as file:
            place = lines = quotes = 0
            for wanted in places:
                while place < wanted:
                    block = file.read(min(BLOCK_BYTES, wanted - place))
                    if not block:
                        return found
                    place += len(block)
                    lines += block.count(b"\n")
                    quotes += block.count(b'"') if in_quotes else 0
                block = file.read(SAMPLE_BYTES)
                first, end = whole_lines(block, is_open=quotes % 2 == 1, in_quotes=in_quotes)
                if end > first:
                    found.append((lines + block.count(b"\n", 0, first) + 1, block[first:end]))
                file.seek(place)
        return found

    def row(self, number: int) -> str:
        """Return the position text of a row by its number, from 1."""
        return f"{self.name}: row {number}"

    def line(self, number: int) -> str:
        """Return the position text of a line by its number (from 1) among those read."""
        if not self.ranges or self._path is None:
            return f"{self.name}:{number}"
        first = self.ranges[-1][0]
        before = sum(lines_in(self._path, each) for each in self.ranges[:-1])
        if self._is_alone:
            return f"{self.name}: line {number - before} after byte {first}"
        return f"{self.name}:{number - before + lines_in(self._path, (0, first))}"

    def rows_before(self, blank: Blank) -> int:
        """Return how many rows precede the last range; reads the file up to it."""
        if not self.ranges or self._path is None:
            return 0
        *names, (first, _) = self.ranges
        return rows_in(self._path, (names[0][1] if names else 0, first), blank)

    @property
    def begins_within(self) -> bool:
        """Whether the first range begins after the start of the file."""
        return bool(self.ranges) and self.ranges[0][0] > 0

    @property
    def head_is_all(self) -> bool:
        """Whether the file is known to end with the head."""
        return self._head is not None and self._ended

    @property
    def ended(self) -> bool:
        """Whether the last block is known to be read; otherwise an empty one may follow."""
        return self._ended and not self._head

    def close(self) -> None:
        """Close the file."""
        if self._compressed is not None:
            self._compressed.close()
        self._file.close()

    def __enter__(self) -> Self:
        """Return the source."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.close()

    def _read(self, bytes_max: int, quiet: float) -> bytes:
        blocks: list[bytes] = []
        left = bytes_max
        while left > 0:
            if blocks and self._is_pipe and not self._has_more(quiet):
                break
            block = self._read_text(left) if self._decoder else self._read_some(left)
            if not block:
                self._ended = True
                break
            blocks.append(block)
            left -= len(block)
        return b"".join(blocks)

    def _read_text(self, bytes_max: int) -> bytes:
        """Return the next bytes as UTF-8; empty at the end."""
        assert self._decoder is not None
        while not self._decoded:
            block = self._read_some(BLOCK_BYTES)
            try:
                self._decoded = self._decoder.decode(block, final=not block).encode()
            except UnicodeError as error:
                raise InvalidArgument(
                    f"not {self.encoding}, near byte {self.position}: {error!s:.100}"
                ) from None
            if not block:
                break
        found, self._decoded = self._decoded[:bytes_max], self._decoded[bytes_max:]
        return found

    def _read_some(self, bytes_max: int) -> bytes:
        if self.ranges is not None:
            return self._read_ranges(bytes_max)
        if self._compressed is None:
            block = self._file.read(bytes_max) or b""
            self.position += len(block)
            return block
        try:
            block = self._compressed.read(bytes_max)
        except OSError as error:
            raise InvalidArgument(f"the compressed data is damaged: {error!s:.200}") from None
        self.position = self._file.tell() if not self._is_pipe else 0
        return block

    def _read_ranges(self, bytes_max: int) -> bytes:
        while self._unread:
            first, end = self._unread[0]
            self._file.seek(first)
            block = self._file.read(min(bytes_max, end - first)) or b""
            if first + len(block) < end and block:
                self._unread[0] = (first + len(block), end)
            else:
                del self._unread[0]
            if block:
                self.position += len(block)
                return block
        return b""

    def _has_more(self, seconds: float) -> bool:
        if self._decoded:
            return True
        if os.name == "nt":
            return True  # Windows can only wait for sockets, so a read blocks until there is more.
        ready, _, _ = select.select([self._file], [], [], seconds)
        return bool(ready)


def row_blocks(
    source: Source, rows_end: Callable[[bytes], int], first: int = 1
) -> Iterator[tuple[bytes, int]]:
    """Yield blocks of whole rows, and the number of the first line of each.

    Complete rows of a pipe are yielded when it pauses. Blocks until there are rows.

    Args:
        source: The source, read to its end.
        rows_end: Returns the end of the last complete row of a text; 0 without one.
        first: Number of the first line.

    Raises:
        SchemaMismatch: A row is longer than `ROW_BYTES_MAX`.
        InvalidArgument: The source is damaged.
    """
    rest = b""
    marked = first == 1 and not source.begins_within
    while not source.ended:
        text = rest + source.read()
        if marked and len(text) >= len(codecs.BOM_UTF8):
            text = text.removeprefix(codecs.BOM_UTF8)
            marked = False
        end = len(text) if source.ended else rows_end(text)
        rest = text[end:]
        if len(rest) > ROW_BYTES_MAX:
            line = source.line(first + line_ends(text, end))
            raise bad_row(line, f"longer than {ROW_BYTES_MAX} bytes, or a quote is never closed")
        if end:
            yield text[:end], first
            first += line_ends(text, end)


def whole_lines(block: bytes, *, is_open: bool, in_quotes: bool) -> tuple[int, int]:
    """Return the start of the first line that begins in a block, and the end of the last one."""
    ends: list[int] = []
    for found in re.finditer(rb'[\n"]' if in_quotes else rb"\n", block):
        if found.group() == b'"':
            is_open = not is_open
        elif not is_open:
            ends.append(found.end())
    return (ends[0], ends[-1]) if ends else (0, 0)
