"""Calls that end early: by a cancellation from another thread or task, or by Ctrl-C.

A call under a cancellation registers its streams and waits with it. The cancellation is a context
variable of the thread, so it is not passed down through the calls.

Python handles signals on the main thread, and only between its own instructions: not while that
blocks in pyarrow. But it writes the number of each signal that it will handle to a file descriptor
at once (`signal.set_wakeup_fd`), and a thread that reads there can cancel what the main thread
blocks in. Where that descriptor is another's, as asyncio's, or a signal has a handler of the
program's own, which may well let the read go on, reads of the main thread run on a thread of
their own instead: slower, as each is handed over twice.
"""

import os
import signal
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from wings_client._threads import start_thread

T = TypeVar("T")

LOOK_SECONDS = 0.5
"""How late Ctrl-C may be heeded where another thread reads: one that comes just before the wait
begins does not end it, and is noticed when the wait is over."""

_NO_DESCRIPTOR = -1


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


@contextmanager
def interruptible(
    reader: flight.FlightStreamReader, *, waits_long: bool
) -> Generator[Callable[[], flight.FlightStreamChunk]]:
    """Yield the reader's `read_chunk`, for use within the block, as a call that Ctrl-C interrupts.

    An interrupted call may continue on a thread: the handler of `KeyboardInterrupt` must end the
    stream.

    Args:
        reader: Reader of the stream.
        waits_long: Whether a read may block for long. If not, and on other threads than the main
            one, `read_chunk` itself is yielded.
    """
    if not waits_long or threading.current_thread() is not threading.main_thread():
        yield reader.read_chunk
        return
    main = threading.get_ident()
    watch = _Watch.of_process() if _only_interrupts() else None

    def read() -> flight.FlightStreamChunk:
        if threading.get_ident() != main:
            return reader.read_chunk()  # The stream was handed on.
        if watch is not None and watch.begin(reader):
            return watch.run(reader)
        return _on_a_thread(reader.read_chunk)

    yield read


def _on_a_thread(call: Callable[[], T]) -> T:
    found: Future[T] = Future()

    def run() -> None:
        try:
            found.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for.
            found.set_exception(error)

    start_thread(run, "wings-read")
    while not found.done():  # Not by `result`, whose time-out looks like one of a signal handler.
        wait((found,), LOOK_SECONDS)
    return found.result()


def _only_interrupts() -> bool:
    """Tell whether all that a signal can do is to end the process or to raise an interrupt."""
    if os.name != "posix" or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    handlers = (signal.getsignal(number) for number in signal.valid_signals() - {signal.SIGINT})
    return not any(callable(handler) for handler in handlers)


class _Watch:
    """Cancels the stream that the main thread reads when a signal comes; one for the process."""

    _present: "_Watch | None" = None

    def __init__(self) -> None:
        self._reader: flight.FlightStreamReader | None = None
        self._signals, self._descriptor = os.pipe()
        os.set_blocking(self._descriptor, False)
        threading.Thread(target=self._run, name="wings-signals", daemon=True).start()

    @classmethod
    def of_process(cls) -> "_Watch":
        """Return this process's."""
        if cls._present is None:
            cls._present = _Watch()
        return cls._present

    @classmethod
    def forget(cls) -> None:
        """Forget the parent's in a forked child: its thread, and what comes by it, are not here."""
        parents, cls._present = cls._present, None
        if parents is not None:
            # Another thread than the one that reads may have forked.
            before = signal.set_wakeup_fd(_NO_DESCRIPTOR)
            if before not in (_NO_DESCRIPTOR, parents._descriptor):
                signal.set_wakeup_fd(before)

    def begin(self, reader: flight.FlightStreamReader) -> bool:
        """Watch over a read; returns False where another wants to know of signals."""
        before = signal.set_wakeup_fd(self._descriptor, warn_on_full_buffer=False)
        if before not in (_NO_DESCRIPTOR, self._descriptor):
            signal.set_wakeup_fd(before)
            return False
        self._reader = reader
        return True

    def run(self, reader: flight.FlightStreamReader) -> flight.FlightStreamChunk:
        """Read a chunk, watched over since `begin`."""
        try:
            return reader.read_chunk()
        finally:
            self._reader = None
            signal.set_wakeup_fd(_NO_DESCRIPTOR)

    def _run(self) -> None:
        while os.read(self._signals, 1):
            reader = self._reader
            if reader is not None:
                with suppress(pa.ArrowException, OSError):
                    reader.cancel()


if hasattr(os, "register_at_fork"):  # Not on Windows.
    os.register_at_fork(after_in_child=_Watch.forget)
