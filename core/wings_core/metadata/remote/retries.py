"""Retries: one thread that calls back after a pause, for calls that wait for a lost connection."""

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

_logger = logging.getLogger(__name__)


class Retries:
    """Calls functions later; its thread begins with the first and ends with `close`.

    What is scheduled is bounded by those who schedule: each watch has at most one.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function after so many seconds, unless closed before; it must not block."""
        with self._changed:
            if self._closed:
                return
            heapq.heappush(self._queue, (time.monotonic() + seconds, next(self._numbers), function))
            if self._thread is None:
                thread = threading.Thread(
                    target=self._run, name="wings-metadata-retries", daemon=True
                )
                thread.start()  # Where it fails, the next call tries again.
                self._thread = thread
            self._changed.notify()

    def close(self) -> None:
        """Drop what is scheduled, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and not self._due():
                    pause = self._queue[0][0] - time.monotonic() if self._queue else None
                    self._changed.wait(pause)
                if self._closed:
                    return
                _, _, function = heapq.heappop(self._queue)
            try:
                function()
            except Exception:
                _logger.exception("a retry failed")

    def _due(self) -> bool:
        return bool(self._queue) and self._queue[0][0] <= time.monotonic()
