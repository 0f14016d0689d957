"""Threads that are reused, and threads that start for sure, whenever Ctrl-C comes.

To start a thread takes several times as long as to wake one. Their number is bounded by the
callers, not here.
"""

import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress

IDLE_SECONDS = 10.0
"""How long a thread without work is kept."""


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
