"""Life of a server's process: started, announced on standard output, stopped by a signal, ended."""

import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn, Protocol

import structlog

from wings_core.errors import WingsError
from wings_core.tracing import setup as traces
from wings_server import logs
from wings_server.descriptors import raise_limit
from wings_server.settings import Settings

STOP_SECONDS_MAX = 10.0
"""How long a stop may take beyond the drain, disk included, before the process is ended."""

COLLECTED_OBJECTS = 100_000
"""New objects at which Python looks for cycles among the young.

Its own 700 are those of a few pushes. A push to 10,000 partitions makes some 80,000, which are all
freed without; looking at them takes it a tenth longer."""

_logger = structlog.get_logger("wings.server")


class Service(Protocol):
    """A server that a process runs."""

    @property
    def settings(self) -> Settings:
        """The settings that it was built with."""
        ...

    @property
    def ready_line(self) -> str:
        """The line on standard output when it serves."""
        ...

    def start(self) -> None:
        """Serve; returns when it takes connections.

        Raises:
            WingsError: It cannot serve; the parts that were started are stopped again.
        """
        ...

    def stop(self) -> None:
        """Drain and stop.

        Raises:
            WingsError: A part could not be closed as it should; all parts are closed.
        """
        ...

    def reload(self) -> None:
        """Read the certificate again, where there is one."""
        ...


def run(service: Service, process: int | None = None) -> NoReturn:
    """Serve until SIGTERM or SIGINT, then drain, and end the process with status 0.

    Prints the ready line when it serves. On SIGHUP it reads the certificate again. A second signal
    to end ends the process at once; acknowledged messages are safe then as well. The status is 1
    where the stop failed, as where the disk does.

    Args:
        service: The server.
        process: The number of this process among several, for the log.

    Raises:
        WingsError: It could not start.
    """
    settings = service.settings
    logs.configure(settings.log_level, settings.log_format, process=process)
    signals = _Signals()
    raise_limit()
    traces.start("wings")
    service.start()
    signals.hung_up = service.reload
    collect_rarely()
    line = service.ready_line
    with suppress(OSError):  # A closed standard output is no reason to stop.
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    where = {} if settings.is_stateless else {"data_dir": str(settings.data_dir)}
    _logger.info("serving", **where, **_addresses(line))

    _logger.info("stopping", signal=signals.wait().name)
    _end_in(settings.drain_seconds + STOP_SECONDS_MAX)
    status = 0
    try:
        service.stop()
        _logger.info("stopped")
    except WingsError as error:
        _logger.error("stopped, but not all was closed", reason=error.message)
        status = 1
    traces.stop()
    _exit(status)


def collect_rarely() -> None:
    """Have Python look for cycles among new objects alone, and among many of them at a time."""
    # Present objects stay for as long as the process: looking at them in each collection would take
    # as long as many small pushes.
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTED_OBJECTS)


def _addresses(line: str) -> dict[str, str]:
    words = [word.partition("=") for word in line.split()]
    return {name: value.rpartition("/")[2] for name, found, value in words if found}


class _Signals:
    """SIGTERM and SIGINT, caught from its making on: the first is waited for, a second ends all.

    Python's own handlers run on the main thread, once that comes back from where it waits. The
    kernel may hand a signal to any thread, and then nothing wakes the main one. The byte that C
    writes to the wake-up socket comes in any case.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._seen = 0
        self.hung_up: Callable[[], None] = lambda: None
        """Called on SIGHUP, which ends nothing."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)
        signal.signal(signal.SIGHUP, lambda _, __: None)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

    def wait(self) -> signal.Signals:
        """Return the first; blocks until it comes."""
        while (first := signal.Signals(self._reader.recv(1)[0])) is signal.SIGHUP:
            self.hung_up()
        threading.Thread(target=self._end_at_next, name="wings-signals", daemon=True).start()
        return first

    def _handle(self, number: int, _frame: object) -> None:
        self._seen += 1
        if self._seen > 1:
            os._exit(128 + number)

    def _end_at_next(self) -> None:
        while (number := self._reader.recv(1)[0]) == signal.SIGHUP:
            pass
        os._exit(128 + number)


def _end_in(seconds: float) -> None:
    """End the process after so many seconds, whatever it is waiting for."""

    def end() -> None:
        _logger.error("the stop took too long; ending the process", seconds=seconds)
        _exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def _exit(status: int) -> NoReturn:
    """End the process without waiting for its other threads.

    pyarrow's Flight server cannot be shut down while a client keeps a DoPut stream open and idle
    (measured): its thread would keep the interpreter from ending. The log is closed by now.
    """
    logging.shutdown()
    os._exit(status)
