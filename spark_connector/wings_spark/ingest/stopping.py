"""Stopping of a run by SIGTERM or Ctrl-C: at once while it starts, in order during its query."""

import os
import signal
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

GRACE_SECONDS = 8.0
"""Longest time to stop; then the process exits at once, which loses nothing."""

_STATUSES = {signal.SIGTERM: 0, signal.SIGINT: 130}
"""Exit status of a stopped run by signal."""


class Stopped(BaseException):
    """A signal stopped a run that had nothing to stop in order."""


class StopSignals:
    """SIGTERM and SIGINT, caught in a `with` statement of the main thread.

    The first signal requests a stop, and the second ends the process at once. A thread ensures that
    the process ends in time, even if the main thread is blocked.
    """

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._in_order = False
        self._previous: dict[int, Any] = {}
        self._woken, self._wakes = socket.socketpair()
        self.status = 0
        """Exit status for the first signal."""

    @property
    def asked(self) -> bool:
        """Whether a signal has arrived."""
        return self._asked.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait for a signal; returns whether one arrived."""
        return self._asked.wait(seconds)

    def catch(self) -> None:
        """Install the handlers, again if another library, such as PySpark, has replaced them.

        Raises:
            Stopped: A signal arrived before; its exception may have been lost, as in a callback of
                C.
        """
        for number in _STATUSES:
            found = signal.signal(number, self._on_signal)
            self._previous.setdefault(number, found)
        if self.asked:
            raise Stopped

    @contextmanager
    def in_order(self) -> Generator[None]:
        """Make signals only set `asked` instead of raising `Stopped`, in a `with` statement."""
        self._in_order = True
        try:
            yield
        finally:
            self._in_order = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.asked:
            os._exit(self.status)
        self.status = _STATUSES[signal.Signals(number)]
        self._asked.set()
        if not self._in_order:
            raise Stopped

    def _end_in_time(self) -> None:
        # The interpreter writes each signal's number when it comes, not when it is handled.
        while number := self._woken.recv(1):
            if number[0] in _STATUSES:
                time.sleep(GRACE_SECONDS)
                os._exit(_STATUSES[signal.Signals(number[0])])
        self._woken.close()

    def __enter__(self) -> Self:
        """Catch the signals."""
        self._wakes.setblocking(False)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._end_in_time, daemon=True).start()
        self.catch()
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the previous handlers, unless a signal is about to end the process."""
        if self.asked:
            return
        signal.set_wakeup_fd(-1)
        for number, found in self._previous.items():
            signal.signal(number, found)
        self._wakes.close()  # Its thread ends.
