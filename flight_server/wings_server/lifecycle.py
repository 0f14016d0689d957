"""Lifecycle of a server's process: start, ready line on standard output, stop by a signal."""

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

from wings_core import tracing_setup
from wings_core.errors import WingsError
from wings_server import logs
from wings_server.resources import raise_limit
from wings_server.settings import Settings

STOP_SECONDS_MAX = 10.0
"""Longest stop after the drain, disk included, before the process is ended."""

COLLECTED_OBJECTS = 100_000
"""Threshold of new objects for Python's collection of the youngest generation.

Python's default of 700 is reached by a few pushes. A push to 10,000 partitions creates some 80,000
objects, all freed without the collector; collections would make it 10 % slower."""

_logger = structlog.get_logger("wings.server")


class Service(Protocol):
    """A server that a process runs."""

    @property
    def settings(self) -> Settings:
        """The settings."""
        ...

    @property
    def ready_line(self) -> str:
        """Line printed on standard output when ready."""
        ...

    def start(self) -> None:
        """Start; returns when connections are accepted.

        Raises:
            WingsError: The start failed; the parts already started are stopped.
        """
        ...

    def stop(self) -> None:
        """Drain and stop.

        Raises:
            WingsError: A part failed to close properly; all parts are closed.
        """
        ...

    def reload(self) -> None:
        """Reload the certificate, if there is one."""
        ...


def run(service: Service, process: int | None = None) -> NoReturn:
    """Serve until SIGTERM or SIGINT, then drain, and end the process with status 0.

    Prints the ready line. SIGHUP reloads the certificate. A second SIGTERM or SIGINT ends the
    process at once; acknowledged messages are safe even then. The status is 1 if the stop failed,
    for example because of the disk.

    Args:
        service: The server.
        process: Number of this process among several, for the log.

    Raises:
        WingsError: The server could not start.
    """
    settings = service.settings
    logs.configure(settings.log_level, settings.log_format, process=process)
    signals = _Signals()
    raise_limit()
    tracing_setup.start("wings")
    gc.freeze()  # What is imported stays.
    gc.enable()
    service.start()
    signals.hung_up = service.reload
    line = service.ready_line
    with suppress(OSError):  # A closed standard output must not stop the server.
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    collect_rarely()  # Once it serves, as this takes a tenth of the start.
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
    tracing_setup.stop()
    _exit(status)


def collect_rarely() -> None:
    """Make Python's cycle collector run rarely, and only on new objects."""
    # Present objects live as long as the process: traversing them in each collection would take as
    # long as many small pushes.
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTED_OBJECTS)


def _addresses(line: str) -> dict[str, str]:
    words = [word.partition("=") for word in line.split()]
    return {name: value.rpartition("/")[2] for name, found, value in words if found}


class _Signals:
    """Handling of SIGTERM and SIGINT: the first ends `wait`, a second ends the process.

    Python runs handlers on the main thread, once it returns from a blocking call. The kernel may
    deliver a signal to any thread, which does not wake the main one. The byte written to the
    wake-up socket arrives in any case.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._seen = 0
        self.hung_up: Callable[[], None] = lambda: None
        """Called on SIGHUP."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)
        signal.signal(signal.SIGHUP, lambda _, __: None)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

    def wait(self) -> signal.Signals:
        """Return the first signal; blocks until it arrives."""
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
    """End the process after `seconds`, whatever it is waiting for."""

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
