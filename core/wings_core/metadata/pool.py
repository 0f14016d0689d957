"""A pool that serves callers in the order in which they came.

The queues and locks of the standard library let a running thread take the item just released, so
under load a waiting thread can starve (measured: seconds, with 8 busy threads on 4 connections).
"""

import threading
from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from wings_core.errors import Unavailable

T = TypeVar("T")


class _Turn(Generic[T]):
    """One caller in the queue."""

    __slots__ = ("item", "served")

    def __init__(self) -> None:
        self.item: T | None = None
        self.served = threading.Lock()
        self.served.acquire()


class FairPool(Generic[T]):
    """Items, each acquired by one caller at a time, in the order of asking.

    The item released last is acquired first: its caches are warm.

    Args:
        what: The item's name in error messages.
        items: All of them.
        seconds_max: How long a caller waits at most.
    """

    def __init__(self, what: str, items: Iterable[T], seconds_max: float) -> None:
        self._what = what
        self._free = list(items)
        self._size = len(self._free)
        self._seconds_max = seconds_max
        self._waiting: deque[_Turn[T]] = deque()
        self._lock = threading.Lock()
        self._released = threading.Condition(self._lock)
        self._closed = False

    @property
    def waiting(self) -> int:
        """How many callers wait now."""
        return len(self._waiting)

    def acquire(self) -> T:
        """Return an item, which the caller must `release`; blocks for at most `seconds_max`.

        Raises:
            Unavailable: None came free in time, or the pool is closed.
        """
        waiter: _Turn[T] | None = None
        try:
            with self._lock:
                if self._closed:
                    raise Unavailable("metadata is closed")
                if self._free:
                    return self._free.pop()
                waiter = _Turn()
                self._waiting.append(waiter)
            waiter.served.acquire(timeout=self._seconds_max)
        except BaseException:  # A signal handler may raise as soon as it waits.
            if waiter is not None:
                self._abandon(waiter)
            raise
        # Served at the last moment counts, so whether it was is asked under the lock.
        with self._lock:
            if waiter.item is not None:
                return waiter.item
            if self._closed:
                raise Unavailable("metadata is closed")
            self._waiting.remove(waiter)
        raise Unavailable(f"{self._what} did not come free in {self._seconds_max:g} s")

    def release(self, item: T) -> None:
        """Pass an item to the caller that has waited longest; never blocks."""
        with self._lock:
            if self._waiting:
                waiter = self._waiting.popleft()
                waiter.item = item
                waiter.served.release()
            else:
                self._free.append(item)
                if self._closed:
                    self._released.notify()

    def close(self) -> list[T]:
        """Refuse callers from now on, and return the items once they are released.

        Blocks for at most `seconds_max`; an item that is kept longer is left out.
        """
        with self._lock:
            self._closed = True
            for waiter in self._waiting:
                waiter.served.release()
            self._waiting.clear()
            self._released.wait_for(lambda: len(self._free) == self._size, self._seconds_max)
            self._size -= len(self._free)
            free, self._free = self._free, []
            return free

    def _abandon(self, waiter: _Turn[T]) -> None:
        with self._lock:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
        if waiter.item is not None:
            self.release(waiter.item)
