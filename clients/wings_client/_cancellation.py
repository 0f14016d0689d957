"""Cancellation: how somebody who no longer waits for a call ends it on the thread it runs on.

A call under a cancellation registers what can be ended: its streams, and its waits. Nothing is
passed down for that; the cancellation belongs to the thread's context, as a task's does.
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
        event: Set once it was cancelled; ends every pause of the call.
    """

    def __init__(self) -> None:
        self.event = threading.Event()
        self._lock = threading.Lock()
        self._ends: list[Callable[[], None]] = []

    @property
    def cancelled(self) -> bool:
        """Whether it was."""
        return self.event.is_set()

    def cancel(self) -> None:
        """End the call, now and whatever it begins later; does not block."""
        with self._lock:
            self.event.set()
            ends, self._ends = self._ends, []
        for end in ends:
            end()

    def add(self, end: Callable[[], None]) -> None:
        """Call this, from any thread, when it is cancelled; at once where it was."""
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
        """Forget what `add` was given."""
        with self._lock:
            if end in self._ends:
                self._ends.remove(end)


_current: ContextVar[Cancellation | None] = ContextVar("cancellation", default=None)


def current_cancellation() -> Cancellation | None:
    """Return the cancellation that this thread's call is under, if any."""
    return _current.get()


@contextmanager
def woken_by_cancellation(wake: Callable[[], None]) -> Generator[Callable[[], bool]]:
    """Wake a wait in the block when its call is cancelled.

    Yields:
        Tells whether it was.
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
