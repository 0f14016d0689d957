"""Count and bound of running calls, and waiting for them at a stop."""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from wings_core.errors import ResourceExhausted

IDLE_SECONDS = 0.2
"""Time without the begin or end of a call after which, during a stop, calls count as idle."""

LOOK_SECONDS = 0.02


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
