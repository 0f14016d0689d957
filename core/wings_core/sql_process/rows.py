"""Transfer of rows between processes: IPC streams in pipes, and serialized scan conditions."""

import contextlib
import fcntl
import os
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

PIPE_BYTES = 1 << 20
"""Capacity of a pipe in bytes, where the kernel permits it."""

_READ_BYTES = 1 << 16


def open_pipe() -> tuple[int, int]:
    """Create a pipe; returns the descriptors to read from and to write to."""
    read, write = os.pipe()
    set_size = getattr(fcntl, "F_SETPIPE_SZ", None)
    if set_size is not None:
        with contextlib.suppress(OSError):  # The user's total for pipes is used up.
            fcntl.fcntl(write, set_size, PIPE_BYTES)
    return read, write


def reader_of(descriptor: int) -> pa.RecordBatchReader:
    """Return a reader of the rows in a pipe; closing it closes the pipe."""
    return pa.ipc.open_stream(cast("Any", os.fdopen(descriptor, "rb", buffering=_READ_BYTES)))


def writer_to(descriptor: int, schema: pa.Schema) -> pa.RecordBatchStreamWriter:
    """Return a writer of rows to a pipe; its owner closes the pipe afterwards."""
    return pa.ipc.new_stream(pa.PythonFile(cast("Any", _Pipe(descriptor)), "w"), schema)


class _Pipe:
    """The file object of an IPC writer: writes each buffer to a pipe whole, without a copy.

    Args:
        descriptor: The end to write to; the caller closes it.
    """

    closed = False

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._place = 0

    def writable(self) -> bool:
        """Return True, which Arrow requires."""
        return True

    def write(self, data: "bytes | pa.Buffer") -> int:
        """Write all of `data`; blocks while the pipe is full."""
        view = memoryview(data)
        size = view.nbytes
        while view:
            view = view[os.write(self._descriptor, view) :]
        self._place += size
        return size

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._place

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def close(self) -> None:
        """Do nothing: the caller closes the descriptor."""


def serialized(expression: pc.Expression | None) -> bytes:
    """Serialize an Arrow condition; b"" for None."""
    if expression is None:
        return b""
    # The form that Arrow uses to pickle expressions.
    return bytes(cast("Any", expression).__reduce__()[1][0])


def expression_of(raw: bytes) -> pc.Expression:
    """Decode the condition that `serialized` encoded."""
    return cast("Any", pc.Expression)._deserialize(pa.py_buffer(raw))
