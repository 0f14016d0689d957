"""Cancellation of a blocking call from another thread or task.

A call under a cancellation registers its streams and waits with it. The cancellation is a context
variable of the thread, so it is not passed down through the calls.
"""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


class Cancellation:
    """Ends one call.

    Attributes:
        event: Set on cancellation; ends every pause of the call.
    """

    def __init__(self) -> None:
        self.event = threading.Event()
        self._lock = threading.Lock()
        self._ends: list[Callable[[], None]] = []

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self.event.is_set()

    def cancel(self) -> None:
        """End the call's streams and waits, also later ones; does not block."""
        with self._lock:
            self.event.set()
            ends, self._ends = self._ends, []
        for end in ends:
            end()

    def add(self, end: Callable[[], None]) -> None:
        """Register a function to call on cancellation, from any thread; at once if cancelled."""
        with self._lock:
            if not self.event.is_set():
                self._ends.append(end)
                return
        end()

    def run(self, call: Callable[[], T]) -> T:
        """Make a call under this cancellation, on this thread."""
        token = _current.set(self)
        try:
            return call()
        finally:
            _current.reset(token)

    def remove(self, end: Callable[[], None]) -> None:
        """Remove what `add` registered."""
        with self._lock:
            if end in self._ends:
                self._ends.remove(end)


_current: ContextVar[Cancellation | None] = ContextVar("cancellation", default=None)


def current_cancellation() -> Cancellation | None:
    """Return the cancellation of this thread's call, None if it has none."""
    return _current.get()


@contextmanager
def woken_by_cancellation(wake: Callable[[], None]) -> Generator[Callable[[], bool]]:
    """Call `wake` when the call that the block belongs to is cancelled.

    Yields:
        A function that returns whether it was cancelled.
    """
    cancellation = _current.get()
    if cancellation is None:
        yield lambda: False
        return
    cancellation.add(wake)
    try:
        yield lambda: cancellation.cancelled
    finally:
        cancellation.remove(wake)
