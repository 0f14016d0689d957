"""Bytes of a file, a compressed file or standard input, block by block."""

import codecs
import io
import os
import select
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from wings_client.files.formats import compression_of
from wings_client.files.sections import Range, lines_in
from wings_core.errors import InvalidArgument

arrow: Any = pa

BLOCK_BYTES = 4 * 1024 * 1024
"""How much is read at a time; what is made of one block is pushed before the next is read."""

HEAD_BYTES = 16 * 1024 * 1024
"""How much is looked at to infer types."""

QUIET_SECONDS = 0.05
"""A pipe that is quiet for so long has said what it had to say for now."""

HEAD_QUIET_SECONDS = 1.0
"""The same while its head is read."""


class Source:
    """What is read, in blocks, the first of which can be looked at beforehand.

    A block of a pipe ends early where the pipe pauses, so rows are pushed as they come.

    Args:
        path: Of a file; None for standard input.
        encoding: Of the text that it is, which is read as UTF-8 then; None: bytes as they are.
        ranges: Of the bytes of a file on a disk that are read, in order, as if they were all; None:
            all of them.
        is_alone: Whether the file has no other bytes than those.

    Attributes:
        size: In bytes; None where it is not known.
        position: How much of that was read; whoever reads the file otherwise keeps it.
        encoding: As it was given.
        is_plain: Whether it is a file on a disk, not compressed, which can be mapped.
        ranges: As they were given.
    """

    def __init__(
        self,
        path: Path | None,
        encoding: str | None = None,
        ranges: Sequence[Range] | None = None,
        *,
        is_alone: bool = False,
    ) -> None:
        self.encoding = encoding
        self.ranges = ranges
        self._path = path
        self._is_alone = is_alone
        self._unread: list[Range] = [] if ranges is None else list(ranges)
        self.size: int | None = None
        self.position = 0
        self._head: bytes | None = None
        self._ended = False
        self._compressed: Any = None
        self._decoder = None if encoding is None else codecs.getincrementaldecoder(encoding)()
        self._decoded = b""
        """What is more than was asked for."""
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
            assert self.is_plain, "only bytes of a file on a disk can be chosen"
            self.is_plain = False
            self.size = sum(end - first for first, end in ranges)

    def head(self) -> bytes:
        """Return what comes first, up to `HEAD_BYTES`; it is read again later."""
        if self._head is None:
            self._head = self._read(HEAD_BYTES, HEAD_QUIET_SECONDS)
        return self._head

    def read(self, bytes_max: int = BLOCK_BYTES) -> bytes:
        """Return the next block; empty at the end. Blocks until there is something.

        Raises:
            InvalidArgument: What is compressed is damaged.
        """
        if self._head:
            block, self._head = self._head[:bytes_max], self._head[bytes_max:]
            return block
        self._head = b""
        return self._read(bytes_max, QUIET_SECONDS)

    def line(self, number: int) -> str:
        """Say where a line is, by its number from 1 among those that are read."""
        if not self.ranges or self._path is None:
            return f"line {number}"
        first = self.ranges[-1][0]
        before = sum(lines_in(self._path, each) for each in self.ranges[:-1])
        if self._is_alone:
            return f"line {number - before} after byte {first}"
        return f"line {number - before + lines_in(self._path, (0, first))}"

    @property
    def begins_within(self) -> bool:
        """Whether what is read begins within the file."""
        return bool(self.ranges) and self.ranges[0][0] > 0

    @property
    def head_is_all(self) -> bool:
        """Whether nothing follows the head, as far as it is known."""
        self.head()
        return self._ended

    @property
    def ended(self) -> bool:
        """Whether the last block was read, as far as it is known; else an empty one follows."""
        return self._ended and not self._head

    def close(self) -> None:
        """Close the file."""
        if self._compressed is not None:
            self._compressed.close()
        self._file.close()

    def __enter__(self) -> Self:
        """Return the source itself."""
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
        ready, _, _ = select.select([self._file], [], [], seconds)
        return bool(ready)


class Head:
    """Bytes that are there already, to be read like a source."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, bytes_max: int = BLOCK_BYTES) -> bytes:
        """Return the next block; empty at the end."""
        block, self._data = self._data[:bytes_max], self._data[bytes_max:]
        return block


class SourceFile(io.RawIOBase):
    """A source as a file, for readers that want one.

    A read is short at the end of the source alone, as readers take a short one for the end.

    Args:
        source: What is read.
    """

    def __init__(self, source: Source | Head) -> None:
        super().__init__()
        self._source = source

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes; blocks until all that are asked for are there, or the end is."""
        blocks: list[bytes] = []
        left = BLOCK_BYTES if size < 0 else size
        while left > 0 and (block := self._source.read(left)):
            blocks.append(block)
            left -= len(block)
            if self._may_end(block):
                break
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    def _may_end(self, block: bytes) -> bool:
        """Tell whether a read may be short by what follows this block."""
        del block
        return False


class CsvFile(SourceFile):
    """A source of CSV as a file; where a pipe pauses between rows, a read ends there.

    Attributes:
        tail: The last bytes that were read.
        is_plain: Whether there was neither a quote nor an empty line, so rows are lines.
    """

    TAIL_BYTES = 4

    def __init__(self, source: Source | Head) -> None:
        super().__init__(source)
        self.tail = b""
        self.is_plain = True
        self._in_quotes = False

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, up to where the source pauses between two rows."""
        block = super().read(size)
        seen = self.tail + block
        self.is_plain = self.is_plain and not any(
            special in seen for special in (b'"', b"\n\n", b"\n\r\n")
        )
        self.tail = seen[-self.TAIL_BYTES :]
        return block

    def _may_end(self, block: bytes) -> bool:
        # Arrow takes no row that is spread over more than two reads.
        self._in_quotes ^= block.count(b'"') % 2 == 1
        return block.endswith(b"\n") and not self._in_quotes
