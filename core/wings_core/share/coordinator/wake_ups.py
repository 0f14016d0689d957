"""WakeUps: the thread that wakes members when locks and delays end."""

import logging
import threading
from collections.abc import Callable

WAKE_SECONDS_MIN = 0.005
"""Locks and delays that end within this time of each other wake members together."""

WAKE_SECONDS_MAX = 1.0
"""How long it waits at most, also where it is not called."""

_logger = logging.getLogger(__name__)


class WakeUps:
    """Wakes members in time; blocks for nothing, so that no group waits for another.

    Args:
        wake_due: Wakes those for whom something has become due; returns in how many seconds
            something will be, or None.
    """

    def __init__(self, wake_due: Callable[[], float | None]) -> None:
        self._wake_due = wake_due
        self._lock = threading.Lock()
        self._called = threading.Event()
        self._is_stopped = False
        self._thread: threading.Thread | None = None

    def call(self) -> None:
        """See now what is due, and when the next will be; starts the thread where it is not."""
        self._called.set()
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._is_stopped:
                    thread = threading.Thread(
                        target=self._run, name="wings-share-wake", daemon=True
                    )
                    thread.start()
                    self._thread = thread

    def stop(self) -> None:
        """End the thread; blocks until it has."""
        with self._lock:
            self._is_stopped = True
            thread = self._thread
        self._called.set()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while not self._is_stopped:
            self._called.clear()
            if not self._is_stopped:  # It may have been stopped just before that.
                self._called.wait(self._wake())

    def _wake(self) -> float:
        """Wake members; returns the seconds to wait."""
        try:
            soonest = self._wake_due()
        except Exception:
            _logger.exception("members of share groups could not be woken")
            soonest = None
        if soonest is None:
            return WAKE_SECONDS_MAX
        return min(WAKE_SECONDS_MAX, max(WAKE_SECONDS_MIN, soonest))
