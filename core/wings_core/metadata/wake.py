"""Wake: what a thread waits for, so that many threads are woken one after another.

A commit may end the waits of hundreds of threads. Woken at once they would all want the
interpreter's lock, and each that waits for it asks for it every 5 ms: of one row to 500 followers
that was a third of the processor's time. So a commit wakes one, and each wakes the next as soon as
it runs itself, before it does anything else.
"""

import threading
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager


class Wake:
    """An event for which one thread waits; `notify` is `set` for a thread that notifies many.

    A `threading.Event` is nine calls of Python for each that it ends a wait of, and this is four.
    """

    def __init__(self) -> None:
        self._unset = threading.Lock()
        """Free while it is set."""
        self._unset.acquire()
        self._turn = threading.Lock()
        self._behind: list[deque[Wake]] | None = None
        """The queues that the thread which waits is to wake the next of; None: none waits."""

    def is_set(self) -> bool:
        """Tell whether it was set since it was cleared."""
        return not self._unset.locked()

    def set(self) -> None:
        """End the wait for it, and those to come until it is cleared."""
        try:  # noqa: SIM105 - each commit that is waited for comes by here
            self._unset.release()
        except RuntimeError:
            pass  # It is set.

    def clear(self) -> None:
        """Have the next wait block until it is set again."""
        self._unset.acquire(blocking=False)

    def notify(self) -> None:
        """Set the event: at once, or within `in_turn` when it is its turn."""
        queue: deque[Wake] | None = getattr(_notifying, "queue", None)
        if queue is None:
            self.set()
        else:
            queue.append(self)

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the event is set, at most so many seconds; return whether it is set."""
        with self._turn:
            is_first = self._behind is None
            if is_first:
                self._behind = []
        try:
            is_set = self._unset.acquire(timeout=-1 if timeout is None else max(timeout, 0))
            if is_set:
                self.set()
            return is_set
        finally:
            if is_first:
                with self._turn:
                    behind, self._behind = self._behind or [], None
                for queue in behind:
                    _wake_next(queue)

    def set_before(self, queue: "deque[Wake]") -> bool:
        """Set the event; return whether a thread waits, which then wakes the next of a queue."""
        with self._turn:
            waits = self._behind is not None
            if self._behind is not None:
                self._behind.append(queue)
        self.set()
        return waits


@contextmanager
def in_turn() -> Generator[None]:
    """Gather what is notified by this thread during the block, and then wake one after another."""
    queue: deque[Wake] = deque()
    _notifying.queue = queue
    try:
        yield
    finally:
        _notifying.queue = None
        _wake_next(queue)


_notifying = threading.local()


def _wake_next(queue: deque[Wake]) -> None:
    """Wake the first of a queue for which a thread waits, which wakes the next."""
    while True:
        try:
            wake = queue.popleft()
        except IndexError:
            return
        if wake.set_before(queue):
            return
