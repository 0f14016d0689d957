"""A bounded hand-over of items from many threads to one, which either side can end.

A signal handler or a finalizer may end it on a thread that holds its lock, between any two calls of
what that guards.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from wings_core.times import Deadline

T = TypeVar("T")

WAKE_SECONDS = 1.0
"""How long a wait lasts before it checks again: an end by a signal handler or finalizer inside the
wait's own code does not wake it."""


class HandoverClosed(Exception):  # noqa: N818 - not an error: the taker is gone.
    """The taker has closed the hand-over."""


class Handover(Generic[T]):
    """A bounded queue with an end.

    Args:
        items_max: Most items in it; `put` blocks beyond it.
        givers: How many threads put items; each calls `done` once.
    """

    def __init__(self, items_max: int, givers: int = 0) -> None:
        assert items_max >= 1
        self._items_max = items_max
        self._items: deque[T] = deque()
        self._givers = givers
        self._error: BaseException | None = None
        self._closed = False
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._changed = threading.Condition(self._lock)
        self._listener: Callable[[], None] | None = None

    def listen(self, listener: Callable[[], None]) -> None:
        """Register a function to call, from any thread, on a new item and at the end."""
        with self._lock:
            self._listener = listener

    def put(self, item: T) -> None:
        """Put an item; blocks while there is no room.

        Raises:
            HandoverClosed: `close` or `fail` was called.
        """
        with self._lock:
            while len(self._items) >= self._items_max and not self._closed:
                self._room.wait(WAKE_SECONDS)
            if self._closed:
                raise HandoverClosed
            self._items.append(item)
            self._notify()

    def take(self, timeout: float | None = None) -> T | None:
        """Remove and return the oldest item; blocks up to `timeout` seconds while there is none.

        Returns:
            None when all givers are done, after `close`, and on time-out.

        Raises:
            BaseException: The error passed to `fail`, once the items before it are taken.
        """
        with self._lock:
            if not self._items and not self._ended:
                self._wait(Deadline.never() if timeout is None else Deadline.after(timeout))
            if self._items:
                item = self._items.popleft()
                self._room.notify()
                return item
            if self._error is not None:
                raise self._error
            return None

    @property
    def idle(self) -> bool:
        """Whether `take` would have nothing to return or raise now."""
        with self._lock:
            return not self._items and self._error is None

    @property
    def ended(self) -> bool:
        """Whether no more items will be put; some may still be in it."""
        with self._lock:
            return self._ended

    def done(self) -> None:
        """End one giver's items; called once by each."""
        with self._lock:
            self._givers -= 1
            self._notify()

    def fail(self, error: BaseException) -> None:
        """Make `take` raise the error after the items already put; the first error counts."""
        with self._lock:
            self._error = self._error or error
            self._end()

    def close(self) -> None:
        """End it from the taker's side: drops items, blocked givers raise `HandoverClosed`."""
        with self._lock:
            self._items.clear()
            self._end()

    def _wait(self, deadline: Deadline) -> None:
        while not self._items and not self._ended and not deadline.passed:
            left = deadline.remaining()
            self._changed.wait(WAKE_SECONDS if left is None else min(WAKE_SECONDS, left))

    def _end(self) -> None:
        self._closed = True
        self._room.notify_all()
        self._notify()

    def _notify(self) -> None:
        self._changed.notify_all()
        if self._listener is not None:
            self._listener()

    @property
    def _ended(self) -> bool:
        return self._closed or self._givers == 0


class ReadAhead(Generic[T]):
    """Reads iterables ahead into a hand-over, on threads.

    Args:
        sources: Each is iterated by one thread, in order as threads are free.
        end: Ends all of them; callable from any thread, and does not block.
        items_max: Most items that were read and not yet taken.
        readers: How many threads call `read`.

    Attributes:
        handover: The queue of the items.
    """

    def __init__(
        self,
        sources: Iterable[Iterable[T]],
        end: Callable[[], object],
        items_max: int,
        readers: int = 1,
    ) -> None:
        self.handover: Handover[T] = Handover(items_max, readers)
        self._sources = iter(sources)
        self._next = threading.Lock()
        self._end = end

    def read(self) -> None:
        """Read until no source is left; an error is raised where the items are taken."""
        try:
            while (source := self._next_source()) is not None:
                for item in source:
                    self.handover.put(item)
        except HandoverClosed:
            return
        except BaseException as error:  # noqa: BLE001 - raised by `take`.
            self.handover.fail(error)
        finally:
            self.handover.done()

    def cancel(self) -> None:
        """End the sources; does not block."""
        self.handover.close()
        self._end()

    def _next_source(self) -> Iterable[T] | None:
        with self._next:
            return next(self._sources, None)
