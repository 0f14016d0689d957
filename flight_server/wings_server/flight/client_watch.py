"""Detection of clients that disconnect while their long poll waits.

A handler that waits in Python is not notified of a disconnected client. `context.is_cancelled()`
tells, but polling 2,000 contexts every 50 ms costs a fifth of a core (measured), and polling one
whose call has ended crashes the process. So one thread polls all in rotation, a bounded number at a
time, and a call is watched only while its own generator runs.
"""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pyarrow.flight as flight

from wings_core.errors import WingsError
from wings_core.fetch.fetcher import Cancel
from wings_server.flight.authentication import caller_of
from wings_server.flight.boundary import ClientGone

SWEEP_SECONDS = 0.04
"""Pause between two sweeps."""

SWEEP_CALLS_MAX = 100
"""Calls polled in one sweep: of 100 calls each is polled every 40 ms, of 2,000 every 0.8 s."""


_Watched = tuple[flight.ServerCallContext, Cancel, Callable[[], WingsError | None]]
"""A call, its cancellation, and a function that returns the error ending its principal's calls."""


class ClientWatch:
    """Canceller of reads without client or valid token, and of all reads at the server's stop."""

    def __init__(self) -> None:
        # Held while a context is polled: leaving `watched` waits for that, so a context is never
        # polled after its call has ended. Calls stand in the order in which they are polled next.
        self._lock = threading.Lock()
        self._calls: dict[int, _Watched] = {}
        self._stopping: WingsError | None = None
        self._arrived = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wings-client-watch", daemon=True)
        self._thread.start()

    @contextmanager
    def watched(self, context: flight.ServerCallContext, cancel: Cancel) -> Generator[None]:
        """Watch a call; entered and left inside the generator that serves it."""
        ended = caller_of(context).principal.ended
        with self._lock:
            if self._stopping is not None:
                cancel.cancel(self._stopping)
            self._calls[id(cancel)] = (context, cancel, ended)
        self._arrived.set()
        try:
            yield
        finally:
            with self._lock:
                self._calls.pop(id(cancel), None)

    def stop(self, error: WingsError) -> None:
        """End every watched read, and every later one, with this error."""
        with self._lock:
            self._stopping = error
            for _, cancel, _ in self._calls.values():
                cancel.cancel(error)
        self._arrived.set()

    def join(self) -> None:
        """Wait for the sweeping thread to end, after `stop`."""
        self._thread.join()

    def _run(self) -> None:
        pause = threading.Event()  # Never set; waits without burning.
        while self._stopping is None:
            if not self._calls:
                self._arrived.wait()
                self._arrived.clear()
                continue
            pause.wait(SWEEP_SECONDS)
            for _ in range(min(SWEEP_CALLS_MAX, len(self._calls))):
                self._ask_next()

    def _ask_next(self) -> None:
        """Poll the call polled least recently, and put it last."""
        with self._lock:
            key = next(iter(self._calls), None)
            if key is None:
                return
            context, cancel, ended = self._calls.pop(key)
            self._calls[key] = (context, cancel, ended)
            error = ended()
            if context.is_cancelled():
                error = ClientGone("the client has gone away")
            if error is not None:
                cancel.cancel(error)
