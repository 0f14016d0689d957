"""Running calls and connections: their bounds, their end at a stop, and clients that leave.

A handler that waits in Python is not notified of a disconnected client. `context.is_cancelled()`
tells, but polling 2,000 contexts every 50 ms costs a fifth of a core (measured), and polling one
whose call has ended crashes the process. So one thread polls all in rotation, a bounded number at a
time, and a call is watched only while its own generator runs.

pyarrow and its gRPC have no setting for a bound on connections. The process's own descriptors are
checked every second. If too many of them are connections of Flight, those without a request so far
are shut down, as if their clients had disconnected, then the ones idle for the longest time. Only
Linux allows to find them.
"""

import os
import resource
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow.flight as flight
import structlog

from wings_core.errors import ResourceExhausted, WingsError
from wings_core.fetch.fetcher import Cancel
from wings_server.flight.authentication import caller_of
from wings_server.flight.boundary import ClientGone

SWEEP_SECONDS = 0.04
"""Pause between two sweeps."""

SWEEP_CALLS_MAX = 100
"""Calls polled in one sweep: of 100 calls each is polled every 40 ms, of 2,000 every 0.8 s."""

_Watched = tuple[flight.ServerCallContext, Cancel, Callable[[], WingsError | None]]
"""A call, its cancellation, and a function that returns the error ending its principal's calls."""

IDLE_SECONDS = 0.2
"""Time without the begin or end of a call after which, during a stop, calls count as idle."""

LOOK_SECONDS = 0.02

CONNECTIONS_LOOK_SECONDS = 1.0
"""Pause between two checks."""

REQUEST_BYTES_MIN = 100
"""Least bytes received from a client with a request: the HTTP/2 preface of gRPC's clients has 82
bytes, the headers of a first call about 200."""

# Offsets in `struct tcp_info` of linux/tcp.h.
_INFO_BYTES = 136

_LAST_SENT, _LAST_RECEIVED, _BYTES_RECEIVED = 44, 52, 128

_DESCRIPTORS = Path("/proc/self/fd")

_logger = structlog.get_logger("wings.flight")


class Running:
    """The running calls, at most `calls_max`."""

    def __init__(self, calls_max: int) -> None:
        self._calls_max = calls_max
        self._lock = threading.Lock()
        self._calls = 0
        self._changed_at = time.monotonic()

    @property
    def calls(self) -> int:
        """Number of running calls."""
        return self._calls

    @contextmanager
    def one(self) -> Generator[None]:
        """Count one call.

        Raises:
            ResourceExhausted: `calls_max` calls run already.
        """
        with self._lock:
            if self._calls >= self._calls_max:
                raise ResourceExhausted(f"{self._calls_max} calls run already")
            self._calls += 1
            self._changed_at = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                self._changed_at = time.monotonic()

    def drain(self, seconds: float, all_committed: Callable[[], bool]) -> None:
        """Wait at most `seconds` until no call is running, or all that remain are idle.

        Args:
            seconds: The bound.
            all_committed: Whether no received batch waits for its commit; while it is false, no
                call counts as idle.
        """
        pause = threading.Event()  # Never set.
        end = time.monotonic() + seconds
        while self._calls and time.monotonic() < end:
            idle = time.monotonic() - self._changed_at > IDLE_SECONDS
            if idle and all_committed():
                return
            pause.wait(LOOK_SECONDS)


class ClientWatch:
    """Canceller of reads without client or valid token, and of all reads at the server's stop."""

    def __init__(self) -> None:
        # Held while a context is polled: leaving `watched` waits for that, so a context is never
        # polled after its call has ended. Calls stand in the order in which they are polled next.
        self._lock = threading.Lock()
        self._calls: dict[int, _Watched] = {}
        self._stopping: WingsError | None = None
        self._arrived = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wings-client-watch", daemon=True)
        self._thread.start()

    @contextmanager
    def watched(self, context: flight.ServerCallContext, cancel: Cancel) -> Generator[None]:
        """Watch a call; entered and left inside the generator that serves it."""
        ended = caller_of(context).principal.ended
        with self._lock:
            if self._stopping is not None:
                cancel.cancel(self._stopping)
            self._calls[id(cancel)] = (context, cancel, ended)
        self._arrived.set()
        try:
            yield
        finally:
            with self._lock:
                self._calls.pop(id(cancel), None)

    def stop(self, error: WingsError) -> None:
        """End every watched read, and every later one, with this error."""
        with self._lock:
            self._stopping = error
            for _, cancel, _ in self._calls.values():
                cancel.cancel(error)
        self._arrived.set()

    def join(self) -> None:
        """Wait for the sweeping thread to end, after `stop`."""
        self._thread.join()

    def _run(self) -> None:
        pause = threading.Event()  # Never set; waits without burning.
        while self._stopping is None:
            if not self._calls:
                self._arrived.wait()
                self._arrived.clear()
                continue
            pause.wait(SWEEP_SECONDS)
            for _ in range(min(SWEEP_CALLS_MAX, len(self._calls))):
                self._ask_next()

    def _ask_next(self) -> None:
        """Poll the call polled least recently, and put it last."""
        with self._lock:
            key = next(iter(self._calls), None)
            if key is None:
                return
            context, cancel, ended = self._calls.pop(key)
            self._calls[key] = (context, cancel, ended)
            error = ended()
            if context.is_cancelled():
                error = ClientGone("the client has gone away")
            if error is not None:
                cancel.cancel(error)


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
        while not self._stopping.wait(CONNECTIONS_LOOK_SECONDS):
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
