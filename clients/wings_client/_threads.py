"""Threads that are used again: to start one takes several times as long as to wake one.

Nothing here bounds how many there are: whoever starts them does.
"""

import os
import queue
import threading
from collections.abc import Callable

IDLE_SECONDS = 10.0
"""How long a thread without work is kept."""

_lock = threading.Lock()
_idle: list["_Worker"] = []


class _Worker:
    """A thread and the calls that it is given, one at a time."""

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
                with _lock:
                    if self in _idle:
                        _idle.remove(self)
                        return
                continue  # Somebody took it meanwhile, and its call is on the way.
            self._thread.name = name
            try:
                call()
            finally:
                del call  # What it holds is not kept for as long as the thread idles.
                self._thread.name = "wings-idle"
                with _lock:
                    _idle.append(self)


def start_thread(call: Callable[[], None], name: str) -> None:
    """Run a call on a daemon thread of its own, and return at once.

    Args:
        call: Must not raise: nobody would hear of it but `threading.excepthook`.
        name: Of the thread, while it runs the call.
    """
    with _lock:
        worker = _idle.pop() if _idle else None
    if worker is None:
        worker = _Worker()
        worker.start()
    worker.calls.put((call, name))


# A child has none of its parent's threads.
os.register_at_fork(after_in_child=_idle.clear)
