"""The visibility extender: keeps the messages of a coordinator hidden while its pipeline runs."""

import logging
import threading
import time

from wings_core.errors import Internal, WingsError
from wings_core.queue.coordinator import QueueCoordinator

RETRY_SECONDS = (0.25, 30.0)
"""Backoff after a failed attempt: the least pause, which doubles each time, and the greatest."""

LOOKS_PER_VISIBILITY = 10
"""Attempts per visibility timeout."""

PAUSE_SECONDS_MIN = 0.05

_logger = logging.getLogger(__name__)


class VisibilityExtender:
    """Extends a coordinator's messages on a thread of its own, until it is closed.

    Failures are logged and retried with backoff: soon at first, since messages have deadlines. The
    pipeline calls `check`, which raises once they have lasted for too long.

    Args:
        coordinator: Holds the messages; called `LOOKS_PER_VISIBILITY` times per visibility.
    """

    def __init__(self, coordinator: QueueCoordinator) -> None:
        self._coordinator = coordinator
        self._closed = threading.Event()
        self._lock = threading.Lock()
        """Guards the attributes below; never held while blocking."""
        self._problem: Exception | None = None
        """The last failure; None after a successful attempt."""
        self._failing_since = 0.0
        self._thread = threading.Thread(target=self._run, name="wings-extender", daemon=True)
        self._thread.start()

    def check(self, seconds_max: float) -> None:
        """Raise the current failure, if it has lasted for `seconds_max`.

        Raises:
            WingsError: The failure; `Internal` for one of another type.
        """
        with self._lock:
            problem, since = self._problem, self._failing_since
        seconds = time.monotonic() - since
        if problem is None or seconds < seconds_max:
            return
        cls = type(problem) if isinstance(problem, WingsError) else Internal
        raise cls(f"messages could not be extended for {seconds:.0f} s: {problem}") from problem

    def close(self) -> None:
        """Stop the thread; blocks until its current attempt has ended."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        pause = self._pause()
        while not self._closed.wait(pause):
            try:
                self._coordinator.extend_and_renew()
            except Exception as error:  # noqa: BLE001 - the thread must survive every error
                pause = self._failed(error, pause)
            else:
                pause = self._pause()
                with self._lock:
                    self._problem = None

    def _pause(self) -> float:
        return max(PAUSE_SECONDS_MIN, self._coordinator.visibility_seconds / LOOKS_PER_VISIBILITY)

    def _failed(self, error: Exception, pause: float) -> float:
        """Record a failure; returns the pause before the next attempt in seconds."""
        with self._lock:
            is_first = self._problem is None
            if is_first:
                self._failing_since = time.monotonic()
            self._problem = error
        # A lost message is delivered again, and its files continue where they were published.
        _logger.warning(
            "messages could not be extended: %s",
            error,
            exc_info=None if isinstance(error, WingsError) else error,
        )
        first, most = RETRY_SECONDS
        usual = self._pause()
        return min(first, usual) if is_first else min(2 * pause, max(most, usual))
