"""Keeper: extends what a coordinator holds, for as long as the pipeline runs."""

import logging
import threading
import time

from wings_core.errors import Internal, WingsError
from wings_core.queue.coordinator import QueueCoordinator

RETRY_SECONDS = (0.25, 30.0)
"""Between two tries to extend messages where the last one failed: doubled, up to the second."""

LOOKS_PER_VISIBILITY = 10
"""How often messages are looked at in the time for which they are hidden."""

PAUSE_SECONDS_MIN = 0.05

_logger = logging.getLogger(__name__)


class Keeper:
    """Keeps what a coordinator holds, on a thread of its own, until it is closed.

    Whatever fails is logged and tried again: soon at first, as messages have deadlines, and then
    ever more rarely. Whoever runs the pipeline asks `check` whether that has gone on for too long.

    Args:
        coordinator: Whose messages are extended. They are looked at ten times as often as they have
            to be.
    """

    def __init__(self, coordinator: QueueCoordinator) -> None:
        self._coordinator = coordinator
        self._closed = threading.Event()
        self._lock = threading.Lock()
        """Guards what is below; held while nothing blocks."""
        self._problem: Exception | None = None
        """What it fails with since a time; None: it does not."""
        self._failing_since = 0.0
        self._thread = threading.Thread(target=self._run, name="wings-keeper", daemon=True)
        self._thread.start()

    def check(self, seconds_max: float) -> None:
        """Make sure that messages are extended.

        Args:
            seconds_max: For how long it may have failed.

        Raises:
            WingsError: What it fails with for longer; `Internal` for a fault of our own.
        """
        with self._lock:
            problem, since = self._problem, self._failing_since
        seconds = time.monotonic() - since
        if problem is None or seconds < seconds_max:
            return
        cls = type(problem) if isinstance(problem, WingsError) else Internal
        raise cls(f"messages could not be extended for {seconds:.0f} s: {problem}") from problem

    def close(self) -> None:
        """Stop; blocks until a call that is under way has ended."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        pause = self._pause()
        while not self._closed.wait(pause):
            try:
                self._coordinator.keep()
            except Exception as error:  # noqa: BLE001 - The thread has to outlive every error.
                pause = self._failed(error, pause)
            else:
                pause = self._pause()
                with self._lock:
                    self._problem = None

    def _pause(self) -> float:
        return max(PAUSE_SECONDS_MIN, self._coordinator.visibility_seconds / LOOKS_PER_VISIBILITY)

    def _failed(self, error: Exception, pause: float) -> float:
        """Note a failure, and return for how long to wait before the next try."""
        with self._lock:
            is_first = self._problem is None
            if is_first:
                self._failing_since = time.monotonic()
            self._problem = error
        # What is lost comes again: then the files tell what is done.
        _logger.warning(
            "messages could not be extended: %s",
            error,
            exc_info=None if isinstance(error, WingsError) else error,
        )
        first, most = RETRY_SECONDS
        usual = self._pause()
        return min(first, usual) if is_first else min(2 * pause, max(most, usual))
