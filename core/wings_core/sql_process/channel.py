"""The channel between a server and a process that runs a statement.

A message is a JSON object, bytes, and at most one file descriptor.
"""

import json
import os
import select
import socket
import struct
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_PREFIX = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class Received:
    """A message that was received."""

    head: dict[str, Any]
    body: bytes
    descriptor: int | None
    """The receiver closes it."""


class Channel:
    """One end; `send` from any thread, `receive` from one.

    Args:
        end: A connected socket of the stream kind, within this machine.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()

    def fileno(self) -> int:
        """Return the descriptor that is readable where a message can be received."""
        return self._socket.fileno()

    def send(self, head: dict[str, Any], body: bytes = b"", descriptor: int | None = None) -> None:
        """Send a message, with a copy of a descriptor.

        Raises:
            OSError: The other end is closed.
        """
        text = json.dumps(head).encode()
        prefix = _PREFIX.pack(len(text), len(body))
        with self._sending:
            if descriptor is None:
                self._socket.sendall(prefix)
            else:
                # So few bytes are sent at once; the descriptor comes with the first.
                socket.send_fds(self._socket, [prefix], [descriptor])
            self._socket.sendall(text)
            self._socket.sendall(body)

    def receive(self) -> Received | None:
        """Return the next message; None: the other end is closed."""
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
    """Return those of some descriptors that can be read or have ended; waits so long for one.

    Not by `select`, which knows no descriptors beyond 1023: a server may have more.
    """
    poller = select.poll()
    for each in descriptors:
        poller.register(each, select.POLLIN)
    return {each for each, _ in poller.poll(round(seconds * 1_000))}


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
