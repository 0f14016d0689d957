"""Bytes of a file, a compressed file or standard input, block by block."""

import io
import os
import select
import stat
import sys
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from wings_client.cli.files.formats import compression_of
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

    Attributes:
        size: In bytes; None where it is not known.
        position: How much of that was read.
    """

    def __init__(self, path: Path | None) -> None:
        self.size: int | None = None
        self.position = 0
        self._head: bytes | None = None
        self._ended = False
        self._compressed: Any = None
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
            block = self._read_some(left)
            if not block:
                self._ended = True
                break
            blocks.append(block)
            left -= len(block)
        return b"".join(blocks)

    def _read_some(self, bytes_max: int) -> bytes:
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

    def _has_more(self, seconds: float) -> bool:
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

    Attributes:
        tail: The last bytes that were read.
        is_plain: Whether there was neither a quote nor an empty line, so rows are lines.
    """

    TAIL_BYTES = 4

    def __init__(self, source: Source | Head) -> None:
        super().__init__()
        self._source = source
        self.tail = b""
        self.is_plain = True

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, as `Source.read`."""
        block = self._source.read(BLOCK_BYTES if size < 0 else size)
        seen = self.tail + block
        self.is_plain = self.is_plain and not any(
            special in seen for special in (b'"', b"\n\n", b"\n\r\n")
        )
        self.tail = seen[-self.TAIL_BYTES :]
        return block
