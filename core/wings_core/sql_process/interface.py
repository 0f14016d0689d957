"""The interface between a server and its statement processes: messages, rows, and errors.

A message is a JSON object, bytes, and at most one file descriptor. Rows are IPC streams in pipes.
Importing this loads no DuckDB.
"""

import contextlib
import fcntl
import json
import os
import select
import socket
import struct
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from wings_core.arrow_compute import pc

if TYPE_CHECKING:
    import pyarrow.compute

CATALOG = "wings"
"""The only catalog; it holds all tables."""

PIPE_BYTES = 1 << 20
"""Capacity of a pipe in bytes, where the kernel permits it."""

_READ_BYTES = 1 << 16

_PREFIX = struct.Struct("<II")

_OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryException")

_HARMLESS = ("ParserException", "BinderException", "CatalogException")
"""Errors that DuckDB reports before a statement runs."""


@dataclass(frozen=True, slots=True)
class View:
    """A view to create for a statement."""

    create: str
    drop: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """The result of DuckDB's parser."""

    tree: str
    """The statements as JSON, or an error."""
    kinds: tuple[str, ...]
    """Kinds of the statements, if the tree is the error about statements other than SELECT."""


class EngineFailed(Exception):  # noqa: N818 - internal: translated before it reaches callers.
    """A failure of DuckDB, or of Arrow within it.

    Attributes:
        message: The error's text; DuckDB's own includes JSON.
        kind: Name of the exception's class.
        shift: Bytes that precede the statement in the text sent to DuckDB.
    """

    def __init__(self, message: str, kind: str, shift: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.shift = shift

    @classmethod
    def stopped(cls) -> "EngineFailed":
        """Return the failure of a cancelled or timed-out query."""
        return cls("the query was stopped", "InterruptException")

    @property
    def of_memory(self) -> bool:
        """Whether memory ran out, which may leave it fragmented."""
        return self.kind in _OUT_OF_MEMORY

    @property
    def harmless(self) -> bool:
        """Whether the engine is still usable."""
        return self.kind in _HARMLESS


@dataclass(frozen=True, slots=True)
class Received:
    """A received message."""

    head: dict[str, Any]
    body: bytes
    descriptor: int | None
    """File descriptor sent with the message; the receiver closes it."""


class Channel:
    """One end of a channel. Any thread may call `send`, only one `receive`.

    Args:
        end: A connected Unix stream socket.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a message arrives."""
        return self._socket.fileno()

    def send(self, head: dict[str, Any], body: bytes = b"", descriptor: int | None = None) -> None:
        """Send a message, optionally with a copy of a descriptor.

        Raises:
            OSError: The other end is closed.
        """
        text = json.dumps(head).encode()
        prefix = _PREFIX.pack(len(text), len(body))
        with self._sending:
            if descriptor is None:
                self._socket.sendall(prefix)
            else:
                # So few bytes are sent in one call; the descriptor arrives with the first.
                socket.send_fds(self._socket, [prefix], [descriptor])
            self._socket.sendall(text)
            self._socket.sendall(body)

    def receive(self) -> Received | None:
        """Return the next message; None if the other end is closed."""
        try:
            prefix, descriptors, _, _ = socket.recv_fds(self._socket, _PREFIX.size, 1)
            if len(prefix) < _PREFIX.size:
                _close(descriptors)
                return None
            head_bytes, body_bytes = _PREFIX.unpack(prefix)
            text = self._exactly(head_bytes)
            body = self._exactly(body_bytes)
        except OSError:
            return None
        if text is None or body is None:
            _close(descriptors)
            return None
        return Received(json.loads(text), body, descriptors[0] if descriptors else None)

    def _exactly(self, size: int) -> bytes | None:
        if not size:
            return b""
        found = bytearray(size)
        view = memoryview(found)
        while view:
            read = self._socket.recv_into(view)
            if not read:
                return None
            view = view[read:]
        return bytes(found)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


def readable(descriptors: Iterable[int], seconds: float) -> set[int]:
    """Return the descriptors that are readable or closed; waits up to `seconds` for the first.

    Uses no `select`, which cannot take descriptors above 1023.
    """
    poller = select.poll()
    for each in descriptors:
        poller.register(each, select.POLLIN)
    return {each for each, _ in poller.poll(round(seconds * 1_000))}


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


def serialized(expression: "pyarrow.compute.Expression | None") -> bytes:
    """Serialize an Arrow condition; b"" for None."""
    if expression is None:
        return b""
    # The form that Arrow uses to pickle expressions.
    return bytes(cast("Any", expression).__reduce__()[1][0])


def expression_of(raw: bytes) -> "pyarrow.compute.Expression":
    """Decode the condition that `serialized` encoded."""
    return pc.Expression._deserialize(pa.py_buffer(raw))


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


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
