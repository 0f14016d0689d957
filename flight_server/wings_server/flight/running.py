"""Count the calls under way: a bound on them, and what a stop waits for."""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from wings_core.errors import ResourceExhausted

IDLE_SECONDS = 0.2
"""Where no call ended or began for so long while stopping, those left are idle streams."""

LOOK_SECONDS = 0.02


class Running:
    """The calls under way, at most `calls_max` of them."""

    def __init__(self, calls_max: int) -> None:
        self._calls_max = calls_max
        self._lock = threading.Lock()
        self._calls = 0
        self._changed_at = time.monotonic()

    @property
    def calls(self) -> int:
        """How many calls are under way."""
        return self._calls

    @contextmanager
    def one(self) -> Generator[None]:
        """Count one call.

        Raises:
            ResourceExhausted: So many run already.
        """
        with self._lock:
            if self._calls >= self._calls_max:
                raise ResourceExhausted(f"{self._calls_max} calls run already")
            self._count(1)
        try:
            yield
        finally:
            with self._lock:
                self._count(-1)

    def drain(self, seconds: float, settled: Callable[[], bool]) -> None:
        """Wait until no call is under way, or all that are left are idle; at most `seconds`.

        Args:
            seconds: The bound.
            settled: Whether nothing received waits to be committed.
        """
        pause = threading.Event()  # Never set.
        end = time.monotonic() + seconds
        while self._calls and time.monotonic() < end:
            idle = time.monotonic() - self._changed_at > IDLE_SECONDS
            if idle and settled():
                return
            pause.wait(LOOK_SECONDS)

    def _count(self, change: int) -> None:
        self._calls += change
        self._changed_at = time.monotonic()
