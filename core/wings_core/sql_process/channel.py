"""The channel between a server and a statement process.

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


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
