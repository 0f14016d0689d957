"""Rows on their way between processes: IPC streams in pipes, and the conditions of scans."""

import contextlib
import fcntl
import os
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

PIPE_BYTES = 1 << 20
"""Bytes that a pipe holds, where the kernel lets it."""

_READ_BYTES = 1 << 16


def open_pipe() -> tuple[int, int]:
    """Return the descriptors of a pipe's ends: the one to read from, and the one to write to."""
    read, write = os.pipe()
    set_size = getattr(fcntl, "F_SETPIPE_SZ", None)
    if set_size is not None:
        with contextlib.suppress(OSError):  # The user's pipes are large enough together.
            fcntl.fcntl(write, set_size, PIPE_BYTES)
    return read, write


def reader_of(descriptor: int) -> pa.RecordBatchReader:
    """Return the rows that come through a pipe, which is closed with the reader."""
    return pa.ipc.open_stream(cast("Any", os.fdopen(descriptor, "rb", buffering=_READ_BYTES)))


def writer_to(descriptor: int, schema: pa.Schema) -> pa.RecordBatchStreamWriter:
    """Return what writes rows to a pipe, which its owner closes afterwards."""
    return pa.ipc.new_stream(pa.PythonFile(cast("Any", _Pipe(descriptor)), "w"), schema)


class _Pipe:
    """The file of an IPC writer: each buffer goes to a pipe whole, without a copy.

    Args:
        descriptor: Of the end to write to; closed by the caller.
    """

    closed = False

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._place = 0

    def writable(self) -> bool:
        """Tell Arrow so."""
        return True

    def write(self, data: "bytes | pa.Buffer") -> int:
        """Write all of it; blocks while the pipe is full."""
        view = memoryview(data)
        size = view.nbytes
        while view:
            view = view[os.write(self._descriptor, view) :]
        self._place += size
        return size

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self._place

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """The caller closes the descriptor."""


def serialized(expression: pc.Expression | None) -> bytes:
    """Return a condition of Arrow as bytes; none of no condition."""
    if expression is None:
        return b""
    # The form in which Arrow pickles it.
    return bytes(cast("Any", expression).__reduce__()[1][0])


def expression_of(raw: bytes) -> pc.Expression:
    """Return the condition that `serialized` returned as bytes."""
    return cast("Any", pc.Expression)._deserialize(pa.py_buffer(raw))
