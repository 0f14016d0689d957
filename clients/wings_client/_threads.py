"""Threads that are reused or start for sure, and a bounded hand-over of items from them.

To start a thread takes several times as long as to wake one. Their number is bounded by the
callers, not here.

Either side of a hand-over can end it. A signal handler or a finalizer may end it on a thread that
holds its lock, between any two calls of what that guards.
"""

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Generic, TypeVar

from wings_core.times import Deadline

IDLE_SECONDS = 10.0
"""How long a thread without work is kept."""

T = TypeVar("T")

WAKE_SECONDS = 1.0
"""How long a wait lasts before it checks again: an end by a signal handler or finalizer inside the
wait's own code does not wake it."""


class _Idle:
    """The idle workers."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # As a signal handler may come on a thread that holds it.
        self._workers: list[_Worker] = []

    def add(self, worker: "_Worker") -> None:
        """Add a worker whose call has returned."""
        with self._lock:
            self._workers.append(worker)

    def take(self) -> "_Worker | None":
        """Remove and return a worker; None if there is none."""
        with self._lock, suppress(IndexError):
            return self._workers.pop()
        return None

    def remove(self, worker: "_Worker") -> bool:
        """Remove this worker; returns False if a caller took it before."""
        with self._lock:
            found = worker in self._workers
            if found:
                self._workers.remove(worker)
            return found

    def clear(self) -> None:
        """Forget all workers in a forked child, which has none of its parent's threads."""
        self._lock = threading.RLock()  # A thread of the parent may have held the old one.
        self._workers = []


_idle = _Idle()


class _Worker:
    """A thread that runs one call at a time."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[tuple[Callable[[], None], str]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="wings", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                call, name = self.calls.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                if _idle.remove(self):
                    return
                continue  # A caller took it meanwhile; its call arrives next.
            self._thread.name = name
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - the worker takes other calls.
                told = (type(error), error, error.__traceback__, self._thread)
                threading.excepthook(threading.ExceptHookArgs(told))
                del told
            del call  # Else the idle thread would keep what it references alive.
            self._thread.name = "wings-idle"
            _idle.add(self)


def start_thread(call: Callable[[], None], name: str) -> None:
    """Run a call on a daemon thread of its own, and return at once.

    Args:
        call: Must not raise: an error reaches `threading.excepthook` alone.
        name: Name of the thread, while it runs the call.

    Raises:
        RuntimeError: There is no idle thread, and none more can be started.
    """
    worker = _idle.take()
    if worker is not None:
        worker.calls.put((call, name))
        return
    worker = _Worker()
    worker.calls.put((call, name))  # Before Ctrl-C may come, for which the start has room.
    worker.start()


class Work:
    """A call that runs once, on a daemon thread, however often it is started.

    Ctrl-C may end `start` on the main thread, and then nothing tells whether the call will run: the
    next `start` makes sure of it. What needs the call starts it each time.

    Args:
        call: Must not raise.
        name: Name of the thread.
    """

    def __init__(self, call: Callable[[], None], name: str) -> None:
        self._call = call
        self._name = name
        self._begun = threading.Lock()
        """Held from the beginning of the call on."""
        self._ended = threading.Event()
        self._ident = 0
        """The thread that runs the call."""
        self.is_started = False
        """Whether `start` has succeeded."""

    def start(self) -> None:
        """Start the thread, unless that was done.

        Raises:
            RuntimeError: There are too many threads; the next call tries again.
        """
        if not self.is_started:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
            self.is_started = True

    def join(self, seconds: float) -> None:
        """Wait for the end of the call, if it has begun; does nothing within the call."""
        if self._begun.locked() and threading.get_ident() != self._ident:
            self._ended.wait(seconds)

    def _run(self) -> None:
        if self._begun.acquire(blocking=False):
            self._ident = threading.get_ident()
            try:
                self._call()
            finally:
                self._ended.set()


if hasattr(os, "register_at_fork"):  # Not on Windows.
    os.register_at_fork(after_in_child=_idle.clear)


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
