"""A bound on the connections of Flight, for which pyarrow and its gRPC have no setting.

The process's own descriptors are checked every second. If too many of them are connections of
Flight, those without a request so far are shut down, as if their clients had disconnected, then the
ones idle for the longest time. Only Linux allows to find them.
"""

import os
import resource
import socket
import stat
import struct
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import structlog

LOOK_SECONDS = 1.0
"""Pause between two checks."""

REQUEST_BYTES_MIN = 100
"""Least bytes received from a client with a request: the HTTP/2 preface of gRPC's clients has 82
bytes, the headers of a first call about 200."""

# Offsets in `struct tcp_info` of linux/tcp.h.
_INFO_BYTES = 136
_LAST_SENT, _LAST_RECEIVED, _BYTES_RECEIVED = 44, 52, 128

_DESCRIPTORS = Path("/proc/self/fd")

_logger = structlog.get_logger("wings.flight")


class FlightConnections:
    """A thread that bounds the connections of one listener until `stop`.

    Args:
        port: Port of the listener.
        connections_max: The most connections.
    """

    def __init__(self, port: int, connections_max: int) -> None:
        self._port = port
        self._connections_max = connections_max
        self._nothing = os.open(os.devnull, os.O_RDONLY)
        # Reserved, as the process may have no descriptor left for a check.
        self._own = os.dup(self._nothing)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wings-connections", daemon=True)
        if _DESCRIPTORS.is_dir():
            self._thread.start()

    def stop(self) -> None:
        """End the thread; blocks until it has ended."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        os.close(self._own)
        os.close(self._nothing)

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            closed = self._look()
            if closed:
                _logger.warning(
                    "more connections than may be open",
                    closed=closed,
                    connections_max=self._connections_max,
                )

    def _look(self) -> int:
        """Close surplus connections; returns their number."""
        descriptors = _open_descriptors()
        if len(descriptors) <= self._connections_max:
            return 0
        found = [
            (*self._use(), each, os.fstat(self._own).st_ino)
            for each in descriptors
            if self._take(each)
        ]
        found.sort()
        closed = 0
        for *_, descriptor, number in found[: max(0, len(found) - self._connections_max)]:
            # The descriptor may be another connection by now.
            if self._take(descriptor) and os.fstat(self._own).st_ino == number:
                self._shut()
                closed += 1
        # Otherwise the last checked connection would stay half open.
        os.dup2(self._nothing, self._own, inheritable=False)
        return closed

    def _take(self, descriptor: int) -> bool:
        """Make `_own` a duplicate of a connection; returns whether it is one of the listener's."""
        if descriptor == self._own:
            return False
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                return False
            os.dup2(descriptor, self._own, inheritable=False)
        except OSError:  # It has been closed meanwhile.
            return False
        connection = _socket_of(self._own)
        if connection is None:
            return False
        try:
            connection.getpeername()
            return bool(connection.getsockname()[1] == self._port)
        except (OSError, IndexError, TypeError):
            return False
        finally:
            connection.detach()

    def _use(self) -> tuple[bool, int]:
        """Return the sort key of the taken connection, whose least is closed first."""
        connection = _socket_of(self._own)
        if connection is None:
            return False, 0
        try:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        except OSError:
            return False, 0
        finally:
            connection.detach()
        info = info.ljust(_INFO_BYTES, b"\0")
        (received,) = struct.unpack_from("=Q", info, _BYTES_RECEIVED)
        idle_ms = min(
            struct.unpack_from("=I", info, place)[0] for place in (_LAST_SENT, _LAST_RECEIVED)
        )
        return received >= REQUEST_BYTES_MIN, -idle_ms

    def _shut(self) -> None:
        connection = _socket_of(self._own)
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.detach()


def _open_descriptors() -> list[int]:
    try:
        return [int(name) for name in os.listdir(_DESCRIPTORS)]  # noqa: PTH208 - names alone
    except OSError:  # Not one is left to list them by.
        return list(_existing(range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])))


def _existing(descriptors: Iterable[int]) -> Iterable[int]:
    for descriptor in descriptors:
        try:
            os.fstat(descriptor)
        except OSError:
            continue
        yield descriptor


def _socket_of(descriptor: int) -> socket.socket | None:
    try:
        return socket.socket(fileno=descriptor)
    except OSError:
        return None
